//! The commands for people who look after machines: `why`, `tree`, `rollout`, `drain plan`, `replace`, `preserve`, `top`, `wait`.
//!
//! They are commands of `mcm`. Called as `kubectl-mcm` the same program is a plugin of kubectl, whose help has these commands first
//! ([`as_plugin`]). Each command observes the cluster ([`session`], [`fleet`], [`views`]), decides in pure functions over these values,
//! and prints one typed answer as text or JSON ([`output`]). Rules of controllers are not repeated here: sentences about a machine come
//! from its outlook, or from its stored condition. Source: spec/packaging §5.

pub mod complete;
pub mod drain;
pub mod drain_objects;
pub mod effects;
pub mod events;
pub mod fleet;
pub mod follow;
pub mod notices;
pub mod output;
pub mod preserve;
pub mod replace;
pub mod rollout;
pub mod session;
pub mod state;
pub mod subject;
pub mod top;
pub mod tree;
pub mod views;
pub mod wait;
pub mod why;
pub mod write;

#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod testing;

use std::io::Write;

use clap::Subcommand;

use self::{
    fleet::Fleet,
    session::Session,
    subject::{Subject, Wanted, find},
};
use super::Failure;
use machine_controllers::snapshots::MachineSnapshot;

/// The commands.
#[derive(Clone, Debug, Subcommand)]
pub enum PluginCommand {
    /// Show why a machine, Node, set, deployment or VM is in its state, what it waits for, and what comes next
    Why(why::WhyArgs),
    /// Show deployments with their sets, machines, Nodes and VMs
    Tree(tree::TreeArgs),
    /// Follow, list, pause, resume, restart, undo and predict rollouts of deployments
    #[command(subcommand)]
    Rollout(rollout::RolloutCommand),
    /// Predict drains
    #[command(subcommand)]
    Drain(drain::DrainCommand),
    /// Delete machines, so that their sets make others; asks for confirmation
    Replace(replace::ReplaceArgs),
    /// Keep a machine with its VM and Node, now or when it fails; asks for confirmation
    Preserve(preserve::PreserveArgs),
    /// Show counts, deployments, machines that are not well, and warnings; on a terminal they change as the cluster does
    Top(top::TopArgs),
    /// Wait until an object runs, is gone, or is rolled out
    Wait(wait::WaitArgs),
    /// Print what can follow on a command line of the plugin, for kubectl's completion
    #[command(name = complete::COMMAND, hide = true)]
    Complete(complete::CompleteArgs),
}

impl PluginCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Failure::Input`] for an object that does not exist, a refusal, or a time that is over; [`Failure::Run`] when a request fails.
    pub fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        match self {
            Self::Why(args) => why::run(args, out),
            Self::Tree(args) => tree::run(args, out),
            Self::Rollout(command) => rollout::run(command, out),
            Self::Drain(command) => drain::run(command, out),
            Self::Replace(args) => replace::run(args, out),
            Self::Preserve(args) => preserve::run(args, out),
            Self::Top(args) => top::run(args, out),
            Self::Wait(args) => wait::run(args, out),
            Self::Complete(args) => complete::run(args, out),
        }
    }
}

/// The command line of `mcm` as that of the plugin: its usage is `kubectl mcm …`, and the commands of this module come first.
pub fn as_plugin(command: clap::Command) -> clap::Command {
    let own: Vec<String> = PluginCommand::augment_subcommands(clap::Command::new("plugin"))
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect();
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let others = names.iter().filter(|name| !own.contains(name));
    let ordered: Vec<&String> = own.iter().chain(others).collect();
    let mut command = command.bin_name("kubectl mcm");
    for (place, name) in ordered.into_iter().enumerate() {
        command = command.mut_subcommand(name, |known| known.display_order(place));
    }
    command
}

/// The message that a deployment does not exist.
fn no_deployment(namespace: &str, name: &str) -> Failure {
    Failure::Input(format!("no deployment {name:?} in namespace {namespace}; kubectl mcm tree shows what is there"))
}

/// The machine that a user means, with the stored objects of its namespace.
async fn machine_named(session: &Session, wanted: &Wanted) -> Result<(MachineSnapshot, Fleet), Failure> {
    let fleet = Fleet::read(&session.client, Some(&session.namespace)).await?;
    let found = find(wanted, &session.namespace, &fleet, &[]).map_err(|error| Failure::Input(error.to_string()))?;
    match found {
        Subject::Machine { machine, .. } => Ok((machine, fleet)),
        Subject::Set(_) | Subject::Deployment(_) | Subject::Vm(_) => {
            Err(Failure::Input(format!("{wanted} is no machine; name a machine, its Node or its VM")))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn pk_080_the_plugin_has_its_own_usage_and_its_commands_first() {
        let mut command = as_plugin(Cli::command());
        let help = command.render_help().to_string();
        assert!(help.contains("Usage: kubectl mcm <COMMAND>"), "{help}");
        let place = |word: &str| help.find(&format!("\n  {word} ")).unwrap_or_else(|| panic!("{word} in {help}"));
        let places =
            ["why", "tree", "rollout", "drain", "replace", "preserve", "top", "wait", "serve", "version"].map(place);
        assert!(places.is_sorted(), "{help}");
        as_plugin(Cli::command()).debug_assert();
    }

    #[test]
    fn as_mcm_the_commands_of_the_manager_come_first() {
        let help = Cli::command().render_help().to_string();
        let place = |word: &str| help.find(&format!("\n  {word} ")).unwrap_or_else(|| panic!("{word} in {help}"));
        assert!(place("serve") < place("why"), "{help}");
    }
}
