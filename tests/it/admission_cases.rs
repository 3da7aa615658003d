//! Checks the cases of `tests/fixtures/admission-cases.yaml` on a real API server: with the definitions alone, with the optional policies, and with
//! the webhooks of a running manager. Also checks that defaults do not disturb clients that apply the same manifest again and again.
//!
//! A case stores nothing: all its requests are dry runs. The objects that a case starts from are stored before the rules are installed, with
//! definitions that check almost nothing.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http_body_util::BodyExt;
use kube::{Client, client::Body};
use machine_api::crd::{CrdOptions, OldestServer};
use machine_controller_manager::cli::{documents::parse_documents, manifests::crds::crds_yaml};
use serde_json::{Value, json};

use crate::support::{
    Backend, Namespace, Rig,
    manager::{ManagerOptions, TestManager, mcm},
    wait_until,
};

#[path = "../support/admission_cases.rs"]
mod table;

use table::{Case, fits, fits_warning, holds, mismatch};

/// A cloud that impersonates no provider, so that classes of AWS are checked by their own rules.
const PLAIN_CLOUD: &str = "seed: 1\nimpersonate: []\n";
const FINALIZER: &str = "machine.sapcloud.io/machine-controller-manager";

/// The answer of the API server.
#[derive(Debug)]
struct Response {
    code: u16,
    /// The causes as `field: message`, or else the message.
    denials: Vec<String>,
    warnings: Vec<String>,
    body: Value,
}

/// Sends requests to the API server as the given user.
struct ApiClient {
    client: Client,
}

impl ApiClient {
    async fn send(&self, method: &str, path: &str, user: &str, body: Option<&Value>) -> Response {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", "application/json")
            .header("Impersonate-User", user)
            .header("Impersonate-Group", "system:masters")
            .body(Body::from(body.map(|body| body.to_string().into_bytes()).unwrap_or_default()))
            .expect("a request");
        let response = self.client.send(request).await.expect("the API server answers");
        let code = response.status().as_u16();
        let warnings = response.headers().get_all("warning").iter().filter_map(|value| warning_text(value.as_bytes()));
        let warnings = warnings.collect();
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let causes = body["details"]["causes"].as_array().into_iter().flatten();
        let mut denials: Vec<_> =
            causes.map(|cause| format!("{}: {}", text(&cause["field"]), text(&cause["message"]))).collect();
        if code >= 400 && denials.is_empty() {
            denials.push(text(&body["message"]));
        }
        if code < 400 {
            denials.clear();
        }
        Response { code, denials, warnings, body }
    }

    /// The request of a case, as a dry run.
    async fn ask(&self, case: &Case) -> Response {
        let object = case.new.as_ref().or(case.old.as_ref()).expect("a case has an object");
        let (collection, item) = (collection(object), item(object));
        match (&case.old, &case.new) {
            (None, Some(new)) => self.send("POST", &format!("{collection}?dryRun=All"), &case.user, Some(new)).await,
            (Some(_), None) => self.send("DELETE", &format!("{item}?dryRun=All"), &case.user, None).await,
            (_, Some(new)) => {
                let stored = self.send("GET", &item, "admin", None).await;
                assert_eq!(stored.code, 200, "{}: {stored:?}", case.id);
                let mut new = new.clone();
                for field in ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"] {
                    if let Some(value) = stored.body["metadata"].get(field) {
                        new["metadata"][field] = value.clone();
                    }
                }
                self.send("PUT", &format!("{item}?dryRun=All"), &case.user, Some(&new)).await
            }
            (None, None) => unreachable!("a case has an object"),
        }
    }

    /// Stores an object. An object with a deletion timestamp is deleted afterwards; its finalizer keeps it.
    async fn store(&self, object: &Value) {
        let mut object = object.clone();
        let is_terminating =
            object["metadata"].as_object_mut().expect("metadata").remove("deletionTimestamp").is_some();
        let made = self.send("POST", &collection(&object), "admin", Some(&object)).await;
        assert_eq!(made.code, 201, "{object}: {made:?}");
        if is_terminating {
            assert_eq!(self.send("DELETE", &item(&object), "admin", None).await.code, 200);
        }
    }
}

/// The text of a `Warning` header: `299 - "text"`.
fn warning_text(value: &[u8]) -> Option<String> {
    let value = String::from_utf8_lossy(value);
    let (_, quoted) = value.split_once(" - \"").or_else(|| value.split_once(" \""))?;
    let quoted = quoted.strip_suffix('"').unwrap_or(quoted);
    let mut text = String::new();
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        text.extend(if character == '\\' { characters.next() } else { Some(character) });
    }
    Some(text)
}

fn collection(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).expect("identity").to_owned();
    let (kind, namespace) = (text("/kind"), text("/metadata/namespace"));
    if kind == "Secret" {
        return format!("/api/v1/namespaces/{namespace}/secrets");
    }
    let plural = if kind == "MachineClass" { "machineclasses".to_owned() } else { format!("{}s", kind.to_lowercase()) };
    format!("/apis/machine.sapcloud.io/v1alpha1/namespaces/{namespace}/{plural}")
}

fn item(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    format!("{}/{name}", collection(object))
}

/// The control plane of a test, the namespace that the manager watches, and a namespace that it does not watch.
struct Stage {
    rig: Arc<Rig>,
    asker: ApiClient,
    watched: Namespace,
    cases: Vec<Case>,
}

impl Stage {
    async fn set(rig: Arc<Rig>) -> Self {
        let (watched, elsewhere) = (rig.namespace("watched").await, rig.namespace("elsewhere").await);
        let text = include_str!("../fixtures/admission-cases.yaml");
        let parsed = parse_documents("cases", text).expect("YAML").remove(0).value;
        let in_place = |case: &Case, namespace: &Namespace| case.others.is_some() == (namespace.name == watched.name);
        let mut cases = Vec::new();
        for namespace in [&elsewhere, &watched] {
            let all = table::cases(&parsed, &namespace.name);
            cases.extend(all.into_iter().filter(|case| in_place(case, namespace)));
        }
        let asker = ApiClient { client: rig.client().await };
        Self { rig, asker, watched, cases }
    }

    /// Stores the objects that the cases start from while no rule is installed, and then installs the definitions with their rules.
    async fn store_and_define(&self) {
        let loose = crds_yaml(&CrdOptions { servers: OldestServer::NotRatcheting, ..CrdOptions::default() });
        self.rig.apply(&loose).await.succeed();
        for kind in ["machines", "machinesets", "machinedeployments", "machineclasses"] {
            wait_until(&format!("{kind} to be served"), Duration::from_secs(60), || async {
                let answer = self.rig.kubectl(&["get", kind, "--all-namespaces"]).await;
                if answer.succeeded() { Ok(()) } else { Err(answer.stderr) }
            })
            .await;
        }
        self.asker.store(&table::base("MachineClass", "c1", &self.watched.name)).await;
        for case in &self.cases {
            for object in case.old.iter().chain(case.others.iter().flatten()) {
                self.asker.store(object).await;
            }
        }
        self.rig.apply(&crds_yaml(&CrdOptions::default())).await.succeed();
        for id in ["V11", "V85", "V88", "V120"] {
            self.until(id, "the definitions to be in force", |said| said.code == 422).await;
        }
    }

    /// Creates an object as a dry run.
    async fn create(&self, object: &Value) -> Response {
        self.asker.send("POST", &format!("{}?dryRun=All", collection(object)), "alice", Some(object)).await
    }

    fn case(&self, id: &str) -> &Case {
        self.cases.iter().find(|case| case.id == id).expect("a case of this id")
    }

    async fn until(&self, id: &str, what: &str, reached: impl Fn(&Response) -> bool) {
        wait_until(what, Duration::from_secs(60), || async {
            let said = self.asker.ask(self.case(id)).await;
            if reached(&said) { Ok(()) } else { Err(format!("{said:?}")) }
        })
        .await;
    }

    /// Sends the chosen cases and collects the differences between the answers and the expectations.
    async fn ask_all(&self, chosen: impl Fn(&Case) -> bool, judge: impl Fn(&Case, &Response) -> Vec<String>) {
        let mut wrong = Vec::new();
        let mut asked = 0;
        for case in self.cases.iter().filter(|case| chosen(case)) {
            let said = self.asker.ask(case).await;
            asked += 1;
            wrong.extend(judge(case, &said).into_iter().map(|complaint| format!("{}: {complaint}", case.id)));
        }
        assert!(asked > 0, "no case was asked");
        assert!(wrong.is_empty(), "{} of {asked} cases differ:\n{}", wrong.len(), wrong.join("\n"));
    }

    /// A manager that watches and serves but never acts, because another holder has its leases.
    async fn standby(&self, flags: &[&str]) -> TestManager {
        for name in ["machine-controller-manager", "machine-controller"] {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": self.watched.name},
                "spec": {"holderIdentity": "somebody-else", "leaseDurationSeconds": 3600, "renewTime": "2100-01-01T00:00:00.000000Z", "acquireTime": "2020-01-01T00:00:00.000000Z", "leaseTransitions": 1},
            });
            self.rig.apply(&lease.to_string()).await.succeed();
        }
        let standby = [
            "--leader-elect=true",
            "--leader-elect-lease-duration=1h",
            "--leader-elect-renew-deadline=30m",
            "--controller-users=ctl",
        ];
        let flags = standby.iter().chain(flags).map(|flag| (*flag).to_owned()).collect();
        let options = ManagerOptions { simulation: PLAIN_CLOUD.to_owned(), flags, ..ManagerOptions::default() };
        let manager = TestManager::start(&self.rig, &self.watched, &options).await;
        manager.register_webhooks(&self.rig, &self.watched).await;
        manager
    }
}

/// The differences of an answer to the expected refusal by the API server alone.
fn refused_by_the_api_server(case: &Case, said: &Response) -> Vec<String> {
    let expected = case.live.iter().flatten();
    let missing: Vec<_> =
        expected.filter(|expected| !said.denials.iter().any(|denial| fits(expected, denial))).cloned().collect();
    if said.code == 422 && missing.is_empty() {
        return Vec::new();
    }
    vec![format!("{} {:?}\n  lacks: {missing:?}", said.code, said.denials)]
}

fn passes(said: &Response) -> Vec<String> {
    if said.code < 400 { Vec::new() } else { vec![format!("is refused: {:?}", said.denials)] }
}

/// The differences of an answer to the expected verdict of the webhooks.
fn judged(case: &Case, said: &Response) -> Vec<String> {
    if case.live.is_some() {
        return refused_by_the_api_server(case, said);
    }
    let mut wrong: Vec<_> = [
        mismatch("denials", &case.deny, &said.denials, fits),
        mismatch("warnings", &case.warn, &said.warnings, fits_warning),
    ]
    .into_iter()
    .flatten()
    .collect();
    if let Some(wanted) = case.becomes.as_ref().filter(|wanted| said.code < 400 && !holds(&said.body, wanted)) {
        wrong.push(format!("becomes {}\n  expected: {wanted}", said.body));
    }
    wrong
}

/// Checks the cases with the policies. A field that a webhook would default counts as missing, because no webhook is registered.
async fn with_policies(stage: &Stage) {
    stage.rig.apply(&mcm(&["manifests", "policies", "--controller-users=ctl"])).await.succeed();
    stage.until("V57", "the policies to be in force", |said| said.code == 422).await;
    stage.until("V46", "the policies to be in force", |said| said.code == 422).await;
    stage
        .ask_all(
            |case| case.becomes.is_none(),
            |case, said| match (case.live.is_some(), case.policy) {
                (true, _) => refused_by_the_api_server(case, said),
                (false, false) => passes(said),
                (false, true) if said.code == 422 => Vec::new(),
                (false, true) => vec![format!("passes the policies: {}", said.code)],
            },
        )
        .await;
    status_writes_get_a_warning(stage).await;
    for (object, rule) in [(&heavy_machine(stage), "MCH-13"), (&class_without_a_secret_namespace(stage), "CLS-8")] {
        let said = stage.create(object).await;
        assert_eq!(said.code, 422, "{rule}: {said:?}");
        assert!(said.denials[0].ends_with(&format!("({rule})")), "{said:?}");
    }
    stage
        .rig
        .kubectl(&["delete", "validatingadmissionpolicybindings,validatingadmissionpolicies", "--all"])
        .await
        .succeed();
    stage.until("V57", "the policies to be gone", |said| said.code < 400).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_case_with_definitions_policies_and_webhooks() {
    let name = "admission_cases::every_case_with_definitions_policies_and_webhooks";
    let Some(rig) = Rig::without_garbage_collection(name).await else { return };
    let stage = Stage::set(rig).await;
    stage.store_and_define().await;

    // With the definitions alone: the schema and CEL refuse their cases, and everything else passes.
    stage
        .ask_all(
            |_| true,
            |case, said| if case.live.is_some() { refused_by_the_api_server(case, said) } else { passes(said) },
        )
        .await;

    // The development server has no admission policies.
    if stage.rig.backend() == Backend::Real {
        with_policies(&stage).await;
    }

    // With the webhooks.
    let mut manager = stage.standby(&[]).await;
    stage.until("V8", "the caches to be complete", |said| !said.warnings.is_empty()).await;
    stage.ask_all(|case| case.profile == "compat", judged).await;
    v111_and_v136_are_left_to_the_api_server(&stage).await;
    m04_and_m06_null_lists_and_complete_objects(&stage).await;
    let said = stage.create(&heavy_machine(&stage)).await;
    let text = "spec.nodeTemplate.metadata.annotations: Too long: may not be more than 262144 bytes";
    assert_eq!((said.code, said.denials), (422, vec![text.to_owned()]));
    let said = stage.create(&class_without_a_secret_namespace(&stage)).await;
    assert_eq!((said.code, &said.body["secretRef"]["namespace"]), (201, &json!(stage.watched.name)), "M19, CLS-8");
    no_object_content_is_logged(&manager.log());
    metrics_contain_rules_and_no_object_content(&manager.http_get("/metrics").await);
    assert_eq!(manager.terminate(), 0);

    // A manager without controllers checks other objects in the same way, with the strict profile.
    let mut manager = stage.standby(&["--admission-profile=strict", "--controllers=none"]).await;
    stage.until("V8", "the caches to be complete", |said| !said.warnings.is_empty()).await;
    stage.ask_all(|case| case.profile == "strict", judged).await;
    stage.ask_all(|case| case.id == "V44" || case.id == "V132", judged).await;
    assert_eq!(manager.terminate(), 0);

    // Without caches.
    let _manager =
        stage.standby(&["--controllers=none", "--standby-caches=false", "--extension-apiserver=false"]).await;
    let mut cold = table::base("Machine", "v9", &stage.watched.name);
    cold["spec"]["class"]["name"] = json!("nope");
    let said = stage.create(&cold).await;
    assert_eq!((said.code, said.warnings), (201, Vec::new()), "V9: a cold cache changes no answer");
}

/// A machine whose node would get more annotations than Kubernetes allows for an object.
fn heavy_machine(stage: &Stage) -> Value {
    let mut machine = table::base("Machine", "heavy", &stage.watched.name);
    // Each value has the longest length that the schema allows; together they are longer than Kubernetes accepts.
    let annotations: serde_json::Map<_, _> =
        ["a", "b", "c", "d"].into_iter().map(|key| (key.to_owned(), json!("x".repeat(65_536)))).collect();
    machine["spec"]["nodeTemplate"] = json!({"metadata": {"annotations": annotations}});
    machine
}

/// A class that does not name the namespace of its Secret.
fn class_without_a_secret_namespace(stage: &Stage) -> Value {
    let mut class = table::base("MachineClass", "nameless-place", &stage.watched.name);
    class["secretRef"] = json!({"name": "s"});
    class
}

async fn m04_and_m06_null_lists_and_complete_objects(stage: &Stage) {
    let mut machine = table::base("Machine", "m4", &stage.watched.name);
    machine["metadata"]["finalizers"] = Value::Null;
    let said = stage.create(&machine).await;
    assert_eq!((said.code, &said.body["metadata"]["finalizers"]), (201, &json!([FINALIZER])), "M4");

    machine["metadata"]["name"] = json!("m6");
    let made = stage.asker.send("POST", &collection(&machine), "alice", Some(&machine)).await;
    assert_eq!(made.code, 201, "{made:?}");
    let again = stage.asker.send("PUT", &item(&machine), "alice", Some(&made.body)).await;
    assert_eq!((again.code, &again.body), (200, &made.body), "M6: a complete object is not written again");
}

/// Checks the log of a manager with verbosity 4 after hundreds of requests.
fn no_object_content_is_logged(log: &str) {
    for content in ["yesterday", "i-43", "kubernetes.io/cluster/c", "ami-1"] {
        assert!(!log.contains(content), "the log contains {content} of an object:\n{log}");
    }
}

/// P-3: a status write by another user gets a warning and is not refused.
async fn status_writes_get_a_warning(stage: &Stage) {
    let mut machine = stage.case("V45").old.clone().expect("a stored machine");
    let stored = stage.asker.send("GET", &item(&machine), "admin", None).await.body;
    machine["metadata"] = stored["metadata"].clone();
    machine["status"] = json!({"currentStatus": {"phase": "Running"}});
    let path = format!("{}/status?dryRun=All", item(&machine));
    let said = stage.asker.send("PUT", &path, "alice", Some(&machine)).await;
    assert_eq!(said.code, 200, "{said:?}");
    assert!(said.warnings.iter().any(|warning| warning.contains("STS-1")), "{:?}", said.warnings);
    let said = stage.asker.send("PUT", &path, "ctl", Some(&machine)).await;
    assert_eq!((said.code, said.warnings), (200, Vec::new()));
}

/// The API server checks the scale subresource itself. A status write is never refused.
async fn v111_and_v136_are_left_to_the_api_server(stage: &Stage) {
    let deployment = stage.case("V66a").old.clone().expect("a stored deployment");
    let path = format!("{}/scale", item(&deployment));
    let mut scale = stage.asker.send("GET", &path, "admin", None).await.body;
    scale["spec"]["replicas"] = json!(-1);
    let said = stage.asker.send("PUT", &format!("{path}?dryRun=All"), "alice", Some(&scale)).await;
    assert_eq!(said.code, 422, "V111: {said:?}");

    let mut machine = stage.case("V45").old.clone().expect("a stored machine");
    machine["metadata"] = stage.asker.send("GET", &item(&machine), "admin", None).await.body["metadata"].clone();
    machine["status"] = json!({"currentStatus": {"phase": "Foo"}});
    let path = format!("{}/status?dryRun=All", item(&machine));
    let said = stage.asker.send("PUT", &path, "ctl", Some(&machine)).await;
    assert_eq!((said.code, said.warnings), (200, Vec::new()), "V136");
}

fn metrics_contain_rules_and_no_object_content(metrics: &str) {
    let line = |start: &str, parts: &[&str]| {
        let found = metrics.lines().any(|line| line.starts_with(start) && parts.iter().all(|part| line.contains(part)));
        assert!(found, "no {start} with {parts:?}");
    };
    line(
        "mcm_admission_rule_total{",
        &["kind=\"Machine\"", "level=\"deny\"", "operation=\"CREATE\"", "rule=\"META-1\""],
    );
    line(
        "mcm_admission_rule_total{",
        &["kind=\"MachineClass\"", "level=\"warn\"", "operation=\"UPDATE\"", "rule=\"CLS-17\""],
    );
    line("mcm_admission_requests_total{", &["allowed=\"false\"", "kind=\"MachineDeployment\""]);
    // The metric `mcm_machine_info` contains provider ids, as in the original.
    for ours in metrics.lines().filter(|line| line.starts_with("mcm_admission_")) {
        for content in ["KernelDeadlock", "yesterday", "i-43"] {
            assert!(!ours.contains(content), "the metrics contain {content} of an object: {ours}");
        }
    }
}

/// §7.1: an apply that repeats the same manifest, in any way, changes nothing and takes over no field.
#[tokio::test(flavor = "multi_thread")]
async fn defaults_do_not_disturb_repeated_applies() {
    let Some(rig) = Rig::own("admission_cases::defaults_do_not_disturb_repeated_applies").await else { return };
    rig.install_crds().await;
    let stage = Stage::set(rig).await;
    let manager = stage.standby(&[]).await;
    let namespace = &stage.watched;
    let deployment = |name: &str| {
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment",
            "metadata": {"name": name, "namespace": namespace.name},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"d": name}},
                "template": {"metadata": {"labels": {"d": name}}, "spec": {"class": {"name": "c1"}}}},
        })
    };
    let machine = |name: &str| {
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": name, "namespace": namespace.name}, "spec": {"class": {"name": "c1"}},
        })
    };
    let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    for (resource, object) in [("machinedeployment", deployment("gitops")), ("machine", machine("gitops"))] {
        // Server-side apply with force, repeated, as a GitOps controller does.
        let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=gitops", "-f"];
        let file = stage.rig.folder.join(format!("{resource}.json"));
        std::fs::write(&file, object.to_string()).expect("writable");
        let file = file.display().to_string();
        let arguments: Vec<&str> = apply.iter().copied().chain([file.as_str()]).collect();
        namespace.kubectl(&arguments).await.succeed();
        let first = namespace.get(resource, "gitops").await;
        assert_eq!(first["metadata"]["finalizers"], json!([FINALIZER]), "{resource}");
        for _ in 0..3 {
            namespace.kubectl(&arguments).await.succeed();
        }
        assert_eq!(version(&namespace.get(resource, "gitops").await), version(&first), "{resource} is written again");
        let owned = owned_by(
            &namespace.kubectl(&["get", resource, "gitops", "-o", "json", "--show-managed-fields"]).await.json(),
            "gitops",
        );
        assert!(
            !owned.contains("f:strategy") && !owned.contains("machinepriority"),
            "{resource}: defaults are owned: {owned}"
        );
        // `kubectl diff` shows no difference either.
        namespace
            .kubectl(&["diff", "--server-side", "--field-manager=gitops", "--force-conflicts", "-f", &file])
            .await
            .succeed();
    }
    // Client-side apply, as a person does.
    for object in [deployment("person"), machine("person")] {
        namespace.apply(&object.to_string()).await.succeed();
        let again = namespace.apply(&object.to_string()).await.succeed();
        assert!(again.contains("unchanged"), "{again}");
    }
    // The autoscaler keeps its field when the owner applies a manifest that does not contain the field.
    let mut without_replicas = deployment("scaled");
    without_replicas["spec"].as_object_mut().expect("a spec").remove("replicas");
    stage.rig.apply(&without_replicas.to_string()).await.succeed();
    assert_eq!(namespace.get("machinedeployment", "scaled").await["spec"]["replicas"], 0);
    namespace.kubectl(&["scale", "machinedeployment", "scaled", "--replicas=4"]).await.succeed();
    stage.rig.apply(&without_replicas.to_string()).await.succeed();
    assert_eq!(namespace.get("machinedeployment", "scaled").await["spec"]["replicas"], 4);
    drop(manager);
}

/// The fields that a field manager owns, as text.
fn owned_by(object: &Value, manager: &str) -> String {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let owned: BTreeMap<String, String> = entries
        .filter(|entry| entry["manager"] == manager)
        .map(|entry| (entry["operation"].to_string(), entry["fieldsV1"].to_string()))
        .collect();
    format!("{owned:?}")
}
