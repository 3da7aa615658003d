//! Decides whether an instance belongs to a machine, and what its state means (spec/providers §5.3). Pure functions.

use machine_driver::{Code, ListedVm, Machine, NodeAddress, OwnerTags, Status, VmIdentity};

use crate::{
    resources::{External, Instance},
    spec::{ClassTags, Spec},
    zone::{ProviderId, Zone},
};

/// The state of an instance, as far as it matters to its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// GCE looks for capacity. The operation that creates the instance may still fail, and the instance is gone then.
    BeingCreated,
    /// The instance exists. It may have stopped, for example after a preemption.
    Exists,
    /// The instance stops, or it is being deleted.
    Ending,
}

impl State {
    /// The state of an instance.
    pub fn of(instance: &Instance) -> Self {
        match instance.status.as_str() {
            "PROVISIONING" | "PENDING" => Self::BeingCreated,
            "STOPPING" | "PENDING_STOP" | "DEPROVISIONING" => Self::Ending,
            _ => Self::Exists,
        }
    }
}

/// Whether an instance has the network tags that prove its owner.
pub fn is_owned(instance: &Instance, owner: &OwnerTags) -> bool {
    owner.own(|key| instance.has_tag(key))
}

/// Checks the instance that has the provider id of a machine. The tags of a class may be edited after the creation, so that one tag of the cluster
/// is enough.
///
/// # Errors
/// `FailedPrecondition` for an instance with the name of another machine, or of another cluster.
pub fn check_named_by_id(instance: &Instance, id: &ProviderId, tags: &ClassTags, machine: &str) -> Result<(), Status> {
    let (name, id) = (&id.instance, id.zone.provider_id(&id.instance));
    if !machine.is_empty() && machine != name {
        let message = format!("the provider id {id} names another instance than {machine}; it is not touched");
        return Err(Status::new(Code::FailedPrecondition, message));
    }
    if tags.may_share_a_cluster_with(instance) {
        return Ok(());
    }
    let lacks = if tags.name_a_cluster() {
        "has none of the network tags of the class's cluster, so it may belong to another cluster"
    } else {
        "has no network tags of a cluster and a role, so it may belong to another program"
    };
    let message = format!(
        "instance {id} {lacks} and is not touched; add the tags if it belongs to this machine, otherwise remove the machine's finalizer"
    );
    Err(Status::new(Code::FailedPrecondition, message))
}

/// The status for an instance with the machine's name that lacks a tag of the class: it may be the machine's, because tags may be edited.
pub fn of_another_class(zone: &Zone, instance: &Instance, tags: &ClassTags) -> Status {
    let id = zone.provider_id(&instance.name);
    let message = match tags.owner() {
        Some(owner) => format!(
            "instance {id} has the name of the machine and a tag of its cluster, but not all network tags {owner}; it is not touched; add the \
             tags if it belongs to this machine, otherwise remove the machine's finalizer"
        ),
        None => format!(
            "instance {id} has the name of the machine, and the tags of the class name no cluster or no role; it is not touched; add the tags \
             of the instance to the class if it belongs to this machine, otherwise remove the machine's finalizer"
        ),
    };
    Status::new(Code::FailedPrecondition, message)
}

/// The status for a missing instance.
pub fn not_found(machine: &str) -> Status {
    Status::new(Code::NotFound, format!("machine name={machine}, uuid= not found"))
}

/// The identity of an instance. GCE's Nodes have the names of their instances.
pub fn identity(zone: &Zone, instance: &Instance) -> VmIdentity {
    VmIdentity {
        provider_id: zone.provider_id(&instance.name),
        node_name: instance.name.clone(),
        addresses: addresses(instance),
    }
}

fn addresses(instance: &Instance) -> Vec<NodeAddress> {
    let address = |type_: &str, address: &str| {
        (!address.is_empty()).then(|| NodeAddress { type_: type_.to_owned(), address: address.to_owned() })
    };
    let of_interfaces = instance.network_interfaces.iter().flat_map(|interface| {
        let internal = [&interface.address, &interface.ipv6_address];
        let external = interface.external.iter().map(|External { address, .. }| address);
        let external = external.chain(interface.external_ipv6.iter().map(|one| &one.ipv6_address));
        let internal = internal.into_iter().map(|text| address("InternalIP", text));
        internal.chain(external.map(|text| address("ExternalIP", text))).flatten().collect::<Vec<_>>()
    });
    of_interfaces.chain(address("Hostname", &instance.name)).collect()
}

/// A row of a list. `None` for an instance of another owner.
pub fn listed(zone: &Zone, owner: &OwnerTags, instance: Instance) -> Option<ListedVm> {
    is_owned(&instance, owner).then(|| ListedVm {
        provider_id: zone.provider_id(&instance.name),
        machine_name: instance.name,
        created: instance.creation_timestamp,
    })
}

/// The annotation of a machine with which a user lets the driver lift the protection against deletion. Its value is `true`.
const LIFT_ANNOTATION: &str = "machine.sapcloud.io/lift-deletion-protection";

/// The protection of an instance against deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// The instance is not protected.
    Absent,
    /// The driver lifts it, because the class has asked for it and the machine's annotation allows it.
    Lifted,
    /// A user has to lift it.
    Kept,
}

impl Protection {
    /// The protection of the instance of a machine.
    pub fn of(instance: &Instance, spec: &Spec, machine: &Machine) -> Self {
        if !instance.deletion_protection {
            return Self::Absent;
        }
        let annotations = machine.metadata.annotations.as_ref();
        let allows = annotations.and_then(|all| all.get(LIFT_ANNOTATION)).is_some_and(|value| value == "true");
        if allows && spec.deletion_protection { Self::Lifted } else { Self::Kept }
    }
}

/// The error for an instance that is protected against deletion.
pub fn protected(zone: &Zone, name: &str) -> Status {
    let (id, project, zone) = (zone.provider_id(name), zone.project(), zone.name());
    let message = format!(
        "instance {id} is protected against deletion; lift the protection: gcloud compute instances update {name} \
         --no-deletion-protection --zone {zone} --project {project}; or annotate the machine with {LIFT_ANNOTATION}=true if its class has \
         deletionProtection"
    );
    Status::new(Code::FailedPrecondition, message)
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
