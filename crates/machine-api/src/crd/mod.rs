//! The four definitions (`CustomResourceDefinition`), generated from the Rust types (spec/api-and-admission §2, §6).
//!
//! [`crate::schema`] makes the schemas of the types. [`rules`] adds the bounds and the CEL of the rules. This file adds names, columns and
//! subresources. The files in `crds/` are the result of [`definitions`] for the default options, and a test compares them.

mod installed;
mod rules;

pub use self::installed::{is_kept, missing_fields, remove_unknown, some, written_schema};
use serde_json::{Value, json};

use crate::{
    kind::{ApiVersion, Kind},
    names, schema,
    validation::Part,
    webhooks::{Client, Webhook},
};

/// The options of the definitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrdOptions {
    /// Whether the API server serves v1beta1.
    pub v1beta1: V1Beta1,
    /// The oldest API server that must accept the definitions.
    pub servers: OldestServer,
}

/// Whether the API server serves v1beta1, and whether it stores objects in this version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum V1Beta1 {
    /// v1beta1 is defined but not served. No request depends on a converter.
    #[default]
    NotServed,
    /// v1beta1 is served, and this webhook converts. Objects are stored as v1alpha1.
    Served(Client),
    /// The same, but objects are stored as v1beta1. This is the state after `mcm migrate-storage --to v1beta1`.
    Stored(Client),
}

/// The oldest API server that the definitions are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OldestServer {
    /// 1.33 and later. The API server forgives violations in fields that an update doesn't change. Before, from 1.30 on, it forgives them in updates
    /// of objects, but not in writes of the status (kubernetes/kubernetes#129503), so that controllers can't write the status of a machine whose spec
    /// violates a rule.
    #[default]
    Ratcheting,
    /// Earlier versions. Every violation blocks every update, even the removal of a finalizer. So the definitions have no bounds that a stored object
    /// might violate.
    NotRatcheting,
}

/// The names and columns of a kind in lists.
struct Listing {
    kind: Kind,
    short: &'static str,
    columns: &'static [Column],
    scale: bool,
}

struct Column {
    name: &'static str,
    value_type: &'static str,
    path: &'static str,
    description: &'static str,
    /// Columns of priority 1 are shown only with `-o wide`.
    priority: u8,
}

const fn column(
    name: &'static str,
    value_type: &'static str,
    path: &'static str,
    priority: u8,
    description: &'static str,
) -> Column {
    Column { name, value_type, path, description, priority }
}

const AGE: Column = column("Age", "date", ".metadata.creationTimestamp", 0, "Time since the object was created.");

const MACHINE: Listing = Listing {
    kind: Kind::Machine,
    short: "mc",
    columns: &[
        column("Status", "string", ".status.currentStatus.phase", 0, "Current status of the machine."),
        AGE,
        column("Node", "string", ".metadata.labels.node", 0, "Node backed by the machine."),
        column("ProviderID", "string", ".spec.providerID", 1, "Identity of the VM at the provider."),
    ],
    scale: false,
};

const MACHINE_SET: Listing = Listing {
    kind: Kind::MachineSet,
    short: "mcs",
    columns: &[
        column("Desired", "integer", ".spec.replicas", 0, "Wanted machines."),
        column("Current", "integer", ".status.replicas", 0, "Existing machines."),
        column("Ready", "integer", ".status.readyReplicas", 0, "Machines that are Running."),
        AGE,
    ],
    scale: true,
};

const MACHINE_DEPLOYMENT: Listing = Listing {
    kind: Kind::MachineDeployment,
    short: "mcd",
    columns: &[
        column("Ready", "integer", ".status.readyReplicas", 0, "Machines that are Running."),
        column("Desired", "integer", ".spec.replicas", 0, "Wanted machines."),
        column("Up-to-date", "integer", ".status.updatedReplicas", 0, "Machines of the newest set."),
        column("Available", "integer", ".status.availableReplicas", 0, "Machines that are available."),
        AGE,
    ],
    scale: true,
};

const MACHINE_CLASS: Listing = Listing {
    kind: Kind::MachineClass,
    short: "mcc",
    columns: &[
        column("Provider", "string", ".provider", 0, "Driver that makes the VMs."),
        column("Type", "string", ".nodeTemplate.instanceType", 0, "Machine type at the provider."),
        column("Zone", "string", ".nodeTemplate.zone", 1, "Zone of the VMs."),
        AGE,
    ],
    scale: false,
};

/// The four definitions, in the order `Machine`, `MachineSet`, `MachineDeployment`, `MachineClass`.
pub fn definitions(options: &CrdOptions) -> Vec<Value> {
    [MACHINE, MACHINE_SET, MACHINE_DEPLOYMENT, MACHINE_CLASS]
        .iter()
        .map(|listing| definition(listing, options))
        .collect()
}

fn definition(listing: &Listing, options: &CrdOptions) -> Value {
    let kind = listing.kind;
    let served = options.v1beta1 != V1Beta1::NotServed;
    let stored = matches!(options.v1beta1, V1Beta1::Stored(_));
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", kind.plural(), names::GROUP)},
        "spec": {
            "group": names::GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.as_str(),
                "listKind": format!("{kind}List"),
                "singular": kind.as_str().to_lowercase(),
                "plural": kind.plural(),
                "shortNames": [listing.short],
                "categories": ["mcm"],
            },
            "conversion": conversion(&options.v1beta1),
            "versions": [
                {
                    "name": names::V1ALPHA1,
                    "served": true,
                    "storage": !stored,
                    "schema": {"openAPIV3Schema": schema(kind, ApiVersion::V1alpha1, options.servers)},
                    "subresources": subresources(listing, ApiVersion::V1alpha1),
                    "additionalPrinterColumns": columns(listing, ApiVersion::V1alpha1),
                },
                {
                    "name": names::V1BETA1,
                    "served": served,
                    "storage": stored,
                    "schema": {"openAPIV3Schema": schema(kind, ApiVersion::V1beta1, options.servers)},
                    "subresources": subresources(listing, ApiVersion::V1beta1),
                    "additionalPrinterColumns": columns(listing, ApiVersion::V1beta1),
                },
            ],
        },
    })
}

fn conversion(v1beta1: &V1Beta1) -> Value {
    match v1beta1 {
        V1Beta1::NotServed => json!({"strategy": "None"}),
        V1Beta1::Served(client) | V1Beta1::Stored(client) => json!({
            "strategy": "Webhook",
            "webhook": {"clientConfig": client.config(Webhook::Convert), "conversionReviewVersions": ["v1"]},
        }),
    }
}

fn subresources(listing: &Listing, version: ApiVersion) -> Value {
    if listing.scale {
        return json!({
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        });
    }
    // In v1alpha1 the payload of a class is at the top level, as in the Go original, so that there is no status subresource.
    if listing.kind == Kind::MachineClass && version == ApiVersion::V1alpha1 {
        json!({})
    } else {
        json!({"status": {}})
    }
}

fn columns(listing: &Listing, version: ApiVersion) -> Value {
    let moved = |path: &str| match (version, listing.kind, path) {
        (ApiVersion::V1beta1, Kind::Machine, ".status.currentStatus.phase") => ".status.phase".to_owned(),
        (ApiVersion::V1beta1, Kind::MachineClass, path) if !path.starts_with(".metadata") => format!(".spec{path}"),
        (_, _, path) => path.to_owned(),
    };
    listing
        .columns
        .iter()
        .map(|column| {
            let mut value = json!({
                "name": column.name,
                "type": column.value_type,
                "jsonPath": moved(column.path),
                "description": column.description,
            });
            if column.priority > 0 {
                value["priority"] = json!(column.priority);
            }
            value
        })
        .collect()
}

fn schema(kind: Kind, version: ApiVersion, servers: OldestServer) -> Value {
    let mut schema = schema::of(kind, version);
    if matches!(kind, Kind::MachineSet | Kind::MachineDeployment) {
        // Go omits zeros. The default keeps the scale subresource readable.
        rules::existing_node(&mut schema, "spec", "replicas").insert("default".to_owned(), json!(0));
    }
    // Stored objects might violate the bounds, and only newer API servers forgive that.
    if servers == OldestServer::Ratcheting {
        match kind {
            Kind::Machine => machine_spec(&mut schema, version, "spec"),
            Kind::MachineSet | Kind::MachineDeployment => scaled_spec(&mut schema, kind, version),
            Kind::MachineClass => machine_class(&mut schema, version),
        }
        bound_specification(&mut schema);
    }
    schema
}

fn machine_spec(schema: &mut Value, version: ApiVersion, root: &str) {
    let (bounds, class) = match version {
        ApiVersion::V1alpha1 => (rules::MACHINE_SPEC_V1ALPHA1, "class"),
        ApiVersion::V1beta1 => (rules::MACHINE_SPEC_V1BETA1, "classRef"),
    };
    rules::bound(schema, root, bounds);
    rules::validate(schema, &format!("{root}.{class}"), Part::ClassReference);
}

fn scaled_spec(schema: &mut Value, kind: Kind, version: ApiVersion) {
    rules::bound(schema, "spec", rules::SET_SPEC);
    rules::validate(schema, "spec", Part::ScaledSpec);
    if kind == Kind::MachineSet {
        rules::validate(schema, "spec", Part::SetSpec);
    } else {
        rules::bound(schema, "spec", rules::DEPLOYMENT_SPEC);
        let of_version = match version {
            ApiVersion::V1alpha1 => rules::DEPLOYMENT_SPEC_V1ALPHA1,
            ApiVersion::V1beta1 => rules::DEPLOYMENT_SPEC_V1BETA1,
        };
        rules::bound(schema, "spec", of_version);
        rules::validate(schema, "spec", Part::DeploymentSpec);
    }
    machine_spec(schema, version, "spec.template.spec");
}

fn machine_class(schema: &mut Value, version: ApiVersion) {
    let (root, user_data) = match version {
        ApiVersion::V1alpha1 => ("", "secretRef"),
        ApiVersion::V1beta1 => ("spec", "userDataSecretRef"),
    };
    for field in [user_data, "credentialsSecretRef"] {
        rules::bound(schema, &format!("{root}.{field}"), rules::SECRET_REFERENCE);
    }
    let template = format!("{root}.nodeTemplate");
    rules::bound(schema, &template, rules::NODE_TEMPLATE);
    rules::validate(schema, &template, Part::ClassNodeTemplate);
}

/// Bounds all fields that users write. A status has no bounds, because no write of a controller may fail for a stored value.
fn bound_specification(schema: &mut Value) {
    const NOT_WRITTEN_BY_USERS: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, node) in properties.into_iter().flatten() {
        if !NOT_WRITTEN_BY_USERS.contains(&name.as_str()) {
            rules::bound_all(node);
        }
    }
}

#[cfg(test)]
mod tests;
