//! The `mcm` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    machine_controller_manager::cli::run(std::env::args_os())
}
