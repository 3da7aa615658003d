//! The virtual cloud on a replica that does not lead: it knows its rules and has no VMs.
//!
//! Admission runs on every replica and asks drivers about classes; the cloud itself lives with the leader alone.

use async_trait::async_trait;

use super::{SimulationConfig, SimulationError, SimulationOptions, configuration, driver, impersonated};
use crate::{
    api::{field::Findings, v1alpha1::MachineClass},
    driver::{
        Code, CreatedVm, DeletedVm, Driver, DriverInfo, ListRequest, ListedVm, MachineRequest, OpContext, Status,
        VmIdentity, VolumeIdsRequest,
    },
};

/// The rules of the virtual cloud without the cloud.
#[derive(Debug)]
pub struct Standby {
    info: DriverInfo,
    config: SimulationConfig,
}

impl Standby {
    /// The rules under these options. Nothing is opened or bound.
    ///
    /// # Errors
    /// [`SimulationError`] when the configuration file can't be read or is wrong.
    pub fn new(options: &SimulationOptions) -> Result<Self, SimulationError> {
        let (config, _) = configuration(options)?;
        let info = driver::driver_info(impersonated(options, &config)?);
        Ok(Self { info, config })
    }

    fn elsewhere() -> Status {
        Status::new(Code::Unavailable, "the virtual cloud lives on the replica that leads")
    }
}

#[async_trait]
impl Driver for Standby {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn validate(&self, class: &MachineClass, found: &mut Findings) {
        driver::validate_class(&self.config, class, found);
    }

    async fn create_machine(&self, _: &OpContext, _: MachineRequest) -> Result<CreatedVm, Status> {
        Err(Self::elsewhere())
    }

    async fn delete_machine(&self, _: &OpContext, _: MachineRequest) -> Result<DeletedVm, Status> {
        Err(Self::elsewhere())
    }

    async fn get_machine_status(&self, _: &OpContext, _: MachineRequest) -> Result<VmIdentity, Status> {
        Err(Self::elsewhere())
    }

    async fn list_machines(&self, _: &OpContext, _: ListRequest) -> Result<Vec<ListedVm>, Status> {
        Err(Self::elsewhere())
    }

    async fn get_volume_ids(&self, _: &OpContext, _: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        Err(Self::elsewhere())
    }
}
