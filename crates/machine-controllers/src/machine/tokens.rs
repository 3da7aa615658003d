//! Makes and removes bootstrap tokens in the target cluster. `creation::bootstrap_token` knows their content and their
//! owner.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;

use super::{
    SharedRng,
    creation::bootstrap_token::{
        Found, NAMESPACE, candidate_ids, expiry_of, is_of, judge, new_secret, secret_name, token_of, token_secret,
    },
    measures::Measures,
    memory::{HeldToken, Memory},
    observation::{Observation, SecretView, UserData},
    settings::MachineSettings,
};
use crate::times::{after, since};
use controller_runtime::{
    error::ApiError,
    key::{ObjectKey, Target},
    lock,
    objects::{DeleteHow, Objects},
};
use machine_api::v1alpha1::MachinePhase;

/// Ids under which a token of an earlier process is looked for: the id of the machine's name, and the first id of its UID,
/// which another machine has only by chance.
const LOOKED_AT: usize = 2;
/// A process that sees a machine this soon after its creation is the first to make a token for it.
const SEEN_AT_ONCE: Duration = Duration::from_secs(2);
/// How often in a row other clients may make and delete a token of the wanted name during one request.
const RACES: usize = 5;

/// Makes sure that the machine has a valid token of its own, and remembers it.
pub async fn ensure(
    tokens: &Objects<Arc<Secret>>,
    rng: &SharedRng,
    settings: &MachineSettings,
    measures: &Measures,
    seen: &Observation,
    memory: &mut Memory,
) -> Result<(), ApiError> {
    if memory.token.as_ref().is_some_and(|held| held.expires > seen.now) {
        return Ok(());
    }
    let machine = seen.name();
    let groups = &settings.bootstrap_token_auth_extra_groups;
    let lives = seen.limits.creation;
    let ids = candidate_ids(machine, &memory.uid);
    let mut stored = None;
    if may_have_one(seen) {
        // The first id may have been another machine's when an earlier process made the token, and may be free now.
        for id in ids.iter().take(LOOKED_AT).skip(1) {
            let existing = tokens.get(&ObjectKey::new(NAMESPACE, secret_name(id))).await?;
            stored =
                stored.or(existing.filter(|existing| matches!(judge(existing, machine, seen.now), Found::Reuse(_))));
        }
    }
    for id in &ids {
        if stored.is_some() {
            break;
        }
        let secret = {
            let mut rng = lock(rng);
            new_secret(&mut *rng)
        };
        let wanted = token_secret(machine, id, &secret, seen.now, lives, groups);
        stored = made_or_found(tokens, &wanted, seen).await?;
        if stored.is_none() {
            measures.token_collided();
        }
    }
    let Some(stored) = stored else {
        return Err(ApiError::Other("all ids of this machine's bootstrap token are taken by others".to_owned()));
    };
    let Some(token) = token_of(&stored) else {
        return Err(ApiError::Other(format!("token Secret {} is incomplete", stored.name_any())));
    };
    // A token of an earlier process ends sooner than a new one. A token without an end is looked at again after the usual time.
    let expires = expiry_of(&stored).unwrap_or_else(|| after(seen.now, lives));
    memory.token = Some(HeldToken { secret: Target::of(&*stored), token, expires });
    Ok(())
}

/// Whether an earlier process may have made a token for this machine, because it knew the machine first.
fn may_have_one(seen: &Observation) -> bool {
    let created = seen.machine.created().unwrap_or(seen.first_seen);
    *seen.phase() != MachinePhase::Unset || since(seen.first_seen, created) > SEEN_AT_ONCE
}

/// The token Secret, newly made or found as the machine's own; `None` when another machine's token has this name. An expired
/// token is deleted and made again, since Gardener grants no right to patch. A lost race is run again at once.
///
/// # Errors
/// `Conflict` when the race was lost too often.
async fn made_or_found(
    tokens: &Objects<Arc<Secret>>,
    wanted: &Secret,
    seen: &Observation,
) -> Result<Option<Arc<Secret>>, ApiError> {
    let key = ObjectKey::of(wanted);
    for _ in 0..RACES {
        match tokens.create(wanted).await {
            Err(ApiError::AlreadyExists(_)) => {}
            made => return made.map(Some),
        }
        let Some(existing) = tokens.get(&key).await? else { continue };
        match judge(&existing, seen.name(), seen.now) {
            Found::Foreign => return Ok(None),
            Found::Reuse(_) => return Ok(Some(existing)),
            // Deleted by UID, so that a token that another process makes meanwhile stays.
            Found::Replace => match tokens.delete(&Target::of(&*existing), DeleteHow::default()).await {
                Ok(_) | Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => {}
                Err(error) => return Err(error),
            },
        }
    }
    Err(ApiError::Conflict(format!("token {key} was made and deleted by others {RACES} times in a row")))
}

/// Removes the machine's token if there is one. It would expire anyway, so a failure only costs time.
pub async fn delete(tokens: &Objects<Arc<Secret>>, seen: &Observation, memory: &mut Memory) {
    if let Some(held) = memory.token.take() {
        if let Err(error) = tokens.delete(&held.secret, DeleteHow::default()).await {
            tracing::debug!(
                kind = "Machine", namespace = seen.machine.metadata().namespace, name = seen.name(), %error,
                "bootstrap token stays until it expires"
            );
        }
        return;
    }
    let never_needed =
        matches!(seen.secrets, SecretView::Present(UserData::NotNamed | UserData::KeyMissing | UserData::WithoutToken));
    if never_needed {
        return;
    }
    for id in candidate_ids(seen.name(), &memory.uid).into_iter().take(LOOKED_AT) {
        let key = ObjectKey::new(NAMESPACE, secret_name(&id));
        match tokens.get(&key).await {
            Ok(Some(secret)) if is_of(&secret, seen.name()) => {
                // There may be another one: earlier versions could make two.
                if let Err(error) = tokens.delete(&Target::of(&*secret), DeleteHow::default()).await {
                    tracing::debug!(
                        kind = "Machine", namespace = seen.machine.metadata().namespace, name = seen.name(), %error,
                        "bootstrap token stays until it expires"
                    );
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(
                    kind = "Machine", namespace = seen.machine.metadata().namespace, name = seen.name(), %error,
                    "bootstrap token stays until it expires"
                );
                return;
            }
        }
    }
}
