//! A driver whose calls are counted and timed (`mcm_cloud_api_driver_*`, spec/providers §2.1), whose panics are answers, whose
//! errors tell no secret, and which counts the requests that it sends to its cloud under its own name ([`super::requests`]).
//!
//! Every way to a driver leads through here, so that no caller can forget it. A call that its caller drops, because the
//! deadline has passed or the process stops, counts as `DeadlineExceeded`.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    ClassRules, Code, CreatedVm, DeletedVm, Driver, DriverInfo, ListRequest, ListedVm, MachineRequest, Meter,
    OpContext, Operation, SameInstance, SecretData, Status, VmIdentity, VolumeIdsRequest, unless_it_crashes,
};
use kube_values::field::Findings;
use machine_api::v1alpha1::MachineClass;

/// A driver whose calls are counted and timed, and whose errors tell no secret that it was given.
pub struct Measured {
    driver: Arc<dyn Driver>,
    meter: Arc<dyn Meter>,
}

impl Measured {
    /// This driver, measured.
    pub fn new(driver: Arc<dyn Driver>, meter: impl Meter) -> Self {
        Self { driver, meter: Arc::new(meter) }
    }

    /// The call, whose requests to the cloud are counted.
    fn counted(&self, cx: &OpContext) -> OpContext {
        cx.counted_by(&self.meter, self.driver.info().name)
    }

    async fn timed<T>(
        &self,
        operation: Operation,
        secret: SecretData,
        call: impl Future<Output = Result<T, Status>> + Send,
    ) -> Result<T, Status> {
        let mut running = Running {
            meter: &*self.meter,
            provider: self.driver.info().name,
            operation,
            began: Instant::now(),
            code: None,
        };
        let outcome = unless_it_crashes(call).await;
        running.code = Some(outcome.as_ref().err().map_or(Code::OK, |status| status.code));
        outcome.map_err(|status| Status { message: secret.redacted(&status.message), ..status })
    }
}

/// A call under way; counted when it ends, however that is.
struct Running<'a> {
    meter: &'a dyn Meter,
    provider: &'static str,
    operation: Operation,
    began: Instant,
    code: Option<Code>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let outcome = match self.code {
            Some(Code::OK) => Ok(self.began.elapsed()),
            failed => Err(failed.unwrap_or(Code::DeadlineExceeded)),
        };
        self.meter.called(self.provider, self.operation, outcome);
    }
}

#[async_trait]
impl Driver for Measured {
    fn info(&self) -> &DriverInfo {
        self.driver.info()
    }

    fn validate(&self, class: &MachineClass, found: &mut Findings) {
        self.driver.validate(class, found);
    }

    fn inventory_key(&self, class: &MachineClass) -> String {
        self.driver.inventory_key(class)
    }

    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        self.driver.same_instance(machine, node)
    }

    fn missing_in_secret(&self, rules: Option<&dyn ClassRules>, keys: &BTreeSet<String>) -> Vec<&'static str> {
        self.driver.missing_in_secret(rules, keys)
    }

    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        let secret = request.secret.clone();
        self.timed(Operation::CreateMachine, secret, self.driver.create_machine(&self.counted(cx), request)).await
    }

    async fn initialize_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let secret = request.secret.clone();
        self.timed(Operation::InitializeMachine, secret, self.driver.initialize_machine(&self.counted(cx), request))
            .await
    }

    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        let secret = request.secret.clone();
        self.timed(Operation::DeleteMachine, secret, self.driver.delete_machine(&self.counted(cx), request)).await
    }

    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let secret = request.secret.clone();
        self.timed(Operation::GetMachineStatus, secret, self.driver.get_machine_status(&self.counted(cx), request))
            .await
    }

    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        let secret = request.secret.clone();
        self.timed(Operation::ListMachines, secret, self.driver.list_machines(&self.counted(cx), request)).await
    }

    async fn get_volume_ids(&self, cx: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        self.timed(
            Operation::GetVolumeIds,
            SecretData::default(),
            self.driver.get_volume_ids(&self.counted(cx), request),
        )
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Capabilities, meter::told::Told};

    /// Lists well, refuses to make anything, never finishes a deletion, and crashes when it is asked about volumes.
    struct Moody(DriverInfo);

    #[async_trait]
    impl Driver for Moody {
        fn info(&self) -> &DriverInfo {
            &self.0
        }
        fn validate(&self, _class: &MachineClass, _found: &mut Findings) {}
        async fn create_machine(&self, _: &OpContext, _: MachineRequest) -> Result<CreatedVm, Status> {
            Err(Status::new(Code::ResourceExhausted, "full"))
        }
        async fn delete_machine(&self, _: &OpContext, _: MachineRequest) -> Result<DeletedVm, Status> {
            std::future::pending().await
        }
        async fn get_machine_status(&self, _: &OpContext, _: MachineRequest) -> Result<VmIdentity, Status> {
            Err(Status::new(Code::NotFound, "no VM"))
        }
        async fn list_machines(&self, _: &OpContext, _: ListRequest) -> Result<Vec<ListedVm>, Status> {
            Ok(Vec::new())
        }
        async fn get_volume_ids(&self, _: &OpContext, _: VolumeIdsRequest) -> Result<Vec<String>, Status> {
            panic!("a test's driver crashes")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_counted_with_provider_operation_and_code() {
        let told = Arc::new(Told::default());
        let info = DriverInfo {
            name: "moody",
            providers: vec!["moody".to_owned()],
            schema: None,
            capabilities: Capabilities::default(),
        };
        let driver = Measured::new(Arc::new(Moody(info)), Arc::<Told>::clone(&told));
        let cx = OpContext::within(Duration::from_secs(1));
        let request =
            MachineRequest { machine: Arc::default(), class: Arc::default(), secret: crate::SecretData::default() };
        let class = Arc::<MachineClass>::default();
        driver.list_machines(&cx, ListRequest { class, secret: crate::SecretData::default() }).await.unwrap();
        driver.create_machine(&cx, request.clone()).await.unwrap_err();
        tokio::time::timeout_at(cx.deadline, driver.delete_machine(&cx, request)).await.unwrap_err();
        let crashed = driver.get_volume_ids(&cx, VolumeIdsRequest { volumes: Vec::new() }).await.unwrap_err();
        assert_eq!((crashed.code, crashed.message.as_str()), (Code::Internal, "the driver crashed during this call"));
        let expected = [
            (Operation::ListMachines, Ok(Duration::ZERO)),
            (Operation::CreateMachine, Err(Code::ResourceExhausted)),
            (Operation::DeleteMachine, Err(Code::DeadlineExceeded)),
            (Operation::GetVolumeIds, Err(Code::Internal)),
        ];
        assert_eq!(*told.calls.lock().unwrap(), expected.map(|(operation, outcome)| ("moody", operation, outcome)));
    }
}
