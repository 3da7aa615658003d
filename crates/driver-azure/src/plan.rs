//! Decides what a creation and a deletion do next. Pure functions.
//!
//! Names of resources are derived from the name of the machine, and tags prove whose a resource is. Both must fit before a resource is used, changed
//! or deleted.

use cloud_client::Failure;
use machine_driver::{Code, OwnerTags, Status};
use serde_json::{Value, json};

use crate::{
    errors::{self, ArmError},
    names::last_segment,
    resources::{Resource, text},
    spec::DiskKey,
};

/// The end of the name of a network interface.
pub const NIC_SUFFIX: &str = "-nic";
/// The end of the name of a disk with the operating system.
pub const OS_DISK_SUFFIX: &str = "-os-disk";
/// The end of the name of a data disk.
pub const DATA_DISK_SUFFIX: &str = "-data-disk";
/// How VMs are deleted with what belongs to them.
pub const DELETE: &str = "Delete";

/// The name of a machine's network interface.
pub fn network_interface(machine: &str) -> String {
    format!("{machine}{NIC_SUFFIX}")
}

/// The name of a machine's disk with the operating system.
pub fn os_disk(machine: &str) -> String {
    format!("{machine}{OS_DISK_SUFFIX}")
}

/// The name of a machine's data disk.
pub fn data_disk(machine: &str, key: &DiskKey) -> String {
    format!("{machine}{}", data_disk_end(key))
}

/// The end of the names of a data disk, after the name of the machine.
pub fn data_disk_end(key: &DiskKey) -> String {
    let DiskKey { name, lun } = key;
    if name.is_empty() { format!("-{lun}{DATA_DISK_SUFFIX}") } else { format!("-{name}-{lun}{DATA_DISK_SUFFIX}") }
}

/// Whether a name has the form of a data disk of this machine: `MACHINE-(NAME-)?LUN-data-disk`.
pub fn is_data_disk_of(machine: &str, disk: &str) -> bool {
    let (machine, disk) = (machine.to_ascii_lowercase(), disk.to_ascii_lowercase());
    let rest = disk.strip_prefix(machine.as_str()).filter(|_| !machine.is_empty());
    rest.is_some_and(|rest| rest.starts_with('-') && without_lun(rest).is_some())
}

/// The text before the number and the suffix of a data disk's name, which is in lower case: `m-a` of `m-a-1-data-disk`.
pub fn without_lun(disk: &str) -> Option<&str> {
    let (before, lun) = disk.strip_suffix(DATA_DISK_SUFFIX)?.rsplit_once('-')?;
    let is_number = (1..=9).contains(&lun.len()) && lun.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(before)
}

/// What connects a machine with a resource, besides the tags of the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The machine has the provider id of the VM, or the state of a creation. The tags of its class may have been edited since.
    Recorded,
    /// The name only, as for machines before their creation, and for machines that the collector of orphans makes up.
    Name,
}

/// Whose a resource with a machine's name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belonging {
    /// It is the machine's.
    Ours,
    /// It has a tag of the class's clusters, but not all tags of the class: it may be the machine's, because tags may be edited.
    Unclear,
    /// It is not the machine's.
    Foreign,
}

impl Belonging {
    /// Whose a resource is.
    pub fn of(resource: &Resource, owner: Option<&OwnerTags>, evidence: Evidence) -> Self {
        // Without tags to compare, nothing is certain.
        let Some(owner) = owner else { return Self::Unclear };
        let has = |key: &str| resource.has_tag(key);
        if owner.own(has) {
            return Self::Ours;
        }
        match (owner.share_a_cluster_with(has), evidence) {
            (true, Evidence::Recorded) => Self::Ours,
            (true, Evidence::Name) => Self::Unclear,
            (false, _) => Self::Foreign,
        }
    }
}

/// The tags of an owner for messages.
pub fn shown(owner: Option<&OwnerTags>) -> String {
    owner.map_or_else(|| "(the class names no cluster and role)".to_owned(), ToString::to_string)
}

/// The status for a resource that may be the machine's, and whose tags do not show it.
pub fn unclear(kind: &str, name: &str, owner: Option<&OwnerTags>) -> Status {
    let message = format!(
        "{kind} {name} has the name of the machine, but not all tags {}; it is not touched; add the tags if it belongs to this machine, \
         otherwise remove the machine's finalizer",
        shown(owner)
    );
    Status::new(Code::FailedPrecondition, message)
}

/// The state of a VM, as far as it matters to its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmState {
    /// Azure looks for capacity. The operation that creates the VM may still fail.
    BeingCreated,
    /// The VM exists. It may have stopped, and its last change may have failed.
    Exists,
    /// The creation has failed before the VM got a disk.
    Incomplete,
    /// The VM is being deleted.
    Ending,
}

impl VmState {
    /// The state of a VM.
    pub fn of(vm: &Resource) -> Self {
        if vm.is("Creating") {
            Self::BeingCreated
        } else if vm.is("Deleting") {
            Self::Ending
        } else if vm.is("Failed") && !vm.has_os_disk() {
            Self::Incomplete
        } else {
            Self::Exists
        }
    }
}

/// Where a creation begins.
#[derive(Clone, Debug, PartialEq)]
pub enum Begin {
    /// There is no VM.
    Make,
    /// An earlier creation has left an incomplete VM. It is deleted first: a second request would have other user data, which can't change.
    Replace,
    /// An earlier creation runs.
    Wait,
    /// The VM exists.
    Adopt,
    /// The creation fails.
    Fail(Status),
}

/// Where a creation begins, with the VM of the machine's name.
pub fn begin(vm: Option<&Resource>, name: &str, owner: &OwnerTags, evidence: Evidence) -> Begin {
    let Some(vm) = vm else { return Begin::Make };
    if Belonging::of(vm, Some(owner), evidence) != Belonging::Ours {
        let message = format!("VM {name} exists and lacks the tags {owner}; it is not touched");
        return Begin::Fail(Status::new(Code::AlreadyExists, message));
    }
    match VmState::of(vm) {
        VmState::BeingCreated => Begin::Wait,
        VmState::Exists => Begin::Adopt,
        VmState::Incomplete => Begin::Replace,
        VmState::Ending => Begin::Fail(Status::new(Code::Aborted, format!("VM {name} is being deleted"))),
    }
}

/// The source of a network interface or a disk for a new VM.
#[derive(Clone, Debug, PartialEq)]
pub enum Supply {
    /// The one that exists is used.
    Use,
    /// It is made, or made again after a failure.
    Make,
    /// The creation fails.
    Fail(Status),
}

/// The source of a network interface or a disk, with what has its name already. `kind` names it in messages.
pub fn supply(
    found: Option<&Resource>,
    (kind, name, machine): (&str, &str, &str),
    owner: &OwnerTags,
    evidence: Evidence,
) -> Supply {
    let Some(found) = found else { return Supply::Make };
    if Belonging::of(found, Some(owner), evidence) != Belonging::Ours {
        let message = format!("{kind} {name} exists and lacks the tags {owner}; it is not touched");
        return Supply::Fail(Status::new(Code::AlreadyExists, message));
    }
    if let Some(other) = found.attached_to().filter(|other| !other.eq_ignore_ascii_case(machine)) {
        return Supply::Fail(Status::new(Code::AlreadyExists, format!("{kind} {name} is attached to VM {other}")));
    }
    if found.is("Deleting") {
        return Supply::Fail(Status::new(Code::Aborted, format!("{kind} {name} is being deleted")));
    }
    if found.is("Failed") { Supply::Make } else { Supply::Use }
}

/// What follows from the failure of a request for a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// The VM and its parts are deleted at once, so that a machine of another zone can be made without leftovers.
    DeleteAll,
    /// A disk of an earlier VM is in the way. The disks are deleted.
    DeleteDisks,
    /// There is a VM already, as after a lost answer. It is looked at.
    Look,
    /// What was made stays for the next attempt.
    Keep,
}

/// What follows from the failure of a request for a VM.
pub fn after_failure(failure: &Failure) -> AfterFailure {
    if failure.status.code == Code::ResourceExhausted {
        AfterFailure::DeleteAll
    } else if failure.reason.eq_ignore_ascii_case(errors::PRECONDITION_FAILED)
        || failure.status.code == Code::AlreadyExists
    {
        AfterFailure::Look
    } else if ArmError::is_disk_in_the_way(&failure.reason, &failure.status.message) {
        AfterFailure::DeleteDisks
    } else {
        AfterFailure::Keep
    }
}

/// The failure of a creation of a VM that Azure shows as failed, from its instance view.
pub fn failure_of_vm(what: &str, vm: &Resource) -> Option<Failure> {
    let (code, message) = vm.failures().next()?;
    Some(ArmError::new(code, message).failed(what))
}

/// How a VM is deleted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Removal {
    /// The body of an update before the deletion, so that the parts of the VM go with it. `None` if they do already, or the VM can't be updated.
    pub update: Option<Value>,
    /// The names of the disks and network interfaces that are certainly the VM's, because it names them.
    pub parts: Vec<String>,
}

/// How the VM of a machine is deleted. Disks of other programs stay: only names derived from the machine's count.
pub fn removal(vm: &Resource, machine: &str) -> Removal {
    let (mut parts, mut is_missing) = (Vec::new(), false);
    let nic = network_interface(machine);
    let mut nics: Vec<Value> = vm.network_interfaces().to_vec();
    for reference in &mut nics {
        let name = last_segment(text(&reference["id"])).to_owned();
        if name.eq_ignore_ascii_case(&nic) {
            is_missing |= goes_with_vm(reference, &["properties", "deleteOption"]) == Deletion::Added;
            parts.push(name);
        }
    }
    let mut disk = vm.0["properties"]["storageProfile"]["osDisk"].clone();
    if vm.os_disk().eq_ignore_ascii_case(&os_disk(machine)) {
        is_missing |= goes_with_vm(&mut disk, &["deleteOption"]) == Deletion::Added;
        parts.push(vm.os_disk().to_owned());
    }
    let mut disks: Vec<Value> = vm.data_disks().to_vec();
    for data in &mut disks {
        let name = disk_name(data).to_owned();
        if is_data_disk_of(machine, &name) {
            is_missing |= goes_with_vm(data, &["deleteOption"]) == Deletion::Added;
            parts.push(name);
        }
    }
    let can_be_updated = !vm.is("Failed") && !vm.data_disks().iter().any(|disk| disk["toBeDetached"] == json!(true));
    let update = (is_missing && can_be_updated).then(|| {
        let mut storage = json!({"dataDisks": disks});
        if disk.is_object() {
            storage["osDisk"] = disk;
        }
        json!({"properties": {"networkProfile": {"networkInterfaces": nics}, "storageProfile": storage}})
    });
    Removal { update, parts }
}

/// The name of a data disk of a VM. A disk that was attached by its id may have no other name.
fn disk_name(disk: &Value) -> &str {
    match text(&disk["name"]) {
        "" => last_segment(text(&disk["managedDisk"]["id"])),
        name => name,
    }
}

/// Whether a part of a VM was deleted with it before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deletion {
    /// It was.
    Present,
    /// It was not.
    Added,
}

/// Lets a part of a VM be deleted with it. `path` is the path of the option in the part.
fn goes_with_vm(part: &mut Value, path: &[&str]) -> Deletion {
    let Some((last, before)) = path.split_last() else { return Deletion::Present };
    let mut place = part;
    for step in before {
        if !place.is_object() {
            return Deletion::Present;
        }
        if !place[*step].is_object() {
            place[*step] = json!({});
        }
        place = &mut place[*step];
    }
    if !place.is_object() || text(&place[*last]).eq_ignore_ascii_case(DELETE) {
        return Deletion::Present;
    }
    place[*last] = json!(DELETE);
    Deletion::Added
}

/// What happens to a network interface or a disk with a name of a machine, after the VM is gone.
#[derive(Clone, Debug, PartialEq)]
pub enum Leftover {
    /// It is deleted.
    Delete,
    /// It is gone, or it belongs to another owner.
    Leave,
    /// The deletion fails, so that nothing is left behind without a word.
    Fail(Status),
}

/// What happens to a network interface or a disk. `is_part` says that the machine's VM has named it.
pub fn leftover(
    found: Option<&Resource>,
    (kind, name, machine): (&str, &str, &str),
    is_part: bool,
    owner: Option<&OwnerTags>,
    evidence: Evidence,
) -> Leftover {
    let Some(found) = found else { return Leftover::Leave };
    // Another VM has it, for example the VM `m-1` has the disk `m-1-0-data-disk`, which could also be a disk of `m`.
    if found.attached_to().is_some_and(|other| !other.eq_ignore_ascii_case(machine)) {
        return Leftover::Leave;
    }
    if is_part {
        return Leftover::Delete;
    }
    match Belonging::of(found, owner, evidence) {
        Belonging::Ours => Leftover::Delete,
        Belonging::Unclear => Leftover::Fail(unclear(kind, name, owner)),
        Belonging::Foreign => Leftover::Leave,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
