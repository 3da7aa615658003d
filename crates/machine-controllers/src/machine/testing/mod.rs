//! Observations for the tests of this module, and the effect of a plan on a machine.

pub mod cloud;
pub mod cluster;
pub mod views;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus, Taint},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;
use serde_json::Value;

use super::{
    act::{Touched, touched},
    observation::{
        Answer, Call, ClassState, ClassView, CreationGuarantee, DrainState, Flow, Freeze, Inputs, LastGood,
        NodeIdentity, NodeSource, NodeView, OBSERVATION_VERSION, Observation, Permit, SecretView, Silence,
        StepFailures, TargetCluster, UserData, VmCheck, ailments::Ailments, shared_instance::VmOwner,
    },
    patches::{self, Write},
    plan::{Effect, Plan, deletion_stage::DeletionStage, status_change::StatusChange},
    settings::MachineSettings,
    standing::Stated,
};
use crate::snapshots::{MachineSnapshot, NodeSnapshot};
use controller_runtime::{
    objects::Patch,
    snapshot::{Snapshot, Whole},
};
use machine_api::{
    names::{annotation, finalizer, label, node_condition},
    v1alpha1::{LastOperation, Machine, MachinePhase, OperationState, OperationType},
};
use machine_driver::{Code, Status};

pub const MINUTE: Duration = Duration::from_secs(60);

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// A machine of age zero with our finalizer, its class usable, its node unknown.
pub fn machine() -> Machine {
    let mut machine = Machine::default();
    machine.metadata.name = Some("m-abcde".to_owned());
    machine.metadata.namespace = Some("ns".to_owned());
    machine.metadata.uid = Some("uid-1".to_owned());
    machine.metadata.resource_version = Some("1".to_owned());
    machine.metadata.generation = Some(1);
    machine.metadata.creation_timestamp = Some(Time(at(0)));
    machine.metadata.finalizers = Some(vec![finalizer::MACHINE.to_owned()]);
    machine.spec.class.kind = "MachineClass".to_owned();
    machine.spec.class.name = "c".to_owned();
    machine
}

/// The machine with its VM and Node recorded.
pub fn recorded() -> Machine {
    let mut machine = machine();
    machine.labels_mut().insert(label::NODE.to_owned(), "n".to_owned());
    machine.annotations_mut().insert(annotation::MACHINE_PRIORITY.to_owned(), "3".to_owned());
    machine.spec.provider_id = "cloud:///n".to_owned();
    machine
}

/// The recorded machine in a phase, entered at this second, by an operation of this type and state.
pub fn in_phase(phase: MachinePhase, since: i64, operation: OperationType, state: OperationState) -> Machine {
    let mut machine = recorded();
    machine.status.current_status.phase = phase;
    machine.status.current_status.last_update_time = Some(Time(at(since)));
    machine.status.last_operation =
        LastOperation { operation, state, last_update_time: Some(Time(at(since))), ..LastOperation::default() };
    machine
}

pub fn running() -> Machine {
    let mut machine = in_phase(MachinePhase::Running, 60, OperationType::Create, OperationState::Successful);
    machine.status.conditions = vec![condition("Ready", "True")];
    machine
}

pub fn pending() -> Machine {
    let mut machine = in_phase(MachinePhase::Pending, 1, OperationType::Create, OperationState::Processing);
    machine.status.current_status.timeout_active = true;
    machine
}

pub fn deleted_at(mut machine: Machine, second: i64) -> Machine {
    machine.metadata.deletion_timestamp = Some(Time(at(second)));
    machine
}

pub fn condition(kind: &str, status: &str) -> NodeCondition {
    NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        last_transition_time: Some(Time(at(0))),
        ..NodeCondition::default()
    }
}

/// The machine's node with these conditions and everything that the machine puts on it.
pub fn node(conditions: Vec<NodeCondition>) -> Node {
    let mut node = Node::default();
    node.metadata.name = Some("n".to_owned());
    node.metadata.uid = Some("node-uid".to_owned());
    node.metadata.resource_version = Some("5".to_owned());
    node.metadata.finalizers = Some(vec![finalizer::NODE.to_owned()]);
    node.labels_mut().insert(label::MACHINE_NAME.to_owned(), "m-abcde".to_owned());
    node.spec = Some(NodeSpec { provider_id: Some("cloud://zone-a/n".to_owned()), ..NodeSpec::default() });
    node.status = Some(NodeStatus { conditions: Some(conditions), ..NodeStatus::default() });
    node
}

pub fn tainted(mut node: Node, key: &str) -> Node {
    let taint = Taint { key: key.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    node.spec.get_or_insert_default().taints.get_or_insert_default().push(taint);
    node
}

/// The observation of a machine at this second: target cluster present, class usable, nothing in memory.
pub fn seen(machine: impl Into<MachineSnapshot>, second: i64) -> Observation {
    let machine = machine.into();
    let linked = machine.label(label::NODE).is_some();
    let deleting = machine.deleting_since();
    Observation {
        version: OBSERVATION_VERSION,
        now: at(second),
        steady: at(second),
        step: None,
        clock: None,
        first_seen: at(0),
        first_seen_deleting: deleting,
        freeze: Freeze::Flowing,
        silence: Silence::None,
        target: TargetCluster::Present,
        limits: MachineSettings::default().limits_of(&machine),
        class: ClassView {
            state: ClassState::Usable,
            virtual_capacity: Some(BTreeMap::new()),
            creation: CreationGuarantee::Idempotent,
            last_good: LastGood::Unknown,
        },
        secrets: SecretView::Present(UserData::WithoutToken),
        node: if linked { NodeView::Absent } else { NodeView::NotLinked { candidate: None, namesake: None } },
        node_identity: NodeIdentity::Told,
        stated: None,
        vm_owner: VmOwner::This,
        replacement: None,
        creation_unknown_since: None,
        flow: Flow::default(),
        pause: None,
        inputs: Inputs { machine: machine.generation(), ..Inputs::default() },
        drain: DrainState::Due,
        attachments: Some(Vec::new()),
        missing_views: Vec::new(),
        siblings: None,
        permit: Permit::NotHeld,
        node_source: NodeSource::Live,
        step_failures: StepFailures::default(),
        ailments: Ailments::default(),
        conditions_differ_since: None,
        vm_check: VmCheck::NotAsked,
        machine,
    }
}

pub fn with_node(mut seen: Observation, node: Node) -> Observation {
    let node = NodeSnapshot::from(node);
    seen.ailments = Ailments::from_the_beginning(&node, seen.steady);
    seen.node = NodeView::Ours(node);
    seen
}

/// The machine after the writes of a plan.
pub fn after(plan: &Plan, machine: &(impl Clone + Into<MachineSnapshot>)) -> MachineSnapshot {
    let machine = &machine.clone().into();
    let mut object = serde_json::to_value(machine.whole_object()).unwrap();
    for effect in &plan.effects {
        match effect {
            Effect::WriteStatus { change, at } => {
                json_patch::merge(&mut object, &patches::status(change, *at, machine));
            }
            effect => merge(&mut object, patches::of_machine(effect, &seen(machine.clone(), 0), machine)),
        }
    }
    MachineSnapshot::of(serde_json::from_value(object).unwrap())
}

/// Carries out the status write of a plan, and remembers it as the process does.
pub fn carry_out_report(seen: &mut Observation, plan: &Plan) {
    seen.machine = after(plan, &seen.machine);
    if let Some(standing) = status_change(plan).and_then(|change| change.standing.clone()) {
        seen.stated = Some(Arc::new(Stated { standing, at: seen.steady }));
    }
}

/// The writes of a plan on the machine: `status` or `machine`.
pub fn machine_writes(plan: &Plan) -> Vec<&'static str> {
    plan.effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::DeleteMachine => None,
            effect => match touched(effect)? {
                Touched::MachineStatus => Some("status"),
                Touched::Machine => Some("machine"),
                _ => None,
            },
        })
        .collect()
}

/// The writes of a plan on the Node.
pub fn node_writes(plan: &Plan) -> usize {
    plan.effects.iter().filter(|effect| matches!(touched(effect), Some(Touched::Node | Touched::NodeStatus))).count()
}

/// Applies what an effect writes.
pub fn merge(object: &mut Value, write: Write) {
    match write {
        Write::This(_, Patch::Merge(patch)) => json_patch::merge(object, &patch),
        Write::This(_, Patch::Json(operations)) => {
            let operations: json_patch::Patch = serde_json::from_value(Value::Array(operations)).unwrap();
            json_patch::patch(object, &operations).unwrap();
        }
        Write::Nothing | Write::Void => {}
    }
}

/// The Node after the writes of a plan.
pub fn node_after(plan: &Plan, node: &Node) -> Node {
    plan.effects.iter().fold(node.clone(), |node, effect| {
        let mut object = serde_json::to_value(&node).unwrap();
        merge(&mut object, patches::of_node(effect, &node.into()));
        serde_json::from_value(object).unwrap()
    })
}

/// The change of the status that a plan writes.
pub fn status_change(plan: &Plan) -> Option<&StatusChange> {
    plan.effects.iter().find_map(|effect| match effect {
        Effect::WriteStatus { change, .. } => Some(&**change),
        _ => None,
    })
}

pub fn starts(plan: &Plan) -> Option<Call> {
    plan.effects.iter().find_map(|effect| match effect {
        Effect::Start(call) => Some(*call),
        _ => None,
    })
}

/// A machine that is being deleted and has been at this stage since second 100.
pub fn resting(stage: DeletionStage) -> Machine {
    let mut machine = in_phase(MachinePhase::Terminating, 100, OperationType::Delete, OperationState::Processing);
    machine.status.last_operation.description = stage.marker().to_owned();
    deleted_at(machine, 100)
}

pub fn cordoned(conditions: Vec<NodeCondition>) -> Node {
    let mut node = node(conditions);
    node.spec.get_or_insert_default().unschedulable = Some(true);
    node.status
        .get_or_insert_default()
        .conditions
        .get_or_insert_default()
        .push(condition(node_condition::TERMINATING, "True"));
    node
}

pub fn draining(second: i64) -> Observation {
    with_node(seen(resting(DeletionStage::Drain), second), cordoned(vec![condition("Ready", "True")]))
}

pub fn answered(mut seen: Observation, answer: Answer) -> Observation {
    seen.flow.learn(answer);
    seen
}

pub fn deletes(code: Code) -> Answer {
    Answer::Deleted(Err(Status::new(code, "no")))
}
