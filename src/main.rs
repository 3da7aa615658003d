//! The `mcm` binary.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use machine_controller_manager::{DriverSet, run_with};

/// A history or a watch event is a hundred small allocations, for which the system's allocator takes longer: a history takes
/// 18 % more. Without huge pages, which would cost 10 MiB for nothing.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    run_with(DriverSet::built_in())
}
