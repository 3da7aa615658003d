//! Tests of questions about a class, against the fake.

use fake_azure::{Method, Refusal};
use rstest::rstest;
use serde_json::{Value, json};

use crate::test_rig::{Rig, with_properties};

#[rstest]
#[case::a_good_class(json!({}), &[])]
#[case::resources_by_id(with_properties(json!({
    "zone": null, "virtualMachineScaleSet": {"id": fake_azure::SCALE_SET},
    "capacityReservation": {"capacityReservationGroupID": fake_azure::CAPACITY_RESERVATION_GROUP},
    "storageProfile": {"imageReference": {"urn": null, "id": fake_azure::IMAGE_ID}},
})), &[])]
#[case::a_subnet(json!({"subnetInfo": {"subnetName": "none"}}), &["providerSpec.subnetInfo.subnetName"])]
#[case::a_group(json!({"resourceGroup": "none", "subnetInfo": {"vnetResourceGroup": fake_azure::VNET_RESOURCE_GROUP}}), &["providerSpec.resourceGroup"])]
#[case::an_image(with_properties(json!({"storageProfile": {"imageReference": {"urn": "a:b:c:d"}}})),
    &["providerSpec.properties.storageProfile.imageReference.urn"])]
#[case::a_uniform_scale_set(with_properties(json!({"zone": null, "virtualMachineScaleSet": {"id": fake_azure::UNIFORM_SCALE_SET}})),
    &["providerSpec.properties.virtualMachineScaleSet.id"])]
#[tokio::test]
async fn what_does_not_exist_is_found(#[case] patch: Value, #[case] expected: &[&str]) {
    let rig = Rig::new().await.with(patch);
    let found = rig.ask().await.unwrap();
    assert_eq!(found.errors().map(|error| error.path.as_str().to_owned()).collect::<Vec<_>>(), expected);
    assert_eq!(rig.resources(), [] as [&str; 0], "nothing is created");
}

#[tokio::test]
async fn a_missing_right_is_a_warning() {
    let rig = Rig::new().await;
    rig.azure.refuse(Method::GetSubnet, Refusal::forbidden(), 1);
    let found = rig.ask().await.unwrap();
    assert!(!found.denies());
    assert_eq!(found.warnings().count(), 1);
}
