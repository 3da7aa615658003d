//! Decides whether an instance belongs to a machine, and what its state means. Pure functions.

use std::time::Duration;

use jiff::Timestamp;
use machine_api::v1alpha1::{Machine, OperationType};
use machine_driver::{Code, ListedVm, NodeAddress, OwnerTags, Status, VmIdentity};

use crate::{
    actions::Instance,
    names::{InstanceLocation, node_name},
    state::Kept,
};

/// The longest time until ECS shows a new instance in every answer. It is assumed: ECS does not document one.
pub const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Whether something happened so recently that ECS may not show it yet. The clock of another host may be ahead, so a time in the future is recent.
pub fn is_recent(time: Timestamp, now: Timestamp) -> bool {
    !Duration::try_from(now.duration_since(time)).is_ok_and(|age| age >= VISIBILITY_TIMEOUT)
}

/// Whether ECS may not show the instance of a machine with a provider id yet: its creation ended recently, and its Node has not joined.
pub fn may_be_shown_later(machine: &Machine, kept: Option<&Kept>, now: Timestamp) -> bool {
    // The conditions are those of its Node. An instance that has run for so long was shown.
    if !machine.status.conditions.is_empty() {
        return false;
    }
    let last = &machine.status.last_operation;
    let creation = last.last_update_time.as_ref().filter(|_| last.operation == OperationType::Create);
    let asked = kept.and_then(|kept| kept.asked);
    creation.map(|time| time.0).into_iter().chain(asked).any(|time| is_recent(time, now))
}

/// The proofs that an instance is ours: all tags of the class, or all tags that the class had when the instance was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners(Vec<OwnerTags>);

impl Owners {
    /// The owner in the class, and the owner in the state of the machine, as far as they are known.
    pub fn of(class: Option<OwnerTags>, kept: Option<OwnerTags>) -> Self {
        let mut all: Vec<OwnerTags> = class.into_iter().collect();
        all.extend(kept.filter(|kept| !all.contains(kept)));
        Self(all)
    }

    /// Whether an instance has all tags of one owner.
    pub fn own(&self, instance: &Instance) -> bool {
        self.0.iter().any(|owner| owner.own(|key| instance.has_tag(key)))
    }

    /// Whether an instance belongs to the cluster of one owner, with any role.
    pub fn share_a_cluster_with(&self, instance: &Instance) -> bool {
        self.0.iter().any(|owner| owner.share_a_cluster_with(|key| instance.has_tag(key)))
    }

    /// Whether nothing proves whose an instance is.
    pub const fn are_unknown(&self) -> bool {
        self.0.is_empty()
    }

    fn shown(&self) -> String {
        match self.0.first() {
            Some(owner) => format!("the tags of the class ({owner})"),
            None => {
                "tags of the form kubernetes.io/cluster/**** and kubernetes.io/role/****, which the class lacks, too"
                    .to_owned()
            }
        }
    }
}

/// The machine that an instance is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimant<'a> {
    /// A machine of this name.
    Machine(&'a str),
    /// The collector of orphans, which knows the instance from a list.
    Collector,
}

/// Checks the instance that has the provider id of a machine. A user may rename an instance, so that all tags are enough. A user may also edit the
/// tags of a class, so that the name of the machine and a tag of its cluster are enough.
///
/// # Errors
/// `FailedPrecondition` for another instance. It runs, so this is no `NotFound`, which would end the machine without its instance.
pub fn check_named_by_id(instance: &Instance, owners: &Owners, claimant: Claimant<'_>) -> Result<(), Status> {
    let is_named = matches!(claimant, Claimant::Machine(name) if name == instance.name);
    if owners.own(instance) || (is_named && owners.share_a_cluster_with(instance)) {
        return Ok(());
    }
    let message = format!(
        "instance {} with the name {:?} lacks {}, so it may belong to another cluster and is not touched; add the tags if it belongs to \
         this machine, otherwise remove the machine's finalizer",
        instance.id,
        instance.name,
        owners.shown()
    );
    Err(Status::new(Code::FailedPrecondition, message))
}

/// The instances with the name of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The instances of the machine.
    pub ours: Vec<Instance>,
    /// An instance that may be the machine's: it has a tag of its cluster, or the tags of the machine are unknown.
    pub doubtful: Option<Instance>,
}

impl Named {
    /// Divides the instances of a name. Instances of other clusters are left out, because names are not unique.
    pub fn of(instances: Vec<Instance>, owners: &Owners) -> Self {
        let (ours, others): (Vec<_>, Vec<_>) = instances.into_iter().partition(|instance| owners.own(instance));
        let may_be_ours = |other: &Instance| owners.are_unknown() || owners.share_a_cluster_with(other);
        Self { ours, doubtful: others.into_iter().find(may_be_ours) }
    }
}

/// The status for an instance with the name of the machine that may be the machine's, because tags may be edited.
pub fn doubtful(instance: &Instance, owners: &Owners, code: Code) -> Status {
    let message = format!(
        "instance {} has the name of the machine, but lacks {}; it is not touched; add the tags if it belongs to this machine, otherwise \
         rename it",
        instance.id,
        owners.shown()
    );
    Status::new(code, message)
}

/// The status for a machine without an instance.
pub fn not_found(machine: &str) -> Status {
    Status::new(Code::NotFound, format!("VM instance not found backing this machine object {machine}"))
}

/// The status for a machine with several instances.
pub fn too_many(instances: &[Instance]) -> Status {
    let ids: Vec<_> = instances.iter().map(|instance| instance.id.as_str()).collect();
    let message = format!(
        "multiple VM instances found backing this machine object. IDs for all backing VMs - [{}] ",
        ids.join(" ")
    );
    Status::new(Code::OutOfRange, message)
}

/// The status for an instance that ECS does not show yet.
pub fn not_shown_yet(machine: &str) -> Status {
    let message = format!(
        "ECS shows no instance of machine {machine}, but one may have been launched in the last {} minutes; it is asked for again",
        VISIBILITY_TIMEOUT.as_secs() / 60
    );
    Status::new(Code::Unavailable, message)
}

/// Checks that the credentials see the machine's instance, which was asked for in the account `made_in`. `login` is the account of the credentials, or
/// `None` if STS does not tell it now.
///
/// # Errors
/// `FailedPrecondition` for credentials of another account, `Unavailable` for an unknown account. The machine would end without its instance.
pub fn check_account(made_in: &str, login: Option<&str>) -> Result<(), Status> {
    let (code, problem) = match login {
        Some(login) if login == made_in => return Ok(()),
        Some(login) => (Code::FailedPrecondition, format!("the credentials are of account {login}")),
        None => (Code::Unavailable, "STS does not tell to which account the credentials belong".to_owned()),
    };
    let message = format!(
        "the instance of the machine was asked for in account {made_in}, and {problem}. Write credentials of account {made_in} to the \
         Secret, or remove the finalizer of the machine if nothing of it is left there"
    );
    Err(Status::new(code, message))
}

/// Checks that an instance can be deleted now.
///
/// # Errors
/// `FailedPrecondition` for a protected instance, `Unavailable` for one that is starting or stopping: ECS refuses to delete it.
pub fn check_deletable(instance: &Instance) -> Result<(), Status> {
    let Instance { id, status, .. } = instance;
    if instance.deletion_protection {
        let message = format!(
            "instance {id} is protected against deletion; lift the protection: aliyun ecs ModifyInstanceAttribute --InstanceId {id} \
             --DeletionProtection false"
        );
        return Err(Status::new(Code::FailedPrecondition, message));
    }
    if ["Running", "Stopped"].contains(&status.as_str()) {
        return Ok(());
    }
    let message = format!("ECS instance not in running/stopped state: instance {id} is {status}");
    Err(Status::new(Code::Unavailable, message))
}

/// The identity of an instance.
pub fn identity(region: &str, instance: &Instance) -> VmIdentity {
    let node_name = node_name(&instance.id);
    let address = |type_: &str, address: &str| NodeAddress { type_: type_.to_owned(), address: address.to_owned() };
    let internal = instance.private_addresses().map(|text| address("InternalIP", text));
    let external = instance.public_addresses().map(|text| address("ExternalIP", text));
    let addresses = internal.chain(external).chain([address("Hostname", &node_name)]).collect();
    VmIdentity { provider_id: InstanceLocation { region, id: &instance.id }.provider_id(), node_name, addresses }
}

/// A row of a list.
pub fn listed(region: &str, instance: &Instance) -> ListedVm {
    ListedVm {
        provider_id: InstanceLocation { region, id: &instance.id }.provider_id(),
        machine_name: instance.name.clone(),
        created: instance.created(),
    }
}

/// The client token of an attempt. The next attempt begins when the instance of the attempt before is gone.
pub fn token(base: &str, attempt: u32) -> String {
    if attempt == 0 { base.to_owned() } else { format!("{base}-{attempt}") }
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
