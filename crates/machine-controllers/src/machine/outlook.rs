//! The decision about a machine as it would be made now, without carrying it out: for people who ask why a machine is in its state.
//!
//! Observation and decision are the same as in passes. Where this process runs the machine controller, its memory (calls under way, pauses, the last
//! step of a drain) is used. Source: spec/extension-apiserver §1.3.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{
    FreezeSwitch, MachineController,
    creation::{driver_wait, outcome::AskedBefore},
    decide::decide,
    deletion::{DeletionStep, next_deletion_step},
    memory::{Memory, Pass},
    observation::{Freeze, LastGood, NodeSource, Observation, Permit, ailments::Ailments},
    observe::{Sources, TargetSources, observe},
    plan::{Effect, Next, Plan, deletion_stage::DeletionStage, status_change::progressing},
    preservation,
    settings::MachineSettings,
    standing::{Standing, Waiting},
    time_limit::{Limited, TimeLimit, creation_limit, drain_limit, may_be_limited, phase_limit},
};
use crate::{
    drain::{observe::DrainViews, waiting::Waiting as DrainWaiting},
    snapshots::{MachineSnapshot, NodeSnapshot},
    views::ControlViews,
};
use controller_runtime::{clock::Reading, key::ObjectKey, snapshot::Snapshot, store::Store};
use machine_api::{
    names::{label, machine_condition},
    v1alpha1::MachinePhase,
};
use machine_driver::Registry;

/// The sources of outlooks.
#[derive(Clone)]
pub struct OutlookDeps {
    /// The stores of the control cluster.
    pub views: ControlViews,
    /// The target cluster, unless there is none.
    pub target: Option<OutlookTarget>,
    /// The drivers of this process.
    pub drivers: Registry,
    /// Limits.
    pub settings: MachineSettings,
    /// Whether machines are frozen.
    pub freeze: FreezeSwitch,
    /// The machine controller, where this process runs it.
    pub controller: Option<Arc<MachineController>>,
}

/// The sources of outlooks in the target cluster.
#[derive(Clone)]
pub struct OutlookTarget {
    /// The store of Nodes.
    pub nodes: Arc<Store<NodeSnapshot>>,
    /// The views that drains need; an outlook does not start them.
    pub drains: Arc<dyn DrainViews>,
}

/// The observation of a machine at one moment. What would be done follows from it alone, whenever it is computed.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// The observation.
    pub seen: Arc<Observation>,
    /// The wait of the machine's drain, if this process runs the drain.
    pub drain: Option<DrainWaiting>,
}

impl Sighting {
    /// The plan that would be carried out.
    pub fn outlook(&self) -> Outlook {
        let mut seen = Arc::clone(&self.seen);
        let mut plan = decide(&seen);
        if plan.next == Next::TakePermit || matches!(plan.effects[..], [Effect::RereadNode | Effect::LookForNode]) {
            // An outlook takes no permit and reads nothing. It shows what is decided under the permit, and when a last read
            // of the Node brings nothing new.
            let last = Observation { permit: Permit::Held, node_source: NodeSource::Live, ..(*seen).clone() };
            plan = decide(&last);
            seen = Arc::new(last);
        }
        Outlook { seen, plan, drain: self.drain.clone() }
    }
}

/// The observation of a machine, and what would be done about it.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// The observation.
    pub seen: Arc<Observation>,
    /// The plan that would be carried out.
    pub plan: Plan,
    /// The wait of the machine's drain, if this process runs the drain.
    pub drain: Option<DrainWaiting>,
}

/// The stage of a machine's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Its VM is being created.
    Create,
    /// Its VM is joining the cluster.
    Join,
    /// It runs and is healthy.
    Run,
    /// Its Node is unhealthy or missing.
    Unhealthy,
    /// It has failed.
    Fail,
    /// It is being updated in place, or was updated and is not Running yet.
    InPlace,
    /// It is preserved, so that people can look at it.
    Preserved,
    /// Nothing is decided about it while an API server does not answer.
    Frozen,
    /// It is being deleted.
    Deleting(DeletionStage),
}

impl Stage {
    /// All of them, in the order of a machine's life.
    pub const ALL: [Self; 14] = [
        Self::Create,
        Self::Join,
        Self::Run,
        Self::Unhealthy,
        Self::Fail,
        Self::InPlace,
        Self::Preserved,
        Self::Frozen,
        Self::Deleting(DeletionStage::GetVmStatus),
        Self::Deleting(DeletionStage::Drain),
        Self::Deleting(DeletionStage::DeleteVolumeAttachments),
        Self::Deleting(DeletionStage::DeleteVm),
        Self::Deleting(DeletionStage::DeleteNode),
        Self::Deleting(DeletionStage::RemoveFinalizer),
    ];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "Create",
            Self::Join => "Join",
            Self::Run => "Run",
            Self::Unhealthy => "Unhealthy",
            Self::Fail => "Fail",
            Self::InPlace => "InPlace",
            Self::Preserved => "Preserved",
            Self::Frozen => "Frozen",
            Self::Deleting(DeletionStage::GetVmStatus) => "GetVmStatus",
            Self::Deleting(DeletionStage::Drain) => "Drain",
            Self::Deleting(DeletionStage::DeleteVolumeAttachments) => "DeleteVolumeAttachments",
            Self::Deleting(DeletionStage::DeleteVm) => "DeleteVm",
            Self::Deleting(DeletionStage::DeleteNode) => "DeleteNode",
            Self::Deleting(DeletionStage::RemoveFinalizer) => "RemoveFinalizer",
        }
    }

    /// The stage of a machine.
    pub fn of(seen: &Observation) -> Self {
        if seen.machine.is_deleting() {
            return Self::Deleting(deletion_stage(seen));
        }
        if seen.freeze == Freeze::Frozen {
            return Self::Frozen;
        }
        if preservation::ends(seen).is_some_and(|end| end > seen.now) {
            return Self::Preserved;
        }
        Self::of_phase(seen.phase()).unwrap_or_else(|| Self::Deleting(deletion_stage(seen)))
    }

    /// The stage as far as the stored machine shows it, for readers without the memory of a controller. They see neither
    /// [`Self::Frozen`] nor [`Self::Preserved`].
    pub fn of_stored(machine: &MachineSnapshot) -> Self {
        let deletion = || Self::Deleting(DeletionStage::of(machine).unwrap_or(DeletionStage::GetVmStatus));
        if machine.is_deleting() {
            return deletion();
        }
        Self::of_phase(machine.phase()).unwrap_or_else(deletion)
    }

    /// The stage of a machine in this phase; `None` for a machine whose deletion has begun.
    const fn of_phase(phase: &MachinePhase) -> Option<Self> {
        Some(match phase {
            MachinePhase::Pending => Self::Join,
            MachinePhase::Running | MachinePhase::Available => Self::Run,
            MachinePhase::Unknown => Self::Unhealthy,
            MachinePhase::Failed => Self::Fail,
            MachinePhase::InPlaceUpdating
            | MachinePhase::InPlaceUpdateSuccessful
            | MachinePhase::InPlaceUpdateFailed => Self::InPlace,
            MachinePhase::Terminating => return None,
            MachinePhase::Unset | MachinePhase::CrashLoopBackOff | MachinePhase::Other(_) => Self::Create,
        })
    }
}

fn deletion_stage(seen: &Observation) -> DeletionStage {
    match next_deletion_step(seen) {
        DeletionStep::MarkTerminating(stage) => stage,
        DeletionStep::AwaitCall(_) | DeletionStep::AwaitOther(_) => {
            DeletionStage::of(&seen.machine).unwrap_or(DeletionStage::GetVmStatus)
        }
        DeletionStep::AskStatus => DeletionStage::GetVmStatus,
        DeletionStep::LinkNode(_) | DeletionStep::DrainNode => DeletionStage::Drain,
        DeletionStep::Detach => DeletionStage::DeleteVolumeAttachments,
        DeletionStep::DeleteVm => DeletionStage::DeleteVm,
        DeletionStep::DeleteNode => DeletionStage::DeleteNode,
        DeletionStep::LeaveVm(_) | DeletionStep::RemoveFinalizer | DeletionStep::NotOurs => {
            DeletionStage::RemoveFinalizer
        }
    }
}

/// A time at which something happens to a machine unless it makes progress before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The limited state or action: `creation`, `health`, `drain`, `inPlace`, `preserve`, `pvDetach` or `pvReattach`.
    pub name: &'static str,
    /// When.
    pub at: Timestamp,
    /// The consequence when the deadline has passed.
    pub on_expiry: &'static str,
}

/// Why a machine makes no progress, in the words of its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Its reason in CamelCase.
    pub reason: String,
    /// The same as a sentence.
    pub message: String,
    /// Since when.
    pub since: Option<Timestamp>,
    /// The event that ends the wait. `None` when another process wrote the condition: only its message is known then.
    pub resolved_by: Option<String>,
}

impl Blocker {
    fn of(wait: &Waiting) -> Self {
        Self {
            reason: wait.reason().to_owned(),
            message: wait.message(),
            since: wait.began(),
            resolved_by: Some(wait.resolved_by().to_owned()),
        }
    }
}

/// The time limit of a machine's stage.
struct StageLimit {
    /// The name of its [`Deadline`].
    name: &'static str,
    limit: TimeLimit,
    /// The consequence when it has passed.
    on_expiry: &'static str,
}

/// The limit of the stage of a machine, if it has one.
fn stage_limit(seen: &Observation) -> Option<StageLimit> {
    let stage = Stage::of(seen);
    if seen.machine.is_deleting() {
        let drains = matches!(stage, Stage::Deleting(stage) if stage <= DeletionStage::Drain);
        let limit = drain_limit(seen).filter(|_| drains)?;
        return Some(StageLimit { name: "drain", limit, on_expiry: "pods are deleted by force" });
    }
    if let Some(limit) = phase_limit(seen) {
        let (name, on_expiry) = match limit.of {
            Limited::Creation => ("creation", "the machine is declared Failed"),
            Limited::Health => ("health", "the machine is declared Failed when its turn comes"),
            Limited::InPlaceUpdate => ("inPlace", "the update is declared failed"),
            Limited::Drain => ("drain", "pods are deleted by force"),
        };
        return Some(StageLimit { name, limit, on_expiry });
    }
    (stage == Stage::Create).then(|| StageLimit {
        name: "creation",
        limit: creation_limit(seen),
        on_expiry: "the next attempt that fails declares the machine Failed",
    })
}

/// The stage of a machine that is past the limit of this stage. A preserved machine is kept in its stage on purpose.
pub fn overdue_in(seen: &Observation) -> Option<Stage> {
    let stage = Stage::of(seen);
    (stage != Stage::Preserved && stage_limit(seen)?.limit.has_passed()).then_some(stage)
}

impl Outlook {
    /// The stage of the machine.
    pub fn stage(&self) -> Stage {
        Stage::of(&self.seen)
    }

    /// The deadlines of the machine and their consequences, unless it makes progress before.
    pub fn deadlines(&self) -> Vec<Deadline> {
        let seen = &self.seen;
        let mut all = Vec::new();
        let mut add = |name, at, on_expiry| all.push(Deadline { name, at, on_expiry });
        if let Some(StageLimit { name, limit, on_expiry }) = stage_limit(seen) {
            add(name, limit.ends_at(seen.now), on_expiry);
        }
        if let Some(end) = preservation::ends(seen).filter(|_| !seen.machine.is_deleting()) {
            add("preserve", end, "the machine is not kept any longer");
        }
        match &self.drain {
            Some(DrainWaiting::Detach { until, .. }) => {
                add("pvDetach", *until, "the attempt to drain has failed and is made again");
            }
            Some(DrainWaiting::Reattach { until, .. }) => add("pvReattach", *until, "the next pod is evicted"),
            Some(DrainWaiting::Budget { .. } | DrainWaiting::Pod { .. } | DrainWaiting::VolumeNames) | None => {}
        }
        all
    }

    /// Why the machine makes no progress.
    pub fn blockers(&self) -> Vec<Blocker> {
        let mut all: Vec<Blocker> = Vec::new();
        let mut add = |blocker: Blocker| {
            if !all.iter().any(|known| known.reason == blocker.reason) {
                all.push(blocker);
            }
        };
        if let Some(blocker) = self.condition_blocker() {
            add(blocker);
        }
        if self.seen.freeze == Freeze::Frozen {
            add(Blocker::of(&match self.seen.clock {
                None => Waiting::on(machine_condition::REASON_FROZEN, "an API server that does not answer")
                    .ended_by("both API servers answer again"),
                Some(_) => Waiting::on(machine_condition::REASON_FROZEN, "a clock that can be trusted")
                    .ended_by("this host's and the API server's agree"),
            }));
        }
        let call = self.seen.flow.in_flight.filter(|_| !self.seen.machine.is_deleting());
        if let Some(wait) = call.and_then(|call| driver_wait(&self.seen, call)) {
            add(Blocker::of(&wait));
        }
        all
    }

    /// The wait in the machine's condition, as the condition would be after the plan.
    fn condition_blocker(&self) -> Option<Blocker> {
        if let Some(standing) = &self.plan.standing {
            return standing.wait().map(Blocker::of);
        }
        let stored = progressing(&self.seen.machine)?;
        let stated = self.seen.stated.as_deref().map(|stated| &stated.standing);
        if let Some(standing) = stated.filter(|standing| is_stored(standing, stored)) {
            return standing.wait().map(Blocker::of);
        }
        (stored.reason != machine_condition::REASON_SETTLED).then(|| Blocker {
            reason: stored.reason.clone(),
            message: stored.message.clone(),
            since: Some(stored.last_transition_time.0),
            resolved_by: None,
        })
    }
}

/// Whether the stored condition shows this standing.
fn is_stored(standing: &Standing, stored: &Condition) -> bool {
    stored.reason == standing.reason() && stored.message == standing.message()
}

/// Makes outlooks.
#[derive(Clone)]
pub struct Outlooks {
    deps: OutlookDeps,
}

impl Outlooks {
    /// Outlooks from these stores.
    pub fn new(deps: OutlookDeps) -> Self {
        Self { deps }
    }

    /// The first store that is not complete yet.
    pub fn missing(&self) -> Option<&'static str> {
        let views = &self.deps.views;
        let nodes = self.deps.target.as_ref().is_none_or(|target| target.nodes.is_synced());
        let all = [
            ("machines", views.machines.is_synced()),
            ("machinesets", views.sets.is_synced()),
            ("machinedeployments", views.deployments.is_synced()),
            ("machineclasses", views.classes.is_synced()),
            ("secrets", views.secrets.is_synced()),
            ("nodes", nodes),
        ];
        all.into_iter().find(|(_, synced)| !synced).map(|(name, _)| name)
    }

    /// Whether this process runs the machine controller.
    pub fn has_controller(&self) -> bool {
        self.deps.controller.is_some()
    }

    /// Limits.
    pub fn settings(&self) -> &MachineSettings {
        &self.deps.settings
    }

    /// The target cluster, unless there is none.
    pub fn target(&self) -> Option<&OutlookTarget> {
        self.deps.target.as_ref()
    }

    /// The observation of a machine now.
    pub fn seen(&self, machine: &MachineSnapshot, now: Timestamp) -> Observation {
        self.look(machine, now).0
    }

    /// Whether all machines are frozen.
    pub fn freeze(&self) -> Freeze {
        self.deps.freeze.get()
    }

    /// The store of Nodes, unless there is no target cluster.
    pub fn nodes(&self) -> Option<&Store<NodeSnapshot>> {
        self.deps.target.as_ref().map(|target| &*target.nodes)
    }

    /// The stage of a machine now.
    pub fn stage_of(&self, machine: &MachineSnapshot, now: Timestamp) -> Stage {
        Stage::of(&self.look(machine, now).0)
    }

    /// The stage of a machine that is past the limit of this stage now. Healthy machines, which are most of a fleet, are not
    /// observed for that.
    pub fn overdue(&self, machine: &MachineSnapshot, now: Timestamp) -> Option<Stage> {
        if may_be_limited(machine) { overdue_in(&self.look(machine, now).0) } else { None }
    }

    /// The decision about a machine as it would be made now.
    pub fn of(&self, machine: &MachineSnapshot, now: Timestamp) -> Outlook {
        self.sight(machine, now).outlook()
    }

    /// The observation of a machine now, with everything that an outlook needs later.
    pub fn sight(&self, machine: &MachineSnapshot, now: Timestamp) -> Sighting {
        let (seen, drain) = self.look(machine, now);
        Sighting { seen: Arc::new(seen), drain }
    }

    /// The observation of a machine, and what its drain waits for.
    fn look(&self, machine: &MachineSnapshot, now: Timestamp) -> (Observation, Option<DrainWaiting>) {
        let deps = &self.deps;
        let key = machine.key();
        let class = ObjectKey::new(key.namespace.clone(), machine.class_ref().name.clone());
        let uid = machine.uid().to_owned();
        let controller = deps.controller.as_ref();
        let remembered = controller.and_then(|controller| controller.remembered(&key, &uid));
        let (memory, drain) = remembered.unwrap_or_else(|| {
            let name = machine.labels().get(label::NODE);
            let node = name.and_then(|name| self.nodes()?.get(&ObjectKey::cluster_scoped(name.clone())));
            (unseen(machine, node.as_ref(), uid, now), None)
        });
        let sources = Sources {
            views: &deps.views,
            target: deps.target.as_ref().map(|target| TargetSources {
                nodes: &target.nodes,
                drains: &*target.drains,
                starts_drain_views: false,
            }),
            drivers: &deps.drivers,
            settings: &deps.settings,
            freeze: deps.freeze.of(&key),
            silence: deps.freeze.silence(),
            last_good: controller.map_or(LastGood::Unknown, |controller| controller.remembers_class(&class)),
            node_vanished: controller.is_some_and(|controller| controller.saw_node_vanish(&key)),
        };
        let reading = deps.freeze.reading().unwrap_or(Reading::trusted(now)).told_at(now);
        (observe(&sources, machine.clone(), &memory, &Pass::default(), reading), drain)
    }
}

/// The memory of a process that has watched the machine since its creation and has done nothing else.
fn unseen(machine: &MachineSnapshot, node: Option<&NodeSnapshot>, uid: String, now: Timestamp) -> Memory {
    let created = machine.created().unwrap_or(now);
    let mut memory = Memory::new(uid, created, AskedBefore::Nothing);
    memory.first_seen_deleting = machine.deleting_since();
    memory.ailments = node.map(|node| Ailments::from_the_beginning(node, now)).unwrap_or_default();
    memory
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{super::testing::*, *};
    use machine_api::v1alpha1::{Machine, OperationState, OperationType};

    const MINUTES: i64 = 60;

    fn unknown() -> Machine {
        in_phase(MachinePhase::Unknown, 0, OperationType::HealthCheck, OperationState::Processing)
    }

    /// A drain has two hours, a creation 20 minutes, an unhealthy machine ten.
    #[rstest]
    #[case::a_drain_before_its_end(deleted_at(running(), 0), 110 * MINUTES, false)]
    #[case::a_drain_after_its_end(deleted_at(running(), 0), 140 * MINUTES, true)]
    #[case::a_deletion_past_its_drain(deleted_at(resting(DeletionStage::DeleteVm), 0), 140 * MINUTES, false)]
    #[case::a_creation_before_its_end(machine(), 20 * MINUTES, false)]
    #[case::a_creation_after_its_end(machine(), 20 * MINUTES + 1, true)]
    #[case::joining_before_the_end(pending(), 20 * MINUTES, false)]
    #[case::joining_after_the_end(pending(), 20 * MINUTES + 1, true)]
    #[case::unhealthy_before_the_end(unknown(), 10 * MINUTES, false)]
    #[case::unhealthy_after_the_end(unknown(), 10 * MINUTES + 1, true)]
    #[case::running(running(), 9999 * MINUTES, false)]
    fn a_machine_is_overdue_in_its_stage(#[case] machine: Machine, #[case] now: i64, #[case] overdue: bool) {
        let seen = seen(machine, now);
        assert_eq!(overdue_in(&seen), overdue.then(|| Stage::of(&seen)), "{:?}", Stage::of(&seen));
    }

    #[test]
    fn a_preserved_machine_is_not_overdue() {
        let mut preserved = unknown();
        preserved.status.current_status.preserve_expiry_time =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(90 * MINUTES)));
        let seen = seen(preserved, 20 * MINUTES);
        assert_eq!((Stage::of(&seen), overdue_in(&seen)), (Stage::Preserved, None));
    }

    #[test]
    fn a_machine_that_is_not_observed_has_no_limit() {
        for phase in MachinePhase::WORDS {
            let machine =
                in_phase(MachinePhase::from(*phase), 0, OperationType::HealthCheck, OperationState::Processing);
            let seen = seen(machine, 9999 * MINUTES);
            assert!(may_be_limited(&seen.machine) || stage_limit(&seen).is_none(), "{:?}", seen.phase());
        }
    }
}
