//! The `mcm` binary.

use std::process::ExitCode;

/// A review or a watch event is a hundred small allocations; this allocator needs a third of the system's time for them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    machine_controller_manager::cli::run(std::env::args_os())
}
