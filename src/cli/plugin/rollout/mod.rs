//! `rollout status|history|pause|resume|restart|undo|plan`: rollouts of deployments, with the words of `kubectl rollout`.
//!
//! This file has the flags and the requests. [`progress`], [`change`], [`history`] and [`plan`] decide and are pure; [`status`] follows.
//! Source: spec/packaging §5.2.

pub mod change;
pub mod history;
pub mod plan;
pub mod progress;
pub mod status;

use std::io::Write;

use clap::{Args, Subcommand};

use self::history::History;
use super::{
    fleet::{Fleet, Unread, objects},
    follow::Selection,
    no_deployment,
    output::{self, OutputArgs, Source},
    session::{Session, SessionArgs, now},
    write::{Decision, WriteArgs, carry_out},
};
use crate::cli::{Failure, kubeconfig::run_interruptibly, object_name};
use controller_runtime::key::ObjectKey;
use machine_controllers::{
    deployment::rollback::RollbackTarget,
    snapshots::{DeploymentSnapshot, SetSnapshot},
};

/// The subcommands of `rollout`.
#[derive(Clone, Debug, Subcommand)]
pub enum RolloutCommand {
    /// Follow a rollout until it is complete, and name the machines that it waits for
    Status(status::StatusArgs),
    /// List the revisions of a deployment, or show what a revision changed
    History(HistoryArgs),
    /// Stop the rollouts of a deployment until it is resumed
    Pause(ChangeArgs),
    /// Let the rollouts of a paused deployment go on
    Resume(ChangeArgs),
    /// Replace each machine of a deployment, as its strategy allows
    Restart(ChangeArgs),
    /// Restore the template of an earlier revision, as mcm rollback does
    Undo(UndoArgs),
    /// Predict the rest of a rollout, or the rollout of a change
    Plan(plan::PlanArgs),
}

/// A deployment in a cluster.
#[derive(Clone, Debug, Args)]
pub struct DeploymentArgs {
    /// Name of the deployment
    #[arg(value_name = "DEPLOYMENT", value_parser = deployment_name)]
    pub deployment: String,
    /// The cluster
    #[command(flatten)]
    pub session: SessionArgs,
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `rollout history`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  kubectl mcm rollout history web\n  kubectl mcm rollout history web --revision 2")]
pub struct HistoryArgs {
    /// The deployment
    #[command(flatten)]
    pub of: DeploymentArgs,
    /// Show what this revision changed
    #[arg(long, value_name = "N")]
    pub revision: Option<i64>,
}

/// Flags of commands that change a deployment.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Examples:\n  kubectl mcm rollout pause web --yes\n  kubectl mcm rollout resume web --yes\n  kubectl mcm \
                        rollout restart web --dry-run=server"
)]
pub struct ChangeArgs {
    /// The deployment
    #[command(flatten)]
    pub of: DeploymentArgs,
    /// The write
    #[command(flatten)]
    pub write: WriteArgs,
}

/// Flags of `rollout undo`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Examples:\n  kubectl mcm rollout undo web --dry-run=server\n  kubectl mcm rollout undo web --to-revision 1 --yes"
)]
pub struct UndoArgs {
    /// The deployment
    #[command(flatten)]
    pub of: DeploymentArgs,
    /// The revision to restore; 0 means the revision before the present one
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    pub to_revision: i64,
    /// The write
    #[command(flatten)]
    pub write: WriteArgs,
}

/// The name of a deployment, alone or as `deployment/NAME`.
///
/// # Errors
/// The fault of the name.
pub fn deployment_name(text: &str) -> Result<String, String> {
    use super::subject::{Named, Wanted};
    match text.parse::<Wanted>()? {
        Wanted { kind: None | Some(Named::Deployment), name } => object_name(&name),
        Wanted { kind: Some(other), .. } => Err(format!("a {} has no rollouts; name a deployment", other.as_str())),
    }
}

/// Runs a subcommand.
///
/// # Errors
/// When the deployment does not exist, when a change is refused or not confirmed, or when a request fails.
pub fn run(command: &RolloutCommand, out: &mut dyn Write) -> Result<(), Failure> {
    let work = async {
        match command {
            RolloutCommand::Status(args) => status::follow(args, out).await,
            RolloutCommand::Plan(args) => plan::show(args, out).await,
            RolloutCommand::History(args) => show_history(args, out).await,
            RolloutCommand::Pause(args) => change(args, out, |deployment| Ok(change::pause(deployment))).await,
            RolloutCommand::Resume(args) => change(args, out, |deployment| Ok(change::resume(deployment))).await,
            RolloutCommand::Restart(args) => {
                change(args, out, |deployment| {
                    change::restart(deployment, now()).map_err(|refused| Failure::Input(refused.to_string()))
                })
                .await
            }
            RolloutCommand::Undo(args) => undo(args, out).await,
        }
    };
    run_interruptibly(work, "interrupted; kubectl mcm rollout status shows what was changed")
}

/// The deployment of a command.
async fn deployment_named(session: &Session, name: &str) -> Result<DeploymentSnapshot, Failure> {
    let read = objects(&session.client).get(&ObjectKey::new(session.namespace.clone(), name)).await;
    let read = read.map_err(|error| Unread { what: format!("get machinedeployment {name}"), error })?;
    read.ok_or_else(|| no_deployment(&session.namespace, name))
}

/// The deployment of a command, with its sets and machines.
async fn stored(session: &Session, name: &str) -> Result<(DeploymentSnapshot, Fleet), Failure> {
    let deployment = deployment_named(session, name).await?;
    let selection = Selection::of_deployment(&deployment);
    let fleet = Fleet::selected(&session.client, &session.namespace, &selection).await?;
    Ok((deployment, fleet))
}

async fn show_history(args: &HistoryArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let session = Session::open(&args.of.session).await?;
    let (deployment, fleet) = stored(&session, &args.of.deployment).await?;
    let mut answer = History::of(&deployment, &fleet);
    if let Some(revision) = args.revision {
        let known: Vec<String> = answer.revisions.iter().map(|one| one.revision.to_string()).collect();
        let diff = history::diff(&deployment, &fleet, revision).ok_or_else(|| {
            let (name, known) = (&answer.name, known.join(", "));
            Failure::Input(format!("deployment {name} has no revision {revision}; there are: {known}"))
        })?;
        answer.diff = Some(diff);
    }
    output::write(&answer, Source::Stored, &args.of.output, now(), out)
}

async fn change(
    args: &ChangeArgs,
    out: &mut dyn Write,
    decide: impl FnOnce(&DeploymentSnapshot) -> Result<Decision, Failure>,
) -> Result<(), Failure> {
    let session = Session::open(&args.of.session).await?;
    let deployment = deployment_named(&session, &args.of.deployment).await?;
    change::refuse_deleting(&deployment).map_err(|refused| Failure::Input(refused.to_string()))?;
    carry_out(&session, decide(&deployment)?, args.write, &args.of.output, out).await
}

async fn undo(args: &UndoArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let session = Session::open(&args.of.session).await?;
    let (deployment, fleet) = stored(&session, &args.of.deployment).await?;
    change::refuse_deleting(&deployment).map_err(|refused| Failure::Input(refused.to_string()))?;
    let sets: Vec<&SetSnapshot> = fleet.sets_of(&deployment);
    let decision = change::undo(&deployment, &sets, RollbackTarget::from(args.to_revision));
    let decision = decision.map_err(|refused| Failure::Input(refused.to_string()))?;
    carry_out(&session, decision, args.write, &args.of.output, out).await
}
