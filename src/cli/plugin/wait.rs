//! `wait OBJECT --for=running|gone|complete`: for scripts.
//!
//! It follows the stored objects that decide, without the views. Only the provider knows whether a VM without a machine is gone, and the
//! views ask it. Source: spec/packaging §5.2.

use std::{io::Write, time::Duration};

use clap::{Args, ValueEnum};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use super::{
    fleet::Fleet,
    follow::{Following, Selection},
    output::{self, Answer, Health, OutputArgs, Source, Style},
    rollout::progress::{Progress, Verdict},
    session::{Session, SessionArgs, now},
    state::{MachineState, parts},
    subject::{Named, NotFound, Subject, Wanted, find},
    views::Provider,
    why::why,
};
use crate::cli::{Failure, kubeconfig::run_interruptibly};
use controller_runtime::snapshot::Snapshot;
use kube_values::duration::GoDuration;

/// The least time between two looks.
const PAUSE: Duration = Duration::from_millis(200);
/// The pause between two questions to the provider, whose answers the manager keeps for a while.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
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

/// The answer: the goal is reached.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Waited {
    /// The goal.
    pub goal: Goal,
    /// The namespace.
    pub namespace: String,
    /// The kind of the object: vm, node, machine, set or deployment. Absent for a name alone that no object has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_kind: Option<&'static str>,
    /// The name of the object.
    pub name: String,
    /// What is the case.
    pub summary: String,
}

impl Answer for Waited {
    const KIND: &'static str = "Wait";

    fn text(&self, _source: Source, _style: &Style) -> String {
        format!("{}\n", self.summary)
    }

    fn names(&self) -> Vec<String> {
        let kind = self.object_kind.map(|kind| format!("{kind}/")).unwrap_or_default();
        vec![format!("{kind}{}", self.name)]
    }
}

/// The result of a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// The goal is reached. The text says what is the case.
    Reached(String),
    /// It is not. The text says what is the case.
    NotYet(String),
    /// It never will be.
    Never(String),
}

/// What is known about the object of the command.
#[derive(Debug)]
pub enum Seen {
    /// It exists, or is ambiguous.
    Found(Result<Subject, NotFound>),
    /// Another object has its name now.
    Replaced,
    /// It is a VM that no machine has; what the provider says.
    Vm(Provider),
    /// The same without the views. A machine had the VM before, and machines go after their VMs.
    VmOfEarlierMachine,
}

/// Waits.
///
/// # Errors
/// When the goal is not reached in time, or never will be.
pub fn run(args: &WaitArgs, out: &mut dyn Write) -> Result<(), Failure> {
    run_interruptibly(wait(args, out), "interrupted")
}

async fn wait(args: &WaitArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let (session, began) = (Session::open(&args.session).await?, Instant::now());
    let limit = args.timeout.to_std();
    let namespace = session.namespace.as_str();
    // A name alone can mean any object, so the first look reads the whole namespace.
    let fleet = Fleet::read(&session.client, Some(namespace)).await?;
    let first = find(&args.object, namespace, &fleet, &[]);
    let (wanted, selection) = match &first {
        Ok(subject) => (subject.wanted(), Selection::of_subject(subject)),
        Err(_) => (args.object.clone(), Selection::of_absent(&args.object)),
    };
    let question = Question { session: &session, goal: args.goal, wanted: &wanted };
    let mut identity = first.as_ref().ok().map(|subject| subject.identity().to_owned());
    let (mut seen, mut fleet) = (question.seen(first, identity.as_deref()).await, fleet);
    let mut follow: Option<Following> = None;
    loop {
        let why = match look(args.goal, &wanted, &seen, &fleet) {
            Look::Reached(summary) => {
                let answer = Waited {
                    goal: args.goal,
                    namespace: namespace.to_owned(),
                    object_kind: wanted.kind.map(Named::as_str),
                    name: wanted.name.clone(),
                    summary,
                };
                return output::write(&answer, session.views.source(), &args.output, now(), out);
            }
            Look::Never(why) => return Err(Failure::Input(why)),
            Look::NotYet(why) => why,
        };
        if began.elapsed() >= limit {
            return Err(Failure::Input(format!("timed out after {}: {why}", args.timeout)));
        }
        let begin = || Following::begin(&session.client, namespace, selection.clone(), &session.notices);
        let followed = follow.get_or_insert_with(begin);
        let pause = if matches!(seen, Seen::Vm(_)) { ASK_AGAIN } else { PAUSE };
        followed.changed(pause, limit.saturating_sub(began.elapsed())).await;
        if let Some(now) = followed.look().await? {
            fleet = now;
            let found = find(&wanted, namespace, &fleet, &[]);
            identity = identity.or_else(|| found.as_ref().ok().map(|subject| subject.identity().to_owned()));
            seen = question.seen(found, identity.as_deref()).await;
        }
    }
}

/// What the command waits for.
struct Question<'a> {
    session: &'a Session,
    goal: Goal,
    wanted: &'a Wanted,
}

impl Question<'_> {
    /// Completes what the stored objects say. `identity` is that of the object that was found first.
    async fn seen(&self, found: Result<Subject, NotFound>, identity: Option<&str>) -> Seen {
        // Nodes and VMs keep their names when another machine gets them.
        let is_stored = matches!(self.wanted.kind, Some(Named::Machine | Named::Set | Named::Deployment));
        let asks_provider = self.goal == Goal::Gone && self.wanted.kind == Some(Named::Vm);
        match found {
            Ok(subject) if is_stored && identity.is_some_and(|first| first != subject.identity()) => Seen::Replaced,
            Err(NotFound::Nothing { .. }) if asks_provider => {
                match self.session.views.provider_has(&self.session.namespace, &self.wanted.name).await {
                    Provider::NoViews if identity.is_some() => Seen::VmOfEarlierMachine,
                    provider => Seen::Vm(provider),
                }
            }
            found => Seen::Found(found),
        }
    }
}

/// Whether the goal is reached. Pure.
pub fn look(goal: Goal, wanted: &Wanted, seen: &Seen, fleet: &Fleet) -> Look {
    match seen {
        Seen::Found(found) => of_found(goal, wanted, found, fleet),
        Seen::Replaced if goal == Goal::Gone => Look::Reached(format!("{wanted} is gone; another one has its name")),
        Seen::Replaced => Look::Never(format!("{wanted} is gone; another one has its name")),
        Seen::VmOfEarlierMachine if goal == Goal::Gone => Look::Reached(format!("{wanted} is gone with its machine")),
        Seen::Vm(Provider::Lacks) if goal == Goal::Gone => Look::Reached(format!("{wanted} is gone")),
        Seen::Vm(Provider::Has(vm)) if goal == Goal::Gone => {
            Look::NotYet(why(&Subject::Vm(vm.clone()), "", fleet).summary)
        }
        Seen::Vm(Provider::Unknown(why)) if goal == Goal::Gone => {
            Look::NotYet(format!("whether the provider has {wanted} is not known: {why}"))
        }
        Seen::Vm(Provider::NoViews) if goal == Goal::Gone => Look::Never(format!(
            "no machine has {wanted}, and only the views know whether the provider has it; ask the provider"
        )),
        Seen::Vm(_) | Seen::VmOfEarlierMachine => of_vm(goal, wanted),
    }
}

/// A VM that no machine has.
fn of_vm(goal: Goal, wanted: &Wanted) -> Look {
    if goal == Goal::Running { Look::NotYet(format!("no machine has {wanted}")) } else { never_complete() }
}

/// The state of a machine, with what it waits for.
fn in_a_sentence(state: &MachineState) -> String {
    let wait = state.waits.first().map(|wait| format!(": {}", parts(wait).0)).unwrap_or_default();
    format!("{} {}{wait}", state.name, state.words())
}

fn never_complete() -> Look {
    Look::Never("only the rollout of a deployment becomes complete; name a deployment".to_owned())
}

fn of_found(goal: Goal, wanted: &Wanted, found: &Result<Subject, NotFound>, fleet: &Fleet) -> Look {
    match (goal, found) {
        (_, Err(error @ NotFound::Ambiguous { .. })) => Look::Never(error.to_string()),
        (Goal::Gone, Err(NotFound::Nothing { .. })) => Look::Reached(format!("{wanted} is gone")),
        (Goal::Running | Goal::Complete, Err(error)) => Look::NotYet(error.to_string()),
        (Goal::Complete, Ok(Subject::Deployment(deployment))) => {
            let progress = Progress::of(deployment, fleet);
            match progress.verdict {
                Verdict::Complete => Look::Reached(progress.summary()),
                Verdict::Deleting => Look::Never(progress.summary()),
                Verdict::Progressing | Verdict::Paused | Verdict::Failed => {
                    Look::NotYet(format!("{}{}", progress.summary(), progress.awaited()))
                }
            }
        }
        (Goal::Running, Ok(Subject::Machine { machine, .. })) => {
            let state = fleet.state_of(machine);
            match state.health {
                Health::Well => Look::Reached(in_a_sentence(&state)),
                _ if machine.is_deleting() => Look::Never(in_a_sentence(&state)),
                Health::Busy | Health::Bad => Look::NotYet(in_a_sentence(&state)),
            }
        }
        (Goal::Running, Ok(Subject::Set(set))) => {
            let owned = fleet.machines_of(set);
            let running = owned.iter().filter(|machine| fleet.state_of(machine).health == Health::Well).count();
            let summary = format!("{running} of {} machines of {} run", set.replicas(), set.name());
            if running == owned.len() && running == usize::try_from(set.replicas()).unwrap_or_default() {
                Look::Reached(summary)
            } else {
                Look::NotYet(summary)
            }
        }
        (Goal::Gone, Ok(Subject::Machine { machine, .. })) => Look::NotYet(in_a_sentence(&fleet.state_of(machine))),
        (Goal::Gone, Ok(subject)) => Look::NotYet(why(subject, "", fleet).summary),
        (Goal::Running, Ok(Subject::Deployment(_))) => {
            Look::Never("a deployment does not run; --for=complete waits for its rollout".to_owned())
        }
        (Goal::Running, Ok(Subject::Vm(_))) => of_vm(goal, wanted),
        (Goal::Complete, Ok(_)) => never_complete(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::testing::fleet;
    use super::*;

    #[rstest]
    #[case::a_machine_runs("web-2-b", Goal::Running, "reached: web-2-b runs")]
    #[case::a_machine_is_drained(
        "web-1-a",
        Goal::Running,
        "never: web-1-a is being drained, to be deleted: waiting for Pod shop/db-0"
    )]
    #[case::a_node_runs("node/node-b", Goal::Running, "reached: web-2-b runs")]
    #[case::a_set_runs("set/web-2", Goal::Running, "reached: 2 of 2 machines of web-2 run")]
    #[case::a_set_has_too_many("set/web-1", Goal::Running, "0 of 0 machines of web-1 run")]
    #[case::nobody_runs("nobody", Goal::Running, "no \"nobody\" in namespace ns")]
    #[case::nobody_is_gone("nobody", Goal::Gone, "reached: \"nobody\" is gone")]
    #[case::it_is_there("web-2-b", Goal::Gone, "web-2-b runs")]
    #[case::a_rollout_goes_on("web", Goal::Complete, "web is being rolled out (revision 2)")]
    #[case::a_deployment_does_not_run("web", Goal::Running, "never: a deployment does not run")]
    #[case::a_machine_is_not_rolled_out("web-2-b", Goal::Complete, "never: only the rollout")]
    fn a_look_knows_whether_the_goal_is_reached(#[case] object: &str, #[case] goal: Goal, #[case] expected: &str) {
        let (fleet, wanted): (Fleet, Wanted) = (fleet(), object.parse().unwrap());
        let found = Seen::Found(find(&wanted, "ns", &fleet, &[]));
        let text = said(look(goal, &wanted, &found, &fleet));
        assert!(text.starts_with(expected), "{text}");
    }

    fn said(look: Look) -> String {
        match look {
            Look::Reached(what) => format!("reached: {what}"),
            Look::NotYet(why) => why,
            Look::Never(why) => format!("never: {why}"),
        }
    }

    fn lost() -> Provider {
        let vm = serde_json::from_value(serde_json::json!({ "providerID": "virtual:///lost", "state": "Orphan" }));
        Provider::Has(Box::new(vm.unwrap()))
    }

    #[rstest]
    #[case::the_provider_has_it(Seen::Vm(lost()), Goal::Gone, "VM virtual:///lost has the state Orphan")]
    #[case::it_is_gone(Seen::Vm(Provider::Lacks), Goal::Gone, "reached: vm \"virtual:///lost\" is gone")]
    #[case::the_provider_does_not_answer(Seen::Vm(Provider::Unknown("no list".to_owned())), Goal::Gone,
        "whether the provider has vm \"virtual:///lost\" is not known: no list")]
    #[case::nobody_knows(Seen::Vm(Provider::NoViews), Goal::Gone, "never: no machine has vm")]
    #[case::it_went_with_its_machine(
        Seen::VmOfEarlierMachine,
        Goal::Gone,
        "reached: vm \"virtual:///lost\" is gone with its machine"
    )]
    #[case::it_gets_no_machine(Seen::Vm(lost()), Goal::Running, "no machine has vm \"virtual:///lost\"")]
    #[case::a_vm_is_not_rolled_out(Seen::Vm(Provider::Lacks), Goal::Complete, "never: only the rollout")]
    #[case::a_namesake(Seen::Replaced, Goal::Gone, "reached: vm \"virtual:///lost\" is gone; another")]
    #[case::a_namesake_is_another(Seen::Replaced, Goal::Running, "never: vm")]
    fn a_vm_without_a_machine_is_gone_when_the_provider_says_so(
        #[case] seen: Seen,
        #[case] goal: Goal,
        #[case] expected: &str,
    ) {
        let wanted: Wanted = "vm/virtual:///lost".parse().unwrap();
        let text = said(look(goal, &wanted, &seen, &fleet()));
        assert!(text.starts_with(expected), "{text}");
    }
}
