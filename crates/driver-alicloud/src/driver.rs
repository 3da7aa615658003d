//! The driver: implements the calls of the trait.

use cloud_client::Client;
use kube_values::field::Findings;
use machine_driver::{
    Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, ListRequest, ListedVm, Machine, MachineClass,
    MachineRequest, OpContext, Owner, PersistentVolumeSpec, SameInstance, SecretData, Status, VmIdentity,
    VolumeIdsRequest, async_trait, same_instance,
};

use crate::{
    ALICLOUD, CLASSES,
    actions::InstanceQuery,
    ask,
    create::Creation,
    credentials::Credentials,
    ecs::Ecs,
    lookup,
    names::InstanceLocation,
    options::AlicloudOptions,
    remove::{self, Removal},
    spec::Spec,
    subject::Subject,
};

/// The longest user data that ECS accepts, in bytes.
const LONGEST_USER_DATA: usize = 32 * 1024;

/// Creates, finds and deletes instances of ECS.
pub struct AlicloudDriver {
    info: DriverInfo,
    ecs: Ecs,
}

impl AlicloudDriver {
    /// A driver that sends its requests over the network.
    pub fn new(options: AlicloudOptions) -> Self {
        Self::with_ecs(Ecs::new(options))
    }

    /// A driver that sends all requests through this client.
    pub fn through(client: Client, options: AlicloudOptions) -> Self {
        Self::with_ecs(Ecs::through(client, options))
    }

    fn with_ecs(ecs: Ecs) -> Self {
        let capabilities = Capabilities { create_is_idempotent: true, lists_creation_time: true };
        let info = DriverInfo {
            name: "alicloud",
            providers: vec![ALICLOUD.to_owned()],
            schema: Some(CLASSES.schema().clone()),
            capabilities,
        };
        Self { info, ecs }
    }

    async fn created(&self, cx: &OpContext, request: &MachineRequest) -> Result<CreatedVm, Status> {
        let subject = Subject::of(Spec::checked(&request.class)?, request)?;
        let name = subject.name()?;
        check_user_data(&subject)?;
        let session = self.ecs.session(cx, &subject.spec.region, &subject.credentials);
        Creation { subject: &subject, ecs: &self.ecs, session, name }.run().await
    }

    async fn removed(&self, cx: &OpContext, request: &MachineRequest) -> Result<Vec<String>, Status> {
        let subject = Subject::of(Spec::of_machines(&request.class)?, request)?;
        Removal { subject: &subject, ecs: &self.ecs, cx }.run().await
    }

    /// The identity of the machine's instance.
    async fn status(&self, cx: &OpContext, request: &MachineRequest) -> Result<VmIdentity, Status> {
        let subject = Subject::of(Spec::of_machines(&request.class)?, request)?;
        let session = |region| self.ecs.session(cx, region, &subject.credentials);
        if let Some(location) = subject.location()? {
            let instance = subject.by_id(&session(location.region), location.id).await?;
            return Ok(lookup::identity(location.region, &instance));
        }
        let mut found = Vec::new();
        for region in subject.regions()? {
            let ecs = session(region);
            let named = subject.by_name(&ecs).await?;
            // A creation itself decides about an instance in doubt. A deletion must not end while there may be an instance.
            if named.ours.is_empty() && subject.machine.metadata.deletion_timestamp.is_some() {
                remove::nothing_is_left(&subject, &ecs, named.doubtful.as_ref()).await?;
            }
            found.extend(named.ours.into_iter().map(|instance| (region, instance)));
        }
        match found.as_slice() {
            [] => Err(lookup::not_found(subject.shown_name())),
            [(region, instance)] => Ok(lookup::identity(region, instance)),
            _ => {
                let all: Vec<_> = found.into_iter().map(|(_, instance)| instance).collect();
                Err(lookup::too_many(&all))
            }
        }
    }
}

fn check_user_data(subject: &Subject<'_>) -> Result<(), Status> {
    let detail = match subject.secret.get(SecretData::USER_DATA).map(<[u8]>::len) {
        None | Some(0) => "Required value: userData is required".to_owned(),
        Some(length) if length > LONGEST_USER_DATA => {
            format!("Too long: {length} bytes, ECS accepts at most {LONGEST_USER_DATA}")
        }
        Some(_) => return Ok(()),
    };
    Err(Status::new(Code::InvalidArgument, format!("data[userData]: {detail}")))
}

/// A failure that keeps the state of the machine. The controllers forget it after some codes if the failure has none.
fn keeping(status: Status, machine: &Machine) -> Status {
    let known = &machine.status.last_known_state;
    let state = status.last_known_state.or_else(|| (!known.is_empty()).then(|| known.clone()));
    Status { last_known_state: state, ..status }
}

/// The region and the tags of a class, whose instances are listed.
///
/// # Errors
/// `InvalidArgument` for a class without them.
fn inventory(spec: &Spec) -> Result<(&str, std::collections::BTreeMap<String, String>), Status> {
    let invalid = |message: &str| Status::new(Code::InvalidArgument, message);
    let region = spec.valid_region().ok_or_else(|| invalid("providerSpec.region: can't be a region"))?;
    let tags = spec.tags_of_owner().ok_or_else(|| {
        let message = "can't find VMs with none of machineID/Tag[kubernetes.io/cluster/*]/Tag[kubernetes.io/role/*]";
        invalid(message)
    })?;
    Ok((region, tags))
}

#[async_trait]
impl Driver for AlicloudDriver {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn owner(&self, class: &MachineClass) -> Option<Owner> {
        Some(Spec::of_machines(class).ok()?.owner_tags()?.owner().clone())
    }

    fn validate(&self, class: &MachineClass, found: &mut Findings) {
        CLASSES.validate(class, found);
    }

    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        self.created(cx, &request).await.map_err(|status| keeping(status, &request.machine))
    }

    async fn initialize_machine(&self, _: &OpContext, _: MachineRequest) -> Result<VmIdentity, Status> {
        Err(Status::new(Code::Unimplemented, "Alibaba Cloud Provider does not yet implement InitializeMachine"))
    }

    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        let removed = self.removed(cx, &request).await;
        removed.map(|_| DeletedVm::default()).map_err(|status| keeping(status, &request.machine))
    }

    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        self.status(cx, &request).await.map_err(|status| keeping(status, &request.machine))
    }

    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        let spec = Spec::of_machines(&request.class)?;
        let (region, tags) = inventory(&spec)?;
        let credentials = Credentials::of(&request.secret)?;
        let (ecs, selection) = (self.ecs.session(cx, region, &credentials), InstanceQuery::Tagged(&tags));
        let all = ecs.instances(selection).await?;
        if all.is_empty() {
            ecs.check_right_to_look(selection).await?;
        }
        Ok(all.iter().map(|instance| lookup::listed(region, instance)).collect())
    }

    async fn ask_about_class(&self, cx: &OpContext, request: ListRequest) -> Result<Findings, Status> {
        let spec = Spec::checked(&request.class)?;
        let credentials = Credentials::of(&request.secret)?;
        let user_data = request.secret.get(SecretData::USER_DATA).unwrap_or_default();
        ask::about(&self.ecs.session(cx, &spec.region, &credentials), &spec, user_data).await
    }

    fn inventory_key(&self, class: &MachineClass) -> String {
        let key = Spec::of_machines(class).and_then(|spec| {
            let (region, tags) = inventory(&spec)?;
            Ok(format!("{region} {tags:?}"))
        });
        key.unwrap_or_else(|_| class.provider_spec.to_string())
    }

    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        let (machine, node) = (machine.to_ascii_lowercase(), node.to_ascii_lowercase());
        match (InstanceLocation::of(&machine), InstanceLocation::of(&node)) {
            (Some(ours), Some(theirs)) if ours == theirs => SameInstance::Same,
            (Some(_), Some(_)) => SameInstance::Another,
            _ => same_instance::same_or_unknown(&machine, &node),
        }
    }

    async fn get_volume_ids(&self, _: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        Ok(request.volumes.iter().filter_map(volume_id).collect())
    }
}

/// The name of the CSI driver for disks.
const DISK: &str = "diskplugin.csi.alibabacloud.com";
/// The option of a flexVolume with the id of the disk.
const VOLUME_ID: &str = "volumeId";

/// The id of a disk. `None` for another kind of volume.
fn volume_id(volume: &PersistentVolumeSpec) -> Option<String> {
    if let Some(options) = volume.flex_volume.as_ref().and_then(|flex| flex.options.as_ref()) {
        return options.get(VOLUME_ID).cloned();
    }
    let handle = volume.csi.as_ref().filter(|csi| csi.driver == DISK).map(|csi| csi.volume_handle.clone());
    handle.filter(|handle| !handle.is_empty())
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
