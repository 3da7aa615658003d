//! The fake as its clients see it, with the HTTP client of the drivers.

use base64::{Engine, prelude::BASE64_STANDARD};
use cloud_client::{Bytes, HttpOptions, HttpTransport, Transport};
use http::{HeaderMap, Method as Verb, Request};
use rstest::rstest;

use super::*;

const COMPUTE: &str = "api-version=2024-07-01";
const DISKS: &str = "api-version=2024-03-02";
const NETWORK: &str = "api-version=2024-05-01";
const SECRET: [(&str, &str); 2] = [("client_id", CLIENT), ("client_secret", CLIENT_SECRET)];

struct Answered {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Answered {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    fn refused(&self) -> (u16, &str) {
        (self.status, self.body["error"]["code"].as_str().unwrap_or_default())
    }
}

struct Rig {
    azure: FakeAzure,
    client: HttpTransport,
    token: String,
}

impl Rig {
    async fn new() -> Self {
        Self::with(Timing { operation: Duration::ZERO, ..Timing::default() }).await
    }

    async fn with(timing: Timing) -> Self {
        let azure = FakeAzure::with(timing).await.unwrap();
        let mut rig = Self { azure, client: HttpTransport::new(HttpOptions::default()), token: String::new() };
        rig.token = rig.log_in(TENANT, &SECRET).await.body["access_token"].as_str().unwrap().to_owned();
        rig
    }

    async fn send(&self, request: Request<Bytes>) -> Answered {
        let answer = self.client.send(request).await.unwrap();
        let body = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
        Answered { status: answer.status.as_u16(), headers: answer.headers, body }
    }

    async fn log_in(&self, tenant: &str, fields: &[(&str, &str)]) -> Answered {
        let common = [("grant_type", "client_credentials"), ("scope", "https://management.azure.com/.default")];
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(common).extend_pairs(fields).finish();
        let url = format!("{}/{tenant}/oauth2/v2.0/token", self.azure.url());
        let request = Request::post(url).header("content-type", "application/x-www-form-urlencoded");
        self.send(request.body(Bytes::from(body)).unwrap()).await
    }

    /// Calls any path. A body that is null is none.
    async fn call(&self, verb: Verb, path: &str, body: &Value) -> Answered {
        let url = if path.starts_with("http") { path.to_owned() } else { format!("{}{path}", self.azure.url()) };
        let request = Request::builder()
            .method(verb)
            .uri(url)
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(request.body(Bytes::from(body)).unwrap()).await
    }

    async fn get(&self, path: &str) -> Answered {
        self.call(Verb::GET, path, &Value::Null).await
    }

    async fn delete(&self, path: &str) -> Answered {
        self.call(Verb::DELETE, path, &Value::Null).await
    }

    async fn put_nic(&self, name: &str) -> Answered {
        self.call(Verb::PUT, &nic_path(name), &nic(&json!({}))).await
    }

    /// Creates a VM, which has the network interface `NAME-nic`.
    async fn put_vm(&self, name: &str, change: &Value) -> Answered {
        self.call(Verb::PUT, &vm_path(name), &vm(name, change)).await
    }

    async fn query(&self, query: &str, options: &Value) -> Answered {
        let body = json!({"subscriptions": [SUBSCRIPTION], "query": query, "options": options});
        self.call(Verb::POST, "/providers/Microsoft.ResourceGraph/resources?api-version=2022-10-01", &body).await
    }

    /// The names that a query finds.
    async fn names(&self, query: &str) -> Vec<String> {
        let answer = self.query(query, &json!({})).await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.body);
        answer.body["data"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    }

    fn counts(&self) -> [usize; 3] {
        [self.azure.vms().len(), self.azure.nics().len(), self.azure.disks().len()]
    }
}

fn path(kind: &str, name: &str, version: &str) -> String {
    format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}/providers/{kind}/{name}?{version}")
}

fn vm_path(name: &str) -> String {
    path("Microsoft.Compute/virtualMachines", name, COMPUTE)
}

fn nic_path(name: &str) -> String {
    path("Microsoft.Network/networkInterfaces", name, NETWORK)
}

fn disk_path(name: &str) -> String {
    path("Microsoft.Compute/disks", name, DISKS)
}

fn id_of(path: &str) -> &str {
    path.split('?').next().unwrap()
}

/// The body of a network interface. `change` is merged into it.
fn nic(change: &Value) -> Value {
    let subnet = json!({"id": subnet_id(RESOURCE_GROUP)});
    let address = json!({"name": "a", "properties": {"subnet": subnet, "privateIPAllocationMethod": "Dynamic"}});
    let mut body = json!({
        "location": LOCATION, "tags": {"kubernetes.io-cluster-x": "1", "kubernetes.io-role-node": "1"},
        "properties": {"ipConfigurations": [address], "enableIPForwarding": true},
    });
    json_patch::merge(&mut body, change);
    body
}

/// The body of a VM. `change` is merged into it.
fn vm(name: &str, change: &Value) -> Value {
    let interface = json!({"id": id_of(&nic_path(&format!("{name}-nic"))), "properties": {"primary": true, "deleteOption": "Delete"}});
    let key = json!({"path": "/home/core/.ssh/authorized_keys", "keyData": "ssh-rsa AAAAB3NzaC1yc2E= core"});
    let mut body = json!({
        "location": LOCATION, "zones": ["1"], "tags": {"kubernetes.io-cluster-x": "1", "kubernetes.io-role-node": "1"},
        "properties": {
            "hardwareProfile": {"vmSize": VM_SIZE},
            "storageProfile": {
                "imageReference": {"id": IMAGE_ID},
                "osDisk": {
                    "name": format!("{name}-os-disk"), "createOption": "FromImage", "diskSizeGB": 50, "deleteOption": "Delete",
                    "managedDisk": {"storageAccountType": "Premium_LRS"},
                },
                "dataDisks": [{
                    "lun": 1, "name": format!("{name}-1-data-disk"), "createOption": "Empty", "diskSizeGB": 20, "deleteOption": "Delete",
                    "managedDisk": {"storageAccountType": "StandardSSD_LRS"},
                }],
            },
            "osProfile": {
                "computerName": name, "adminUsername": "core", "customData": BASE64_STANDARD.encode("#cloud-config"),
                "linuxConfiguration": {"disablePasswordAuthentication": true, "ssh": {"publicKeys": [key]}},
            },
            "networkProfile": {"networkInterfaces": [interface]},
        },
    });
    json_patch::merge(&mut body, change);
    body
}

#[tokio::test]
async fn a_vm_is_created_shown_and_deleted_with_its_parts() {
    let rig = Rig::new().await;
    rig.azure.hold_operations();
    let made = rig.put_nic("m-1-nic").await;
    assert_eq!((made.status, &made.body["properties"]["provisioningState"]), (201, &json!("Updating")));
    let made = rig.put_vm("m-1", &json!({})).await;
    assert_eq!((made.status, &made.body["properties"]["provisioningState"]), (201, &json!("Creating")));
    assert_eq!((made.header("location"), made.header("retry-after")), ("", "0"));
    let poll = made.header("azure-asyncoperation");
    assert!(poll.starts_with(rig.azure.url()), "{poll}");
    assert_eq!(rig.get(poll).await.body["status"], "InProgress");
    assert_eq!(rig.get(&vm_path("m-1")).await.body["properties"]["provisioningState"], "Creating");
    rig.azure.release_operations();
    assert_eq!(rig.get(poll).await.body["status"], "Succeeded");
    let shown = rig.get(&vm_path("M-1").replace("resourceGroups/shoot", "RESOURCEGROUPS/SHOOT")).await.body;
    assert_eq!(shown["properties"]["provisioningState"], "Succeeded");
    assert_eq!(shown["properties"]["osProfile"]["customData"], Value::Null);
    assert!(shown["properties"]["storageProfile"]["osDisk"]["managedDisk"]["id"].as_str().unwrap().contains("SHOOT--"));
    assert_eq!(rig.counts(), [1, 1, 2]);
    let disk = rig.get(&disk_path("m-1-1-data-disk")).await.body;
    assert_eq!(
        (&disk["properties"]["diskSizeGB"], &disk["tags"]["kubernetes.io-role-node"]),
        (&json!(20), &json!("1"))
    );
    let used = rig.delete(&nic_path("m-1-nic")).await;
    assert_eq!(used.refused(), (400, "NicInUse"));
    assert_eq!(rig.delete(&disk_path("m-1-os-disk")).await.refused(), (409, "OperationNotAllowed"));

    rig.azure.hold_operations();
    let gone = rig.delete(&vm_path("m-1")).await;
    assert_eq!((gone.status, rig.get(gone.header("location")).await.status), (202, 202));
    assert_eq!(rig.get(&vm_path("m-1")).await.body["properties"]["provisioningState"], "Deleting");
    assert_eq!(rig.put_vm("m-1", &json!({})).await.refused(), (409, "OperationNotAllowed"));
    assert_eq!(rig.delete(&vm_path("m-1")).await.status, 202);
    rig.azure.release_operations();
    assert_eq!(rig.get(gone.header("location")).await.status, 204);
    assert_eq!((rig.counts(), rig.azure.created()), ([0; 3], vec!["m-1".to_owned()]));
    for path in [vm_path("m-1"), nic_path("m-1-nic"), disk_path("m-1-os-disk")] {
        assert_eq!(rig.get(&path).await.refused(), (404, "ResourceNotFound"));
        assert_eq!(rig.delete(&path).await.status, 204);
    }
}

#[tokio::test]
async fn parts_without_the_option_stay_and_block_the_next_vm() {
    let rig = Rig::new().await;
    rig.put_nic("m-1-nic").await;
    let detached = json!({"properties": {"storageProfile": {"osDisk": {"deleteOption": null}}, "networkProfile": {"networkInterfaces": [
        {"id": id_of(&nic_path("m-1-nic"))}
    ]}}});
    rig.put_vm("m-1", &detached).await;
    assert_eq!(rig.delete(&vm_path("m-1")).await.status, 202);
    assert_eq!(rig.counts(), [0, 1, 1]);
    assert_eq!(rig.put_vm("m-1", &json!({})).await.refused(), (409, "ConflictingUserInput"));
    let gone = rig.delete(&disk_path("m-1-os-disk")).await;
    assert_eq!((gone.status, gone.header("azure-asyncoperation")), (202, ""));
    assert_eq!(rig.get(gone.header("location")).await.status, 204);
    assert_eq!(rig.put_vm("m-1", &json!({})).await.status, 201);
    assert_eq!(rig.put_vm("m-2", &detached).await.refused(), (400, "NicInUse"));
}

#[tokio::test]
async fn a_patch_sets_options_and_a_missing_disk_is_detached() {
    let rig = Rig::new().await;
    rig.put_nic("m-1-nic").await;
    rig.put_vm("m-1", &json!({"properties": {"storageProfile": {"osDisk": {"deleteOption": null}}}})).await;
    let change = json!({"properties": {"storageProfile": {"osDisk": {"createOption": "FromImage", "deleteOption": "Delete"}, "dataDisks": []}}});
    let changed = rig.call(Verb::PATCH, &vm_path("m-1"), &change).await;
    assert_eq!(
        (changed.status, rig.get(changed.header("azure-asyncoperation")).await.body["status"].clone()),
        (200, json!("Succeeded"))
    );
    rig.delete(&vm_path("m-1")).await;
    let left = rig.azure.disks();
    assert_eq!((rig.counts(), left[0]["name"].as_str()), ([0, 0, 1], Some("m-1-1-data-disk")));
    let none = json!({"properties": {"networkProfile": {"networkInterfaces": []}}});
    assert_eq!(rig.call(Verb::PATCH, &vm_path("m-1"), &none).await.refused(), (404, "ResourceNotFound"));
    rig.put_nic("m-2-nic").await;
    rig.put_vm("m-2", &json!({})).await;
    assert_eq!(rig.call(Verb::PATCH, &vm_path("m-2"), &none).await.refused(), (409, "OperationNotAllowed"));
    rig.azure.hold_operations();
    rig.put_vm("m-2", &json!({})).await;
    assert_eq!(rig.call(Verb::PATCH, &vm_path("m-2"), &change).await.refused(), (409, "Conflict"));
}

#[rstest]
#[case::custom_data(json!({"properties": {"osProfile": {"customData": "b3RoZXI="}}}), "PropertyChangeNotAllowed")]
#[case::image(json!({"properties": {"storageProfile": {"imageReference": {"id": GALLERY_IMAGE_ID}}}}), "PropertyChangeNotAllowed")]
#[case::zone(json!({"zones": ["2"]}), "ResourceAvailabilityZonesCannotBeModified")]
#[tokio::test]
async fn an_equal_request_changes_nothing_and_another_one_is_a_conflict(#[case] change: Value, #[case] code: &str) {
    let rig = Rig::new().await;
    rig.put_nic("m-1-nic").await;
    rig.put_vm("m-1", &json!({})).await;
    let again = rig.put_vm("m-1", &json!({"location": "West Europe"})).await;
    assert_eq!((again.status, rig.azure.created().len(), rig.counts()), (200, 1, [1, 1, 2]));
    assert_eq!(rig.put_vm("m-1", &change).await.refused(), (409, code));
    let conditional = async |verb: Verb, header: &str, value: &str, body: Value| {
        let request = Request::builder().method(verb).uri(format!("{}{}", rig.azure.url(), vm_path("m-1")));
        let request = request.header("authorization", format!("Bearer {}", rig.token)).header(header, value);
        rig.send(request.body(Bytes::from(body.to_string())).unwrap()).await
    };
    let answer = conditional(Verb::PUT, "if-none-match", "*", vm("m-1", &json!({}))).await;
    assert_eq!(answer.refused(), (412, "PreconditionFailed"));
    let mark = rig.get(&vm_path("m-1")).await.body["etag"].as_str().unwrap().to_owned();
    rig.azure.change_vm("m-1", |vm| vm["tags"]["x"] = json!("1"));
    let answer = conditional(Verb::PATCH, "if-match", &mark, json!({"tags": {}})).await;
    assert_eq!(answer.refused(), (412, "PreconditionFailed"));
    let mark = rig.get(&vm_path("m-1")).await.body["etag"].as_str().unwrap().to_owned();
    assert_eq!(conditional(Verb::PATCH, "if-match", &mark, json!({"tags": {}})).await.status, 200);
}

#[tokio::test]
async fn a_failed_creation_leaves_a_failed_vm_and_can_be_repeated() {
    let rig = Rig::new().await;
    rig.put_nic("m-1-nic").await;
    let error = OperationError::zonal_allocation_failed().nested("SkuNotAvailable", "no size").inner("Hidden");
    rig.azure.fail(Method::CreateVm, &error, 1);
    let made = rig.put_vm("m-1", &json!({})).await;
    assert_eq!(made.status, 201);
    let ended = rig.get(made.header("azure-asyncoperation")).await.body;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("Failed"), &json!("ZonalAllocationFailed")));
    assert_eq!(ended["error"]["details"][0]["code"], "SkuNotAvailable");
    let shown = rig.get(&vm_path("m-1")).await.body;
    assert_eq!((&shown["properties"]["provisioningState"], rig.counts()), (&json!("Failed"), [1, 1, 0]));
    let view = rig.get(&format!("{}&$expand=instanceView", vm_path("m-1"))).await.body;
    assert_eq!(
        view["properties"]["instanceView"]["statuses"][0]["code"],
        "ProvisioningState/failed/ZonalAllocationFailed"
    );
    assert_eq!(rig.put_vm("m-1", &json!({})).await.status, 200);
    assert_eq!(rig.counts(), [1, 1, 2]);
    rig.azure.fail(Method::DeleteVm, &OperationError::internal().canceled(), 1);
    let gone = rig.delete(&vm_path("m-1")).await;
    assert_eq!(rig.get(gone.header("azure-asyncoperation")).await.body["status"], "Canceled");
    assert_eq!(rig.get(gone.header("location")).await.refused(), (409, "InternalExecutionError"));
    rig.azure.fail(Method::CreateVm, &OperationError::overconstrained().with_disks(), 1);
    rig.put_nic("m-2-nic").await;
    rig.put_vm("m-2", &json!({})).await;
    assert_eq!(rig.counts(), [2, 2, 4]);
}

#[tokio::test]
async fn a_deletion_during_a_creation_ends_it() {
    let rig = Rig::new().await;
    rig.put_nic("m-1-nic").await;
    rig.azure.hold_operations();
    let made = rig.put_vm("m-1", &json!({})).await;
    rig.delete(&vm_path("m-1")).await;
    let ended = rig.get(made.header("azure-asyncoperation")).await.body;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("Failed"), &json!("OperationPreempted")));
    rig.azure.finish_operations();
    assert_eq!(rig.counts(), [0; 3]);
}

#[rstest]
#[case::size(json!({"properties": {"hardwareProfile": {"vmSize": "Standard_M1"}}}), (400, "InvalidParameter"))]
#[case::image(json!({"properties": {"storageProfile": {"imageReference": {"id": "/x"}}}}), (404, "ImageNotFound"))]
#[case::zone(json!({"zones": ["9"]}), (400, "AvailabilityZoneNotSupported"))]
#[case::location(json!({"location": "mars"}), (400, "LocationNotAvailableForResourceType"))]
#[case::no_interface(json!({"properties": {"networkProfile": {"networkInterfaces": [{"id": "/x"}]}}}), (400, "InvalidResourceReference"))]
#[case::password(json!({"properties": {"osProfile": {"linuxConfiguration": {"disablePasswordAuthentication": false}}}}), (400, "InvalidParameter"))]
#[case::custom_data(json!({"properties": {"osProfile": {"customData": "#cloud-config"}}}), (400, "InvalidParameter"))]
#[case::key(json!({"properties": {"osProfile": {"linuxConfiguration": {"ssh": {"publicKeys": [{"path": "/home/core/.ssh/authorized_keys", "keyData": "x"}]}}}}}), (400, "InvalidParameter"))]
#[case::uniform(json!({"properties": {"virtualMachineScaleSet": {"id": UNIFORM_SCALE_SET}}}), (400, "BadRequest"))]
#[case::set(json!({"properties": {"availabilitySet": {"id": "/x"}}}), (404, "NotFound"))]
#[case::identity(json!({"identity": {"type": "UserAssigned", "userAssignedIdentities": {"/x": {}}}}), (400, "FailedIdentityOperation"))]
#[case::plan(json!({"properties": {"storageProfile": {"imageReference": {"id": null, "publisher": "example", "offer": "hardened-linux", "sku": "nodes", "version": "2.0.1"}}}}), (400, "VMMarketplaceInvalidInput"))]
#[tokio::test]
async fn what_the_subscription_can_not_fulfil_is_refused(#[case] change: Value, #[case] wanted: (u16, &str)) {
    let rig = Rig::new().await;
    rig.put_nic("m-1-nic").await;
    let refused = rig.put_vm("m-1", &change).await;
    assert_eq!(refused.refused(), wanted, "{}", refused.body);
    assert_eq!(rig.counts(), [0, 1, 0]);
}

#[rstest]
#[case::set(json!({"zones": null, "properties": {"availabilitySet": {"id": AVAILABILITY_SET}}}))]
#[case::scale_set(json!({"properties": {"virtualMachineScaleSet": {"id": SCALE_SET.to_uppercase()}}}))]
#[case::reservation(json!({"properties": {"capacityReservation": {"capacityReservationGroup": {"id": CAPACITY_RESERVATION_GROUP}}}}))]
#[case::identity(json!({"identity": {"type": "UserAssigned", "userAssignedIdentities": {IDENTITY: {}}}}))]
#[case::community(json!({"properties": {"storageProfile": {"imageReference": {"id": null, "communityGalleryImageId": COMMUNITY_IMAGE}}}}))]
#[case::shared(json!({"properties": {"storageProfile": {"imageReference": {"id": null, "sharedGalleryImageId": SHARED_IMAGE}}}}))]
#[case::spot(json!({"properties": {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": -1}}}))]
#[case::confidential(json!({"properties": {"securityProfile": {"securityType": "ConfidentialVM", "uefiSettings": {"vTpmEnabled": true, "secureBootEnabled": true}}}}))]
#[tokio::test]
async fn each_kind_of_vm_can_be_made(#[case] change: Value) {
    let rig = Rig::new().await;
    rig.put_nic("m-1-nic").await;
    let made = rig.put_vm("m-1", &change).await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(rig.get(&vm_path("m-1")).await.status, 200);
    let view = rig.get(&vm_path("m-1").replace("m-1?", "m-1/instanceView?")).await.body;
    assert_eq!(view["statuses"][1]["code"], "PowerState/running");
    rig.azure.stop_vm("m-1");
    let expanded = rig.get(&format!("{}&$expand=instanceView", vm_path("m-1"))).await.body;
    assert_eq!(expanded["properties"]["instanceView"]["statuses"][1]["code"], "PowerState/deallocated");
    assert_eq!(
        rig.get(&path("Microsoft.Compute", "virtualMachines", COMPUTE)).await.body["value"].as_array().unwrap().len(),
        1
    );
}

#[tokio::test]
async fn a_disk_comes_from_an_image_and_is_attached() {
    let rig = Rig::new().await;
    rig.put_nic("m-1-nic").await;
    let body = json!({
        "location": LOCATION, "zones": ["1"], "sku": {"name": "Premium_LRS"},
        "properties": {"diskSizeGB": 40, "creationData": {"createOption": "FromImage", "imageReference": {"id": IMAGE_ID}}},
    });
    let made = rig.call(Verb::PUT, &disk_path("m-1-2-data-disk"), &body).await;
    assert_eq!((made.status, &made.body["properties"]["provisioningState"]), (202, &json!("Creating")));
    assert_eq!(rig.get(made.header("location")).await.body["properties"]["diskState"], "Unattached");
    let attached = json!({"lun": 2, "createOption": "Attach", "deleteOption": "Delete", "managedDisk": {"id": id_of(&disk_path("m-1-2-data-disk"))}});
    let made = rig.put_vm("m-1", &json!({"properties": {"storageProfile": {"dataDisks": [attached]}}})).await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(rig.get(&disk_path("m-1-2-data-disk")).await.body["properties"]["diskState"], "Attached");
    rig.delete(&vm_path("m-1")).await;
    assert_eq!(rig.counts(), [0; 3]);
    let wrong = json!({"properties": {"creationData": {"imageReference": {"id": "/x"}}}});
    let mut body = body;
    json_patch::merge(&mut body, &wrong);
    assert_eq!(rig.call(Verb::PUT, &disk_path("d"), &body).await.refused(), (404, "ImageNotFound"));
}

#[tokio::test]
async fn terms_are_accepted_before_a_vm_with_their_plan_is_made() {
    let rig = Rig::new().await;
    rig.put_nic("m-1-nic").await;
    let image = format!(
        "/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{LOCATION}/publishers/example/artifacttypes/vmimage/offers/hardened-linux/\
         skus/nodes/versions/2.0.1?{COMPUTE}"
    );
    let plan = rig.get(&image).await.body["properties"]["plan"].clone();
    assert_eq!(rig.get(&image.replace("2.0.1", "latest")).await.refused(), (404, "NotFound"));
    let change = json!({"plan": plan, "properties": {"storageProfile": {"imageReference": {
        "id": null, "publisher": "example", "offer": "hardened-linux", "sku": "nodes", "version": "latest",
    }}}});
    assert_eq!(rig.put_vm("m-1", &change).await.refused(), (400, "ResourcePurchaseValidationFailed"));
    let agreement = format!(
        "/subscriptions/{SUBSCRIPTION}/providers/Microsoft.MarketplaceOrdering/offerTypes/virtualmachine/publishers/example/offers/hardened-linux/plans/\
         nodes/agreements/current?api-version=2021-01-01"
    );
    let terms = rig.get(&agreement).await.body;
    assert_eq!(terms["properties"]["accepted"], false);
    let mut accepted = terms["properties"].clone();
    accepted["accepted"] = json!(true);
    assert_eq!(rig.call(Verb::PUT, &agreement, &json!({"properties": accepted})).await.status, 200);
    assert_eq!(rig.azure.agreement()["properties"]["accepted"], true);
    assert_eq!(rig.put_vm("m-1", &change).await.status, 201);
    assert_eq!(rig.get(&agreement.replace("plans/nodes", "plans/x")).await.status, 404);
}

#[rstest]
#[case::unknown_field(vm("m-1", &json!({"properties": {"hardwareprofile": {}}})), "properties.hardwareprofile: there is no such field")]
#[case::read_only(vm("m-1", &json!({"properties": {"vmId": "x"}})), "properties.vmId: only the service writes this field")]
#[case::kind(vm("m-1", &json!({"zones": [1]})), "zones[0]: 1 is not of type string")]
#[case::value(vm("m-1", &json!({"properties": {"storageProfile": {"osDisk": {"caching": ""}}}})), "osDisk.caching: \"\" is none of")]
#[case::required(vm("m-1", &json!({"location": null})), "location: the field is required")]
#[case::later(vm("m-1", &json!({"placement": {"zonePlacementPolicy": "Any"}})), "placement: the field exists since")]
#[case::no_body(Value::Null, "the body is missing")]
#[tokio::test]
async fn a_body_that_the_models_do_not_know_is_a_violation(#[case] body: Value, #[case] words: &str) {
    let rig = Rig::new().await;
    let refused = rig.call(Verb::PUT, &vm_path("m-1"), &body).await;
    assert_eq!(refused.refused(), (400, "InvalidRequestContent"));
    assert!(refused.body["error"]["message"].as_str().unwrap().contains(words), "{}", refused.body);
    assert_eq!(rig.azure.take_violations().len(), 1);
}

#[rstest]
#[case::no_version("", "the query has no api-version")]
#[case::version("api-version=2024-07-02", "there is no api-version 2024-07-02")]
#[case::parameter("api-version=2024-07-01&x=1", "the query has no parameter x")]
#[tokio::test]
async fn a_query_that_azure_does_not_know_is_a_violation(#[case] query: &str, #[case] words: &str) {
    let rig = Rig::new().await;
    let refused = rig.get(&path("Microsoft.Compute/virtualMachines", "m-1", query)).await;
    assert!(refused.body["error"]["message"].as_str().unwrap().contains(words), "{}", refused.body);
    assert_eq!(rig.azure.take_violations().len(), 1);
    assert_eq!((rig.get("/x").await.status, rig.azure.take_violations().len()), (400, 1));
    rig.put_nic("n").await;
    let poll = rig.azure.operations()[0]["name"].as_str().unwrap().to_owned();
    let poll = format!(
        "/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Network/locations/{LOCATION}/operations/{poll}?{NETWORK}"
    );
    assert_eq!((rig.get(&poll).await.status, rig.azure.take_violations().len()), (400, 1));
}

#[tokio::test]
#[should_panic(expected = "Microsoft's clients do not know")]
async fn a_violation_fails_its_test() {
    Rig::new().await.get("/x").await;
}

#[tokio::test]
async fn the_graph_shows_pages_if_the_query_projects_ids() {
    let rig = Rig::new().await;
    for number in 0..5 {
        let cluster = if number % 2 == 0 { "kubernetes.io-cluster-x" } else { "kubernetes.io-cluster-x-2" };
        let mut body = nic(&json!({"name": format!("n-{number}"), "tags": {"kubernetes.io-cluster-x": null}}));
        body["tags"][cluster] = json!("1");
        rig.azure.put_nic(&body);
    }
    let all = "Resources | where type =~ 'Microsoft.Network/networkInterfaces' | project id, name, tags";
    let mut options = json!({"$top": 2});
    let mut seen = Vec::new();
    loop {
        let page = rig.query(all, &options).await.body;
        seen.extend(page["data"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned()));
        let Some(token) = page["$skipToken"].as_str() else { break };
        assert_eq!(
            (&page["count"], &page["totalRecords"], &page["resultTruncated"]),
            (&json!(2), &json!(5), &json!("true"))
        );
        options["$skipToken"] = json!(token);
    }
    assert_eq!(seen, ["n-0", "n-1", "n-2", "n-3", "n-4"]);
    let page = rig.query(&all.replace("id, ", ""), &json!({"$top": 2})).await.body;
    assert_eq!((&page["$skipToken"], &page["resultTruncated"]), (&Value::Null, &json!("true")));

    let keys = "resources | extend k = bag_keys(tags) | where";
    assert_eq!(rig.names(&format!("{keys} k has 'kubernetes.io-cluster-x'")).await.len(), 5, "at the border of a word");
    assert_eq!(
        rig.names(&format!("{keys} set_has_element(k, 'kubernetes.io-cluster-x')")).await,
        ["n-0", "n-2", "n-4"]
    );
    for (condition, wanted) in [
        ("isnotempty(tags['kubernetes.io-cluster-x-2'])", &["n-1", "n-3"][..]),
        ("name in~ ('N-0', 'n-1') and not(name == 'n-0')", &["n-1"]),
        ("(name endswith '3' or name startswith 'n-4') and resourceGroup =~ 'SHOOT--project--name'", &["n-3", "n-4"]),
        ("name !in ('n-0', 'n-1', 'n-2', 'n-3') and properties.enableIPForwarding == true", &["n-4"]),
        ("resourceGroup == 'Shoot--Project--Name'", &[]),
        ("name !~ 'N-0' and name contains '0'", &[]),
    ] {
        assert_eq!(
            rig.names(&format!("Resources | where {condition} | order by name asc")).await,
            wanted,
            "{condition}"
        );
    }
    assert_eq!(rig.names("Resources | sort by name | limit 1").await, ["n-4"]);
    for wrong in [
        "Things",
        "Resources | summarize count()",
        "Resources | where name ~ 'x'",
        "Resources | where name == 'x",
        "Resources | where f(name)",
    ] {
        let refused = rig.query(wrong, &json!({})).await;
        assert_eq!(
            (refused.refused(), &refused.body["error"]["details"][0]["code"]),
            ((400, "BadRequest"), &json!("InvalidQuery")),
            "{wrong}"
        );
    }
    assert_eq!(rig.query(all, &json!({"$top": 1001})).await.status, 400);
}

#[tokio::test]
async fn the_graph_lags_behind_by_queries() {
    let rig = Rig::new().await;
    rig.azure.set_graph_lag(1);
    let all = "Resources | project id, name";
    rig.put_nic("n-1").await;
    assert_eq!(rig.names(all).await.len(), 0);
    rig.delete(&nic_path("n-1")).await;
    assert_eq!((rig.names(all).await.len(), rig.counts()[1]), (1, 0));
    assert_eq!(rig.names(all).await.len(), 0);
}

#[rstest]
#[case::secret(TENANT, &SECRET, (200, ""))]
#[case::second(TENANT, &[("client_id", CLIENT), ("client_secret", SECOND_CLIENT_SECRET)], (200, ""))]
#[case::federated(TENANT, &[("client_id", CLIENT), ("client_assertion", FEDERATED_TOKEN), ("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")], (200, ""))]
#[case::stolen(TENANT, &[("client_id", CLIENT), ("client_assertion", "x"), ("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")], (401, "AADSTS700213"))]
#[case::wrong_secret(TENANT, &[("client_id", CLIENT), ("client_secret", "x")], (401, "AADSTS7000215"))]
#[case::no_secret(TENANT, &[("client_id", CLIENT)], (401, "AADSTS7000218"))]
#[case::wrong_client(TENANT, &[("client_id", "x"), ("client_secret", CLIENT_SECRET)], (400, "AADSTS700016"))]
#[case::wrong_tenant("x", &SECRET, (400, "AADSTS90002"))]
#[tokio::test]
async fn credentials_are_checked(#[case] tenant: &str, #[case] fields: &[(&str, &str)], #[case] wanted: (u16, &str)) {
    let rig = Rig::new().await;
    let answer = rig.log_in(tenant, fields).await;
    let words = answer.body["error_description"].as_str().unwrap_or_default();
    assert_eq!(answer.status, wanted.0, "{words}");
    assert!(words.starts_with(wanted.1) && words.contains(wanted.1), "{words}");
}

#[tokio::test]
async fn callers_need_a_token_that_is_valid() {
    let mut rig = Rig::new().await;
    let subscription = format!("/subscriptions/{SUBSCRIPTION}?api-version=2022-12-01");
    assert_eq!(rig.get(&subscription).await.body["state"], "Enabled");
    assert_eq!(rig.azure.requests().last().unwrap().by, "secret");
    rig.azure.revoke_tokens();
    let refused = rig.get(&subscription).await;
    assert_eq!(refused.refused(), (401, "ExpiredAuthenticationToken"));
    assert!(refused.header("www-authenticate").contains(TENANT));
    rig.token = "x".to_owned();
    assert_eq!(rig.get(&subscription).await.refused(), (401, "InvalidAuthenticationToken"));
    let configuration = rig.get(&format!("/{TENANT}/v2.0/.well-known/openid-configuration")).await;
    assert!(configuration.body["token_endpoint"].as_str().unwrap().ends_with("/oauth2/v2.0/token"));
}

#[rstest]
#[case::group(&format!("/subscriptions/{SUBSCRIPTION}/resourcegroups/{VNET_RESOURCE_GROUP}?api-version=2021-04-01"), 200)]
#[case::no_group(&format!("/subscriptions/{SUBSCRIPTION}/resourcegroups/x?api-version=2021-04-01"), 404)]
#[case::other_subscription("/subscriptions/x?api-version=2022-12-01", 404)]
#[case::subnet(&format!("{}?{NETWORK}", subnet_id(VNET_RESOURCE_GROUP)), 200)]
#[case::no_subnet(&format!("{}x?{NETWORK}", subnet_id(RESOURCE_GROUP)), 404)]
#[case::network(&path("Microsoft.Network/virtualNetworks", VNET, NETWORK), 200)]
#[case::set(&format!("{AVAILABILITY_SET}?{COMPUTE}"), 200)]
#[case::scale_set(&format!("{SCALE_SET}?{COMPUTE}"), 200)]
#[case::no_scale_set(&format!("{SCALE_SET}x?{COMPUTE}"), 404)]
#[case::reservations(&format!("{CAPACITY_RESERVATION_GROUP}?{COMPUTE}"), 200)]
#[case::image(&format!("{IMAGE_ID}?{COMPUTE}"), 200)]
#[tokio::test]
async fn the_resources_of_the_subscription_are_readable(#[case] path: &str, #[case] status: u16) {
    let rig = Rig::new().await;
    let answer = rig.get(path).await;
    assert_eq!(answer.status, status, "{}", answer.body);
    if path.contains("resourcegroups") {
        let found = rig.call(Verb::HEAD, path, &Value::Null).await;
        assert_eq!(found.status, if status == 200 { 204 } else { status });
    }
}

#[tokio::test]
async fn refusals_wait_for_their_method_and_a_group_can_go() {
    let rig = Rig::new().await;
    rig.azure.refuse(Method::GetVm, Refusal::throttled(3), 1);
    rig.azure.refuse(Method::GetVm, Refusal::html(404), 1);
    let throttled = rig.get(&vm_path("m-1")).await;
    assert_eq!((throttled.status, throttled.header("retry-after")), (429, "3"));
    let html = rig.get(&vm_path("m-1")).await;
    assert_eq!((html.status, html.header("content-type"), &html.body), (404, "text/html", &Value::Null));
    assert_eq!(rig.get(&vm_path("m-1")).await.refused(), (404, "ResourceNotFound"));
    assert_eq!(rig.azure.count(Method::GetVm), 3);
    for (refusal, status) in [
        (Refusal::quota_exceeded(), 409),
        (Refusal::sku_not_available(), 409),
        (Refusal::forbidden(), 403),
        (Refusal::unavailable(), 503),
        (Refusal::internal(), 500),
        (Refusal::conflict(), 409),
        (Refusal::nic_reserved(), 400),
    ] {
        assert_eq!(refusal.status(), status);
        assert!(refusal.body().contains("\"code\""), "{}", refusal.body());
    }
    rig.put_nic("n").await;
    rig.azure.delete_resource_group();
    assert_eq!((rig.put_nic("n").await.refused(), rig.counts()), ((404, "ResourceGroupNotFound"), [0; 3]));
}
