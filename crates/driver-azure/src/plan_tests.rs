//! Tests of what a creation and a deletion do next, as tables.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use cloud_client::FailureKind;
use rstest::rstest;

use super::*;
use crate::rules::owner_tags;

const CLUSTER: &str = "kubernetes.io-cluster-a";
const ROLE: &str = "kubernetes.io-role-n";

fn owner() -> OwnerTags {
    owner_tags([CLUSTER, ROLE].into_iter()).unwrap()
}

fn tagged(keys: &[&str]) -> Value {
    keys.iter().map(|key| ((*key).to_owned(), json!("1"))).collect::<serde_json::Map<_, _>>().into()
}

fn ours(mut body: Value) -> Resource {
    body["tags"] = tagged(&[CLUSTER, ROLE]);
    Resource(body)
}

fn in_state(state: &str) -> Resource {
    ours(
        json!({"properties": {"provisioningState": state, "storageProfile": {"osDisk": {"managedDisk": {"id": "/d"}}}}}),
    )
}

#[rstest]
#[case::all_tags(&[CLUSTER, ROLE], Evidence::Name, Belonging::Ours)]
#[case::in_another_case(&["Kubernetes.io-cluster-A", "KUBERNETES.IO-ROLE-N"], Evidence::Name, Belonging::Ours)]
#[case::another_role(&[CLUSTER], Evidence::Name, Belonging::Unclear)]
#[case::another_role_of_a_recorded_vm(&[CLUSTER], Evidence::Recorded, Belonging::Ours)]
#[case::no_tags(&[], Evidence::Recorded, Belonging::Foreign)]
#[case::a_longer_key(&["kubernetes.io-cluster-ab", ROLE], Evidence::Recorded, Belonging::Foreign)]
fn tags_prove_whose_a_resource_is(#[case] keys: &[&str], #[case] evidence: Evidence, #[case] expected: Belonging) {
    let resource = Resource(json!({"tags": tagged(keys)}));
    assert_eq!(Belonging::of(&resource, Some(&owner()), evidence), expected);
    assert_eq!(Belonging::of(&resource, None, evidence), Belonging::Unclear, "a class without tags proves nothing");
}

#[rstest]
#[case::nothing(None, Begin::Make)]
#[case::being_created(Some(in_state("Creating")), Begin::Wait)]
#[case::created(Some(in_state("Succeeded")), Begin::Adopt)]
#[case::being_changed(Some(in_state("Updating")), Begin::Adopt)]
#[case::failed_with_a_disk(Some(in_state("Failed")), Begin::Adopt)]
#[case::failed_without_a_disk(Some(ours(json!({"properties": {"provisioningState": "Failed"}}))), Begin::Replace)]
#[case::being_deleted(Some(in_state("Deleting")), Begin::Fail(Status::new(Code::Aborted, "VM m is being deleted")))]
#[case::foreign(Some(Resource(json!({}))), Begin::Fail(Status::new(Code::AlreadyExists,
    "VM m exists and lacks the tags kubernetes.io-cluster-a kubernetes.io-role-n; it is not touched")))]
fn a_creation_begins(#[case] vm: Option<Resource>, #[case] expected: Begin) {
    assert_eq!(begin(vm.as_ref(), "m", &owner(), Evidence::Name), expected);
}

fn attached(name: &str) -> Value {
    json!({"managedBy": format!("/subscriptions/s/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/{name}")})
}

#[rstest]
#[case::nothing(None, Supply::Make)]
#[case::ready(Some(in_state("Succeeded")), Supply::Use)]
#[case::failed(Some(in_state("Failed")), Supply::Make)]
#[case::of_the_machine(Some(ours(attached("M"))), Supply::Use)]
#[case::of_another_vm(
    Some(ours(attached("m-2"))),
    Supply::Fail(Status::new(Code::AlreadyExists, "disk m-0-data-disk is attached to VM m-2"))
)]
#[case::being_deleted(
    Some(in_state("Deleting")),
    Supply::Fail(Status::new(Code::Aborted, "disk m-0-data-disk is being deleted"))
)]
#[case::foreign(Some(Resource(json!({}))), Supply::Fail(Status::new(Code::AlreadyExists,
    "disk m-0-data-disk exists and lacks the tags kubernetes.io-cluster-a kubernetes.io-role-n; it is not touched")))]
fn a_part_is_supplied(#[case] found: Option<Resource>, #[case] expected: Supply) {
    assert_eq!(supply(found.as_ref(), ("disk", "m-0-data-disk", "m"), &owner(), Evidence::Name), expected);
}

#[rstest]
#[case::exhausted(Code::ResourceExhausted, "AllocationFailed", "", AfterFailure::DeleteAll)]
#[case::it_exists(Code::AlreadyExists, "PreconditionFailed", "", AfterFailure::Look)]
#[case::a_disk(Code::Internal, "ConflictingUserInput", "", AfterFailure::DeleteDisks)]
#[case::a_disk_by_its_text(
    Code::Internal,
    "Conflict",
    "Disk m-os-disk already exists in resource group G",
    AfterFailure::DeleteDisks
)]
#[case::anything_else(Code::Internal, "Conflict", "x", AfterFailure::Keep)]
#[case::a_lost_answer(Code::Unavailable, "", "x", AfterFailure::Keep)]
fn a_failure_has_a_consequence(
    #[case] code: Code,
    #[case] reason: &str,
    #[case] message: &str,
    #[case] expected: AfterFailure,
) {
    let failure = Failure { reason: reason.to_owned(), ..Failure::new(code, message, FailureKind::Permanent) };
    assert_eq!(after_failure(&failure), expected);
}

#[test]
fn the_view_of_a_vm_tells_why_it_has_failed() {
    let vm = |code: &str| {
        Resource(json!({"properties": {"instanceView": {"statuses": [
        {"code": "PowerState/stopped"}, {"code": code, "message": "no capacity"}]}}}))
    };
    let failure = failure_of_vm("put", &vm("ProvisioningState/failed/AllocationFailed")).unwrap();
    assert_eq!(
        (failure.status.code, failure.status.message.as_str()),
        (Code::ResourceExhausted, "put: AllocationFailed: no capacity")
    );
    assert_eq!(failure_of_vm("put", &vm("ProvisioningState/succeeded")), None);
}

const NIC: &str = "/subscriptions/s/resourceGroups/G/providers/Microsoft.Network/networkInterfaces/M-nic";

fn vm(state: &str, options: [Value; 3], to_be_detached: bool) -> Resource {
    let [nic, os, data] = options;
    Resource(json!({"properties": {
        "provisioningState": state,
        "networkProfile": {"networkInterfaces": [
            {"id": NIC, "properties": {"primary": true, "deleteOption": nic}},
            {"id": NIC.replace("M-nic", "other-nic"), "properties": {"primary": false}},
        ]},
        "storageProfile": {
            "osDisk": {"name": "m-os-disk", "deleteOption": os, "osType": "Linux"},
            "dataDisks": [
                {"lun": 0, "name": "m-0-data-disk", "deleteOption": data, "toBeDetached": to_be_detached},
                {"lun": 1, "name": "pvc-1", "deleteOption": "Detach"},
            ],
        },
    }}))
}

#[test]
fn z17_parts_that_would_stay_are_updated_and_nothing_else() {
    let (delete, absent) = (json!("Delete"), Value::Null);
    let parts = ["M-nic", "m-os-disk", "m-0-data-disk"];
    let removal = |vm: Resource| super::removal(&vm, "m");
    let complete = removal(vm("Succeeded", [delete.clone(), delete.clone(), delete.clone()], false));
    assert_eq!((complete.update, complete.parts.as_slice()), (None, &parts.map(str::to_owned)[..]));
    let lacking = removal(vm("Succeeded", [absent.clone(), delete.clone(), json!("Detach")], false));
    let update = lacking.update.unwrap();
    let expected = vm("x", [delete.clone(), delete.clone(), delete.clone()], false).0;
    for path in ["/properties/networkProfile", "/properties/storageProfile"] {
        assert_eq!(update.pointer(path), expected.pointer(path), "{path}");
    }
    assert_eq!(removal(vm("Failed", [absent.clone(), delete.clone(), delete.clone()], false)).update, None, "z11");
    assert_eq!(removal(vm("Succeeded", [absent, delete.clone(), delete], true)).update, None);
    for body in
        [json!(null), json!({"properties": {"networkProfile": {"networkInterfaces": ["x", 5]}, "storageProfile": "x"}})]
    {
        assert_eq!(removal(Resource(body)), Removal::default());
    }
}

#[rstest]
#[case::gone(None, false, Leftover::Leave)]
#[case::ours(Some(ours(json!({}))), false, Leftover::Delete)]
#[case::of_the_vm(Some(Resource(json!({}))), true, Leftover::Delete)]
#[case::foreign(Some(Resource(json!({}))), false, Leftover::Leave)]
#[case::of_another_vm(Some(ours(attached("m-1"))), true, Leftover::Leave)]
fn what_is_left_is_deleted_if_it_is_ours(
    #[case] found: Option<Resource>,
    #[case] is_part: bool,
    #[case] expected: Leftover,
) {
    let names = ("disk", "m-1-0-data-disk", "m");
    assert_eq!(leftover(found.as_ref(), names, is_part, Some(&owner()), Evidence::Recorded), expected);
}

#[test]
fn what_may_be_ours_fails_the_deletion() {
    let found = Resource(json!({"tags": tagged(&[CLUSTER])}));
    let decided = leftover(Some(&found), ("disk", "d", "m"), false, Some(&owner()), Evidence::Name);
    assert!(matches!(decided, Leftover::Fail(status) if status.code == Code::FailedPrecondition));
}

#[rstest]
#[case("m", "m-0-data-disk", true)]
#[case("m", "M-Image-12-data-disk", true)]
#[case("m", "m-data-disk", false)]
#[case("m", "m-x-data-disk", false)]
#[case("m", "m2-0-data-disk", false)]
#[case("m", "m-0-os-disk", false)]
#[case("", "-0-data-disk", false)]
fn data_disks_have_the_name_of_their_machine(#[case] machine: &str, #[case] disk: &str, #[case] expected: bool) {
    assert_eq!(is_data_disk_of(machine, disk), expected);
}

#[test]
fn names_are_those_of_the_go_driver() {
    let key = |name: &str| DiskKey { name: name.to_owned(), lun: 2 };
    assert_eq!((network_interface("m").as_str(), os_disk("m").as_str()), ("m-nic", "m-os-disk"));
    assert_eq!(
        (data_disk("m", &key("")).as_str(), data_disk("m", &key("d")).as_str()),
        ("m-2-data-disk", "m-d-2-data-disk")
    );
}
