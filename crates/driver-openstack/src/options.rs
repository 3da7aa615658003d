//! The options of the process for `OpenStack`.

use machine_driver::ErrorCodes;

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
