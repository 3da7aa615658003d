//! Kubernetes machine controller manager: the library behind the `mcm` binary.
//!
//! A module imports only modules below it. The test module `layers` checks this order, and `docs/architecture.md` describes the modules.

#![forbid(unsafe_code)]

pub mod cli;
pub mod drivers;
pub mod extension;
#[cfg(test)]
mod layers;
pub mod manager;
pub mod observability;
pub mod server;
pub mod settings;

use std::process::ExitCode;

pub use drivers::DriverSet;

/// Runs the command line of this process with these drivers. The `main` of a binary with its own driver needs only this call:
///
/// ```no_run
/// use machine_controller_manager::{DriverSet, run_with};
///
/// fn main() -> std::process::ExitCode {
///     run_with(DriverSet::built_in().with(example_driver::FolderDriver::new("/var/lib/vms")))
/// }
/// ```
pub fn run_with(drivers: DriverSet) -> ExitCode {
    cli::run(std::env::args_os(), drivers)
}
