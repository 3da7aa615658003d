//! `wait OBJECT --for=running|gone|complete`: for scripts.
//!
//! It reads the stored objects again after each [`PAUSE`], without the views. Source: spec/packaging §5.2.

use std::{io::Write, time::Duration};

use clap::{Args, ValueEnum};
use tokio::time::Instant;

use super::{
    fleet::Fleet,
    output::{self, Health, OutputArgs},
    rollout::progress::{Progress, Verdict},
    session::{Session, SessionArgs, now},
    subject::{Named, NotFound, Subject, Wanted, find},
    why::why,
};
use crate::cli::{Failure, kubeconfig::run_interruptibly};
use controller_runtime::snapshot::Snapshot;
use kube_values::duration::GoDuration;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Goal {
    /// The machine runs, or each machine of the set
    Running,
    /// The object does not exist
    Gone,
    /// The deployment is rolled out
    Complete,
}

/// Flags of `wait`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Examples:\n  kubectl mcm wait machine/web-1-x7qzt --for=running\n  kubectl mcm wait node/ip-10-0-3-17 \
                        --for=gone --timeout 30m\n  kubectl mcm wait deployment/web --for=complete"
)]
pub struct WaitArgs {
    /// machine/NAME, node/NAME, set/NAME, deployment/NAME, vm/PROVIDER-ID, or a name alone
    #[arg(value_name = "OBJECT")]
    pub object: Wanted,
    /// What is waited for
    #[arg(long = "for", value_name = "GOAL")]
    pub goal: Goal,
    /// Give up after this time; 0 means after the first look
    #[arg(long, default_value = "10m", value_name = "DURATION")]
    pub timeout: GoDuration,
    /// The cluster
    #[command(flatten)]
    pub session: SessionArgs,
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The result of a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// The goal is reached.
    Reached,
    /// It is not. The text says what is the case.
    NotYet(String),
    /// It never will be.
    Never(String),
}

/// Waits.
///
/// # Errors
/// When the goal is not reached in time, or never will be.
pub fn run(args: &WaitArgs, out: &mut dyn Write) -> Result<(), Failure> {
    run_interruptibly(wait(args, out), "interrupted")
}

async fn wait(args: &WaitArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let session = Session::open(&args.session).await?;
    let began = Instant::now();
    loop {
        let fleet = Fleet::read(&session.client, Some(&session.namespace)).await?;
        let found = find(&args.object, &session.namespace, &fleet, &[]);
        match look(args.goal, &found, &fleet) {
            Look::Reached => {
                return match &found {
                    Ok(subject) => {
                        let answer = why(subject, &session.namespace, &fleet);
                        output::write(&answer, session.views.source(), &args.output, now(), out)
                    }
                    Err(_) => Ok(writeln!(out, "{} is gone", args.object)?),
                };
            }
            Look::Never(why) => return Err(Failure::Input(why)),
            Look::NotYet(why) if began.elapsed() >= args.timeout.to_std() => {
                return Err(Failure::Input(format!("timed out after {}: {why}", args.timeout)));
            }
            Look::NotYet(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Whether the goal is reached. Pure.
pub fn look(goal: Goal, found: &Result<Subject, NotFound>, fleet: &Fleet) -> Look {
    match (goal, found) {
        (_, Err(error @ NotFound::Ambiguous { .. })) => Look::Never(error.to_string()),
        (Goal::Gone, Err(NotFound::Nothing { .. })) => Look::Reached,
        (Goal::Running | Goal::Complete, Err(error)) => Look::NotYet(error.to_string()),
        (Goal::Complete, Ok(Subject::Deployment(deployment))) => {
            let progress = Progress::of(deployment, fleet);
            if progress.verdict == Verdict::Complete {
                Look::Reached
            } else {
                Look::NotYet(format!("{}{}", progress.summary(), progress.awaited()))
            }
        }
        (Goal::Running, Ok(Subject::Machine { machine, .. })) => {
            let state = fleet.state_of(machine);
            if state.health == Health::Well {
                Look::Reached
            } else {
                let wait = state.waits.first().map(|wait| format!(": {}", wait.message)).unwrap_or_default();
                Look::NotYet(format!("{} {}{wait}", state.name, state.words()))
            }
        }
        (Goal::Running, Ok(Subject::Set(set))) => {
            let owned = fleet.machines_of(set);
            let running = owned.iter().filter(|machine| fleet.state_of(machine).health == Health::Well).count();
            if running == owned.len() && running == usize::try_from(set.replicas()).unwrap_or_default() {
                Look::Reached
            } else {
                Look::NotYet(format!("{running} of {} machines of {} run", set.replicas(), set.name()))
            }
        }
        (Goal::Gone, Ok(subject)) => Look::NotYet(why(subject, "", fleet).summary),
        (Goal::Running, Ok(Subject::Deployment(_))) => {
            Look::Never("a deployment does not run; --for=complete waits for its rollout".to_owned())
        }
        (Goal::Running, Ok(Subject::Vm(_))) => Look::Never(format!(
            "a {} without a machine does not run; --for=gone waits for its end",
            Named::Vm.as_str()
        )),
        (Goal::Complete, Ok(_)) => {
            Look::Never("only the rollout of a deployment becomes complete; name a deployment".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::testing::fleet;
    use super::*;

    #[rstest]
    #[case::a_machine_runs("web-2-b", Goal::Running, "reached")]
    #[case::a_machine_is_drained(
        "web-1-a",
        Goal::Running,
        "web-1-a is being drained, to be deleted: waiting for Pod shop/db-0"
    )]
    #[case::a_node_runs("node/node-b", Goal::Running, "reached")]
    #[case::a_set_runs("set/web-2", Goal::Running, "reached")]
    #[case::a_set_has_too_many("set/web-1", Goal::Running, "0 of 0 machines of web-1 run")]
    #[case::nobody_runs("nobody", Goal::Running, "no \"nobody\" in namespace ns")]
    #[case::nobody_is_gone("nobody", Goal::Gone, "reached")]
    #[case::it_is_there("web-2-b", Goal::Gone, "web-2-b runs")]
    #[case::a_rollout_goes_on("web", Goal::Complete, "web is being rolled out (revision 2)")]
    #[case::a_deployment_does_not_run("web", Goal::Running, "never: a deployment does not run")]
    #[case::a_machine_is_not_rolled_out("web-2-b", Goal::Complete, "never: only the rollout")]
    fn a_look_knows_whether_the_goal_is_reached(#[case] object: &str, #[case] goal: Goal, #[case] expected: &str) {
        let fleet = fleet();
        let found = find(&object.parse().unwrap(), "ns", &fleet, &[]);
        let text = match look(goal, &found, &fleet) {
            Look::Reached => "reached".to_owned(),
            Look::NotYet(why) => why,
            Look::Never(why) => format!("never: {why}"),
        };
        assert!(text.starts_with(expected), "{text}");
    }
}
