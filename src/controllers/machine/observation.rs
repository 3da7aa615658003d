//! All that a decision about one machine may depend on, as one plain value.
//!
//! Built by `observe` from the stores and the in-memory flow, once per step; serialisable, so that a decision can be
//! kept and replayed. No secret is in it: of Secrets only what they offer is known. Source: spec/machine-controller §15.1.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeAddress, NodeCondition},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::ResourceExt;
use serde::Serialize;

use super::{settings::Limits, vm_gone::VmCheck};
use crate::{
    api::{
        names::{finalizer, label},
        v1alpha1::{Machine, MachinePhase},
    },
    controllers::drain::waiting::Waiting,
    driver::{CreatedVm, DeletedVm, Status, VmIdentity},
};

/// Version of the observation's serialised form.
pub const OBSERVATION_VERSION: u32 = 1;

/// A difference of clocks that is taken for skew: a machine first seen within this time after the API server's own stamp
/// is timed from when it was seen (M-63).
pub const SKEW_ALLOWANCE: Duration = Duration::from_secs(5 * 60);

/// All that a decision about one machine may depend on.
#[derive(Clone, Debug, Serialize)]
pub struct Observation {
    /// Version of this form.
    pub version: u32,
    /// The time of the decision.
    pub now: Timestamp,
    /// When this process first saw the machine.
    pub first_seen: Timestamp,
    /// When this process first saw the machine being deleted.
    pub first_seen_deleting: Option<Timestamp>,
    /// Whether verdicts are suspended because an API server cannot be reached.
    pub freeze: Freeze,
    /// Whether there is a target cluster.
    pub target: TargetCluster,
    /// The machine's limits.
    pub limits: Limits,
    /// The machine.
    pub machine: Arc<Machine>,
    /// Its class.
    pub class: ClassView,
    /// The Secrets of its class.
    pub secrets: SecretView,
    /// Its Node.
    pub node: NodeView,
    /// What the driver answered in this flow.
    pub flow: Flow,
    /// A pause before the next driver call.
    pub pause: Option<Pause>,
    /// What ends a pause when it changes.
    pub inputs: Inputs,
    /// The drain, as far as it was stepped in this pass.
    pub drain: DrainState,
    /// Volume attachments on the Node of a machine that is being deleted; `None` while they are not known.
    pub attachments: Option<Vec<AttachmentView>>,
    /// Siblings that stand in the way of a failure; only when the question may come up.
    pub siblings: Option<Vec<Sibling>>,
    /// Whether the failure permit of the group is held.
    pub permit: Permit,
    /// An effect on the target cluster that failed in this pass.
    pub trouble: Option<Trouble>,
    /// Since when the Node's conditions differ from the stored ones.
    pub conditions_differ_since: Option<Timestamp>,
    /// What the driver said of the VM since the machine is unhealthy.
    pub vm_check: VmCheck,
}

/// Whether verdicts are suspended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Freeze {
    /// No.
    #[default]
    Flowing,
    /// Yes: an API server cannot be reached, what is seen may be old.
    Frozen,
}

/// Whether there is a target cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum TargetCluster {
    /// No: machines end as Available and no node is touched.
    None,
    /// Yes.
    Present,
}

/// A class as a machine sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassView {
    /// Whether machines can be made from it.
    pub state: ClassState,
    /// Virtual capacity wanted on nodes; `None` when the class is not known and capacity must be left alone.
    pub virtual_capacity: Option<BTreeMap<String, Quantity>>,
    /// Whether the driver makes one VM only, however often it is asked.
    pub creation: CreationGuarantee,
    /// Whether an earlier form of the class and its Secrets is in memory (decisions.md 15).
    pub last_good: LastGood,
}

/// Whether machines can be made from a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum ClassState {
    /// The machine names none.
    NotNamed,
    /// There is none of this name.
    Absent,
    /// It lacks our finalizer and could vanish any time.
    WithoutFinalizer,
    /// It lacks our finalizer and can't get it any more.
    DeletingWithoutFinalizer,
    /// Its node template is incomplete.
    NodeTemplateInvalid(String),
    /// Yes.
    Usable,
}

/// Whether a repeated create is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CreationGuarantee {
    /// The driver makes one VM per machine name.
    Idempotent,
    /// The intent has to be stored before the first call.
    RecordIntent,
}

/// Whether an earlier, usable form of class and Secrets is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum LastGood {
    /// No.
    Unknown,
    /// Yes, in this process's memory.
    Remembered,
}

/// The Secrets of a class as a machine sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum SecretView {
    /// Those named here (`namespace/name`) are missing.
    Missing(Vec<String>),
    /// All are there, or none is named.
    Present(UserData),
}

/// What the user data asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum UserData {
    /// The class names no Secret: the driver decides (decisions.md 33).
    NotNamed,
    /// The Secrets lack the key.
    KeyMissing,
    /// It holds no placeholder for a bootstrap token.
    WithoutToken,
    /// It holds one.
    NeedsToken,
}

/// The Node of a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum NodeView {
    /// There is no target cluster.
    NoTarget,
    /// The machine has no node label; a Node that names the machine may exist.
    NotLinked {
        /// Name of a Node whose label names the machine.
        candidate: Option<String>,
        /// Provider ID of the Node that has the name which the driver answered, if there is such a Node.
        namesake: Option<String>,
    },
    /// The Node of the label does not exist.
    Absent,
    /// The Node of the label was removed while this process watched.
    Vanished,
    /// The Node is there and belongs to the machine.
    Ours(Arc<Node>),
    /// A Node of that name is there but belongs to something else.
    Foreign {
        /// Its name.
        name: String,
        /// How we know.
        why: String,
    },
}

impl NodeView {
    /// The Node, if it is there and ours.
    pub fn ours(&self) -> Option<&Arc<Node>> {
        match self {
            Self::Ours(node) => Some(node),
            Self::NoTarget | Self::NotLinked { .. } | Self::Absent | Self::Vanished | Self::Foreign { .. } => None,
        }
    }
}

/// A kind of driver call about one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Call {
    /// `GetMachineStatus`.
    Status,
    /// `CreateMachine`.
    Create,
    /// `InitializeMachine`.
    Initialize,
    /// `DeleteMachine` of the machine's VM.
    Delete,
    /// `DeleteMachine` of a VM that got an old Node's name.
    DeleteStale,
}

/// What a driver call answered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Answer {
    /// Of `GetMachineStatus`.
    Status(Result<VmIdentity, Status>),
    /// Of `CreateMachine`.
    Created(Result<CreatedVm, Status>),
    /// Of `InitializeMachine`.
    Initialized(Result<VmIdentity, Status>),
    /// Of `DeleteMachine`.
    Deleted(Result<DeletedVm, Status>),
    /// Of `DeleteMachine` for a VM with an old Node's name.
    DeletedStale(Result<DeletedVm, Status>),
}

/// How the VM of the flow came to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum VmOrigin {
    /// `CreateMachine` made it in this flow.
    Created,
    /// It was there already.
    Found,
    /// It was there already but is not initialised.
    FoundUninitialized,
}

/// The VM of the flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KnownVm {
    /// Who it is.
    pub identity: VmIdentity,
    /// How it came to be known.
    pub origin: VmOrigin,
    /// The memory that the driver wants kept; written with the next status.
    pub last_known_state: Option<String>,
}

/// What the driver answered since the flow began. In memory only; lost on restart, when the driver is asked again.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Flow {
    /// A call that has not answered yet.
    pub in_flight: Option<Call>,
    /// When the last call was started.
    pub asked_at: Option<Timestamp>,
    /// The last answer, until the decision has been acted upon.
    pub answer: Option<Answer>,
    /// The VM, once known.
    pub vm: Option<KnownVm>,
}

impl Flow {
    /// Whether nothing is under way and nothing is known.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.answer.is_none() && self.vm.is_none()
    }

    /// Takes in what a call answered.
    pub fn learn(&mut self, answer: Answer) {
        self.in_flight = None;
        match &answer {
            Answer::Created(Ok(created)) => {
                self.vm = Some(KnownVm {
                    identity: created.vm.clone(),
                    origin: VmOrigin::Created,
                    last_known_state: created.last_known_state.clone(),
                });
            }
            Answer::Status(Ok(identity)) => self.found(identity.clone(), VmOrigin::Found),
            Answer::Status(Err(status)) if status.code == crate::driver::Code::Uninitialized => {
                if let Some(partial) = &status.partial {
                    self.found((**partial).clone(), VmOrigin::FoundUninitialized);
                }
            }
            Answer::Initialized(Ok(more)) => {
                if let Some(known) = &mut self.vm {
                    known.identity.addresses = union(&known.identity.addresses, &more.addresses);
                }
            }
            Answer::Status(Err(_))
            | Answer::Created(Err(_))
            | Answer::Initialized(Err(_))
            | Answer::Deleted(_)
            | Answer::DeletedStale(_) => {}
        }
        self.answer = Some(answer);
    }

    fn found(&mut self, identity: VmIdentity, origin: VmOrigin) {
        self.vm = Some(KnownVm { identity, origin, last_known_state: None });
    }
}

/// Both lists without repetition, sorted by type, then address (spec §4.11).
pub fn union(one: &[NodeAddress], other: &[NodeAddress]) -> Vec<NodeAddress> {
    let mut all: Vec<NodeAddress> = one.iter().chain(other).cloned().collect();
    all.sort_by(|a, b| (&a.type_, &a.address).cmp(&(&b.type_, &b.address)));
    all.dedup();
    all
}

/// What a pause was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Purpose {
    /// Making the VM.
    Creation,
    /// Taking it away.
    Deletion,
}

/// A pause before the next driver call; it ends early when its inputs change (spec §4.6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// What for.
    pub purpose: Purpose,
    /// When it ends.
    pub until: Timestamp,
    /// What it was decided on.
    pub inputs: Inputs,
}

/// What a driver call depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inputs {
    /// Generation of the machine.
    pub machine: Option<i64>,
    /// UID and generation of the class.
    pub class: Option<(String, Option<i64>)>,
    /// Names and versions of the Secrets.
    pub secrets: Vec<(String, Option<String>)>,
    /// Whether the label asks for a deletion by force.
    pub force: Force,
}

/// Whether something is to be done by force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Force {
    /// No.
    #[default]
    No,
    /// Yes.
    Yes,
}

/// A drain, as far as it was stepped in this pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub enum DrainState {
    /// Not stepped yet.
    #[default]
    Due,
    /// The views of pods are not complete yet.
    Warming,
    /// Under way.
    Running {
        /// How far it is, for people.
        progress: String,
        /// The budget that refuses evictions.
        blocked_by: Option<String>,
        /// Whom it waits for.
        waiting: Option<Waiting>,
        /// When to step again, at the latest.
        wake: Duration,
    },
    /// Done.
    Drained,
    /// It failed, for this reason.
    Failed(String),
}

/// A volume attachment on the Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttachmentView {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Whether it is being deleted already.
    pub deleting: bool,
}

/// A sibling: a machine with the same label `name`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sibling {
    /// Its name.
    pub name: String,
    /// Its phase.
    pub phase: String,
    /// Whether it is preserved.
    pub preserved: bool,
}

/// Whether the failure permit of the machine's group is held by this pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Permit {
    /// No.
    #[default]
    NotHeld,
    /// Yes.
    Held,
}

/// A step on the target cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum NodeStep {
    /// Marking the node as unschedulable.
    Cordon,
    /// Writing the condition `Terminating`.
    TerminatingCondition,
    /// Deleting volume attachments.
    Attachments,
    /// Deleting the Node.
    Delete,
    /// Taking our finalizer off the Node.
    Finalizer,
    /// Finalizer, labels, taints and memories of the Node.
    Metadata,
    /// What a preservation puts on the Node, and takes off it.
    Preservation,
    /// Writing the condition `InPlaceUpdate`.
    InPlaceCondition,
}

/// An effect on the target cluster that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trouble {
    /// What was tried.
    pub step: NodeStep,
    /// What came of it.
    pub error: String,
}

impl Observation {
    /// A machine of a target cluster of which nothing else is known yet: its class is usable, its Secrets ask for nothing,
    /// it was first seen now.
    pub fn of(machine: Arc<Machine>, limits: Limits, now: Timestamp) -> Self {
        let deleting = machine.metadata.deletion_timestamp.as_ref().map(|_| now);
        Self {
            version: OBSERVATION_VERSION,
            now,
            first_seen: now,
            first_seen_deleting: deleting,
            freeze: Freeze::Flowing,
            target: TargetCluster::Present,
            limits,
            class: ClassView {
                state: ClassState::Usable,
                virtual_capacity: Some(BTreeMap::new()),
                creation: CreationGuarantee::Idempotent,
                last_good: LastGood::Unknown,
            },
            secrets: SecretView::Present(UserData::WithoutToken),
            node: NodeView::NotLinked { candidate: None, namesake: None },
            flow: Flow::default(),
            pause: None,
            inputs: Inputs {
                machine: machine.metadata.generation,
                force: force_deletion(&machine),
                ..Inputs::default()
            },
            drain: DrainState::Due,
            attachments: deleting.map(|_| Vec::new()),
            siblings: None,
            permit: Permit::NotHeld,
            trouble: None,
            conditions_differ_since: None,
            vm_check: VmCheck::NotAsked,
            machine,
        }
    }

    /// Name of the machine.
    pub fn name(&self) -> &str {
        self.machine.metadata.name.as_deref().unwrap_or_default()
    }

    /// Phase of the machine.
    pub fn phase(&self) -> &MachinePhase {
        &self.machine.status.current_status.phase
    }

    /// Name of its Node, or empty.
    pub fn node_label(&self) -> &str {
        self.machine.labels().get(label::NODE).map(String::as_str).unwrap_or_default()
    }

    /// Whether our finalizer is on the machine.
    pub fn has_finalizer(&self) -> bool {
        self.machine.finalizers().iter().any(|name| name == finalizer::MACHINE)
    }

    /// How long the machine exists, by the later of the API server's stamp and our first sight of a young machine.
    pub fn age(&self) -> Duration {
        let created = self.machine.metadata.creation_timestamp.as_ref().map(|time| time.0);
        since(self.now, start(created, self.first_seen))
    }

    /// How long the machine is being deleted; `None` when it is not.
    pub fn deleting_for(&self) -> Option<Duration> {
        let stamped = self.machine.metadata.deletion_timestamp.as_ref().map(|time| time.0)?;
        Some(since(self.now, start(Some(stamped), self.first_seen_deleting.unwrap_or(stamped))))
    }

    /// Whether a pause for this purpose still holds, and how long.
    pub fn paused(&self, purpose: Purpose) -> Option<Duration> {
        let pause = self.pause.as_ref()?;
        let holds = pause.purpose == purpose && pause.inputs == self.inputs && pause.until > self.now;
        holds.then(|| since(pause.until, self.now))
    }

    /// Whether the label asks for a deletion by force.
    pub fn force_deletion(&self) -> Force {
        force_deletion(&self.machine)
    }
}

/// Whether the label `force-deletion` holds a Go boolean that is true; anything else is false.
pub fn force_deletion(machine: &Machine) -> Force {
    match machine.labels().get(label::FORCE_DELETION).map(String::as_str) {
        Some("1" | "t" | "T" | "TRUE" | "true" | "True") => Force::Yes,
        _ => Force::No,
    }
}

/// Where a clock starts whose stamp another machine wrote.
fn start(stamped: Option<Timestamp>, seen: Timestamp) -> Timestamp {
    match stamped {
        Some(stamped) if seen > stamped && since(seen, stamped) <= SKEW_ALLOWANCE => seen,
        Some(stamped) => stamped,
        None => seen,
    }
}

/// Time from `earlier` to `later`, or zero.
pub fn since(later: Timestamp, earlier: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or_default()
}

/// The condition of this type.
pub fn condition<'a>(conditions: &'a [NodeCondition], kind: &str) -> Option<&'a NodeCondition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// The conditions of a node.
pub fn conditions_of(node: &Node) -> &[NodeCondition] {
    node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[rstest]
    #[case::seen_at_once(Some(at(0)), at(1), at(1))]
    #[case::mc_093_this_clock_runs_ahead(Some(at(0)), at(30), at(30))]
    #[case::this_clock_runs_behind(Some(at(0)), at(-30), at(0))]
    #[case::mc_128_seen_long_after_by_a_new_process(Some(at(0)), at(3600), at(0))]
    fn a_clock_starts(#[case] stamped: Option<Timestamp>, #[case] seen: Timestamp, #[case] expected: Timestamp) {
        assert_eq!(start(stamped, seen), expected);
    }

    #[rstest]
    #[case::s_util_12_an_hour_is_more_than_half_an_hour(3600, 30, true)]
    #[case::s_util_12_an_hour_is_less_than_one_and_a_half(3600, 90, false)]
    #[case::s_util_12_no_time_has_passed(0, 5, false)]
    fn a_period_is_over(#[case] seconds: i64, #[case] minutes: u64, #[case] over: bool) {
        assert_eq!(since(at(seconds), at(0)) > Duration::from_secs(60 * minutes), over);
    }

    #[rstest]
    #[case::mc_168_a_go_boolean("T", Force::Yes)]
    #[case::mc_168_no_go_boolean("yes", Force::No)]
    #[case::false_is_false("false", Force::No)]
    fn the_label_force_deletion_is_read_as_go_does(#[case] value: &str, #[case] force: Force) {
        let mut machine = Machine::default();
        machine.labels_mut().insert(label::FORCE_DELETION.to_owned(), value.to_owned());
        assert_eq!(force_deletion(&machine), force);
    }
}
