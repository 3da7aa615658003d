//! The plan of a drain: what the planner of the drain module does with the pods of a Node. Pure, from any source of objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    super::common::{count, seconds},
    shape::{Blocked, Budget, Ignored, PodStep, Status, Totals, Volume, WaveView},
};
use crate::extension::blocking::Limiter;
use controller_runtime::{key::ObjectKey, snapshot::Snapshot};
use kube_values::duration::GoDuration;
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
        deletion::drain::{DrainMode, drain_order},
        observation::Observation,
    },
    snapshots::{BudgetSnapshot, NodeSnapshot, PodSnapshot},
    times::{after, rfc3339},
};
use machine_simulation::drain::{End, Forecast, Kind as WaveKind, Question};

/// How long the forecast of a plan may take.
pub const PLAN_WITHIN: Duration = Limiter::BUDGET;
/// Maximum number of pods in a list of pods.
const MOST_PODS: usize = 1000;

/// A drain that could begin now.
pub struct Drain {
    question: Question,
    pods: Pods,
    order: DrainOrder,
}

impl Drain {
    /// The drain of a Node for the machine of `seen`. `object` is the Node, if it is known.
    pub fn of(
        views: &dyn DrainViews,
        node: &str,
        object: Option<&NodeSnapshot>,
        seen: &Observation,
        mode: DrainMode,
        evictions_at_a_time: usize,
    ) -> Self {
        let order = drain_order(seen, node.to_owned(), mode);
        let limits = DrainLimits {
            force: order.force,
            deadline: order.deadline,
            timeout: seen.limits.drain,
            retries: seen.limits.evict_retries,
            detach: seen.limits.detach,
            reattach: seen.limits.reattach,
            parallel: evictions_at_a_time,
        };
        let pods = Pods::on(views, node);
        let observed = observe(views, node, object, limits, &Progress::default(), &pods.ids, seen.now);
        let question = Question { allowed: pods.allowed(&observed), unasked: pods.unasked(&observed), seen: observed };
        Self { question, pods, order }
    }

    /// The question for [`machine_simulation::drain::forecast`].
    pub const fn question(&self) -> &Question {
        &self.question
    }

    /// The status of the plan. The forecast is `None` if the drain is too large for a simulation.
    pub fn status(&self, forecast: Option<&Forecast>) -> Status {
        let Self { question, pods, order } = self;
        let seen = &question.seen;
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
                seconds(PLAN_WITHIN)
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
