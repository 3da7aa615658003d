//! Makes and removes bootstrap tokens in the target cluster; what they hold and whose they are is `bootstrap_token`'s.

use std::sync::PoisonError;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;

use super::{
    SharedRng,
    bootstrap_token::{Found, NAMESPACE, candidate_ids, is_of, judge, new_secret, secret_name, token_of, token_secret},
    measures::Measures,
    memory::{HeldToken, Memory},
    observation::{Observation, SecretView, UserData},
    settings::MachineSettings,
};
use crate::cluster::{
    error::ApiError,
    key::{ObjectKey, Target},
    objects::{DeleteHow, Objects, Part, Patch},
};

/// Ids that are looked at when a token of an earlier process is to be removed.
const LOOKED_AT: usize = 2;

/// Makes sure that the machine has a valid token of its own, and remembers it.
pub async fn ensure(
    tokens: &Objects<Secret>,
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
    let expires = seen.now.checked_add(jiff::SignedDuration::try_from(lives).unwrap_or_default()).unwrap_or(seen.now);
    for id in candidate_ids(machine, &memory.uid) {
        let secret = {
            let mut rng = rng.lock().unwrap_or_else(PoisonError::into_inner);
            new_secret(&mut *rng)
        };
        let wanted = token_secret(machine, &id, &secret, seen.now, lives, groups);
        let stored = match tokens.create(&wanted).await {
            Ok(stored) => stored,
            Err(ApiError::AlreadyExists(_)) => {
                let key = ObjectKey::new(NAMESPACE, secret_name(&id));
                let Some(existing) = tokens.get(&key).await? else {
                    return Err(ApiError::Conflict(format!("token {key} was deleted at this moment")));
                };
                match judge(&existing, machine, seen.now) {
                    Found::Foreign => {
                        measures.token_collided();
                        continue;
                    }
                    Found::Reuse(_) => existing,
                    Found::Replace => {
                        let patch = Patch::Merge(json!({
                            "metadata": { "labels": wanted.metadata.labels },
                            "data": wanted.data,
                        }));
                        let patch = patch.guarded_by(existing.resource_version().as_deref());
                        tokens.patch(&Target::of(&*existing), Part::Main, patch).await?
                    }
                }
            }
            Err(error) => return Err(error),
        };
        let Some(token) = token_of(&stored) else {
            return Err(ApiError::Other(format!("token Secret {} is incomplete", stored.name_any())));
        };
        memory.token = Some(HeldToken { secret: Target::of(&*stored), token, expires });
        return Ok(());
    }
    Err(ApiError::Other("all ids of this machine's bootstrap token are taken by others".to_owned()))
}

/// Removes the machine's token if there is one. It would expire anyway, so a failure only costs time.
pub async fn delete(tokens: &Objects<Secret>, seen: &Observation, memory: &mut Memory) {
    if let Some(held) = memory.token.take() {
        if let Err(error) = tokens.delete(&held.secret, DeleteHow::default()).await {
            tracing::debug!(machine = seen.name(), %error, "bootstrap token stays until it expires");
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
                if let Err(error) = tokens.delete(&Target::of(&*secret), DeleteHow::default()).await {
                    tracing::debug!(machine = seen.name(), %error, "bootstrap token stays until it expires");
                }
                return;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(machine = seen.name(), %error, "bootstrap token stays until it expires");
                return;
            }
        }
    }
}
