//! A wrapper of a driver. It counts and times calls (`mcm_cloud_api_driver_*`, spec/providers §2.1) and the driver's requests to
//! its cloud ([`super::requests`]), turns panics into errors, removes secrets from errors, and adds the owner of the VMs to calls
//! ([`OpContext::owner`]).
//!
//! Every driver is wrapped, so that no caller can forget it. A call that is dropped, at its deadline or when the process stops,
//! counts as `DeadlineExceeded`.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    CancellationToken, ClassRules, Code, CreatedVm, DeletedVm, Driver, DriverInfo, DriverTask, ListRequest, ListedVm,
    MachineRequest, Meter, OpContext, Operation, Owner, SameInstance, SecretData, Status, VmIdentity, VolumeIdsRequest,
    catching_panics,
};
use kube_values::field::{Findings, cut};
use machine_api::v1alpha1::MachineClass;

/// A driver whose calls are counted and timed, and whose errors contain no secret of its requests.
pub struct Measured {
    driver: Arc<dyn Driver>,
    meter: Arc<dyn Meter>,
    cluster: Option<String>,
}

impl Measured {
    /// Wraps a driver.
    pub fn new(driver: Arc<dyn Driver>, meter: impl Meter) -> Self {
        Self { driver, meter: Arc::new(meter), cluster: None }
    }

    /// Sets the cluster of VMs whose class does not name an owner.
    #[must_use]
    pub fn of_cluster(self, cluster: Option<String>) -> Self {
        Self { cluster, ..self }
    }

    /// The context of a call, with counted requests to the cloud.
    fn counted(&self, cx: &OpContext) -> OpContext {
        cx.counted_by(&self.meter, self.driver.info().name)
    }

    /// The context of a call about VMs of this class.
    fn about(&self, cx: &OpContext, class: &MachineClass) -> OpContext {
        self.counted(cx).about(self.owner(class))
    }

    /// The context of a call that finds VMs by other properties than their ids. It needs an owner, because VMs of another cluster
    /// may have the same names.
    fn owned(&self, cx: &OpContext, class: &MachineClass, what: &str) -> Result<OpContext, Status> {
        let cx = self.about(cx, class);
        if cx.owner().is_some() {
            return Ok(cx);
        }
        let name = class.metadata.name.as_deref().unwrap_or_default();
        Err(Status::new(
            Code::FailedPrecondition,
            format!(
                "{what}, and the providerSpec of MachineClass \"{name}\" does not say whose VMs these are; name cluster and role \
                 there as the provider asks for it, or set --cluster-name"
            ),
        ))
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
        let outcome = catching_panics(call).await;
        running.code = Some(outcome.as_ref().err().map_or(Code::OK, |status| status.code));
        outcome.map_err(|status| sanitized(&secret, status))
    }
}

/// Maximum length of a message for users, in characters. Some messages contain a whole encoded authorization decision.
const MAX_MESSAGE: usize = 2000;

/// The failure for the caller: without secrets, and shortened. Secrets are removed first, because a part of a secret would not be
/// recognised.
fn sanitized(secret: &SecretData, status: Status) -> Status {
    Status { message: cut(secret.redacted(&status.message), MAX_MESSAGE), ..status }
}

/// A running call. It is counted when it is dropped.
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

    async fn begin(&self, stop: CancellationToken) -> Result<Vec<DriverTask>, Status> {
        catching_panics(self.driver.begin(stop)).await
    }

    async fn end(&self) {
        self.driver.end().await;
    }

    fn owner(&self, class: &MachineClass) -> Option<Owner> {
        let namespace = || class.metadata.namespace.clone().unwrap_or_default();
        self.driver.owner(class).or_else(|| Some(Owner::new(self.cluster.clone()?, namespace())))
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

    fn missing_in_secret(&self, rules: Option<&ClassRules>, keys: &BTreeSet<String>) -> Vec<&'static str> {
        self.driver.missing_in_secret(rules, keys)
    }

    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        let secret = request.secret.clone();
        let cx = self.about(cx, &request.class);
        self.timed(Operation::CreateMachine, secret, self.driver.create_machine(&cx, request)).await
    }

    async fn initialize_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let secret = request.secret.clone();
        let cx = self.about(cx, &request.class);
        self.timed(Operation::InitializeMachine, secret, self.driver.initialize_machine(&cx, request)).await
    }

    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        let secret = request.secret.clone();
        let cx = if request.machine.spec.provider_id.is_empty() {
            self.owned(cx, &request.class, "the VM of a machine without a provider id is deleted by its name")?
        } else {
            self.about(cx, &request.class)
        };
        self.timed(Operation::DeleteMachine, secret, self.driver.delete_machine(&cx, request)).await
    }

    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let secret = request.secret.clone();
        let cx = self.about(cx, &request.class);
        self.timed(Operation::GetMachineStatus, secret, self.driver.get_machine_status(&cx, request)).await
    }

    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        let secret = request.secret.clone();
        let cx = self.owned(cx, &request.class, "VMs are listed by their owner")?;
        self.timed(Operation::ListMachines, secret, self.driver.list_machines(&cx, request)).await
    }

    async fn ask_about_class(&self, cx: &OpContext, request: ListRequest) -> Result<Findings, Status> {
        let secret = request.secret.clone();
        let cx = self.about(cx, &request.class);
        let answer = catching_panics(self.driver.ask_about_class(&cx, request)).await;
        answer.map_err(|status| sanitized(&secret, status))
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
    use crate::{Capabilities, meter::testing::RecordingMeter};

    #[test]
    fn a_message_is_shortened_after_its_secrets_are_removed() {
        let mut secret = SecretData::default();
        let user_data = "user-data".repeat(1000);
        secret.set("userData", user_data.clone().into_bytes());
        let status = Status::new(Code::Internal, format!("malformed: {user_data} {}", "é".repeat(9000)));
        let message = super::sanitized(&secret, status).message;
        assert!(message.starts_with("malformed: <redacted> é"), "{message}");
        assert_eq!(message.chars().count(), MAX_MESSAGE);
    }

    /// Lists VMs, refuses to create one, never finishes a deletion, and panics when it is asked for volumes.
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
        let meter = Arc::new(RecordingMeter::default());
        let info = DriverInfo {
            name: "moody",
            providers: vec!["moody".to_owned()],
            schema: None,
            capabilities: Capabilities::default(),
        };
        let driver = Measured::new(Arc::new(Moody(info)), Arc::<RecordingMeter>::clone(&meter))
            .of_cluster(Some("shoot".to_owned()));
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
        assert_eq!(*meter.calls.lock().unwrap(), expected.map(|(operation, outcome)| ("moody", operation, outcome)));
    }

    /// Returns an owner for some classes, and answers each call with the owner of its context.
    struct Owning(DriverInfo);

    #[async_trait]
    impl Driver for Owning {
        fn info(&self) -> &DriverInfo {
            &self.0
        }
        fn owner(&self, class: &MachineClass) -> Option<Owner> {
            Some(Owner::new(class.provider_spec["cluster"].as_str()?, "worker"))
        }
        fn validate(&self, _class: &MachineClass, _found: &mut Findings) {}
        async fn create_machine(&self, cx: &OpContext, _: MachineRequest) -> Result<CreatedVm, Status> {
            Err(owner_of(cx))
        }
        async fn delete_machine(&self, cx: &OpContext, _: MachineRequest) -> Result<DeletedVm, Status> {
            Err(owner_of(cx))
        }
        async fn get_machine_status(&self, cx: &OpContext, _: MachineRequest) -> Result<VmIdentity, Status> {
            Err(owner_of(cx))
        }
        async fn list_machines(&self, cx: &OpContext, _: ListRequest) -> Result<Vec<ListedVm>, Status> {
            Err(owner_of(cx))
        }
        async fn get_volume_ids(&self, _: &OpContext, _: VolumeIdsRequest) -> Result<Vec<String>, Status> {
            Ok(Vec::new())
        }
    }

    fn owner_of(cx: &OpContext) -> Status {
        Status::new(Code::Internal, cx.owner().map(ToString::to_string).unwrap_or_default())
    }

    /// The answers to calls about a class with this spec: creation, status, list, deletion by name, deletion by id.
    async fn answers(cluster: Option<&str>, spec: serde_json::Value) -> Vec<(Code, String)> {
        let info = DriverInfo {
            name: "owning",
            providers: vec!["owning".to_owned()],
            schema: None,
            capabilities: Capabilities::default(),
        };
        let meter = Arc::<RecordingMeter>::default();
        let driver = Measured::new(Arc::new(Owning(info)), meter).of_cluster(cluster.map(str::to_owned));
        let mut class = MachineClass { provider_spec: spec, ..MachineClass::default() };
        (class.metadata.name, class.metadata.namespace) = (Some("small".to_owned()), Some("ns".to_owned()));
        let class = Arc::new(class);
        let request = |id: &str| {
            let mut machine = crate::Machine::default();
            machine.spec.provider_id = id.to_owned();
            MachineRequest { machine: Arc::new(machine), class: Arc::clone(&class), secret: SecretData::default() }
        };
        let (cx, secret) = (OpContext::within(Duration::from_secs(1)), SecretData::default());
        let list = ListRequest { class: Arc::clone(&class), secret };
        let all = [
            driver.create_machine(&cx, request("")).await.unwrap_err(),
            driver.get_machine_status(&cx, request("")).await.unwrap_err(),
            driver.list_machines(&cx, list).await.unwrap_err(),
            driver.delete_machine(&cx, request("")).await.unwrap_err(),
            driver.delete_machine(&cx, request("cloud:///1")).await.unwrap_err(),
        ];
        all.into_iter().map(|status| (status.code, status.message)).collect()
    }

    #[tokio::test]
    async fn every_call_has_the_owner_of_the_vms_from_the_class_or_from_the_cluster_name() {
        let by_class = answers(Some("shoot"), serde_json::json!({ "cluster": "mine" })).await;
        assert_eq!(by_class, vec![(Code::Internal, "mine/worker".to_owned()); 5]);
        let by_name = answers(Some("shoot"), serde_json::json!({})).await;
        assert_eq!(by_name, vec![(Code::Internal, "shoot/ns".to_owned()); 5]);
    }

    #[tokio::test]
    async fn without_an_owner_nothing_is_listed_or_deleted_by_name() {
        let answers = answers(None, serde_json::json!({})).await;
        let codes: Vec<Code> = answers.iter().map(|(code, _)| *code).collect();
        let refused = Code::FailedPrecondition;
        assert_eq!(codes, [Code::Internal, Code::Internal, refused, refused, Code::Internal]);
        for part in ["MachineClass \"small\"", "--cluster-name"] {
            assert!(answers[2].1.contains(part) && answers[3].1.contains(part), "{answers:?}");
        }
    }
}
