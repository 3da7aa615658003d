//! The virtual cloud as a [`Driver`]: adds failure rules, waiting and storage to the calls of the cloud.
//!
//! Every call may be dropped at any await. The state of the cloud changes in one step under its lock. A requested VM is created even if its call was
//! dropped, and the next create finds it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::json;

use super::{
    VirtualCloud,
    cloud::{Admission, Cloud, MachineCall, Verdict},
    config::Scope,
    reader::RULE,
    rules::{Operation, ShortList},
    shared::Shared,
    template::VmTemplate,
};
use controller_runtime::lock;
use kube_values::field::{FieldPath, Findings};
use machine_api::v1alpha1::MachineClass;
use machine_driver::{
    CancellationToken, Capabilities, ClassRules, Code, CreatedVm, DeletedVm, Driver, DriverInfo, DriverTask,
    ListRequest, ListedVm, MachineRequest, OpContext, Owner, SameInstance, Status, VmIdentity, VolumeIdsRequest,
};

#[cfg(test)]
mod tests;

/// The description of the driver.
pub(super) fn driver_info(impersonated: Vec<String>) -> DriverInfo {
    let text = json!({"type": ["string", "null"]});
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "providerSpec of the virtual cloud",
        "type": ["object", "null"],
        "additionalProperties": true,
        "properties": {
            "region": text,
            "zone": text,
            "machineType": text,
            "tags": {"type": ["object", "array", "null"]},
            "volumes": {
                "type": ["array", "null"],
                "items": {"type": "object", "properties": {"name": text, "sizeGi": {"type": ["integer", "null"]}}}
            },
            "sim": {"type": ["object", "null"], "description": "overrides of the simulation's configuration"}
        }
    });
    let mut providers = vec![super::template::VIRTUAL.to_owned()];
    providers.extend(impersonated);
    DriverInfo {
        name: super::template::VIRTUAL,
        providers,
        schema: Some(schema),
        capabilities: Capabilities { create_is_idempotent: true, lists_creation_time: true },
    }
}

impl VirtualCloud {
    pub(crate) fn shared(&self) -> Result<&Arc<Shared>, Status> {
        let elsewhere = || Status::new(Code::Unavailable, "the virtual cloud lives on the replica that leads");
        self.running.get().ok_or_else(elsewhere)
    }

    /// The cloud, if it serves this class. Called at the start of every operation.
    async fn serving(&self, class: &MachineClass) -> Result<&Arc<Shared>, Status> {
        let shared = self.shared()?;
        let served = &self.info.providers;
        if !served.contains(&class.provider) {
            let wanted = served.join("' or '");
            let message = format!("requested for Provider '{}', we only support '{wanted}'", class.provider);
            return Err(Status::new(Code::InvalidArgument, message));
        }
        let mut found = Findings::new();
        self.validate(class, &mut found);
        if found.denies() {
            let message = format!("error while validating ProviderSpec {}", found.aggregate());
            return Err(Status::new(Code::InvalidArgument, message));
        }
        if !shared.knows_its_vms().await {
            let message =
                "the virtual cloud still rebuilds its VMs from the Nodes of the target cluster, which does not answer";
            return Err(Status::new(Code::Unavailable, message));
        }
        Ok(shared)
    }
}

impl Shared {
    /// Applies the rate limit and the failure rules. A call that is not carried out ends here.
    async fn admit(&self, operation: Operation, call: &MachineCall) -> Result<Admission, Status> {
        let admission = self.with(|cloud, now| cloud.admit(operation, call, now));
        self.sleep(admission.hang.unwrap_or_default()).await;
        if let Verdict::FailBefore(status) = admission.verdict {
            self.sleep(admission.latency).await;
            return Err(status);
        }
        Ok(admission)
    }

    async fn create(&self, call: &MachineCall) -> Result<CreatedVm, Status> {
        let admission = self.admit(Operation::Create, call).await?;
        if admission.verdict == Verdict::Repeat {
            // The answer to the first request is lost, even if that request failed.
            drop(self.with(|cloud, now| cloud.create(call, now)));
        }
        let step = self.with(|cloud, now| cloud.create(call, now));
        let step = self.refused_after(admission.latency, step).await?;
        self.clock.sleep_until(step.exists_at).await;
        let created = self.with(|cloud, now| cloud.created(step.vm, now));
        self.keep().await?;
        self.end(admission).await?;
        created
    }

    async fn initialize(&self, call: &MachineCall) -> Result<VmIdentity, Status> {
        let admission = self.admit(Operation::Initialize, call).await?;
        self.sleep(admission.latency).await;
        if admission.verdict == Verdict::Repeat {
            drop(self.with(|cloud, now| cloud.initialize(call, now)));
        }
        let answer = self.with(|cloud, now| cloud.initialize(call, now));
        self.keep().await?;
        answer
    }

    async fn delete(&self, call: &MachineCall) -> Result<DeletedVm, Status> {
        let admission = self.admit(Operation::Delete, call).await?;
        let gone_at = self.with(|cloud, now| cloud.delete(call, now));
        let gone_at = self.refused_after(admission.latency, gone_at).await?;
        self.clock.sleep_until(gone_at).await;
        self.with(Cloud::advance);
        self.keep().await?;
        if admission.verdict == Verdict::Repeat {
            self.with(|cloud, now| cloud.delete(call, now))?;
        }
        self.end(admission).await?;
        Ok(DeletedVm::default())
    }

    async fn status(&self, call: &MachineCall) -> Result<VmIdentity, Status> {
        let admission = self.admit(Operation::Status, call).await?;
        self.sleep(admission.latency).await;
        self.with(|cloud, now| cloud.status(call, now))
    }

    async fn list(&self, call: &MachineCall) -> Result<Vec<ListedVm>, Status> {
        let admission = self.admit(Operation::List, call).await?;
        self.sleep(admission.latency).await;
        let mut listed = self.with(|cloud, now| cloud.list(call, now));
        if let Verdict::Shorten(short) = admission.verdict {
            match short {
                ShortList::Empty => listed.clear(),
                ShortList::Half => listed = listed.into_iter().step_by(2).collect(),
            }
        }
        Ok(listed)
    }

    /// Delays a refusal by the latency of the API. Any other answer has a latency of its own.
    async fn refused_after<T>(&self, latency: Duration, answer: Result<T, Status>) -> Result<T, Status> {
        if answer.is_err() {
            self.sleep(latency).await;
        }
        answer
    }

    /// Stores the state. A call is answered only after this.
    async fn keep(&self) -> Result<(), Status> {
        self.commit().await.map_err(|error| Status::new(Code::Internal, error.to_string()))
    }

    /// Ends a call that was carried out. Its failure, if there is one, is delayed.
    async fn end(&self, admission: Admission) -> Result<(), Status> {
        let Verdict::FailAfter(failure, late) = admission.verdict else { return Ok(()) };
        self.sleep(late).await;
        Err(failure)
    }
}

#[async_trait]
impl Driver for VirtualCloud {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    /// Starts the cloud in this process.
    async fn begin(&self, stop: CancellationToken) -> Result<Vec<DriverTask>, Status> {
        if self.running.get().is_some() {
            return Ok(Vec::new());
        }
        // The options are cloned, so that a cancelled start can be tried again.
        let start_options = lock(&self.start_options).clone();
        let Some((options, target)) = start_options else {
            return Err(Status::new(Code::FailedPrecondition, "it is not known what the virtual cloud begins with"));
        };
        let begun = self.launch(options, target, stop).await;
        begun.map_err(|error| Status::new(Code::FailedPrecondition, error.to_string()))
    }

    fn validate(&self, class: &MachineClass, found: &mut Findings) {
        let path = FieldPath::new("providerSpec");
        let spec = &class.provider_spec;
        if !spec.is_object() && !spec.is_null() {
            found.invalid(RULE, path, spec.clone(), "must be an object");
        } else if let Some(sim) = spec.get("sim") {
            // The overrides are checked on top of the configuration of the simulation.
            let base = self.running.get().map(|shared| shared.with(|cloud, _| Arc::clone(cloud.config())));
            drop(base.as_deref().unwrap_or(&self.config).overlaid(sim, &path.child("sim"), Scope::Class, found));
        }
    }

    /// The owner in the tags of a class, in the format of any provider. Without tags, the namespace and the class.
    fn owner(&self, class: &MachineClass) -> Option<Owner> {
        let VmTemplate { cluster, role, .. } = VmTemplate::of_class(class);
        Some(Owner { cluster, role })
    }

    /// A list shows the VMs of one cluster and role.
    fn inventory_key(&self, class: &MachineClass) -> String {
        self.owner(class).map(|owner| owner.to_string()).unwrap_or_default()
    }

    /// In all impersonated clouds, the last part of a provider id is the id of the instance.
    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        machine_driver::same_instance::by_last_segment(machine, node)
    }

    /// A simulated cloud needs no credentials for any provider.
    fn missing_in_secret(&self, _: Option<&ClassRules>, _: &BTreeSet<String>) -> Vec<&'static str> {
        Vec::new()
    }

    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        let (shared, call) = (self.serving(&request.class).await?, MachineCall::about_machine(&request));
        if call.machine.is_empty() {
            return Err(Status::new(Code::InvalidArgument, "the machine has no name"));
        }
        cx.request(Operation::Create.as_str(), shared.create(&call)).await
    }

    async fn initialize_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let (shared, call) = (self.serving(&request.class).await?, MachineCall::about_machine(&request));
        cx.request(Operation::Initialize.as_str(), shared.initialize(&call)).await
    }

    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        let (shared, call) = (self.serving(&request.class).await?, MachineCall::about_machine(&request));
        cx.request(Operation::Delete.as_str(), shared.delete(&call)).await
    }

    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let (shared, call) = (self.serving(&request.class).await?, MachineCall::about_machine(&request));
        cx.request(Operation::Status.as_str(), shared.status(&call)).await
    }

    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        let shared = self.serving(&request.class).await?;
        let namespace = request.class.metadata.namespace.clone().unwrap_or_default();
        let call = MachineCall { namespace, template: VmTemplate::of_class(&request.class), ..MachineCall::default() };
        cx.request(Operation::List.as_str(), shared.list(&call)).await
    }

    async fn get_volume_ids(&self, cx: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        let shared = self.shared()?;
        let pass = async {
            let admission = shared.admit(Operation::Volumes, &MachineCall::default()).await?;
            shared.sleep(admission.latency).await;
            Ok(())
        };
        cx.request(Operation::Volumes.as_str(), pass).await?;
        let config = shared.with(|cloud, _| Arc::clone(cloud.config()));
        Ok(request.volumes.iter().filter_map(|volume| volume_id(volume, &config.volumes.drivers)).collect())
    }
}

impl MachineCall {
    fn about_machine(request: &MachineRequest) -> Self {
        let (machine, class) = (&request.machine, &request.class);
        let meta = &machine.metadata;
        let namespace = meta.namespace.clone().or_else(|| class.metadata.namespace.clone()).unwrap_or_default();
        // An orphan VM has no stored machine, so the machine in its request has no UID.
        let target = if meta.uid.is_some() { super::cloud::Target::Machine } else { super::cloud::Target::OneVm };
        Self {
            namespace,
            machine: meta.name.clone().unwrap_or_default(),
            provider_id: machine.spec.provider_id.clone(),
            target,
            template: VmTemplate::of_machine(class, machine),
        }
    }
}

/// The id of a volume at the provider: of a simulated CSI driver, or of an impersonated cloud.
fn volume_id(volume: &k8s_openapi::api::core::v1::PersistentVolumeSpec, drivers: &[String]) -> Option<String> {
    const CLOUDS: [&str; 4] =
        ["ebs.csi.aws.com", "disk.csi.azure.com", "pd.csi.storage.gke.io", "cinder.csi.openstack.org"];
    if let Some(csi) = &volume.csi {
        let known = CLOUDS.contains(&csi.driver.as_str()) || drivers.contains(&csi.driver);
        return known.then(|| csi.volume_handle.clone());
    }
    let in_tree = [
        volume.aws_elastic_block_store.as_ref().map(|disk| &disk.volume_id),
        volume.azure_disk.as_ref().map(|disk| &disk.disk_name),
        volume.gce_persistent_disk.as_ref().map(|disk| &disk.pd_name),
        volume.cinder.as_ref().map(|disk| &disk.volume_id),
    ];
    in_tree.into_iter().flatten().next().cloned()
}
