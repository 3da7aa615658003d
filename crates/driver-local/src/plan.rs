//! Decisions about the pod of a machine (spec/providers §8). Pure and without a clock: callers give the pod and the time that they have waited.

use std::time::Duration;

use controller_runtime::{key::Target, objects::DeleteHow};
use k8s_openapi::{
    api::core::v1::{Pod, PodStatus},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use machine_api::names::label;
use machine_driver::{Code, ListedVm, Machine, NodeAddress, Status, VmIdentity};

use crate::{
    subject::{MACHINE, Subject, pod_name},
    template::CONTAINER,
};

/// How long a creation waits for a running pod.
pub const RUNNING_WITHIN: Duration = Duration::from_secs(600);
/// How long a deletion waits until the pod is gone.
pub const GONE_WITHIN: Duration = Duration::from_secs(600);
/// How long an image may be impossible to pull before the creation fails. A registry may be away for a moment.
pub const IMAGE_WITHIN: Duration = Duration::from_secs(120);
/// The phase of a pod whose containers run.
const RUNNING: &str = "Running";
/// Reasons of a container that waits because its image can't be pulled. The kubelet changes between the first two.
const IMAGE_REASONS: [&str; 4] = ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"];

/// The state of a machine's pod.
#[derive(Clone, Debug, PartialEq)]
pub enum State<'p> {
    /// Its containers run.
    Running,
    /// Its containers do not run yet.
    Starting {
        /// The phase.
        phase: &'p str,
        /// Why an image can't be pulled, if a container waits for that.
        image: Option<String>,
        /// Why the containers do not run, if the pod shows it.
        cause: Option<String>,
    },
    /// Its containers have ended and are not started again.
    Ended(&'p str),
    /// It is being deleted.
    Leaving,
}

impl<'p> State<'p> {
    /// The state of a pod.
    pub fn of(pod: &'p Pod) -> Self {
        if pod.metadata.deletion_timestamp.is_some() {
            return Self::Leaving;
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        match phase {
            RUNNING => Self::Running,
            "Succeeded" | "Failed" => Self::Ended(phase),
            _ => {
                let status = pod.status.as_ref();
                let image = status.and_then(image_problem);
                Self::Starting { phase, cause: image.clone().or_else(|| status.and_then(unscheduled)), image }
            }
        }
    }
}

/// Why an image can't be pulled: the reason of the first container that waits for it, with its message.
fn image_problem(status: &PodStatus) -> Option<String> {
    let init = status.init_container_statuses.iter().flatten();
    let mut waiting = init.chain(status.container_statuses.iter().flatten()).filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().filter(|reason| IMAGE_REASONS.contains(reason))?;
        Some((&container.name, reason, waiting.message.as_deref()))
    });
    let (container, reason, message) = waiting.next()?;
    let message = message.map(|message| format!(": {message}")).unwrap_or_default();
    Some(format!("container {container:?} waits with {reason}{message}"))
}

/// Why no host was found for the pod.
fn unscheduled(status: &PodStatus) -> Option<String> {
    let scheduled = status.conditions.iter().flatten().find(|condition| condition.type_ == "PodScheduled")?;
    if scheduled.status != "False" {
        return None;
    }
    let reason = scheduled.reason.as_deref().unwrap_or("Unscheduled");
    Some(scheduled.message.as_ref().map_or_else(|| reason.to_owned(), |message| format!("{reason}: {message}")))
}

/// The first step of a creation.
#[derive(Debug, PartialEq)]
pub enum CreationStep {
    /// Make the pod, which does not exist.
    Make,
    /// Use this pod. It is never written again: most of its fields can't change, and the class may have changed.
    Use(Box<Pod>),
    /// Delete this pod and try again: its containers have ended, or the class has another image than the one that it can't pull.
    Replace(Target),
}

/// Decides the first step of a creation. `image` is the image of the class.
///
/// # Errors
/// `AlreadyExists` for a pod that was not made for the machine, `Aborted` for a pod that is being deleted.
pub fn creation(subject: &Subject<'_>, image: &str, pod: Option<Pod>) -> Result<CreationStep, Status> {
    let Some(pod) = pod else { return Ok(CreationStep::Make) };
    if !is_of(subject, &pod) {
        let message = format!("pod {:?} in namespace {:?} {}", subject.pod, subject.pods.namespace, not_of(subject));
        return Err(Status::new(Code::AlreadyExists, message));
    }
    let is_usable = match State::of(&pod) {
        State::Leaving => {
            return Err(Status::new(Code::Aborted, format!("pod {:?} is still being deleted", subject.pod)));
        }
        State::Ended(_) => false,
        State::Starting { image: Some(_), .. } => image_of(&pod) == Some(image),
        State::Running | State::Starting { image: None, .. } => true,
    };
    Ok(if is_usable { CreationStep::Use(Box::new(pod)) } else { CreationStep::Replace(Target::of(&pod)) })
}

/// An object that a pod owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Companion {
    /// The Service.
    Service,
    /// The Secret with the user data.
    Secret,
}

/// Decides whether the machine may have an object of its pod. `found` is the object of this name, if there is one.
///
/// # Errors
/// `AlreadyExists` for an object that no pod of the machine owns. To write it would give it to the pod, so that it would be deleted with the pod.
pub fn companion(subject: &Subject<'_>, which: Companion, found: Option<&ObjectMeta>) -> Result<(), Status> {
    let of_pod = |object: &ObjectMeta| {
        let mut owners = object.owner_references.iter().flatten();
        owners.any(|owner| owner.controller == Some(true) && owner.kind == "Pod" && owner.name == subject.pod)
    };
    if found.is_none_or(of_pod) {
        return Ok(());
    }
    let (kind, name) = match which {
        Companion::Service => ("service", subject.pod.clone()),
        Companion::Secret => ("secret", subject.secret()),
    };
    let message = format!(
        "{kind} {name:?} in namespace {:?} was not made for machine {:?}, as its owners show",
        subject.pods.namespace, subject.machine
    );
    Err(Status::new(Code::AlreadyExists, message))
}

fn image_of(pod: &Pod) -> Option<&str> {
    let containers = &pod.spec.as_ref()?.containers;
    containers.iter().find(|container| container.name == CONTAINER)?.image.as_deref()
}

/// How long a creation has waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// Since the pod was made.
    pub total: Duration,
    /// Of that, how long without interruption an image could not be pulled.
    pub image: Duration,
    /// The time after which the creation ends.
    pub limit: Duration,
}

/// Decides whether a creation is complete. `None` if it waits on.
///
/// # Errors
/// Why the pod does not run in time.
pub fn completion(subject: &Subject<'_>, pod: Option<&Pod>, waited: Waited) -> Result<Option<VmIdentity>, Status> {
    let name = &subject.pod;
    let aborted = |what: &str| Err(Status::new(Code::Aborted, format!("pod {name:?} {what} before it ran")));
    let Some(pod) = pod.filter(|pod| is_of(subject, pod)) else { return aborted("was deleted") };
    match State::of(pod) {
        State::Running => Ok(Some(identity(subject, pod))),
        State::Leaving => aborted("was deleted"),
        State::Ended(phase) => aborted(&format!("ended with phase {phase:?}")),
        State::Starting { image: Some(problem), .. } if waited.image >= IMAGE_WITHIN => {
            Err(Status::new(Code::InvalidArgument, format!("pod {name:?} can't run: {problem}")))
        }
        State::Starting { phase, cause, .. } if waited.total >= waited.limit => {
            let cause = cause.unwrap_or_else(|| format!("not after {} s", waited.limit.as_secs()));
            let message = format!("pod {name:?} is in phase {phase:?}, failed waiting for phase {RUNNING:?}: {cause}");
            Err(Status::new(Code::DeadlineExceeded, message))
        }
        State::Starting { .. } => Ok(None),
    }
}

/// The pod that a deletion ends. `None` if there is none. `provider_id` is the id in the machine's spec.
///
/// # Errors
/// `FailedPrecondition` for a machine with an id whose pod has lost its labels: it may be the machine's pod, and its kubelet would go on.
pub fn deletion(subject: &Subject<'_>, provider_id: &str, pod: Option<&Pod>) -> Result<Option<Target>, Status> {
    match pod {
        Some(pod) if is_of(subject, pod) => Ok(Some(Target::of(pod))),
        Some(_) if provider_id == subject.pod => {
            let message = format!(
                "pod {:?} in namespace {:?} {}, and is not deleted: label it {MACHINE}={} again, or delete it yourself",
                subject.pod,
                subject.pods.namespace,
                not_of(subject),
                subject.machine
            );
            Err(Status::new(Code::FailedPrecondition, message))
        }
        None | Some(_) => Ok(None),
    }
}

/// How the pod of a machine is deleted. `None` if it is being deleted, so that the call only waits.
///
/// The kubelet of a dead host never ends a pod. A user who forces the deletion accepts that the pod may still run.
pub fn removal(machine: &Machine, pod: &Pod) -> Option<DeleteHow<'static>> {
    match State::of(pod) {
        _ if is_forced(machine) => Some(DeleteHow { grace_seconds: Some(0), ..DeleteHow::default() }),
        State::Leaving => None,
        State::Running | State::Starting { .. } | State::Ended(_) => Some(DeleteHow::default()),
    }
}

/// Whether the label `force-deletion` holds a Go boolean that is true.
fn is_forced(machine: &Machine) -> bool {
    let label = machine.metadata.labels.as_ref().and_then(|labels| labels.get(label::FORCE_DELETION));
    matches!(label.map(String::as_str), Some("1" | "t" | "T" | "TRUE" | "true" | "True"))
}

/// The answer to a question for the status of a machine.
///
/// # Errors
/// `NotFound` without a pod. `Unimplemented` for a pod of a creation that was not finished, so that the next call is the creation, which also makes the
/// Service and the Secret.
pub fn status(subject: &Subject<'_>, provider_id: &str, pod: Option<&Pod>) -> Result<VmIdentity, Status> {
    let Some(pod) = pod.filter(|pod| is_of(subject, pod)) else {
        let message = format!("pods {:?} not found in namespace {:?}", subject.pod, subject.pods.namespace);
        return Err(Status::new(Code::NotFound, message));
    };
    if provider_id.is_empty() && State::of(pod) != State::Running {
        let message = format!("pod {:?} does not run: its creation is not finished", subject.pod);
        return Err(Status::new(Code::Unimplemented, message));
    }
    Ok(identity(subject, pod))
}

/// The entry of a pod in the list of machines. `None` for a pod that is no machine's: its name does not follow from its label.
pub fn listed(pod: &ObjectMeta) -> Option<ListedVm> {
    let (name, machine) = (pod.name.as_deref()?, pod.labels.as_ref()?.get(MACHINE)?);
    (name == pod_name(machine)).then(|| ListedVm {
        provider_id: name.to_owned(),
        machine_name: machine.clone(),
        created: pod.creation_timestamp.as_ref().map(|time| time.0),
    })
}

/// The identity of a machine's pod.
fn identity(subject: &Subject<'_>, pod: &Pod) -> VmIdentity {
    let ips = pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten());
    let address = |ip: &str| NodeAddress { type_: "InternalIP".to_owned(), address: ip.to_owned() };
    VmIdentity {
        provider_id: subject.pod.clone(),
        node_name: subject.pod.clone(),
        addresses: ips.map(|ip| address(&ip.ip)).collect(),
    }
}

fn is_of(subject: &Subject<'_>, pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    subject.owns(|key| labels?.get(key).map(String::as_str))
}

fn not_of(subject: &Subject<'_>) -> String {
    format!("was not made for machine {:?}, as its labels show", subject.machine)
}

#[cfg(test)]
mod tests {
    use machine_driver::{Machine, MachineClass, OpContext};
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::spec::Place;

    const LIMIT: Duration = RUNNING_WITHIN;
    const IMAGE: &str = "node:1";

    fn pod(patch: &Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "machine-m", "namespace": "ns", "uid": "u-1", "labels": {"machine": "m", "machine-provider": "local"}},
            "spec": {"containers": [{"name": "node", "image": IMAGE}]},
            "status": {"phase": "Pending"},
        });
        json_patch::merge(&mut pod, patch);
        serde_json::from_value(pod).unwrap()
    }

    /// A subject, for a function.
    fn about<T>(run: impl FnOnce(&Subject<'_>) -> T) -> T {
        let mut machine = Machine::default();
        machine.metadata.name = Some("m".to_owned());
        let mut class = MachineClass::default();
        class.metadata.namespace = Some("ns".to_owned());
        let cx = OpContext::within(Duration::from_secs(1));
        run(&Subject::of(&machine, &class, &Place::default(), &cx).unwrap())
    }

    fn waits_with(reason: &str) -> Value {
        let waiting = json!({"waiting": {"reason": reason, "message": "no such image"}});
        json!({"status": {"containerStatuses": [{"name": "node", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": waiting}]}})
    }

    fn foreign() -> Value {
        json!({"metadata": {"labels": {"machine": null}}})
    }

    fn leaving() -> Value {
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    }

    fn in_phase(phase: &str) -> Value {
        json!({"status": {"phase": phase}})
    }

    #[allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]
    #[rstest]
    #[case::of_another(foreign(), Code::AlreadyExists)]
    #[case::that_is_deleted(leaving(), Code::Aborted)]
    #[case::that_starts(json!({}), Code::OK)]
    #[case::that_runs(in_phase("Running"), Code::OK)]
    fn a_creation_finds_a_pod(#[case] patch: Value, #[case] expected: Code) {
        let step = about(|subject| creation(subject, IMAGE, Some(pod(&patch))));
        match step {
            Ok(step) => assert_eq!((step, expected), (CreationStep::Use(Box::new(pod(&patch))), Code::OK)),
            Err(status) => assert_eq!(status.code, expected, "{}", status.message),
        }
    }

    #[test]
    fn a_creation_makes_a_missing_pod_and_replaces_an_ended_one() {
        assert_eq!(about(|subject| creation(subject, IMAGE, None)), Ok(CreationStep::Make));
        for phase in ["Failed", "Succeeded"] {
            let step = about(|subject| creation(subject, IMAGE, Some(pod(&in_phase(phase)))));
            assert!(matches!(step, Ok(CreationStep::Replace(target)) if target.uid == "u-1"));
        }
    }

    #[test]
    fn a_creation_replaces_a_pod_that_waits_for_an_image_which_the_class_no_longer_has() {
        let step = |image, patch: &Value| about(|subject| creation(subject, image, Some(pod(patch))));
        assert!(matches!(step("node:2", &waits_with("ErrImagePull")), Ok(CreationStep::Replace(_))));
        assert!(matches!(step(IMAGE, &waits_with("ErrImagePull")), Ok(CreationStep::Use(_))));
        assert!(matches!(step("node:2", &waits_with("ContainerCreating")), Ok(CreationStep::Use(_))));
    }

    #[allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]
    #[rstest]
    #[case::the_pod_starts(json!({}), 599, 0, None)]
    #[case::l01_the_pod_stays_pending(json!({}), 600, 0, Some((Code::DeadlineExceeded, r#"pod "machine-m" is in phase "Pending", failed waiting for phase "Running": not after 600 s"#)))]
    #[case::l01_no_host_fits(
        json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}]}}),
        600, 0,
        Some((Code::DeadlineExceeded, r#"pod "machine-m" is in phase "Pending", failed waiting for phase "Running": Unschedulable: 0/1 nodes are available"#))
    )]
    #[case::an_image_fails_for_a_moment(waits_with("ErrImagePull"), 400, 119, None)]
    #[case::an_image_fails(waits_with("ErrImagePull"), 120, 120, Some((Code::InvalidArgument, r#"pod "machine-m" can't run: container "node" waits with ErrImagePull: no such image"#)))]
    #[case::an_image_fails_and_the_kubelet_waits(waits_with("ImagePullBackOff"), 130, 130, Some((Code::InvalidArgument, r#"pod "machine-m" can't run: container "node" waits with ImagePullBackOff: no such image"#)))]
    #[case::an_image_has_no_name(waits_with("InvalidImageName"), 130, 130, Some((Code::InvalidArgument, r#"pod "machine-m" can't run: container "node" waits with InvalidImageName: no such image"#)))]
    #[case::a_container_is_created(waits_with("ContainerCreating"), 130, 130, None)]
    #[case::it_is_deleted(leaving(), 1, 0, Some((Code::Aborted, r#"pod "machine-m" was deleted before it ran"#)))]
    #[case::it_is_replaced(foreign(), 1, 0, Some((Code::Aborted, r#"pod "machine-m" was deleted before it ran"#)))]
    #[case::it_ends(in_phase("Failed"), 1, 0, Some((Code::Aborted, r#"pod "machine-m" ended with phase "Failed" before it ran"#)))]
    fn a_creation_waits(
        #[case] patch: Value,
        #[case] total: u64,
        #[case] image: u64,
        #[case] expected: Option<(Code, &str)>,
    ) {
        let waited = Waited { total: Duration::from_secs(total), image: Duration::from_secs(image), limit: LIMIT };
        let answer = about(|subject| completion(subject, Some(&pod(&patch)), waited));
        match expected {
            None => assert_eq!(answer, Ok(None)),
            Some((code, message)) => {
                let status = answer.unwrap_err();
                assert_eq!((status.code, status.message.as_str()), (code, message));
            }
        }
    }

    #[test]
    fn a_creation_ends_with_a_running_pod_and_its_addresses() {
        let running = pod(&json!({"status": {"phase": "Running", "podIPs": [{"ip": "10.1.0.7"}, {"ip": "fd00::7"}]}}));
        let vm = about(|subject| completion(subject, Some(&running), Waited::default())).unwrap().unwrap();
        assert_eq!((vm.provider_id.as_str(), vm.node_name.as_str()), ("machine-m", "machine-m"));
        let addresses: Vec<_> = vm.addresses.iter().map(|one| (one.type_.as_str(), one.address.as_str())).collect();
        assert_eq!(addresses, [("InternalIP", "10.1.0.7"), ("InternalIP", "fd00::7")]);
        let gone = about(|subject| completion(subject, None, Waited::default())).unwrap_err();
        assert_eq!(gone.code, Code::Aborted);
    }

    #[allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]
    #[rstest]
    #[case::its_pod(json!({}), "machine-m", Ok(true))]
    #[case::its_pod_without_an_id(json!({}), "", Ok(true))]
    #[case::its_pod_that_leaves(leaving(), "machine-m", Ok(true))]
    #[case::a_pod_without_its_labels(foreign(), "machine-m", Err(Code::FailedPrecondition))]
    #[case::a_foreign_pod_of_its_name(foreign(), "", Ok(false))]
    fn a_deletion_ends(#[case] patch: Value, #[case] provider_id: &str, #[case] expected: Result<bool, Code>) {
        let found = about(|subject| deletion(subject, provider_id, Some(&pod(&patch))));
        assert_eq!(found.map(|target| target.is_some()).map_err(|status| status.code), expected);
    }

    #[allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]
    #[rstest]
    #[case::runs(in_phase("Running"), "", Code::OK)]
    #[case::of_an_unfinished_creation(json!({}), "", Code::Unimplemented)]
    #[case::of_a_finished_creation(json!({}), "machine-m", Code::OK)]
    #[case::of_another(foreign(), "machine-m", Code::NotFound)]
    fn the_pod_of_a_status(#[case] patch: Value, #[case] provider_id: &str, #[case] expected: Code) {
        let code =
            about(|subject| status(subject, provider_id, Some(&pod(&patch)))).map_or_else(|it| it.code, |_| Code::OK);
        assert_eq!(code, expected);
    }

    #[allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]
    #[rstest]
    #[case::nothing(None, true)]
    #[case::of_the_pod(Some(json!([{"kind": "Pod", "name": "machine-m", "controller": true}])), true)]
    #[case::of_another_pod(Some(json!([{"kind": "Pod", "name": "machine-n", "controller": true}])), false)]
    #[case::of_a_user(Some(json!([])), false)]
    #[case::of_something_else(Some(json!([{"kind": "Deployment", "name": "machine-m", "controller": true}])), false)]
    #[case::of_a_pod_and_something_else(
        Some(json!([{"kind": "Pod", "name": "machine-m"}, {"kind": "Deployment", "name": "web", "controller": true}])), false
    )]
    fn an_object_may_be_the_pods(#[case] owners: Option<Value>, #[case] expected: bool) {
        let found = owners.map(|mut owners| {
            for owner in owners.as_array_mut().unwrap() {
                json_patch::merge(owner, &json!({"apiVersion": "v1", "uid": "u-1"}));
            }
            serde_json::from_value::<ObjectMeta>(json!({ "ownerReferences": owners })).unwrap()
        });
        for (which, text) in
            [(Companion::Service, "service \"machine-m\""), (Companion::Secret, "secret \"machine-m-userdata\"")]
        {
            match about(|subject| companion(subject, which, found.as_ref())) {
                Ok(()) => assert!(expected),
                Err(refused) => {
                    assert_eq!((refused.code, expected), (Code::AlreadyExists, false));
                    assert!(refused.message.starts_with(text), "{}", refused.message);
                }
            }
        }
    }

    #[allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]
    #[rstest]
    #[case::that_runs(in_phase("Running"), None, Some("usual"))]
    #[case::that_leaves(leaving(), None, None)]
    #[case::that_runs_by_force(in_phase("Running"), Some("True"), Some("none"))]
    #[case::that_leaves_a_dead_host_by_force(leaving(), Some("true"), Some("none"))]
    #[case::that_leaves_and_no_force(leaving(), Some("yes"), None)]
    fn a_pod_is_deleted(#[case] patch: Value, #[case] force: Option<&str>, #[case] grace: Option<&str>) {
        let mut machine = Machine::default();
        machine.metadata.labels =
            force.map(|value| [(label::FORCE_DELETION.to_owned(), value.to_owned())].into_iter().collect());
        let found = removal(&machine, &pod(&patch));
        assert_eq!(found.map(|how| if how.grace_seconds == Some(0) { "none" } else { "usual" }), grace);
    }

    #[test]
    fn without_a_pod_there_is_nothing() {
        let missing = about(|subject| status(subject, "machine-m", None)).unwrap_err();
        assert_eq!(missing.code, Code::NotFound);
        assert_eq!(about(|subject| deletion(subject, "machine-m", None)), Ok(None));
    }
}
