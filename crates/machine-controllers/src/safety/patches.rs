//! Makes the patches of the safety loops; no other file of this folder does. Each patch fails in any version but the
//! observed one. Pure.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::freeze::{THAW_TEXT, Thaw};
use crate::{
    snapshots::{MachineSnapshot, NodeSnapshot},
    times::rfc3339,
};
use controller_runtime::{objects::Patch, snapshot::Snapshot};
use machine_api::{
    names::{annotation, finalizer, machine_condition},
    v1alpha1::MachinePhase,
};

/// The patch of a machine's status after a thaw.
pub fn thaw(thaw: Thaw, machine: &MachineSnapshot, now: Timestamp) -> Patch {
    let status = match thaw {
        Thaw::RestartsTimeout => json!({ "currentStatus": { "lastUpdateTime": rfc3339(now) } }),
        Thaw::Recovers => recovered(machine, now),
    };
    Patch::Merge(json!({ "status": status })).guarded_by(machine.resource_version())
}

fn recovered(machine: &MachineSnapshot, now: Timestamp) -> Value {
    let others = machine.machine_conditions().iter();
    let others = others.filter(|condition| condition.type_ != machine_condition::PROGRESSING);
    let mut conditions: Vec<Value> = others.map(|condition| json!(condition)).collect();
    conditions.push(json!({
        "type": machine_condition::PROGRESSING,
        "status": "False",
        "reason": machine_condition::REASON_SETTLED,
        "message": THAW_TEXT,
        "observedGeneration": machine.generation().unwrap_or_default(),
        "lastTransitionTime": rfc3339(now),
    }));
    json!({
        "currentStatus": {
            "phase": MachinePhase::Running,
            "lastUpdateTime": rfc3339(now),
            "timeoutActive": null,
        },
        "lastOperation": {
            "type": "HealthCheck",
            "state": "Successful",
            "description": THAW_TEXT,
            "errorCode": null,
            "lastUpdateTime": rfc3339(now),
        },
        "machineConditions": conditions,
    })
}

/// Marks a Node as unmanaged and removes our finalizer.
pub fn release(node: &NodeSnapshot) -> Patch {
    let kept: Vec<&String> = node.finalizers().iter().filter(|name| *name != finalizer::NODE).collect();
    let mut patch = json!({ "metadata": { "annotations": { annotation::NOT_MANAGED: "1" } } });
    if kept.len() != node.finalizers().len() {
        patch["metadata"]["finalizers"] = json!(kept);
    }
    Patch::Merge(patch).guarded_by(node.resource_version())
}

/// Removes the mark of an unmanaged Node.
pub fn unmark(node: &NodeSnapshot) -> Patch {
    let patch = json!({ "metadata": { "annotations": { annotation::NOT_MANAGED: null } } });
    Patch::Merge(patch).guarded_by(node.resource_version())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safety::freeze::{
        tests::{at, unknown},
        thawed,
    };

    #[test]
    fn mc_256_a_machine_that_fell_ill_in_the_outage_is_running_again() {
        assert_eq!(thawed(&unknown(10).into(), at(0)), Some(Thaw::Recovers));
        let patch = thaw(Thaw::Recovers, &unknown(10).into(), at(1200));
        let Patch::Merge(patch) = patch else { panic!("{patch:?}") };
        assert_eq!(patch["status"]["currentStatus"]["phase"], "Running");
        assert_eq!(patch["status"]["lastOperation"]["description"], THAW_TEXT);
        assert_eq!(patch["status"]["lastOperation"]["type"], "HealthCheck");
        // Fields that the patch does not name stay, above all the end of a preservation.
        assert!(patch["status"]["currentStatus"].get("preserveExpiryTime").is_none());
    }

    #[test]
    fn mc_259_a_machine_that_was_ill_before_stays_unknown_with_a_new_clock() {
        assert_eq!(thawed(&unknown(-540).into(), at(0)), Some(Thaw::RestartsTimeout));
        let patch = thaw(Thaw::RestartsTimeout, &unknown(-540).into(), at(1200));
        assert_eq!(patch, Patch::Merge(json!({"status": {"currentStatus": {"lastUpdateTime": rfc3339(at(1200))}}})));
    }
}
