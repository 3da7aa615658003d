//! `drainplans`: what a drain of a node would do now.
//!
//! The machine controller decides mode, limits and deadline. The planner of the drain module decides the order of the pods, in a
//! simulation on virtual time ([`machine_simulation::drain`]). No pod is changed, and no driver is asked. Source:
//! spec/extension-apiserver §1.4.

mod shape;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::{Value, json};

use self::shape::{Blocked, Budget, DrainPlan, Ignored, PodStep, Spec, Status, Totals, Volume, WaveView};
use super::{
    Sources,
    common::{self, checked_duration, count, metadata, not_ready, right, right_to_read, scrubbed, seconds},
    describe::{Names, column, name_column, text_or_null},
};
use crate::extension::{
    blocking::Limiter,
    rows::Renderer,
    view::{Answer, Description, Freshness, GROUP, Question, SourceRight, View},
};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot};
use kube_protocol::{
    request::Verb,
    status::{ApiStatus, Cause},
};
use kube_values::duration::GoDuration;
use machine_api::{
    kind::Kind,
    names::label,
    v1alpha1::{Machine, MachinePhase},
};
use machine_controllers::{
    drain::{
        EVICTION_RETRY,
        budgets::{BudgetState, goes_unasked},
        observe::{
            DrainLimits, DrainObservation, DrainViews, PodFacts, VolumeIds, observe, shared_volumes, volumes_of,
        },
        order::{DrainOrder, Force},
        pods::PodClass,
        progress::Progress,
    },
    machine::{
        deletion::drain::{DrainMode, drain_mode, drain_order},
        observation::{NodeView, Observation},
        outlook::OutlookTarget,
    },
    snapshots::{BudgetSnapshot, MachineSnapshot, PodSnapshot},
    times::{after, rfc3339},
    views::BY_NODE,
};
use machine_simulation::drain::{self, End, Forecast, Kind as WaveKind};

const NAMES: Names = Names { kind: "DrainPlan", plural: "drainplans", short: "drp", verbs: &[Verb::Get, Verb::Create] };
/// Maximum number of pods in a list of pods.
const MOST_PODS: usize = 1000;
/// How long the first request waits for the caches of pods and volumes.
const MAX_WARMUP: Duration = Duration::from_secs(10);
/// Time between two looks at these caches.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The reason for a skipped drain before the machine has joined.
const NO_NODE_YET: &str = "the machine has no Node yet";

/// The view `drainplans`.
pub struct DrainPlanView {
    sources: Sources,
    target: OutlookTarget,
    renderer: Arc<Renderer<DrainPlan>>,
    limiter: Limiter,
}

/// The node of the drain, and how it is drained.
struct Subject {
    machine: Option<MachineSnapshot>,
    seen: Observation,
    node: Result<String, String>,
    mode: DrainMode,
}

impl DrainPlanView {
    /// The view from these sources; `None` without a target cluster.
    pub fn new(sources: &Sources) -> Option<Self> {
        let columns = vec![
            name_column(),
            column("Node", "string", "The node.", |plan: &DrainPlan| text_or_null(&plan.status.node_name)),
            column("Mode", "string", "Whether pods are evicted or deleted.", |plan| plan.status.mode.into()),
            column("Pods", "integer", "Pods that go.", |plan| plan.status.totals.pods.into()),
            column("With volumes", "integer", "Pods whose volumes have to move.", |plan| {
                plan.status.totals.with_volumes.into()
            }),
            column("Blocked", "integer", "Pods that no budget lets go.", |plan| plan.status.totals.blocked.into()),
            column("Estimate", "string", "How long it takes.", |plan| {
                plan.status.estimated_duration.to_string().into()
            }),
        ];
        Some(Self {
            sources: sources.clone(),
            target: sources.outlooks.target()?.clone(),
            renderer: NAMES.describe(columns, &[]),
            limiter: Limiter::new(sources.plans_at_a_time),
        })
    }

    /// Waits for the caches of pods and volumes, which are filled from the first request on.
    async fn ready(&self) -> Result<(), ApiStatus> {
        if let Some(missing) = self.sources.outlooks.missing() {
            return Err(not_ready(missing));
        }
        let filled = async {
            while !self.target.drains.ready() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(MAX_WARMUP, filled).await.map_err(|_| not_ready("pods and volumes"))
    }

    fn machine(&self, namespace: &str, name: &str) -> Option<MachineSnapshot> {
        self.sources.views.machines.get(&ObjectKey::new(namespace, name))
    }

    /// The machine of a node; `None` if several machines claim the node.
    fn machine_of(&self, namespace: &str, node: &str) -> Option<MachineSnapshot> {
        let all = self.sources.views.machines.by_index(BY_NODE, node);
        let mut own = all.into_iter().filter(|machine| machine.namespace() == namespace);
        own.next().filter(|_| own.next().is_none())
    }

    /// The subject of a request, with the limits of the machine and of the request.
    fn subject(&self, machine: Option<MachineSnapshot>, spec: &Spec, now: Timestamp) -> Subject {
        let outlooks = &self.sources.outlooks;
        let own = machine.clone().unwrap_or_else(|| Machine::default().into());
        let mut seen = match &machine {
            Some(machine) => outlooks.seen(machine, now),
            None => Observation::of(own.clone(), outlooks.settings().limits_of(&own), now),
        };
        let mut configuration = own.configuration().clone();
        configuration.drain_timeout = spec.drain_timeout.or(configuration.drain_timeout);
        configuration.max_evict_retries = spec.max_evict_retries.or(configuration.max_evict_retries);
        seen.limits = outlooks.settings().limits_of(&own.with_configuration(configuration));
        seen.limits.detach = spec.pv_detach_timeout.map_or(seen.limits.detach, GoDuration::to_std);
        seen.limits.reattach = spec.pv_reattach_timeout.map_or(seen.limits.reattach, GoDuration::to_std);
        let own_mode = drain_mode(&seen);
        // The plan begins now, without a memory of earlier steps, so its times are times of the clock.
        seen.steady = seen.now;
        let mode = match spec.force {
            Some(true) => DrainMode::Forced,
            Some(false) => DrainMode::Normal,
            None => own_mode,
        };
        let node = match (&machine, &seen.node) {
            (None, _) => self
                .target
                .nodes
                .get(&ObjectKey::cluster_scoped(spec.node_name.clone()))
                .map(|node| node.name().to_owned())
                .ok_or_else(|| format!("there is no Node {}", spec.node_name)),
            (Some(_), NodeView::Ours(node)) => Ok(node.name().to_owned()),
            (Some(_), NodeView::NoTarget) => Err("there is no target cluster".to_owned()),
            (Some(_), NodeView::NotLinked { .. }) => Err(NO_NODE_YET.to_owned()),
            // A machine has the name of its Node before the Node exists.
            (Some(machine), NodeView::Absent) if has_not_joined(machine) => Err(NO_NODE_YET.to_owned()),
            (Some(_), NodeView::Absent | NodeView::Vanished) => Err("the machine's Node is gone".to_owned()),
            (Some(_), NodeView::Foreign { name, why }) => {
                Err(format!("Node {name} belongs to something else and is left alone: {why}"))
            }
            (Some(_), NodeView::Contested { name, why }) => {
                Err(format!("whose Node {name} is can't be told, so that it is left alone: {why}"))
            }
        };
        Subject { machine, seen, node, mode }
    }

    async fn plan(&self, namespace: &str, name: &str, spec: Spec, subject: Subject) -> Result<Answer, ApiStatus> {
        let now = subject.seen.now;
        let machine_name = subject.machine.as_ref().map(|machine| machine.name().to_owned()).unwrap_or_default();
        let status = match &subject.node {
            Err(why) => Status { mode: "Skipped", skipped_because: Some(scrubbed(why)), ..Status::default() },
            Ok(node) => self.drained(node, &subject).await?,
        };
        let node_name = subject.node.clone().unwrap_or_else(|_| node_label(subject.machine.as_ref()));
        let metadata = metadata(NAMES.kind, &ObjectKey::new(namespace, name), "", now);
        let status = Status { observed_at: rfc3339(now), machine_name, node_name, ..status };
        let skipped = status.skipped_because.iter().map(|why| format!("nothing would be drained: {why}"));
        let cut = status.truncated_because.iter().map(|why| format!("the plan is not whole: {why}"));
        let warnings = skipped.chain(cut).map(|text| common::warning(&text)).collect();
        let body = DrainPlan { spec, status };
        Ok(Answer { object: self.renderer.row((metadata, body)), warnings })
    }

    async fn drained(&self, node: &str, subject: &Subject) -> Result<Status, ApiStatus> {
        let seen = &subject.seen;
        let order = drain_order(seen, node.to_owned(), subject.mode);
        let limits = DrainLimits {
            force: order.force,
            deadline: order.deadline,
            timeout: seen.limits.drain,
            retries: seen.limits.evict_retries,
            detach: seen.limits.detach,
            reattach: seen.limits.reattach,
            parallel: self.sources.outlooks.settings().evictions_per_node,
        };
        let pods = Pods::on(&*self.target.drains, node);
        let object = self.target.nodes.get(&ObjectKey::cluster_scoped(node));
        let observed =
            observe(&*self.target.drains, node, object.as_ref(), limits, &Progress::default(), &pods.ids, seen.now);
        let question =
            drain::Question { allowed: pods.allowed(&observed), unasked: pods.unasked(&observed), seen: observed };
        let simulated = question.clone();
        let forecast = self.limiter.run(move |go_on| drain::forecast(&simulated, go_on)).await?;
        Ok(status(&question.seen, &pods, &order, forecast.as_ref()))
    }
}

/// Whether the machine's Node has not joined the cluster yet.
fn has_not_joined(machine: &MachineSnapshot) -> bool {
    matches!(machine.phase(), MachinePhase::Unset | MachinePhase::Pending | MachinePhase::CrashLoopBackOff)
}

fn node_label(machine: Option<&MachineSnapshot>) -> String {
    machine.and_then(|machine| machine.labels().get(label::NODE).cloned()).unwrap_or_default()
}

/// The pods of a node, with their volumes and budgets.
struct Pods {
    by_key: BTreeMap<ObjectKey, PodSnapshot>,
    volumes: BTreeMap<ObjectKey, Vec<Volume>>,
    budgets: BTreeMap<String, BudgetSnapshot>,
    /// The ids of the volumes at the storage, as far as the `PersistentVolumes` have them.
    ids: VolumeIds,
}

impl Pods {
    fn on(views: &dyn DrainViews, node: &str) -> Self {
        let pods = views.pods_on(node);
        let shared: BTreeSet<String> = shared_volumes(views, &pods).into_iter().collect();
        let (mut ids, mut volumes, mut budgets) = (VolumeIds::new(), BTreeMap::new(), BTreeMap::new());
        for pod in &pods {
            for name in volumes_of(views, pod) {
                let handle = handle_of(views, &name);
                ids.insert(name, handle.into_iter().collect());
            }
            volumes.insert(pod.key(), volumes_of_claims(views, pod, &shared));
            for budget in views.budgets_in(pod.namespace()) {
                budgets.insert(budget.key().to_string(), budget);
            }
        }
        let by_key = pods.into_iter().map(|pod| (pod.key(), pod)).collect();
        Self { by_key, volumes, budgets, ids }
    }

    /// The evictions that the budgets of these pods allow now.
    fn allowed(&self, seen: &DrainObservation) -> BTreeMap<String, i32> {
        let names = seen.pods.iter().filter_map(|pod| match &pod.budget {
            BudgetState::One(name) => Some(name.clone()),
            BudgetState::None | BudgetState::Misconfigured(_) | BudgetState::Several(_) => None,
        });
        let allowed = |name: &str| self.budgets.get(name).map_or(0, BudgetSnapshot::disruptions_allowed);
        names.map(|name| (name.clone(), allowed(&name))).collect()
    }

    /// UIDs of the pods that the API server evicts regardless of their budgets.
    fn unasked(&self, seen: &DrainObservation) -> BTreeSet<String> {
        let goes = |facts: &&PodFacts| {
            let budget = match &facts.budget {
                BudgetState::One(name) | BudgetState::Misconfigured(name) => self.budgets.get(name),
                BudgetState::None | BudgetState::Several(_) => None,
            };
            self.by_key.get(&facts.key).is_some_and(|pod| goes_unasked(pod, budget))
        };
        seen.pods.iter().filter(goes).map(|facts| facts.uid.clone()).collect()
    }

    fn budget(&self, name: &str) -> Budget {
        let (namespace, plain) = name.split_once('/').unwrap_or(("", name));
        let figure = |of: fn(&BudgetSnapshot) -> i32| self.budgets.get(name).map_or(0, of);
        Budget {
            namespace: namespace.to_owned(),
            name: plain.to_owned(),
            disruptions_allowed: figure(BudgetSnapshot::disruptions_allowed),
            current_healthy: figure(BudgetSnapshot::current_healthy),
            desired_healthy: figure(BudgetSnapshot::desired_healthy),
        }
    }
}

/// The handle of a CSI volume. Only the driver knows the ids of other volumes.
fn handle_of(views: &dyn DrainViews, volume: &str) -> Option<String> {
    views.volume(volume)?.handle().map(str::to_owned)
}

fn volumes_of_claims(views: &dyn DrainViews, pod: &PodSnapshot, shared: &BTreeSet<String>) -> Vec<Volume> {
    let volume = |claim: ObjectKey| {
        let pv = views.claim(&claim)?.volume_name()?.to_owned();
        let handle = handle_of(views, &pv);
        Some(Volume { pvc: claim.name, shared: shared.contains(&pv), handle, pv })
    };
    pod.claims().filter_map(volume).collect()
}

/// The names of the budgets.
fn names_of(budget: &BudgetState) -> Vec<String> {
    match budget {
        BudgetState::None => Vec::new(),
        BudgetState::One(name) | BudgetState::Misconfigured(name) => vec![name.clone()],
        BudgetState::Several(names) => names.clone(),
    }
}

/// The status of the plan. The forecast is `None` if the drain is too large for a simulation.
fn status(seen: &DrainObservation, pods: &Pods, order: &DrainOrder, forecast: Option<&Forecast>) -> Status {
    let facts: BTreeMap<&ObjectKey, &PodFacts> = seen.pods.iter().map(|pod| (&pod.key, pod)).collect();
    let goes = || seen.pods.iter().filter(|pod| !pod.class.stays());
    let stays: Vec<Ignored> = seen.pods.iter().filter_map(ignored).collect();
    let forced = order.force == Force::Yes;
    // A pod is deleted after the greatest number of refused evictions, and at the deadline at the latest.
    let pause = EVICTION_RETRY.saturating_mul(seen.limits.retries);
    let forced_after = after(seen.now, pause).min(order.deadline);
    let empty = Vec::new();
    let blocked: Vec<Blocked> = forecast
        .map_or(&empty, |forecast| &forecast.blocked)
        .iter()
        .filter_map(|key| {
            let budget = &facts.get(key)?.budget;
            Some(Blocked {
                namespace: key.namespace.clone(),
                name: key.name.clone(),
                budget: pods.budget(names_of(budget).first()?),
                misconfigured: matches!(budget, BudgetState::Misconfigured(_)),
                forced_after: Some(rfc3339(forced_after)),
            })
        })
        .collect();
    let mut left = MOST_PODS;
    let waves = forecast.map(|forecast| waves(forecast, &facts, pods, &mut left)).unwrap_or_default();
    let total = goes().count();
    let truncated_because = match forecast {
        None => Some(format!(
            "the drain of {total} pods is too large to be played through within {}: no wave of it is told",
            seconds(Limiter::BUDGET)
        )),
        Some(_) if total > MOST_PODS => Some(format!("{MOST_PODS} of {total} pods are listed")),
        Some(_) => None,
    };
    let is_drained = forecast.is_some_and(|forecast| forecast.end == End::Drained);
    let until_deadline = machine_controllers::times::since(order.deadline, seen.now);
    Status {
        mode: if forced { "Force" } else { "Normal" },
        waves,
        totals: Totals {
            pods: count(total),
            with_volumes: count(goes().filter(|pod| pod.class == PodClass::WithVolumes).count()),
            ignored: count(stays.len()),
            blocked: count(blocked.len()),
        },
        ignored: stays.into_iter().take(MOST_PODS).collect(),
        blocked: blocked.into_iter().take(MOST_PODS).collect(),
        estimated_duration: seconds(match forecast {
            Some(forecast) if is_drained => forecast.took,
            _ => until_deadline,
        }),
        deadline: Some(rfc3339(order.deadline)),
        will_force: forced || !is_drained,
        truncated: truncated_because.is_some(),
        truncated_because,
        ..Status::default()
    }
}

fn ignored(pod: &PodFacts) -> Option<Ignored> {
    let reason = match pod.class {
        PodClass::Mirror => "Mirror",
        PodClass::DaemonSet => "DaemonSet",
        PodClass::Plain | PodClass::WithVolumes => return None,
    };
    Some(Ignored { namespace: pod.key.namespace.clone(), name: pod.key.name.clone(), reason })
}

fn waves(forecast: &Forecast, facts: &BTreeMap<&ObjectKey, &PodFacts>, pods: &Pods, left: &mut usize) -> Vec<WaveView> {
    let mut all = Vec::new();
    for wave in &forecast.waves {
        let (kind, action) = match wave.kind {
            WaveKind::EvictParallel => ("EvictParallel", "Evict"),
            WaveKind::EvictSerial => ("EvictSerial", "Evict"),
            WaveKind::Delete | WaveKind::DeleteNow => ("Delete", "Delete"),
        };
        let steps: Vec<PodStep> = wave
            .pods
            .iter()
            .take(*left)
            .filter(|key| pods.by_key.contains_key(*key))
            .filter_map(|key| {
                let facts = facts.get(key)?;
                Some(PodStep {
                    namespace: key.namespace.clone(),
                    name: key.name.clone(),
                    priority: facts.priority,
                    grace_period: if wave.kind == WaveKind::DeleteNow {
                        GoDuration::default()
                    } else {
                        seconds(facts.grace)
                    },
                    volumes: pods.volumes.get(key).cloned().unwrap_or_default(),
                    disruption_budgets: names_of(&facts.budget),
                    action,
                })
            })
            .collect();
        *left -= steps.len();
        if !steps.is_empty() {
            all.push(WaveView { index: count(all.len() + 1), kind, pods: steps, estimate: seconds(wave.lasts) });
        }
    }
    all
}

/// Reads name and specification of a review. The name may be empty.
fn read(review: &Value) -> Result<(String, Spec), ApiStatus> {
    let (name, spec): (String, Spec) = common::review(&NAMES, review)?;
    let mut causes = Vec::new();
    if spec.machine_name.is_empty() == spec.node_name.is_empty() {
        causes.push(Cause::required("spec.machineName", "name either a machine or a node"));
    }
    for (field, given) in [
        ("spec.drainTimeout", spec.drain_timeout),
        ("spec.pvDetachTimeout", spec.pv_detach_timeout),
        ("spec.pvReattachTimeout", spec.pv_reattach_timeout),
    ] {
        causes.extend(checked_duration(field, given).err());
    }
    if let Some(retries) = spec.max_evict_retries.filter(|retries| *retries < 0) {
        causes.push(Cause::invalid("spec.maxEvictRetries", &json!(retries), "must be at least 0"));
    }
    if causes.is_empty() { Ok((name, spec)) } else { Err(ApiStatus::invalid(GROUP, NAMES.kind, &name, causes)) }
}

#[async_trait]
impl View for DrainPlanView {
    fn description(&self) -> &Description {
        &self.renderer.description
    }

    fn source_rights(&self, question: Question<'_>) -> Vec<SourceRight> {
        let machines = Kind::Machine.plural();
        match question {
            Question::Get { .. } | Question::List { .. } => right_to_read(machines, question),
            Question::Create { namespace, review } => {
                let text = |field: &str| review.pointer(field).and_then(Value::as_str).filter(|name| !name.is_empty());
                let of_node = || {
                    let node = text("/spec/nodeName")?;
                    self.machine_of(namespace, node).map(|machine| machine.name().to_owned())
                };
                // A node without a machine needs the right to list all machines.
                match text("/spec/machineName").map(str::to_owned).or_else(of_node) {
                    Some(name) => vec![right(Verb::Get, machines, Some(namespace), Some(&name))],
                    None => vec![right(Verb::List, machines, Some(namespace), None)],
                }
            }
        }
    }

    async fn get(&self, namespace: &str, name: &str, _freshness: Freshness) -> Result<Answer, ApiStatus> {
        self.ready().await?;
        let machine = self.machine(namespace, name).ok_or_else(|| NAMES.not_found(name))?;
        let spec = Spec { machine_name: name.to_owned(), ..Spec::default() };
        let subject = self.subject(Some(machine), &spec, self.sources.clock.now());
        self.plan(namespace, name, spec, subject).await
    }

    async fn create(&self, namespace: &str, review: Value) -> Result<Answer, ApiStatus> {
        let (name, spec) = read(&review)?;
        self.ready().await?;
        let machine = if spec.machine_name.is_empty() {
            self.machine_of(namespace, &spec.node_name)
        } else {
            let machine = self.machine(namespace, &spec.machine_name);
            if machine.is_none() {
                let why = "there is no Machine of this name in the namespace";
                let cause = Cause::invalid("spec.machineName", &json!(spec.machine_name), why);
                return Err(ApiStatus::invalid(GROUP, NAMES.kind, &name, vec![cause]));
            }
            machine
        };
        let subject = self.subject(machine, &spec, self.sources.clock.now());
        let asked = if spec.machine_name.is_empty() { &spec.node_name } else { &spec.machine_name };
        let name = if name.is_empty() { asked.clone() } else { name };
        self.plan(namespace, &name, spec, subject).await
    }
}
