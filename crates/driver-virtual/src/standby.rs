//! The virtual cloud as every replica has it: its rules always, its VMs once the replica leads.
//!
//! Admission runs on every replica and asks drivers about classes; a simulation lives with the leader alone.

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
};

use async_trait::async_trait;

use super::{SimulationConfig, SimulationError, SimulationOptions, VirtualCloud, configuration, driver, impersonated};
use kube_values::field::Findings;
use machine_api::v1alpha1::MachineClass;
use machine_driver::{
    ClassRules, Code, CreatedVm, DeletedVm, Driver, DriverInfo, ListRequest, ListedVm, MachineRequest, OpContext,
    SameInstance, Status, VmIdentity, VolumeIdsRequest,
};

/// The rules of the virtual cloud, and the cloud itself once it lives here.
#[derive(Debug)]
pub struct Standby {
    info: DriverInfo,
    config: SimulationConfig,
    cloud: OnceLock<Arc<VirtualCloud>>,
}

impl Standby {
    /// The rules under these options. Nothing is opened or bound.
    ///
    /// # Errors
    /// [`SimulationError`] when the configuration file can't be read or is wrong.
    pub fn new(options: &SimulationOptions) -> Result<Self, SimulationError> {
        let (config, _) = configuration(options)?;
        let info = driver::driver_info(impersonated(options, &config)?);
        Ok(Self { info, config, cloud: OnceLock::new() })
    }

    /// From now on the cloud lives here. A second cloud is ignored.
    pub fn lead(&self, cloud: Arc<VirtualCloud>) {
        // A replica leads once in its life.
        let _ = self.cloud.set(cloud);
    }

    fn cloud(&self) -> Result<&Arc<VirtualCloud>, Status> {
        let elsewhere = || Status::new(Code::Unavailable, "the virtual cloud lives on the replica that leads");
        self.cloud.get().ok_or_else(elsewhere)
    }
}

#[async_trait]
impl Driver for Standby {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn validate(&self, class: &MachineClass, found: &mut Findings) {
        match self.cloud.get() {
            Some(cloud) => cloud.validate(class, found),
            None => driver::validate_class(&self.config, class, found),
        }
    }

    fn inventory_key(&self, class: &MachineClass) -> String {
        driver::inventory_key(class)
    }

    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        driver::same_instance(machine, node)
    }

    /// A simulated cloud asks for no credentials, whichever provider it plays.
    fn missing_in_secret(&self, _: Option<&dyn ClassRules>, _: &BTreeSet<String>) -> Vec<&'static str> {
        Vec::new()
    }

    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        self.cloud()?.create_machine(cx, request).await
    }

    async fn initialize_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        self.cloud()?.initialize_machine(cx, request).await
    }

    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        self.cloud()?.delete_machine(cx, request).await
    }

    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        self.cloud()?.get_machine_status(cx, request).await
    }

    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        self.cloud()?.list_machines(cx, request).await
    }

    async fn get_volume_ids(&self, cx: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        self.cloud()?.get_volume_ids(cx, request).await
    }
}
