//! The driver: implements the calls of the trait.

use std::time::Duration;

use controller_runtime::objects::DeleteHow;
use k8s_openapi::api::core::v1::Pod;
use kube_values::field::Findings;
use machine_driver::{
    Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, ErrorCodes, Instant, ListRequest, ListedVm,
    MachineClass, MachineRequest, OpContext, Owner, SecretData, Status, VmIdentity, VolumeIdsRequest, async_trait,
};
use tokio::time::sleep;

use crate::{
    CLASSES, LOCAL,
    clusters::{Clusters, ControlCluster},
    errors::Failures,
    objects,
    plan::{self, Companion, CreationStep, GONE_WITHIN, RUNNING_WITHIN, State, Waited},
    requests::Requests,
    rules::Home,
    spec::{Place, Spec},
    subject::{self, Pods, Subject},
    template::PodTemplate,
};

/// The pause between two looks at a pod.
const POLL: Duration = Duration::from_secs(5);
/// A call ends this long before its deadline, so that its answer is not lost.
const BEFORE_DEADLINE: Duration = Duration::from_secs(1);

/// The options of the driver. They come from the operator of the process, never from a class or a Secret.
#[derive(Clone, Default)]
pub struct LocalOptions {
    /// The client of the control cluster, for classes without `credentialsSecretRef`.
    pub control: ControlCluster,
    /// The template of all pods.
    pub template: PodTemplate,
    /// The set of codes for failures.
    pub codes: ErrorCodes,
}

/// Creates, finds and deletes pods as machines.
pub struct LocalDriver {
    info: DriverInfo,
    clusters: Clusters,
    template: PodTemplate,
    codes: ErrorCodes,
}

impl LocalDriver {
    /// A driver with these options. It sends no request before the first call.
    pub fn new(options: LocalOptions) -> Self {
        let info = DriverInfo {
            name: LOCAL,
            providers: vec![LOCAL.to_owned()],
            schema: Some(CLASSES.schema().clone()),
            capabilities: Capabilities { create_is_idempotent: true, lists_creation_time: true },
        };
        let LocalOptions { control, template, codes } = options;
        Self { info, clusters: Clusters::new(control), template, codes }
    }

    fn failures(&self) -> Failures {
        Failures::Coded(self.codes)
    }

    async fn created(&self, cx: &OpContext, request: &MachineRequest) -> Result<VmIdentity, Status> {
        let (spec, place) = (Spec::checked(&request.class)?, Place::read(&request.class)?);
        let subject = Subject::to_create(&request.machine, &request.class, &place, cx)?;
        let user_data = user_data(&request.class, &request.secret)?;
        let client = self.clusters.of(&request.class, &request.secret).await?;
        let requests = Requests::new(client, cx, self.failures());
        let step = plan::creation(&subject, &spec.image, requests.pod(&subject).await?)?;
        // A pod must not run with the Secret of another program, so that both are looked at before it is made.
        let (service, secret) = (requests.service(&subject).await?, requests.secret(&subject).await?);
        plan::companion(&subject, Companion::Service, service.as_ref())?;
        plan::companion(&subject, Companion::Secret, secret.as_ref())?;
        let pod = match step {
            CreationStep::Use(pod) => *pod,
            CreationStep::Make => requests.make_pod(&subject, &objects::pod(&subject, &spec, &self.template)).await?,
            CreationStep::Replace(ended) => {
                requests.delete(&ended, DeleteHow::default()).await?;
                let message = format!("pod {:?} could not become the machine's, and is replaced", subject.pod);
                return Err(Status::new(Code::Aborted, message));
            }
        };
        // The Secret is the last: without it the pod can't run, so that a running pod has both.
        requests.write_service(&subject, service.as_ref(), &objects::service(&subject, &pod)).await?;
        requests.write_secret(&subject, secret.as_ref(), &objects::secret(&subject, &pod, user_data)).await?;
        until_running(cx, &requests, &subject).await
    }

    async fn deleted(&self, cx: &OpContext, request: &MachineRequest) -> Result<(), Status> {
        let place = Place::read(&request.class)?;
        let subject = Subject::of(&request.machine, &request.class, &place, cx)?;
        let client = self.clusters.of(&request.class, &request.secret).await?;
        let requests = Requests::new(client, cx, Failures::OfDeletion);
        let pod = requests.pod(&subject).await?;
        let Some(doomed) = plan::deletion(&subject, &request.machine.spec.provider_id, pod.as_ref())? else {
            let message = format!("pods {:?} not found in namespace {:?}", subject.pod, subject.pods.namespace);
            return Err(Status::new(Code::NotFound, message));
        };
        if let Some(how) = pod.as_ref().and_then(|pod| plan::removal(&request.machine, pod)) {
            requests.delete(&doomed, how).await?;
        }
        // A kubelet whose pod is not gone could register its Node again.
        let (began, limit) = (Instant::now(), limit_of(GONE_WITHIN, cx));
        while let Some(left) =
            requests.pod(&subject).await?.filter(|pod| pod.metadata.uid.as_deref() == Some(doomed.uid.as_str()))
        {
            if began.elapsed() >= limit {
                let message = format!("pod {:?} is not gone after {} s{}", subject.pod, limit.as_secs(), keeps(&left));
                return Err(Status::new(Code::DeadlineExceeded, message));
            }
            sleep(POLL).await;
        }
        Ok(())
    }
}

/// The user data of a class.
///
/// # Errors
/// `InvalidArgument` without user data.
fn user_data<'s>(class: &MachineClass, secret: &'s SecretData) -> Result<&'s [u8], Status> {
    secret.get(SecretData::USER_DATA).ok_or_else(|| {
        let missing = if class.secret_ref.is_none() {
            "secretRef: Required value: secretRef is required"
        } else {
            "secretRef.userData: Required value: Mention userData"
        };
        Status::new(Code::InvalidArgument, format!("error while validating ProviderSpec: {missing}"))
    })
}

/// The time that a call may wait.
fn limit_of(usual: Duration, cx: &OpContext) -> Duration {
    usual.min(cx.left().saturating_sub(BEFORE_DEADLINE))
}

/// Waits until the pod of a machine runs. A request that fails for a moment is repeated.
async fn until_running(cx: &OpContext, requests: &Requests<'_>, subject: &Subject<'_>) -> Result<VmIdentity, Status> {
    let began = Instant::now();
    let mut waited = Waited { limit: limit_of(RUNNING_WITHIN, cx), ..Waited::default() };
    let mut image_since = None;
    loop {
        waited.total = began.elapsed();
        match requests.pod(subject).await {
            Ok(pod) => {
                image_since = waits_for_image(pod.as_ref()).then(|| image_since.unwrap_or_else(Instant::now));
                waited.image = image_since.map(|since| since.elapsed()).unwrap_or_default();
                if let Some(vm) = plan::completion(subject, pod.as_ref(), waited)? {
                    return Ok(vm);
                }
            }
            Err(status) if waited.total >= waited.limit || !is_passing(status.code) => return Err(status),
            Err(_) => {}
        }
        sleep(POLL).await;
    }
}

fn waits_for_image(pod: Option<&Pod>) -> bool {
    pod.is_some_and(|pod| matches!(State::of(pod), State::Starting { image: Some(_), .. }))
}

/// Whether a request that failed with this code may succeed when it is repeated.
fn is_passing(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::DeadlineExceeded)
}

/// What keeps a pod that is being deleted.
fn keeps(pod: &Pod) -> String {
    let finalizers = pod.metadata.finalizers.as_deref().unwrap_or_default();
    if finalizers.is_empty() { String::new() } else { format!("; its finalizers: {}", finalizers.join(", ")) }
}

#[async_trait]
impl Driver for LocalDriver {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    /// The namespace of a class in the control cluster, because its pods are there.
    fn owner(&self, class: &MachineClass) -> Option<Owner> {
        subject::owner(class)
    }

    fn validate(&self, class: &MachineClass, found: &mut Findings) {
        CLASSES.validate(class, found);
    }

    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        let vm = self.created(cx, &request).await?;
        Ok(CreatedVm { vm, last_known_state: None })
    }

    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        self.deleted(cx, &request).await?;
        Ok(DeletedVm::default())
    }

    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let place = Place::read(&request.class)?;
        let subject = Subject::of(&request.machine, &request.class, &place, cx)?;
        let client = self.clusters.of(&request.class, &request.secret).await?;
        let pod = Requests::new(client, cx, self.failures()).pod(&subject).await?;
        plan::status(&subject, &request.machine.spec.provider_id, pod.as_ref())
    }

    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        let pods = Pods::of(&request.class, &Place::read(&request.class)?, None, cx)?;
        let client = self.clusters.of(&request.class, &request.secret).await?;
        let listed = Requests::new(client, cx, self.failures()).list(&pods).await?;
        Ok(listed.into_iter().filter_map(|pod| plan::listed(&pod.metadata)).collect())
    }

    /// A list shows the pods of one namespace of a cluster.
    fn inventory_key(&self, class: &MachineClass) -> String {
        let namespace = Place::read(class).map(|place| place.namespace).unwrap_or_default();
        let own = class.metadata.namespace.as_deref().unwrap_or_default();
        match Home::of(class) {
            Home::Control(own) => format!("control {own}"),
            Home::Elsewhere if namespace.is_empty() => format!("elsewhere {own}"),
            Home::Elsewhere => format!("elsewhere {namespace}"),
        }
    }

    /// There are no volumes of this provider.
    async fn get_volume_ids(&self, _: &OpContext, _: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
