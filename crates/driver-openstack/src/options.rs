//! The options of the process for `OpenStack`.

use machine_driver::{Code, Status};

/// The options of the driver. They come from the operator of the process, never from a class or a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenStackOptions {
    /// The URL of Keystone in place of the URLs in Secrets.
    pub endpoint: Option<String>,
    /// Whether `GetMachineStatus` is implemented.
    pub status: MachineStatus,
    /// The set of codes for failures.
    pub codes: ErrorCodes,
}

/// How `GetMachineStatus` is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MachineStatus {
    /// The driver asks the cloud.
    #[default]
    Asked,
    /// The answer is `Unimplemented`, as in the Go driver. The controllers call `CreateMachine` instead.
    Unimplemented,
}

/// The set of codes for failed calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorCodes {
    /// A code for each kind of failure.
    #[default]
    Fine,
    /// The codes of the Go driver. It has no codes for passing failures and for invalid classes.
    AsGo,
}

impl ErrorCodes {
    /// The failure with the code of this set.
    pub(crate) fn of(self, status: Status) -> Status {
        match (self, status.code) {
            (
                Self::AsGo,
                Code::InvalidArgument
                | Code::FailedPrecondition
                | Code::Aborted
                | Code::Unavailable
                | Code::DeadlineExceeded,
            ) => Status { code: Code::Internal, ..status },
            _ => status,
        }
    }
}
