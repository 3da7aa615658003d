//! When a machine is looked at again: the retry periods, and the reaction to every machine code.
//!
//! Source: spec/machine-controller §2.2, §4.3, §4.4, §6.3, §6.6; spec/providers §1.3. Every code is named, so that a new
//! code can't get the reaction of another code by accident.

use std::time::Duration;

use kube_values::duration::GoDuration;
use machine_driver::Code;
use serde::Serialize;

/// How often a failed write is tried again, in words.
pub fn tried_again(every: GoDuration) -> String {
    format!("tried again every {every}, or ever later as long as it is refused")
}

/// How soon to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum RetryPeriod {
    /// After a write was refused because another client's write came first.
    Conflict,
    /// After a transient failure.
    Short,
    /// After a failure that the driver does not call transient.
    Medium,
    /// When only a change from outside can help.
    Long,
    /// When the provider has no capacity; the length is a setting.
    ResourceExhausted,
}

impl RetryPeriod {
    /// The length of the period.
    pub const fn length(self, resource_exhausted: Duration) -> Duration {
        match self {
            Self::Conflict => Duration::from_millis(200),
            Self::Short => Duration::from_secs(5),
            Self::Medium => Duration::from_secs(3 * 60),
            Self::Long => Duration::from_secs(10 * 60),
            Self::ResourceExhausted => resource_exhausted,
        }
    }
}

/// Whether the driver's memory (`status.lastKnownState`) stays when a failed call returns no new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum DriverMemory {
    /// It stays.
    Keep,
    /// It is cleared.
    Clear,
}

/// The reaction to a failed call of the creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CreationReaction {
    /// When to try again.
    pub retry: RetryPeriod,
    /// Whether the driver's memory stays.
    pub memory: DriverMemory,
}

/// The reaction to a failed `GetMachineStatus` or `CreateMachine` on the way to a VM.
pub const fn after_failed_creation(code: Code) -> CreationReaction {
    let (retry, memory) = match code {
        Code::ResourceExhausted => (RetryPeriod::ResourceExhausted, DriverMemory::Keep),
        Code::Unknown | Code::DeadlineExceeded | Code::Aborted | Code::Unavailable => {
            (RetryPeriod::Short, DriverMemory::Keep)
        }
        Code::OK
        | Code::Canceled
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated
        | Code::Uninitialized => (RetryPeriod::Medium, DriverMemory::Clear),
    };
    CreationReaction { retry, memory }
}

/// The reaction to a failed `GetMachineStatus` on the way to a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum StatusReaction {
    /// Go on to the drain.
    MoveOn,
    /// Ask again.
    AskAgain(RetryPeriod),
}

/// The reaction of a deletion to a failed `GetMachineStatus`.
pub const fn after_failed_status_in_deletion(code: Code) -> StatusReaction {
    match code {
        Code::OK | Code::NotFound | Code::Unimplemented | Code::Uninitialized => StatusReaction::MoveOn,
        Code::Unknown | Code::DeadlineExceeded | Code::Aborted | Code::Unavailable => {
            StatusReaction::AskAgain(RetryPeriod::Short)
        }
        Code::Canceled
        | Code::InvalidArgument
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated => StatusReaction::AskAgain(RetryPeriod::Medium),
    }
}

/// The reaction to a failed `DeleteMachine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum DeleteReaction {
    /// There is nothing left to delete.
    Gone,
    /// The failure is transient: try again soon.
    SoonAgain,
    /// Something has to be corrected first: try again later.
    LaterAgain,
}

/// The reaction to a failed `DeleteMachine`.
pub const fn after_failed_deletion(code: Code) -> DeleteReaction {
    match code {
        Code::OK | Code::NotFound => DeleteReaction::Gone,
        Code::Unknown | Code::DeadlineExceeded | Code::Aborted | Code::Unavailable => DeleteReaction::SoonAgain,
        Code::Canceled
        | Code::InvalidArgument
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated
        | Code::Uninitialized => DeleteReaction::LaterAgain,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::mc_063_no_capacity_waits_the_long_period(
        Code::ResourceExhausted,
        RetryPeriod::ResourceExhausted,
        DriverMemory::Keep
    )]
    #[case::mc_065_a_busy_cloud_is_asked_again_soon(Code::Unavailable, RetryPeriod::Short, DriverMemory::Keep)]
    #[case::a_lost_reply_is_asked_again_soon(Code::DeadlineExceeded, RetryPeriod::Short, DriverMemory::Keep)]
    #[case::mc_066_a_wrong_class_is_retried_rarely(Code::InvalidArgument, RetryPeriod::Medium, DriverMemory::Clear)]
    #[case::bad_credentials_are_retried_rarely(Code::Unauthenticated, RetryPeriod::Medium, DriverMemory::Clear)]
    fn after_a_failed_creation(#[case] code: Code, #[case] retry: RetryPeriod, #[case] memory: DriverMemory) {
        assert_eq!(after_failed_creation(code), CreationReaction { retry, memory });
    }

    #[rstest]
    #[case::mc_176_not_found_is_gone(Code::NotFound, DeleteReaction::Gone)]
    #[case::mc_177_unavailable_is_tried_soon(Code::Unavailable, DeleteReaction::SoonAgain)]
    #[case::mc_178_a_precondition_is_waited_for(Code::FailedPrecondition, DeleteReaction::LaterAgain)]
    fn after_a_failed_deletion_of_the_vm(#[case] code: Code, #[case] reaction: DeleteReaction) {
        assert_eq!(after_failed_deletion(code), reaction);
    }

    #[rstest]
    #[case::mc_162_not_found_moves_on(Code::NotFound, StatusReaction::MoveOn)]
    #[case::unimplemented_moves_on(Code::Unimplemented, StatusReaction::MoveOn)]
    #[case::an_uninitialised_vm_moves_on(Code::Uninitialized, StatusReaction::MoveOn)]
    #[case::mc_163_bad_permissions_stay(Code::PermissionDenied, StatusReaction::AskAgain(RetryPeriod::Medium))]
    #[case::unavailable_asks_soon(Code::Unavailable, StatusReaction::AskAgain(RetryPeriod::Short))]
    fn after_a_failed_status_of_a_deletion(#[case] code: Code, #[case] reaction: StatusReaction) {
        assert_eq!(after_failed_status_in_deletion(code), reaction);
    }
}
