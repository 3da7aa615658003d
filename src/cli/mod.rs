//! The subcommands. Plain functions over text and values do their work; only `main.rs` deals with the process.
//!
//! Exit codes: 0 success, 1 bad input or a failed run, 2 wrong usage. Output for programs goes to standard output, everything else
//! to standard error.

pub mod answer;
pub mod called_as;
pub mod clouds;
pub mod cluster_objects;
pub mod completion;
pub mod convert;
pub mod dev;
pub mod doctor;
pub mod documents;
#[cfg(feature = "external")]
pub mod driver;
pub mod go_flags;
pub mod kubeconfig;
pub mod lease_watch;
pub mod logging;
pub mod manifests;
pub mod migrate_classes;
pub mod migrate_storage;
pub mod offline;
pub mod output;
pub mod plugin;
pub mod rbac;
pub mod reference;
pub mod rollback;
pub mod serve;
pub mod simulate;
pub mod support_bundle;
pub mod uninstall;
pub mod validate;
pub mod version;
pub mod webhook_scope;

use std::{
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use kube_values::syntax::dns1123_subdomain;

use crate::DriverSet;

/// Declarative virtual machines for Kubernetes.
#[derive(Clone, Debug, Parser)]
#[command(name = "mcm", version, about, arg_required_else_help = true)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run the manager: webhooks, conversion and control loops
    #[command(args_override_self = true)]
    Serve(Box<serve::args::ServeArgs>),
    /// Print the manifests that a cluster needs
    Manifests(manifests::ManifestsArgs),
    /// Check manifests with the rules of admission, without a cluster
    Validate(offline::ValidateArgs),
    /// Convert manifests between versions
    Convert(offline::ConvertArgs),
    /// Store all objects of a cluster in another version
    MigrateStorage(migrate_storage::MigrateStorageArgs),
    /// Make `MachineClass` objects of classes of the old kinds, such as `AWSMachineClass`, and let machines, sets and deployments name them
    MigrateClasses(migrate_classes::MigrateClassesArgs),
    /// Check the objects that connect a cluster with the manager, and report what is wrong and what to do
    Doctor(doctor::DoctorArgs),
    /// Write an archive with what is needed to understand a problem, without secrets; nothing is sent anywhere
    SupportBundle(support_bundle::SupportBundleArgs),
    /// Remove webhooks, policies, conversion, finalizers and certificate from a cluster, and list what remains; asks for confirmation
    Uninstall(uninstall::UninstallArgs),
    /// Restore the template of an earlier revision of a deployment
    Rollback(rollback::RollbackArgs),
    /// Run random histories of a simulated control plane and check the rules that must always hold
    Simulate(simulate::SimulateArgs),
    /// Run a cluster in one process: API server, manager and virtual cloud
    Dev(dev::DevArgs),
    /// Serve a driver of this program to a manager in another process
    #[cfg(feature = "external")]
    Driver(driver::DriverArgs),
    /// Print what the program knows about itself: flags, metrics, fields, names, alerts, codes, old kinds of classes; or write manual pages
    Reference(reference::ReferenceArgs),
    /// Print version and platform
    Version(version::VersionArgs),
    /// Print a completion script, or write the executable that kubectl asks for completions of its plugin
    Completion(completion::CompletionArgs),
    /// A command for people who look after machines.
    #[command(flatten)]
    Plugin(plugin::PluginCommand),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// The input is invalid. The text has the fault, its place and the advice.
    #[error("{0}")]
    Input(String),
    /// The input is invalid, and the command's own output has reported it.
    #[error("")]
    Reported,
    /// The run failed.
    #[error("{0:#}")]
    Run(anyhow::Error),
}

impl Failure {
    /// A failed run, with its cause.
    pub fn run(cause: impl Into<anyhow::Error>) -> Self {
        Self::Run(cause.into())
    }

    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Input(_) | Self::Reported | Self::Run(_) => ExitCode::FAILURE,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(cause: io::Error) -> Self {
        Self::run(cause)
    }
}

/// Runs the command of a command line with the drivers of the program. The first argument is the name of the program.
pub fn run(arguments: impl IntoIterator<Item = OsString>, drivers: DriverSet) -> ExitCode {
    let cli = match parsed(normalised(called_as::completed(arguments.into_iter().collect()))) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are such errors too; clap chooses stream and exit code for each. A closed stream is not a failure,
            // because it has no reader.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let mut out = io::stdout().lock();
    match cli.command.run(drivers, &mut out).and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Run(cause)) if is_closed_pipe(&cause) => ExitCode::SUCCESS,
        Err(failure) => {
            for line in failure.to_string().lines() {
                eprintln!("mcm: {}", output::printable(line));
            }
            failure.exit_code()
        }
    }
}

/// The command line, read as one of kubectl's plugin if the program was called by that name.
fn parsed(arguments: Vec<OsString>) -> Result<Cli, clap::Error> {
    let is_plugin = called_as::is_plugin(&arguments);
    let mut command = if is_plugin { plugin::as_plugin(Cli::command()) } else { Cli::command() };
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

impl Command {
    fn run(&self, drivers: DriverSet, out: &mut dyn Write) -> Result<(), Failure> {
        match self {
            Self::Serve(args) => serve::run(args, drivers),
            Self::Manifests(args) => manifests::run(args, out),
            Self::Validate(args) => args.run(&drivers, out),
            Self::Convert(args) => args.run(out),
            Self::MigrateStorage(args) => migrate_storage::run(args, out),
            Self::MigrateClasses(args) => migrate_classes::run(args, &drivers, out),
            Self::Doctor(args) => doctor::run(args, &drivers, out),
            Self::SupportBundle(args) => support_bundle::run(args, &drivers, out),
            Self::Uninstall(args) => uninstall::run(args, out),
            Self::Rollback(args) => rollback::run(args, out),
            Self::Simulate(args) => simulate::run(args, out),
            Self::Dev(args) => dev::run(args, &drivers, &mut io::stdout()),
            #[cfg(feature = "external")]
            Self::Driver(args) => driver::run(args, &drivers),
            Self::Reference(args) => reference::run(args, out),
            Self::Version(args) => version::run(*args, out),
            Self::Completion(args) => completion::run(args, out),
            Self::Plugin(command) => command.run(out),
        }
    }
}

/// The command line with Go-style flags of `serve` rewritten for clap. Other commands do not exist in Go and need no rewriting.
pub(crate) fn normalised(arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_none_or(|command| command != "serve") {
        return arguments;
    }
    let cli = Cli::command();
    let flags: Vec<&str> = cli
        .find_subcommand("serve")
        .map(|serve| serve.get_arguments().filter_map(clap::Arg::get_long).collect())
        .unwrap_or_default();
    go_flags::normalise(arguments, |name| flags.contains(&name))
}

/// The name of a namespace, which is a DNS label (RFC 1123).
///
/// # Errors
/// The fault of the name, as a text.
pub fn namespace_name(text: &str) -> Result<String, String> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if text.is_empty() {
        return Err("must not be empty".to_owned());
    }
    let is_name = text.len() <= 63 && !text.starts_with('-') && !text.ends_with('-') && text.bytes().all(is_inner);
    if is_name {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is no name of a namespace: at most 63 lower case letters, digits and inner dashes"))
    }
}

/// The name of an object, as an API server accepts it. Any other text could change the path of a request.
///
/// # Errors
/// The fault of the name, as a text.
pub fn object_name(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("must not be empty".to_owned());
    }
    match dns1123_subdomain(text).into_iter().next() {
        None => Ok(text.to_owned()),
        Some(objection) => Err(format!("{text:?} is no name of an object: {objection}")),
    }
}

/// Whether the reader has closed our output, as `| head` does.
fn is_closed_pipe(cause: &anyhow::Error) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_declared_flags_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_name_of_a_namespace_is_a_dns_label() {
        let long = "a".repeat(63);
        assert!(["a", "shoot--garden--x1", "0", long.as_str()].iter().all(|name| namespace_name(name).is_ok()));
        let wrong = ["", "Bad_NS", "a: b", "-a", "a-", "a.b", &format!("{long}a")];
        assert!(wrong.iter().all(|name| namespace_name(name).is_err()));
    }

    #[test]
    fn the_name_of_an_object_is_a_dns_subdomain() {
        assert!(["ip", "a.b-c"].iter().all(|name| object_name(name).is_ok()));
        assert!(["", "ip ", "a/b", "UP", &"x".repeat(254)].iter().all(|name| object_name(name).is_err()));
    }

    #[test]
    fn wrong_usage_has_its_own_exit_code() {
        let line = ["mcm", "serve", "--no-such-flag"].map(OsString::from);
        assert_eq!(run(line, DriverSet::built_in()), ExitCode::from(2));
    }
}
