//! `why OBJECT`: the state of an object, what it waits for, what ends the wait, and what comes next.
//!
//! The sentences are those of the views, or of the stored conditions without them. Source: spec/packaging §5.2.

use std::io::Write;

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    events::{Warning, warnings},
    fleet::{Fleet, is_current, revision, revision_of_deployment},
    output::{self, Answer, OutputArgs, Source, Style, counted},
    rollout::progress::{Progress, Verdict},
    session::{Session, SessionArgs, now},
    state::{MachineState, Wait, line, wait_lines},
    subject::{Named, NotFound, Subject, Wanted, find},
    views::Vm,
};
use crate::cli::{Failure, kubeconfig::run_interruptibly};
use controller_runtime::{key::Target, snapshot::Snapshot};
use machine_api::kind::Kind;
use machine_controllers::{
    snapshots::{MachineSnapshot, SetSnapshot},
    times::rfc3339,
};

/// Flags of `why`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Examples:\n  kubectl mcm why machine/web-1-x7qzt\n  kubectl mcm why node/ip-10-0-3-17\n  kubectl mcm \
                        why web -o json"
)]
pub struct WhyArgs {
    /// machine/NAME, node/NAME, set/NAME, deployment/NAME, vm/PROVIDER-ID, or a name alone
    #[arg(value_name = "OBJECT")]
    pub object: Wanted,
    /// The cluster
    #[command(flatten)]
    pub session: SessionArgs,
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
}

/// An object of the chain from the VM to the deployment.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Link {
    /// The kind: vm, node, machine, set or deployment.
    pub kind: &'static str,
    /// The name.
    pub name: String,
    /// Its state in a few words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// The kind of the object: vm, node, machine, set or deployment.
    pub object_kind: &'static str,
    /// The namespace.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// What is the case.
    pub summary: String,
    /// What the object's own conditions report.
    pub waits: Vec<Wait>,
    /// The machine; of a set or a deployment the machines that do not just run.
    pub machines: Vec<MachineState>,
    /// The last warnings that events report about the object; of a Node or a VM those about its machine.
    pub warnings: Vec<Warning>,
    /// What comes next, if no machine has it.
    pub then: Vec<String>,
    /// The object and those that belong to it, from the VM to the deployment.
    pub chain: Vec<Link>,
}

impl Answer for Why {
    const KIND: &'static str = "Why";

    fn text(&self, source: Source, style: &Style) -> String {
        let mut text = format!("{}.\n", self.summary);
        text.extend(self.waits.iter().map(|wait| wait_lines(wait, "  ", style)));
        if [Named::Set.as_str(), Named::Deployment.as_str()].contains(&self.object_kind) {
            for machine in &self.machines {
                text.push_str(&machine.title("  ", style));
                text.push_str(&machine.details("    ", style));
            }
        } else {
            text.extend(self.machines.iter().map(|machine| machine.details("  ", style)));
        }
        text.extend(self.then.iter().map(|then| line("  ", "then", then)));
        text.extend(self.warnings.iter().map(|warning| warning.line("  ", style)));
        let link = |link: &Link| {
            let state = link.state.as_ref().map(|state| format!(" ({state})")).unwrap_or_default();
            format!("{} {}{state}", link.kind, link.name)
        };
        let arrow = if style.characters == output::Characters::Unicode { " → " } else { " -> " };
        text.push_str(&line("  ", "chain", &self.chain.iter().map(link).collect::<Vec<_>>().join(arrow)));
        text.push_str(&line("  ", "source", source.words()));
        text
    }

    fn names(&self) -> Vec<String> {
        self.chain.iter().map(|link| format!("{}/{}", link.kind, link.name)).collect()
    }
}

/// Prints the answer.
///
/// # Errors
/// When no object has the name, or several have it; when the cluster can't be read.
pub fn run(args: &WhyArgs, out: &mut dyn Write) -> Result<(), Failure> {
    run_interruptibly(
        async {
            let session = Session::open(&args.session).await?;
            let fleet = session.fleet().await?;
            // Only a VM without a machine needs the list of the provider.
            let local = find(&args.object, &session.namespace, &fleet, &[]);
            let found = match local {
                Err(absent @ NotFound::Nothing { .. }) if args.object.kind.is_none_or(|kind| kind == Named::Vm) => {
                    match session.views.vms(&session.namespace).await {
                        Some(vms) => find(&args.object, &session.namespace, &fleet, &vms),
                        None if args.object.kind == Some(Named::Vm) => {
                            return Err(Failure::Input(format!(
                                "{absent}; only the views know whether the provider has it"
                            )));
                        }
                        None => Err(absent),
                    }
                }
                found => found,
            };
            let subject = found.map_err(|error| Failure::Input(error.to_string()))?;
            let answer = answer(&session, &subject, &fleet).await;
            output::write(&answer, session.views.source(), &args.output, now(), out)
        },
        "interrupted",
    )
}

/// The answer about an object, with the warnings of its events.
pub async fn answer(session: &Session, subject: &Subject, fleet: &Fleet) -> Why {
    let mut answer = why(subject, &session.namespace, fleet);
    if let Some((kind, target)) = stored_object(subject) {
        answer.warnings = warnings(&session.client, kind, &target, &session.notices).await;
    }
    answer
}

/// The stored object that events are about. A VM without a machine has none.
fn stored_object(subject: &Subject) -> Option<(Kind, Target)> {
    match subject {
        Subject::Machine { machine, .. } => Some((Kind::Machine, machine.target())),
        Subject::Set(set) => Some((Kind::MachineSet, set.target())),
        Subject::Deployment(deployment) => Some((Kind::MachineDeployment, deployment.target())),
        Subject::Vm(_) => None,
    }
}

/// The answer about an object.
pub fn why(subject: &Subject, namespace: &str, fleet: &Fleet) -> Why {
    match subject {
        Subject::Machine { machine, by } => of_machine(machine, *by, fleet),
        Subject::Set(set) => of_set(set, fleet),
        Subject::Deployment(deployment) => {
            let progress = Progress::of(deployment, fleet);
            Why {
                object_kind: Named::Deployment.as_str(),
                namespace: progress.namespace.clone(),
                name: progress.name.clone(),
                summary: progress.summary(),
                chain: vec![deployment_link(&progress)],
                waits: progress.waits,
                machines: progress.waits_for,
                warnings: Vec::new(),
                then: Vec::new(),
            }
        }
        Subject::Vm(vm) => of_vm(vm, namespace),
    }
}

fn of_machine(machine: &MachineSnapshot, by: Named, fleet: &Fleet) -> Why {
    let state = fleet.state_of(machine);
    let name = match by {
        Named::Node => state.node.clone().unwrap_or_default(),
        Named::Vm => machine.provider_id().to_owned(),
        Named::Machine | Named::Set | Named::Deployment => machine.name().to_owned(),
    };
    let mut chain = Vec::new();
    chain.extend(state.provider_id.iter().map(|id| Link { kind: Named::Vm.as_str(), name: id.clone(), state: None }));
    chain.extend(state.node.iter().map(|node| Link { kind: Named::Node.as_str(), name: node.clone(), state: None }));
    chain.push(Link {
        kind: Named::Machine.as_str(),
        name: machine.name().to_owned(),
        state: Some(state.phase.clone()).filter(|phase| !phase.is_empty()),
    });
    if let Some(set) = fleet.set_of(machine) {
        chain.extend(links_of(set, fleet));
    }
    let because = fleet.set_of(machine).and_then(|set| replaced_by(set, fleet)).unwrap_or_default();
    let since = state.deleting_since.map(|since| format!(", since {}", rfc3339(since))).unwrap_or_default();
    Why {
        object_kind: by.as_str(),
        namespace: machine.namespace().to_owned(),
        name,
        summary: format!("{} {}{since}{because}", machine.name(), state.words()),
        waits: Vec::new(),
        machines: vec![state],
        warnings: Vec::new(),
        then: Vec::new(),
        chain,
    }
}

/// The rollout that replaces the machines of a set, as the end of a sentence.
fn replaced_by(set: &SetSnapshot, fleet: &Fleet) -> Option<String> {
    let deployment = fleet.deployment_of(set).filter(|deployment| !is_current(set, deployment))?;
    let (new, old) = (revision_of_deployment(deployment), revision(set));
    Some(format!("; its deployment {} is at revision {new}, and its set {} at {old}", deployment.name(), set.name()))
}

fn of_set(set: &SetSnapshot, fleet: &Fleet) -> Why {
    let machines = fleet.machines_of(set);
    let states: Vec<MachineState> = machines.iter().map(|machine| fleet.state_of(machine)).collect();
    let well = states.iter().filter(|state| state.health == output::Health::Well).count();
    let because = replaced_by(set, fleet).unwrap_or_default();
    let deletion = set.deleting_since().map(|since| format!(", which is being deleted since {},", rfc3339(since)));
    let (wanted, deletion) = (set.replicas(), deletion.unwrap_or_default());
    Why {
        object_kind: Named::Set.as_str(),
        namespace: set.namespace().to_owned(),
        name: set.name().to_owned(),
        summary: format!(
            "{}{deletion} has {} and wants {wanted}; {well} of them {}{because}",
            set.name(),
            counted(states.len(), "machine"),
            if well == 1 { "runs" } else { "run" }
        ),
        waits: Vec::new(),
        machines: states.into_iter().filter(|state| state.health != output::Health::Well).collect(),
        warnings: Vec::new(),
        then: Vec::new(),
        chain: links_of(set, fleet),
    }
}

fn links_of(set: &SetSnapshot, fleet: &Fleet) -> Vec<Link> {
    let state = Some(format!("revision {}", revision(set)));
    let mut links = vec![Link { kind: Named::Set.as_str(), name: set.name().to_owned(), state }];
    links.extend(fleet.deployment_of(set).map(|deployment| deployment_link(&Progress::of(deployment, fleet))));
    links
}

fn deployment_link(progress: &Progress) -> Link {
    let state = match progress.verdict {
        Verdict::Complete => "rolled out",
        Verdict::Progressing => "rolling out",
        Verdict::Paused => "paused",
        Verdict::Failed => "stuck",
        Verdict::Deleting => "being deleted",
    };
    Link {
        kind: Named::Deployment.as_str(),
        name: progress.name.clone(),
        state: Some(format!("revision {}, {state}", progress.revision)),
    }
}

fn of_vm(vm: &Vm, namespace: &str) -> Why {
    let because = vm.orphan.as_ref().map(|orphan| format!(": {}", orphan.reason)).unwrap_or_default();
    let deleted = vm.orphan.as_ref().and_then(|orphan| orphan.will_be_deleted_after);
    Why {
        object_kind: Named::Vm.as_str(),
        namespace: namespace.to_owned(),
        name: vm.provider_id.clone(),
        summary: format!("VM {} has the state {}{because}", vm.provider_id, vm.state),
        waits: Vec::new(),
        machines: Vec::new(),
        warnings: Vec::new(),
        then: deleted.map(|at| format!("the leader deletes the VM, not before {}", rfc3339(at))).into_iter().collect(),
        chain: vec![Link { kind: Named::Vm.as_str(), name: vm.provider_id.clone(), state: Some(vm.state.clone()) }],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{
        output::testing::plain,
        testing::{ago, fleet, now},
    };
    use super::*;

    fn text(object: &str, fleet: &Fleet, vms: &[Vm], source: Source) -> String {
        let found = find(&object.parse().unwrap(), "ns", fleet, vms).unwrap();
        why(&found, "ns", fleet).text(source, &plain(now()))
    }

    #[test]
    fn pk_071_a_blocked_drain_names_the_pod_the_budget_and_the_way_out() {
        let outlooks = serde_json::from_value(json!([{
            "metadata": { "namespace": "ns", "name": "web-1-a" }, "stage": "Drain",
            "blockers": [{
                "reason": "DrainBlocked", "since": ago(2280),
                "message": "waiting for Pod shop/db-0: PodDisruptionBudget shop/db allows 0 disruptions",
                "resolvedBy": "the budget allows an eviction",
            }],
            "deadlines": [{ "name": "drain", "at": ago(-4320), "onExpiry": "pods are deleted by force" }],
            "nextEffects": [{ "effect": "DrainNode", "target": { "kind": "Node", "name": "node-a" }, "when": "now" }],
        }]))
        .unwrap();
        let fleet = fleet().with_outlooks(Some(outlooks));
        assert_eq!(
            text("node/node-a", &fleet, &[], Source::Views),
            "\
web-1-a is being drained, to be deleted, since 2027-01-15T07:22:00Z; its deployment web is at revision 2, and its set web-1 at 1.
  waits for   Pod shop/db-0: PodDisruptionBudget shop/db allows 0 disruptions   since 2027-01-15T07:22:00Z (38m0s)
  ends when   the budget allows an eviction
  at latest   2027-01-15T09:12:00Z (in 1h12m0s): pods are deleted by force
  then        Node node-a is drained
  chain       vm virtual:///a → node node-a → machine web-1-a (Terminating) → set web-1 (revision 1) → deployment web (revision 2, rolling out)
  source      computed now (views)
"
        );
    }

    #[test]
    fn pk_070_without_views_the_stored_conditions_answer() {
        let said = text("web-1-a", &fleet(), &[], Source::Stored);
        assert!(said.contains("waits for   Pod shop/db-0"), "{said}");
        assert!(said.ends_with("source      stored objects (the views were not used)\n"), "{said}");
    }

    #[test]
    fn a_machine_that_runs_waits_for_nothing() {
        assert_eq!(
            text("web-2-b", &fleet(), &[], Source::Stored),
            "web-2-b runs.\n  chain       vm virtual:///b → node node-b → machine web-2-b (Running) → set web-2 (revision 2) → \
             deployment web (revision 2, rolling out)\n  source      stored objects (the views were not used)\n"
        );
    }

    #[test]
    fn sets_and_deployments_name_their_machines_that_are_not_well() {
        let fleet = fleet();
        let set = text("set/web-1", &fleet, &[], Source::Stored);
        assert!(set.starts_with("web-1 has 1 machine and wants 0; 0 of them run; its deployment web"), "{set}");
        let deployment = text("web", &fleet, &[], Source::Stored);
        for said in [&set, &deployment] {
            assert!(said.contains("  ✗ web-1-a is being drained, to be deleted\n    waits for   Pod"), "{said}");
            assert!(!said.contains("web-2-b"), "{said}");
        }
    }

    #[test]
    fn a_vm_without_a_machine_has_its_end() {
        let vms: Vec<Vm> = serde_json::from_value(json!([{
            "metadata": { "name": "lost.1a" }, "providerID": "virtual:///lost", "state": "Orphan",
            "orphan": { "since": ago(60), "willBeDeletedAfter": ago(-600), "reason": "no machine lost exists" },
        }]))
        .unwrap();
        assert_eq!(
            text("vm/virtual:///lost", &fleet(), &vms, Source::Views),
            "VM virtual:///lost has the state Orphan: no machine lost exists.\n  then        the leader deletes the VM, not \
             before 2027-01-15T08:10:00Z\n  chain       vm virtual:///lost (Orphan)\n  source      computed now (views)\n"
        );
    }

    #[test]
    fn pk_076_json_has_every_fact_of_the_text() {
        let fleet = fleet();
        let found = find(&"web-1-a".parse().unwrap(), "ns", &fleet, &[]).unwrap();
        let answer = serde_json::to_value(why(&found, "ns", &fleet)).unwrap();
        assert_eq!(answer["machines"][0]["waits"][0]["reason"], "DrainBlocked");
        assert_eq!(answer["machines"][0]["waits"][0]["since"], ago(2280));
        assert_eq!(answer["chain"][4]["name"], "web");
        assert!(answer["summary"].as_str().unwrap().starts_with("web-1-a is being drained"));
    }
}
