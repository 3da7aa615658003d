//! `mcm rollback`: restores the template of an earlier revision of a deployment.
//!
//! It is the successor of `spec.rollbackTo` (spec/deployment-and-set D-37). The controller's functions choose the same revision,
//! template and annotations. The difference: the command writes the template itself, with the user's rights, and prints the result
//! instead of writing events. The controller then rolls out as after any other change of the template.

use std::{fmt::Write as _, io::Write};

use clap::Args;
use kube::Client;
use tokio_util::sync::CancellationToken;

use super::{
    Failure,
    kubeconfig::{ClusterArgs, run_interruptibly},
    namespace_name, object_name,
};
use controller_runtime::{
    error::ApiError,
    gate::Gate,
    key::ObjectKey,
    objects::{ListQuery, Objects, Part, Patch},
    snapshot::Snapshot,
};
use machine_controllers::{
    deployment::{
        patches,
        plan::Effect,
        revision::revision_of,
        rollback::{Found, RollbackTarget, find, rolled_back_to},
        template_equality::is_equal,
    },
    snapshots::{DeploymentSnapshot, SetSnapshot},
};

/// How often the change is tried when other clients change the deployment too.
const TRIES: usize = 5;

/// Flags of `mcm rollback`.
#[derive(Clone, Debug, Args)]
pub struct RollbackArgs {
    /// Name of the `MachineDeployment`
    #[arg(value_name = "DEPLOYMENT", value_parser = object_name)]
    pub deployment: String,
    /// The revision to restore; 0 means the revision before the current one
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    pub to_revision: i64,
    /// Namespace of the deployment; unset means the namespace of the kubeconfig's context
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace_name)]
    pub namespace: Option<String>,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Restores the revision and prints the result.
///
/// # Errors
/// [`Failure::Input`] when the deployment or the revision does not exist; [`Failure::Run`] when a request fails.
pub fn run(args: &RollbackArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let result =
        run_interruptibly(roll_back(args), "interrupted; whether the deployment was changed is shown by kubectl get")?;
    Ok(writeln!(out, "{result}")?)
}

async fn roll_back(args: &RollbackArgs) -> Result<String, Failure> {
    let client = args.cluster.connect().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let key = ObjectKey::new(namespace, args.deployment.clone());
    let mut refused = None;
    for _ in 0..TRIES {
        match attempt(args, &key, &client).await? {
            Ok(result) => return Ok(result),
            Err(conflict) => refused = Some(conflict),
        }
    }
    let why = refused.map(|conflict| conflict.to_string()).unwrap_or_default();
    Err(Failure::Input(format!("machinedeployment {key} keeps changing ({why}); stop what changes it and try again")))
}

/// One try. The inner error is a conflict with the change of another client.
async fn attempt(args: &RollbackArgs, key: &ObjectKey, client: &Client) -> Result<Result<String, ApiError>, Failure> {
    let gate = Gate::open_until(CancellationToken::new());
    let sets: Objects<SetSnapshot> = Objects::new(client.clone(), gate.clone(), None, |_| {});
    let deployments: Objects<DeploymentSnapshot> = Objects::new(client.clone(), gate, None, |_| {});
    let failed =
        |what: &str, error: &ApiError| Failure::run(anyhow::anyhow!("{what} of machinedeployment {key}: {error}"));
    let deployment = deployments.get(key).await.map_err(|error| failed("read", &error))?.ok_or_else(|| {
        Failure::Input(format!(
            "machinedeployment {key} does not exist; kubectl get machinedeployments --namespace {} lists what does",
            key.namespace
        ))
    })?;
    let all = sets.list(ListQuery::within(&key.namespace)).await;
    let all = all.map_err(|error| failed("list of the sets", &error))?;
    let own = |set: &&SetSnapshot| set.controller().is_some_and(|owner| owner.uid == deployment.uid());
    let sets: Vec<&SetSnapshot> = all.iter().filter(own).collect();
    let (revision, class, change) = match plan(&deployment, &sets, RollbackTarget::from(args.to_revision)) {
        Plan::NoSuchRevision(text) => return Err(Failure::Input(text)),
        Plan::Unchanged => {
            return Ok(Ok(format!(
                "machinedeployment {key} not changed: it has the template of that revision already"
            )));
        }
        Plan::Restore { revision, class, change } => (revision, class, change),
    };
    let done = format!(
        "machinedeployment {key} {} to revision {revision} (class {class}){}",
        if args.dry_run { "would be rolled back" } else { "rolled back" },
        if deployment.is_paused() { "; it is paused, so nothing is rolled out until spec.paused is false" } else { "" },
    );
    let Some((part, change)) = change.filter(|_| !args.dry_run) else { return Ok(Ok(done)) };
    match deployments.patch(&deployment.target(), part, change).await {
        Ok(_) => Ok(Ok(done)),
        Err(conflict @ ApiError::Conflict(_)) => Ok(Err(conflict)),
        Err(error) => Err(failed("rollback", &error)),
    }
}

/// What a rollback does.
#[derive(Clone, Debug)]
pub enum Plan {
    /// There is no such revision. The text lists the revisions that exist.
    NoSuchRevision(String),
    /// The deployment has the template of the revision.
    Unchanged,
    /// The template of a revision is restored.
    Restore {
        /// The revision.
        revision: i64,
        /// The class of its machines.
        class: String,
        /// The change of the deployment; `None` if nothing differs.
        change: Option<(Part, Patch)>,
    },
}

/// The rollback of a deployment with these sets, as the controller would decide about `spec.rollbackTo`. Pure.
pub fn plan(deployment: &DeploymentSnapshot, sets: &[&SetSnapshot], target: RollbackTarget) -> Plan {
    match find(deployment, sets, target) {
        Found::Nothing => Plan::NoSuchRevision(no_such_revision(deployment, sets, target)),
        Found::Unchanged => Plan::Unchanged,
        Found::Set { set, revision } => {
            let effect = Effect::RollBack(Box::new(rolled_back_to(deployment, set)));
            let class = set.template().spec.class.name.clone();
            Plan::Restore { revision, class, change: patches::of_deployment(&effect, deployment) }
        }
    }
}

/// The message that the revision does not exist, with the revisions that exist.
fn no_such_revision(deployment: &DeploymentSnapshot, sets: &[&SetSnapshot], target: RollbackTarget) -> String {
    let mut revisions: Vec<(i64, &SetSnapshot)> =
        sets.iter().filter_map(|set| Some((revision_of(set.metadata()).filter(|r| *r > 0)?, *set))).collect();
    revisions.sort_by_key(|(revision, _)| *revision);
    let mut text = format!("machinedeployment {} has no ", deployment.key());
    let _ = match target {
        RollbackTarget::Previous => write!(text, "revision before the present one"),
        RollbackTarget::Revision(revision) => write!(text, "revision {revision}"),
    };
    let known: Vec<String> = revisions
        .iter()
        .map(|(revision, set)| {
            let present = is_equal(set.template(), deployment.template());
            let class = &set.template().spec.class.name;
            format!("{revision} ({}, class {class}{})", set.name(), if present { ", present" } else { "" })
        })
        .collect();
    let _ = match known.as_slice() {
        [] => write!(text, "; none of its sets has a revision, so apply the earlier template again"),
        known => write!(text, "; there are: {}", known.join(", ")),
    };
    text
}

#[cfg(test)]
mod tests {
    use machine_api::names::annotation;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_missing_revision_is_answered_with_the_existing_ones() {
        let of_class =
            |class: &str| json!({ "metadata": {}, "spec": { "class": { "kind": "MachineClass", "name": class } } });
        let deployment = DeploymentSnapshot::of(
            serde_json::from_value(json!({
                "metadata": { "name": "md", "namespace": "ns" },
                "spec": { "template": of_class("new") },
            }))
            .unwrap(),
        );
        let revised =
            |name: &str, class: &str, revision: &str| {
                SetSnapshot::of(serde_json::from_value(json!({
                "metadata": { "name": name, "namespace": "ns", "annotations": { annotation::REVISION: revision } },
                "spec": { "template": of_class(class) },
            })).unwrap())
            };
        let (newer, older) = (revised("md-b", "new", "2"), revised("md-a", "old", "1"));
        let text = no_such_revision(&deployment, &[&newer, &older], RollbackTarget::Revision(9));
        assert_eq!(
            text,
            "machinedeployment ns/md has no revision 9; there are: 1 (md-a, class old), 2 (md-b, class new, present)"
        );
        let text = no_such_revision(&deployment, &[], RollbackTarget::Previous);
        assert_eq!(
            text,
            "machinedeployment ns/md has no revision before the present one; none of its sets has a revision, so apply \
             the earlier template again"
        );
    }
}
