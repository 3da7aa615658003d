//! Warnings for status writes (spec/api-and-admission §5.5). These rules never refuse.

use serde_json::Value;

use super::{
    ValidationRequest,
    node::Node,
    rule::{PolicyCel, Rule, Subject, warns},
};
use crate::{
    kind::{ApiVersion, Kind},
    v1alpha1::{ConditionStatus, MachinePhase, OperationState, OperationType},
};
use kube_values::{
    field::{FieldPath, Findings},
    json::Members,
};

pub const STS_1: Rule = Rule {
    policy_cel: &[PolicyCel {
        subject: Subject::Status,
        expression: "false",
        message: "status: is written by the machine controller manager",
    }],
    ..warns("STS-1", "The status is written by controllers only.", &["sts_1_written_by_somebody"])
};

/// Finds everything suspicious in a status write.
pub fn status_findings(request: &ValidationRequest<'_>) -> Findings {
    let mut found = Findings::new();
    let Some(new) = request.change.new_object().map(Node::of) else { return found };
    if !request.comes_from_controller() {
        let detail = "is written by the machine controller manager";
        found.warn(STS_1.id, FieldPath::new("status"), Value::Null, detail);
    }
    if request.version == ApiVersion::V1alpha1 {
        words_are_known(request.kind, new.get("status"), &mut found);
        numbers_are_possible(new, &mut found);
    }
    found
}

pub const STS_2: Rule = warns("STS-2", "The words of a status are known.", &["sts_2_an_unknown_phase"]);

/// STS-2.
fn words_are_known(kind: Kind, status: Node<'_>, found: &mut Findings) {
    let mut check = |place: &[&str], words: &[&str]| {
        if let Some(word) = status.at(place).text().filter(|word| !words.contains(word)) {
            let path = FieldPath::new(format!("status.{}", place.join(".")));
            found.warn(STS_2.id, path, word, format!("unknown value {word:?}"));
        }
    };
    if kind == Kind::Machine {
        check(&["currentStatus", "phase"], MachinePhase::WORDS);
    }
    check(&["lastOperation", "state"], OperationState::WORDS);
    check(&["lastOperation", "type"], OperationType::WORDS);
    let conditions = match kind {
        Kind::MachineSet => "machineSetCondition",
        Kind::Machine | Kind::MachineDeployment | Kind::MachineClass => "conditions",
    };
    for (index, condition) in status.get(conditions).elements().iter().enumerate() {
        if let Some(word) =
            Node::of(condition).get("status").text().filter(|word| !ConditionStatus::WORDS.contains(word))
        {
            let path = FieldPath::new("status").child(conditions).index(index).child("status");
            found.warn(STS_2.id, path, word, format!("unknown value {word:?}"));
        }
    }
}

pub const STS_3: Rule = warns("STS-3", "The counts of a status are possible.", &["sts_3_a_negative_count_in_a_status"]);

/// STS-3.
fn numbers_are_possible(object: Node<'_>, found: &mut Findings) {
    let status = object.get("status");
    let path = FieldPath::new("status");
    for (name, value) in
        status.members().into_iter().flat_map(Members::iter).filter(|(name, _)| name.ends_with("eplicas"))
    {
        if let Some(number) = Node::of(value).integer().filter(|number| *number < 0) {
            found.warn(STS_3.id, path.child(name), number, "is negative");
        }
    }
    let generation = object.at(&["metadata", "generation"]).integer();
    if let (Some(observed), Some(generation)) = (status.get("observedGeneration").integer(), generation)
        && observed > generation
    {
        found.warn(STS_3.id, path.child("observedGeneration"), observed, "is larger than metadata.generation");
    }
}
