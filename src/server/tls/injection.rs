//! Keeps the `caBundle` fields of our targets right, and reports when all of them are.
//!
//! Each target is watched by its name, so that RBAC can be restricted to it. A field that drifts is repaired within seconds.
//! [`super::bundle`] decides the patch. Targets that are absent or forbidden are reported once and left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::StreamExt;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    runtime::{WatchStreamExt, watcher::watch_object},
};
use serde_json::Value;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::{
    bundle::{Haste, TargetKind, Verdict, url_hosts, verdict},
    contest::{Contest, Meaning},
    shared::{Shared, Subject},
};
use controller_runtime::{error::ApiError, lock, objects::call, queue::Outcome};
use machine_api::names;

/// The wait before a usable foreign bundle is replaced, because the Secret that it was made from may arrive soon.
const SHORT_WAIT: Duration = Duration::from_secs(1);

const WRITTEN_BY_OTHERS: &str =
    "somebody else keeps writing another CA bundle into this object, so that calls to this process fail in between.";
const BY_A_MANAGER: &str = "If two managers share the object but not the certificate Secret: let them share the Secret (same \
    --service-namespace), give each a configuration of its own (mcm manifests webhooks --scope namespace, mcm serve \
    --webhook-scope=namespace), or stop one.";
const BY_A_TOOL: &str = "If a GitOps tool or a pipeline applies a manifest with a caBundle in it: take the caBundle out of the manifest, and \
    let the tool ignore the field (Argo CD: ignoreDifferences for clientConfig.caBundle).";
/// After this number of refusals in a row, the watch pauses longer. A process needs no rights on an object that is not registered.
const REFUSALS: u32 = 8;
/// The pause of the watch after many refusals.
const LONG_PAUSE: Duration = Duration::from_secs(10 * 60);

/// An object whose `caBundle` this process keeps right.
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

/// The last observation of a target.
#[derive(Default)]
enum Observed {
    /// It was not read yet.
    #[default]
    Unknown,
    /// It does not exist.
    Absent,
    /// This process may not read or write it.
    Forbidden,
    /// It exists with this content.
    Present(Value),
}

/// The next action for a target.
enum Due {
    Nothing,
    /// A repair, after this time.
    Later(Duration),
    Repair {
        patch: Value,
        haste: Haste,
    },
}

/// The state of a target between passes.
#[derive(Default)]
struct State {
    observed: Observed,
    /// When to repair it, once it drifted, and from what.
    repair_at: Option<(Instant, Haste)>,
    /// Whether somebody else repairs it, too.
    contest: Contest,
    /// A refusal is reported once, not at each change of the object.
    refusal_is_reported: bool,
}

/// The targets, each at its place.
pub(super) struct Injection {
    apis: Vec<Api<DynamicObject>>,
    states: Mutex<Vec<State>>,
    shared: Arc<Shared>,
}

impl Injection {
    pub(super) fn new(client: Option<&Client>, shared: &Arc<Shared>) -> Self {
        let api = |target: &Target| Some(Api::all_with(client?.clone(), &target.resource()));
        let states = shared.targets.iter().map(|_| State::default()).collect();
        Self {
            apis: shared.targets.iter().filter_map(api).collect(),
            states: Mutex::new(states),
            shared: Arc::clone(shared),
        }
    }

    /// Watches the targets.
    pub(super) async fn follow(&self) {
        futures::future::join_all((0..self.apis.len()).map(|place| self.follow_one(place))).await;
    }

    async fn follow_one(&self, place: usize) {
        let target = &self.shared.targets[place];
        let mut events = std::pin::pin!(watch_object(self.apis[place].clone(), &target.name).default_backoff());
        let mut refusals = 0;
        while let Some(event) = events.next().await {
            let event = event.map_err(ApiError::from);
            refusals = if matches!(event, Err(ApiError::Forbidden(_))) { refusals + 1 } else { 0 };
            lock(&self.states)[place].observe(target, event);
            self.shared.called_by(self.hosts());
            self.shared.queue.add(Subject::Bundle(place));
            if refusals >= REFUSALS {
                tokio::time::sleep(LONG_PAUSE).await;
            }
        }
    }

    fn hosts(&self) -> BTreeSet<String> {
        let states = lock(&self.states);
        let seen = self.shared.targets.iter().zip(&*states);
        seen.filter_map(|(target, state)| Some(url_hosts(target.kind, state.object()?))).flatten().collect()
    }

    /// Repairs the target at this place when it is due, and reports whether all targets are right.
    pub(super) async fn pass(&self, place: usize) -> Outcome {
        let Some(pem) = self.shared.bundle() else { return Outcome::Settled };
        let kind = self.shared.targets[place].kind;
        let due = lock(&self.states)[place].due(kind, &pem, Instant::now());
        let outcome = match due {
            Due::Nothing => Outcome::Settled,
            Due::Later(wait) => Outcome::LookAgain(wait, "somebody else may repair it"),
            Due::Repair { patch, haste } => self.repair(place, patch, haste).await,
        };
        self.report(&pem);
        outcome
    }

    async fn repair(&self, place: usize, patch: Value, haste: Haste) -> Outcome {
        let target = &self.shared.targets[place];
        let params =
            PatchParams { field_manager: Some(names::CERTIFICATE_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let version = patch["metadata"]["resourceVersion"].clone();
        let patch = match target.kind {
            TargetKind::MutatingWebhooks | TargetKind::ValidatingWebhooks => Patch::Strategic(patch),
            TargetKind::Definition | TargetKind::ApiService => Patch::Merge(patch),
        };
        let answer = call(self.apis[place].patch(&target.name, &params, &patch)).await;
        let mut states = lock(&self.states);
        let state = &mut states[place];
        match answer {
            Ok(written) => {
                info!(name = %target, "wrote the CA bundle");
                self.shared.metrics.certificate.ca_bundle_repairs.inc(&());
                if haste == Haste::Contested {
                    self.shared.metrics.certificate.ca_bundle_contests.inc(&());
                    match state.contest.repaired(Instant::now()) {
                        Meaning::Nothing => {}
                        Meaning::Contested => {
                            error!(
                                name = %target, error = format!("{WRITTEN_BY_OTHERS} {BY_A_MANAGER} {BY_A_TOOL}"),
                                "the CA bundle is contested; repairs come ever later from now on"
                            );
                        }
                        Meaning::PutBack => {
                            error!(
                                name = %target, error = format!("{WRITTEN_BY_OTHERS} {BY_A_TOOL} {BY_A_MANAGER}"),
                                "the CA bundle is contested"
                            );
                        }
                    }
                }
                state.repair_at = None;
                state.refusal_is_reported = false;
                // An object that the watch has delivered since is as new, or newer.
                if state.object().is_some_and(|object| object["metadata"]["resourceVersion"] == version) {
                    state.observe(target, Ok(Some(written)));
                }
                Outcome::Settled
            }
            Err(error @ ApiError::Forbidden(_)) => {
                state.observe(target, Err(error));
                Outcome::Settled
            }
            // The watch delivers the current object.
            Err(error @ (ApiError::NotFound(_) | ApiError::Conflict(_))) => {
                debug!(name = %target, "changed while its CA bundle was being written");
                Outcome::Retry(error.to_string())
            }
            Err(error) => {
                warn!(name = %target, %error, "cannot write the CA bundle; trying again");
                Outcome::Retry(error.to_string())
            }
        }
    }

    /// Reports whether every readable target has the bundle, and since when.
    fn report(&self, pem: &Arc<str>) {
        // The lock is held to the end, so that the newest state is reported last.
        let states = lock(&self.states);
        let seen = self.shared.targets.iter().zip(&*states);
        let waiting: BTreeMap<String, &str> =
            seen.filter_map(|(target, state)| Some((target.to_string(), state.lacks(target.kind, pem)?))).collect();
        self.shared.bundles_not_in_order(waiting.len());
        if waiting.is_empty() {
            self.shared.bundles.pass();
        } else {
            let why: Vec<String> = waiting.iter().map(|(object, why)| format!("{object} {why}")).collect();
            self.shared.bundles_are_missing(&why.join(", "));
        }
        self.shared.held_by_all(waiting.is_empty().then(|| Arc::clone(pem)));
    }
}

impl State {
    fn object(&self) -> Option<&Value> {
        match &self.observed {
            Observed::Present(object) => Some(object),
            Observed::Unknown | Observed::Absent | Observed::Forbidden => None,
        }
    }

    /// Why the target is not right.
    fn lacks(&self, kind: TargetKind, pem: &str) -> Option<&'static str> {
        match &self.observed {
            Observed::Unknown => Some("not read yet"),
            Observed::Absent | Observed::Forbidden => None,
            Observed::Present(object) => match verdict(kind, object, pem) {
                Verdict::Drifted { .. } => Some("lacks our CA bundle"),
                Verdict::InOrder | Verdict::OptedOut => None,
            },
        }
    }

    fn due(&mut self, kind: TargetKind, pem: &str, now: Instant) -> Due {
        let verdict = self.object().map(|object| verdict(kind, object, pem));
        let Some(Verdict::Drifted { patch, haste }) = verdict else {
            self.repair_at = None;
            return Due::Nothing;
        };
        let at = match (self.repair_at, haste) {
            // A change for the worse does not wait any longer, and the next change does not begin the wait anew.
            (Some((at, before)), haste) if before <= haste => at,
            (_, Haste::AtOnce) => now,
            (_, Haste::AfterAMoment) => now + SHORT_WAIT,
            (_, Haste::Contested) => now + self.contest.wait(now),
        };
        self.repair_at = Some((at, haste));
        if now < at { Due::Later(at - now) } else { Due::Repair { patch, haste } }
    }

    /// Takes an event of the watch. A change for the worse is reported once.
    fn observe(&mut self, target: &Target, event: Result<Option<DynamicObject>, ApiError>) {
        match event {
            Ok(Some(object)) => match serde_json::to_value(&object) {
                Ok(value) => {
                    let was_blind = matches!(&self.observed, Observed::Present(before) if verifies_nobody(before));
                    if verifies_nobody(&value) && !was_blind {
                        warn!(
                            name = %target,
                            "insecureSkipTLSVerify is set: the API server sends identities and answers over a \
                             connection that anybody on the way can take over; remove it, and the CA bundle is \
                             written here"
                        );
                    }
                    self.observed = Observed::Present(value);
                }
                Err(error) => warn!(name = %target, %error, "cannot read the object"),
            },
            Ok(None) => {
                if !matches!(self.observed, Observed::Absent) {
                    info!(name = %target, "not there; its CA bundle is written as soon as it is");
                }
                self.observed = Observed::Absent;
            }
            // The resource itself is not served, as on a server without aggregation.
            Err(ApiError::NotFound(_) | ApiError::NotServed(_)) => self.observed = Observed::Absent,
            Err(ApiError::Forbidden(why)) => {
                if !std::mem::replace(&mut self.refusal_is_reported, true) {
                    warn!(
                        name = %target, error = %why,
                        "may not keep its CA bundle right: grant get, list, watch and patch on it, or set the \
                         annotation admission.machine.sapcloud.io/inject-ca: \"false\" on it and fill its caBundle \
                         yourself"
                    );
                }
                self.observed = Observed::Forbidden;
            }
            Err(error) => debug!(name = %target, %error, "cannot watch the object; trying again"),
        }
    }
}

/// Whether the API server calls an `APIService` without verifying its certificate.
fn verifies_nobody(object: &Value) -> bool {
    object["spec"]["insecureSkipTLSVerify"] == true
}

#[cfg(test)]
mod tests {
    use base64::{Engine, prelude::BASE64_STANDARD};
    use serde_json::json;

    use super::*;
    use crate::server::tls::authority::Authority;

    fn bundle() -> String {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        Authority::generate(now, jiff::SignedDuration::from_hours(10), [1; 16]).unwrap().certificate.to_pem()
    }

    #[tokio::test(start_paused = true)]
    async fn a_repair_waits_for_its_moment_but_not_where_nobody_can_call() {
        let (ours, foreign) = (bundle(), bundle());
        let mut state = State::default();
        let mut wait_for = |content: &str| {
            let spec = json!({ "service": { "name": "mcm" }, "caBundle": BASE64_STANDARD.encode(content) });
            state.observed = Observed::Present(json!({ "spec": spec }));
            match state.due(TargetKind::ApiService, &ours, Instant::now()) {
                Due::Nothing => None,
                Due::Later(wait) => Some(wait.as_millis()),
                Due::Repair { .. } => Some(0),
            }
        };
        let of_both = format!("{foreign}{ours}");
        assert_eq!(wait_for(&ours), None);
        assert_eq!(wait_for(&of_both), Some(1_000), "a newer Secret may be about to arrive");
        tokio::time::advance(Duration::from_millis(400)).await;
        assert_eq!(wait_for(&of_both), Some(600), "the next change does not begin the wait anew");
        assert_eq!(wait_for(&foreign), Some(600), "nor does somebody else's bundle");
        assert_eq!(wait_for(""), Some(0));
        assert_eq!(wait_for(&ours), None);
        assert_eq!(wait_for(&foreign), Some(1_000));
    }
}
