//! `mcm uninstall`: takes off a cluster what the manager has put on it: registration of the views, webhook configurations, the conversion webhook,
//! our finalizers, the certificate Secret. Definitions and machine objects stay; who deletes the definitions deletes them all.
//!
//! The order matters (decisions: measured on a real API server): registrations go first, while the manager may still run,
//! so that nothing depends on it any more; finalizers go last, when no manager can put them back.

use std::{
    io::{BufRead, Write},
    path::PathBuf,
};

use clap::Args;
use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};

use super::{
    Failure,
    cluster_objects::{get, holder, list, of},
    kubeconfig::{ClusterArgs, run_interruptibly},
    migrate_storage::definition::{is, name_of, place},
    webhook_scope::WebhookScope,
};
use crate::{
    api::{
        kind::{ApiVersion, Kind},
        names::{self, finalizer},
    },
    cluster::error::ApiError,
};

/// Flags of `mcm uninstall`.
#[derive(Clone, Debug, Args)]
pub struct UninstallArgs {
    /// The cluster with the machine objects
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Kubeconfig of the cluster with the Nodes, if that is another one
    #[arg(long, value_name = "FILE")]
    pub target_kubeconfig: Option<PathBuf>,
    /// Namespace of the machine objects
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: String,
    /// Namespace of the manager and its certificate Secret; unset means --namespace
    #[arg(long, value_name = "NAMESPACE")]
    pub service_namespace: Option<String>,
    /// Whose webhooks these are: of every namespace, or of --namespace alone; then the definitions are left as they are
    #[arg(long, default_value = "cluster", value_name = "SCOPE")]
    pub scope: WebhookScope,
    /// Don't ask
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Something to be done, in the order in which it is done.
enum Action {
    /// Delete this object.
    Delete { api: Api<DynamicObject>, object: DynamicObject },
    /// Stop serving v1beta1, and with it the need for a conversion webhook.
    Unserve { api: Api<DynamicObject>, definition: Value },
    /// Take our finalizer off this object.
    Release { api: Api<DynamicObject>, object: DynamicObject, finalizer: &'static str },
}

/// What was found, before anything is done.
struct Findings {
    /// What can be done while the manager runs.
    registrations: Vec<(String, Action)>,
    /// What it would undo.
    remains: Vec<(String, Action)>,
    /// Machines with a VM.
    virtual_machines: Vec<String>,
    /// Leases that somebody holds.
    running: Vec<String>,
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
    let client = args.cluster.connect().await?;
    let target = match &args.target_kubeconfig {
        Some(path) => ClusterArgs { kubeconfig: Some(path.clone()), context: None }.connect().await?,
        None => client.clone(),
    };
    let found = find(args, &client, &target).await?;
    if found.registrations.is_empty() && found.remains.is_empty() {
        writeln!(out, "nothing of the manager is left")?;
        return Ok(());
    }
    for (what, _) in found.registrations.iter().chain(&found.remains) {
        writeln!(out, "{} {what}", if args.dry_run { "would" } else { "will" })?;
    }
    if !found.virtual_machines.is_empty() {
        writeln!(
            out,
            "{} machines have a VM ({}{}). Without the finalizer nobody will delete these VMs: delete the machines first, or \
             hand them to another manager",
            found.virtual_machines.len(),
            found.virtual_machines.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", "),
            if found.virtual_machines.len() > 3 { ", …" } else { "" },
        )?;
    }
    if args.dry_run {
        return Ok(());
    }
    if !args.yes {
        confirm(&args.namespace, out)?;
    }
    carry_out(found.registrations, out).await?;
    if !found.running.is_empty() {
        return Err(Failure::Input(format!(
            "a manager is running ({}) and would put its finalizers back; stop it, for example by `kubectl -n {} scale \
             deployment machine-controller-manager --replicas=0`, then run this command again for the rest",
            found.running.join(", "),
            args.service_namespace.as_ref().unwrap_or(&args.namespace),
        )));
    }
    carry_out(found.remains, out).await?;
    writeln!(out, "done; definitions and objects are still there (deleting the definitions deletes all objects)")?;
    Ok(())
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

async fn find(args: &UninstallArgs, client: &Client, target: &Client) -> Result<Findings, Failure> {
    let (mut registrations, mut remains) = (Vec::new(), Vec::new());
    let shared = args.scope == WebhookScope::Cluster;
    let configuration = args.scope.configuration(&args.namespace);
    if shared {
        // First of all: once no manager answers, it would stall the deletion of every namespace.
        let api = of(client, None, "apiregistration.k8s.io", "v1", "APIService", "apiservices");
        let is_ours = |object: &DynamicObject| {
            // An API server makes such objects itself, for its own groups; ours names a Service.
            object.data["spec"]["service"].is_object()
        };
        if let Some(object) = get(&api, names::API_SERVICE).await?.filter(is_ours) {
            registrations.push((format!("delete APIService {}", names::API_SERVICE), Action::Delete { api, object }));
        }
    }
    for (kind, plural) in [
        ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
        ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
    ] {
        let api = of(client, None, "admissionregistration.k8s.io", "v1", kind, plural);
        if let Some(object) = get(&api, &configuration).await? {
            registrations.push((format!("delete {kind} {configuration}"), Action::Delete { api, object }));
        }
    }
    if shared {
        for kind in Kind::ALL {
            let plural = "customresourcedefinitions";
            let api = of(client, None, "apiextensions.k8s.io", "v1", "CustomResourceDefinition", plural);
            let Some(object) = get(&api, &name_of(kind)).await? else { continue };
            let definition = serde_json::to_value(&object).map_err(Failure::run)?;
            if !is(&definition, ApiVersion::V1beta1, "served") {
                continue;
            }
            if definition["status"]["storedVersions"] != json!([names::V1ALPHA1]) {
                return Err(Failure::Input(format!(
                    "{}: objects may be stored as v1beta1 and could not be read without the conversion webhook; run `mcm \
                     migrate-storage --to v1alpha1` first",
                    name_of(kind)
                )));
            }
            let what = format!("stop serving v1beta1 of {} and take its conversion webhook off", name_of(kind));
            registrations.push((what, Action::Unserve { api, definition }));
        }
    }
    let mut virtual_machines = Vec::new();
    for kind in Kind::ALL {
        let namespace = Some(args.namespace.as_str());
        let api = of(client, namespace, names::GROUP, names::V1ALPHA1, kind.as_str(), kind.plural());
        for object in list(&api).await? {
            if kind == Kind::Machine && object.data["spec"]["providerID"].as_str().is_some_and(|id| !id.is_empty()) {
                virtual_machines.extend(object.metadata.name.clone());
            }
            release(&api, object, finalizer::MACHINE, kind.as_str(), &mut remains);
        }
    }
    let secrets = of(client, Some(&args.namespace), "", "v1", "Secret", "secrets");
    for object in list(&secrets).await? {
        release(&secrets, object, finalizer::SECRET, "Secret", &mut remains);
    }
    let nodes = of(target, None, "", "v1", "Node", "nodes");
    for object in list(&nodes).await? {
        release(&nodes, object, finalizer::NODE, "Node", &mut remains);
    }
    let service_namespace = args.service_namespace.as_ref().unwrap_or(&args.namespace);
    let certificates = of(client, Some(service_namespace), "", "v1", "Secret", "secrets");
    if let Some(object) = get(&certificates, names::CERTIFICATE_SECRET).await? {
        let what = format!("delete Secret {service_namespace}/{}", names::CERTIFICATE_SECRET);
        remains.push((what, Action::Delete { api: certificates, object }));
    }
    let leases = of(client, Some(&args.namespace), "coordination.k8s.io", "v1", "Lease", "leases");
    let mut running = Vec::new();
    for name in [names::LEASE_CONTROLLER_MANAGER, names::LEASE_MACHINE_CONTROLLER] {
        let lease = get(&leases, name).await?;
        running.extend(
            lease
                .and_then(|lease| holder(&lease.data["spec"], Timestamp::now()))
                .map(|holder| format!("Lease {name} is held by {holder}")),
        );
    }
    Ok(Findings { registrations, remains, virtual_machines, running })
}

fn release(
    api: &Api<DynamicObject>,
    object: DynamicObject,
    finalizer: &'static str,
    kind: &str,
    actions: &mut Vec<(String, Action)>,
) {
    let finalizers = object.metadata.finalizers.as_deref().unwrap_or_default();
    if finalizers.iter().any(|present| present == finalizer) {
        let what = format!("take the finalizer off {kind} {}", object.metadata.name.as_deref().unwrap_or_default());
        actions.push((what, Action::Release { api: api.clone(), object, finalizer }));
    }
}

async fn carry_out(actions: Vec<(String, Action)>, out: &mut dyn Write) -> Result<(), Failure> {
    for (what, action) in actions {
        let done = match action {
            Action::Delete { api, object } => delete(&api, &object).await,
            Action::Unserve { api, definition } => unserve(&api, &definition).await,
            Action::Release { api, object, finalizer } => take_off(&api, object, finalizer).await,
        };
        match done {
            Ok(()) => writeln!(out, "done: {what}")?,
            // Somebody else was faster.
            Err(ApiError::NotFound(_)) => writeln!(out, "gone: {what}")?,
            Err(error) => return Err(Failure::run(anyhow::anyhow!("cannot {what}: {error}; run the command again"))),
        }
    }
    Ok(())
}

async fn delete(api: &Api<DynamicObject>, object: &DynamicObject) -> Result<(), ApiError> {
    let preconditions = Preconditions { uid: object.metadata.uid.clone(), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    api.delete(object.metadata.name.as_deref().unwrap_or_default(), &params).await?;
    Ok(())
}

async fn unserve(api: &Api<DynamicObject>, definition: &Value) -> Result<(), ApiError> {
    let place = place(definition, ApiVersion::V1beta1).unwrap_or_default();
    let patch = json!([
        {"op": "test", "path": format!("/spec/versions/{place}/name"), "value": names::V1BETA1},
        {"op": "replace", "path": format!("/spec/versions/{place}/served"), "value": false},
        {"op": "replace", "path": "/spec/conversion", "value": {"strategy": "None"}},
    ]);
    let patch: json_patch::Patch = serde_json::from_value(patch).map_err(|error| ApiError::Other(error.to_string()))?;
    let name = definition["metadata"]["name"].as_str().unwrap_or_default();
    api.patch(name, &PatchParams::default(), &Patch::Json::<()>(patch)).await?;
    Ok(())
}

/// Tries again on what the object has become meanwhile, as long as it is the same.
async fn take_off(api: &Api<DynamicObject>, mut object: DynamicObject, ours: &str) -> Result<(), ApiError> {
    let name = object.metadata.name.clone().unwrap_or_default();
    for _ in 0..5 {
        let mut left = object.metadata.finalizers.clone().unwrap_or_default();
        left.retain(|finalizer| finalizer != ours);
        let patch = json!({"metadata": {
            "uid": object.metadata.uid, "resourceVersion": object.metadata.resource_version, "finalizers": left,
        }});
        match api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(ApiError::from) {
            Ok(_) => return Ok(()),
            Err(ApiError::Conflict(_)) => object = api.get(&name).await?,
            Err(error) => return Err(error),
        }
    }
    Err(ApiError::Conflict(format!("{name} is being changed all the time; stop whoever does it")))
}
