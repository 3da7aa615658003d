//! `mcm uninstall`: removes the manager from a cluster: registration of the views, webhook configurations, policies, the conversion
//! webhook, our finalizers, the certificate Secret. Definitions and machine objects stay, because deleting the definitions would delete
//! all objects. The command lists what else remains.
//!
//! The order matters (measured on a real API server). Registrations go first, while the manager may still run, so that nothing
//! depends on it any more. Finalizers go last, when no manager can add them again. [`inventory`] reads, [`plan`] decides, [`act`]
//! carries out. With `--check`, [`dependents`] decides what still needs the manager.

mod act;
mod dependents;
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
    dependents::{dependents, report},
    inventory::{Inventory, LEASE_NAMES, Place, workloads},
    plan::{NodesIn, Plan, plan, rights, some},
};
use super::{
    Failure,
    kubeconfig::{ClusterArgs, run_interruptibly},
    lease_watch::LeaseState,
    namespace_name,
    webhook_scope::WebhookScope,
};

/// Flags of `mcm uninstall`.
#[allow(clippy::struct_excessive_bools)] // one per flag
#[derive(Clone, Debug, Args)]
pub struct UninstallArgs {
    /// The cluster with the machine objects
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Kubeconfig of the cluster with the Nodes, or "none" to change no Node; unset means the cluster with the machine objects, if
    /// it has the Nodes of its machines
    #[arg(long, value_name = "FILE|none", value_parser = target_cluster)]
    pub target_kubeconfig: Option<TargetCluster>,
    /// Namespace of the machine objects
    #[arg(long, value_name = "NAMESPACE", value_parser = namespace_name)]
    pub namespace: String,
    /// Namespace of the manager and its certificate Secret; unset means --namespace
    #[arg(long, value_name = "NAMESPACE", value_parser = namespace_name)]
    pub service_namespace: Option<String>,
    /// Namespaces that the webhooks cover: all, or --namespace only, and then the definitions stay unchanged
    #[arg(long, default_value = "cluster", value_name = "SCOPE")]
    pub scope: WebhookScope,
    /// Do not ask for confirmation
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Go on even if a Lease has a holder that does not renew it during the watch, or if the manager's Deployment has replicas
    #[arg(long)]
    pub force: bool,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Fail, before anything is changed, if machines of the namespace or finalizers of the manager are left. Without --registrations
    /// nothing else is done
    #[arg(long, conflicts_with = "force")]
    pub check: bool,
    /// Remove only what depends on a running manager: webhook configurations, policies, the conversion webhook and the registration of
    /// the views
    #[arg(long, conflicts_with = "force")]
    pub registrations: bool,
}

/// The cluster with the Nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetCluster {
    /// The cluster of this kubeconfig.
    Kubeconfig(PathBuf),
    /// None: no Node is changed.
    None,
}

#[expect(clippy::unnecessary_wraps, reason = "clap's parsers return a result")]
pub(super) fn target_cluster(text: &str) -> Result<TargetCluster, String> {
    Ok(if text == "none" { TargetCluster::None } else { TargetCluster::Kubeconfig(text.into()) })
}

/// Prints the plan, asks for confirmation, and carries the plan out.
///
/// # Errors
/// When objects are stored as v1beta1, when a manager is running, without confirmation, or when a call fails. Finished actions are not
/// undone, and the next run does the rest.
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
    if args.check {
        check(&clusters, &place, out).await?;
        if !args.registrations {
            return Ok(());
        }
    }
    let todo = if args.registrations {
        let inventory = Inventory::read_registrations(&clusters.control, None, &place).await?;
        plan(&inventory, &place, NodesIn::Nowhere).map(Plan::registrations_only)
    } else {
        let inventory = Inventory::read(&clusters.control, clusters.target.as_ref(), &place).await?;
        plan(&inventory, &place, nodes_in)
    };
    let todo = todo.map_err(|obstacle| Failure::Input(obstacle.to_string()))?;
    print(&todo, args, out)?;
    if todo.registrations.is_empty() && todo.after_stop.is_empty() {
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
    if !todo.after_stop.is_empty() {
        // This check comes last, so that it also finds a manager that was started during the confirmation.
        eprintln!("watching the Leases of namespace {} to see that no manager runs", place.namespace);
        let (sentinel, states) = Sentinel::watch(&clusters.control, &place).await?;
        if let Some(running) = running(&states, &workloads(&clusters.control, &place).await?, args.force) {
            return Err(Failure::Input(format!(
                "{running} stop it, for example by `kubectl -n {} scale deployment machine-controller-manager \
                 --replicas=0`, then run this command again for the rest",
                place.service_namespace,
            )));
        }
        clusters.carry_out(todo.after_stop, &mut Some(sentinel), out).await?;
    }
    if args.registrations {
        writeln!(out, "done; API servers do not call this manager any more")?;
    } else {
        writeln!(out, "done; definitions and objects are still there (deleting the definitions deletes all objects)")?;
    }
    Ok(())
}

/// Lists what still needs the manager. It is an error if there is anything.
async fn check(clusters: &Clusters, place: &Place, out: &mut dyn Write) -> Result<(), Failure> {
    let inventory = Inventory::read_dependents(&clusters.control, clusters.target.as_ref(), place).await?;
    let dependents = dependents(&inventory);
    if dependents.is_empty() {
        writeln!(out, "no machine and no finalizer is left in namespace {}", place.namespace)?;
        return Ok(());
    }
    out.write_all(report(&dependents).as_bytes())?;
    Err(Failure::Input(format!(
        "{} objects need the manager of namespace {}; nothing was done. Delete them while the manager runs. To keep the VMs \
         for another manager, run `mcm uninstall --namespace {}` instead, which removes the finalizers",
        dependents.len(),
        place.namespace,
        place.namespace,
    )))
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

fn print(todo: &Plan, args: &UninstallArgs, out: &mut dyn Write) -> Result<(), Failure> {
    if todo.registrations.is_empty() && todo.after_stop.is_empty() {
        writeln!(out, "nothing is left that this command removes")?;
    }
    for action in todo.registrations.iter().chain(&todo.after_stop) {
        writeln!(out, "{} {}", if args.dry_run { "would" } else { "will" }, action.text())?;
    }
    for object in &todo.remaining {
        writeln!(out, "left: {object}")?;
    }
    if !todo.virtual_machines.is_empty() {
        writeln!(
            out,
            "{} machines have a VM ({}). Without the finalizer no manager will delete these VMs: delete the machines first, or \
             hand them to another manager",
            todo.virtual_machines.len(),
            some(todo.virtual_machines.iter().map(String::as_str).collect()),
        )?;
    }
    Ok(())
}

/// A message about a running manager, or about one that may run. `force` does not override a Lease that is renewed.
fn running(states: &[LeaseState], workloads: &[String], force: bool) -> Option<String> {
    let mut suspected = Vec::new();
    for (name, state) in LEASE_NAMES.iter().zip(states) {
        match state {
            LeaseState::Free => {}
            LeaseState::Renewed { holder } => {
                return Some(format!(
                    "a manager is running ({holder} renews Lease {name}) and would put its finalizers back:"
                ));
            }
            LeaseState::NotRenewed { held, watched } | LeaseState::Unproven { held, watched } => suspected.push(
                format!("Lease {name} is held by {}, which did not renew it for {} s", held.holder, watched.as_secs()),
            ),
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

/// Asks for the namespace's name, because a user does not type it by accident.
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

    fn not_renewed() -> LeaseState {
        let held = Held::read(&json!({"holderIdentity": "a"})).expect("it has a holder");
        LeaseState::NotRenewed { held, watched: Duration::from_secs(18) }
    }

    fn renewed() -> LeaseState {
        LeaseState::Renewed { holder: "a".to_owned() }
    }

    #[rstest]
    #[case::no_manager(&[LeaseState::Free, LeaseState::Free], &[], false, None)]
    #[case::one_half_is_renewed(&[LeaseState::Free, renewed()], &[], false, Some("a renews Lease machine-controller)"))]
    #[case::force_does_not_override_a_renewal(&[renewed(), not_renewed()], &[], true, Some("a manager is running"))]
    #[case::a_holder_without_renewal_counts(&[not_renewed(), LeaseState::Free], &[], false, Some("--force"))]
    #[case::force_overrides_a_holder_without_renewal(&[not_renewed(), not_renewed()], &[], true, None)]
    #[case::a_deployment_counts(&[LeaseState::Free, LeaseState::Free], &["Deployment x has 2 replicas"], false, Some("2 replicas"))]
    #[case::force_overrides_a_deployment(&[LeaseState::Free, LeaseState::Free], &["Deployment x has 2 replicas"], true, None)]
    fn a_running_manager_is_reported(
        #[case] states: &[LeaseState],
        #[case] workloads: &[&str],
        #[case] force: bool,
        #[case] expected: Option<&str>,
    ) {
        let workloads: Vec<String> = workloads.iter().map(|&text| text.to_owned()).collect();
        let found = running(states, &workloads, force);
        assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
        if let (Some(found), Some(expected)) = (found, expected) {
            assert!(found.contains(expected), "{found}");
        }
    }
}
