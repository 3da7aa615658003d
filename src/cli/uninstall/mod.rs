//! `mcm uninstall`: takes off a cluster what the manager has put on it: registration of the views, webhook configurations,
//! policies, the conversion webhook, our finalizers, the certificate Secret. Definitions and machine objects stay; whoever
//! deletes the definitions deletes them all. What else stays is named.
//!
//! The order matters (decisions: measured on a real API server): registrations go first, while the manager may still run,
//! so that nothing depends on it any more; finalizers go last, when no manager can put them back. [`inventory`] reads,
//! [`plan`] decides, [`act`] carries out.

mod act;
mod inventory;
mod plan;

use std::{
    io::{BufRead, Write},
    path::PathBuf,
};

use clap::Args;
use kube::Client;

use self::{
    act::{Clusters, Sentinel},
    inventory::{Inventory, LEASES, Place, workloads},
    plan::{NodesIn, Plan, plan, rights, some},
};
use super::{
    Failure,
    kubeconfig::{ClusterArgs, run_interruptibly},
    lease_watch::Pulse,
    namespace_name,
    webhook_scope::WebhookScope,
};

/// Flags of `mcm uninstall`.
#[derive(Clone, Debug, Args)]
pub struct UninstallArgs {
    /// The cluster with the machine objects
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Kubeconfig of the cluster with the Nodes, or "none" to touch no Node; unset means the cluster with the machine objects, if
    /// the Nodes of its machines are there
    #[arg(long, value_name = "FILE|none", value_parser = target_cluster)]
    pub target_kubeconfig: Option<TargetCluster>,
    /// Namespace of the machine objects
    #[arg(long, value_name = "NAMESPACE", value_parser = namespace_name)]
    pub namespace: String,
    /// Namespace of the manager and its certificate Secret; unset means --namespace
    #[arg(long, value_name = "NAMESPACE", value_parser = namespace_name)]
    pub service_namespace: Option<String>,
    /// Whose webhooks these are: of every namespace, or of --namespace alone; then the definitions are left as they are
    #[arg(long, default_value = "cluster", value_name = "SCOPE")]
    pub scope: WebhookScope,
    /// Don't ask
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Go on although a Lease has a holder, if the holder does not renew it while it is watched, or although the manager's
    /// Deployment has replicas
    #[arg(long)]
    pub force: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Where the Nodes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetCluster {
    /// In the cluster of this kubeconfig.
    Kubeconfig(PathBuf),
    /// Nowhere: no Node is touched.
    None,
}

#[expect(clippy::unnecessary_wraps, reason = "what clap calls answers a result")]
fn target_cluster(text: &str) -> Result<TargetCluster, String> {
    Ok(if text == "none" { TargetCluster::None } else { TargetCluster::Kubeconfig(text.into()) })
}

/// Says what will be done, asks, and does it.
///
/// # Errors
/// When objects are stored as v1beta1, when a manager is running, when the answer is no, or when a call fails. What was done
/// stays done; the next run does the rest.
pub fn run(args: &UninstallArgs, out: &mut dyn Write) -> Result<(), Failure> {
    run_interruptibly(uninstall(args, out), "interrupted; run the same command again to go on")
}

async fn uninstall(args: &UninstallArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let control = args.cluster.connect().await?;
    let (target, nodes_in) = target(args, &control).await?;
    let clusters = Clusters { control, target };
    let place = Place {
        namespace: args.namespace.clone(),
        service_namespace: args.service_namespace.clone().unwrap_or_else(|| args.namespace.clone()),
        scope: args.scope,
    };
    let inventory = Inventory::read(&clusters.control, clusters.target.as_ref(), &place).await?;
    let todo = plan(&inventory, &place, nodes_in).map_err(|obstacle| Failure::Input(obstacle.to_string()))?;
    tell(&todo, args, out)?;
    if todo.registrations.is_empty() && todo.remains.is_empty() {
        return Ok(());
    }
    let missing = clusters.missing_rights(&rights(&todo)).await?;
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return Err(Failure::Input(format!("the user of the kubeconfig may not: {missing}; nothing was done")));
    }
    if args.dry_run {
        return Ok(());
    }
    if !args.yes {
        confirm(&args.namespace, out)?;
    }
    clusters.carry_out(todo.registrations, &mut None, out).await?;
    if !todo.remains.is_empty() {
        // Only now: whoever started a manager while we asked is seen, too.
        eprintln!("watching the Leases of namespace {} to see that no manager runs", place.namespace);
        let (sentinel, pulses) = Sentinel::watch(&clusters.control, &place).await?;
        if let Some(running) = running(&pulses, &workloads(&clusters.control, &place).await?, args.force) {
            return Err(Failure::Input(format!(
                "{running} stop it, for example by `kubectl -n {} scale deployment machine-controller-manager \
                 --replicas=0`, then run this command again for the rest",
                place.service_namespace,
            )));
        }
        clusters.carry_out(todo.remains, &mut Some(sentinel), out).await?;
    }
    writeln!(out, "done; definitions and objects are still there (deleting the definitions deletes all objects)")?;
    Ok(())
}

async fn target(args: &UninstallArgs, control: &Client) -> Result<(Option<Client>, NodesIn), Failure> {
    Ok(match &args.target_kubeconfig {
        None => (Some(control.clone()), NodesIn::Control),
        Some(TargetCluster::None) => (None, NodesIn::Nowhere),
        Some(TargetCluster::Kubeconfig(path)) => {
            let cluster = ClusterArgs { kubeconfig: Some(path.clone()), context: None };
            (Some(cluster.connect().await?), NodesIn::Another)
        }
    })
}

fn tell(todo: &Plan, args: &UninstallArgs, out: &mut dyn Write) -> Result<(), Failure> {
    if todo.registrations.is_empty() && todo.remains.is_empty() {
        writeln!(out, "nothing is left that this command takes off")?;
    }
    for action in todo.registrations.iter().chain(&todo.remains) {
        writeln!(out, "{} {}", if args.dry_run { "would" } else { "will" }, action.text())?;
    }
    for left in &todo.left {
        writeln!(out, "left: {left}")?;
    }
    if !todo.virtual_machines.is_empty() {
        writeln!(
            out,
            "{} machines have a VM ({}). Without the finalizer nobody will delete these VMs: delete the machines first, or \
             hand them to another manager",
            todo.virtual_machines.len(),
            some(todo.virtual_machines.iter().map(String::as_str).collect()),
        )?;
    }
    Ok(())
}

/// What runs a manager, or may. A Lease that is renewed is proof that no force passes over.
fn running(pulses: &[Pulse], workloads: &[String], force: bool) -> Option<String> {
    let mut suspected = Vec::new();
    for (name, pulse) in LEASES.iter().zip(pulses) {
        match pulse {
            Pulse::Nobody => {}
            Pulse::Beats { holder } => {
                return Some(format!(
                    "a manager is running ({holder} renews Lease {name}) and would put its finalizers back:"
                ));
            }
            Pulse::Silent { held, watched } | Pulse::Unproven { held, watched } => suspected.push(format!(
                "Lease {name} is held by {}, who did not renew it for {} s",
                held.holder,
                watched.as_secs()
            )),
        }
    }
    suspected.extend_from_slice(workloads);
    (!suspected.is_empty() && !force).then(|| {
        format!(
            "a manager may be running ({}) and would put its finalizers back: if none runs, add --force; otherwise",
            suspected.join("; ")
        )
    })
}

/// Asks for the namespace's name, which nobody types by accident.
fn confirm(namespace: &str, out: &mut dyn Write) -> Result<(), Failure> {
    write!(out, "type the namespace's name ({namespace}) to go on: ")?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if answer.trim() == namespace {
        Ok(())
    } else {
        Err(Failure::Input("not confirmed; nothing was done (--yes goes on without asking)".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::cli::lease_watch::Held;

    fn silent() -> Pulse {
        let held = Held::read(&json!({"holderIdentity": "a"})).expect("it has a holder");
        Pulse::Silent { held, watched: Duration::from_secs(18) }
    }

    fn beats() -> Pulse {
        Pulse::Beats { holder: "a".to_owned() }
    }

    #[rstest]
    #[case::nobody(&[Pulse::Nobody, Pulse::Nobody], &[], false, None)]
    #[case::one_half_is_renewed(&[Pulse::Nobody, beats()], &[], false, Some("a renews Lease machine-controller)"))]
    #[case::force_is_no_match_for_a_renewal(&[beats(), silent()], &[], true, Some("a manager is running"))]
    #[case::a_silent_holder_counts(&[silent(), Pulse::Nobody], &[], false, Some("--force"))]
    #[case::a_silent_holder_gives_way_to_force(&[silent(), silent()], &[], true, None)]
    #[case::a_deployment_counts(&[Pulse::Nobody, Pulse::Nobody], &["Deployment x has 2 replicas"], false, Some("2 replicas"))]
    #[case::a_deployment_gives_way_to_force(&[Pulse::Nobody, Pulse::Nobody], &["Deployment x has 2 replicas"], true, None)]
    fn who_runs_is_told(
        #[case] pulses: &[Pulse],
        #[case] workloads: &[&str],
        #[case] force: bool,
        #[case] expected: Option<&str>,
    ) {
        let workloads: Vec<String> = workloads.iter().map(|&text| text.to_owned()).collect();
        let found = running(pulses, &workloads, force);
        assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
        if let (Some(found), Some(expected)) = (found, expected) {
            assert!(found.contains(expected), "{found}");
        }
    }
}
