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
use kube::{Client, api::DynamicObject, core::PartialObjectMeta};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{
    KindOutcome, KindReport,
    definition::{Step, is, name_of, next_step, stored_versions_patch, switch_patch},
    refusals::{Cause, Live, Verdict, advice, after_refusal},
};
use crate::cli::{
    Failure,
    cluster_objects::{DEFINITIONS, Resource},
};
use controller_runtime::{
    error::ApiError,
    key::{ObjectKey, Target},
    objects::{ApiServer, ListQuery, ObjectApi, Part, Patch, call},
};
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

/// An object without its content.
type Metadata = PartialObjectMeta<DynamicObject>;

/// An object as it was listed.
struct Listed {
    target: Target,
    version: String,
}

impl Listed {
    fn of(object: &Metadata) -> Self {
        Self { target: Target::of(object), version: object.metadata.resource_version.clone().unwrap_or_default() }
    }
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

    /// Objects of a kind, without their content.
    fn metadata(&self, kind: Kind) -> ApiServer<Metadata> {
        let resource = Resource { version: self.to.as_str(), ..Resource::of_kind(kind) };
        ApiServer::of_kind(self.client.clone(), resource.description())
    }

    /// The kind's definition as it is stored.
    pub(super) async fn definition(&self, kind: Kind) -> Result<Value, Failure> {
        let (api, name) = (DEFINITIONS.api(&self.client), name_of(kind));
        let key = ObjectKey::cluster_scoped(&*name);
        let read = retrying(|| api.read(&key)).await.map_err(|error| match error {
            ApiError::NotFound(_) => Failure::Input(format!("{name}: there is no such definition in this cluster")),
            error => refused(&name, "read", &error),
        })?;
        serde_json::to_value(&*read).map_err(Failure::run)
    }

    /// Applies a JSON patch to the kind's definition.
    async fn patch(&self, kind: Kind, part: Part, patch: Vec<Value>) -> Result<(), ApiError> {
        let (api, key) = (DEFINITIONS.api(&self.client), ObjectKey::cluster_scoped(name_of(kind)));
        let patch = Patch::Json(patch);
        retrying(|| api.patch(&key, part, &patch)).await.map(drop)
    }

    /// Reads an object in both versions, if there is one. A broken converter is then found before anything depends on it.
    pub(super) async fn check_conversion(&self, kind: Kind) -> Result<(), Failure> {
        for version in [ApiVersion::V1alpha1, ApiVersion::V1beta1] {
            let resource = Resource { version: version.as_str(), ..Resource::of_kind(kind) };
            let (api, one) = (resource.api(&self.client), ListQuery { limit: Some(1), ..ListQuery::default() });
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
        // The patch may be applied twice: it fails when the order of the versions has changed, and otherwise changes nothing.
        let write = self.patch(kind, Part::Main, patch).await;
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
        let listed = retrying(|| call(self.client.list_api_group_resources(version))).await;
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
        let unlisted = |error| refused(kind.plural(), "list", &error);
        let (api, mut objects) = (self.metadata(kind), Vec::new());
        let mut query = ListQuery { limit: Some(CHUNK), ..ListQuery::default() };
        loop {
            let page = retrying(|| api.list(&query)).await.map_err(unlisted)?;
            for item in page.items {
                objects.push(Listed::of(&*api.decode(item).map_err(unlisted)?));
            }
            query.after = page.next;
            if query.after.is_none() {
                return Ok(objects);
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
        let api = &self.metadata(kind);
        let mut results = std::pin::pin!(paced.map(|object| self.rewrite(api, object)).buffer_unordered(PARALLEL));
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

    async fn rewrite(&self, api: &ApiServer<Metadata>, object: Listed) -> Rewritten {
        let Listed { target: Target { key, uid }, version } = object;
        let identity = Patch::Merge(json!({})).guarded_by(Some(&version)).bound_to(&uid);
        let failed = |error: &ApiError| {
            let cause = Cause::of(error);
            if cause == Cause::Server {
                self.has_given_up.store(true, Ordering::Relaxed);
            }
            Rewritten::Failed(cause, format!("{key}: {error}"))
        };
        match retrying_for(self.retry_for(), || api.patch(&key, Part::Main, &identity)).await {
            Ok(written) if written.metadata.resource_version.as_ref() == Some(&version) => Rewritten::NotNeeded,
            Ok(_) => Rewritten::Yes,
            Err(error @ (ApiError::NotFound(_) | ApiError::Conflict(_) | ApiError::Invalid(_))) => {
                // Only a live read proves that the object is gone, or was written since it was listed. A gateway before the
                // API server can answer with these codes too.
                match after_refusal(&uid, &version, &self.live(api, &key).await) {
                    Verdict::NotNeeded => Rewritten::NotNeeded,
                    Verdict::Refused => failed(&error),
                    Verdict::Unknown(error) => failed(&error),
                }
            }
            Err(error) => failed(&error),
        }
    }

    /// The current state of the object.
    async fn live(&self, api: &ApiServer<Metadata>, key: &ObjectKey) -> Live {
        match retrying_for(self.retry_for(), || api.read(key)).await {
            Ok(object) => {
                let Listed { target, version } = Listed::of(&object);
                Live::There { uid: target.uid, version }
            }
            Err(ApiError::NotFound(_)) => Live::Gone,
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
        match self.patch(kind, Part::Status, patch).await {
            Ok(()) => Ok(()),
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
    F: Future<Output = Result<T, ApiError>>,
{
    retrying_for(RETRY_FOR, call).await
}

async fn retrying_for<T, F>(limit: Duration, mut call: impl FnMut() -> F) -> Result<T, ApiError>
where
    F: Future<Output = Result<T, ApiError>>,
{
    let deadline = Instant::now() + limit;
    let mut wait = Duration::from_millis(250);
    loop {
        match call().await {
            Err(error) if error.is_temporary() && Instant::now() + wait < deadline => {}
            answer => return answer,
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

    fn answered(code: u16) -> ApiError {
        kube::Error::Api(kube::core::Status { code, ..kube::core::Status::default() }.boxed()).into()
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
