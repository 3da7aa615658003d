//! The virtual cloud as every replica has it: its rules always, its VMs once the replica leads.
//!
//! Admission runs on every replica and asks drivers about classes; a simulation lives with the leader alone.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use async_trait::async_trait;

use super::{SimulationConfig, SimulationError, SimulationOptions, VirtualCloud, configuration, driver, impersonated};
use kube_values::field::Findings;
use machine_api::v1alpha1::MachineClass;
use machine_driver::{
    CancellationToken, ClassRules, Code, CreatedVm, DeletedVm, Driver, DriverInfo, DriverTask, ListRequest, ListedVm,
    MachineRequest, OpContext, Owner, SameInstance, Status, VmIdentity, VolumeIdsRequest,
};

/// The rules of the virtual cloud, and the cloud itself once it lives here.
#[derive(Debug)]
pub struct Standby {
    info: DriverInfo,
    config: SimulationConfig,
    beginning: Mutex<Option<Beginning>>,
    cloud: OnceLock<Arc<VirtualCloud>>,
}

/// What the cloud begins with.
#[derive(Clone, Debug)]
struct Beginning {
    options: SimulationOptions,
    /// Where its Nodes live.
    target: Option<TargetClient>,
}

/// A client of the target cluster.
#[derive(Clone)]
struct TargetClient(kube::Client);

impl fmt::Debug for TargetClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TargetClient")
    }
}

impl Standby {
    /// The rules under these options. Nothing is opened or bound.
    ///
    /// # Errors
    /// [`SimulationError`] when the configuration file can't be read or is wrong.
    pub fn new(options: &SimulationOptions) -> Result<Self, SimulationError> {
        let (config, _) = configuration(options)?;
        let info = driver::driver_info(impersonated(options, &config)?);
        Ok(Self { info, config, beginning: Mutex::default(), cloud: OnceLock::new() })
    }

    /// What the cloud begins with, should this process lead. Without a target cluster VMs have no Nodes.
    pub fn may_begin(&self, options: SimulationOptions, target: Option<kube::Client>) {
        let beginning = Beginning { options, target: target.map(TargetClient) };
        *self.beginning.lock().unwrap_or_else(PoisonError::into_inner) = Some(beginning);
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

    /// From now on the cloud lives here.
    async fn begin(&self, stop: CancellationToken) -> Result<Vec<DriverTask>, Status> {
        if self.cloud.get().is_some() {
            return Ok(Vec::new());
        }
        // A try that was given up is made again with the same.
        let beginning = self.beginning.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(Beginning { options, target }) = beginning else {
            return Err(Status::new(Code::FailedPrecondition, "it is not known what the virtual cloud begins with"));
        };
        let cloud = crate::start(options, target.map(|TargetClient(client)| client), stop).await;
        let cloud = cloud.map_err(|error| Status::new(Code::FailedPrecondition, error.to_string()))?;
        let tasks = cloud.take_tasks();
        let _ = self.cloud.set(cloud);
        Ok(tasks)
    }

    fn owner(&self, class: &MachineClass) -> Option<Owner> {
        Some(driver::owner(class))
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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[tokio::test]
    async fn it_begins_once_it_is_told_with_what_and_only_once() {
        let options = SimulationOptions::new(Timestamp::UNIX_EPOCH);
        let standby = Standby::new(&options).unwrap();
        let stop = CancellationToken::new();
        assert_eq!(standby.begin(stop.clone()).await.unwrap_err().code, Code::FailedPrecondition);
        assert_eq!(standby.cloud().unwrap_err().code, Code::Unavailable, "it lives elsewhere");
        standby.may_begin(options, None);
        drop(standby.begin(stop.clone()));
        assert!(!standby.begin(stop.clone()).await.unwrap().is_empty(), "a try that was given up does not count");
        assert!(standby.cloud().is_ok());
        assert!(standby.begin(stop).await.unwrap().is_empty(), "a cloud lives once");
    }
}
