//! Reads the objects of a manager in a cluster, before anything is decided.

use std::collections::BTreeSet;

use controller_runtime::error::ApiError;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
};
use machine_api::{
    kind::{ApiVersion, Kind},
    names::{self, finalizer},
};
use serde_json::{Value, json};

use crate::cli::{
    Failure,
    cluster_objects::{get, list, of},
    lease_watch::Held,
    manifests::guard::guard_name,
    migrate_storage::definition::{is, name_of},
    webhook_scope::WebhookScope,
};

/// The label of all objects of the manifests.
const APP_LABEL: &str = "app.kubernetes.io/name";
/// Both Leases.
pub(super) const LEASES: [&str; 2] = [names::LEASE_CONTROLLER_MANAGER, names::LEASE_MACHINE_CONTROLLER];
const WEBHOOKS: &str = "admissionregistration.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const FLOWS: &str = "flowcontrol.apiserver.k8s.io";

/// A resource of an API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Resource {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
}

const fn resource(group: &'static str, version: &'static str, kind: &'static str, plural: &'static str) -> Resource {
    Resource { group, version, kind, plural }
}

impl Resource {
    pub(super) fn api(self, client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
        of(client, namespace, self.group, self.version, self.kind, self.plural)
    }

    pub(super) const fn of_kind(kind: Kind) -> Self {
        resource(names::GROUP, names::V1ALPHA1, kind.as_str(), kind.plural())
    }
}

pub(super) const SECRETS: Resource = resource("", "v1", "Secret", "secrets");
pub(super) const NODES: Resource = resource("", "v1", "Node", "nodes");
pub(super) const LEASE: Resource = resource("coordination.k8s.io", "v1", "Lease", "leases");
pub(super) const DEFINITIONS: Resource =
    resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions");
pub(super) const VIEWS: Resource = resource("apiregistration.k8s.io", "v1", "APIService", "apiservices");
pub(super) const MUTATING: Resource =
    resource(WEBHOOKS, "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations");
const VALIDATING: Resource =
    resource(WEBHOOKS, "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations");
pub(super) const POLICIES: Resource =
    resource(WEBHOOKS, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies");
pub(super) const BINDINGS: Resource =
    resource(WEBHOOKS, "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings");
const DEPLOYMENTS: Resource = resource("apps", "v1", "Deployment", "deployments");
const SERVICE_ACCOUNTS: Resource = resource("", "v1", "ServiceAccount", "serviceaccounts");
const CONFIG_MAPS: Resource = resource("", "v1", "ConfigMap", "configmaps");
const ENDPOINTS: Resource = resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");

/// Objects that the command lists but does not remove, in the namespace of the Service.
const REMAINING_IN_THE_SERVICE_NAMESPACE: [Resource; 4] = [
    DEPLOYMENTS,
    SERVICE_ACCOUNTS,
    resource("", "v1", "Service", "services"),
    resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
];
const REMAINING_ANYWHERE: [Resource; 6] = [
    resource(RBAC, "v1", "Role", "roles"),
    resource(RBAC, "v1", "RoleBinding", "rolebindings"),
    resource(RBAC, "v1", "ClusterRole", "clusterroles"),
    resource(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings"),
    resource(FLOWS, "v1", "FlowSchema", "flowschemas"),
    resource(FLOWS, "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations"),
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
        let mut read = Self::default();
        read.registrations(client, place).await?;
        for kind in Kind::ALL {
            for object in list(&Resource::of_kind(kind).api(client, Some(&place.namespace))).await? {
                read.objects.push(Found { resource: Resource::of_kind(kind), object });
            }
        }
        for object in list(&SECRETS.api(client, Some(&place.namespace))).await? {
            let secret = Found { resource: SECRETS, object };
            if secret.has_finalizer(finalizer::SECRET) {
                read.secrets.push(secret);
            }
        }
        if let Some(target) = target {
            let nodes = list(&NODES.api(target, None)).await?;
            read.nodes = Some(nodes.into_iter().map(|object| Found { resource: NODES, object }).collect());
        }
        let certificate = get(&SECRETS.api(client, Some(&place.service_namespace)), names::CERTIFICATE_SECRET).await?;
        read.certificate = certificate.map(|object| Found { resource: SECRETS, object });
        read.managers(client, place).await?;
        read.list_remaining(client, place).await;
        Ok(read)
    }

    async fn registrations(&mut self, client: &Client, place: &Place) -> Result<(), Failure> {
        let configuration = place.scope.configuration(&place.namespace);
        let shared = place.scope == WebhookScope::Cluster;
        let mut wanted: Vec<(Resource, String)> = Vec::new();
        if shared {
            // The registration goes first: without a manager it would block the deletion of every namespace.
            wanted.push((VIEWS, names::API_SERVICE.to_owned()));
        }
        wanted.extend([MUTATING, VALIDATING].map(|resource| (resource, configuration.clone())));
        // The policies go too: without the webhooks that set defaults, they would refuse incomplete objects.
        for suffix in machine_api::admission::policies::SUFFIXES {
            wanted.extend([BINDINGS, POLICIES].map(|resource| (resource, format!("{configuration}-{suffix}"))));
        }
        for (resource, name) in wanted {
            if let Some(object) = get(&resource.api(client, None), &name).await? {
                self.registrations.push(Found { resource, object });
            }
        }
        for resource in [BINDINGS, POLICIES] {
            let guard = get(&resource.api(client, None), &guard_name()).await?.filter(|_| shared);
            self.guard.extend(guard.map(|object| Found { resource, object }));
        }
        // An API server creates APIServices for its own groups. Ours names a Service.
        self.registrations.retain(|found| found.resource != VIEWS || found.object.data["spec"]["service"].is_object());
        for kind in Kind::ALL.into_iter().filter(|_| shared) {
            let Some(object) = get(&DEFINITIONS.api(client, None), &name_of(kind)).await? else { continue };
            let definition = definition_of(&object);
            if is(&definition, ApiVersion::V1beta1, "served") {
                self.definitions.push(Found { resource: DEFINITIONS, object });
            } else if definition["status"]["storedVersions"] != json!([names::V1ALPHA1]) {
                self.hollow.insert(name_of(kind));
            }
        }
        Ok(())
    }

    /// Finds the managers of this namespace and of others.
    async fn managers(&mut self, client: &Client, place: &Place) -> Result<(), Failure> {
        for name in LEASES {
            let by_name = ListParams::default().fields(&format!("metadata.name={name}"));
            let all = LEASE.api(client, None).list(&by_name).await;
            let all = all.map_err(|error| Failure::run(anyhow::anyhow!("cannot list Leases {name}: {error}")))?;
            for lease in all {
                let namespace = lease.metadata.namespace.unwrap_or_default();
                if namespace == place.namespace {
                    self.is_installed = true;
                } else if Held::read(&lease.data["spec"]).is_some() {
                    self.neighbours.insert(namespace);
                }
            }
        }
        self.is_installed |= runs_in(client, &place.service_namespace).await?;
        for neighbour in &self.neighbours {
            if *neighbour == place.service_namespace || !runs_in(client, neighbour).await? {
                self.sharing.insert(neighbour.clone());
            }
        }
        Ok(())
    }

    /// Lists the objects that remain. An error is only noted, because nothing depends on them.
    async fn list_remaining(&mut self, client: &Client, place: &Place) {
        let app = format!("{APP_LABEL}={}", names::WEBHOOK_CONFIGURATION);
        let home = Some(place.service_namespace.as_str());
        let mut places: Vec<(Resource, Option<&str>, &str)> = Vec::new();
        places.extend(REMAINING_IN_THE_SERVICE_NAMESPACE.map(|resource| (resource, home, app.as_str())));
        places.push((LEASE, Some(&place.namespace), ""));
        places.push((CONFIG_MAPS, Some(&place.namespace), names::label::SIMULATION_STATE));
        places.extend(REMAINING_ANYWHERE.map(|resource| (resource, None, app.as_str())));
        for (resource, namespace, label) in places {
            let params = ListParams::default().labels(label);
            let Ok(found) = resource.api(client, namespace).list(&params).await else {
                self.remaining.push((resource.kind, vec!["(could not be listed)".to_owned()]));
                continue;
            };
            let left = |object: &DynamicObject| match resource {
                LEASE => object.metadata.name.as_deref().is_some_and(|name| LEASES.contains(&name)),
                _ => namespace.is_some() || belongs_here(object, place),
            };
            let names: Vec<String> = found.iter().filter(|object| left(object)).map(full_name).collect();
            if !names.is_empty() {
                self.remaining.push((resource.kind, names));
            }
        }
    }
}

/// Whether a namespace has a service account or a certificate for the pods of a manager.
async fn runs_in(client: &Client, namespace: &str) -> Result<bool, Failure> {
    let namespace = Some(namespace);
    let account = get(&SERVICE_ACCOUNTS.api(client, namespace), names::WEBHOOK_CONFIGURATION).await?;
    Ok(account.is_some() || get(&SECRETS.api(client, namespace), names::CERTIFICATE_SECRET).await?.is_some())
}

/// Signs of a running manager other than a Lease. A manager without leader election has no Lease.
///
/// # Errors
/// When an object can't be read.
pub(super) async fn workloads(client: &Client, place: &Place) -> Result<Vec<String>, Failure> {
    let (home, name) = (place.service_namespace.as_str(), names::WEBHOOK_CONFIGURATION);
    let mut workloads = Vec::new();
    if let Some(deployment) = get(&DEPLOYMENTS.api(client, Some(home)), name).await? {
        let replicas = |part: &str| deployment.data[part]["replicas"].as_u64().unwrap_or_default();
        let replicas = replicas("spec").max(replicas("status"));
        if replicas > 0 {
            workloads.push(format!("Deployment {home}/{name} has {replicas} replicas"));
        }
    }
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
    let slices = ENDPOINTS.api(client, Some(home)).list(&of_service).await;
    let is_ready = |slice: &DynamicObject| {
        slice.data["endpoints"].as_array().into_iter().flatten().any(|one| one["conditions"]["ready"] == true)
    };
    match slices {
        Ok(slices) if slices.iter().any(is_ready) => {
            workloads.push(format!("Service {home}/{name} has a ready endpoint"));
        }
        Ok(_) => {}
        // The kind does not exist.
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => {
            let error = ApiError::from(error);
            return Err(Failure::run(anyhow::anyhow!("cannot list EndpointSlices of {home}: {error}")));
        }
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
