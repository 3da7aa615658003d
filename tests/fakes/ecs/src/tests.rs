//! The fake as its clients see it, with the HTTP client of the drivers.

use std::sync::atomic::{AtomicUsize, Ordering};

use cloud_client::{Bytes, HttpOptions, HttpTransport, Transport};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use jiff::{SignedDuration, Timestamp};
use rstest::rstest;

use super::*;
use crate::signature::{Received, sign};

type Pairs<'a> = &'a [(&'a str, &'a str)];

/// How a request differs from a right one.
#[derive(Clone)]
struct Caller {
    key: &'static str,
    secret: &'static str,
    /// How far its clock is ahead.
    ahead: SignedDuration,
    /// The nonce. A new one without it.
    nonce: Option<&'static str>,
    version: &'static str,
    accepts: &'static str,
}

impl Default for Caller {
    fn default() -> Self {
        Self {
            key: ACCESS_KEY_ID,
            secret: ACCESS_KEY_SECRET,
            ahead: SignedDuration::ZERO,
            nonce: None,
            version: "2014-05-26",
            accepts: "application/json",
        }
    }
}

struct Rig {
    ecs: FakeEcs,
    client: HttpTransport,
    nonces: AtomicUsize,
}

impl Rig {
    async fn new() -> Self {
        Self::with(Timing::default()).await
    }

    async fn with(timing: Timing) -> Self {
        let ecs = FakeEcs::with(timing).await.unwrap();
        Self { ecs, client: HttpTransport::new(HttpOptions::default()), nonces: AtomicUsize::new(0) }
    }

    fn nonce(&self, caller: &Caller) -> String {
        let new = || format!("nonce-{}", self.nonces.fetch_add(1, Ordering::Relaxed));
        caller.nonce.map_or_else(new, str::to_owned)
    }

    async fn send(&self, path: &str, headers: HeaderMap, body: String) -> (u16, Value) {
        let mut request = Request::post(format!("{}{path}", self.ecs.url())).body(Bytes::from(body)).unwrap();
        *request.headers_mut() = headers;
        let answer = self.client.send(request).await.unwrap();
        let body = String::from_utf8(answer.body.to_vec()).unwrap();
        (answer.status.as_u16(), serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    /// Calls an action with ACS3-HMAC-SHA256. All parameters are in the URL.
    async fn call_as(&self, caller: &Caller, action: &str, parameters: Pairs<'_>) -> (u16, Value) {
        let time = (Timestamp::now() + caller.ahead).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let host = self.ecs.url().trim_start_matches("http://").to_owned();
        let names = "accept;host;x-acs-action;x-acs-content-sha256;x-acs-date;x-acs-signature-nonce;x-acs-version";
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let authorization = |signature: &str| {
            format!("ACS3-HMAC-SHA256 Credential={},SignedHeaders={names},Signature={signature}", caller.key)
        };
        let mut headers = HeaderMap::new();
        let mut set = |name: &'static str, value: String| {
            headers.insert(HeaderName::from_static(name), HeaderValue::try_from(value).unwrap());
        };
        set("accept", caller.accepts.to_owned());
        set("host", host);
        set("x-acs-action", action.to_owned());
        set("x-acs-content-sha256", empty.to_owned());
        set("x-acs-date", time);
        set("x-acs-signature-nonce", self.nonce(caller));
        set("x-acs-version", caller.version.to_owned());
        set("authorization", authorization("?"));
        let query = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let form = BTreeMap::new();
        let request = Received { method: "POST", path: "/", headers: &headers, query, form, body: b"" };
        let signature = sign(&request, caller.secret);
        headers.insert("authorization", HeaderValue::try_from(authorization(&signature)).unwrap());
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
        self.send(&format!("/?{query}"), headers, String::new()).await
    }

    /// Calls an action with signature 1.0. All parameters are in the body.
    async fn call_rpc(&self, caller: &Caller, action: &str, parameters: Pairs<'_>) -> (u16, Value) {
        let time = (Timestamp::now() + caller.ahead).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let common = [
            ("AccessKeyId", caller.key.to_owned()),
            ("Action", action.to_owned()),
            ("Format", if caller.accepts.is_empty() { "XML" } else { "JSON" }.to_owned()),
            ("Signature", "?".to_owned()),
            ("SignatureMethod", "HMAC-SHA1".to_owned()),
            ("SignatureNonce", self.nonce(caller)),
            ("SignatureVersion", "1.0".to_owned()),
            ("Timestamp", time),
            ("Version", caller.version.to_owned()),
        ];
        let own = parameters.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let mut form: BTreeMap<_, _> = own.chain(common).map(|(name, value)| (name.to_owned(), value)).collect();
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/x-www-form-urlencoded"));
        let query = BTreeMap::new();
        let request = Received { method: "POST", path: "/", headers: &headers, query, form: form.clone(), body: b"" };
        form.insert("Signature".to_owned(), sign(&request, caller.secret));
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        self.send("/", headers, body).await
    }

    async fn call(&self, action: &str, parameters: Pairs<'_>) -> (u16, Value) {
        self.call_as(&Caller::default(), action, parameters).await
    }

    async fn run(&self, change: Pairs<'_>) -> (u16, Value) {
        let parameters = instance(change);
        let parameters: Vec<_> = parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.call("RunInstances", &parameters).await
    }

    /// Creates an instance, and returns its id.
    async fn made(&self, change: Pairs<'_>) -> String {
        let (status, answer) = self.run(change).await;
        assert_eq!(status, 200, "{answer}");
        answer["InstanceIdSets"]["InstanceIdSet"][0].as_str().unwrap().to_owned()
    }

    async fn list(&self, filter: Pairs<'_>) -> (u16, Value) {
        let mut parameters = vec![("RegionId", REGION)];
        parameters.extend(filter);
        self.call("DescribeInstances", &parameters).await
    }

    /// The status of an instance, as lists show it.
    async fn status(&self, id: &str) -> Option<String> {
        let (_, list) = self.list(&[("InstanceIds", &json!([id]).to_string())]).await;
        list["Instances"]["Instance"][0]["Status"].as_str().map(str::to_owned)
    }

    async fn delete(&self, id: &str, force: &str) -> (u16, Value) {
        self.call("DeleteInstance", &[("InstanceId", id), ("Force", force)]).await
    }
}

/// The parameters of an instance that the account can have. `change` adds or replaces some; an empty value removes one.
fn instance(change: Pairs<'_>) -> BTreeMap<String, String> {
    let own = [
        ("RegionId", REGION),
        ("ImageId", IMAGE),
        ("InstanceType", INSTANCE_TYPE),
        ("SecurityGroupId", SECURITY_GROUP),
        ("VSwitchId", V_SWITCH),
        ("InstanceName", "m-1"),
        ("Tag.1.Key", "kubernetes.io/cluster/shoot"),
        ("Tag.1.Value", "1"),
        ("Tag.2.Key", "kubernetes.io/role/worker"),
        ("Tag.2.Value", "1"),
    ];
    let all = own.iter().chain(change).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let mut all: BTreeMap<_, _> = all.collect();
    all.retain(|_, value| !value.is_empty());
    all
}

fn code(answer: &Value) -> &str {
    answer["Code"].as_str().unwrap_or_default()
}

fn names(list: &Value) -> Vec<&str> {
    let all = list["Instances"]["Instance"].as_array().unwrap();
    all.iter().map(|one| one["InstanceName"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn an_instance_is_created_shown_and_deleted_with_its_disks() {
    let rig = Rig::new().await;
    let id = rig
        .made(&[
            ("SystemDisk.Size", "50"),
            ("DataDisk.1.Category", "cloud_essd"),
            ("DataDisk.1.DeleteWithInstance", "false"),
            ("DataDisk.2.Size", "30"),
            ("InternetMaxBandwidthOut", "5"),
            ("SpotStrategy", "SpotWithPriceLimit"),
            ("SpotPriceLimit", "0.5"),
            ("KeyPairName", KEY_PAIR),
            ("UserData", "IyEvYmluL3No"),
        ])
        .await;
    let (_, list) = rig.list(&[("InstanceName", "m-*")]).await;
    let found = &list["Instances"]["Instance"][0];
    assert_eq!((&found["Status"], &found["HostName"]), (&json!("Running"), &json!("iZgw8000000000000001Z")));
    assert_eq!((&found["ZoneId"], &found["SpotPriceLimit"]), (&json!(ZONE), &json!(0.5)));
    assert_eq!(found["VpcAttributes"]["PrivateIpAddress"]["IpAddress"], json!(["10.250.0.3"]));
    assert_eq!(found["PublicIpAddress"]["IpAddress"], json!(["203.0.113.2"]));
    let (_, disks) = rig.call("DescribeDisks", &[("RegionId", REGION), ("InstanceId", &id)]).await;
    let disks = disks["Disks"]["Disk"].as_array().unwrap().clone();
    let sizes: Vec<_> =
        disks.iter().map(|disk| (disk["Type"].as_str().unwrap(), disk["Size"].as_i64().unwrap())).collect();
    assert_eq!(sizes, [("system", 50), ("data", 20), ("data", 30)]);
    assert_eq!(disks[1]["Tags"], found["Tags"], "disks have the tags of their instance");
    let kept = disks[1]["DiskId"].as_str().unwrap();
    assert_eq!(code(&rig.call("DeleteDisk", &[("DiskId", kept)]).await.1), "IncorrectDiskStatus");

    assert_eq!(code(&rig.delete(&id, "false").await.1), "IncorrectInstanceStatus", "it runs");
    assert_eq!(rig.delete(&id, "True").await.0, 200);
    assert_eq!((rig.ecs.instances().len(), rig.ecs.disks().len()), (0, 1));
    assert_eq!((rig.delete(&id, "true").await.0, rig.status(&id).await), (404, None));
    assert_eq!(rig.ecs.disks()[0]["Status"], "Available");
    assert_eq!(rig.call("DeleteDisk", &[("DiskId", kept)]).await.0, 200);
    assert_eq!(code(&rig.call("DeleteDisk", &[("DiskId", kept)]).await.1), "InvalidDiskId.NotFound");
    assert_eq!((rig.ecs.disks().len(), rig.ecs.created()), (0, vec!["m-1".to_owned()]));
}

#[tokio::test]
async fn states_follow_each_other_and_some_forbid_a_deletion() {
    let long = Duration::from_secs(600);
    let rig = Rig::with(Timing { pending: long, ..Timing::default() }).await;
    let id = rig.made(&[]).await;
    assert_eq!(rig.status(&id).await.as_deref(), Some("Pending"));
    let (status, refused) = rig.delete(&id, "true").await;
    assert_eq!((status, code(&refused)), (403, "IncorrectInstanceStatus.Initializing"));

    rig.ecs.set_timing(Timing { starting: long, visible_after: long, ..Timing::default() });
    let late = rig.made(&[]).await;
    assert_eq!(rig.status(&late).await, None, "lists don't show it yet");
    assert_eq!(rig.ecs.instances()[1]["Status"], "Starting");
    assert_eq!(code(&rig.delete(&late, "true").await.1), "IncorrectInstanceStatus");

    rig.ecs.set_timing(Timing { stopping: long, ..Timing::default() });
    rig.ecs.hold_states();
    let id = rig.made(&[]).await;
    assert_eq!(rig.status(&id).await.as_deref(), Some("Pending"));
    rig.ecs.release_states();
    assert_eq!(rig.status(&id).await.as_deref(), Some("Running"));
    rig.ecs.stop_instance(&id);
    assert_eq!(rig.delete(&id, "false").await.0, 200, "it is stopped");
    assert_eq!(rig.status(&id).await.as_deref(), Some("Stopping"));
    assert_eq!(code(&rig.delete(&id, "true").await.1), "IncorrectInstanceStatus");

    let kept = rig.ecs.put_instance("m-2", &[("a", "b")], &[("DeletionProtection", "true")]);
    assert_eq!(code(&rig.delete(&kept, "true").await.1), "InvalidOperation.DeletionProtection");
    rig.ecs.change_instance(&kept, |instance| instance["DeletionProtection"] = json!(false));
    assert_eq!(rig.delete(&kept, "true").await.0, 200);
    rig.ecs.vanish(1);
    rig.ecs.set_timing(Timing::default());
    let id = rig.made(&[]).await;
    assert_eq!(rig.status(&id).await, None, "its capacity is gone");
    rig.ecs.remove_instance(&kept);
    assert_eq!((rig.ecs.instances().len(), rig.ecs.disks().len()), (3, 3));
}

#[tokio::test]
async fn a_client_token_belongs_to_one_request() {
    let rig = Rig::new().await;
    let token = [("ClientToken", "a-token")];
    let id = rig.made(&token).await;
    assert_eq!(rig.made(&token).await, id);
    let (status, refused) = rig.run(&[token[0], ("InstanceName", "m-2")]).await;
    assert_eq!((status, code(&refused)), (400, "IdempotentParameterMismatch"));
    rig.delete(&id, "true").await;
    assert_eq!(rig.made(&token).await, id, "the answer stays the same when the instance is gone");
    assert_eq!((rig.ecs.instances().len(), rig.ecs.created().len()), (0, 1));

    // Lack of capacity is the answer of its token. Other refusals are not.
    rig.ecs.refuse(Action::RunInstances, Refusal::no_stock(), 1);
    for _ in 0..2 {
        assert_eq!(code(&rig.run(&[("ClientToken", "second")]).await.1), "OperationDenied.NoStock");
    }
    for refusal in [Refusal::throttled(), Refusal::unavailable(), Refusal::processing()] {
        rig.ecs.refuse(Action::RunInstances, refusal.clone(), 1);
        assert_eq!(code(&rig.run(&[("ClientToken", "third")]).await.1), refusal.code());
    }
    let (_, answer) = rig.run(&[("ClientToken", "third"), ("DryRun", "true")]).await;
    assert_eq!((code(&answer), rig.ecs.created().len()), ("DryRunOperation", 1));
    rig.made(&[("ClientToken", "third")]).await;
    assert_eq!(rig.ecs.count(Action::RunInstances), 11);
    assert_eq!(rig.run(&[("ClientToken", &"x".repeat(65))]).await.0, 400);
}

#[tokio::test]
async fn lists_have_filters_and_two_kinds_of_pages() {
    let rig = Rig::new().await;
    rig.ecs.set_page_limit(2);
    for number in 0..5 {
        let pool = if number % 2 == 0 { "even" } else { "odd" };
        rig.ecs.put_instance(&format!("m-{number}"), &[("pool", pool)], &[]);
    }
    let (mut token, mut seen) = (String::new(), Vec::new());
    loop {
        let (_, page) = rig.list(&[("MaxResults", "100"), ("NextToken", &token)]).await;
        assert!(names(&page).len() <= 2, "{page}");
        seen.extend(names(&page).into_iter().map(str::to_owned));
        page["NextToken"].as_str().unwrap().clone_into(&mut token);
        if token.is_empty() {
            break;
        }
        // An instance that goes between two pages moves no other one.
        let first = rig.ecs.instances()[0]["InstanceId"].as_str().unwrap().to_owned();
        rig.ecs.remove_instance(&first);
    }
    assert_eq!(seen, ["m-0", "m-1", "m-2", "m-3", "m-4"]);
    let (_, page) = rig.list(&[("PageNumber", "2"), ("PageSize", "2")]).await;
    assert_eq!((names(&page), &page["TotalCount"]), (vec!["m-4"], &json!(3)));

    rig.ecs.set_page_limit(100);
    let (_, all) = rig.list(&[]).await;
    let id = all["Instances"]["Instance"][0]["InstanceId"].as_str().unwrap().to_owned();
    let ids = json!([id, "i-absent"]).to_string();
    for (filter, wanted) in [
        (&[("Tag.1.Key", "pool"), ("Tag.1.Value", "even")][..], &["m-2", "m-4"][..]),
        (&[("Tag.1.Key", "pool")], &["m-2", "m-3", "m-4"]),
        (&[("Tag.1.Key", "pool"), ("Tag.1.Value", "even"), ("Tag.2.Key", "x")], &[]),
        (&[("InstanceIds", ids.as_str())], &["m-2"]),
        (&[("InstanceName", "m-3")], &["m-3"]),
        (&[("InstanceName", "*-3*")], &["m-3"]),
        (&[("InstanceName", "m")], &[]),
        (&[("Status", "Stopped")], &[]),
        (&[("ZoneId", ZONE), ("MaxResults", "1")], &["m-2", "m-3", "m-4"]),
    ] {
        let (status, list) = rig.list(filter).await;
        assert_eq!((status, names(&list)), (200, wanted.to_vec()), "{filter:?}");
    }
    for (filter, wanted) in [
        (("InstanceIds", "i-1"), "InvalidInstanceIds.Malformed"),
        (("NextToken", "-"), "InvalidNextToken"),
        (("PageSize", "101"), "InvalidParameter"),
        (("RegionId", "mars-1"), "InvalidRegionId.NotFound"),
    ] {
        assert_eq!(code(&rig.list(&[filter]).await.1), wanted);
    }
    assert_eq!(names(&rig.list(&[("RegionId", OTHER_REGION)]).await.1), [""; 0]);
}

#[rstest]
#[case::unknown("RunInstances", &[("Zone", "x")], "there is no parameter Zone")]
#[case::deep("RunInstances", &[("SystemDisk.Type", "x")], "there is no parameter SystemDisk.Type")]
#[case::number("RunInstances", &[("Tag.0.Key", "x")], "there is no parameter Tag.0.Key")]
#[case::integer("RunInstances", &[("Amount", "many")], "Amount: \"many\" is no integer")]
#[case::boolean("DeleteInstance", &[("InstanceId", "i"), ("Force", "yes")], "Force: \"yes\" is no boolean")]
#[case::required("DeleteInstance", &[("Force", "true")], "InstanceId is required")]
#[case::region("DeleteInstance", &[("InstanceId", "i"), ("RegionId", REGION)], "there is no parameter RegionId")]
#[case::filter("DescribeInstances", &[("RegionId", REGION), ("HpcClusterId", "x")], "the fake has no filter HpcClusterId")]
#[case::action("StartInstance", &[], "there is no such action")]
#[tokio::test]
async fn a_request_that_the_own_client_does_not_have_is_a_violation(
    #[case] action: &str,
    #[case] parameters: Pairs<'_>,
    #[case] words: &str,
) {
    let rig = Rig::new().await;
    let (status, refused) = rig.call(action, parameters).await;
    let message = refused["Message"].as_str().unwrap();
    assert_eq!((status, message.contains(words)), (400, true), "{refused}");
    assert_eq!(rig.ecs.take_violations(), [message]);
}

#[rstest]
#[case::version(Caller { version: "2015-04-01", ..Caller::default() }, "the version is 2014-05-26")]
#[case::xml(Caller { accepts: "", ..Caller::default() }, "the service answers in XML")]
#[tokio::test]
async fn the_common_parts_of_a_request_are_checked_too(#[case] caller: Caller, #[case] words: &str) {
    let rig = Rig::new().await;
    let region = [("RegionId", REGION)];
    for refused in [
        rig.call_as(&caller, "DescribeInstances", &region).await,
        rig.call_rpc(&caller, "DescribeInstances", &region).await,
    ] {
        assert!(refused.1["Message"].as_str().unwrap().contains(words), "{refused:?}");
    }
    assert_eq!(rig.ecs.take_violations().len(), 2);
}

#[tokio::test]
#[should_panic(expected = "own client does not have")]
async fn a_violation_fails_its_test() {
    Rig::new().await.call("RunInstances", &[]).await;
}

#[rstest]
#[case::right(Caller::default(), 200, "")]
#[case::other_key(Caller { key: SECOND_ACCESS_KEY_ID, secret: SECOND_ACCESS_KEY_SECRET, ..Caller::default() }, 200, "")]
#[case::wrong_secret(Caller { secret: SECOND_ACCESS_KEY_SECRET, ..Caller::default() }, 400, "SignatureDoesNotMatch")]
#[case::unknown_key(Caller { key: "LTAI-unknown", ..Caller::default() }, 404, "InvalidAccessKeyId.NotFound")]
#[case::late(Caller { ahead: SignedDuration::from_mins(-16), ..Caller::default() }, 400, "InvalidTimeStamp.Expired")]
#[case::early(Caller { ahead: SignedDuration::from_mins(16), ..Caller::default() }, 400, "InvalidTimeStamp.Expired")]
#[tokio::test]
async fn callers_are_checked(#[case] caller: Caller, #[case] status: u16, #[case] wanted: &str) {
    let rig = Rig::new().await;
    // Characters that the two ways of encoding write differently.
    let parameters = [("RegionId", REGION), ("InstanceName", "a b*~/+ü")];
    for scheme in [Scheme::Acs3, Scheme::Rpc] {
        let (found, answer) = match scheme {
            Scheme::Acs3 => rig.call_as(&caller, "DescribeInstances", &parameters).await,
            Scheme::Rpc => rig.call_rpc(&caller, "DescribeInstances", &parameters).await,
        };
        assert_eq!((found, code(&answer)), (status, wanted), "{scheme:?}: {answer}");
        let call = rig.ecs.requests().pop().unwrap();
        assert_eq!((call.scheme, call.caller.as_str()), (scheme, if status == 200 { caller.key } else { "" }));
        let repeats_the_request = answer["Message"].as_str().unwrap_or_default().contains("InstanceName");
        assert_eq!(repeats_the_request, wanted == "SignatureDoesNotMatch", "the service tells what it has signed");
    }
}

#[tokio::test]
async fn a_nonce_is_used_once() {
    let rig = Rig::new().await;
    let caller = Caller { nonce: Some("once"), version: "2015-04-01", ..Caller::default() };
    let (_, answer) = rig.call_as(&caller, "GetCallerIdentity", &[]).await;
    assert_eq!(answer["AccountId"], ACCOUNT_ID);
    let (status, refused) = rig.call_rpc(&caller, "GetCallerIdentity", &[]).await;
    assert_eq!((status, code(&refused)), (400, "SignatureNonceUsed"));
    assert_eq!(
        rig.send("/?Action=RunInstances", HeaderMap::new(), String::new()).await.1["Code"],
        "IncompleteSignature"
    );
}

#[tokio::test]
async fn refusals_wait_for_their_action() {
    let rig = Rig::new().await;
    rig.ecs.refuse(Action::RunInstances, Refusal::quota_exceeded(), 2);
    rig.ecs.refuse(Action::DescribeInstances, Refusal::page(404), 1);
    for _ in 0..2 {
        let (status, refused) = rig.run(&[]).await;
        assert_eq!((status, code(&refused)), (403, "QuotaExceed.AfterpayInstance"));
    }
    rig.made(&[]).await;
    let (status, page) = rig.list(&[]).await;
    assert_eq!((status, page.as_str().unwrap().starts_with("<html>")), (404, true));
    assert_eq!(rig.list(&[]).await.0, 200);
    assert_eq!((Refusal::internal().status(), Refusal::forbidden().status()), (500, 403));
}

#[rstest]
#[case::no_image(&[("ImageId", "")], "MissingParameter")]
#[case::image(&[("ImageId", "m-x")], "InvalidImageId.NotFound")]
#[case::no_type(&[("InstanceType", "ecs.x")], "InvalidInstanceType.ValueNotSupported")]
#[case::v_switch(&[("VSwitchId", "vsw-x")], "InvalidVSwitchId.NotFound")]
#[case::zone(&[("ZoneId", OTHER_ZONE)], "InvalidParameter.Mismatch")]
#[case::type_in_zone(&[("VSwitchId", OTHER_V_SWITCH), ("InstanceType", OTHER_INSTANCE_TYPE)], "InvalidResourceType.NotSupported")]
#[case::group(&[("SecurityGroupId", "sg-x")], "InvalidSecurityGroupId.NotFound")]
#[case::key_pair(&[("KeyPairName", "x")], "InvalidKeyPairName.NotFound")]
#[case::name(&[("InstanceName", "1-x")], "InvalidInstanceName.Malformed")]
#[case::user_data(&[("UserData", "#!/bin/sh")], "InvalidUserData.Base64FormatInvalid")]
#[case::tag(&[("Tag.1.Key", "acs:x")], "InvalidTagKey.Malformed")]
#[case::price_without_spot(&[("SpotPriceLimit", "1")], "InvalidSpotStrategy")]
#[case::prepaid_spot(&[("SpotStrategy", "SpotAsPriceGo"), ("InstanceChargeType", "PrePaid")], "InvalidSpotStrategy")]
#[case::strategy(&[("SpotStrategy", "Cheap")], "InvalidParameter")]
#[case::category(&[("SystemDisk.Category", "tape")], "InvalidSystemDiskCategory.ValueNotSupported")]
#[case::size(&[("SystemDisk.Size", "19")], "InvalidSystemDiskSize.ValueNotSupported")]
#[case::data_size(&[("DataDisk.1.Size", "0")], "InvalidDataDiskSize.ValueNotSupported")]
#[case::region(&[("RegionId", "mars")], "InvalidRegionId.NotFound")]
#[case::amount(&[("Amount", "0")], "InvalidAmount.ValueNotSupported")]
#[tokio::test]
async fn the_account_refuses_what_it_can_not_fulfil(#[case] change: Pairs<'_>, #[case] wanted: &str) {
    let rig = Rig::new().await;
    let (_, refused) = rig.run(change).await;
    assert_eq!((code(&refused), rig.ecs.created().len()), (wanted, 0), "{refused}");
}
