//! `mcm serve`: the manager itself, webhooks and control loops in one process.
//!
//! Turns the flags into [`Settings`], starts logging and runs the manager with these settings.

pub mod args;
mod extension;
#[cfg(feature = "external")]
mod external;
mod limits;
mod problems;
mod simulation;
mod traces;
pub mod validate;

use args::ServeArgs;
use validate::HostInfo;

use super::{Failure, logging};
use crate::{DriverSet, manager};

/// File with the namespace of the pod.
const POD_NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// File with the host name on Linux.
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

/// Checks the flags and runs the manager until a signal stops it.
///
/// # Errors
/// [`Failure::Usage`] with every wrong flag; [`Failure::Run`] when the manager fails.
pub fn run(args: &ServeArgs, drivers: DriverSet) -> Result<(), Failure> {
    let settings = args.validate(&host()).map_err(|problems| Failure::Usage(problems.join("\n")))?;
    logging::start(&args.logging).map_err(Failure::run)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "starting");
    for warning in settings.warnings() {
        tracing::warn!(error = warning, "a flag has a consequence that may not be meant");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::run)?;
    let ended = runtime.block_on(manager::run(settings, drivers)).map_err(Failure::run);
    // Do not wait for blocking tasks that still run.
    runtime.shutdown_background();
    ended
}

/// The host's name and the pod's namespace, for which there is no flag.
fn host() -> HostInfo {
    let line = |path| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let is_given = |text: &String| !text.is_empty();
    HostInfo {
        host_name: line(HOST_NAME_FILE)
            .or_else(|| std::env::var("HOSTNAME").ok())
            .filter(is_given)
            .unwrap_or_else(|| "localhost".to_owned()),
        pod_namespace: std::env::var("POD_NAMESPACE").ok().or_else(|| line(POD_NAMESPACE_FILE)).filter(is_given),
    }
}
