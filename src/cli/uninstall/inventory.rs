//! Reads the objects of a manager in a cluster, before anything is decided.

use std::collections::BTreeSet;

use controller_runtime::objects::ListQuery;
use kube::{Client, api::DynamicObject};
use machine_api::{
    kind::{ApiVersion, Kind},
    names::{self, finalizer},
};
use serde_json::{Value, json};

use crate::cli::{
    Failure,
    cluster_objects::{API_SERVICES, DEFINITIONS, LEASES, MUTATING, Resource, SECRETS, VALIDATING, v1},
    lease_watch::Held,
    manifests::guard::guard_name,
    migrate_storage::definition::{is, name_of},
    webhook_scope::WebhookScope,
};

/// The label of all objects of the manifests.
const APP_LABEL: &str = "app.kubernetes.io/name";
/// Both Leases.
pub(super) const LEASE_NAMES: [&str; 2] = [names::LEASE_CONTROLLER_MANAGER, names::LEASE_MACHINE_CONTROLLER];
const RBAC: &str = "rbac.authorization.k8s.io";
const FLOWS: &str = "flowcontrol.apiserver.k8s.io";

pub(super) const NODES: Resource = v1("", "Node", "nodes");
pub(super) const POLICIES: Resource = v1(MUTATING.group, "ValidatingAdmissionPolicy", "validatingadmissionpolicies");
pub(super) const BINDINGS: Resource =
    v1(MUTATING.group, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings");
const DEPLOYMENTS: Resource = v1("apps", "Deployment", "deployments");
const SERVICE_ACCOUNTS: Resource = v1("", "ServiceAccount", "serviceaccounts");
const CONFIG_MAPS: Resource = v1("", "ConfigMap", "configmaps");
const ENDPOINTS: Resource = v1("discovery.k8s.io", "EndpointSlice", "endpointslices");

/// Objects that the command lists but does not remove, in the namespace of the Service.
const REMAINING_IN_THE_SERVICE_NAMESPACE: [Resource; 4] = [
    DEPLOYMENTS,
    SERVICE_ACCOUNTS,
    v1("", "Service", "services"),
    v1("policy", "PodDisruptionBudget", "poddisruptionbudgets"),
];
const REMAINING_ANYWHERE: [Resource; 6] = [
    v1(RBAC, "Role", "roles"),
    v1(RBAC, "RoleBinding", "rolebindings"),
    v1(RBAC, "ClusterRole", "clusterroles"),
    v1(RBAC, "ClusterRoleBinding", "clusterrolebindings"),
    v1(FLOWS, "FlowSchema", "flowschemas"),
    v1(FLOWS, "PriorityLevelConfiguration", "prioritylevelconfigurations"),
];

/// The manager that is uninstalled.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Namespace of the machine objects.
    pub(super) namespace: String,
    /// Namespace of the process.
    pub(super) service_namespace: String,
    /// The namespaces that its webhooks cover.
    pub(super) scope: WebhookScope,
}

/// An object with its resource.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) resource: Resource,
    pub(super) object: DynamicObject,
}

impl Found {
    pub(super) fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.object.metadata.namespace.as_deref()
    }

    pub(super) fn has_finalizer(&self, finalizer: &str) -> bool {
        self.object.metadata.finalizers.iter().flatten().any(|present| present == finalizer)
    }
}

/// The objects that were read.
#[derive(Clone, Debug, Default)]
pub(super) struct Inventory {
    /// The registration of the views, webhook configurations, policies and their bindings, by the names of this installation.
    pub(super) registrations: Vec<Found>,
    /// The policy that protects the conversion webhook while objects may be stored as v1beta1, and its binding.
    pub(super) guard: Vec<Found>,
    /// Definitions that serve v1beta1.
    pub(super) definitions: Vec<Found>,
    /// Definitions that don't serve v1beta1 although objects may be stored in it.
    pub(super) hollow: BTreeSet<String>,
    /// Objects of our kinds in the namespace.
    pub(super) objects: Vec<Found>,
    /// Secrets in the namespace with our finalizer.
    pub(super) secrets: Vec<Found>,
    /// The Nodes of the target cluster. `None` without a target cluster.
    pub(super) nodes: Option<Vec<Found>>,
    /// The certificate Secret.
    pub(super) certificate: Option<Found>,
    /// Whether Leases or a service account show that a manager runs, or ran, in this namespace.
    pub(super) is_installed: bool,
    /// Other namespaces in which a Lease of our kind has a holder.
    pub(super) neighbours: BTreeSet<String>,
    /// The neighbours whose manager may run in our service namespace. It is their namespace, or no other namespace shows their manager.
    pub(super) sharing: BTreeSet<String>,
    /// Objects that are only listed: kind and names.
    pub(super) remaining: Vec<(&'static str, Vec<String>)>,
}

impl Inventory {
    /// Reads all objects.
    ///
    /// # Errors
    /// When an object of the plan can't be read.
    pub(super) async fn read(client: &Client, target: Option<&Client>, place: &Place) -> Result<Self, Failure> {
        let mut read = Self::read_registrations(client, target, place).await?;
        read.list_remaining(client, place).await;
        Ok(read)
    }

    /// Reads the objects that need the manager, the registrations, and what says whose they are.
    ///
    /// # Errors
    /// When an object can't be read.
    pub(super) async fn read_registrations(
        client: &Client,
        target: Option<&Client>,
        place: &Place,
    ) -> Result<Self, Failure> {
        let mut read = Self::read_dependents(client, target, place).await?;
        if target.is_none() {
            read.leases(client, place).await?;
        }
        read.registrations(client, place).await?;
        let certificate = SECRETS.get(client, &place.service_namespace, names::CERTIFICATE_SECRET).await?;
        read.certificate = certificate.map(|object| Found { resource: SECRETS, object });
        read.is_installed |= runs_in(client, &place.service_namespace).await?;
        for neighbour in &read.neighbours {
            // A namespace that can't be read shows no manager, so that it counts as one that shares this one's objects.
            let runs_there = runs_in(client, neighbour).await.unwrap_or(false);
            if *neighbour == place.service_namespace || !runs_there {
                read.sharing.insert(neighbour.clone());
            }
        }
        Ok(read)
    }

    /// Reads the objects that need the manager, and with the Nodes also the Leases.
    ///
    /// # Errors
    /// When an object can't be read.
    pub(super) async fn read_dependents(
        client: &Client,
        target: Option<&Client>,
        place: &Place,
    ) -> Result<Self, Failure> {
        let mut read = Self::default();
        for kind in Kind::ALL {
            read.objects.extend(all(client, Resource::of_kind(kind), &place.namespace).await?);
        }
        read.secrets = all(client, SECRETS, &place.namespace).await?;
        read.secrets.retain(|secret| secret.has_finalizer(finalizer::SECRET));
        if let Some(target) = target {
            read.nodes = Some(all(target, NODES, "").await?);
            // Nodes are another manager's, too, if there is one.
            read.leases(client, place).await?;
        }
        Ok(read)
    }

    async fn registrations(&mut self, client: &Client, place: &Place) -> Result<(), Failure> {
        let configuration = place.scope.configuration(&place.namespace);
        let shared = place.scope == WebhookScope::Cluster;
        let mut wanted: Vec<(Resource, String)> = Vec::new();
        if shared {
            // The registration goes first: without a manager it would block the deletion of every namespace.
            wanted.push((API_SERVICES, names::API_SERVICE.to_owned()));
        }
        wanted.extend([MUTATING, VALIDATING].map(|resource| (resource, configuration.clone())));
        // The policies go too: without the webhooks that set defaults, they would refuse incomplete objects.
        for suffix in machine_api::admission::policies::SUFFIXES {
            wanted.extend([BINDINGS, POLICIES].map(|resource| (resource, format!("{configuration}-{suffix}"))));
        }
        for (resource, name) in wanted {
            let object = resource.get(client, "", &name).await?;
            self.registrations.extend(object.map(|object| Found { resource, object }));
        }
        for resource in [BINDINGS, POLICIES] {
            let guard = resource.get(client, "", &guard_name()).await?.filter(|_| shared);
            self.guard.extend(guard.map(|object| Found { resource, object }));
        }
        // An API server creates APIServices for its own groups. Ours names a Service.
        self.registrations
            .retain(|found| found.resource != API_SERVICES || found.object.data["spec"]["service"].is_object());
        for kind in Kind::ALL.into_iter().filter(|_| shared) {
            let Some(object) = DEFINITIONS.get(client, "", &name_of(kind)).await? else { continue };
            let definition = definition_of(&object);
            if is(&definition, ApiVersion::V1beta1, "served") {
                self.definitions.push(Found { resource: DEFINITIONS, object });
            } else if definition["status"]["storedVersions"] != json!([names::V1ALPHA1]) {
                self.hollow.insert(name_of(kind));
            }
        }
        Ok(())
    }

    /// Finds the managers of this namespace and of others by their Leases.
    async fn leases(&mut self, client: &Client, place: &Place) -> Result<(), Failure> {
        for name in LEASE_NAMES {
            let by_name = ListQuery { fields: Some(format!("metadata.name={name}")), ..ListQuery::default() };
            for lease in LEASES.list(client, by_name).await? {
                let namespace = lease.metadata.namespace.unwrap_or_default();
                if namespace == place.namespace {
                    self.is_installed = true;
                } else if Held::read(&lease.data["spec"]).is_some() {
                    self.neighbours.insert(namespace);
                }
            }
        }
        Ok(())
    }

    /// Lists the objects that remain. An error is only noted, because nothing depends on them.
    async fn list_remaining(&mut self, client: &Client, place: &Place) {
        let app = format!("{APP_LABEL}={}", names::WEBHOOK_CONFIGURATION);
        let home = place.service_namespace.as_str();
        let mut places: Vec<(Resource, &str, &str)> = Vec::new();
        places.extend(REMAINING_IN_THE_SERVICE_NAMESPACE.map(|resource| (resource, home, app.as_str())));
        places.push((LEASES, &place.namespace, ""));
        places.push((CONFIG_MAPS, &place.namespace, names::label::SIMULATION_STATE));
        places.extend(REMAINING_ANYWHERE.map(|resource| (resource, "", app.as_str())));
        for (resource, namespace, label) in places {
            let query = ListQuery { selector: Some(label.to_owned()), ..ListQuery::within(namespace) };
            let Ok(found) = resource.list(client, query).await else {
                self.remaining.push((resource.kind, vec!["(could not be listed)".to_owned()]));
                continue;
            };
            let left = |object: &DynamicObject| match resource {
                LEASES => object.metadata.name.as_deref().is_some_and(|name| LEASE_NAMES.contains(&name)),
                _ => !namespace.is_empty() || belongs_here(object, place),
            };
            let names: Vec<String> = found.iter().filter(|object| left(object)).map(full_name).collect();
            if !names.is_empty() {
                self.remaining.push((resource.kind, names));
            }
        }
    }
}

/// All objects of a resource in a namespace. An empty namespace means all.
async fn all(client: &Client, resource: Resource, namespace: &str) -> Result<Vec<Found>, Failure> {
    let objects = resource.list(client, ListQuery::within(namespace)).await?;
    Ok(objects.into_iter().map(|object| Found { resource, object }).collect())
}

/// Whether a namespace has a service account or a certificate for the pods of a manager.
async fn runs_in(client: &Client, namespace: &str) -> Result<bool, Failure> {
    let account = SERVICE_ACCOUNTS.get(client, namespace, names::WEBHOOK_CONFIGURATION).await?;
    Ok(account.is_some() || SECRETS.get(client, namespace, names::CERTIFICATE_SECRET).await?.is_some())
}

/// Signs of a running manager other than a Lease. A manager without leader election has no Lease.
///
/// # Errors
/// When an object can't be read.
pub(super) async fn workloads(client: &Client, place: &Place) -> Result<Vec<String>, Failure> {
    let (home, name) = (place.service_namespace.as_str(), names::WEBHOOK_CONFIGURATION);
    let mut workloads = Vec::new();
    if let Some(deployment) = DEPLOYMENTS.get(client, home, name).await? {
        let replicas = |part: &str| deployment.data[part]["replicas"].as_u64().unwrap_or_default();
        let replicas = replicas("spec").max(replicas("status"));
        if replicas > 0 {
            workloads.push(format!("Deployment {home}/{name} has {replicas} replicas"));
        }
    }
    let of_service =
        ListQuery { selector: Some(format!("kubernetes.io/service-name={name}")), ..ListQuery::within(home) };
    let is_ready = |slice: &DynamicObject| {
        slice.data["endpoints"].as_array().into_iter().flatten().any(|one| one["conditions"]["ready"] == true)
    };
    if ENDPOINTS.list(client, of_service).await?.iter().any(is_ready) {
        workloads.push(format!("Service {home}/{name} has a ready endpoint"));
    }
    Ok(workloads)
}

/// A definition as a value, as [`crate::cli::migrate_storage::definition`] reads it.
pub(super) fn definition_of(object: &DynamicObject) -> Value {
    // Its metadata and data are JSON already.
    serde_json::to_value(object).unwrap_or_default()
}

/// Whether an object outside the namespace belongs to this installation: by the namespace of the service account in it, else by its
/// own name.
fn belongs_here(object: &DynamicObject, place: &Place) -> bool {
    let accounts = |subjects: &Value, pointer: &str| {
        let all = subjects.as_array().into_iter().flatten();
        all.filter_map(|subject| subject.pointer(pointer)?.as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let mut named = accounts(&object.data["subjects"], "/namespace");
    for rule in object.data["spec"]["rules"].as_array().into_iter().flatten() {
        named.extend(accounts(&rule["subjects"], "/serviceAccount/namespace"));
    }
    if !named.is_empty() {
        return named.contains(&place.service_namespace);
    }
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let in_namespace = object.metadata.namespace.as_deref();
    in_namespace.is_some_and(|namespace| namespace == place.service_namespace || namespace == place.namespace)
        || name.ends_with(&format!("-{}", place.namespace))
        || place.scope == WebhookScope::Cluster
}

fn full_name(object: &DynamicObject) -> String {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    object.metadata.namespace.as_deref().map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}
