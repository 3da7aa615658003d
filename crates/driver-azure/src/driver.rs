//! The driver: implements the calls of the trait.

use cloud_client::Client;
use kube_values::field::Findings;
use machine_driver::{
    Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, ListRequest, ListedVm, Machine, MachineClass,
    MachineRequest, OpContext, Owner, PersistentVolumeSpec, SameInstance, SecretData, Status, VmIdentity,
    VolumeIdsRequest, async_trait, same_instance,
};

use crate::{
    AZURE, CLASSES,
    arm::Arm,
    ask,
    create::{self, Creation},
    errors, graph,
    login::Login,
    options::AzureOptions,
    plan::{self, Belonging, Evidence, VmState},
    remove,
    resources::Resource,
    spec::{Essentials, Spec},
    subject::{Home, Subject},
};

/// Creates, finds and deletes VMs of Azure.
pub struct AzureDriver {
    info: DriverInfo,
    arm: Arm,
}

impl AzureDriver {
    /// A driver that sends its requests over the network.
    pub fn new(options: AzureOptions) -> Self {
        Self::with_arm(Arm::new(options))
    }

    /// A driver that sends all requests through this client.
    pub fn through(client: Client, options: AzureOptions) -> Self {
        Self::with_arm(Arm::through(client, options))
    }

    fn with_arm(arm: Arm) -> Self {
        let capabilities = Capabilities { create_is_idempotent: true, lists_creation_time: true };
        let schema = Some(CLASSES.schema().clone());
        let info = DriverInfo { name: "azure", providers: vec![AZURE.to_owned()], schema, capabilities };
        Self { info, arm }
    }

    async fn created(&self, cx: &OpContext, request: &MachineRequest) -> Result<CreatedVm, Status> {
        let spec = Spec::checked(&request.class)?;
        let subject = Subject::of(request)?;
        let Some(name) = subject.name() else {
            let shown = subject.shown_name();
            let message = format!(
                "machine name {shown:?} can't be the name of a VM: it has 1 to 64 letters, digits, hyphens and dots"
            );
            return Err(Status::new(Code::InvalidArgument, message));
        };
        subject.check_id()?;
        if subject.secret.get(SecretData::USER_DATA).is_none_or(|data| data.trim_ascii().is_empty()) {
            let message = "error in validating secret: data.userData: Required value: must provide userData";
            return Err(Status::new(Code::InvalidArgument, message));
        }
        let owner =
            subject.owner().ok_or_else(|| Status::new(Code::InvalidArgument, "providerSpec.tags: name no owner"))?;
        let creation = Creation { subject: &subject, spec: &spec, arm: &self.arm, cx, name, owner: &owner };
        let outcome = creation.run().await.map_err(|status| Status {
            message: format!("failed to create VM {name:?}: {}", status.message),
            ..status
        });
        self.coded(outcome)
    }

    /// The outcome with the codes that the options select.
    fn coded<T>(&self, outcome: Result<T, Status>) -> Result<T, Status> {
        outcome.map_err(|status| self.arm.options.codes.of(status, errors::as_go))
    }

    /// The identity of the machine's VM.
    ///
    /// # Errors
    /// `NotFound` if there is none. `Unimplemented` while it is being created, so that the next call is a creation, which waits for the end.
    async fn status(&self, cx: &OpContext, subject: &Subject<'_>) -> Result<VmIdentity, Status> {
        let not_found = || remove::not_found(subject.shown_name());
        let name = subject.name().ok_or_else(not_found)?;
        subject.check_id()?;
        let mut homes = subject.homes()?;
        let mut seen = self.first_vm(cx, subject, name, &homes).await?;
        // A class may have been edited since the Go driver made the VM, which has left no state.
        if seen.is_none() && subject.kept.is_none() && subject.id.is_some() {
            homes = remove::elsewhere(subject, &self.arm, cx, name).await?;
            seen = self.first_vm(cx, subject, name, &homes).await?;
        }
        let Some((home, vm)) = seen else { return Err(not_found()) };
        if subject.id.is_none() && subject.machine.metadata.deletion_timestamp.is_none() {
            self.check_complete(cx, subject, name, (&home, &vm)).await?;
        }
        Ok(create::identity(subject.provider_id(&home, name), name, &[]))
    }

    /// The first VM of the machine in these places.
    async fn first_vm(
        &self,
        cx: &OpContext,
        subject: &Subject<'_>,
        name: &str,
        homes: &[Home],
    ) -> Result<Option<(Home, Resource)>, Status> {
        let (owner, evidence) = (subject.owner(), subject.evidence());
        let is_deleting = subject.machine.metadata.deletion_timestamp.is_some();
        for home in homes {
            let azure = self.arm.session(cx, &subject.login, home.cloud);
            let Some(vm) = azure.virtual_machine(&home.group, name).await?.resource() else { continue };
            match Belonging::of(&vm, owner.as_ref(), evidence) {
                Belonging::Ours => return Ok(Some((home.clone(), vm))),
                Belonging::Foreign if evidence == Evidence::Name => {}
                // A creation is refused by the name. A deletion must not end while the VM may be the machine's.
                Belonging::Unclear if evidence == Evidence::Name && !is_deleting => {}
                Belonging::Unclear | Belonging::Foreign => return Err(plan::unclear("VM", name, owner.as_ref())),
            }
        }
        Ok(None)
    }

    /// Checks that the creation of a VM, which the machine does not know yet, has ended well.
    async fn check_complete(
        &self,
        cx: &OpContext,
        subject: &Subject<'_>,
        name: &str,
        (home, vm): (&Home, &Resource),
    ) -> Result<(), Status> {
        let unfinished = |why: &str| Err(Status::new(Code::Unimplemented, format!("VM {name} {why}")));
        match VmState::of(vm) {
            VmState::BeingCreated => return unfinished("is being created"),
            VmState::Incomplete => return unfinished("could not be created"),
            VmState::Ending => return unfinished("is being deleted"),
            VmState::Exists => {}
        }
        if !vm.is("Failed") {
            return Ok(());
        }
        let azure = self.arm.session(cx, &subject.login, home.cloud);
        let view = azure.virtual_machine_view(&home.group, name).await?.resource();
        let failure = view.and_then(|vm| plan::failure_of_vm("virtualMachines.createOrUpdate", &vm));
        match failure {
            Some(failure) if failure.status.code == Code::ResourceExhausted => unfinished("could not be created"),
            // As in the Go driver: a VM whose agent has not answered in time runs nevertheless.
            _ => Ok(()),
        }
    }
}

/// A failure that keeps the state of the machine. The controllers forget it after some codes if the failure has none.
fn keeping(status: Status, machine: &Machine) -> Status {
    let known = &machine.status.last_known_state;
    let state = status.last_known_state.or_else(|| (!known.is_empty()).then(|| known.clone()));
    Status { last_known_state: state, ..status }
}

#[async_trait]
impl Driver for AzureDriver {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn owner(&self, class: &MachineClass) -> Option<Owner> {
        Some(Essentials::of(class).ok()?.owner?.owner().clone())
    }

    fn validate(&self, class: &MachineClass, found: &mut Findings) {
        CLASSES.validate(class, found);
    }

    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        self.created(cx, &request).await.map_err(|status| keeping(status, &request.machine))
    }

    async fn initialize_machine(&self, _: &OpContext, _: MachineRequest) -> Result<VmIdentity, Status> {
        Err(Status::new(Code::Unimplemented, "Azure Provider does not yet implement InitializeMachine"))
    }

    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        let subject = Subject::of(&request)?;
        let removed = remove::machine(&subject, &self.arm, cx).await.map_err(|status| {
            let message = match status.code {
                Code::NotFound => status.message,
                _ => format!("failed to delete VM {:?}: {}", subject.shown_name(), status.message),
            };
            keeping(Status { message, ..status }, &request.machine)
        });
        self.coded(removed.map(|()| DeletedVm::default()))
    }

    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let subject = Subject::of(&request)?;
        let found = self.status(cx, &subject).await.map_err(|status| {
            let message = match status.code {
                Code::NotFound | Code::Unimplemented => status.message,
                _ => format!("failed to get VM {:?}: {}", subject.shown_name(), status.message),
            };
            keeping(Status { message, ..status }, &request.machine)
        });
        self.coded(found)
    }

    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        let class = Essentials::of(&request.class)?;
        // A class whose tags do not name cluster and role owns nothing.
        let Some(owner) = &class.owner else { return Ok(Vec::new()) };
        let login = Login::of(&request.secret)?;
        let Some(cloud) = class.cloud.filter(|_| !class.resource_group.is_empty()) else {
            return Err(Status::new(Code::InvalidArgument, "the class names no resource group, or an unknown cloud"));
        };
        let azure = self.arm.session(cx, &login, cloud);
        let rows = azure.query(&login.subscription, &graph::of_owner(&class.resource_group, owner)).await;
        let rows = rows.map_err(|failure| {
            let message = format!("failed to list VMs: {}", failure.status.message);
            Status { message, ..failure.status }
        });
        self.coded(rows.map(|rows| graph::machines(&rows, owner, &class.disks, &class.location)))
    }

    async fn ask_about_class(&self, cx: &OpContext, request: ListRequest) -> Result<Findings, Status> {
        let spec = Spec::checked(&request.class)?;
        let login = Login::of(&request.secret)?;
        let cloud = Essentials::of(&request.class)?.cloud.unwrap_or_default();
        self.coded(ask::about(&self.arm.session(cx, &login, cloud), &spec).await)
    }

    fn inventory_key(&self, class: &MachineClass) -> String {
        match Essentials::of(class) {
            Ok(Essentials { location, resource_group, cloud: Some(cloud), owner: Some(owner), disks }) => {
                let disks: Vec<String> = disks.iter().map(plan::data_disk_end).collect();
                format!("{} {resource_group} {location} {owner} {}", cloud.name(), disks.join(" "))
            }
            _ => class.provider_spec.to_string(),
        }
    }

    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        same_instance::by_last_segment(machine, node)
    }

    async fn get_volume_ids(&self, _: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        Ok(request.volumes.iter().filter_map(volume_id).collect())
    }
}

/// The name of the CSI driver for managed disks.
const MANAGED_DISK: &str = "disk.csi.azure.com";

/// The id of a managed disk. `None` for another kind of volume.
fn volume_id(volume: &PersistentVolumeSpec) -> Option<String> {
    if let Some(disk) = &volume.azure_disk {
        return Some(disk.disk_name.clone()).filter(|name| !name.is_empty());
    }
    volume.csi.as_ref().filter(|csi| csi.driver == MANAGED_DISK).map(|csi| csi.volume_handle.clone())
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
