//! The cases of spec/api-and-admission §12.3 that need no server. The names of the tests contain their ids.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::names::{API_VERSION_V1ALPHA1 as ALPHA, API_VERSION_V1BETA1 as BETA};

/// A v1alpha1 object with this content, named `m`.
fn alpha(kind: &str, content: Value) -> Value {
    object(ALPHA, kind, content)
}

fn beta(kind: &str, content: Value) -> Value {
    object(BETA, kind, content)
}

fn object(api_version: &str, kind: &str, content: Value) -> Value {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "m"}});
    merge(&mut object, content);
    object
}

fn merge(object: &mut Value, content: Value) {
    match (object, content) {
        (Value::Object(object), Value::Object(content)) => {
            for (name, value) in content {
                merge(object.entry(name).or_insert(Value::Null), value);
            }
        }
        (object, content) => *object = content,
    }
}

fn up(object: &Value) -> Value {
    convert(object, BETA).unwrap()
}

fn down(object: &Value) -> Value {
    convert(object, ALPHA).unwrap()
}

fn residue(object: &Value) -> Option<&str> {
    let name =
        if object["apiVersion"] == BETA { annotation::CONVERSION_V1ALPHA1 } else { annotation::CONVERSION_V1BETA1 };
    object["metadata"]["annotations"][name].as_str()
}

/// The objects of the fixtures with every field, in both versions.
fn every_field() -> Vec<Value> {
    let alpha = include_str!("../../../../tests/fixtures/every-field-v1alpha1.yaml");
    let beta = include_str!("../../../../tests/fixtures/every-field-v1beta1.yaml");
    [alpha, beta].into_iter().flat_map(|text| serde_saphyr::from_multiple::<Value>(text).unwrap()).collect()
}

fn other(object: &Value) -> &'static str {
    if object["apiVersion"] == BETA { ALPHA } else { BETA }
}

#[test]
fn k1_every_field_survives_both_ways() {
    for object in every_field() {
        let there = convert(&object, other(&object)).unwrap();
        assert_eq!(convert(&there, other(&there)).unwrap(), object, "by way of {there}");
    }
}

#[test]
fn objects_of_the_original_survive() {
    for text in [
        include_str!("../../../../tests/fixtures/go/machines.json"),
        include_str!("../../../../tests/fixtures/go/machinesets.json"),
        include_str!("../../../../tests/fixtures/go/machinedeployments.json"),
        include_str!("../../../../tests/fixtures/go/machineclasses.json"),
    ] {
        let list: Value = serde_json::from_str(text).unwrap();
        for object in list["items"].as_array().unwrap() {
            let there = up(object);
            assert_eq!(down(&there), *object);
            assert_eq!(up(&down(&there)), there);
        }
    }
}

#[test]
fn a_machine_of_the_original_needs_no_residue() {
    let list: Value = serde_json::from_str(include_str!("../../../../tests/fixtures/go/machines.json")).unwrap();
    for object in list["items"].as_array().unwrap() {
        assert_eq!(residue(&up(object)), None);
    }
}

#[rstest]
#[case::k2_absent(json!({}), Value::Null)]
#[case::k2_empty(json!({"nodeConditions": ""}), json!([]))]
#[case::k2_one(json!({"nodeConditions": "A"}), json!(["A"]))]
#[case::k2_two(json!({"nodeConditions": "A,B"}), json!(["A", "B"]))]
#[case::k3_blanks_are_kept(json!({"nodeConditions": "A, B"}), json!(["A", " B"]))]
#[case::empty_entries_are_kept(json!({"nodeConditions": "A,,A,"}), json!(["A", "", "A", ""]))]
#[case::too_many_stay_one_text(json!({"nodeConditions": ",".repeat(4_096)}), json!([",".repeat(4_096)]))]
fn node_conditions_become_a_list(#[case] spec: Value, #[case] list: Value) {
    let machine = alpha("Machine", json!({"spec": {"providerID": "x"}}));
    let mut machine = machine;
    merge(&mut machine["spec"], spec);
    let there = up(&machine);
    assert_eq!(there["spec"]["lifecycle"]["unhealthyNodeConditions"], list);
    assert_eq!(residue(&there), None);
    assert_eq!(down(&there), machine);
}

#[rstest]
#[case::k4_garbage_is_kept_aside("garbage", Value::Null)]
#[case::a_negative_one_too("-5m", Value::Null)]
#[case::k6_the_spelling_is_kept("300s", json!("300s"))]
fn a_duration_is_kept_as_it_is_spelt(#[case] stored: &str, #[case] shown: Value) {
    let machine = alpha("Machine", json!({"spec": {"drainTimeout": stored}}));
    let there = up(&machine);
    assert_eq!(there["spec"]["lifecycle"]["drainTimeout"], shown);
    assert_eq!(down(&there), machine);
}

#[test]
fn k5_an_edit_wins_over_the_residue() {
    let mut there = up(&alpha("Machine", json!({"spec": {"drainTimeout": "garbage", "healthTimeout": "rubbish"}})));
    there["spec"]["lifecycle"] = json!({"drainTimeout": "5m"});
    let back = down(&there);
    assert_eq!(back["spec"], json!({"drainTimeout": "5m", "healthTimeout": "rubbish"}));
    assert_eq!(residue(&back), None);
}

#[test]
fn k7_a_set_keeps_its_dead_class() {
    let set = alpha("MachineSet", json!({"spec": {"machineClass": {"name": "c"}, "replicas": 2}}));
    let there = up(&set);
    assert_eq!(there["spec"], json!({"replicas": 2}));
    assert_eq!(down(&there), set);
}

#[test]
fn k8_a_bare_condition_gets_reason_and_time() {
    let set = alpha("MachineSet", json!({"status": {"machineSetCondition": [{"type": "Frozen", "status": "True"}]}}));
    let there = up(&set);
    let expected = json!([{
        "type": "Frozen", "status": "True", "reason": "Unknown", "message": "",
        "lastTransitionTime": "1970-01-01T00:00:00Z",
    }]);
    assert_eq!((&there["status"]["conditions"], residue(&there)), (&expected, None));
    assert_eq!(down(&there), set);
}

#[test]
fn a_reason_unknown_is_kept() {
    let condition = json!({"type": "Frozen", "status": "True", "reason": "Unknown"});
    let set = alpha("MachineSet", json!({"status": {"machineSetCondition": [condition]}}));
    let there = up(&set);
    assert_eq!(there["status"]["conditions"][0]["reason"], "Unknown");
    assert_eq!(down(&there), set);
}

#[rstest]
#[case::blanks("No capacity left", "No_capacity_left")]
#[case::a_digit_in_front("5xx", "Reason_5xx")]
#[case::a_colon_behind("Failed:", "Failed_")]
#[case::another_alphabet("ähm", "Reason__hm")]
fn an_invalid_reason_is_made_valid(#[case] stored: &str, #[case] shown: &str) {
    let condition =
        json!({"type": "Available", "status": "True", "reason": stored, "lastUpdateTime": "2026-01-01T00:00:00Z"});
    let deployment = alpha("MachineDeployment", json!({"status": {"conditions": [condition]}}));
    let there = up(&deployment);
    assert_eq!(there["status"]["conditions"][0]["reason"], shown);
    assert_eq!(down(&there), deployment);
}

#[test]
fn k9_of_two_conditions_of_a_type_the_last_is_shown() {
    let conditions = json!([
        {"type": "Available", "status": "True"}, {"type": "Frozen", "status": "True"}, {"type": "Available", "status": "False"},
    ]);
    let deployment = alpha("MachineDeployment", json!({"status": {"conditions": conditions}}));
    let there = up(&deployment);
    let shown: Vec<_> =
        there["status"]["conditions"].as_array().unwrap().iter().map(|it| (&it["type"], &it["status"])).collect();
    assert_eq!(json!(shown), json!([["Frozen", "True"], ["Available", "False"]]));
    assert_eq!(down(&there), deployment);
}

#[rstest]
#[case::k10_without_a_revision(json!({"rollbackTo": {}}), json!("0"))]
#[case::an_explicit_zero(json!({"rollbackTo": {"revision": 0}}), json!("0"))]
#[case::a_revision(json!({"rollbackTo": {"revision": 7}}), json!("7"))]
#[case::k11_absent(json!({"paused": true}), Value::Null)]
fn a_rollback_becomes_an_annotation(#[case] spec: Value, #[case] shown: Value) {
    let mut deployment = alpha("MachineDeployment", json!({"spec": {"strategy": {"type": "Recreate"}}}));
    merge(&mut deployment["spec"], spec);
    let there = up(&deployment);
    assert_eq!(there["metadata"]["annotations"][annotation::ROLLBACK_TO], shown);
    assert!(there["spec"].get("rollbackTo").is_none());
    assert_eq!(down(&there), deployment);
}

#[test]
fn a_text_that_is_no_revision_stays_an_annotation() {
    let deployment = beta(
        "MachineDeployment",
        json!({"metadata": {"annotations": {annotation::ROLLBACK_TO: "last week"}}, "spec": {"strategy": {"type": "Recreate"}}}),
    );
    let there = down(&deployment);
    assert_eq!(there["metadata"]["annotations"], json!({annotation::ROLLBACK_TO: "last week"}));
    assert_eq!(there["spec"].get("rollbackTo"), None);
    assert_eq!(up(&there), deployment);
}

#[test]
fn k12_fields_of_the_newer_version_are_kept() {
    let deployment = beta(
        "MachineDeployment",
        json!({"spec": {"strategy": {"type": "Recreate"}}, "status": {"conditions": [{
            "type": "Available", "status": "True", "reason": "Enough", "message": "x",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 3,
        }]}}),
    );
    let there = down(&deployment);
    assert!(residue(&there).is_some());
    assert_eq!(up(&there), deployment);
}

#[test]
fn conditions_are_guarded_one_by_one() {
    let condition = |condition_type: &str, status: &str| json!({"type": condition_type, "status": status});
    let set = alpha(
        "MachineSet",
        json!({"status": {"machineSetCondition": [condition("A", "True"), condition("B", "True")]}}),
    );
    let mut there = up(&set);
    there["status"]["conditions"][0]["reason"] = json!("Edited");
    let back = down(&there);
    assert_eq!(back["status"]["machineSetCondition"][0]["reason"], "Edited");
    assert_eq!(back["status"]["machineSetCondition"][1], condition("B", "True"));
}

#[rstest]
#[case::k13_a_deletion("Delete", "Processing", "Drain successful. Delete Volume Attachments", json!("DeleteVolumeAttachments"))]
#[case::k14_the_first_in_order_wins("Delete", "Processing", "Initiate VM deletion, after Initiate node drain", json!("InitiateDrain"))]
#[case::k15_no_step("HealthCheck", "Successful", "Machine m is healthy", Value::Null)]
#[case::no_step_outside_a_deletion("Create", "Failed", "Initiate VM deletion", Value::Null)]
fn the_next_step_is_read_from_the_description(
    #[case] operation: &str,
    #[case] state: &str,
    #[case] description: &str,
    #[case] step: Value,
) {
    let last_operation = json!({"type": operation, "state": state, "description": description});
    let machine = alpha("Machine", json!({"status": {"lastOperation": last_operation}}));
    let there = up(&machine);
    assert_eq!(there["status"]["operation"]["message"], description);
    assert_eq!(there["status"]["operation"]["nextStep"], step);
    assert_eq!(residue(&there), None);
    assert_eq!(down(&there), machine);
}

#[rstest]
#[case::k16_it_is_appended("x", "x. Initiate node drain")]
#[case::it_is_the_whole_description("", "Initiate node drain")]
#[case::it_is_there_already("Initiate node drain of m", "Initiate node drain of m")]
#[case::a_misleading_message_is_dropped(
    "Now, Set machine status to termination. Now, getting VM Status",
    "Initiate node drain"
)]
fn the_next_step_is_written_into_the_description(#[case] message: &str, #[case] description: &str) {
    let operation = json!({"type": "Delete", "state": "Processing", "message": message, "nextStep": "InitiateDrain"});
    let machine = beta("Machine", json!({"status": {"operation": operation}}));
    let there = down(&machine);
    assert_eq!(there["status"]["lastOperation"]["description"], description);
    assert_eq!(up(&there), machine);
}

#[test]
fn k17_the_label_names_the_node() {
    let machine = alpha("Machine", json!({"metadata": {"labels": {"node": "n1"}}}));
    let mut there = up(&machine);
    assert_eq!(there["status"]["nodeRef"], json!({"name": "n1"}));
    there["status"]["nodeRef"]["name"] = json!("n2");
    let back = down(&there);
    assert_eq!(back, machine);
    assert_eq!(up(&back)["status"]["nodeRef"], json!({"name": "n1"}));
}

#[rstest]
#[case::k18_false(json!({"disableHealthTimeout": false}), json!("Enabled"))]
#[case::k18_true(json!({"disableHealthTimeout": true}), json!("Disabled"))]
#[case::k18_absent(json!({}), Value::Null)]
fn the_health_check_becomes_an_enumeration(#[case] spec: Value, #[case] shown: Value) {
    let machine = alpha("Machine", json!({ "spec": spec }));
    let there = up(&machine);
    assert_eq!(there["spec"]["lifecycle"]["healthCheck"], shown);
    assert_eq!(down(&there), machine);
}

#[test]
fn k19_a_driver_configuration_is_untouched() {
    let class = alpha(
        "MachineClass",
        json!({"providerSpec": {"x": null, "deep": [{"y": null}, null]}, "nodeTemplate": {"capacity": {}, "future": 1}}),
    );
    let there = up(&class);
    assert_eq!(there["spec"]["providerSpec"], class["providerSpec"]);
    assert_eq!(there["spec"]["nodeTemplate"], class["nodeTemplate"]);
    assert_eq!(down(&there), class);
}

#[rstest]
#[case::k21_unknown_kind(json!({"apiVersion": ALPHA, "kind": "Foo"}), BETA)]
#[case::another_group(json!({"apiVersion": "apps/v1beta1", "kind": "Machine"}), BETA)]
#[case::no_version(json!({"kind": "Machine"}), BETA)]
#[case::k22_unknown_version(json!({"apiVersion": ALPHA, "kind": "Machine"}), "machine.sapcloud.io/v2")]
#[case::not_an_object(json!([]), BETA)]
fn unknown_kinds_and_versions_are_refused(#[case] object: Value, #[case] desired: &str) {
    assert!(convert(&object, desired).is_err());
}

#[test]
fn k23_nulls_are_dropped() {
    let machine = alpha("Machine", json!({"spec": null, "status": null}));
    let there = up(&machine);
    assert_eq!(there, beta("Machine", json!({})));
    assert_eq!(down(&there), alpha("Machine", json!({})));
}

/// Found by the property tests: nulls were kept in a value at the top level of a v1alpha1 class, and dropped from the same value in `spec`.
#[test]
fn k23_nulls_in_a_list_at_the_top_are_dropped_too() {
    let there = up(&alpha("MachineClass", json!({"provider": [{"a": null, "b": 1}, null]})));
    assert_eq!(there["spec"]["provider"], json!([{"b": 1}, null]));
}

#[test]
fn k24_an_unknown_phase_passes() {
    let machine = alpha("Machine", json!({"status": {"currentStatus": {"phase": "Rebooting"}}}));
    let there = up(&machine);
    assert_eq!(there["status"]["phase"], "Rebooting");
    assert_eq!(down(&there), machine);
}

#[test]
fn k25_no_residue_touches_identity() {
    let tampered = json!({"name": "m", "edits": [
        {"at": ["metadata", "finalizers"], "put": ["x"]},
        {"at": ["metadata", "uid"], "put": "u"},
        {"at": ["metadata"], "put": {"name": "other"}, "was": {"name": "m"}},
        {"at": ["kind"], "put": "MachineSet", "was": "Machine"},
        {"at": [], "put": 5},
    ]});
    let machine =
        beta("Machine", json!({"metadata": {"annotations": {annotation::CONVERSION_V1ALPHA1: tampered.to_string()}}}));
    assert_eq!(down(&machine), alpha("Machine", json!({})));
}

#[test]
fn a_residue_cannot_change_visible_fields() {
    let tampered = json!({"name": "m", "edits": [
        {"at": ["spec", "providerID"], "put": "theirs", "was": "mine"},
        {"at": ["spec", "drainTimeout"], "put": "1s"},
        {"at": ["spec", "nodeTemplate"], "put": {"metadata": {"creationTimestamp": "x"}}, "was": {"metadata": {}}},
    ]});
    let machine = beta(
        "Machine",
        json!({
            "metadata": {"annotations": {annotation::CONVERSION_V1ALPHA1: tampered.to_string()}},
            "spec": {"providerID": "mine", "nodeTemplate": {"metadata": {}}},
        }),
    );
    let template = json!({"metadata": {"creationTimestamp": "x"}});
    assert_eq!(down(&machine)["spec"], json!({"providerID": "mine", "nodeTemplate": template}));
}

#[rstest]
#[case::no_json("{")]
#[case::other_json("[1]")]
#[case::other_edits("{\"edits\": [{\"at\": 5}]}")]
#[case::empty("")]
fn k26_an_unreadable_residue_is_taken_off_and_counted(#[case] text: &str) {
    let machine = alpha("Machine", json!({"metadata": {"annotations": {annotation::CONVERSION_V1BETA1: text}}}));
    let converted = convert_counting_losses(&machine, BETA).unwrap();
    assert_eq!(converted.object, beta("Machine", json!({})));
    assert_eq!(converted.losses, [Loss::UnreadableResidue]);
}

#[test]
fn a_residue_longer_than_any_that_is_written_is_not_read_and_stays() {
    let edits = [json!({"at": ["spec", "drainTimeout"], "put": "x".repeat(MAX_RESIDUE_BYTES)})];
    let long = json!({"name": "m", "edits": edits}).to_string();
    for (stored, name) in [(ALPHA, annotation::CONVERSION_V1BETA1), (BETA, annotation::CONVERSION_V1ALPHA1)] {
        let machine = object(stored, "Machine", json!({"metadata": {"annotations": {name: long, "a": "b"}}}));
        let converted = convert_counting_losses(&machine, other(&machine)).unwrap();
        assert_eq!(converted.losses, [Loss::UnreadableResidue]);
        assert_eq!(converted.object["metadata"]["annotations"], json!({name: long, "a": "b"}));
        assert_eq!(convert(&converted.object, stored).unwrap(), machine, "and comes back as it was");
    }
}

/// A visible edit is dropped together with the edits of the same region, and with no others.
#[test]
fn only_visible_forged_edits_are_dropped() {
    let forged = json!({"name": "m", "edits": [
        {"at": ["spec", "providerID"], "put": "theirs"},
        {"at": ["spec", "nodeTemplate", "future"], "put": 1},
        {"at": ["status", "observedGeneration"], "put": 4},
        {"at": ["status", "conditions", {"type": "A"}, "observedGeneration"], "put": 7},
    ]});
    let machine = alpha(
        "Machine",
        json!({
            "metadata": {"annotations": {annotation::CONVERSION_V1BETA1: forged.to_string()}},
            "spec": {"nodeTemplate": {"metadata": {}}},
            "status": {"machineConditions": [{"type": "A", "status": "True"}]},
        }),
    );
    let there = up(&machine);
    // Only v1beta1 has the other two fields, so that admission has not missed them.
    assert_eq!(there["spec"], json!({"nodeTemplate": {"metadata": {}, "future": 1}}));
    assert_eq!(there["status"]["conditions"], json!([{"type": "A", "status": "True"}]));
    assert_eq!(there["status"]["observedGeneration"], 4);
}

#[test]
fn an_entry_of_a_long_list_is_restored() {
    let condition = |n: usize| json!({"type": format!("T{n}"), "status": "True", "reason": "no words"});
    let conditions: Vec<_> = (0..2_000).map(condition).collect();
    let mut set = alpha("MachineSet", json!({"status": {"machineSetCondition": conditions}}));
    set["status"]["machineSetCondition"][1_999]["future"] = json!("x");
    let mut there = up(&set);
    // All reasons differ in the other version, which is too long for a residue. The other field is restored.
    assert_eq!(residue(&there), None);
    let carried = json!({"name": "m", "edits": [{"at": ["status", "machineSetCondition", {"type": "T1999"}, "future"], "put": "x"}]});
    there["metadata"]["annotations"] = json!({annotation::CONVERSION_V1ALPHA1: carried.to_string()});
    assert_eq!(down(&there)["status"]["machineSetCondition"][1_999]["future"], "x");
}

#[test]
fn an_extra_field_of_one_of_many_conditions_is_restored() {
    let conditions: Vec<_> = (0..2_000).map(|n| json!({"type": format!("T{n}"), "status": "True"})).collect();
    let mut set = alpha("MachineSet", json!({"status": {"machineSetCondition": conditions}}));
    set["status"]["machineSetCondition"][1_999]["future"] = json!("x");
    assert_eq!(down(&up(&set)), set);
}

#[test]
fn k27_a_residue_belongs_to_its_object() {
    let mut there = up(&alpha("Machine", json!({"spec": {"drainTimeout": "garbage"}})));
    there["metadata"]["name"] = json!("copy");
    let back = down(&there);
    assert_eq!(back["spec"], json!({}));
    assert_eq!(residue(&back), None);
}

#[rstest]
#[case::k29_empty(json!({"strategy": {"type": ""}}))]
#[case::no_type(json!({"strategy": {"rollingUpdate": {"maxSurge": 1}}}))]
#[case::no_strategy(json!({"paused": true}))]
fn an_unnamed_strategy_is_a_rolling_update(#[case] spec: Value) {
    let deployment = alpha("MachineDeployment", json!({ "spec": spec }));
    let there = up(&deployment);
    assert_eq!(there["spec"]["strategy"]["type"], "RollingUpdate");
    assert_eq!(down(&there), deployment);
}

#[test]
fn an_older_clients_edit_wins_over_fields_of_the_newer_version() {
    let operation = json!({"type": "Delete", "state": "Processing", "message": "x", "nextStep": "InitiateDrain"});
    let machine = beta(
        "Machine",
        json!({"spec": {"providerID": "p"}, "status": {"observedGeneration": 4, "operation": operation}}),
    );
    let mut there = down(&machine);
    there["status"]["lastOperation"]["description"] = json!("Initiate VM deletion");
    let again = up(&there);
    assert_eq!(again["status"]["operation"]["message"], "Initiate VM deletion");
    assert_eq!(again["status"]["operation"]["nextStep"], "InitiateVMDeletion");
    assert_eq!(again["status"]["observedGeneration"], 4);
}

#[test]
fn a_removed_parent_is_not_restored() {
    let set = alpha("MachineSet", json!({"spec": {"replicas": 1, "template": {"spec": {"drainTimeout": "garbage"}}}}));
    let mut there = up(&set);
    there["spec"] = json!({"replicas": 2});
    assert_eq!(down(&there)["spec"], json!({"replicas": 2}));
}

#[test]
fn a_residue_that_is_too_large_is_left_out_and_counted() {
    let machine = alpha("Machine", json!({"spec": {"drainTimeout": "x".repeat(MAX_RESIDUE_BYTES), "providerID": "p"}}));
    let converted = convert_counting_losses(&machine, BETA).unwrap();
    assert_eq!(converted.losses, [Loss::OmittedResidue]);
    assert_eq!(converted.object, beta("Machine", json!({"spec": {"providerID": "p"}})));
}

#[test]
fn conditions_are_left_out_first_when_a_residue_is_too_large() {
    let conditions: Vec<_> = (0..600)
        .map(|number| json!({"type": format!("Type{number}"), "status": "True", "reason": "Given", "message": "", "observedGeneration": 1}))
        .collect();
    let set = beta("MachineSet", json!({"status": {"conditions": conditions, "operation": {"nextStep": "Later"}}}));
    let converted = convert_counting_losses(&set, ALPHA).unwrap();
    assert_eq!(converted.losses, []);
    assert_eq!(up(&converted.object)["status"]["operation"], json!({"nextStep": "Later"}));
}

#[test]
fn the_same_version_is_returned_as_it_is() {
    let machine = alpha("Machine", json!({"spec": null}));
    assert_eq!(convert(&machine, ALPHA).unwrap(), machine);
}

/// K28: the conversion of a thousand machines takes well below a second.
#[test]
fn k28_a_thousand_machines_are_quick() {
    let machine = every_field().remove(0);
    let start = std::time::Instant::now();
    for _ in 0..1000 {
        let there = up(&machine);
        assert!(there.is_object());
    }
    // The limit is generous, because tests run unoptimised and in parallel. A wrong order of magnitude still fails.
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
}
