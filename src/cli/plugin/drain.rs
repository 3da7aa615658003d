//! `drain plan NODE|MACHINE`: the pods that leave a node, in order, and the pods that a budget holds.
//!
//! The view `drainplans` computes it. Without the views [`drain_objects`] does, from the objects of the Node.
//!
//! Source: spec/packaging §5.2, docs/views.md.

use std::io::Write;

use clap::{Args, Subcommand};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::{
    drain_objects::{self, Objects},
    machine_named,
    output::{self, Answer, Health, OutputArgs, Source, Style, counted},
    session::{Session, SessionArgs, now},
    state::line,
    subject::Wanted,
    views::{DrainPlan, Planned},
};
use crate::{
    cli::{Failure, kubeconfig::run_interruptibly},
    extension::view::{GROUP, VERSION},
};
use controller_runtime::snapshot::Snapshot;

/// The subcommands of `drain`.
#[derive(Clone, Debug, Subcommand)]
pub enum DrainCommand {
    /// Predict the drain of a machine's Node: which pods leave, in what order, and what holds them
    Plan(DrainPlanArgs),
}

/// Flags of `drain plan`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Examples:\n  kubectl mcm drain plan node/ip-10-0-3-17\n  kubectl mcm drain plan web-1-x7qzt -o json"
)]
pub struct DrainPlanArgs {
    /// machine/NAME, node/NAME, vm/PROVIDER-ID, or a name alone
    #[arg(value_name = "NODE|MACHINE")]
    pub object: Wanted,
    /// The cluster
    #[command(flatten)]
    pub session: SessionArgs,
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Drain {
    /// The namespace of the machine.
    pub namespace: String,
    /// The plan.
    pub plan: DrainPlan,
}

/// Asks for the plan and prints it.
///
/// # Errors
/// When no machine has the name, or when the objects of its Node can't be read.
pub fn run(command: &DrainCommand, out: &mut dyn Write) -> Result<(), Failure> {
    let DrainCommand::Plan(args) = command;
    run_interruptibly(show(args, out), "interrupted")
}

async fn show(args: &DrainPlanArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let session = Session::open(&args.session).await?;
    let (machine, fleet) = machine_named(&session, &args.object).await?;
    let review = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "DrainPlan", "metadata": { "name": machine.name() },
        "spec": { "machineName": machine.name() },
    });
    let plan = match session.views.drain_plan(&session.namespace, &review).await {
        Planned::Plan(plan) => plan,
        Planned::Refused(why) => return Err(Failure::Input(why)),
        Planned::NoViews => {
            let objects = match drain_objects::node_of(&machine) {
                Some(node) => Objects::read(&session.client, node).await?,
                None => Objects::default(),
            };
            drain_objects::plan(&machine, &fleet, &objects, now()).unwrap_or_else(|why| DrainPlan {
                machine_name: machine.name().to_owned(),
                mode: "Skipped".to_owned(),
                skipped_because: Some(why),
                ..DrainPlan::default()
            })
        }
    };
    let answer = Drain { namespace: session.namespace.clone(), plan };
    output::write(&answer, session.views.source(), &args.output, now(), out)
}

/// How pods of a wave leave, in words.
fn way(kind: &str) -> &str {
    match kind {
        "EvictParallel" => "evicted together",
        "EvictSerial" => "evicted one after the other",
        "Delete" => "deleted",
        other => other,
    }
}

impl Answer for Drain {
    const KIND: &'static str = "DrainPlan";

    fn text(&self, source: Source, style: &Style) -> String {
        let plan = &self.plan;
        let title = if plan.node_name.is_empty() { &plan.machine_name } else { &plan.node_name };
        if let Some(why) = &plan.skipped_because {
            return format!("nothing would be drained on {title}: {why}\n");
        }
        let totals = plan.totals;
        let mut text = format!(
            "{title}: {} to leave, {} of them with volumes; {} to stay; about {}\n",
            counted(totals.pods, "pod"),
            totals.with_volumes,
            counted(totals.ignored, "pod"),
            plan.estimated_duration
        );
        for (place, wave) in plan.waves.iter().enumerate() {
            let pods: Vec<String> = wave.pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
            let what = format!("{} (about {}): {}", way(&wave.kind), wave.estimate, pods.join(", "));
            text.push_str(&line("  ", &format!("wave {}", place + 1), &what));
        }
        for pod in &plan.blocked {
            let budget = &pod.budget;
            let never = if pod.misconfigured { "; the budget can never allow an eviction" } else { "" };
            let forced = pod.forced_after.map(|at| format!("; deleted by force at {}", style.moment(at)));
            let what = format!(
                "{} {}/{}: PodDisruptionBudget {}/{} allows {}{never}{}",
                style.mark(Health::Bad),
                pod.namespace,
                pod.name,
                budget.namespace,
                budget.name,
                counted(budget.disruptions_allowed, "disruption"),
                forced.unwrap_or_default()
            );
            text.push_str(&line("  ", "blocked", &what));
        }
        if let Some(deadline) = plan.deadline {
            let end = if plan.will_force { "pods that are left are deleted by force" } else { "the drain ends before" };
            text.push_str(&line("  ", "at latest", &format!("{}: {end}", style.moment(deadline))));
        }
        if let Some(why) = &plan.truncated_because {
            text.push_str(&line("  ", "cut", why));
        }
        if source == Source::Stored {
            text.push_str(&line("  ", "source", "objects of the Node, with default flags of the manager (no views)"));
        }
        text
    }

    fn names(&self) -> Vec<String> {
        let pods = self.plan.waves.iter().flat_map(|wave| &wave.pods);
        pods.map(|pod| format!("pod/{}", pod.name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        output::testing::plain,
        testing::{ago, now},
    };
    use super::*;

    fn text(plan: serde_json::Value) -> String {
        let plan = serde_json::from_value(plan).unwrap();
        Drain { namespace: "ns".to_owned(), plan }.text(Source::Views, &plain(now()))
    }

    #[test]
    fn a_blocked_pod_has_its_budget_and_the_time_of_force() {
        let said = text(json!({
            "machineName": "web-1-a", "nodeName": "node-a", "mode": "Normal", "estimatedDuration": "2h0m0s",
            "waves": [{ "kind": "EvictParallel", "pods": [{ "namespace": "shop", "name": "db-0" }], "estimate": "30s" }],
            "blocked": [{ "namespace": "shop", "name": "db-0", "forcedAfter": ago(-3600), "misconfigured": true,
                "budget": { "namespace": "shop", "name": "db", "disruptionsAllowed": 0 } }],
            "totals": { "pods": 1, "withVolumes": 0, "ignored": 2, "blocked": 1 },
            "deadline": ago(-7200), "willForce": true, "ignored": [], "truncated": false,
        }));
        assert_eq!(
            said,
            "\
node-a: 1 pod to leave, 0 of them with volumes; 2 pods to stay; about 2h0m0s
  wave 1      evicted together (about 30s): shop/db-0
  blocked     ✗ shop/db-0: PodDisruptionBudget shop/db allows 0 disruptions; the budget can never allow an eviction; deleted \
             by force at 2027-01-15T09:00:00Z (in 1h0m0s)
  at latest   2027-01-15T10:00:00Z (in 2h0m0s): pods that are left are deleted by force
"
        );
    }

    #[test]
    fn a_skipped_drain_has_its_reason() {
        let said =
            text(json!({ "machineName": "m", "mode": "Skipped", "skippedBecause": "the machine has no Node yet" }));
        assert_eq!(said, "nothing would be drained on m: the machine has no Node yet\n");
    }
}
