//! The stage of a deletion, as it is stored in the description of the last operation.
//!
//! Parsed only here. Only the last marker of the text counts: the text of a provider stands before it, and may contain
//! anything (MC-179). Source: spec/machine-controller §1.8, §6.10.

use crate::snapshots::MachineSnapshot;
use machine_api::{
    names::{WAS_FAILED_TEXT, stage_text},
    v1alpha1::MachinePhase,
};
use serde::Serialize;

/// The stages of a deletion, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum DeletionStage {
    /// The driver is asked which Node the VM has.
    GetVmStatus,
    /// The Node is drained.
    Drain,
    /// Volumes are detached by force.
    DeleteVolumeAttachments,
    /// The VM is deleted.
    DeleteVm,
    /// The Node is deleted.
    DeleteNode,
    /// Our finalizer is removed.
    RemoveFinalizer,
}

impl DeletionStage {
    /// All stages in order.
    pub const ALL: [Self; 6] = [
        Self::GetVmStatus,
        Self::Drain,
        Self::DeleteVolumeAttachments,
        Self::DeleteVm,
        Self::DeleteNode,
        Self::RemoveFinalizer,
    ];

    /// The marker of the stage inside the description.
    pub const fn marker(self) -> &'static str {
        match self {
            Self::GetVmStatus => stage_text::GET_VM_STATUS,
            Self::Drain => stage_text::DRAIN,
            Self::DeleteVolumeAttachments => stage_text::DELETE_VOLUME_ATTACHMENTS,
            Self::DeleteVm => stage_text::DELETE_VM,
            Self::DeleteNode => stage_text::DELETE_NODE,
            Self::RemoveFinalizer => stage_text::REMOVE_FINALIZER,
        }
    }

    /// The stage whose marker comes last in this text.
    pub fn of_description(text: &str) -> Option<Self> {
        let places = Self::ALL.into_iter().filter_map(|stage| text.rfind(stage.marker()).map(|place| (place, stage)));
        places.max().map(|(_, stage)| stage)
    }

    /// The stage of a machine; `None` unless this controller made it Terminating.
    pub fn of(machine: &MachineSnapshot) -> Option<Self> {
        if *machine.phase() != MachinePhase::Terminating {
            return None;
        }
        Self::of_description(&machine.last_operation().description)
    }
}

/// Whether the machine had failed before it was deleted (M-06).
pub fn was_failed(machine: &MachineSnapshot) -> bool {
    let status = machine.status();
    status.current_status.phase == MachinePhase::Failed || status.last_operation.description.contains(WAS_FAILED_TEXT)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::the_first_stage(
        "Set machine status to termination. Now, getting VM Status",
        Some(DeletionStage::GetVmStatus)
    )]
    #[case::after_a_successful_drain("Drain successful. Initiate VM deletion", Some(DeletionStage::DeleteVm))]
    #[case::mc_179_a_marker_inside_an_error(
        "VM deletion failed due to - Initiate node drain. Aborting operation. Initiate VM deletion",
        Some(DeletionStage::DeleteVm)
    )]
    #[case::the_original_after_a_failed_forced_drain(
        "Drain failed due to - x. However, since it's a force deletion shall continue deletion of VM. Delete Volume Attachments",
        Some(DeletionStage::DeleteVolumeAttachments)
    )]
    #[case::mc_185_a_text_of_somebody_else("gone fishing", None)]
    fn the_last_marker_decides_the_stage(#[case] text: &str, #[case] stage: Option<DeletionStage>) {
        assert_eq!(DeletionStage::of_description(text), stage);
    }
}
