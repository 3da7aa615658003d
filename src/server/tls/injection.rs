//! Keeps the `caBundle` fields of the objects in our care right, and tells when all of them are.
//!
//! One watch per object by its name (which RBAC can be restricted to); a field that drifts is repaired within seconds.
//! What to patch is decided in [`super::bundle`]. Objects that are absent or forbidden are reported once and passed over.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    runtime::{WatchStreamExt, watcher::watch_object},
};
use serde_json::Value;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::{
    Entropy, Shared, WallClock,
    bundle::{Haste, TargetKind, Verdict, url_hosts, verdict},
    calls::{back_off, call},
    contest::{Contest, Meaning},
    plan::Published,
};
use controller_runtime::error::ApiError;
use machine_api::names;

/// How long a bundle that is not ours but usable is left alone: the Secret it was made from may be about to arrive.
const A_MOMENT: Duration = Duration::from_secs(1);

const WRITTEN_BY_OTHERS: &str =
    "somebody else keeps writing another CA bundle into this object, so that calls to this process fail in between.";
const BY_A_MANAGER: &str = "If two managers share the object but not the certificate Secret: let them share the Secret (same \
    --service-namespace), give each a configuration of its own (mcm manifests webhooks --scope namespace, mcm serve \
    --webhook-scope=namespace), or stop one.";
const BY_A_TOOL: &str = "If a GitOps tool or a pipeline applies a manifest with a caBundle in it: take the caBundle out of the manifest, and \
    let the tool ignore the field (Argo CD: ignoreDifferences for clientConfig.caBundle).";
/// After so many refusals in a row a process without rights on an object, which does not need them as long as nothing is
/// registered, looks for it only from time to time.
const REFUSALS: u32 = 8;
/// From time to time.
const SELDOM: Duration = Duration::from_secs(10 * 60);

/// An object in our care.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// What it is.
    pub kind: TargetKind,
    /// Its name.
    pub name: String,
}

impl Target {
    /// Both webhook configurations of this name, the CRDs of the four kinds and, if named, the `APIService`.
    pub fn all(webhook_configuration: &str, api_service: Option<&str>) -> Vec<Self> {
        let of = |kind: TargetKind, name: &str| Self { kind, name: name.to_owned() };
        let mut targets = vec![
            of(TargetKind::MutatingWebhooks, webhook_configuration),
            of(TargetKind::ValidatingWebhooks, webhook_configuration),
        ];
        for plural in ["machines", "machinesets", "machinedeployments", "machineclasses"] {
            targets.push(of(TargetKind::Definition, &format!("{plural}.{}", names::GROUP)));
        }
        targets.extend(api_service.map(|name| of(TargetKind::ApiService, name)));
        targets
    }

    fn resource(&self) -> ApiResource {
        let (group, kind, plural) = match self.kind {
            TargetKind::MutatingWebhooks => {
                ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations")
            }
            TargetKind::ValidatingWebhooks => {
                ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations")
            }
            TargetKind::Definition => ("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions"),
            TargetKind::ApiService => ("apiregistration.k8s.io", "APIService", "apiservices"),
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural)
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.resource().plural, self.name)
    }
}

/// What is known of a target.
enum Sight {
    /// Nothing yet.
    Unknown,
    /// It is not there.
    Absent,
    /// We may not read or write it.
    Forbidden,
    /// It is there, as it was last seen.
    Present(Value),
}

struct Watched {
    target: Target,
    api: Api<DynamicObject>,
    sight: Sight,
    /// When to repair it, once it drifted, and from what.
    repair_at: Option<(Instant, Haste)>,
    /// Whether somebody else repairs it, too.
    contest: Contest,
    failures: u32,
    /// A refusal is reported once, not at each change of the object.
    refusal: Refusal,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    NotReported,
    Reported,
}

pub(super) struct Injection {
    pub(super) client: Client,
    pub(super) targets: Vec<Target>,
    pub(super) clock: WallClock,
    pub(super) entropy: Entropy,
    pub(super) shared: Shared,
}

type Events = BoxStream<'static, (usize, Result<Option<Box<DynamicObject>>, ApiError>)>;

impl Injection {
    /// Keeps the bundles in order until `shutdown`; `published` hears when all of them are.
    pub(super) async fn run(self, published: watch::Sender<Option<Published>>, shutdown: CancellationToken) {
        let mut bundle = self.shared.bundle();
        let mut watched: Vec<Watched> = self.targets.iter().map(|target| self.watched(target.clone())).collect();
        let events = watched.iter().enumerate().map(|(place, watched)| Self::events(place, watched));
        let mut events = futures::stream::select_all(events.collect::<Vec<Events>>());
        loop {
            let next_repair = watched.iter().filter_map(|watched| Some(watched.repair_at?.0)).min();
            tokio::select! {
                () = shutdown.cancelled() => return,
                Ok(()) = bundle.changed() => {}
                Some((place, event)) = events.next() => {
                    if let Some(watched) = watched.get_mut(place) {
                        watched.see(event);
                    }
                }
                () = sleep_until(next_repair) => {}
            }
            self.shared.called_by(watched.iter().flat_map(Watched::url_hosts).collect());
            let Some(pem) = bundle.borrow_and_update().clone() else { continue };
            for watched in &mut watched {
                self.tend(watched, &pem).await;
            }
            self.tell(&watched, &pem, &published);
        }
    }

    fn watched(&self, target: Target) -> Watched {
        let api = Api::all_with(self.client.clone(), &target.resource());
        Watched {
            target,
            api,
            sight: Sight::Unknown,
            repair_at: None,
            contest: Contest::default(),
            failures: 0,
            refusal: Refusal::NotReported,
        }
    }

    fn events(place: usize, watched: &Watched) -> Events {
        let mut refusals = 0;
        watch_object(watched.api.clone(), &watched.target.name)
            .default_backoff()
            .map(move |event| event.map(|found| found.map(Box::new)).map_err(ApiError::from))
            .flat_map(move |event| {
                refusals = if matches!(event, Err(ApiError::Forbidden(_))) { refusals + 1 } else { 0 };
                let pause = if refusals < REFUSALS { Duration::ZERO } else { SELDOM };
                // Nothing is asked for until the pause is over.
                let rest = stream::once(tokio::time::sleep(pause)).filter_map(|()| std::future::ready(None));
                stream::once(std::future::ready((place, event))).chain(rest)
            })
            .boxed()
    }

    /// Repairs one target when its time has come.
    async fn tend(&self, watched: &mut Watched, pem: &str) {
        let Sight::Present(object) = &watched.sight else {
            watched.repair_at = None;
            return;
        };
        let Verdict::Drifted { patch, haste } = verdict(watched.target.kind, object, pem) else {
            (watched.repair_at, watched.failures) = (None, 0);
            return;
        };
        let now = Instant::now();
        let at = match (watched.repair_at, haste) {
            // A change for the worse does not wait any longer, and the next change does not begin the wait anew.
            (Some((at, before)), haste) if before <= haste => at,
            (_, Haste::AtOnce) => now,
            (_, Haste::AfterAMoment) => now + A_MOMENT,
            (_, Haste::Contested) => now + watched.contest.patience(now),
        };
        watched.repair_at = Some((at, haste));
        if now < at {
            return;
        }
        watched.repair_at = None;
        let params =
            PatchParams { field_manager: Some(names::CERTIFICATE_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = match watched.target.kind {
            TargetKind::MutatingWebhooks | TargetKind::ValidatingWebhooks => Patch::Strategic(patch),
            TargetKind::Definition | TargetKind::ApiService => Patch::Merge(patch),
        };
        match call(watched.api.patch(&watched.target.name, &params, &patch)).await {
            Ok(written) => {
                info!(object = %watched.target, "wrote the CA bundle");
                watched.refusal = Refusal::NotReported;
                self.shared.count_repair();
                if haste == Haste::Contested {
                    self.shared.count_contest();
                    match watched.contest.repaired(now) {
                        Meaning::Nothing => {}
                        Meaning::Contested => {
                            error!(object = %watched.target, "{WRITTEN_BY_OTHERS} {BY_A_MANAGER} {BY_A_TOOL} Repairs come ever later from now on");
                        }
                        Meaning::PutBack => {
                            error!(object = %watched.target, "{WRITTEN_BY_OTHERS} {BY_A_TOOL} {BY_A_MANAGER}");
                        }
                    }
                }
                watched.failures = 0;
                watched.see(Ok(Some(Box::new(written))));
            }
            // The watch brings what there is now.
            Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => {
                debug!(object = %watched.target, "changed while its CA bundle was being written");
                watched.failures += 1;
                watched.repair_at = Some((now + back_off(watched.failures, (self.entropy)()), haste));
            }
            Err(error @ ApiError::Forbidden(_)) => watched.see(Err(error)),
            Err(error) => {
                warn!(object = %watched.target, "cannot write the CA bundle: {error}; trying again");
                watched.failures += 1;
                watched.repair_at = Some((now + back_off(watched.failures, (self.entropy)()), haste));
            }
        }
    }

    /// Tells whether every target that we see holds the bundle, and since when.
    fn tell(&self, watched: &[Watched], pem: &Arc<str>, published: &watch::Sender<Option<Published>>) {
        let mut waiting: BTreeMap<String, &str> = BTreeMap::new();
        for watched in watched {
            match &watched.sight {
                Sight::Unknown => {
                    waiting.insert(watched.target.to_string(), "not read yet");
                }
                Sight::Absent | Sight::Forbidden => {}
                Sight::Present(object) => {
                    if let Verdict::Drifted { .. } = verdict(watched.target.kind, object, pem) {
                        waiting.insert(watched.target.to_string(), "lacks our CA bundle");
                    }
                }
            }
        }
        self.shared.bundles_not_in_order(waiting.len());
        if waiting.is_empty() {
            self.shared.bundles_are_in_order();
        } else {
            let why: Vec<String> = waiting.iter().map(|(object, why)| format!("{object} {why}")).collect();
            self.shared.bundles_are_missing(&why.join(", "));
        }
        let now: Timestamp = (self.clock)();
        published.send_if_modified(|published| {
            let holds = published.as_ref().is_some_and(|published| published.bundle == *pem);
            match (waiting.is_empty(), holds) {
                (true, true) => false,
                (true, false) => {
                    *published = Some(Published { bundle: Arc::clone(pem), since: now });
                    true
                }
                (false, _) => published.take().is_some(),
            }
        });
    }
}

impl Watched {
    fn url_hosts(&self) -> BTreeSet<String> {
        match &self.sight {
            Sight::Present(object) => url_hosts(self.target.kind, object),
            Sight::Unknown | Sight::Absent | Sight::Forbidden => BTreeSet::new(),
        }
    }

    /// Takes an event in; reports what changes for the worse, once.
    fn see(&mut self, event: Result<Option<Box<DynamicObject>>, ApiError>) {
        let target = &self.target;
        match event {
            Ok(Some(object)) => match serde_json::to_value(&*object) {
                Ok(value) => {
                    let was_blind = matches!(&self.sight, Sight::Present(before) if verifies_nobody(before));
                    if verifies_nobody(&value) && !was_blind {
                        warn!(
                            object = %target,
                            "insecureSkipTLSVerify is set: the API server sends identities and answers over a connection that \
                             anybody on the way can take over; remove it, and the CA bundle is written here"
                        );
                    }
                    self.sight = Sight::Present(value);
                }
                Err(error) => warn!(object = %target, "cannot read the object: {error}"),
            },
            Ok(None) => {
                if !matches!(self.sight, Sight::Absent) {
                    info!(object = %target, "not there; its CA bundle is written as soon as it is");
                }
                self.sight = Sight::Absent;
            }
            // The resource itself is not served, as on a server without aggregation.
            Err(ApiError::NotFound(_) | ApiError::NotServed(_)) => self.sight = Sight::Absent,
            Err(ApiError::Forbidden(why)) => {
                if self.refusal == Refusal::NotReported {
                    self.refusal = Refusal::Reported;
                    warn!(
                        object = %target,
                        "may not keep its CA bundle right: {why}; grant get, list, watch and patch on it, or set the \
                         annotation {}: \"false\" on it and fill its caBundle yourself",
                        names::annotation::INJECT_CA
                    );
                }
                self.sight = Sight::Forbidden;
            }
            Err(error) => debug!(object = %target, "cannot watch the object: {error}; trying again"),
        }
    }
}

/// Whether an `APIService` is called without a check of who answers.
fn verifies_nobody(object: &Value) -> bool {
    object["spec"]["insecureSkipTLSVerify"] == true
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The bundle that callers should trust, once there is one.
pub(super) type Bundle = Option<Arc<str>>;
