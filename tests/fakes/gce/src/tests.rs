//! The fake as its clients see it, with the HTTP client of the drivers.

use std::time::Instant;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use cloud_client::{Bytes, HttpOptions, HttpTransport, Transport};
use http::{Method as Verb, Request};
use ring::{
    rand::SystemRandom,
    signature::{RSA_PKCS1_SHA256, RsaKeyPair},
};
use rstest::rstest;
use rustls_pki_types::{PrivatePkcs8KeyDer, pem::PemObject};

use super::*;

const SERVICE: &str = "https://compute.googleapis.com/";
const COMPUTE: &str = "https://www.googleapis.com/auth/compute";
const READ_ONLY: &str = "https://www.googleapis.com/auth/compute.readonly";

/// A JWT that is signed with the key of a key file. `change` is merged into its claims.
fn jwt(key_file: &str, change: &Value) -> String {
    let file: Value = serde_json::from_str(key_file).unwrap();
    let now = jiff::Timestamp::now().as_second();
    let email = &file["client_email"];
    let mut claims = json!({"iss": email, "sub": email, "aud": SERVICE, "iat": now, "exp": now + 3600});
    json_patch::merge(&mut claims, change);
    let header = json!({"alg": "RS256", "typ": "JWT", "kid": file["private_key_id"]});
    let encoded = |part: &Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", encoded(&header), encoded(&claims));
    let private = PrivatePkcs8KeyDer::from_pem_slice(file["private_key"].as_str().unwrap().as_bytes()).unwrap();
    let pair = RsaKeyPair::from_pkcs8(private.secret_pkcs8_der()).unwrap();
    let mut signature = vec![0; pair.public().modulus_len()];
    pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature).unwrap();
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

struct Rig {
    gce: FakeGce,
    client: HttpTransport,
    token: String,
}

impl Rig {
    async fn new() -> Self {
        Self::with(Timing { operation: Duration::ZERO, ..Timing::default() }).await
    }

    async fn with(timing: Timing) -> Self {
        let gce = FakeGce::with(timing).await.unwrap();
        let token = jwt(&gce.service_account(), &json!({}));
        Self { gce, client: HttpTransport::new(HttpOptions::default()), token }
    }

    async fn send(&self, verb: Verb, path: &str, kind: &str, body: String) -> (u16, Value) {
        let request = Request::builder()
            .method(verb)
            .uri(format!("{}{path}", self.gce.url()))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", kind)
            .body(Bytes::from(body))
            .unwrap();
        let answer = self.client.send(request).await.unwrap();
        (answer.status.as_u16(), serde_json::from_slice(&answer.body).unwrap())
    }

    /// Calls a method in the zone. `path` begins behind the zone.
    async fn call(&self, verb: Verb, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let path = format!("/compute/v1/projects/{PROJECT}/zones/{ZONE}/{path}");
        self.send(verb, &path, "application/json", body).await
    }

    async fn insert(&self, change: &Value) -> (u16, Value) {
        self.insert_as("m-1", "", change).await
    }

    async fn insert_as(&self, name: &str, query: &str, change: &Value) -> (u16, Value) {
        self.call(Verb::POST, &format!("instances{query}"), &instance(name, change)).await
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.call(Verb::GET, path, &Value::Null).await
    }

    async fn delete(&self, path: &str) -> (u16, Value) {
        self.call(Verb::DELETE, path, &Value::Null).await
    }

    async fn form(&self, path: &str, fields: &[(&str, &str)]) -> (u16, Value) {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        self.send(Verb::POST, path, "application/x-www-form-urlencoded", body).await
    }
}

/// The body of an insert. `change` is merged into it.
fn instance(name: &str, change: &Value) -> Value {
    let mut body = json!({
        "name": name,
        "machineType": format!("zones/{ZONE}/machineTypes/{MACHINE_TYPE}"),
        "disks": [{"boot": true, "autoDelete": true, "type": "PERSISTENT", "initializeParams": {
            "sourceImage": IMAGE, "diskSizeGb": "50", "diskType": format!("zones/{ZONE}/diskTypes/pd-ssd"), "labels": {"name": "nodes"},
        }}],
        "networkInterfaces": [{
            "network": format!("projects/{PROJECT}/global/networks/{NETWORK}"), "subnetwork": format!("regions/{REGION}/subnetworks/{SUBNETWORK}"),
            "accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}],
        }],
        "scheduling": {"automaticRestart": true, "onHostMaintenance": "MIGRATE", "preemptible": false},
        "labels": {"pool": "a"}, "tags": {"items": ["kubernetes-io-cluster-x", "kubernetes-io-role-node"]},
        "metadata": {"items": [{"key": "user-data", "value": "#cloud-config"}]},
    });
    json_patch::merge(&mut body, change);
    body
}

fn reason(answer: &Value) -> &str {
    answer["error"]["errors"][0]["reason"].as_str().unwrap_or_default()
}

fn message(answer: &Value) -> &str {
    answer["error"]["message"].as_str().unwrap_or_default()
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().into_iter().flatten().filter_map(|item| item["name"].as_str()).collect()
}

#[tokio::test]
async fn an_instance_is_created_shown_and_deleted_with_its_disk() {
    let rig = Rig::new().await;
    let (status, operation) = rig.insert(&json!({})).await;
    assert_eq!((status, &operation["operationType"]), (200, &json!("insert")));
    let (_, ended) = rig.get(&format!("operations/{}", operation["name"].as_str().unwrap())).await;
    assert_eq!((&ended["status"], &ended["error"]), (&json!("DONE"), &Value::Null));
    let (_, found) = rig.get("instances/m-1").await;
    assert_eq!((&found["status"], &found["tags"]["items"][1]), (&json!("RUNNING"), &json!("kubernetes-io-role-node")));
    assert_eq!(found["disks"][0]["initializeParams"], Value::Null, "an answer does not repeat them");
    let (_, disk) = rig.get("disks/m-1").await;
    assert_eq!((&disk["sizeGb"], &disk["labels"]), (&json!("50"), &json!({"name": "nodes"})));
    assert_eq!(rig.delete("disks/m-1").await.0, 400, "it is in use");

    let (_, operation) = rig.delete("instances/m-1").await;
    assert_eq!(operation["operationType"], "delete");
    let (status, absent) = rig.get("instances/m-1").await;
    assert_eq!((status, reason(&absent)), (404, "notFound"));
    assert_eq!((rig.gce.instances().len(), rig.gce.disks().len()), (0, 0));
    assert_eq!(reason(&rig.delete("instances/m-1").await.1), "notFound");
    assert_eq!(rig.gce.inserted(), ["m-1"]);
    assert_eq!(rig.gce.requests()[0].caller, ACCOUNT);
}

#[tokio::test]
async fn a_request_id_gives_the_same_operation_for_ever() {
    let rig = Rig::new().await;
    let query = "?requestId=7a3f2b10-0000-4000-8000-00000000000";
    rig.gce.fail(Method::InsertInstance, &[OperationError::zone_exhausted()], 1);
    let (_, first) = rig.insert_as("m-1", &format!("{query}1"), &json!({})).await;
    let (_, again) = rig.insert_as("m-1", &format!("{query}1"), &json!({})).await;
    assert_eq!(first["name"], again["name"], "also after a failure");
    assert_eq!(again["error"]["errors"][0]["code"], "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS");
    assert_eq!((&again["httpErrorStatusCode"], rig.gce.instances().len()), (&json!(503), 0));
    assert_eq!(rig.gce.disks().len(), 0);

    let (_, second) = rig.insert_as("m-1", &format!("{query}2"), &json!({})).await;
    assert_ne!(first["name"], second["name"]);
    let (_, gone) = rig.delete(&format!("instances/m-1{query}3")).await;
    assert_eq!(rig.delete(&format!("instances/m-1{query}3")).await.1["name"], gone["name"]);
    assert_eq!(rig.insert_as("m-1", &format!("{query}2"), &json!({})).await.1["name"], second["name"]);
    assert_eq!(rig.gce.instances().len(), 0, "a repeated request creates nothing");
    for wrong in ["00000000-0000-0000-0000-000000000000", "m-1"] {
        assert_eq!(rig.insert_as("m-1", &format!("?requestId={wrong}"), &json!({})).await.0, 400);
    }
}

#[tokio::test]
async fn a_name_in_use_is_refused() {
    let rig = Rig::new().await;
    rig.insert(&json!({})).await;
    let (status, refused) = rig.insert(&json!({})).await;
    assert_eq!((status, reason(&refused)), (409, "alreadyExists"));
    assert!(message(&refused).ends_with("instances/m-1' already exists"), "{refused}");
    let mut kept = instance("m-2", &json!({}));
    kept["disks"][0]["autoDelete"] = json!(false);
    rig.gce.put_instance(&kept);
    rig.delete("instances/m-2").await;
    let (status, refused) = rig.insert_as("m-2", "", &json!({})).await;
    assert_eq!((status, message(&refused).contains("disks/m-2")), (409, true), "{refused}");
    assert_eq!(rig.delete("disks/m-2").await.0, 200, "no instance uses it");
    assert_eq!(rig.insert_as("m-2", "", &json!({})).await.0, 200);
}

#[rstest]
#[case::machine_type(json!({"machineType": format!("zones/{ZONE}/machineTypes/x9")}), "Machine type with name 'x9' does not exist in zone 'europe-west1-b'.")]
#[case::other_zone(json!({"machineType": format!("zones/{OTHER_ZONE}/machineTypes/{MACHINE_TYPE}")}), "another zone")]
#[case::network(json!({"networkInterfaces": [{"network": "global/networks/x"}]}), "The referenced network resource cannot be found.")]
#[case::no_subnetwork(json!({"networkInterfaces": [{"network": "global/networks/shoot"}]}), "Subnetwork should be specified")]
#[case::no_interface(json!({"networkInterfaces": []}), "At least one network interface is required.")]
#[case::gpu_migrates(json!({"guestAccelerators": [{"acceleratorType": format!("zones/{ZONE}/acceleratorTypes/{GPU}"), "acceleratorCount": 1}]}), "do not support live migration")]
#[case::gpu_unknown(json!({"guestAccelerators": [{"acceleratorType": format!("zones/{ZONE}/acceleratorTypes/x"), "acceleratorCount": 1}]}), "acceleratorType resource cannot be found")]
#[case::preemptible_restarts(json!({"scheduling": {"preemptible": true, "onHostMaintenance": "TERMINATE"}}), "when AutomaticRestart is true")]
#[case::preemptible_migrates(json!({"scheduling": {"preemptible": true, "automaticRestart": false}}), "when OnHostMaintenance isn't TERMINATE")]
#[case::termination_action(json!({"scheduling": {"instanceTerminationAction": "DELETE"}}), "standard provisioning model")]
#[case::label(json!({"labels": {"Pool": "a"}}), "violates format constraints")]
#[case::metadata(json!({"metadata": {"items": [{"key": "a", "value": ""}, {"key": "a", "value": ""}]}}), "duplicate keys")]
#[case::no_disk(json!({"disks": []}), "must be the boot disk")]
#[case::image(json!({"disks": [{"boot": true, "initializeParams": {"sourceImage": "global/images/x"}}]}), "image resource cannot be found")]
#[case::no_image(json!({"disks": [{"boot": true, "initializeParams": {}}]}), "A boot disk needs a source.")]
#[case::small_disk(json!({"disks": [{"boot": true, "initializeParams": {"sourceImage": IMAGE, "diskSizeGb": "5"}}]}), "cannot be smaller than the image size")]
#[case::scratch_type(json!({"disks": [{"boot": true, "type": "SCRATCH", "initializeParams": {"sourceImage": IMAGE}}]}), "diskType")]
#[case::alias_range(json!({"networkInterfaces": [{"subnetwork": format!("regions/{REGION}/subnetworks/{SUBNETWORK}"), "aliasIpRanges": [{"ipCidrRange": "/24", "subnetworkRangeName": "x"}]}]}), "no such secondary range")]
#[case::dual_stack(json!({"networkInterfaces": [{"subnetwork": format!("regions/{REGION}/subnetworks/{SUBNETWORK}"), "stackType": "IPV4_IPV6"}]}), "no IPv6 addresses")]
#[tokio::test]
async fn an_impossible_instance_is_refused(#[case] change: Value, #[case] words: &str) {
    let rig = Rig::new().await;
    let (status, refused) = rig.insert(&change).await;
    assert_eq!(status, 400, "{refused}");
    assert!(message(&refused).contains(words), "{refused}");
    assert_eq!((rig.gce.instances().len(), rig.gce.disks().len()), (0, 0));
}

#[tokio::test]
async fn every_documented_setting_of_an_instance_is_accepted() {
    let rig = Rig::new().await;
    let key = "projects/shoot-project/locations/europe-west1/keyRings/r/cryptoKeys/k";
    let change = json!({
        "canIpForward": true, "deletionProtection": false, "description": "a node", "minCpuPlatform": "Intel Haswell",
        "disks": [
            {"boot": true, "initializeParams": {"sourceImage": format!("projects/{PROJECT}/global/images/family/{IMAGE_FAMILY}")},
             "diskEncryptionKey": {"kmsKeyName": key, "kmsKeyServiceAccount": "a@b"}},
            {"type": "SCRATCH", "interface": "NVME", "autoDelete": true, "initializeParams": {"diskType": format!("zones/{ZONE}/diskTypes/local-ssd")}},
            {"initializeParams": {"diskType": format!("zones/{ZONE}/diskTypes/hyperdisk-balanced"), "diskSizeGb": "100",
                "provisionedIops": "3500", "provisionedThroughput": "140"}},
        ],
        "networkInterfaces": [{
            "subnetwork": format!("regions/{REGION}/subnetworks/{DUAL_SUBNETWORK}"), "stackType": "IPV4_IPV6",
            "aliasIpRanges": [{"ipCidrRange": "/24", "subnetworkRangeName": SECONDARY_RANGE}],
        }],
        "guestAccelerators": [{"acceleratorType": format!("projects/{PROJECT}/zones/{ZONE}/acceleratorTypes/{GPU}"), "acceleratorCount": 1}],
        "scheduling": {"preemptible": null, "automaticRestart": false, "onHostMaintenance": "TERMINATE", "provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"},
        "serviceAccounts": [{"email": ACCOUNT, "scopes": [COMPUTE]}],
        "shieldedInstanceConfig": {"enableSecureBoot": true, "enableVtpm": true, "enableIntegrityMonitoring": true},
        "advancedMachineFeatures": {"enableNestedVirtualization": true},
        "reservationAffinity": {"consumeReservationType": "ANY_RESERVATION"},
    });
    let mut body = instance("m-1", &change);
    body["hostname"] = Value::Null;
    let (status, answer) = rig.call(Verb::POST, "instances", &body).await;
    assert_eq!(status, 200, "{answer}");
    let (_, found) = rig.get("instances/m-1").await;
    assert_eq!(found["scheduling"]["preemptible"], true, "a spot instance is one that may be preempted");
    let disks = rig.gce.disks();
    assert_eq!(disks.iter().map(|disk| &disk["name"]).collect::<Vec<_>>(), ["m-1", "m-1-2"]);
    assert_eq!(
        (&disks[0]["diskEncryptionKey"]["kmsKeyName"], &disks[1]["provisionedIops"]),
        (&json!(key), &json!("3500"))
    );
}

#[rstest]
#[case::unknown_field(Verb::POST, "instances", instance("m-1", &json!({"machinetype": "x"})), "machinetype: there is no such field")]
#[case::deep_field(Verb::POST, "instances", instance("m-1", &json!({"scheduling": {"spot": true}})), "scheduling.spot: there is no such field")]
#[case::read_only(Verb::POST, "instances", instance("m-1", &json!({"status": "RUNNING"})), "status: only the service writes this field")]
#[case::int64(Verb::POST, "instances", instance("m-1", &json!({"disks": [{"diskSizeGb": 50}]})), "disks[0].diskSizeGb: 50 is not of type string int64")]
#[case::not_a_number(Verb::POST, "instances", instance("m-1", &json!({"disks": [{"diskSizeGb": "50G"}]})), "is not of type string int64")]
#[case::wrong_enum(Verb::POST, "instances", instance("m-1", &json!({"scheduling": {"onHostMaintenance": "STOP"}})), "is none of")]
#[case::name(Verb::POST, "instances", instance("M_1", &json!({})), "does not match")]
#[case::no_name(Verb::POST, "instances", instance("m-1", &json!({"name": null})), "name: the field is required")]
#[case::tag(Verb::POST, "instances", instance("m-1", &json!({"tags": {"items": ["kubernetes.io/x"]}})), "tags.items[0]: \"kubernetes.io/x\" does not match")]
#[case::no_body(Verb::POST, "instances", Value::Null, "the body is missing")]
#[case::body_of_get(Verb::DELETE, "instances/m-1", json!({}), "the method has no body")]
#[case::query(Verb::GET, "instances?pageSize=3", Value::Null, "the query has no parameter pageSize")]
#[case::query_type(Verb::GET, "instances?maxResults=many", Value::Null, "\"many\" is no \"integer\"")]
#[case::path_name(Verb::GET, "instances/M_1", Value::Null, "does not match")]
#[case::fields(Verb::GET, "instances?fields=items(name,nic)", Value::Null, "Invalid field selection nic")]
#[case::open_fields(Verb::GET, "instances?fields=items(name", Value::Null, "a parenthesis is open")]
#[case::no_method(Verb::PUT, "instances/m-1", json!({}), "there is no such method")]
#[tokio::test]
async fn an_undocumented_request_is_a_violation(
    #[case] verb: Verb,
    #[case] path: &str,
    #[case] body: Value,
    #[case] words: &str,
) {
    let rig = Rig::new().await;
    let (status, refused) = rig.call(verb, path, &body).await;
    assert_eq!(status, 400);
    assert!(message(&refused).contains(words), "{refused}");
    assert_eq!(rig.gce.take_violations(), [message(&refused)]);
    assert_eq!(rig.gce.instances().len(), 0);
}

#[tokio::test]
#[should_panic(expected = "discovery documents do not allow")]
async fn a_violation_fails_its_test() {
    Rig::new().await.get("instances?pageSize=3").await;
}

#[tokio::test]
async fn lists_have_pages_filters_and_chosen_fields() {
    let rig = Rig::new().await;
    for number in 0..5 {
        let pool = if number % 2 == 0 { "even" } else { "odd" };
        rig.gce.put_instance(&instance(&format!("m-{number}"), &json!({"labels": {"pool": pool}})));
    }
    let (mut query, mut seen) =
        ("instances?maxResults=2&fields=items(name,tags/items),nextPageToken".to_owned(), Vec::new());
    loop {
        let (_, page) = rig.get(&query).await;
        assert!(names(&page).len() <= 2, "{page}");
        assert_eq!(page["items"][0].as_object().unwrap().len(), 2, "{page}");
        seen.extend(names(&page).into_iter().map(str::to_owned));
        let Some(token) = page["nextPageToken"].as_str() else { break };
        query = format!("instances?maxResults=2&fields=items/name,items/tags/items,nextPageToken&pageToken={token}");
    }
    assert_eq!(seen, ["m-0", "m-1", "m-2", "m-3", "m-4"]);

    for (filter, wanted) in [
        ("labels.pool=odd", &["m-1", "m-3"][..]),
        ("(labels.pool = \"even\") AND (name != m-2)", &["m-0", "m-4"]),
        ("labels.pool:*", &["m-0", "m-1", "m-2", "m-3", "m-4"]),
        ("status=TERMINATED", &[]),
        ("deletionProtection=true", &[]),
    ] {
        let filter: String = form_urlencoded::byte_serialize(filter.as_bytes()).collect();
        let (status, list) = rig.get(&format!("instances?filter={filter}")).await;
        assert_eq!((status, names(&list)), (200, wanted.to_vec()), "{filter}");
        assert_eq!(list.get("items").is_some(), !wanted.is_empty());
    }
    for wrong in [
        "filter=tags.items%3Dx",
        "filter=name+eq+x",
        "filter=name%3Dm-*",
        "filter=name",
        "filter=name%3Da+OR+name%3Db",
        "filter=%22",
    ] {
        let (status, refused) = rig.get(&format!("instances?{wrong}")).await;
        assert_eq!((status, reason(&refused)), (400, "invalid"), "{wrong}");
    }
    for wrong in ["maxResults=501", "pageToken=-", "orderBy=name"] {
        assert_eq!(rig.get(&format!("instances?{wrong}")).await.0, 400, "{wrong}");
    }
    assert_eq!(names(&rig.get("disks").await.1).len(), 5);
    assert_eq!(rig.get("operations").await.1["items"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn a_new_instance_is_shown_before_it_is_listed() {
    let rig = Rig::new().await;
    let hidden = Timing { operation: Duration::ZERO, visible_after: Duration::from_secs(600), ..Timing::default() };
    rig.gce.set_timing(hidden);
    rig.insert(&json!({})).await;
    assert_eq!((rig.get("instances/m-1").await.0, names(&rig.get("instances").await.1).len()), (200, 0));
    rig.gce.put_instance(&instance("m-2", &json!({})));
    assert_eq!(names(&rig.get("instances").await.1), ["m-2"]);
    rig.gce.terminate_instance("m-2");
    assert_eq!(rig.get("instances/m-2").await.1["status"], "TERMINATED");
}

#[tokio::test]
async fn a_wait_ends_with_its_operation_or_after_the_longest_time() {
    let long = Duration::from_millis(150);
    let rig = Rig::with(Timing { operation: Duration::ZERO, wait: long, ..Timing::default() }).await;
    rig.gce.hold_operations();
    let (_, operation) = rig.insert(&json!({})).await;
    let path = format!("operations/{}/wait", operation["name"].as_str().unwrap());
    let began = Instant::now();
    let (_, waited) = rig.call(Verb::POST, &path, &Value::Null).await;
    assert_eq!((&waited["status"], began.elapsed() >= long), (&json!("RUNNING"), true));
    assert_eq!(rig.get("instances/m-1").await.1["status"], "PROVISIONING");
    rig.gce.set_timing(Timing { wait: Duration::from_secs(600), ..Timing::default() });
    let (released, waited) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            rig.gce.release_operations();
        },
        rig.call(Verb::POST, &path, &Value::Null)
    );
    assert_eq!((released, &waited.1["status"]), ((), &json!("DONE")));
    assert_eq!(rig.get("operations/operation-1").await.0, 404);
}

#[tokio::test]
async fn deletions_respect_protection_and_end_creations() {
    let rig = Rig::new().await;
    rig.gce.put_instance(&instance("m-1", &json!({"deletionProtection": true})));
    let (status, refused) = rig.delete("instances/m-1").await;
    assert_eq!((status, reason(&refused)), (400, "invalidResourceUsage"));
    let lift = "instances/m-1/setDeletionProtection?deletionProtection=false";
    assert_eq!(rig.call(Verb::POST, lift, &Value::Null).await.1["operationType"], "setDeletionProtection");
    rig.gce.hold_operations();
    rig.gce.release_operations();
    assert_eq!(rig.delete("instances/m-1").await.0, 200);

    rig.gce.hold_operations();
    let (_, creation) = rig.insert_as("m-2", "", &json!({})).await;
    assert_eq!(rig.delete("instances/m-2").await.0, 200);
    let (status, refused) = rig.delete("instances/m-2").await;
    assert_eq!((status, reason(&refused)), (400, "resourceNotReady"));
    rig.gce.set_timing(Timing { operation: Duration::from_secs(600), ..Timing::default() });
    rig.gce.release_operations();
    assert_eq!(rig.gce.instances().len(), 0);
    let (_, ended) = rig.get(&format!("operations/{}", creation["name"].as_str().unwrap())).await;
    assert_eq!(ended["status"], "DONE");
    rig.insert_as("m-3", "", &json!({})).await;
    rig.gce.set_timing(Timing { operation: Duration::ZERO, ..Timing::default() });
    rig.delete("instances/m-3").await;
    assert_eq!(rig.gce.operations().last().unwrap()["status"], "DONE");
    let creation = rig.gce.operations().into_iter().rev().nth(1).unwrap();
    assert_eq!((&creation["status"], &creation["httpErrorStatusCode"]), (&json!("DONE"), &json!(409)), "{creation}");
}

#[tokio::test]
async fn refusals_and_failures_wait_for_their_method() {
    let rig = Rig::new().await;
    rig.gce.refuse(Method::InsertInstance, Refusal::quota_exceeded(), 2);
    rig.gce.refuse(Method::ListInstances, Refusal::rate_limited(), 1);
    rig.gce.fail(Method::DeleteInstance, &[OperationError::internal(), OperationError::quota_exceeded()], 1);
    for _ in 0..2 {
        let (status, refused) = rig.insert(&json!({})).await;
        assert_eq!((status, reason(&refused)), (403, "quotaExceeded"));
    }
    assert_eq!(rig.insert(&json!({})).await.0, 200);
    assert_eq!(reason(&rig.get("instances").await.1), "rateLimitExceeded");
    let (_, operation) = rig.delete("instances/m-1").await;
    let (_, ended) = rig.get(&format!("operations/{}", operation["name"].as_str().unwrap())).await;
    assert_eq!(ended["error"]["errors"][1]["code"], "QUOTA_EXCEEDED");
    assert_eq!(rig.get("instances/m-1").await.1["status"], "RUNNING", "the deletion has failed");
    assert_eq!(rig.gce.count(Method::InsertInstance), 3);
    assert_eq!((Refusal::unavailable().status(), Refusal::forbidden().status()), (503, 403));
}

#[rstest]
#[case::other_key(|gce: &FakeGce| jwt(&gce.second_service_account(), &json!({})), 200)]
#[case::scope(|gce: &FakeGce| jwt(&gce.service_account(), &json!({"aud": null, "scope": COMPUTE})), 200)]
#[case::read_only(|gce: &FakeGce| jwt(&gce.service_account(), &json!({"aud": null, "scope": READ_ONLY})), 403)]
#[case::wrong_signature(|gce: &FakeGce| jwt(&gce.service_account_with_unknown_key(), &json!({})), 401)]
#[case::another_service(|gce: &FakeGce| jwt(&gce.service_account(), &json!({"aud": "https://storage.googleapis.com/"})), 401)]
#[case::another_issuer(|gce: &FakeGce| jwt(&gce.service_account(), &json!({"iss": "x@y"})), 401)]
#[case::expired(|gce: &FakeGce| jwt(&gce.service_account(), &json!({"iat": 1_700_000_000, "exp": 1_700_003_600})), 401)]
#[case::too_long(|gce: &FakeGce| jwt(&gce.service_account(), &json!({"exp": jiff::Timestamp::now().as_second() + 7200})), 401)]
#[case::no_token(|_: &FakeGce| String::new(), 401)]
#[tokio::test]
async fn callers_are_checked(#[case] token: fn(&FakeGce) -> String, #[case] wanted: u16) {
    let mut rig = Rig::new().await;
    rig.token = token(&rig.gce);
    let (status, answer) = rig.insert(&json!({})).await;
    assert_eq!(status, wanted, "{answer}");
    if wanted == 401 {
        assert_eq!((reason(&answer), rig.gce.requests()[0].caller.as_str()), ("authError", ""));
    }
}

#[tokio::test]
async fn access_tokens_come_from_the_token_endpoints() {
    let mut rig = Rig::new().await;
    let grant = ("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer");
    let claims = json!({"aud": "https://oauth2.googleapis.com/token", "scope": COMPUTE});
    let wrong = jwt(&rig.gce.service_account_with_unknown_key(), &claims);
    let (status, refused) = rig.form("/token", &[grant, ("assertion", &wrong)]).await;
    assert_eq!((status, &refused["error"]), (400, &json!("invalid_grant")));
    assert_eq!(rig.form("/token", &[("grant_type", "password")]).await.0, 400);
    let assertion = jwt(&rig.gce.service_account(), &claims);
    let (_, answer) = rig.form("/token", &[grant, ("assertion", &assertion)]).await;
    rig.token = answer["access_token"].as_str().unwrap().to_owned();
    assert_eq!(rig.get("instances").await.0, 200);
    assert_eq!(rig.gce.requests().last().unwrap().by, "oauth");
    rig.gce.revoke_tokens();
    assert_eq!(rig.get("instances").await.0, 401);

    let exchange = |subject: &'static str| {
        [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("audience", AUDIENCE),
            ("scope", "https://www.googleapis.com/auth/cloud-platform"),
            ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("subject_token_type", "urn:ietf:params:oauth:token-type:jwt"),
            ("subject_token", subject),
        ]
    };
    assert_eq!(rig.form("/v1/token", &exchange("stolen")).await.1["error"], "invalid_grant");
    assert_eq!(rig.form("/v1/token", &exchange(SUBJECT_TOKEN)[1..]).await.1["error"], "invalid_request");
    let (_, answer) = rig.form("/v1/token", &exchange(SUBJECT_TOKEN)).await;
    rig.token = answer["access_token"].as_str().unwrap().to_owned();
    assert_eq!(rig.get("instances").await.0, 200);
    let path = format!("/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken");
    let body = json!({"scope": [COMPUTE], "lifetime": "3600s"}).to_string();
    let (_, answer) = rig.send(Verb::POST, &path, "application/json", body.clone()).await;
    rig.token = answer["accessToken"].as_str().unwrap().to_owned();
    assert_eq!(rig.get("instances").await.0, 200);
    assert_eq!(rig.gce.requests().last().unwrap().caller, ACCOUNT);
    let other = path.replace("machines@", "others@");
    assert_eq!(rig.send(Verb::POST, &other, "application/json", body).await.0, 403);
}

#[rstest]
#[case::machine_type(&format!("zones/{ZONE}/machineTypes/{OTHER_MACHINE_TYPE}"), &format!("zones/{OTHER_ZONE}/machineTypes/{OTHER_MACHINE_TYPE}"))]
#[case::disk_type(&format!("zones/{ZONE}/diskTypes/pd-ssd"), &format!("zones/{ZONE}/diskTypes/x"))]
#[case::accelerator(&format!("zones/{ZONE}/acceleratorTypes/{GPU}"), &format!("zones/{ZONE}/acceleratorTypes/x"))]
#[case::image("global/images/gardenlinux-1592", "global/images/x")]
#[case::family("global/images/family/gardenlinux", "global/images/family/x")]
#[case::network("global/networks/shoot", "global/networks/x")]
#[case::subnetwork(&format!("regions/{REGION}/subnetworks/{DUAL_SUBNETWORK}"), &format!("regions/{REGION}/subnetworks/x"))]
#[case::zone(&format!("zones/{OTHER_ZONE}"), "zones/mars-a")]
#[case::region(&format!("regions/{REGION}"), "regions/mars")]
#[tokio::test]
async fn the_resources_of_the_project_are_readable(#[case] found: &str, #[case] absent: &str) {
    let rig = Rig::new().await;
    let get = async |path: String| rig.send(Verb::GET, &path, "application/json", String::new()).await;
    let project = format!("/compute/v1/projects/{PROJECT}");
    for path in [project.clone(), format!("{project}/{found}")] {
        let (status, answer) = get(path).await;
        assert_eq!(status, 200, "{answer}");
    }
    let (status, answer) = get(format!("{project}/{absent}")).await;
    assert_eq!((status, reason(&answer)), (404, "notFound"));
    let (status, answer) = get(format!("/compute/v1/projects/another/{found}")).await;
    assert_eq!((status, reason(&answer)), (403, "forbidden"));
    let mars = format!("{project}/zones/mars-a/instances");
    assert!(message(&get(mars).await.1).contains("Unknown zone."));
}
