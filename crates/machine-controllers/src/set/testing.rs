//! Builders of sets and machines for the tests of this folder and of `deployment`.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference, Time};

use super::observe::SetObservation;
use crate::snapshots::{DeploymentSnapshot, MachineSnapshot, SetSnapshot};
use kube_values::selector::Labels;
use machine_api::{
    names::{API_VERSION_V1ALPHA1, finalizer},
    v1alpha1::{Machine, MachineDeployment, MachinePhase, MachineSet, OperationState},
};

/// The present time in all tests.
pub(crate) fn now() -> Timestamp {
    at(0)
}

/// `seconds` after the present time in all tests.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

pub(crate) fn controller_reference(kind: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: API_VERSION_V1ALPHA1.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

pub(crate) struct Building<T>(pub T);

impl<T> Building<T> {
    pub(crate) fn build(self) -> T {
        self.0
    }
    pub(crate) fn with(mut self, change: impl FnOnce(&mut T)) -> Self {
        change(&mut self.0);
        self
    }
}

impl<T: kube::Resource> Building<T> {
    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.0.meta_mut().labels.get_or_insert_default().insert(key.to_owned(), value.to_owned());
        self
    }
    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0.meta_mut().annotations.get_or_insert_default().insert(key.to_owned(), value.to_owned());
        self
    }
    pub(crate) fn deleting(mut self) -> Self {
        self.0.meta_mut().deletion_timestamp = Some(Time(now()));
        self
    }
    pub(crate) fn created_at(mut self, seconds: i64) -> Self {
        self.0.meta_mut().creation_timestamp = Some(Time(at(seconds)));
        self
    }
    pub(crate) fn no_owner(mut self) -> Self {
        self.0.meta_mut().owner_references = None;
        self
    }
}

impl Building<Machine> {
    pub(crate) fn phase(mut self, phase: MachinePhase) -> Self {
        self.0.status.current_status.phase = phase;
        self
    }
    pub(crate) fn preserved_until(mut self, seconds: i64) -> Self {
        self.0.status.current_status.preserve_expiry_time = Some(Time(at(seconds)));
        self
    }
    pub(crate) fn failed_operation(mut self) -> Self {
        self.0.status.last_operation.state = OperationState::Failed;
        self
    }
}

impl Building<MachineDeployment> {
    pub(crate) fn snapshot(self) -> DeploymentSnapshot {
        self.0.into()
    }
}

impl Building<Machine> {
    pub(crate) fn snapshot(self) -> MachineSnapshot {
        self.0.into()
    }
}

impl Building<MachineSet> {
    pub(crate) fn snapshot(self) -> SetSnapshot {
        self.0.into()
    }
}

pub(crate) fn meta(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some("ns".to_owned()),
        uid: Some(format!("uid-{name}")),
        resource_version: Some("1".to_owned()),
        creation_timestamp: Some(Time(at(-3600))),
        generation: Some(1),
        finalizers: Some(vec![finalizer::MACHINE.to_owned()]),
        ..ObjectMeta::default()
    }
}

/// A machine of [`set`], with labels and owner, without a phase.
pub(crate) fn machine(name: &str) -> Building<Machine> {
    let mut machine = Machine { metadata: meta(name), ..Machine::default() };
    machine.metadata.owner_references = Some(vec![controller_reference("MachineSet", "set", "uid-set")]);
    machine.spec.class.kind = "MachineClass".to_owned();
    machine.spec.class.name = "class".to_owned();
    Building(machine).label("set", "x")
}

pub(crate) fn running(name: &str) -> Building<Machine> {
    machine(name).phase(MachinePhase::Running)
}

pub(crate) fn failed(name: &str) -> Building<Machine> {
    machine(name).phase(MachinePhase::Failed)
}

pub(crate) fn selector(pairs: &[(&str, &str)]) -> LabelSelector {
    let labels: Labels = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    LabelSelector { match_labels: Some(labels), match_expressions: None }
}

/// A set `ns/set` with this size.
pub(crate) fn set(replicas: i32) -> Building<MachineSet> {
    let mut set = MachineSet { metadata: meta("set"), ..MachineSet::default() };
    set.spec.replicas = replicas;
    set.spec.selector = Some(selector(&[("set", "x")]));
    set.spec.template.metadata.labels = set.spec.selector.as_ref().unwrap().match_labels.clone();
    set.spec.template.spec.class.kind = "MachineClass".to_owned();
    set.spec.template.spec.class.name = "class".to_owned();
    Building(set)
}

/// The observation of the set controller.
pub(crate) fn seeing(set: impl Into<SetSnapshot>, machines: impl IntoIterator<Item = Machine>) -> SetObservation {
    let machines = machines.into_iter().map(Into::into).collect();
    SetObservation { machines, ..SetObservation::of(set.into(), now()) }
}

pub(crate) fn seeing_running(set: impl Into<SetSnapshot>, count: usize) -> SetObservation {
    let names: Vec<String> = (0..count).map(|number| format!("set-m{number:03}")).collect();
    let machines = names
        .iter()
        .enumerate()
        .map(|(number, name)| running(name).created_at(-3000 + i64::try_from(number).unwrap()).build());
    seeing(set, machines)
}
