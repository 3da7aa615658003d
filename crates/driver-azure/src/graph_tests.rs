//! Tests of queries and their rows.

use rstest::rstest;

use super::*;
use crate::rules::owner_tags;

fn owner() -> OwnerTags {
    owner_tags(["kubernetes.io-role-n", "kubernetes.io-cluster-b", "kubernetes.io-cluster-a'x\\"].into_iter()).unwrap()
}

#[test]
fn texts_in_queries_are_quoted_and_all_keys_are_used_in_their_order() {
    let query = of_owner("g'|x", &owner());
    let expected = "Resources | where type in~ ('microsoft.compute/virtualmachines', 'microsoft.network/networkinterfaces', \
                    'microsoft.compute/disks') | where resourceGroup =~ 'g\\'|x' | extend tagKeys = bag_keys(tags) | where tagKeys has \
                    'kubernetes.io-cluster-a\\'x\\\\' and tagKeys has 'kubernetes.io-cluster-b' and tagKeys has 'kubernetes.io-role-n' | project id, \
                    name, type, tags, managedBy, created = properties.timeCreated | order by id asc";
    assert_eq!(query, expected);
}

fn row(kind: &str, name: &str) -> Value {
    let tags = json!({"Kubernetes.io-cluster-b": "1", "kubernetes.io-cluster-a'x\\": "1", "kubernetes.io-role-n": "1"});
    json!({"id": "/x", "name": name, "type": kind, "tags": tags, "managedBy": "", "created": null})
}

fn key(name: &str, lun: i64) -> DiskKey {
    DiskKey { name: name.to_owned(), lun }
}

#[rstest]
#[case::a_vm(&[("Microsoft.Compute/virtualMachines", "M-1")], &["m-1"])]
#[case::z13_a_network_interface(&[(NIC, "m-1-nic")], &["m-1"])]
#[case::a_short_name(&[(NIC, "nic"), (NIC, "-nic"), (NIC, "x")], &[])]
#[case::a_disk(&[(DISK, "m-1-os-disk")], &["m-1"])]
#[case::a_disk_of_the_class(&[(DISK, "m-1-0-data-disk"), (DISK, "m-2-log-3-data-disk")], &["m-1", "m-2"])]
#[case::a_disk_of_another_class(&[(VM, "m-1"), (DISK, "m-1-cache-7-data-disk")], &["m-1"])]
#[case::a_disk_of_an_unknown_machine(&[(DISK, "m-9-7-data-disk")], &["m-9"])]
#[case::another_disk(&[(DISK, "pvc-1"), (DISK, "x-data-disk")], &[])]
#[case::each_once(&[(DISK, "m-1-os-disk"), (NIC, "m-1-nic"), (VM, "m-1")], &["m-1"])]
#[case::another_type(&[("microsoft.compute/images", "m-1")], &[])]
fn rows_belong_to_machines(#[case] rows: &[(&str, &str)], #[case] expected: &[&str]) {
    let rows: Vec<Value> = rows.iter().map(|(kind, name)| row(kind, name)).collect();
    let listed = machines(&rows, &owner(), &[key("", 0), key("log", 3)], "westeurope");
    assert_eq!(listed.iter().map(|vm| vm.machine_name.as_str()).collect::<Vec<_>>(), expected);
}

#[test]
fn an_attached_disk_and_a_row_of_another_owner_name_no_machine() {
    let mut attached = row(DISK, "m-1-0-data-disk");
    attached["managedBy"] = json!("/subscriptions/s/x");
    let mut foreign = row(VM, "m-2");
    foreign["tags"] = json!({"kubernetes.io-cluster-b-2": "1", "kubernetes.io-role-n": "1"});
    assert_eq!(machines(&[attached, foreign, json!(null), json!([])], &owner(), &[key("", 0)], "x"), []);
}

#[test]
fn the_time_of_creation_is_the_one_of_the_vm() {
    let mut vm = row(VM, "m-1");
    vm["created"] = json!("2026-01-07T03:14:15.926+00:00");
    let mut disk = row(DISK, "m-1-os-disk");
    disk["created"] = json!("2020-01-01T00:00:00Z");
    let listed = machines(&[disk, vm], &owner(), &[], "westeurope");
    assert_eq!(listed[0].created, Some("2026-01-07T03:14:15.926Z".parse().unwrap()));
    assert_eq!(listed[0].provider_id, "azure:///westeurope/m-1");
}

#[test]
fn places_are_read_from_ids() {
    let group = api::Group { subscription: "s".to_owned(), name: "g".to_owned() };
    let like = Home { group, cloud: api::Cloud::China, location: "l".to_owned() };
    let row = json!({"id": "/subscriptions/T/resourceGroups/H/providers/Microsoft.Compute/virtualMachines/m"});
    let found = homes(&[row, json!({"id": "/x"}), json!(5)], &like);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].group.subscription.as_str(), found[0].group.name.as_str(), found[0].cloud),
        ("T", "H", api::Cloud::China)
    );
}
