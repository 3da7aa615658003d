//! The calls of a migration: read definitions, switch the storage version, rewrite objects until nothing is left.
//!
//! An object is rewritten by a merge patch that holds nothing but the identity it was listed with. The API server then
//! stores it in the storage version if it was not, which shows as a new `resourceVersion`; otherwise nothing is written.
//! A pass over all objects in which no version changed is therefore the proof that all are migrated, and only then
//! `status.storedVersions` is set: a false statement there makes one forgotten object break the list of the whole kind
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
    refusals::{Blame, Live, Verdict, advice, after_refusal, is_passing, proves_absence},
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
/// After so many passes that each changed something, somebody works against the migration.
const MAX_PASSES: usize = 6;
/// How long a call is tried again when the API server or the converter is not available.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// Failures that are named; the others are counted.
const NAMED_FAILURES: usize = 10;

/// An object as it was listed.
struct Listed {
    namespace: String,
    name: String,
    uid: String,
    version: String,
}

/// What came of one object.
enum Rewritten {
    /// It was stored in another form.
    Yes,
    /// It was stored as wanted, was deleted, or was written by somebody else since it was listed.
    NotNeeded,
    /// It could not be: whose fault that is, and what was said.
    Failed(Blame, String),
}

/// The cluster, and the version that objects are to be stored in.
pub(super) struct Cluster {
    client: Client,
    to: ApiVersion,
    rate: u32,
    /// Patience with one object came to its end: all others get one try, so that each is named within seconds.
    is_worn_out: AtomicBool,
}

impl Cluster {
    pub(super) fn new(client: Client, to: ApiVersion, rate: u32) -> Self {
        Self { client, to, rate, is_worn_out: AtomicBool::new(false) }
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
        let read = patiently(|| api.get(&name)).await.map_err(|error| match error {
            ApiError::NotFound(_) => Failure::Input(format!("{name}: there is no such definition in this cluster")),
            error => refused(&name, "read", &error),
        })?;
        serde_json::to_value(&read).map_err(Failure::run)
    }

    /// Reads an object in both versions, if there is one, so that a converter which does not work is found before
    /// anything depends on it.
    pub(super) async fn check_conversion(&self, kind: Kind) -> Result<(), Failure> {
        for version in [ApiVersion::V1alpha1, ApiVersion::V1beta1] {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &Self::resource(kind, version));
            let one = ListParams::default().limit(1);
            patiently(|| api.list(&one)).await.map_err(|error| {
                let what = format!("{} in {}", kind.plural(), version.as_str());
                Failure::run(anyhow::anyhow!(
                    "{what}: cannot be read, so nothing was changed: {error}; see that `mcm serve` runs and that the API \
                     server reaches its conversion webhook"
                ))
            })?;
        }
        Ok(())
    }

    /// Makes the version the storage version, and waits until the API server says so in its discovery.
    pub(super) async fn switch(&self, kind: Kind) -> Result<(), Failure> {
        let name = name_of(kind);
        let before = self.storage_hash(kind).await?;
        let patch = switch_patch(&self.definition(kind).await?, self.to);
        let patch: json_patch::Patch = serde_json::from_value(patch).map_err(Failure::run)?;
        let api = self.definitions();
        // It may be done twice: it fails when the versions moved meanwhile, and else says the same again.
        let (params, patch) = (PatchParams::default(), Patch::Json::<()>(patch));
        let write = patiently(|| api.patch(&name, &params, &patch)).await;
        write.map_err(|error| refused(&name, "change", &error))?;
        let deadline = Instant::now() + PATIENCE;
        while before.is_some() && self.storage_hash(kind).await? == before {
            if Instant::now() >= deadline {
                return Err(Failure::run(anyhow::anyhow!(
                    "{name}: the API server still stores the old version after {} s; run the same command again",
                    PATIENCE.as_secs()
                )));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }

    /// A hash of the storage version, as discovery shows it; none if the API server does not tell.
    async fn storage_hash(&self, kind: Kind) -> Result<Option<String>, Failure> {
        let version = names::API_VERSION_V1ALPHA1;
        let listed = patiently(|| self.client.list_api_group_resources(version)).await;
        let listed = listed.map_err(|error| refused(version, "discover", &error))?;
        let ours = listed.resources.into_iter().find(|resource| resource.name == kind.plural());
        Ok(ours.and_then(|resource| resource.storage_version_hash))
    }

    /// Rewrites all objects of a kind until a pass changes nothing, then says so in the definition.
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
        self.say_so(kind).await?;
        let (version, outcome) = (self.to.as_str(), KindOutcome::Migrated);
        Ok(KindReport { resource, version, outcome, objects, rewritten, passes })
    }

    /// All objects of a kind, without their content.
    async fn list(&self, kind: Kind) -> Result<Vec<Listed>, Failure> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &Self::resource(kind, self.to));
        let mut objects = Vec::new();
        let mut params = ListParams::default().limit(CHUNK);
        loop {
            let page = patiently(|| api.list_metadata(&params)).await;
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

    /// Goes through the objects once; answers how many were stored in another form.
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
        let (mut seen, mut changed, mut failures) = (0, 0, Vec::new());
        let mut told = Instant::now();
        while let Some(result) = results.next().await {
            seen += 1;
            match result {
                Rewritten::Yes => changed += 1,
                Rewritten::NotNeeded => {}
                Rewritten::Failed(blame, why) => failures.push((blame, why)),
            }
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                eprintln!("{resource}: pass {number}: {seen} of {all} objects, {changed} rewritten");
            }
        }
        eprintln!("{resource}: pass {number}: {all} objects, {changed} rewritten");
        if failures.is_empty() { Ok(changed) } else { Err(too_bad(resource, &failures, all)) }
    }

    async fn rewrite(&self, kind: Kind, object: Listed) -> Rewritten {
        let resource = Self::resource(kind, self.to);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &object.namespace, &resource);
        let identity = json!({"metadata": {"uid": object.uid, "resourceVersion": object.version}});
        let patch = Patch::Merge(&identity);
        let params = PatchParams::default();
        let failed = |error: &ApiError| {
            let blame = Blame::of(error);
            if blame == Blame::Server {
                self.is_worn_out.store(true, Ordering::Relaxed);
            }
            Rewritten::Failed(blame, format!("{}/{}: {error}", object.namespace, object.name))
        };
        match patiently_for(self.patience(), || api.patch_metadata(&object.name, &params, &patch)).await {
            Ok(written) if written.metadata.resource_version.as_ref() == Some(&object.version) => Rewritten::NotNeeded,
            Ok(_) => Rewritten::Yes,
            Err(error @ (ApiError::NotFound(_) | ApiError::Conflict(_) | ApiError::Invalid(_))) => {
                // Only the object itself proves that it is gone, or was written since it was listed: anybody between here and
                // the API server can answer with these codes.
                match after_refusal(&object.uid, &object.version, &self.live(&api, &object.name).await) {
                    Verdict::NotNeeded => Rewritten::NotNeeded,
                    Verdict::Refused => failed(&error),
                    Verdict::Unknown(error) => failed(&error),
                }
            }
            Err(error) => failed(&error),
        }
    }

    /// The object as it is now.
    async fn live(&self, api: &Api<DynamicObject>, name: &str) -> Live {
        let read = patiently_for(self.patience(), async || match api.get_metadata(name).await {
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

    fn patience(&self) -> Duration {
        if self.is_worn_out.load(Ordering::Relaxed) { Duration::ZERO } else { PATIENCE }
    }

    /// Sets `status.storedVersions`.
    async fn say_so(&self, kind: Kind) -> Result<(), Failure> {
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
        match patiently(|| api.patch_status(&name, &params, &patch)).await {
            Ok(_) => Ok(()),
            // An earlier try was carried out although its answer was lost.
            Err(ApiError::Invalid(_)) if next_step(&self.definition(kind).await?, self.to) == Ok(Step::Done) => Ok(()),
            Err(error) => Err(refused(&format!("{name} (status)"), "change", &error)),
        }
    }
}

/// Makes a call, again and again while the API server or the converter can't answer. Safe for reads, and for patches that
/// change nothing but the stored form, or fail when they were done before.
async fn patiently<T, F>(call: impl FnMut() -> F) -> Result<T, ApiError>
where
    F: Future<Output = kube::Result<T>>,
{
    patiently_for(PATIENCE, call).await
}

async fn patiently_for<T, F>(patience: Duration, mut call: impl FnMut() -> F) -> Result<T, ApiError>
where
    F: Future<Output = kube::Result<T>>,
{
    let deadline = Instant::now() + patience;
    let mut wait = Duration::from_millis(250);
    loop {
        let error = match call().await {
            Ok(answer) => return Ok(answer),
            Err(error) => ApiError::from(error),
        };
        if !is_passing(&error) || Instant::now() + wait >= deadline {
            return Err(error);
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(10));
    }
}

fn refused(what: &str, verb: &str, error: &ApiError) -> Failure {
    Failure::run(anyhow::anyhow!("cannot {verb} {what}: {error}"))
}

fn too_bad(resource: &str, failures: &[(Blame, String)], all: usize) -> Failure {
    let mut lines: Vec<String> =
        failures.iter().take(NAMED_FAILURES).map(|(_, failure)| format!("{resource} {failure}")).collect();
    if failures.len() > NAMED_FAILURES {
        lines.push(format!("... and {} more", failures.len() - NAMED_FAILURES));
    }
    let blames: Vec<Blame> = failures.iter().map(|(blame, _)| *blame).collect();
    lines.push(format!(
        "{} of {all} {resource} could not be rewritten; status.storedVersions was not touched. {}",
        failures.len(),
        advice(&blames),
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
    async fn a_converter_that_is_away_for_seconds_is_waited_for() {
        let calls = Cell::new(0);
        let answer = patiently(async || {
            calls.set(calls.get() + 1);
            // What kube-apiserver answers while the conversion webhook refuses connections.
            if calls.get() < 6 { Err(answered(500)) } else { Ok(calls.get()) }
        });
        assert_eq!(answer.await, Ok(6));
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends_after_a_minute_and_a_refusal_ends_it_at_once() {
        let began = Instant::now();
        assert!(matches!(patiently(async || Err::<(), _>(answered(500))).await, Err(ApiError::ServerFault(_))));
        assert!(began.elapsed() > Duration::from_secs(45) && began.elapsed() <= PATIENCE, "{:?}", began.elapsed());
        let began = Instant::now();
        assert!(matches!(patiently(async || Err::<(), _>(answered(403))).await, Err(ApiError::Forbidden(_))));
        assert!(began.elapsed().is_zero());
    }
}
