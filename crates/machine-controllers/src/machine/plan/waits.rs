//! The waits of the machine controller by name: a plan that looks again later names its wait.
//!
//! Names, not texts: `machine::tests::waits` goes through all of them and checks that the machine's condition shows what it
//! waits for, since when, until when and what ends the wait (decisions.md 30). A new wait does not compile there before it
//! is reported.

use std::fmt;

use serde::Serialize;

macro_rules! waits {
    ($($(#[$doc:meta])* $name:ident = $text:literal),+ $(,)?) => {
        /// Why a machine is looked at again later.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        pub enum Wait { $($(#[$doc])* $name),+ }

        impl Wait {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The wait in words.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
        }
    };
}

waits! {
    /// A time limit, or another time at which the machine is looked at anyway.
    Deadline = "deadline",
    /// A driver call of the creation; reported when it takes long.
    SlowCall = "a driver call that takes long",
    /// The class gets its finalizer within moments.
    ClassFinalizer = "the finalizer of the class",
    /// The creation failed, or can't begin.
    Creation = "retry of the creation",
    /// The VM of an earlier attempt may still appear.
    UnknownOutcome = "whether the last creation made a VM",
    /// Other machines of its group are replaced first.
    Siblings = "waiting for siblings",
    /// The value of an annotation `preserve` is unknown.
    PreserveValue = "an annotation to be put right",
    /// The Node of a preserved machine could not be marked.
    PreservationMarks = "retry of the preservation",
    /// The drain of a preserved machine needs to know the pods.
    PreservationViews = "pods are not all known yet, for a preservation",
    /// A preserved machine is drained.
    PreservationDrain = "drain of a preserved machine",
    /// An attempt to drain it failed.
    PreservationDrainFailed = "retry of the drain of a preserved machine",
    /// The drain before an update in place needs to know the pods.
    UpdateViews = "pods are not all known yet, for an update",
    /// The Node is drained for an update in place.
    UpdateDrain = "drain for an update",
    /// An attempt to drain it failed.
    UpdateDrainFailed = "retry of the drain for an update",
    /// The drain of a deletion needs to know the pods.
    DrainViews = "pods are not all known yet",
    /// The Node of a deleted machine is drained.
    Drain = "drain",
    /// An attempt to drain it failed.
    DrainFailed = "retry of the drain",
    /// The owner of the Node is unclear.
    Contest = "whose the Node is can't be told",
    /// The attachments of the Node are not known yet.
    AttachmentViews = "attachments are not all known yet",
    /// Volumes were detached by force; the store shows this in a moment.
    Detachment = "attachments are deleted",
    /// Volumes could not be detached by force.
    DetachmentFailed = "detach",
    /// Class or Secrets are missing for the deletion of the VM.
    ClassOrSecret = "class or Secret missing",
    /// Another machine with the same VM deletes it.
    OtherMachine = "the end of another machine with the same VM",
    /// A creation may still have made the VM of a machine that is being deleted.
    UnknownVm = "whether a VM is left to delete",
    /// A driver call of the deletion failed.
    CallOfDeletion = "retry of the driver call",
    /// The same, in a pass before the pause has ended.
    PauseOfDeletion = "retry of the driver call, after its pause",
    /// A step on the Node, or the last write to the machine, was refused.
    NodeDeletion = "retry of the node's deletion",
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
