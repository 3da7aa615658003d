//! `mcm serve`: the manager itself, webhooks and control loops in one process.
//!
//! Here the flags become [`Settings`] and logging starts; running them is the manager's business, on the floor below.

pub mod args;
mod extension;
#[cfg(feature = "external")]
mod external;
mod limits;
mod problems;
mod simulation;
pub mod validate;

use args::ServeArgs;
use validate::Surroundings;

use super::{Failure, logging};
use crate::{DriverSet, manager};

/// Where a pod finds the namespace it runs in.
const POD_NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Where Linux tells the host name.
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

/// Checks the flags and runs the manager until it is told to stop.
///
/// # Errors
/// [`Failure::Usage`] with every wrong flag; [`Failure::Run`] when the process can't do anything useful.
pub fn run(args: &ServeArgs, drivers: DriverSet) -> Result<(), Failure> {
    let settings = args.validate(&surroundings()).map_err(|problems| Failure::Usage(problems.join("\n")))?;
    logging::start(&args.logging).map_err(Failure::run)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "starting");
    for warning in settings.warnings() {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::run)?;
    let ended = runtime.block_on(manager::run(settings, drivers)).map_err(Failure::run);
    // What still computes somewhere is not waited for.
    runtime.shutdown_background();
    ended
}

/// What the flags don't say.
fn surroundings() -> Surroundings {
    let line = |path| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let spoken = |text: &String| !text.is_empty();
    Surroundings {
        host_name: line(HOST_NAME_FILE)
            .or_else(|| std::env::var("HOSTNAME").ok())
            .filter(spoken)
            .unwrap_or_else(|| "localhost".to_owned()),
        pod_namespace: std::env::var("POD_NAMESPACE").ok().or_else(|| line(POD_NAMESPACE_FILE)).filter(spoken),
    }
}
