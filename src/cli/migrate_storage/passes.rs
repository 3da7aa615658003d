//! The calls of a migration: read definitions, switch the storage version, rewrite objects until nothing is left.
//!
//! A merge patch that contains only the listed identity of an object rewrites it. If the object is stored in another version, the API
//! server stores it in the storage version, and its `resourceVersion` changes. Otherwise the API server writes nothing. A pass over
//! all objects that changes no `resourceVersion` therefore proves that all objects are migrated, and only then
//! `status.storedVersions` is set. If that field is wrong, one forgotten object breaks the list of the whole kind
//! (spec/api-and-admission §8.6, measured).

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::{StreamExt, stream};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{
    KindOutcome, KindReport,
    definition::{Step, is, name_of, next_step, stored_versions_patch, switch_patch},
    refusals::{Cause, Live, Verdict, advice, after_refusal, is_temporary, proves_absence},
};
use crate::cli::Failure;
use controller_runtime::error::ApiError;
use machine_api::{
    kind::{ApiVersion, Kind},
    names,
};

/// Objects per list call.
const CHUNK: u32 = 500;
/// Objects that are rewritten at a time.
const PARALLEL: usize = 8;
/// The number of passes after which another client seems to work against the migration.
const MAX_PASSES: usize = 6;
/// How long a call is retried while the API server or the converter is not available.
const RETRY_FOR: Duration = Duration::from_secs(60);
/// Period of progress messages.
const PROGRESS_PERIOD: Duration = Duration::from_secs(2);
/// The number of failures that are named; further ones are counted.
const NAMED_FAILURES: usize = 10;

/// An object as it was listed.
struct Listed {
    namespace: String,
    name: String,
    uid: String,
    version: String,
}

/// The result for one object.
enum Rewritten {
    /// The object was stored in another form.
    Yes,
    /// The object was stored in the right form, or was deleted or written by another client since it was listed.
    NotNeeded,
    /// The rewrite failed, with the cause and the error.
    Failed(Cause, String),
}

/// The cluster, and the target version of the migration.
pub(super) struct Cluster {
    client: Client,
    to: ApiVersion,
    rate: u32,
    /// The retries for one object have ended without success. All others get one try, so that each is named within seconds.
    has_given_up: AtomicBool,
}

impl Cluster {
    pub(super) fn new(client: Client, to: ApiVersion, rate: u32) -> Self {
        Self { client, to, rate, has_given_up: AtomicBool::new(false) }
    }

    fn definitions(&self) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        Api::all_with(self.client.clone(), &ApiResource::from_gvk_with_plural(&gvk, "customresourcedefinitions"))
    }

    fn resource(kind: Kind, version: ApiVersion) -> ApiResource {
        let gvk = GroupVersionKind::gvk(names::GROUP, version.as_str(), kind.as_str());
        ApiResource::from_gvk_with_plural(&gvk, kind.plural())
    }

    /// The kind's definition as it is stored.
    pub(super) async fn definition(&self, kind: Kind) -> Result<Value, Failure> {
        let (api, name) = (self.definitions(), name_of(kind));
        let read = retrying(|| api.get(&name)).await.map_err(|error| match error {
            ApiError::NotFound(_) => Failure::Input(format!("{name}: there is no such definition in this cluster")),
            error => refused(&name, "read", &error),
        })?;
        serde_json::to_value(&read).map_err(Failure::run)
    }

    /// Reads an object in both versions, if there is one. A broken converter is then found before anything depends on it.
    pub(super) async fn check_conversion(&self, kind: Kind) -> Result<(), Failure> {
        for version in [ApiVersion::V1alpha1, ApiVersion::V1beta1] {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &Self::resource(kind, version));
            let one = ListParams::default().limit(1);
            retrying(|| api.list(&one)).await.map_err(|error| {
                let what = format!("{} in {}", kind.plural(), version.as_str());
                Failure::run(anyhow::anyhow!(
                    "{what}: cannot be read, so nothing was changed: {error}; see that `mcm serve` runs and that the API \
                     server reaches its conversion webhook"
                ))
            })?;
        }
        Ok(())
    }

    /// Makes the version the storage version, and waits until the API server's discovery shows it.
    pub(super) async fn switch(&self, kind: Kind) -> Result<(), Failure> {
        let name = name_of(kind);
        let before = self.storage_hash(kind).await?;
        let patch = switch_patch(&self.definition(kind).await?, self.to);
        let patch: json_patch::Patch = serde_json::from_value(patch).map_err(Failure::run)?;
        let api = self.definitions();
        // The patch may be applied twice: it fails when the order of the versions has changed, and otherwise changes nothing.
        let (params, patch) = (PatchParams::default(), Patch::Json::<()>(patch));
        let write = retrying(|| api.patch(&name, &params, &patch)).await;
        write.map_err(|error| refused(&name, "change", &error))?;
        let deadline = Instant::now() + RETRY_FOR;
        while before.is_some() && self.storage_hash(kind).await? == before {
            if Instant::now() >= deadline {
                return Err(Failure::run(anyhow::anyhow!(
                    "{name}: the API server still stores the old version after {} s; run the same command again",
                    RETRY_FOR.as_secs()
                )));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }

    /// The hash of the storage version in discovery. `None` if the API server gives none.
    async fn storage_hash(&self, kind: Kind) -> Result<Option<String>, Failure> {
        let version = names::API_VERSION_V1ALPHA1;
        let listed = retrying(|| self.client.list_api_group_resources(version)).await;
        let listed = listed.map_err(|error| refused(version, "discover", &error))?;
        let ours = listed.resources.into_iter().find(|resource| resource.name == kind.plural());
        Ok(ours.and_then(|resource| resource.storage_version_hash))
    }

    /// Rewrites all objects of a kind until a pass changes nothing, then records this in the definition.
    pub(super) async fn rewrite_all(&self, kind: Kind) -> Result<KindReport, Failure> {
        let resource = kind.plural();
        let (mut rewritten, mut passes, mut objects) = (0, 0, 0);
        loop {
            passes += 1;
            let listed = self.list(kind).await?;
            objects = listed.len().max(objects);
            let changed = self.pass(kind, listed, passes).await?;
            rewritten += changed;
            if changed == 0 {
                break;
            }
            if passes == MAX_PASSES {
                return Err(Failure::run(anyhow::anyhow!(
                    "{resource}: objects still had to be rewritten in pass {passes}; an API server with the old storage \
                     version may be running, or the definition is being changed; run the same command again"
                )));
            }
        }
        self.record_stored_version(kind).await?;
        let (version, outcome) = (self.to.as_str(), KindOutcome::Migrated);
        Ok(KindReport { resource, version, outcome, objects, rewritten, passes })
    }

    /// All objects of a kind, without their content.
    async fn list(&self, kind: Kind) -> Result<Vec<Listed>, Failure> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &Self::resource(kind, self.to));
        let mut objects = Vec::new();
        let mut params = ListParams::default().limit(CHUNK);
        loop {
            let page = retrying(|| api.list_metadata(&params)).await;
            let page = page.map_err(|error| refused(kind.plural(), "list", &error))?;
            objects.extend(page.items.into_iter().map(|item| Listed {
                namespace: item.metadata.namespace.unwrap_or_default(),
                name: item.metadata.name.unwrap_or_default(),
                uid: item.metadata.uid.unwrap_or_default(),
                version: item.metadata.resource_version.unwrap_or_default(),
            }));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(objects),
            }
        }
    }

    /// Rewrites all objects once. Returns how many were stored in another form.
    async fn pass(&self, kind: Kind, objects: Vec<Listed>, number: usize) -> Result<usize, Failure> {
        let (all, resource) = (objects.len(), kind.plural());
        let mut ticks = interval(Duration::from_secs(1) / self.rate);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let paced = stream::unfold((objects.into_iter(), ticks), async |(mut objects, mut ticks)| {
            let object = objects.next()?;
            ticks.tick().await;
            Some((object, (objects, ticks)))
        });
        let mut results = std::pin::pin!(paced.map(|object| self.rewrite(kind, object)).buffer_unordered(PARALLEL));
        let (mut done, mut changed, mut failures) = (0, 0, Vec::new());
        let mut reported = Instant::now();
        while let Some(result) = results.next().await {
            done += 1;
            match result {
                Rewritten::Yes => changed += 1,
                Rewritten::NotNeeded => {}
                Rewritten::Failed(cause, why) => failures.push((cause, why)),
            }
            if reported.elapsed() >= PROGRESS_PERIOD {
                reported = Instant::now();
                eprintln!("{resource}: pass {number}: {done} of {all} objects, {changed} rewritten");
            }
        }
        eprintln!("{resource}: pass {number}: {all} objects, {changed} rewritten");
        if failures.is_empty() { Ok(changed) } else { Err(failure_of(resource, &failures, all)) }
    }

    async fn rewrite(&self, kind: Kind, object: Listed) -> Rewritten {
        let resource = Self::resource(kind, self.to);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &object.namespace, &resource);
        let identity = json!({"metadata": {"uid": object.uid, "resourceVersion": object.version}});
        let patch = Patch::Merge(&identity);
        let params = PatchParams::default();
        let failed = |error: &ApiError| {
            let cause = Cause::of(error);
            if cause == Cause::Server {
                self.has_given_up.store(true, Ordering::Relaxed);
            }
            Rewritten::Failed(cause, format!("{}/{}: {error}", object.namespace, object.name))
        };
        match retrying_for(self.retry_for(), || api.patch_metadata(&object.name, &params, &patch)).await {
            Ok(written) if written.metadata.resource_version.as_ref() == Some(&object.version) => Rewritten::NotNeeded,
            Ok(_) => Rewritten::Yes,
            Err(error @ (ApiError::NotFound(_) | ApiError::Conflict(_) | ApiError::Invalid(_))) => {
                // Only a live read proves that the object is gone, or was written since it was listed. A gateway before the
                // API server can answer with these codes too.
                match after_refusal(&object.uid, &object.version, &self.live(&api, &object.name).await) {
                    Verdict::NotNeeded => Rewritten::NotNeeded,
                    Verdict::Refused => failed(&error),
                    Verdict::Unknown(error) => failed(&error),
                }
            }
            Err(error) => failed(&error),
        }
    }

    /// The current state of the object.
    async fn live(&self, api: &Api<DynamicObject>, name: &str) -> Live {
        let read = retrying_for(self.retry_for(), async || match api.get_metadata(name).await {
            Ok(object) => Ok(Some(object.metadata)),
            Err(kube::Error::Api(status)) if proves_absence(&status, name) => Ok(None),
            Err(error) => Err(error),
        });
        match read.await {
            Ok(None) => Live::Gone,
            Ok(Some(metadata)) => Live::There {
                uid: metadata.uid.unwrap_or_default(),
                version: metadata.resource_version.unwrap_or_default(),
            },
            Err(error) => Live::Unknown(error),
        }
    }

    fn retry_for(&self) -> Duration {
        if self.has_given_up.load(Ordering::Relaxed) { Duration::ZERO } else { RETRY_FOR }
    }

    /// Sets `status.storedVersions`.
    async fn record_stored_version(&self, kind: Kind) -> Result<(), Failure> {
        let name = name_of(kind);
        let definition = self.definition(kind).await?;
        let patch = stored_versions_patch(&definition, self.to).filter(|_| is(&definition, self.to, "storage"));
        let Some(patch) = patch else {
            return Err(Failure::run(anyhow::anyhow!(
                "{name}: the storage version was changed during the migration; run the same command again"
            )));
        };
        let patch: json_patch::Patch = serde_json::from_value(patch).map_err(Failure::run)?;
        let (api, params, patch) = (self.definitions(), PatchParams::default(), Patch::Json::<()>(patch));
        match retrying(|| api.patch_status(&name, &params, &patch)).await {
            Ok(_) => Ok(()),
            // An earlier try succeeded, but its answer was lost.
            Err(ApiError::Invalid(_)) if next_step(&self.definition(kind).await?, self.to) == Ok(Step::Done) => Ok(()),
            Err(error) => Err(refused(&format!("{name} (status)"), "change", &error)),
        }
    }
}

/// Makes a call, and retries it while the API server or the converter can't answer. This is safe for reads, and for patches that
/// change only the stored form or fail when they are applied twice.
async fn retrying<T, F>(call: impl FnMut() -> F) -> Result<T, ApiError>
where
    F: Future<Output = kube::Result<T>>,
{
    retrying_for(RETRY_FOR, call).await
}

async fn retrying_for<T, F>(limit: Duration, mut call: impl FnMut() -> F) -> Result<T, ApiError>
where
    F: Future<Output = kube::Result<T>>,
{
    let deadline = Instant::now() + limit;
    let mut wait = Duration::from_millis(250);
    loop {
        let error = match call().await {
            Ok(answer) => return Ok(answer),
            Err(error) => ApiError::from(error),
        };
        if !is_temporary(&error) || Instant::now() + wait >= deadline {
            return Err(error);
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(10));
    }
}

fn refused(what: &str, verb: &str, error: &ApiError) -> Failure {
    Failure::run(anyhow::anyhow!("cannot {verb} {what}: {error}"))
}

fn failure_of(resource: &str, failures: &[(Cause, String)], all: usize) -> Failure {
    let mut lines: Vec<String> =
        failures.iter().take(NAMED_FAILURES).map(|(_, failure)| format!("{resource} {failure}")).collect();
    if failures.len() > NAMED_FAILURES {
        lines.push(format!("... and {} more", failures.len() - NAMED_FAILURES));
    }
    let causes: Vec<Cause> = failures.iter().map(|(cause, _)| *cause).collect();
    lines.push(format!(
        "{} of {all} {resource} could not be rewritten; status.storedVersions was not touched. {}",
        failures.len(),
        advice(&causes),
    ));
    Failure::run(anyhow::anyhow!(lines.join("\n")))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn answered(code: u16) -> kube::Error {
        kube::Error::Api(kube::core::Status { code, ..kube::core::Status::default() }.boxed())
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_retried_while_the_converter_is_away_for_seconds() {
        let calls = Cell::new(0);
        let answer = retrying(async || {
            calls.set(calls.get() + 1);
            // kube-apiserver answers 500 while the conversion webhook refuses connections.
            if calls.get() < 6 { Err(answered(500)) } else { Ok(calls.get()) }
        });
        assert_eq!(answer.await, Ok(6));
    }

    #[tokio::test(start_paused = true)]
    async fn retries_end_after_a_minute_and_a_refusal_ends_them_at_once() {
        let began = Instant::now();
        assert!(matches!(retrying(async || Err::<(), _>(answered(500))).await, Err(ApiError::ServerFault(_))));
        assert!(began.elapsed() > Duration::from_secs(45) && began.elapsed() <= RETRY_FOR, "{:?}", began.elapsed());
        let began = Instant::now();
        assert!(matches!(retrying(async || Err::<(), _>(answered(403))).await, Err(ApiError::Forbidden(_))));
        assert!(began.elapsed().is_zero());
    }
}
