//! Tests of how a class is read.

use rstest::rstest;
use serde_json::{Value, json};

use machine_driver::Owner;

use super::*;
use crate::test_rig::class;

#[rstest]
#[case::c_03_a_list(json!([]), "providerSpec: must be an object")]
#[case::a_field_of_another_type(json!({"location": 4}), "providerSpec.location: invalid type: integer `4`, expected a string")]
fn a_class_is_refused(#[case] spec: Value, #[case] message: &str) {
    let class = MachineClass { provider: AZURE.to_owned(), provider_spec: spec, ..MachineClass::default() };
    let refused = Spec::checked(&class).unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (Code::InvalidArgument, message));
    assert!(Essentials::of(&class).is_ok(), "its machines can be deleted");
}

#[test]
fn a_creation_checks_all_rules() {
    let refused = Spec::checked(&class(json!({"location": "", "tags": null}))).unwrap_err();
    let message =
        "error in validation of AzureProviderSpec: [providerSpec.location: Required value: must provide a location, ";
    assert!(refused.message.starts_with(message), "{}", refused.message);
}

#[test]
fn fields_are_read_as_go_reads_them() {
    let spec = json!({
        "LOCATION": "westeurope", "location": null, "later": [1],
        "properties": {"IdentityId": "/subscriptions/s", "capacityReservation": null, "zone": 2,
                       "storageProfile": {"dataDisks": [{"lun": 3, "name": "d", "diskSizeGb": 5, "storageAccountType": "x"}]}},
    });
    let spec = Spec::checked(&class(spec)).unwrap();
    assert_eq!((spec.location.as_str(), spec.properties.identity_id.as_str()), ("westeurope", "/subscriptions/s"));
    let disk = &spec.properties.storage_profile.data_disks[0];
    assert_eq!((disk.disk_size_gb, disk.key()), (5, DiskKey { name: "d".to_owned(), lun: 3 }));
}

#[test]
fn the_essentials_are_read_whatever_else_is_wrong() {
    let disks = json!([{"lun": 0}, {"lun": "x"}, 5, {"lun": 1, "name": "a/b"}]);
    let spec = json!({"location": 7, "properties": {"storageProfile": {"dataDisks": disks}, "zone": "x"}});
    let essentials = Essentials::of(&class(spec)).unwrap();
    assert_eq!((essentials.location.as_str(), essentials.cloud), ("", Some(Cloud::Public)));
    assert_eq!(essentials.resource_group, fake_azure::RESOURCE_GROUP);
    assert_eq!(*essentials.owner.unwrap().owner(), Owner::new("shoot", "node"));
    let key = |lun| DiskKey { name: String::new(), lun };
    assert_eq!(essentials.disks, [key(0), key(1)]);
}

#[rstest]
#[case("p:o:s:1.0.0", Some(["p", "o", "s", "1.0.0"]))]
#[case("p:o:s", None)]
#[case("p:o:s:1:2", None)]
#[case("", None)]
fn an_urn_names_an_image_of_the_marketplace(#[case] urn: &str, #[case] expected: Option<[&str; 4]>) {
    let image = Image { urn: urn.to_owned(), ..Image::default() };
    let parts = image.marketplace().map(|image| [image.publisher, image.offer, image.sku, image.version]);
    assert_eq!(parts, expected);
}
