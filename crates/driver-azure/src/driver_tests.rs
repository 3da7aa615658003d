//! Tests of the driver against the fake Azure, which checks each request and answer against the models of Microsoft's own clients.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use cloud_client::{
    Answer, Bytes, HttpOptions, HttpTransport, NoAnswer, Transport,
    http::{HeaderValue, Method as HttpMethod, Request, StatusCode},
};
use fake_azure::{Method, OperationError, Refusal};
use k8s_openapi::api::core::v1::{AzureDiskVolumeSource, CSIPersistentVolumeSource};
use machine_driver::{ErrorCodes, contract};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{
    state::Kept,
    test_rig::{CLUSTER, ROLE, Rig, USER_DATA, class, cx, disk, id, nic, options, secret, tags, with_properties},
};

/// Long enough for a wait of half a second.
const SHORT: Duration = Duration::from_millis(5500);

/// Properties with most options.
fn everything() -> Value {
    with_properties(json!({
        "storageProfile": {
            "diskControllerType": "NVMe",
            "osDisk": {"caching": "ReadWrite", "managedDisk": {"securityProfile": {"securityEncryptionType": "VMGuestStateOnly"}}},
            "dataDisks": [
                {"lun": 0, "diskSizeGB": 20, "storageAccountType": "Premium_LRS", "caching": "ReadOnly"},
                {"lun": 1, "name": "image", "diskSizeGB": 30, "storageAccountType": "StandardSSD_LRS", "imageRef": {"id": fake_azure::IMAGE_ID}},
            ],
        },
        "osProfile": {"linuxConfiguration": {"ssh": {"publicKeys": {
            "path": "/home/core/.ssh/authorized_keys", "keyData": "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7"}}}},
        "networkProfile": {"acceleratedNetworking": true},
        "identityID": fake_azure::IDENTITY,
        "diagnosticsProfile": {"enabled": true, "storageURI": "https://diagnostics.blob.core.windows.net/"},
        "securityProfile": {"securityType": "ConfidentialVM", "uefiSettings": {"vtpmEnabled": true, "secureBootEnabled": true}},
        "capacityReservation": {"capacityReservationGroupID": fake_azure::CAPACITY_RESERVATION_GROUP},
    }))
}

/// A class whose VMs have two data disks: one empty, one with an image.
fn two_disks() -> Value {
    with_properties(json!({"storageProfile": {"dataDisks": [
        {"lun": 0, "diskSizeGB": 20, "storageAccountType": "Premium_LRS"},
        {"lun": 1, "name": "image", "diskSizeGB": 30, "storageAccountType": "Premium_LRS", "imageRef": {"id": fake_azure::IMAGE_ID}},
    ]}}))
}

#[rstest]
#[case::z01_a_zone(json!({}))]
#[case::all_options(everything())]
#[case::an_availability_set(with_properties(json!({"zone": null, "availabilitySet": {"id": fake_azure::AVAILABILITY_SET}})))]
#[case::a_scale_set(with_properties(json!({"zone": null, "virtualMachineScaleSet": {"id": fake_azure::SCALE_SET}})))]
#[case::an_image_of_the_subscription(with_properties(json!({"storageProfile": {"imageReference": {"urn": null, "id": fake_azure::IMAGE_ID}}})))]
#[case::an_image_of_a_gallery(with_properties(json!({"storageProfile": {"imageReference": {"urn": null, "id": fake_azure::GALLERY_IMAGE_ID}}})))]
#[case::an_image_of_a_community(with_properties(json!({"storageProfile": {"imageReference": {"urn": null, "communityGalleryImageID": fake_azure::COMMUNITY_IMAGE}}})))]
#[case::a_shared_image(with_properties(json!({"storageProfile": {"imageReference": {"urn": null, "sharedGalleryImageID": fake_azure::SHARED_IMAGE}}})))]
#[case::spot(with_properties(json!({"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": 0.5}, "networkProfile": {"ipv6": true}})))]
#[case::a_network_of_another_group(json!({"subnetInfo": {"vnetResourceGroup": fake_azure::VNET_RESOURCE_GROUP}}))]
#[case::a_location_as_the_portal_shows_it(json!({"location": "West Europe"}))]
#[tokio::test]
async fn a_vm_is_created_and_deleted(#[case] patch: Value) {
    let rig = Rig::new().await.with(patch);
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    let created = rig.create().await.unwrap();
    assert_eq!(created.vm.node_name, "m-1");
    let internal = created.vm.addresses.iter().filter(|address| address.type_ == "InternalIP").count();
    assert!(internal >= 1, "{:?}", created.vm.addresses);
    let vm = rig.azure.vms().remove(0);
    assert_eq!(vm["tags"], tags());
    assert_eq!(rig.azure.nics()[0]["tags"], tags());
    assert_eq!(rig.azure.nics()[0]["properties"]["enableIPForwarding"], true);
    assert_eq!(rig.azure.custom_data("m-1").unwrap(), BASE64_STANDARD.encode(USER_DATA));
    let rig = rig.with_id(&created.vm.provider_id).with_state(created.last_known_state);
    let seen = rig.status().await.unwrap();
    assert_eq!((&seen.provider_id, &seen.node_name), (&created.vm.provider_id, &created.vm.node_name));
    rig.delete().await.unwrap();
    assert_eq!(rig.resources(), [] as [&str; 0]);
    rig.delete().await.unwrap();
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
}

#[tokio::test]
async fn z01_requests_of_a_creation_come_in_their_order_and_everything_goes_with_the_vm() {
    let rig = Rig::new().await.with(two_disks());
    let created = rig.create().await.unwrap();
    assert_eq!((created.vm.provider_id.as_str(), created.vm.node_name.as_str()), (id("m-1").as_str(), "m-1"));
    let expected = [
        Method::GetVm,
        Method::GetMarketplaceImage,
        Method::GetSubnet,
        Method::GetNic,
        Method::CreateNic,
        Method::GetDisk,
        Method::CreateDisk,
        Method::CreateVm,
    ];
    assert_eq!(rig.methods(), expected);
    let body = rig.body(Method::CreateVm);
    let options = [
        "/properties/networkProfile/networkInterfaces/0/properties/deleteOption",
        "/properties/storageProfile/osDisk/deleteOption",
        "/properties/storageProfile/dataDisks/0/deleteOption",
        "/properties/storageProfile/dataDisks/1/deleteOption",
    ];
    assert!(options.iter().all(|path| body.pointer(path) == Some(&json!("Delete"))), "{body}");
    let names = ["m-1", "m-1-0-data-disk", "m-1-image-1-data-disk", "m-1-nic", "m-1-os-disk"];
    assert_eq!(rig.resources(), names);
    let call = rig.azure.requests().into_iter().find(|call| call.method == Method::CreateVm).unwrap();
    assert_eq!(call.headers["if-none-match"], "*", "a VM that exists is not changed");
}

#[tokio::test]
async fn z02_a_network_interface_that_exists_is_used() {
    let rig = Rig::new().await;
    rig.azure.put_nic(&nic("m-1-nic", tags()));
    rig.create().await.unwrap();
    assert_eq!(rig.azure.count(Method::CreateNic), 0);
}

#[tokio::test]
async fn z03_the_terms_of_a_plan_are_accepted_once_and_the_vm_carries_the_plan() {
    let image = json!({"storageProfile": {"imageReference": {"urn": fake_azure::URN_WITH_PLAN}}});
    let mut rig = Rig::new().await.with(with_properties(image));
    rig.create().await.unwrap();
    assert_eq!(rig.azure.agreement()["properties"]["accepted"], true);
    let plan = json!({"name": "nodes", "product": "hardened-linux", "publisher": "example"});
    assert_eq!(rig.body(Method::CreateVm)["plan"], plan);
    rig.machine.metadata.name = Some("m-2".to_owned());
    rig.create().await.unwrap();
    assert_eq!((rig.azure.count(Method::GetAgreement), rig.azure.count(Method::AcceptAgreement)), (2, 1));
}

#[tokio::test]
async fn z04_an_image_is_not_looked_up_if_the_class_skips_its_agreement() {
    let image = json!({"urn": fake_azure::URN, "skipMarketplaceAgreement": true});
    let rig = Rig::new().await.with(with_properties(json!({"storageProfile": {"imageReference": image}})));
    rig.create().await.unwrap();
    assert_eq!(rig.azure.count(Method::GetMarketplaceImage), 0);
    assert_eq!(rig.body(Method::CreateVm)["plan"], Value::Null);
}

#[rstest]
#[case::z05_a_zone_without_capacity(OperationError::zonal_allocation_failed())]
#[case::a_region_without_capacity(OperationError::allocation_failed())]
#[case::too_many_constraints(OperationError::overconstrained())]
#[case::z06_a_quota(OperationError::quota_exceeded())]
#[case::when_the_disks_exist(OperationError::zonal_allocation_failed().with_disks())]
#[case::in_a_detail(OperationError::new("DeploymentFailed", "At least one operation failed.").nested("SkuNotAvailable", "no such size here"))]
#[case::in_an_inner_error(OperationError::new("VMStartTimedOut", "x").inner("AllocationFailed"))]
#[tokio::test]
async fn a_vm_without_capacity_leaves_nothing(#[case] error: OperationError) {
    let mut rig = Rig::new().await.with(two_disks());
    rig.azure.fail(Method::CreateVm, &error, 1);
    let failed = rig.create().await.unwrap_err();
    assert_eq!(failed.code, Code::ResourceExhausted, "{failed}");
    assert_eq!(rig.resources(), [] as [&str; 0]);
    rig.keep(&failed);
    rig.create().await.unwrap();
}

#[tokio::test]
async fn z06_another_refusal_is_internal_and_keeps_what_was_made() {
    let rig = Rig::new().await;
    rig.azure.refuse(Method::CreateVm, Refusal::new(409, "OperationNotAllowed", "The VM is locked."), 1);
    let failed = rig.create().await.unwrap_err();
    assert_eq!(failed.code, Code::Internal);
    assert_eq!(rig.resources(), ["m-1-nic"]);
    rig.azure.refuse(Method::CreateVm, Refusal::quota_exceeded(), 1);
    assert_eq!(rig.create().await.unwrap_err().code, Code::ResourceExhausted);
    assert_eq!(rig.resources(), [] as [&str; 0]);
}

#[tokio::test]
async fn a_cleanup_that_fails_is_told_and_goes_on_in_the_next_call() {
    let mut rig = Rig::new().await;
    rig.azure.fail(Method::CreateVm, &OperationError::zonal_allocation_failed(), 1);
    rig.azure.refuse(Method::DeleteVm, Refusal::conflict(), 1);
    let failed = rig.create().await.unwrap_err();
    assert_eq!(failed.code, Code::ResourceExhausted);
    assert!(failed.message.contains("not everything could be deleted"), "{failed}");
    assert_eq!(rig.resources(), ["m-1", "m-1-nic"]);
    rig.keep(&failed);
    rig.delete().await.unwrap();
    assert_eq!(rig.resources(), [] as [&str; 0]);
}

#[tokio::test]
async fn z08_a_machine_set_becomes_the_set_of_its_kind() {
    let set = |kind: &str, id: &str| with_properties(json!({"zone": null, "machineSet": {"kind": kind, "id": id}}));
    let mut rig = Rig::new().await.with(set("vmo", fake_azure::SCALE_SET));
    rig.create().await.unwrap();
    assert_eq!(rig.body(Method::CreateVm)["properties"]["virtualMachineScaleSet"]["id"], fake_azure::SCALE_SET);
    rig.machine.metadata.name = Some("m-2".to_owned());
    rig.patch = set("availabilityset", fake_azure::AVAILABILITY_SET);
    rig.create().await.unwrap();
    assert_eq!(rig.body(Method::CreateVm)["properties"]["availabilitySet"]["id"], fake_azure::AVAILABILITY_SET);
}

#[tokio::test]
async fn z10_parts_without_a_vm_are_deleted() {
    let rig = Rig::new().await.with(two_disks());
    rig.azure.put_nic(&nic("m-1-nic", tags()));
    rig.azure.put_disk(&disk("m-1-0-data-disk", tags()));
    rig.azure.put_disk(&disk("m-10-0-data-disk", tags()));
    rig.azure.put_disk(&disk("pvc-of-a-user", tags()));
    rig.delete().await.unwrap();
    assert_eq!(rig.resources(), ["m-10-0-data-disk", "pvc-of-a-user"]);
}

#[tokio::test]
async fn z11_a_vm_that_can_not_be_updated_is_deleted_and_then_its_parts() {
    let rig = Rig::new().await.with(two_disks());
    rig.create().await.unwrap();
    rig.azure.change_vm("m-1", |vm| {
        vm["properties"]["provisioningState"] = json!("Failed");
        for disk in vm["properties"]["storageProfile"]["dataDisks"].as_array_mut().unwrap() {
            disk["deleteOption"] = json!("Detach");
        }
        vm["properties"]["storageProfile"]["osDisk"]["deleteOption"] = json!("Detach");
        vm["properties"]["networkProfile"]["networkInterfaces"][0]["properties"] = json!({"primary": true});
    });
    rig.delete().await.unwrap();
    assert_eq!((rig.azure.count(Method::UpdateVm), rig.azure.count(Method::DeleteNic)), (0, 1));
    assert_eq!(rig.resources(), [] as [&str; 0]);
}

#[tokio::test]
async fn z12_nothing_is_left_without_the_resource_group() {
    let rig = Rig::new().await;
    rig.azure.delete_resource_group();
    rig.delete().await.unwrap();
    assert_eq!(rig.methods(), [Method::GetVm]);
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    assert!(refused.message.contains("has no resource group"), "{refused}");
}

#[tokio::test]
async fn z13_what_is_left_of_a_machine_is_listed_and_deleted() {
    let rig = Rig::new().await.with(two_disks());
    rig.azure.put_nic(&nic("m-1-nic", tags()));
    rig.azure.put_disk(&disk("m-2-image-1-data-disk", tags()));
    rig.azure.put_disk(&disk("m-3-os-disk", tags()));
    rig.azure.put_nic(&nic("no-end", tags()));
    rig.azure.put_nic(&nic("of-another-role-nic", json!({CLUSTER: "1", "kubernetes.io-role-node-2": "1"})));
    let listed = rig.list().await.unwrap();
    let rows: Vec<_> = listed.iter().map(|vm| (vm.provider_id.clone(), vm.machine_name.as_str())).collect();
    assert_eq!(rows, [(id("m-1"), "m-1"), (id("m-2"), "m-2"), (id("m-3"), "m-3")]);
    let mut rig = rig;
    for name in ["m-1", "m-2", "m-3"] {
        rig = rig.orphan(name);
        rig.delete().await.unwrap();
    }
    assert_eq!(rig.resources(), ["no-end", "of-another-role-nic"]);
}

/// Resource Graph with 2,500 rows of 1,200 machines.
struct LargeGraph {
    real: HttpTransport,
    pages: AtomicUsize,
    /// The page that fails, from 1.
    broken: usize,
}

fn large_page(number: usize, token: Value) -> Value {
    let row = |index: usize| {
        let (kind, end) = if index.is_multiple_of(2) { ("virtualMachines", "") } else { ("networkInterfaces", "-nic") };
        let provider = if end.is_empty() { "Microsoft.Compute" } else { "Microsoft.Network" };
        json!({"id": format!("/x/{index}"), "name": format!("m-{}{end}", index / 2), "type": format!("{provider}/{kind}"), "tags": tags(),
               "created": "2026-01-07T03:14:15.926+00:00"})
    };
    let rows: Vec<Value> = (number * 1000..2500.min((number + 1) * 1000)).map(row).collect();
    let truncated = if token.is_null() { "false" } else { "true" };
    let mut page = json!({"totalRecords": 2500, "count": rows.len(), "resultTruncated": truncated, "data": rows});
    if !token.is_null() {
        page["$skipToken"] = token;
    }
    page
}

#[async_trait]
impl Transport for LargeGraph {
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer> {
        if !request.uri().path().contains("ResourceGraph") {
            return self.real.send(request).await;
        }
        let body: Value = serde_json::from_slice(request.body()).unwrap();
        let page = match body["options"]["$skipToken"].as_str() {
            None => 0,
            Some(token) => token.strip_prefix("page-").unwrap().parse().unwrap(),
        };
        let number = self.pages.fetch_add(1, Ordering::SeqCst) + 1;
        let (status, body) = if number == self.broken {
            let error = json!({"error": {"code": "BadRequest", "message": "no", "details": [{"code": "InvalidSkipToken", "message": "no"}]}});
            (StatusCode::BAD_REQUEST, error)
        } else {
            let token = if page < 2 { json!(format!("page-{}", page + 1)) } else { Value::Null };
            (StatusCode::OK, large_page(page, token))
        };
        Ok(Answer { status, headers: cloud_client::http::HeaderMap::new(), body: body.to_string().into() })
    }
}

fn large(broken: usize) -> LargeGraph {
    LargeGraph { real: HttpTransport::new(HttpOptions::default()), pages: AtomicUsize::new(0), broken }
}

#[tokio::test]
async fn z14_a_long_list_is_read_page_by_page_and_each_machine_is_listed_once() {
    let rig = Rig::new().await.through(large(0));
    let listed = rig.list().await.unwrap();
    assert_eq!(listed.len(), 1250);
    assert!(listed.iter().all(|vm| vm.created.is_some()));
    let rig = Rig::new().await.through(large(2));
    assert_eq!(rig.list().await.unwrap_err().code, Code::Internal, "c10: a part of a list is no list");
}

#[tokio::test]
async fn z16_a_data_disk_with_an_image_is_made_first_and_attached() {
    let rig = Rig::new().await.with(two_disks());
    rig.create().await.unwrap();
    let body = rig.body(Method::CreateDisk);
    assert_eq!((&body["zones"], &body["tags"], &body["sku"]["name"]), (&json!(["1"]), &tags(), &json!("Premium_LRS")));
    assert_eq!(body["properties"]["creationData"]["imageReference"]["id"], fake_azure::IMAGE_ID);
    let attached = &rig.body(Method::CreateVm)["properties"]["storageProfile"]["dataDisks"][1];
    assert_eq!(attached["createOption"], "Attach");
    assert!(attached["managedDisk"]["id"].as_str().unwrap().ends_with("/disks/m-1-image-1-data-disk"));
}

#[rstest]
#[case::an_urn(json!({"urn": fake_azure::URN}), "imageReference")]
#[case::of_a_community(json!({"communityGalleryImageID": fake_azure::COMMUNITY_IMAGE}), "galleryImageReference")]
#[case::shared(json!({"sharedGalleryImageID": fake_azure::SHARED_IMAGE}), "galleryImageReference")]
#[tokio::test]
async fn z16_all_images_can_be_on_data_disks(#[case] image: Value, #[case] field: &str) {
    let disk = json!({"lun": 0, "diskSizeGB": 30, "storageAccountType": "Premium_LRS", "imageRef": image});
    let rig = Rig::new().await.with(with_properties(json!({"storageProfile": {"dataDisks": [disk]}})));
    rig.create().await.unwrap();
    assert!(rig.body(Method::CreateDisk)["properties"]["creationData"][field].is_object());
}

#[tokio::test]
async fn z17_a_network_interface_that_would_stay_is_updated_before_the_deletion() {
    let rig = Rig::new().await;
    rig.create().await.unwrap();
    rig.azure.change_vm("m-1", |vm| {
        let nic = &mut vm["properties"]["networkProfile"]["networkInterfaces"][0];
        nic["id"] = json!(
            nic["id"].as_str().unwrap().replace("m-1-nic", "M-1-NIC").replace("resourceGroups", "resourcegroups")
        );
        nic["properties"] = json!({"primary": true});
    });
    rig.delete().await.unwrap();
    let update = rig.body(Method::UpdateVm);
    let option = "/properties/networkProfile/networkInterfaces/0/properties/deleteOption";
    assert_eq!(update.pointer(option), Some(&json!("Delete")), "{update}");
    assert_eq!(rig.azure.count(Method::DeleteNic), 0);
    assert_eq!(rig.resources(), [] as [&str; 0]);
}

#[tokio::test]
async fn a_refused_update_does_not_keep_a_vm() {
    let rig = Rig::new().await;
    rig.create().await.unwrap();
    rig.azure.change_vm("m-1", |vm| {
        vm["properties"]["networkProfile"]["networkInterfaces"][0]["properties"] = json!({"primary": true});
    });
    rig.azure.refuse(Method::UpdateVm, Refusal::forbidden(), 1);
    rig.delete().await.unwrap();
    assert_eq!((rig.azure.count(Method::UpdateVm), rig.azure.count(Method::DeleteNic)), (1, 1));
    assert_eq!(rig.resources(), [] as [&str; 0]);
}

#[tokio::test]
async fn disks_of_users_stay_when_their_vm_is_deleted() {
    let rig = Rig::new().await;
    rig.create().await.unwrap();
    rig.azure.put_disk(&disk("pvc-1", json!({})));
    let volume = rig.azure.disks().into_iter().find(|disk| disk["name"] == "pvc-1").unwrap();
    let vm_id = rig.azure.vms()[0]["id"].clone();
    rig.azure.change_disk("pvc-1", |disk| disk["managedBy"] = vm_id);
    rig.azure.change_vm("m-1", |vm| {
        let attached = json!({"lun": 5, "name": "pvc-1", "createOption": "Attach", "caching": "None", "deleteOption": "Detach",
                              "toBeDetached": false, "managedDisk": {"id": volume["id"]}});
        vm["properties"]["storageProfile"]["dataDisks"].as_array_mut().unwrap().push(attached);
        vm["properties"]["storageProfile"]["osDisk"]["deleteOption"] = json!("Detach");
    });
    rig.delete().await.unwrap();
    assert_eq!(rig.azure.count(Method::UpdateVm), 1);
    let disks = &rig.body(Method::UpdateVm)["properties"]["storageProfile"]["dataDisks"];
    assert_eq!((&disks[0]["name"], &disks[0]["deleteOption"]), (&json!("pvc-1"), &json!("Detach")));
    assert_eq!(rig.resources(), ["pvc-1"]);
}

#[tokio::test]
async fn a_machine_costs_few_requests() {
    let rig = Rig::new().await;
    rig.status().await.unwrap_err();
    let created = rig.create().await.unwrap();
    let rig = rig.with_id(&created.vm.provider_id).with_state(created.last_known_state);
    rig.delete().await.unwrap();
    let creation = [
        Method::GetVm,
        Method::GetMarketplaceImage,
        Method::GetSubnet,
        Method::GetNic,
        Method::CreateNic,
        Method::CreateVm,
    ];
    let deletion = [Method::GetVm, Method::DeleteVm, Method::GetNic, Method::GetDisk];
    assert_eq!(rig.methods(), [&[Method::GetVm][..], &creation, &deletion].concat());
}

#[tokio::test]
async fn the_contract_of_drivers_holds() {
    let rig = Rig::new().await;
    contract::holds_for(&rig.driver, class(json!({})), rig.secret.clone()).await;
    assert_eq!(rig.resources(), [] as [&str; 0]);
}

#[tokio::test]
async fn initialisation_is_not_implemented() {
    let rig = Rig::new().await;
    let refused = rig.driver.initialize_machine(&cx(), rig.request()).await.unwrap_err();
    assert_eq!(refused.code, Code::Unimplemented);
    assert_eq!(refused.message, "Azure Provider does not yet implement InitializeMachine");
}

#[tokio::test]
async fn c_01_a_class_of_another_provider_is_refused_without_a_request() {
    let rig = Rig::new().await;
    let mut request = rig.request();
    request.class = Arc::new(MachineClass { provider: "azure".to_owned(), ..class(json!({})) });
    let refused = rig.driver.create_machine(&cx(), request).await.unwrap_err();
    let expected = "error validating provider provider: Invalid value: \"azure\": Request for provider azure cannot be fulfilled. Only Azure \
                    provider is supported.";
    assert_eq!((refused.code, refused.message.as_str()), (Code::InvalidArgument, expected));
    assert_eq!(rig.azure.requests().len(), 0);
}

#[tokio::test]
async fn a_repeated_creation_adopts_the_vm_and_a_running_one_is_waited_for() {
    let mut rig = Rig::new().await;
    rig.azure.hold_operations();
    // The network interface is made by then.
    rig.azure.put_nic(&nic("m-1-nic", tags()));
    let waits = rig.create_within(SHORT).await.unwrap_err();
    assert_eq!(waits.code, Code::DeadlineExceeded, "{waits}");
    rig.keep(&waits);
    assert_eq!(rig.status().await.unwrap_err().code, Code::Unimplemented, "the next call is a creation");
    rig.azure.release_operations();
    rig.azure.finish_operations();
    let created = rig.create().await.unwrap();
    assert_eq!(rig.azure.created(), ["m-1"], "one VM");
    assert_eq!(rig.create().await.unwrap().vm.provider_id, created.vm.provider_id);
    assert_eq!(rig.azure.count(Method::CreateVm), 1);
}

#[tokio::test]
async fn a_creation_that_was_waited_for_fails_with_the_reason_in_the_view_of_the_vm() {
    let mut rig = Rig::new().await;
    rig.azure.put_nic(&nic("m-1-nic", tags()));
    rig.azure.fail(Method::CreateVm, &OperationError::zonal_allocation_failed().with_disks(), 1);
    rig.azure.hold_operations();
    let waits = rig.create_within(SHORT).await.unwrap_err();
    rig.keep(&waits);
    rig.azure.finish_operations();
    rig.azure.release_operations();
    assert_eq!(rig.status().await.unwrap_err().code, Code::Unimplemented, "the VM has failed for lack of capacity");
    let failed = rig.create().await.unwrap_err();
    assert_eq!(failed.code, Code::ResourceExhausted, "{failed}");
    assert_eq!(rig.resources(), [] as [&str; 0]);
}

#[tokio::test]
async fn an_incomplete_vm_is_replaced() {
    let mut rig = Rig::new().await;
    rig.azure.fail(Method::CreateVm, &OperationError::internal(), 1);
    let failed = rig.create().await.unwrap_err();
    assert_eq!(failed.code, Code::Internal);
    rig.keep(&failed);
    rig.secret.set("userData", b"with another bootstrap token".to_vec());
    assert_eq!(rig.status().await.unwrap_err().code, Code::Unimplemented);
    rig.create().await.unwrap();
    assert_eq!(rig.resources(), ["m-1", "m-1-nic", "m-1-os-disk"]);
}

#[tokio::test]
async fn a_vm_whose_agent_has_not_answered_counts_as_created() {
    let mut rig = Rig::new().await;
    rig.azure.fail(
        Method::CreateVm,
        &OperationError::new("OSProvisioningTimedOut", "OS provisioning did not finish").with_disks(),
        1,
    );
    let failed = rig.create().await.unwrap_err();
    rig.keep(&failed);
    assert_eq!(rig.status().await.unwrap().node_name, "m-1");
}

#[tokio::test]
async fn a_disk_of_an_earlier_vm_is_deleted() {
    let mut rig = Rig::new().await;
    rig.azure.put_disk(&disk("m-1-os-disk", tags()));
    let failed = rig.create().await.unwrap_err();
    assert_eq!(failed.code, Code::Aborted, "{failed}");
    rig.keep(&failed);
    rig.create().await.unwrap();
    let mut other = Rig::new().await;
    other.azure.put_disk(&disk("m-1-os-disk", json!({"Name": "of somebody else"})));
    let failed = other.create().await.unwrap_err();
    other.keep(&failed);
    assert!(other.create().await.is_err());
    assert!(other.resources().contains(&"m-1-os-disk".to_owned()), "it is not touched");
}

#[rstest]
#[case::without_tags(json!({}))]
#[case::of_another_cluster(json!({"kubernetes.io-cluster-other": "1", ROLE: "1"}))]
#[case::of_another_role(json!({CLUSTER: "1", "kubernetes.io-role-node-2": "1"}))]
#[tokio::test]
async fn a_foreign_vm_of_the_name_is_neither_adopted_nor_changed_nor_deleted(#[case] other: Value) {
    let mut rig = Rig::new().await;
    rig.create().await.unwrap();
    for change in [FakeChange::Vm, FakeChange::Nic] {
        let tags = other.clone();
        match change {
            FakeChange::Vm => rig.azure.change_vm("m-1", |vm| vm["tags"] = tags),
            FakeChange::Nic => rig.azure.change_nic("m-1-nic", |nic| nic["tags"] = tags),
        }
    }
    rig.azure.change_disk("m-1-os-disk", |disk| disk["tags"] = other.clone());
    let before = rig.resources();
    let writes = rig.azure.count(Method::CreateVm) + rig.azure.count(Method::CreateNic);
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, Code::AlreadyExists, "{refused}");
    assert_eq!(writes, rig.azure.count(Method::CreateVm) + rig.azure.count(Method::CreateNic));
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    let deleted = rig.delete().await;
    let is_unclear = other.get(CLUSTER).is_some();
    assert_eq!(deleted.is_err(), is_unclear, "{deleted:?}");
    assert_eq!(rig.resources(), before);
    rig.machine.metadata.uid = None;
    let orphan = rig.orphan("m-1");
    let _ = orphan.delete().await;
    assert_eq!(orphan.resources(), before, "not as an orphan either");
}

/// What a test changes.
enum FakeChange {
    Vm,
    Nic,
}

#[tokio::test]
async fn a_foreign_network_interface_of_the_name_is_not_used() {
    let rig = Rig::new().await;
    rig.azure.put_nic(&nic("m-1-nic", json!({"Name": "of somebody else"})));
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, Code::AlreadyExists, "{refused}");
    rig.delete().await.unwrap();
    assert_eq!(rig.resources(), ["m-1-nic"]);
}

#[rstest]
#[case::tags_removed(json!({"tags": null}))]
#[case::another_role(json!({"tags": {ROLE: null, "kubernetes.io-role-worker": "1"}}))]
#[case::another_zone(with_properties(json!({"zone": 99, "availabilitySet": {"id": "x"}})))]
#[case::no_image(with_properties(json!({"storageProfile": {"imageReference": null}})))]
#[case::no_disks(with_properties(json!({"storageProfile": {"dataDisks": []}})))]
#[case::another_resource_group(json!({"resourceGroup": "somewhere-else"}))]
#[case::no_resource_group(json!({"resourceGroup": null}))]
#[case::a_path_as_resource_group(json!({"resourceGroup": "../x", "location": "a/b"}))]
#[case::an_unknown_cloud(json!({"cloudConfiguration": {"name": "AzureMoon"}}))]
#[case::values_of_other_types(json!({"location": 5, "resourceGroup": [], "tags": "x", "cloudConfiguration": 7, "subnetInfo": [], "properties": "x"}))]
#[tokio::test]
async fn an_edited_class_does_not_keep_a_vm_from_being_found_and_deleted(#[case] patch: Value) {
    let rig = Rig::new().await.with(two_disks());
    let created = rig.create().await.unwrap();
    let id = created.vm.provider_id.clone();
    let rig = rig.with(patch).with_id(&id).with_state(created.last_known_state);
    assert_eq!(rig.status().await.unwrap().provider_id, id);
    rig.delete().await.unwrap();
    assert_eq!(rig.resources(), [] as [&str; 0]);
}

#[tokio::test]
async fn parts_of_a_failed_creation_are_deleted_after_the_class_was_edited() {
    let mut rig = Rig::new().await.with(two_disks());
    rig.azure.refuse(Method::CreateVm, Refusal::internal(), 4);
    let failed = rig.create().await.unwrap_err();
    assert_eq!(failed.code, Code::Unavailable);
    assert_eq!(rig.resources(), ["m-1-image-1-data-disk", "m-1-nic"]);
    rig.keep(&failed);
    let rig = rig.with(json!({"resourceGroup": "somewhere-else", "tags": null}));
    rig.delete().await.unwrap();
    assert_eq!(rig.resources(), [] as [&str; 0]);
}

#[tokio::test]
async fn a_vm_of_the_go_driver_is_found_after_the_class_names_another_group() {
    let rig = Rig::new().await;
    rig.create().await.unwrap();
    let rig = rig.with(json!({"resourceGroup": fake_azure::VNET_RESOURCE_GROUP})).with_id(&id("m-1"));
    assert_eq!(rig.status().await.unwrap().provider_id, id("m-1"));
    rig.delete().await.unwrap();
    assert_eq!(rig.resources(), [] as [&str; 0]);
}

#[tokio::test]
async fn a_provider_id_with_a_resource_path_names_the_place() {
    let rig = Rig::new().await;
    rig.create().await.unwrap();
    let group = fake_azure::RESOURCE_GROUP.to_uppercase();
    let path = format!(
        "/subscriptions/{}/resourcegroups/{group}/providers/microsoft.compute/virtualmachines/M-1",
        fake_azure::SUBSCRIPTION
    );
    let rig = rig.with(json!({"resourceGroup": fake_azure::VNET_RESOURCE_GROUP})).with_id(&format!("azure://{path}"));
    assert!(rig.status().await.is_ok());
    rig.delete().await.unwrap();
    assert_eq!((rig.resources().len(), rig.azure.count(Method::QueryGraph)), (0, 0));
}

#[tokio::test]
async fn a_creation_goes_on_where_it_began() {
    let mut rig = Rig::new().await;
    rig.azure.refuse(Method::CreateVm, Refusal::internal(), 4);
    let failed = rig.create().await.unwrap_err();
    rig.keep(&failed);
    // The class names another group then: what is left in the first one is deleted.
    rig.patch = json!({"resourceGroup": fake_azure::VNET_RESOURCE_GROUP, "subnetInfo": {"vnetResourceGroup": fake_azure::RESOURCE_GROUP}});
    let ended = loop {
        match rig.create().await {
            Ok(created) => break created,
            Err(failed) => rig.keep(&failed),
        }
    };
    assert_eq!(rig.resources(), ["m-1", "m-1-nic", "m-1-os-disk"]);
    let kept = Kept::of(&ended.last_known_state.unwrap(), "m-1").unwrap();
    assert_eq!(kept.resource_group, fake_azure::VNET_RESOURCE_GROUP);
}

#[tokio::test]
async fn a_secret_of_another_subscription_does_not_end_a_machine() {
    let rig = Rig::new().await;
    let created = rig.create().await.unwrap();
    let mut rig = rig.with_id(&created.vm.provider_id).with_state(created.last_known_state);
    rig.secret.set("subscriptionID", b"5a8b1c2d-0000-4000-8000-00000000ffff".to_vec());
    assert!(rig.status().await.is_ok(), "the state names the subscription");
    let kept =
        Kept { subscription: "other".to_owned(), ..Kept::of(&rig.machine.status.last_known_state, "m-1").unwrap() };
    let rig = rig.with_state(Some(kept.state()));
    let refused = rig.delete().await.unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition, "{refused}");
    assert_eq!(rig.status().await.unwrap_err().code, Code::FailedPrecondition);
}

#[tokio::test]
async fn the_id_of_another_vm_is_refused() {
    let rig = Rig::new().await.with_id(&id("m-2"));
    assert_eq!(rig.delete().await.unwrap_err().code, Code::FailedPrecondition);
    assert_eq!(rig.status().await.unwrap_err().code, Code::FailedPrecondition);
    let rig = rig.with_id("aws:///eu-west-1/i-1");
    assert_eq!(rig.delete().await.unwrap_err().code, Code::InvalidArgument);
    assert_eq!(rig.azure.requests().len(), 0);
}

#[tokio::test]
async fn a_404_of_a_proxy_is_not_the_end_of_a_machine() {
    let rig = Rig::new().await;
    let created = rig.create().await.unwrap();
    let rig = rig.with_id(&created.vm.provider_id);
    rig.azure.refuse(Method::GetVm, Refusal::html(404), 100);
    assert_eq!(rig.status().await.unwrap_err().code, Code::Unavailable);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::Unavailable);
    assert_eq!(rig.azure.vms().len(), 1);
}

/// Loses the answers of some requests after they were carried out.
struct Losing {
    real: HttpTransport,
    method: HttpMethod,
    part: &'static str,
    left: AtomicUsize,
}

#[async_trait]
impl Transport for Losing {
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer> {
        let is_meant = request.method() == self.method && request.uri().path().contains(self.part);
        let answer = self.real.send(request).await?;
        let take = |left: usize| left.checked_sub(1);
        if is_meant && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            return Err(NoAnswer::Lost("the connection was closed".to_owned()));
        }
        Ok(answer)
    }
}

#[rstest]
#[case::of_the_vm("/virtualMachines/", 1)]
#[case::of_the_network_interface("/networkInterfaces/", 1)]
#[case::of_a_disk("/disks/", 1)]
#[case::of_every_try("/virtualMachines/", 4)]
#[tokio::test]
async fn a_lost_answer_of_a_creation_is_harmless(#[case] part: &'static str, #[case] times: usize) {
    let real = HttpTransport::new(HttpOptions::default());
    let losing = Losing { real, method: HttpMethod::PUT, part, left: AtomicUsize::new(times) };
    let mut rig = Rig::new().await.with(two_disks()).through(losing);
    let created = match rig.create().await {
        Err(lost) => {
            rig.keep(&lost);
            rig.create().await.unwrap()
        }
        Ok(created) => created,
    };
    assert_eq!(rig.azure.created(), ["m-1"]);
    let rig = rig.with_id(&created.vm.provider_id).with_state(created.last_known_state);
    rig.delete().await.unwrap();
    assert_eq!(rig.resources(), [] as [&str; 0]);
}

#[tokio::test]
async fn a_lost_answer_of_a_deletion_is_harmless() {
    for part in ["/virtualMachines/", "/networkInterfaces/"] {
        let real = HttpTransport::new(HttpOptions::default());
        let losing = Losing { real, method: HttpMethod::DELETE, part, left: AtomicUsize::new(1) };
        let rig = Rig::new().await.through(losing);
        rig.create().await.unwrap();
        rig.azure.change_vm("m-1", |vm| vm["properties"]["provisioningState"] = json!("Failed"));
        rig.delete().await.unwrap();
        assert_eq!(rig.resources(), [] as [&str; 0]);
    }
}

/// Answers with URLs of another host, and records the hosts of all requests.
struct Luring {
    real: HttpTransport,
    hosts: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Transport for Luring {
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer> {
        self.hosts.lock().unwrap().push(request.uri().host().unwrap_or_default().to_owned());
        let mut answer = self.real.send(request).await?;
        for name in ["azure-asyncoperation", "location"] {
            if answer.headers.contains_key(name) {
                answer.headers.insert(name, HeaderValue::from_static("https://evil.example.org/operations/1"));
            }
        }
        Ok(answer)
    }
}

#[tokio::test]
async fn no_token_is_sent_to_another_host_and_the_resource_itself_shows_the_end() {
    let hosts = Arc::<Mutex<Vec<String>>>::default();
    let luring = Luring { real: HttpTransport::new(HttpOptions::default()), hosts: Arc::clone(&hosts) };
    let rig = Rig::new().await.through(luring);
    rig.create().await.unwrap();
    rig.delete().await.unwrap();
    assert_eq!(rig.resources(), [] as [&str; 0]);
    assert!(hosts.lock().unwrap().iter().all(|host| host == "127.0.0.1"));
}

#[tokio::test]
async fn a_deletion_that_has_not_ended_goes_on_in_the_next_call() {
    let rig = Rig::new().await;
    let created = rig.create().await.unwrap();
    let rig = rig.with_id(&created.vm.provider_id).deleting();
    rig.azure.hold_operations();
    let waits = rig.driver.delete_machine(&OpContext::within(SHORT), rig.request()).await.unwrap_err();
    assert_eq!(waits.code, Code::DeadlineExceeded, "{waits}");
    assert!(rig.status().await.is_ok(), "the VM is not gone yet");
    rig.azure.release_operations();
    rig.azure.finish_operations();
    rig.delete().await.unwrap();
    assert_eq!(rig.resources(), [] as [&str; 0]);
}

#[tokio::test]
async fn a_workload_identity_proves_itself_with_its_token_and_a_revoked_token_is_renewed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, fake_azure::FEDERATED_TOKEN).unwrap();
    let mut rig = Rig::new().await;
    rig.secret = secret(&[("workloadIdentityTokenFile", file.to_str().unwrap())]);
    let refused = rig.list().await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument, "the file is in no directory for tokens");
    assert_eq!(rig.azure.requests().len(), 0);
    let options = AzureOptions { identity_directories: vec![directory.path().to_owned()], ..options(&rig.azure) };
    rig.driver = AzureDriver::new(options);
    rig.list().await.unwrap();
    rig.list().await.unwrap();
    assert_eq!(rig.azure.count(Method::GetToken), 1, "the token is kept");
    assert_eq!(rig.azure.requests().last().unwrap().by, "federated");
    rig.azure.revoke_tokens();
    rig.list().await.unwrap();
    assert_eq!(rig.azure.count(Method::GetToken), 2);
}

#[tokio::test]
async fn c_12_a_rotated_secret_is_used_at_once() {
    let mut rig = Rig::new().await;
    rig.list().await.unwrap();
    rig.secret = secret(&[("clientSecret", fake_azure::SECOND_CLIENT_SECRET)]);
    rig.list().await.unwrap();
    assert_eq!(rig.azure.requests().last().unwrap().by, fake_azure::SECOND_SECRET);
}

#[tokio::test]
async fn c_14_a_wrong_secret_is_refused_once_for_all_machines_and_not_repeated_in_messages() {
    let mut rig = Rig::new().await;
    rig.secret = secret(&[("azureClientSecret", "a-wrong~secret-of-the-application")]);
    for _ in 0..3 {
        let refused = rig.list().await.unwrap_err();
        assert_eq!(refused.code, Code::Unauthenticated);
        assert!(refused.message.contains("AADSTS7000215"), "{refused}");
        assert!(!refused.message.contains("a-wrong~secret"), "{refused}");
    }
    assert_eq!(rig.azure.count(Method::GetToken), 1);
}

#[tokio::test]
async fn throttling_is_waited_for_and_a_missing_right_is_named() {
    let rig = Rig::new().await;
    rig.azure.refuse(Method::GetVm, Refusal::throttled(0), 3);
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    rig.azure.refuse(Method::CreateVm, Refusal::forbidden(), 1);
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
    assert!(refused.message.contains("Microsoft.Compute/virtualMachines/write"), "{refused}");
    rig.azure.refuse(Method::QueryGraph, Refusal::unavailable(), 4);
    assert_eq!(rig.list().await.unwrap_err().code, Code::Unavailable);
}

#[rstest]
#[case::the_image(with_properties(json!({"storageProfile": {"imageReference": {"urn": "sap:gardenlinux:greatest:0"}}})), Code::NotFound)]
#[case::the_subnet(json!({"subnetInfo": {"subnetName": "none"}}), Code::InvalidArgument)]
#[case::the_size(with_properties(json!({"hardwareProfile": {"vmSize": "Standard_X1"}})), Code::InvalidArgument)]
#[case::an_image_of_the_subscription(
    with_properties(json!({"storageProfile": {"imageReference": {"urn": null, "id": fake_azure::IMAGE_ID.replace("1592", "0")}}})),
    Code::InvalidArgument
)]
#[tokio::test]
async fn what_does_not_exist_is_named(#[case] patch: Value, #[case] code: Code) {
    let rig = Rig::new().await.with(patch);
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, code, "{refused}");
    assert_eq!(rig.azure.vms().len(), 0);
}

#[tokio::test]
async fn the_codes_of_the_go_driver_can_be_selected() {
    let mut rig = Rig::new().await;
    rig.driver = AzureDriver::new(AzureOptions { codes: ErrorCodes::AsGo, ..options(&rig.azure) });
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    rig.azure.refuse(Method::GetVm, Refusal::forbidden(), 1);
    assert_eq!(rig.status().await.unwrap_err().code, Code::Internal);
    rig.azure.fail(Method::CreateVm, &OperationError::zonal_allocation_failed(), 1);
    assert_eq!(rig.create().await.unwrap_err().code, Code::ResourceExhausted);
}

#[tokio::test]
async fn names_that_no_vm_can_have_are_refused_without_a_request() {
    let mut rig = Rig::new().await;
    for name in ["", "a/b", "m?x", &"m".repeat(65)] {
        rig.machine.metadata.name = Some(name.to_owned());
        assert_eq!(rig.create().await.unwrap_err().code, Code::InvalidArgument, "{name}");
        assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
        assert_eq!(rig.delete().await.unwrap_err().code, Code::NotFound);
    }
    assert_eq!(rig.azure.requests().len(), 0);
}

/// Answers every request except those for tokens with a body.
struct Babbling {
    real: HttpTransport,
    status: StatusCode,
    body: &'static str,
}

#[async_trait]
impl Transport for Babbling {
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer> {
        if request.uri().path().ends_with("/token") {
            return self.real.send(request).await;
        }
        let headers = cloud_client::http::HeaderMap::new();
        Ok(Answer { status: self.status, headers, body: Bytes::from_static(self.body.as_bytes()) })
    }
}

#[rstest]
#[case::nothing("")]
#[case::no_json("<html>")]
#[case::a_list("[]")]
#[case::null("null")]
#[case::a_text("\"x\"")]
#[case::an_error_of_another_type(r#"{"error": 5}"#)]
#[case::an_error_in_an_error(
    r#"{"error": {"code": {"code": 1}, "details": {"x": [[]]}, "innererror": "x", "message": "{"}}"#
)]
#[case::other_types(
    r#"{"tags": 5, "properties": {"provisioningState": 7, "storageProfile": []}, "data": {}, "status": {}}"#
)]
#[tokio::test]
async fn any_answer_is_survived_and_nothing_counts_as_gone(#[case] body: &'static str) {
    for status in [200, 202, 204, 400, 404, 409] {
        let babbling = Babbling {
            real: HttpTransport::new(HttpOptions::default()),
            status: StatusCode::from_u16(status).unwrap(),
            body,
        };
        let rig = Rig::new().await.with_id(&id("m-1")).through(babbling);
        let within = OpContext::within(Duration::from_millis(5200));
        let seen = rig.driver.get_machine_status(&within, rig.request()).await.unwrap_err();
        assert_ne!(seen.code, Code::NotFound, "{status} {seen}");
        assert!(rig.driver.delete_machine(&within, rig.request()).await.is_err(), "{status}");
        assert!(rig.create_within(Duration::from_millis(5200)).await.is_err(), "{status}");
        let _ = rig.list().await;
    }
}

#[test]
fn the_ids_of_volumes_are_read() {
    let csi = |driver: &str| PersistentVolumeSpec {
        csi: Some(CSIPersistentVolumeSource {
            driver: driver.to_owned(),
            volume_handle: "/subscriptions/s/disk-1".to_owned(),
            ..CSIPersistentVolumeSource::default()
        }),
        ..PersistentVolumeSpec::default()
    };
    let in_tree = PersistentVolumeSpec {
        azure_disk: Some(AzureDiskVolumeSource { disk_name: "disk-2".to_owned(), ..AzureDiskVolumeSource::default() }),
        ..PersistentVolumeSpec::default()
    };
    let ids = [csi("disk.csi.azure.com"), csi("file.csi.azure.com"), in_tree]
        .iter()
        .filter_map(volume_id)
        .collect::<Vec<_>>();
    assert_eq!(ids, ["/subscriptions/s/disk-1", "disk-2"]);
}

#[tokio::test]
async fn lists_of_two_classes_of_one_owner_are_one_inventory() {
    let rig = Rig::new().await;
    let key = |patch: Value| rig.driver.inventory_key(&class(patch));
    assert_eq!(key(json!({})), key(with_properties(json!({"zone": 2}))));
    assert_ne!(key(json!({})), key(json!({"resourceGroup": "other"})));
    assert_ne!(key(json!({})), key(json!({"tags": {"kubernetes.io-cluster-b": "1"}})));
}
