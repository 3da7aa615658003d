//! `mcm driver serve`: serves a driver of this program to a manager in another process.

use std::{path::PathBuf, sync::Arc};

use clap::{Args, Subcommand};
use driver_external::{SOCKET_VARIABLE, Served};
use machine_driver::CancellationToken;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    Failure,
    clouds::CloudArgs,
    logging::{self, LoggingArgs},
};
use crate::DriverSet;

/// Flags of `mcm driver`.
#[derive(Clone, Debug, Args)]
pub struct DriverArgs {
    /// The subcommand
    #[command(subcommand)]
    pub command: DriverCommand,
}

/// The subcommands of `mcm driver`.
#[derive(Clone, Debug, Subcommand)]
pub enum DriverCommand {
    /// Serve a driver on a Unix socket, to processes of the same user and of root
    Serve(DriverServeArgs),
}

/// Flags of `mcm driver serve`.
#[derive(Clone, Debug, Args)]
pub struct DriverServeArgs {
    /// Name of the driver
    #[arg(long, value_name = "NAME")]
    pub driver: String,
    /// Path of the Unix socket; its directory must not be accessible to other users, and is created if it is missing
    #[arg(long, value_name = "PATH", env = SOCKET_VARIABLE)]
    pub socket: PathBuf,
    /// The providerSpec of every class names the owner of its VMs, so that managers need no --cluster-name
    #[arg(long)]
    pub owner_in_class: bool,
    /// Clouds
    #[command(flatten)]
    pub clouds: CloudArgs,
    /// Logs
    #[command(flatten)]
    pub logging: LoggingArgs,
}

/// Runs the command.
///
/// # Errors
/// [`Failure::Usage`] when there is no such driver, or for an invalid flag; [`Failure::Run`] when it can't be served.
pub fn run(args: &DriverArgs, drivers: &DriverSet) -> Result<(), Failure> {
    let DriverCommand::Serve(args) = &args.command;
    let clouds = args.clouds.settings().map_err(|problems| Failure::Usage(problems.join("\n")))?;
    let all = drivers.to_serve(&clouds);
    let named = all.iter().find(|driver| driver.info().name == args.driver).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|driver| driver.info().name).collect();
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Failure::Usage(format!("--driver: this program has no driver {:?} to serve; there are: {known}", args.driver))
    })?;
    logging::start(&args.logging).map_err(Failure::run)?;
    let served = Served::new(Arc::clone(named));
    let served = if args.owner_in_class { served.reading_owners_in_classes() } else { served };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::run)?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let stop = CancellationToken::new();
        tokio::spawn({
            let stop = stop.clone();
            async move {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                stop.cancel();
            }
        });
        tracing::info!(provider = args.driver, path = %args.socket.display(), "serving");
        driver_external::serve(served, &args.socket, stop).await
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::logging::LogFormat;

    #[test]
    fn an_unknown_driver_is_refused_with_the_list_of_known_ones() {
        let serve = |drivers: DriverSet| {
            let args = DriverServeArgs {
                driver: "tape".to_owned(),
                socket: "/nowhere".into(),
                owner_in_class: false,
                clouds: CloudArgs {
                    provider_endpoint: Vec::new(),
                    workload_identity_dirs: Vec::new(),
                    #[cfg(feature = "local")]
                    local_pod_template: None,
                },
                logging: LoggingArgs { verbosity: 0, logging_format: LogFormat::Text },
            };
            run(&DriverArgs { command: DriverCommand::Serve(args) }, &drivers).unwrap_err().to_string()
        };
        assert!(serve(DriverSet::default()).ends_with("there are: none"));
        let folder = || example_driver::FolderDriver::new("/");
        assert!(serve(DriverSet::default().with(folder())).ends_with("there are: folder"));
        #[cfg(all(
            feature = "alicloud",
            feature = "aws",
            feature = "azure",
            feature = "gcp",
            feature = "local",
            feature = "openstack"
        ))]
        assert!(
            serve(DriverSet::built_in().with(folder()))
                .ends_with("there are: alicloud, aws, azure, gcp, openstack, local, folder")
        );
    }
}
