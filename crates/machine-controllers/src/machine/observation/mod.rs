//! Everything that a decision about one machine may depend on, as one plain value.
//!
//! Built by `observe` from the stores and from memory, once per step. It can be serialised, so that a decision can be kept
//! and replayed. It contains no secret. Its parts are in [`class`], [`node`] and [`flow`]. Source: spec/machine-controller
//! §15.1.

pub mod ailments;
mod class;
pub mod class_state;
mod flow;
mod node;
pub mod replacement;
pub mod shared_instance;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use serde::Serialize;

use self::{ailments::Ailments, replacement::Replacement, shared_instance::VmOwner};
pub use self::{
    class::{ClassState, ClassView, CreationGuarantee, LastGood, SecretView, UserData},
    flow::{Answer, Call, Flow, Inputs, KnownVm, Pause, Purpose, VmCheck, VmOrigin, union},
    node::{
        AttachmentView, DrainState, Namesake, NodeIdentity, NodeSource, NodeStep, NodeView, StepFailure, StepFailures,
    },
};
use super::{settings::Limits, standing::Stated};
use crate::{
    drain::{observe::MissingView, order::Force},
    snapshots::MachineSnapshot,
    times::since,
};
use controller_runtime::{
    clock::{ClockTrouble, Step},
    snapshot::Snapshot,
};
use machine_api::{
    names::{finalizer, label},
    v1alpha1::MachinePhase,
};

/// Version of the observation's serialised form.
pub const OBSERVATION_VERSION: u32 = 2;

/// A difference of clocks that counts as skew: when a machine is first seen within this time after the API server's own
/// stamp, its times count from when it was seen (M-63).
pub const SKEW_ALLOWANCE: Duration = Duration::from_secs(5 * 60);

/// Everything that a decision about one machine may depend on.
#[derive(Clone, Debug, Serialize)]
pub struct Observation {
    /// Version of this form.
    pub version: u32,
    /// The time of the decision.
    pub now: Timestamp,
    /// The same time, as if the clock had never stepped; for everything that this process remembers.
    pub steady: Timestamp,
    /// The last step of the clock, if this process has seen any.
    pub step: Option<Step>,
    /// Why the clock cannot be trusted, if it cannot.
    pub clock: Option<ClockTrouble>,
    /// When this process first saw the machine.
    pub first_seen: Timestamp,
    /// When this process first saw the machine being deleted.
    pub first_seen_deleting: Option<Timestamp>,
    /// Whether the machine is frozen.
    pub freeze: Freeze,
    /// The API server that does not answer.
    pub silence: Silence,
    /// Whether there is a target cluster.
    pub target: TargetCluster,
    /// The machine's limits.
    pub limits: Limits,
    /// The machine.
    pub machine: MachineSnapshot,
    /// Its class.
    pub class: ClassView,
    /// The Secrets of its class.
    pub secrets: SecretView,
    /// Its Node.
    pub node: NodeView,
    /// Whether the driver can confirm that the Node belongs to the machine.
    pub node_identity: NodeIdentity,
    /// The owner of its VM, if other machines name the VM, too.
    pub vm_owner: VmOwner,
    /// The other machine that takes its place, if it is being deleted and replaced.
    pub replacement: Option<Replacement>,
    /// The time since which it is unknown whether the last creation without an outcome made a VM. `None` when every
    /// creation had an outcome.
    pub creation_unknown_since: Option<Timestamp>,
    /// The driver's answers in this flow.
    pub flow: Flow,
    /// A pause before the next driver call.
    pub pause: Option<Pause>,
    /// The inputs of a driver call. A pause ends when they change.
    pub inputs: Inputs,
    /// The standing that this process has written last.
    pub stated: Option<Arc<Stated>>,
    /// The drain, as far as it was stepped in this pass.
    pub drain: DrainState,
    /// Volume attachments on the Node of a machine that is being deleted; `None` while they are not known.
    pub attachments: Option<Vec<AttachmentView>>,
    /// Views that a drain or a detachment needs and that are not complete; only filled while one of the two waits for them.
    pub missing_views: Vec<MissingView>,
    /// The machine's siblings, which may keep it from being declared Failed; only filled when this matters.
    pub siblings: Option<Vec<Sibling>>,
    /// Whether the failure permit of the group is held.
    pub permit: Permit,
    /// Whether the Node was read from the API server in this pass.
    pub node_source: NodeSource,
    /// Effects on the target cluster that failed in this pass.
    pub step_failures: StepFailures,
    /// The faults of the machine's Node, and since when this process has seen them.
    pub ailments: Ailments,
    /// The time since which the Node's conditions differ from the stored ones, in steady time.
    pub conditions_differ_since: Option<Timestamp>,
    /// The driver's answer about the VM since the machine became unhealthy.
    pub vm_check: VmCheck,
}

/// Whether machines are frozen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Freeze {
    /// No.
    #[default]
    Flowing,
    /// Yes: an API server cannot be reached, so that the stores may be outdated, or the clock cannot be trusted.
    Frozen,
}

/// The API server that did not answer its last probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Silence {
    /// Both answered.
    #[default]
    None,
    /// Only the API server of the target cluster: machines can be written, Nodes can't be seen.
    Target,
    /// The API server of the control cluster: nothing can be written to machines.
    Control,
}

/// Whether there is a target cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum TargetCluster {
    /// No: machines end as Available and no node is touched.
    None,
    /// Yes.
    Present,
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

impl Observation {
    /// A machine with a target cluster and nothing else known yet: its class is usable, its Secrets need nothing, and it is
    /// first seen now.
    pub fn of(machine: MachineSnapshot, limits: Limits, now: Timestamp) -> Self {
        let deleting = machine.is_deleting().then_some(now);
        Self {
            version: OBSERVATION_VERSION,
            now,
            steady: now,
            step: None,
            clock: None,
            first_seen: now,
            first_seen_deleting: deleting,
            freeze: Freeze::Flowing,
            silence: Silence::None,
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
            node_identity: NodeIdentity::Told,
            vm_owner: VmOwner::This,
            replacement: None,
            creation_unknown_since: None,
            flow: Flow::default(),
            pause: None,
            stated: None,
            inputs: Inputs { machine: machine.generation(), force: force_deletion(&machine), ..Inputs::default() },
            drain: DrainState::Due,
            attachments: deleting.map(|_| Vec::new()),
            missing_views: Vec::new(),
            siblings: None,
            permit: Permit::NotHeld,
            node_source: NodeSource::View,
            step_failures: StepFailures::default(),
            ailments: Ailments::default(),
            conditions_differ_since: None,
            vm_check: VmCheck::NotAsked,
            machine,
        }
    }

    /// Name of the machine.
    pub fn name(&self) -> &str {
        self.machine.name()
    }

    /// Phase of the machine.
    pub fn phase(&self) -> &MachinePhase {
        self.machine.phase()
    }

    /// Name of its Node, or empty.
    pub fn node_label(&self) -> &str {
        self.machine.labels().get(label::NODE).map(String::as_str).unwrap_or_default()
    }

    /// Whether our finalizer is on the machine.
    pub fn has_finalizer(&self) -> bool {
        self.machine.metadata().has_finalizer(finalizer::MACHINE)
    }

    /// The age of the machine, by the API server's stamp, or for a young machine by the later time at which this process
    /// first saw it.
    pub fn age(&self) -> Duration {
        let created = self.machine.created();
        since(self.now, start(created, self.first_seen))
    }

    /// How long the machine has been in deletion; `None` when it is not being deleted.
    pub fn deleting_for(&self) -> Option<Duration> {
        let stamped = self.machine.deleting_since()?;
        Some(since(self.now, start(Some(stamped), self.first_seen_deleting.unwrap_or(stamped))))
    }

    /// Whether the Node has been unhealthy for so long that its pods can't be evicted any more (M-05).
    pub fn is_node_lastingly_unhealthy(&self) -> bool {
        self.ailments.are_lasting(self.steady)
    }

    /// Whether a pause for this purpose still holds, and how long.
    pub fn paused(&self, purpose: Purpose) -> Option<Duration> {
        let pause = self.pause.as_ref()?;
        let holds = pause.purpose == purpose && pause.inputs == self.inputs && pause.until > self.steady;
        holds.then(|| since(pause.until, self.steady))
    }

    /// The inputs of the last driver call: the present inputs if no call could be started with them.
    pub fn asked_with(&self) -> &Inputs {
        self.flow.asked_with.as_ref().unwrap_or(&self.inputs)
    }

    /// Whether machine, class or Secret have changed since the last driver call began.
    pub fn has_changed_since_asked(&self) -> bool {
        *self.asked_with() != self.inputs
    }

    /// Whether the label asks for a deletion by force.
    pub fn force_deletion(&self) -> Force {
        force_deletion(&self.machine)
    }
}

/// Whether the label `force-deletion` holds a Go boolean that is true; anything else is false.
pub fn force_deletion(machine: &MachineSnapshot) -> Force {
    match machine.labels().get(label::FORCE_DELETION).map(String::as_str) {
        Some("1" | "t" | "T" | "TRUE" | "true" | "True") => Force::Yes,
        _ => Force::No,
    }
}

/// The start of a time whose stamp another host wrote.
fn start(stamped: Option<Timestamp>, seen: Timestamp) -> Timestamp {
    match stamped {
        Some(stamped) if seen > stamped && since(seen, stamped) <= SKEW_ALLOWANCE => seen,
        Some(stamped) => stamped,
        None => seen,
    }
}

/// The condition of this type.
pub fn condition<'a>(conditions: &'a [NodeCondition], kind: &str) -> Option<&'a NodeCondition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use kube::ResourceExt;
    use machine_api::v1alpha1::Machine;

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
    #[case::mc_168_a_go_boolean("T", Force::Yes)]
    #[case::mc_168_no_go_boolean("yes", Force::No)]
    #[case::false_is_false("false", Force::No)]
    fn the_label_force_deletion_is_read_as_go_does(#[case] value: &str, #[case] force: Force) {
        let mut machine = Machine::default();
        machine.labels_mut().insert(label::FORCE_DELETION.to_owned(), value.to_owned());
        let machine = MachineSnapshot::from(machine);
        assert_eq!(force_deletion(&machine), force);
    }
}
