//! `replace MACHINE…`: deletes machines, whose sets then make others. The deletion drains the Node, as every deletion of a machine does.
//!
//! Each deletion names the UID of the machine that was shown, so that a namesake made meanwhile stays (PK-075).
//! Source: spec/packaging §5.2.

use std::{io::Write, time::Duration};

use clap::Args;
use tokio::time::Instant;

use super::{
    fleet::{Fleet, is_current},
    follow::{Following, Selection},
    output::{self, Health, OutputArgs, Source},
    session::{Session, SessionArgs, now},
    subject::{Subject, Wanted, find},
    write::{Change, Changes, What, WriteArgs, all},
};
use crate::cli::{Failure, kubeconfig::run_interruptibly};
use controller_runtime::snapshot::Snapshot;
use kube_values::duration::GoDuration;
use machine_api::kind::Kind;
use machine_controllers::snapshots::{MachineSnapshot, SetSnapshot};

/// The least time between two looks at a replacement.
const PAUSE: Duration = Duration::from_secs(1);

/// Flags of `replace`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  kubectl mcm replace web-1-x7qzt --dry-run=server\n  kubectl mcm replace \
                        node/ip-10-0-3-17 --yes --wait")]
pub struct ReplaceArgs {
    /// machine/NAME, node/NAME, vm/PROVIDER-ID, or a name alone; several are replaced at once
    #[arg(value_name = "MACHINE", required = true)]
    pub objects: Vec<Wanted>,
    /// Wait until the machines are gone and their successors run
    #[arg(long, conflicts_with = "dry_run")]
    pub wait: bool,
    /// With --wait: give up after this time; 0 means never
    #[arg(long, default_value = "0s", value_name = "DURATION", requires = "wait")]
    pub timeout: GoDuration,
    /// The cluster
    #[command(flatten)]
    pub session: SessionArgs,
    /// The write
    #[command(flatten)]
    pub write: WriteArgs,
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Shows, asks, deletes, and waits for the successors.
///
/// # Errors
/// When no machine has a name, without confirmation, when a deletion fails, or when the time is over.
pub fn run(args: &ReplaceArgs, out: &mut dyn Write) -> Result<(), Failure> {
    run_interruptibly(replaced(args, out), "interrupted; deletions that were sent go on")
}

async fn replaced(args: &ReplaceArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let session = Session::open(&args.session).await?;
    let fleet = Fleet::read(&session.client, Some(&session.namespace)).await?;
    let mut machines: Vec<MachineSnapshot> = Vec::new();
    for wanted in &args.objects {
        let found = find(wanted, &session.namespace, &fleet, &[]).map_err(|error| Failure::Input(error.to_string()))?;
        let Subject::Machine { machine, .. } = found else {
            return Err(Failure::Input(format!(
                "{wanted} is no machine; kubectl mcm rollout restart replaces all of a deployment"
            )));
        };
        if !machines.iter().any(|known| known.uid() == machine.uid()) {
            machines.push(machine);
        }
    }
    let (leaving, staying): (Vec<_>, Vec<_>) = machines.iter().partition(|machine| machine.is_deleting());
    let changes: Vec<Change> = staying.into_iter().map(|machine| deletion(machine, &fleet)).collect();
    let mut answer = if changes.is_empty() { Changes::default() } else { all(&session, &changes, args.write).await? };
    let leaving: Vec<&str> = leaving.into_iter().map(Snapshot::name).collect();
    if !leaving.is_empty() {
        answer.unchanged = Some(format!("being deleted already: {}", leaving.join(", ")));
    }
    output::write(&answer, Source::Stored, &args.output, now(), out)?;
    out.flush()?;
    if args.wait { wait(&session, &machines, &fleet, args.timeout).await } else { Ok(()) }
}

/// The deletion of a machine, and what it leads to.
fn deletion(machine: &MachineSnapshot, fleet: &Fleet) -> Change {
    let successor = match fleet.set_of(machine) {
        None => "no set has it, so that it has no successor".to_owned(),
        Some(set) if set.is_deleting() => format!("set {} is being deleted, so that it has no successor", set.name()),
        Some(set) => match fleet.deployment_of(set).filter(|deployment| !is_current(set, deployment)) {
            Some(deployment) => {
                format!("deployment {} makes its successor with the present template", deployment.name())
            }
            None if is_surplus(set, fleet) => {
                format!("set {} has more machines than it wants, so that it has no successor", set.name())
            }
            None => format!("set {} makes its successor", set.name()),
        },
    };
    let state = fleet.state_of(machine);
    let phase = if state.phase.is_empty() { "new" } else { &state.phase };
    let node = state.node.as_ref().map(|node| format!(", node {node}")).unwrap_or_default();
    Change {
        kind: Kind::Machine,
        target: machine.target(),
        text: format!(
            "delete machine {} ({phase}{node}): its Node is drained and its VM deleted; {successor}",
            machine.name()
        ),
        what: What::Delete,
    }
}

/// Whether a set has more machines than it wants.
fn is_surplus(set: &SetSnapshot, fleet: &Fleet) -> bool {
    let staying = fleet.machines_of(set).into_iter().filter(|machine| !machine.is_deleting()).count();
    staying > usize::try_from(set.replicas()).unwrap_or_default()
}

/// What a replacement still waits for. Pure.
fn pending(machines: &[MachineSnapshot], sets: &[SetSnapshot], fleet: &Fleet) -> Option<String> {
    let left: Vec<&str> = fleet
        .machines
        .iter()
        .filter(|known| machines.iter().any(|machine| machine.uid() == known.uid()))
        .map(Snapshot::name)
        .collect();
    if !left.is_empty() {
        return Some(format!("the deletion of {}", left.join(", ")));
    }
    // A set may be gone with its last machine.
    let present = fleet.sets.iter().filter(|set| sets.iter().any(|known| known.uid() == set.uid()));
    let short = |set: &&SetSnapshot| {
        let owned = fleet.machines_of(set);
        let well = owned.iter().filter(|machine| fleet.state_of(machine).health == Health::Well).count();
        well < usize::try_from(set.replicas()).unwrap_or_default()
    };
    let short: Vec<&str> = present.filter(short).map(Snapshot::name).collect();
    (!short.is_empty()).then(|| format!("the successors of set {}", short.join(", ")))
}

async fn wait(
    session: &Session,
    machines: &[MachineSnapshot],
    before: &Fleet,
    timeout: GoDuration,
) -> Result<(), Failure> {
    let mut sets: Vec<SetSnapshot> = machines.iter().filter_map(|machine| before.set_of(machine).cloned()).collect();
    sets.sort_by_key(Snapshot::key);
    sets.dedup_by(|one, other| one.uid() == other.uid());
    let began = Instant::now();
    let limit = if timeout > GoDuration::ZERO { timeout.to_std() } else { Duration::MAX };
    let mut follow = Following::begin(&session.client, &session.namespace, Selection::of_sets(&sets), &session.notices);
    let mut told = "the API server".to_owned();
    loop {
        let pending = match follow.look().await? {
            Some(fleet) => match pending(machines, &sets, &fleet) {
                Some(pending) => pending,
                None => return Ok(()),
            },
            None => told.clone(),
        };
        if began.elapsed() >= limit {
            return Err(Failure::Input(format!("not replaced after {timeout}: still waiting for {pending}")));
        }
        if pending != told {
            eprintln!("waiting for {pending}");
            told = pending;
        }
        follow.changed(PAUSE, limit.saturating_sub(began.elapsed())).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{ago, fleet, machine, merged, owned, set};
    use super::*;

    #[test]
    fn pk_075_the_deletion_is_bound_to_the_machine_that_was_shown() {
        let fleet = fleet();
        let change = deletion(&fleet.machines[0], &fleet);
        assert_eq!((change.target.uid.as_str(), change.what), ("u-web-1-a", What::Delete));
    }

    #[test]
    fn the_question_says_who_makes_the_successor() {
        let fleet = fleet();
        let text = |machine: &MachineSnapshot| deletion(machine, &fleet).text;
        assert_eq!(
            text(&fleet.machines[1]),
            "delete machine web-2-b (Running, node node-b): its Node is drained and its VM deleted; set web-2 makes its successor"
        );
        assert!(text(&fleet.machines[0]).ends_with("deployment web makes its successor with the present template"));
        assert!(text(&machine("alone", &json!({}))).ends_with("no set has it, so that it has no successor"));
        let mut more = fleet.clone();
        more.machines.push(owned("web-2-d", "web-2", "d", &json!({})));
        let surplus = deletion(&more.machines[1], &more).text;
        assert!(
            surplus.ends_with("set web-2 has more machines than it wants, so that it has no successor"),
            "{surplus}"
        );
    }

    #[test]
    fn a_set_that_is_being_deleted_makes_no_successor() {
        let stored = serde_json::to_value(set("web-2", "web", 2, 2)).unwrap();
        let deletion_time = json!({ "metadata": { "deletionTimestamp": ago(60) } });
        let doomed: machine_api::v1alpha1::MachineSet = serde_json::from_value(merged(stored, &deletion_time)).unwrap();
        let mut fleet = fleet();
        fleet.sets[1] = doomed.into();
        let text = deletion(&fleet.machines[1], &fleet).text;
        assert!(text.ends_with("set web-2 is being deleted, so that it has no successor"), "{text}");
    }

    #[test]
    fn a_replacement_waits_for_the_deletion_and_for_the_successor() {
        let mut fleet = fleet();
        let (gone, set) = (fleet.machines[1].clone(), fleet.sets[1].clone());
        let (machines, sets) = ([gone], [set]);
        assert_eq!(pending(&machines, &sets, &fleet).unwrap(), "the deletion of web-2-b");
        fleet.machines.remove(1);
        assert_eq!(pending(&machines, &sets, &fleet).unwrap(), "the successors of set web-2");
        fleet.machines.push(owned("web-2-d", "web-2", "d", &json!({})));
        assert_eq!(pending(&machines, &sets, &fleet), None);
    }
}
