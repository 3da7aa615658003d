//! `tree [DEPLOYMENT]`: deployments with their sets, machines, VMs and Nodes.
//!
//! Machines that just run are folded to a count, and sets without machines are left out, unless `--all` shows them.
//! Source: spec/packaging §5.2.

use std::{collections::BTreeSet, fmt::Write as _, io::Write};

use clap::Args;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    fleet::{Fleet, is_current, revision},
    output::{self, Answer, Characters, Detail, Health, OutputArgs, Source, Style, counted},
    rollout::{deployment_name, progress::Progress},
    session::{Session, SessionArgs, now},
    state::{MachineState, parts},
};
use crate::cli::{Failure, kubeconfig::run_interruptibly};
use controller_runtime::snapshot::Snapshot;
use machine_controllers::snapshots::{DeploymentSnapshot, SetSnapshot};

/// Flags of `tree`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  kubectl mcm tree\n  kubectl mcm tree web --all\n  kubectl mcm tree -A -o json")]
pub struct TreeArgs {
    /// The deployment; unset means all, with sets and machines that belong to none
    #[arg(value_name = "DEPLOYMENT", value_parser = deployment_name)]
    pub deployment: Option<String>,
    /// Show each machine, and sets without machines
    #[arg(long)]
    pub all: bool,
    /// Show all namespaces
    #[arg(short = 'A', long, conflicts_with = "deployment")]
    pub all_namespaces: bool,
    /// The cluster
    #[command(flatten)]
    pub session: SessionArgs,
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What the text leaves out. JSON has everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Folding {
    /// Machines that just run, and sets without machines.
    #[default]
    Folded,
    /// Nothing.
    Whole,
}

/// A deployment with its sets.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Branch {
    /// The deployment.
    #[serde(flatten)]
    pub progress: Progress,
    /// Its sets, the newest revision first.
    pub sets: Vec<SetBranch>,
}

/// A set with its machines.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SetBranch {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The revision.
    pub revision: i64,
    /// Wanted machines.
    pub wanted: i32,
    /// Whether it has the present template of its deployment.
    pub current: bool,
    /// Since when it is being deleted.
    #[serde(rename = "deletingSince", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub deleting_since: Option<Timestamp>,
    /// Its machines.
    pub machines: Vec<MachineState>,
}

/// The answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Tree {
    /// The deployments.
    pub deployments: Vec<Branch>,
    /// Sets that belong to no deployment.
    pub sets: Vec<SetBranch>,
    /// Machines that belong to no set.
    pub machines: Vec<MachineState>,
    /// What the text leaves out.
    #[serde(skip)]
    folding: Folding,
    /// Which namespaces the objects are from.
    #[serde(skip)]
    scope: Scope,
}

/// The namespaces of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// One, which is not repeated.
    #[default]
    One,
    /// All. Each has a heading.
    All,
}

/// Prints the tree.
///
/// # Errors
/// When the deployment does not exist, or the cluster can't be read.
pub fn run(args: &TreeArgs, out: &mut dyn Write) -> Result<(), Failure> {
    run_interruptibly(
        async {
            let session = Session::open(&args.session).await?;
            let namespace = Some(session.namespace.as_str()).filter(|_| !args.all_namespaces);
            let fleet = session.fleet_of(namespace).await?;
            let folding = if args.all { Folding::Whole } else { Folding::Folded };
            let tree = if let Some(name) = &args.deployment {
                let known = fleet.deployment(&session.namespace, name);
                let known = known.ok_or_else(|| super::no_deployment(&session.namespace, name))?;
                let deployments = vec![branch(known, &fleet)];
                Tree { deployments, sets: Vec::new(), machines: Vec::new(), folding, scope: Scope::One }
            } else {
                let scope = if args.all_namespaces { Scope::All } else { Scope::One };
                Tree { scope, ..tree(&fleet, folding) }
            };
            output::write(&tree, session.views.source(), &args.output, now(), out)
        },
        "interrupted",
    )
}

/// The tree of a fleet.
pub fn tree(fleet: &Fleet, folding: Folding) -> Tree {
    let loose_sets = fleet.sets.iter().filter(|set| fleet.deployment_of(set).is_none());
    let loose_machines = fleet.machines.iter().filter(|machine| fleet.set_of(machine).is_none());
    Tree {
        deployments: fleet.deployments.iter().map(|deployment| branch(deployment, fleet)).collect(),
        sets: loose_sets.map(|set| set_branch(set, None, fleet)).collect(),
        machines: loose_machines.map(|machine| fleet.state_of(machine)).collect(),
        folding,
        scope: Scope::One,
    }
}

fn branch(deployment: &DeploymentSnapshot, fleet: &Fleet) -> Branch {
    let sets = fleet.sets_of(deployment).into_iter().map(|set| set_branch(set, Some(deployment), fleet)).collect();
    Branch { progress: Progress::of(deployment, fleet), sets }
}

fn set_branch(set: &SetSnapshot, deployment: Option<&DeploymentSnapshot>, fleet: &Fleet) -> SetBranch {
    SetBranch {
        namespace: set.namespace().to_owned(),
        name: set.name().to_owned(),
        revision: revision(set),
        wanted: set.replicas(),
        current: deployment.is_none_or(|deployment| is_current(set, deployment)),
        deleting_since: set.deleting_since(),
        machines: fleet.machines_of(set).into_iter().map(|machine| fleet.state_of(machine)).collect(),
    }
}

impl Answer for Tree {
    const KIND: &'static str = "Tree";

    fn text(&self, _source: Source, style: &Style) -> String {
        let mut text = String::new();
        for namespace in self.namespaces() {
            if self.scope == Scope::All {
                let _ = writeln!(text, "namespace {namespace}");
            }
            self.write_namespace(namespace, style, &mut text);
        }
        if text.is_empty() { "there are no machine objects\n".to_owned() } else { text }
    }

    fn names(&self) -> Vec<String> {
        let deployments = self.deployments.iter().flat_map(|branch| {
            let name = format!("deployment/{}", branch.progress.name);
            std::iter::once(name).chain(branch.sets.iter().flat_map(set_names))
        });
        let loose = self.machines.iter().map(machine_name);
        deployments.chain(self.sets.iter().flat_map(set_names)).chain(loose).collect()
    }
}

fn set_names(set: &SetBranch) -> Vec<String> {
    let name = format!("set/{}", set.name);
    std::iter::once(name).chain(set.machines.iter().map(machine_name)).collect()
}

fn machine_name(machine: &MachineState) -> String {
    format!("machine/{}", machine.name)
}

impl Tree {
    /// The namespaces with objects, in order.
    fn namespaces(&self) -> BTreeSet<&str> {
        let deployments = self.deployments.iter().map(|branch| branch.progress.namespace.as_str());
        let sets = self.sets.iter().map(|set| set.namespace.as_str());
        deployments.chain(sets).chain(self.machines.iter().map(|machine| machine.namespace.as_str())).collect()
    }

    fn write_namespace(&self, namespace: &str, style: &Style, text: &mut String) {
        for Branch { progress, sets } in self.deployments.iter().filter(|one| one.progress.namespace == namespace) {
            let mark = style.mark(progress.verdict.health());
            let _ = writeln!(text, "{mark} deployment {}", progress.summary());
            let children = sets.iter().filter(|set| self.shows(set)).map(|set| self.set_lines(set, style)).collect();
            text.push_str(&branches(children, style));
        }
        for set in self.sets.iter().filter(|set| set.namespace == namespace && self.shows(set)) {
            text.push_str(&joined(&self.set_lines(set, style), "", ""));
        }
        let loose: Vec<MachineState> =
            self.machines.iter().filter(|machine| machine.namespace == namespace).cloned().collect();
        text.push_str(&joined(&self.machine_lines(&loose, style), "", ""));
    }

    fn shows(&self, set: &SetBranch) -> bool {
        self.folding == Folding::Whole || !set.machines.is_empty() || set.wanted > 0
    }

    /// The set and its machines, a line each.
    fn set_lines(&self, set: &SetBranch, style: &Style) -> Vec<String> {
        let age = if set.current { "" } else { ", to be replaced" };
        let deletion = if set.deleting_since.is_some() { ", being deleted" } else { "" };
        let (count, wanted) = (set.machines.len(), counted(set.wanted, "machine"));
        let title = format!("set {} (revision {}{age}{deletion}): {count} of {wanted}", set.name, set.revision);
        let children = self.machine_lines(&set.machines, style).into_iter().map(|line| vec![line]).collect();
        let below = branches(children, style);
        std::iter::once(title).chain(below.lines().map(str::to_owned)).collect()
    }

    fn machine_lines(&self, machines: &[MachineState], style: &Style) -> Vec<String> {
        let is_folded = |state: &&MachineState| state.health == Health::Well && self.folding == Folding::Folded;
        let folded = machines.iter().filter(is_folded).count();
        let mut lines = Vec::new();
        match folded {
            0 => {}
            1 => lines.extend(machines.iter().filter(is_folded).map(|state| machine_line(state, style))),
            several => lines.push(format!("{} {several} machines run", style.mark(Health::Well))),
        }
        lines.extend(machines.iter().filter(|state| !is_folded(state)).map(|state| machine_line(state, style)));
        lines
    }
}

fn machine_line(state: &MachineState, style: &Style) -> String {
    let mut line = format!("{} machine {} ({})", style.mark(state.health), state.name, shown_phase(state));
    let linked = [("node", &state.node), ("vm", &state.provider_id)];
    for (kind, name) in linked.into_iter().take(if style.detail == Detail::Wide { 2 } else { 1 }) {
        let _ = name.as_ref().map(|name| write!(line, ", {kind} {name}"));
    }
    let _ = state.waits.first().map(|wait| write!(line, ": {}", parts(wait).0));
    line
}

/// The phase, with the stage of a machine that is being deleted.
pub fn shown_phase(state: &MachineState) -> String {
    let phase = if state.phase.is_empty() { "new" } else { &state.phase };
    if state.deleting_since.is_some() { format!("{phase}, {}", state.stage) } else { phase.to_owned() }
}

/// The children of a line, each with its own lines below it.
fn branches(children: Vec<Vec<String>>, style: &Style) -> String {
    let (tee, bar, corner) = match style.characters {
        Characters::Unicode => ("├─ ", "│  ", "└─ "),
        Characters::Ascii => ("|- ", "|  ", "`- "),
    };
    let last = children.len().saturating_sub(1);
    let children = children.into_iter().enumerate();
    children
        .map(|(place, lines)| if place == last { joined(&lines, corner, "   ") } else { joined(&lines, tee, bar) })
        .collect()
}

fn joined(lines: &[String], first: &str, further: &str) -> String {
    let mut text = String::new();
    for (place, line) in lines.iter().enumerate() {
        let _ = writeln!(text, "{}{line}", if place == 0 { first } else { further });
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{
        output::testing::plain,
        testing::{ago, fleet, machine, now, set},
    };
    use super::*;

    #[test]
    fn machines_that_run_are_folded_and_a_blocked_one_has_its_sentence() {
        let mut fleet = fleet();
        fleet.sets.push(set("web-0", "web", 0, 0));
        let text = tree(&fleet, Folding::Folded).text(Source::Stored, &plain(now()));
        assert_eq!(
            text,
            "\
! deployment web is being rolled out (revision 2): 2 of 3 machines updated, 2 available, 3 in all
├─ set web-2 (revision 2): 2 of 2 machines
│  └─ ✓ 2 machines run
└─ set web-1 (revision 1, to be replaced): 1 of 0 machines
   └─ ✗ machine web-1-a (Terminating, Drain), node node-a: waiting for Pod shop/db-0: PodDisruptionBudget shop/db allows 0 disruptions
"
        );
    }

    #[test]
    fn all_shows_each_machine_and_each_set() {
        let mut fleet = fleet();
        fleet.sets.push(set("web-0", "web", 0, 0));
        let style = Style { characters: Characters::Ascii, detail: Detail::Wide, ..plain(now()) };
        let text = tree(&fleet, Folding::Whole).text(Source::Stored, &style);
        assert!(text.contains("|  |- ok machine web-2-b (Running), node node-b, vm virtual:///b\n"), "{text}");
        assert!(text.contains("|  `- ok machine web-2-c"), "{text}");
        assert!(text.contains("`- set web-0 (revision 0, to be replaced): 0 of 0 machines\n"), "{text}");
    }

    #[test]
    fn objects_without_owners_are_shown() {
        let fleet = Fleet {
            machines: vec![machine("alone", &json!({}))],
            sets: vec![set("free", "gone", 1, 1)],
            ..Fleet::default()
        };
        let answer = tree(&fleet, Folding::Folded);
        let text = answer.text(Source::Stored, &plain(now()));
        assert_eq!(text, "set free (revision 1): 0 of 1 machine\n✓ machine alone (Running)\n");
        assert_eq!(answer.names(), ["set/free", "machine/alone"]);
        let empty = tree(&Fleet::default(), Folding::Folded).text(Source::Stored, &plain(now()));
        assert_eq!(empty, "there are no machine objects\n");
    }

    #[test]
    fn all_namespaces_have_headings_and_a_set_that_is_deleted_is_marked() {
        let elsewhere = json!({ "metadata": { "namespace": "other" } });
        let stored = serde_json::to_value(set("free", "gone", 1, 1)).unwrap();
        let deletion = json!({ "metadata": { "deletionTimestamp": ago(60) } });
        let doomed: machine_api::v1alpha1::MachineSet =
            serde_json::from_value(super::super::testing::merged(stored, &deletion)).unwrap();
        let fleet = Fleet {
            machines: vec![machine("alone", &json!({})), machine("alone", &elsewhere)],
            sets: vec![doomed.into()],
            ..Fleet::default()
        };
        let text = Tree { scope: Scope::All, ..tree(&fleet, Folding::Folded) }.text(Source::Stored, &plain(now()));
        assert_eq!(
            text,
            "namespace ns\nset free (revision 1, being deleted): 0 of 1 machine\n✓ machine alone (Running)\n\
             namespace other\n✓ machine alone (Running)\n"
        );
    }
}
