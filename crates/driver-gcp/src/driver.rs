//! The driver: implements the calls of the trait.

use cloud_client::Client;
use kube_values::field::Findings;
use machine_driver::{
    Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, ListRequest, ListedVm, Machine, MachineClass,
    MachineRequest, OpContext, Owner, PersistentVolumeSpec, SameInstance, SecretData, Status, VmIdentity,
    VolumeIdsRequest, async_trait, same_instance,
};

use crate::{
    CLASSES, GCP, ask,
    compute::{Compute, Session},
    create::Creation,
    errors,
    login::Login,
    lookup,
    options::GcpOptions,
    plan::Reach,
    remove, search,
    spec::Spec,
    subject::Subject,
    zone::Zone,
};

/// Creates, finds and deletes instances of GCE.
pub struct GcpDriver {
    info: DriverInfo,
    compute: Compute,
}

impl GcpDriver {
    /// A driver that sends its requests over the network.
    pub fn new(options: GcpOptions) -> Self {
        Self::with_compute(Compute::new(options))
    }

    /// A driver that sends all requests through this client.
    pub fn through(client: Client, options: GcpOptions) -> Self {
        Self::with_compute(Compute::through(client, options))
    }

    fn with_compute(compute: Compute) -> Self {
        let capabilities = Capabilities { create_is_idempotent: true, lists_creation_time: true };
        let info = DriverInfo {
            name: "gcp",
            providers: vec![GCP.to_owned()],
            schema: Some(CLASSES.schema().clone()),
            capabilities,
        };
        Self { info, compute }
    }

    async fn created(&self, cx: &OpContext, request: &MachineRequest) -> Result<CreatedVm, Status> {
        let spec = Spec::checked(&request.class).map_err(|status| {
            let name = request.machine.metadata.name.as_deref().unwrap_or_default();
            let message = if request.class.provider == GCP {
                format!("Create machine {name:?} failed on validateProviderSpec: {}", status.message)
            } else {
                status.message
            };
            Status::new(status.code, message)
        })?;
        let subject = Subject::of(spec, request)?;
        let Some(name) = subject.name() else {
            let message = format!("machine name {:?} is not a valid GCE instance name", subject.shown_name());
            return Err(Status::new(Code::InvalidArgument, message));
        };
        if subject.secret.get(SecretData::USER_DATA).is_none() {
            return Err(Status::new(Code::InvalidArgument, "data[userData]: Required value: userData is required"));
        }
        let gce = self.compute.session(cx, &subject.login);
        self.coded(Creation { subject: &subject, owner: subject.owner()?, gce, name }.run().await)
    }

    /// The outcome with the codes that the options select.
    fn coded<T>(&self, outcome: Result<T, Status>) -> Result<T, Status> {
        outcome.map_err(|status| self.compute.options.codes.of(status, errors::as_go))
    }
}

/// The identity of the machine's instance.
///
/// # Errors
/// `NotFound` if there is none. `Unimplemented` while it is being created, so that the next call is a creation, which waits for the end.
async fn status(subject: &Subject<'_>, gce: &Session<'_>) -> Result<VmIdentity, Status> {
    let not_found = || lookup::not_found(subject.shown_name());
    if let Some(id) = subject.provider_id()? {
        let found = gce.instance(&id.zone, &id.instance).await?.ok_or_else(not_found)?;
        lookup::check_named_by_id(&found, &id, &subject.tags, subject.shown_name())?;
        return Ok(lookup::identity(&id.zone, &found));
    }
    let name = subject.name().ok_or_else(not_found)?;
    let known = subject.known()?;
    if !known.is_deleting {
        // A creation needs the tags.
        subject.owner()?;
        if let Some((_, operation)) = known.operation() {
            return Err(Status::new(Code::Unimplemented, format!("operation {operation} creates the instance")));
        }
    }
    let found = search::by_name(&known, gce, name, Reach::First).await?;
    known.identity(&found)?.ok_or_else(not_found)
}

/// A failure that keeps the state of the machine. The controllers forget it after some codes if the failure has none.
fn keeping(status: Status, machine: &Machine) -> Status {
    let known = &machine.status.last_known_state;
    let state = status.last_known_state.or_else(|| (!known.is_empty()).then(|| known.clone()));
    Status { last_known_state: state, ..status }
}

#[async_trait]
impl Driver for GcpDriver {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn owner(&self, class: &MachineClass) -> Option<Owner> {
        Some(Spec::read(class).ok()?.class_tags().owner()?.owner().clone())
    }

    fn validate(&self, class: &MachineClass, found: &mut Findings) {
        CLASSES.validate(class, found);
    }

    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        self.created(cx, &request).await.map_err(|status| keeping(status, &request.machine))
    }

    async fn initialize_machine(&self, _: &OpContext, _: MachineRequest) -> Result<VmIdentity, Status> {
        Err(Status::new(Code::Unimplemented, "GCP Provider does not yet implement InitializeMachine"))
    }

    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        let subject = Subject::of(Spec::read(&request.class)?, &request)?;
        let gce = self.compute.session(cx, &subject.login);
        let removed = remove::machine(&subject, &gce).await.map_err(|status| keeping(status, &request.machine));
        self.coded(removed.map(|()| DeletedVm::default()))
    }

    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let subject = Subject::of(Spec::read(&request.class)?, &request)?;
        let gce = self.compute.session(cx, &subject.login);
        let found = status(&subject, &gce).await.map_err(|status| {
            let message = match status.code {
                Code::NotFound | Code::Unimplemented => status.message,
                _ => format!("Machine status {:?} failed: {}", subject.shown_name(), status.message),
            };
            keeping(Status { message, ..status }, &request.machine)
        });
        self.coded(found)
    }

    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        let spec = Spec::read(&request.class)?;
        // As in the Go driver, a class whose tags do not name cluster and role owns nothing.
        let tags = spec.class_tags();
        let Some(owner) = tags.owner() else { return Ok(Vec::new()) };
        let login = Login::of(&request.secret)?;
        let zone = Zone::of(&login.project, &spec.zone)
            .ok_or_else(|| Status::new(Code::InvalidArgument, "zone or project can't be names"))?;
        let all = self.compute.session(cx, &login).instances(&zone).await.map_err(|failure| {
            let message = format!("List machines failed: {}", failure.status.message);
            Status { message, ..failure.status }
        });
        let listed = |all: Vec<_>| all.into_iter().filter_map(|one| lookup::listed(&zone, owner, one)).collect();
        self.coded(all.map(listed))
    }

    async fn ask_about_class(&self, cx: &OpContext, request: ListRequest) -> Result<Findings, Status> {
        let spec = Spec::checked(&request.class)?;
        let login = Login::of(&request.secret)?;
        self.coded(ask::about(&self.compute.session(cx, &login), &spec).await)
    }

    fn inventory_key(&self, class: &MachineClass) -> String {
        let of_owner = |spec: Spec| Some((spec.class_tags().owner()?.clone(), spec.zone));
        match Spec::read(class).ok().and_then(of_owner) {
            Some((owner, zone)) => format!("{zone} {owner}"),
            None => class.provider_spec.to_string(),
        }
    }

    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        same_instance::by_last_segment(machine, node)
    }

    async fn get_volume_ids(&self, _: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        Ok(request.volumes.iter().filter_map(volume_id).collect())
    }
}

/// The name of the CSI driver for persistent disks.
const PERSISTENT_DISK: &str = "pd.csi.storage.gke.io";

/// The id of a persistent disk. `None` for another kind of volume.
fn volume_id(volume: &PersistentVolumeSpec) -> Option<String> {
    if let Some(disk) = &volume.gce_persistent_disk {
        return Some(disk.pd_name.clone()).filter(|name| !name.is_empty());
    }
    volume.csi.as_ref().filter(|csi| csi.driver == PERSISTENT_DISK).map(|csi| csi.volume_handle.clone())
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
