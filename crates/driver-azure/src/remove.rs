//! Deletes the VM of a machine with its network interface and its disks, in whatever state an earlier creation or deletion has left them.

use cloud_client::{Failure, http::Method};
use machine_driver::{Code, OpContext, OwnerTags, Status};

use crate::{
    api,
    arm::{Arm, Changed, Found, LONG, SHORT, Sent, Session},
    graph,
    plan::{self, Belonging, Evidence, Leftover},
    resources::Resource,
    subject::{Home, Subject},
};

/// What a deletion has found in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The VM of the machine, which is gone now.
    Vm,
    /// No VM of the machine.
    NoVm,
}

/// The names and the owner of what is deleted.
pub struct Target<'a> {
    /// The name of the machine, and of its VM.
    pub name: &'a str,
    /// The names of the data disks that it may have.
    pub disks: Vec<String>,
    pub owner: Option<OwnerTags>,
    pub evidence: Evidence,
}

impl<'a> Target<'a> {
    /// The target of a deletion of a machine.
    pub fn of(subject: &Subject<'_>, name: &'a str) -> Self {
        Self { name, disks: subject.data_disks(name), owner: subject.owner(), evidence: subject.evidence() }
    }
}

/// A network interface or a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Nic,
    Disk,
}

impl Part {
    const fn shown(self) -> &'static str {
        match self {
            Self::Nic => "network interface",
            Self::Disk => "disk",
        }
    }
}

/// Deletes the VM of a machine and what belongs to it.
///
/// # Errors
/// `NotFound` for a machine whose name no VM can have, `FailedPrecondition` for a VM that may not be deleted, `DeadlineExceeded` for a deletion that has
/// not ended in time.
pub async fn machine(subject: &Subject<'_>, arm: &Arm, cx: &OpContext) -> Result<(), Status> {
    let Some(name) = subject.name() else { return Err(not_found(subject.shown_name())) };
    subject.check_id()?;
    let target = Target::of(subject, name);
    let homes = subject.homes()?;
    for home in &homes {
        let azure = arm.session(cx, &subject.login, home.cloud);
        if from(&azure, home, &target).await? == Seen::Vm {
            return Ok(());
        }
    }
    // Nothing tells where the VM of a machine of the Go driver is, except a class that may have been edited.
    if subject.kept.is_none() && subject.id.is_some() {
        for home in elsewhere(subject, arm, cx, name).await? {
            let azure = arm.session(cx, &subject.login, home.cloud);
            from(&azure, &home, &target).await?;
        }
    }
    Ok(())
}

/// The other resource groups of the subscription that have a VM with this name and the tags of the owner.
///
/// # Errors
/// If Resource Graph can't be asked.
pub async fn elsewhere(subject: &Subject<'_>, arm: &Arm, cx: &OpContext, name: &str) -> Result<Vec<Home>, Status> {
    let (Some(owner), Some(of_class)) = (subject.owner(), subject.home_of_class()) else { return Ok(Vec::new()) };
    let azure = arm.session(cx, &subject.login, of_class.cloud);
    let mut rows = azure.query(&subject.login.subscription, &graph::named(name)).await?;
    rows.retain(|row| {
        let vm = Resource(row.clone());
        Belonging::of(&vm, Some(&owner), Evidence::Recorded) == Belonging::Ours
    });
    let known = subject.homes()?;
    let mut homes = graph::homes(&rows, &of_class);
    homes.retain(|home| !known.iter().any(|known| known.is_same_place(home)));
    Ok(homes)
}

/// The status for a missing VM.
pub fn not_found(machine: &str) -> Status {
    Status::new(Code::NotFound, format!("VM {machine} was not found"))
}

/// Deletes what a machine has in one place.
///
/// # Errors
/// As [`machine`].
pub async fn from(azure: &Session<'_>, home: &Home, target: &Target<'_>) -> Result<Seen, Status> {
    let Target { name, owner, evidence, .. } = target;
    let vm = match azure.virtual_machine(&home.group, name).await? {
        Found::NoGroup => return Ok(Seen::NoVm),
        Found::Nothing => None,
        Found::Resource(vm) => Some(vm),
    };
    let Some(vm) = vm else {
        parts(azure, home, target, &[]).await?;
        return Ok(Seen::NoVm);
    };
    match Belonging::of(&vm, owner.as_ref(), *evidence) {
        Belonging::Ours => {}
        // The machine never had this VM: its creation was refused because of it.
        Belonging::Foreign if *evidence == Evidence::Name => {
            parts(azure, home, target, &[]).await?;
            return Ok(Seen::NoVm);
        }
        Belonging::Unclear | Belonging::Foreign => return Err(plan::unclear("VM", name, owner.as_ref())),
    }
    let plan::Removal { update, parts: named } = plan::removal(&vm, name);
    if let Some(body) = &update {
        let path = api::virtual_machine(&home.group, name);
        let sent = Sent {
            method: &Method::PATCH,
            ..Sent::put("virtual_machine_update", "virtualMachines.update", &path, body)
        };
        // The parts are deleted one by one afterwards if the VM can't be updated.
        if let Err(failure) = azure.change(sent, SHORT).await
            && matches!(failure.status.code, Code::Unavailable | Code::DeadlineExceeded | Code::Unauthenticated)
        {
            return Err(failure.into());
        }
    }
    let path = api::virtual_machine(&home.group, name);
    let deleted = azure.delete("virtual_machine_delete", "virtualMachines.delete", &path, LONG).await?;
    ended(&deleted, "VM", name)?;
    parts(azure, home, target, &named).await?;
    Ok(Seen::Vm)
}

/// Deletes the network interface and the disks that are left. `named` are the names that the VM has had.
async fn parts(azure: &Session<'_>, home: &Home, target: &Target<'_>, named: &[String]) -> Result<(), Status> {
    let mut all = vec![(Part::Nic, plan::network_interface(target.name)), (Part::Disk, plan::os_disk(target.name))];
    all.extend(target.disks.iter().map(|disk| (Part::Disk, disk.clone())));
    let is_known = |name: &str, all: &[(Part, String)]| all.iter().any(|(_, known)| known.eq_ignore_ascii_case(name));
    for name in named {
        if !is_known(name, &all) {
            all.push((Part::Disk, name.clone()));
        }
    }
    let mut failed: Option<Status> = None;
    for (kind, name) in &all {
        let is_part = named.iter().any(|known| known.eq_ignore_ascii_case(name));
        // One part that can't be deleted must not keep the others.
        if let Err(status) = part(azure, home, target, (*kind, name), is_part).await {
            failed = Some(match failed {
                None => status,
                Some(first) => Status { message: format!("{}; {}", first.message, status.message), ..first },
            });
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Deletes the disks of a machine that has no VM.
///
/// # Errors
/// The first failure, with the texts of the others.
pub async fn disks(azure: &Session<'_>, home: &Home, target: &Target<'_>) -> Result<(), Status> {
    let names = target.disks.iter().cloned().chain([plan::os_disk(target.name)]);
    for name in names {
        part(azure, home, target, (Part::Disk, &name), false).await?;
    }
    Ok(())
}

async fn part(
    azure: &Session<'_>,
    home: &Home,
    target: &Target<'_>,
    (kind, name): (Part, &str),
    is_part: bool,
) -> Result<(), Status> {
    let found = match kind {
        Part::Nic => azure.network_interface(&home.group, name).await?,
        Part::Disk => azure.disk(&home.group, name).await?,
    };
    let (found, owner) = (found.resource(), target.owner.as_ref());
    match plan::leftover(found.as_ref(), (kind.shown(), name, target.name), is_part, owner, target.evidence) {
        Leftover::Leave => Ok(()),
        Leftover::Fail(status) => Err(status),
        Leftover::Delete => {
            let deleted: Result<Changed, Failure> = match kind {
                Part::Nic => {
                    let path = api::network_interface(&home.group, name);
                    azure.delete("nic_delete", "networkInterfaces.delete", &path, LONG).await
                }
                Part::Disk => {
                    let path = api::disk(&home.group, name);
                    azure.delete("disk_delete", "disks.delete", &path, SHORT).await
                }
            };
            ended(&deleted?, kind.shown(), name)
        }
    }
}

/// Checks that a deletion has ended.
fn ended(deleted: &Changed, kind: &str, name: &str) -> Result<(), Status> {
    match deleted {
        Changed::Done(_) => Ok(()),
        Changed::StillRuns => {
            let message = format!("the deletion of {kind} {name} has not ended yet; the next attempt goes on");
            Err(Status::new(Code::DeadlineExceeded, message))
        }
    }
}
