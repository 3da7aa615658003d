//! Tests of the check of a class against [`FakeCloud`](crate::fake_cloud::FakeCloud).

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use std::sync::Arc;

use machine_driver::{Code, Driver, Findings, ListRequest, Status};
use rstest::rstest;
use serde_json::{Value, json};

use crate::{
    fake_cloud::Fault,
    test_rig::{Rig, class, secret},
};

async fn asked(rig: &Rig) -> Result<Findings, Status> {
    let request = ListRequest { class: Arc::new(class(rig.patch.clone())), secret: secret("secret") };
    rig.driver.ask_about_class(&Rig::cx(), request).await
}

#[rstest]
#[case::a_good_class(json!({}), &[])]
#[case::all_fields(json!({"imageName": null, "imageID": "i-linux", "serverGroupID": "sg-1", "rootDiskSize": 5, "rootDiskType": "ssd"}), &[])]
#[case::by_names(json!({"networkID": null, "subnetID": null, "networks": [{"name": "front"}, {"id": "n-1", "podNetwork": true}]}), &[])]
#[case::no_flavor(json!({"flavorName": "gone"}), &["providerSpec.spec.flavorName: Invalid value: \"gone\": Unable to find flavor with name gone"])]
#[case::no_image(json!({"imageName": "gone"}), &["providerSpec.spec.imageName: Invalid value: \"gone\": Unable to find image with name gone"])]
#[case::no_image_with_this_id(json!({"imageName": null, "imageID": "gone"}), &["providerSpec.spec.imageID: Invalid value: \"gone\": there is none with this id in the region that the project can see"])]
#[case::no_key(json!({"keyName": "gone"}), &["providerSpec.spec.keyName: Invalid value: \"gone\": the user of the credentials has no key pair of this name"])]
#[case::no_zone(json!({"availabilityZone": "gone"}), &["providerSpec.spec.availabilityZone: Unsupported value: \"gone\": supported values: \"z\""])]
#[case::a_subnet_of_another_network(json!({"subnetID": "s-9"}), &["providerSpec.spec.subnetIDs: Invalid value: \"\": subnet s-9 is in network n-9, not in n-1"])]
#[case::no_network(json!({"networkID": null, "subnetID": null, "networks": [{"id": "gone"}, {"name": "gone"}]}), &["providerSpec.spec.networks[0].id: Invalid value: \"gone\": there is no such network in the region that the project can see", "providerSpec.spec.networks[1].name: Invalid value: \"gone\": Unable to find network with name gone"])]
#[case::no_security_group(json!({"securityGroups": ["machines", "gone"]}), &["providerSpec.spec.securityGroups[1]: Invalid value: \"gone\": Unable to find security group with name gone"])]
#[case::no_server_group(json!({"serverGroupID": "gone"}), &["providerSpec.spec.serverGroupID: Invalid value: \"gone\": there is no such server group in the project"])]
#[case::no_volume_type(json!({"rootDiskSize": 5, "rootDiskType": "gone"}), &["providerSpec.spec.rootDiskType: Unsupported value: \"gone\": supported values: \"ssd\""])]
#[tokio::test(start_paused = true)]
async fn a_finding_has_its_path(#[case] patch: Value, #[case] expected: &[&str]) {
    let rig = Rig::new(patch);
    let found = asked(&rig).await.unwrap();
    assert_eq!(found.errors().map(ToString::to_string).collect::<Vec<_>>(), expected);
    assert_eq!(rig.cloud.asked("POST"), rig.cloud.asked("POST /auth"), "nothing is made");
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_for_a_look_up_is_a_warning() {
    let rig = Rig::new(json!({}));
    rig.cloud.fails("GET /os-keypairs", [Fault::Error(403, "{}")]);
    let found = asked(&rig).await.unwrap();
    assert!(!found.denies());
    assert_eq!(found.warned(), 1);
    rig.cloud.fails("GET /flavors", vec![Fault::Error(503, "busy"); 4]);
    assert_eq!(asked(&rig).await.unwrap_err().code, Code::Unavailable);
}
