//! The memory about a machine between passes. Nothing here has to survive a restart.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    creation::{
        bootstrap_token::Token,
        outcome::{AskedBefore, leaves_outcome_unknown},
    },
    observation::{
        Answer, DrainState, Flow, NodeSource, Observation, Pause, Permit, StepFailures, VmCheck, ailments::Ailments,
    },
    retry::{DeleteReaction, after_failed_deletion},
    stages::Stretch,
    standing::{Standing, Stated},
};
use crate::{
    drain::{DrainMemory, Run, order::DrainFlow},
    news::News,
    refused_writes::RefusedWrites,
    snapshots::MachineSnapshot,
};
use controller_runtime::key::Target;
use mcm_traces::PassSpan;

/// The memory of this process about a machine.
#[derive(Debug)]
pub struct Memory {
    /// UID of the machine; a new machine of the same name gets a new memory.
    pub uid: String,
    /// When the machine was first seen.
    pub first_seen: Timestamp,
    /// When it was first seen being deleted.
    pub first_seen_deleting: Option<Timestamp>,
    /// The answers of the driver, and the call under way.
    pub flow: Flow,
    /// The time since which it is unknown whether the last creation without an outcome made a VM.
    pub creation_unknown_since: Option<Timestamp>,
    /// A pause before the next driver call.
    pub pause: Option<Pause>,
    /// The drain.
    pub drain: Option<Run>,
    /// The faults of the machine's Node, and since when this process has seen them.
    pub ailments: Ailments,
    /// The time since which the Node's conditions differ from the stored ones, in steady time.
    pub conditions_differ_since: Option<Timestamp>,
    /// The driver's answer about the VM since the machine became unhealthy.
    pub vm_check: VmCheck,
    /// The machine's bootstrap token.
    pub token: Option<HeldToken>,
    /// The standing that was last written to the status.
    pub stated: Option<Arc<Stated>>,
    /// The messages of recent events.
    news: News,
    /// Refused writes of the machine.
    pub refused: RefusedWrites,
    /// The outcome of a write is unknown: read the machine before deciding again.
    pub reread: bool,
    /// The stage of the machine's life, if lives are recorded.
    pub stage: Option<Stretch>,
    /// What the pass under way has done, if passes are recorded.
    pub span: PassSpan,
}

/// A bootstrap token in memory.
#[derive(Debug)]
pub struct HeldToken {
    /// Its Secret.
    pub secret: Target,
    /// The token.
    pub token: Token,
    /// When it expires.
    pub expires: Timestamp,
}

impl Memory {
    /// An empty memory of the machine with this UID. `asked` says whether earlier processes may have asked for its VM.
    pub fn new(uid: String, now: Timestamp, asked: AskedBefore) -> Self {
        Self {
            uid,
            first_seen: now,
            first_seen_deleting: None,
            flow: Flow::default(),
            creation_unknown_since: asked.unknown_since(now),
            pause: None,
            drain: None,
            ailments: Ailments::default(),
            conditions_differ_since: None,
            vm_check: VmCheck::NotAsked,
            token: None,
            stated: None,
            news: News::default(),
            refused: RefusedWrites::default(),
            reread: false,
            stage: None,
            span: PassSpan::default(),
        }
    }

    /// A copy of everything that decisions depend on, for a caller that only asks what would be decided. The copy has no
    /// token and no drain: these can't be shared.
    #[must_use]
    pub fn outlook_copy(&self) -> Self {
        Self {
            uid: self.uid.clone(),
            first_seen: self.first_seen,
            first_seen_deleting: self.first_seen_deleting,
            flow: self.flow.clone(),
            creation_unknown_since: self.creation_unknown_since,
            pause: self.pause.clone(),
            drain: None,
            ailments: self.ailments.clone(),
            conditions_differ_since: self.conditions_differ_since,
            vm_check: self.vm_check,
            token: None,
            stated: self.stated.clone(),
            news: News::default(),
            refused: RefusedWrites::default(),
            reread: false,
            stage: None,
            span: PassSpan::default(),
        }
    }

    /// Takes in a driver's answer.
    pub fn learn(&mut self, answer: Answer, now: Timestamp) {
        if leaves_outcome_unknown(&answer) {
            self.creation_unknown_since = Some(now);
        }
        if is_success(&answer) {
            // The call that the pause was for has succeeded.
            self.pause = None;
        }
        self.flow.learn(answer);
    }

    /// Keeps the times that an observation noted first, so that the next observation counts from them.
    pub fn keep(&mut self, seen: &Observation) {
        self.first_seen_deleting = seen.first_seen_deleting;
        self.ailments.clone_from(&seen.ailments);
        self.conditions_differ_since = seen.conditions_differ_since;
        self.vm_check = seen.vm_check;
    }

    /// Ends a pass. A pass without failures that ordered no drain abandons the remembered drain.
    pub fn rested(&mut self, pass: &Pass, drains: DrainMemory) {
        if pass.drain == DrainState::Due && pass.step_failures.is_empty() {
            self.drain = self.drain.take().filter(|run| run.is_kept_by(drains));
        }
    }

    /// Whether this message was not recorded recently. `steady` is the present in steady time.
    pub fn is_news(&mut self, reason: &'static str, message: &str, steady: Timestamp) -> bool {
        self.news.is_news(reason, message, steady)
    }

    /// Notes that this standing was written to the status.
    pub fn has_stated(&mut self, standing: &Standing, steady: Timestamp) {
        self.stated = Some(Arc::new(Stated { standing: standing.clone(), at: steady }));
    }
}

/// Whether a call has succeeded.
fn is_success(answer: &Answer) -> bool {
    match answer {
        Answer::Status(answer) | Answer::Initialized(answer) => answer.is_ok(),
        Answer::Created(answer) => answer.is_ok(),
        Answer::Deleted(Err(status)) => after_failed_deletion(status.code) == DeleteReaction::Gone,
        Answer::Deleted(Ok(_)) => true,
        Answer::DeletedStale(answer) => answer.is_ok(),
    }
}

/// Facts that are known only during one pass.
#[derive(Debug, Default)]
pub struct Pass {
    /// The drain, once stepped; see [`Pass::drain_of`].
    pub drain: DrainState,
    /// The flow that the drain was stepped for.
    pub drain_flow: Option<DrainFlow>,
    /// An effect on the target cluster that failed.
    pub step_failures: StepFailures,
    /// Whether the failure permit is held.
    pub permit: Permit,
    /// Whether the Node was read from the API server.
    pub node_source: NodeSource,
    /// Writes of this pass that were refused because another client's write came first.
    pub conflicts: u32,
}

impl Pass {
    /// The state of this pass's drain, for the machine as it is now. A machine that is deleted in the middle of a pass
    /// begins a separate drain. The state of a drain for a preservation or an update does not apply to it.
    pub fn drain_of(&self, machine: &MachineSnapshot) -> DrainState {
        let is_deleting = machine.is_deleting();
        match self.drain_flow {
            Some(flow) if is_deleting && flow != DrainFlow::Deletion => DrainState::Due,
            _ => self.drain.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    use super::*;
    use crate::machine::observation::{Inputs, Purpose};
    use machine_api::v1alpha1::Machine;
    use machine_driver::{Code, DeletedVm, Status};

    #[rstest]
    #[case::its_own(DrainFlow::Deletion, true, DrainState::Drained)]
    #[case::of_a_preservation(DrainFlow::Preservation(None), true, DrainState::Due)]
    #[case::of_a_preservation_that_goes_on(DrainFlow::Preservation(None), false, DrainState::Drained)]
    fn a_deletion_in_the_middle_of_a_pass_is_not_drained_by_another_flow(
        #[case] flow: DrainFlow,
        #[case] is_deleting: bool,
        #[case] expected: DrainState,
    ) {
        let pass = Pass { drain: DrainState::Drained, drain_flow: Some(flow), ..Pass::default() };
        let mut machine = Machine::default();
        machine.metadata.deletion_timestamp = is_deleting.then_some(Time(Timestamp::UNIX_EPOCH));
        let machine = MachineSnapshot::from(machine);
        assert_eq!(pass.drain_of(&machine), expected);
    }

    #[rstest]
    #[case::the_vm_is_gone(Answer::Deleted(Ok(DeletedVm::default())), false)]
    #[case::there_was_none(Answer::Deleted(Err(Status::new(Code::NotFound, "no"))), false)]
    #[case::it_failed_again(Answer::Deleted(Err(Status::new(Code::Internal, "no"))), true)]
    #[case::there_is_none_yet(Answer::Status(Err(Status::new(Code::NotFound, "no"))), true)]
    fn a_pause_ends_when_its_call_succeeds(#[case] answer: Answer, #[case] lasts: bool) {
        let now = Timestamp::UNIX_EPOCH;
        let mut memory = Memory::new("uid".to_owned(), now, AskedBefore::Nothing);
        memory.pause = Some(Pause { purpose: Purpose::Deletion, until: now, inputs: Inputs::default() });
        memory.learn(answer, now);
        assert_eq!(memory.pause.is_some(), lasts);
    }
}
