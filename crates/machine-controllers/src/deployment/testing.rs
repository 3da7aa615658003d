//! Builders of deployments and their sets for the tests of this folder.

use controller_runtime::{objects::Patch, snapshot::Whole};
use k8s_openapi::{
    api::core::v1::Node,
    apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString},
};

use proptest::prelude::ProptestConfig;

use super::{
    node_change::NodeChange,
    observe::{DeploymentObservation, SetSeen},
    patches,
};
use crate::{
    set::testing::{Building, at, controller_reference, machine, meta, now, selector, set},
    snapshots::{DeploymentSnapshot, MachineSnapshot, SetSnapshot},
};
use machine_api::{
    names::{annotation, label},
    v1alpha1::{
        InPlaceUpdate, MachineDeployment, MachineDeploymentStrategy, MachineSet, OrchestrationType, RollingUpdate,
        StrategyType,
    },
};

/// Histories of rollouts and of machines take seconds, so they get a quarter of the cases of other properties. The
/// simulation runs tens of thousands more.
pub(crate) fn a_quarter_of_the_cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { failure_persistence: None, cases: usual.cases / 4, ..usual }
}

pub(crate) fn rolling(surge: i32, unavailable: i32) -> MachineDeploymentStrategy {
    MachineDeploymentStrategy {
        strategy_type: StrategyType::RollingUpdate,
        rolling_update: Some(RollingUpdate {
            max_surge: Some(IntOrString::Int(surge)),
            max_unavailable: Some(IntOrString::Int(unavailable)),
        }),
        in_place_update: None,
    }
}

pub(crate) fn in_place(surge: i32, unavailable: i32, orchestration: OrchestrationType) -> MachineDeploymentStrategy {
    MachineDeploymentStrategy {
        strategy_type: StrategyType::InPlaceUpdate,
        rolling_update: None,
        in_place_update: Some(InPlaceUpdate {
            max_surge: Some(IntOrString::Int(surge)),
            max_unavailable: Some(IntOrString::Int(unavailable)),
            orchestration_type: orchestration,
        }),
    }
}

/// A deployment `ns/md` of machines of class `new`.
pub(crate) fn deployment(replicas: i32, surge: i32, unavailable: i32) -> Building<MachineDeployment> {
    let mut deployment = MachineDeployment { metadata: meta("md"), ..MachineDeployment::default() };
    deployment.spec.replicas = replicas;
    deployment.spec.selector = Some(selector(&[("set", "x")]));
    deployment.spec.template = set(1).build().spec.template;
    deployment.spec.template.spec.class.name = "new".to_owned();
    deployment.spec.strategy = rolling(surge, unavailable);
    Building(deployment)
}

/// A set of the deployment with machines of this class.
pub(crate) fn set_of_class(name: &str, class: &str, replicas: i32, created: i64) -> MachineSet {
    let hash = format!("hash-{name}");
    let mut built = set(replicas)
        .label("set", "x")
        .label(label::MACHINE_TEMPLATE_HASH, &hash)
        .annotation(annotation::REVISION, "1")
        .build();
    let base = meta(name);
    built.metadata.name = base.name;
    built.metadata.uid = base.uid;
    built.metadata.creation_timestamp = Some(Time(at(created)));
    built.metadata.owner_references = Some(vec![controller_reference("MachineDeployment", "md", "uid-md")]);
    built.spec.template.spec.class.name = class.to_owned();
    built
        .spec
        .template
        .metadata
        .labels
        .get_or_insert_default()
        .insert(label::MACHINE_TEMPLATE_HASH.to_owned(), hash.clone());
    built.spec.selector = Some(selector(&[("set", "x"), (label::MACHINE_TEMPLATE_HASH, &hash)]));
    built.status.observed_generation = 1;
    built
}

/// `count` machines of a set: the first `available` are Running, the others Pending.
pub(crate) fn machines_of(set: &MachineSet, count: usize, available: usize) -> Vec<MachineSnapshot> {
    use machine_api::v1alpha1::MachinePhase::{Pending, Running};
    let (name, uid) = (set.metadata.name.clone().unwrap(), set.metadata.uid.clone().unwrap());
    (0..count)
        .map(|number| {
            let phase = if number < available { Running } else { Pending };
            let mut one = machine(&format!("{name}-{number}")).phase(phase).build();
            one.metadata.labels.clone_from(&set.spec.template.metadata.labels);
            one.metadata.owner_references = Some(vec![controller_reference("MachineSet", &name, &uid)]);
            one.into()
        })
        .collect()
}

/// A set that has all its wanted machines, of which `available` are available: `spec/available` in the specification.
pub(crate) fn seen_set(set: impl Into<SetSnapshot>, available: usize) -> SetSeen {
    let set = set.into();
    let count = usize::try_from(set.replicas()).unwrap();
    SetSeen { machines: machines_of(set.whole_object(), count, available), set }
}

pub(crate) fn old(replicas: i32, available: usize) -> SetSeen {
    seen_set(set_of_class("md-old", "old", replicas, -2000), available)
}

pub(crate) fn new(replicas: i32, available: usize) -> SetSeen {
    seen_set(set_of_class("md-new", "new", replicas, -1000), available)
}

/// The observation of the deployment controller. The scaling annotations of the sets match the size of the deployment.
pub(crate) fn seeing_sets(deployment: impl Into<DeploymentSnapshot>, sets: Vec<SetSeen>) -> DeploymentObservation {
    let deployment = deployment.into();
    let limits = super::fenceposts::Fenceposts::of(&deployment);
    let sets = sets
        .into_iter()
        .map(|mut seen| {
            let set = seen.set.to_mut();
            let annotations = set.metadata.annotations.get_or_insert_default();
            annotations
                .entry(annotation::DESIRED_REPLICAS.to_owned())
                .or_insert_with(|| deployment.replicas().to_string());
            annotations.entry(annotation::MAX_REPLICAS.to_owned()).or_insert_with(|| {
                let rolls = deployment.strategy().strategy_type == StrategyType::RollingUpdate;
                (deployment.replicas() + if rolls { limits.surge } else { 0 }).to_string()
            });
            seen
        })
        .collect();
    DeploymentObservation { sets, ..DeploymentObservation::of(deployment, now()) }
}

/// The Node after this change.
pub(crate) fn changed(change: &NodeChange, node: &Node) -> Node {
    let mut document = serde_json::to_value(node).unwrap();
    match patches::of_node(change, &node.clone().into()) {
        Some(Patch::Merge(patch)) => json_patch::merge(&mut document, &patch),
        Some(Patch::Json(operations)) => {
            let patch: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
            json_patch::patch(&mut document, &patch).unwrap();
        }
        None => {}
    }
    serde_json::from_value(document).unwrap()
}
