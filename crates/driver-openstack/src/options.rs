//! What the process says of `OpenStack`.

use machine_driver::{Code, Status};

/// Settings of the driver. They come from whoever runs the process, never from a class or a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenStackOptions {
    /// The URL of Keystone in place of those of the Secrets.
    pub endpoint: Option<String>,
    /// Whether a machine's server can be asked for.
    pub status: MachineStatus,
    /// How fine codes are.
    pub codes: ErrorCodes,
}

/// How `GetMachineStatus` is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MachineStatus {
    /// By what the cloud says.
    #[default]
    Asked,
    /// Never, as by the original: every look at a new machine is a creation.
    Unimplemented,
}

/// How fine the codes of failed calls are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorCodes {
    /// A code for each kind of failure.
    #[default]
    Fine,
    /// Those of the Go driver, which knows neither failures that pass nor mistakes of a class.
    AsGo,
}

impl ErrorCodes {
    /// A failure of a cloud as the core hears of it.
    pub(crate) fn told(self, status: Status) -> Status {
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
