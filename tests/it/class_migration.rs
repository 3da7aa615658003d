//! `mcm migrate-classes`: a fleet whose objects name a class of an old kind keeps its machines and VMs, also when the migration is interrupted after
//! any of its writes and a manager runs in that state.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use kube_dev_server::DevServer;
use machine_api::crd::{CrdOptions, definitions};
use machine_controller_manager::{
    DriverSet,
    cli::{
        documents::parse_documents,
        migrate_classes::{
            Admission,
            cluster::Namespace as Place,
            convert::convert,
            plan::{USERS, places},
            table::OldKind,
        },
    },
    manager::{Endpoints, run_in},
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::{
    fleet,
    support::{
        Namespace, Rig, Rights,
        cluster_object::{has_finalizer, name, text},
        manager::{SWIFT_CLOUD, run},
        one_thread::{MACHINE_PATH, NAMESPACE, Stage, list, play, post, send, settings},
        scratch::{count_ran, subfolder},
    },
    uninstall::renew_lease,
};

const SAMPLES: &str = include_str!("../fixtures/old-classes.yaml");
const CLASS: &str = "test-aws";
const OLD: &str = "AWSMachineClass";
const MACHINES: usize = 20;
/// The new class, the deployment, its set, the machines, the release of the old class.
const WRITES: usize = 4 + MACHINES;
const FINALIZER: &str = "machine.sapcloud.io/machine-controller-manager";
/// The virtual time that a manager runs, in which a rollout would begin.
const WHILE: Duration = Duration::from_secs(60);

/// The class of the old kind, with the name [`CLASS`].
fn old_class(namespace: &str) -> Value {
    let all = parse_documents("old-classes.yaml", SAMPLES).expect("YAML");
    let mut class = all.into_iter().map(|it| it.value).find(|class| class["kind"] == OLD).expect("a class of AWS");
    class["metadata"] = json!({"name": CLASS, "namespace": namespace, "finalizers": [FINALIZER]});
    for field in ["secretRef", "credentialsSecretRef"] {
        class["spec"][field] = json!({"name": "fleet", "namespace": namespace});
    }
    class
}

/// A definition of the old kind that accepts every field of `spec`.
fn old_definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "awsmachineclasses.machine.sapcloud.io"},
        "spec": {
            "group": "machine.sapcloud.io", "scope": "Namespaced",
            "names": {"kind": OLD, "listKind": "AWSMachineClassList", "plural": "awsmachineclasses", "singular": "awsmachineclass"},
            "versions": [{"name": "v1alpha1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }}}],
        },
    })
}

/// Our definitions without their rules, which the Go original does not have. They accept references to old kinds.
fn early_definitions() -> Vec<Value> {
    let mut all = definitions(&CrdOptions::default());
    all.iter_mut().for_each(without_rules);
    all
}

fn without_rules(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("x-kubernetes-validations");
            fields.values_mut().for_each(without_rules);
        }
        Value::Array(elements) => elements.iter_mut().for_each(without_rules),
        _ => {}
    }
}

/// Secret, new class and deployment of a fleet.
fn fleet_of(namespace: &str, replicas: usize) -> Vec<Value> {
    let replicas = u32::try_from(replicas).expect("a small number");
    let mut all: Value = serde_json::from_str(&fleet::manifests(namespace, "pool", replicas, CLASS)).expect("JSON");
    all["items"][1] = convert(OldKind::Aws, &old_class(namespace)).class;
    all["items"].as_array().cloned().expect("a list")
}

/// A client whose process ends after a number of writes: the answer of the last one is lost, and nothing else is sent. The Leases don't
/// count.
fn interrupted_after(writes: usize, server: &Arc<DevServer>) -> (kube::Client, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let (count, server) = (Arc::clone(&sent), Arc::clone(server));
    let service = tower::service_fn(move |request: Request<Body>| {
        let is_write =
            *request.method() != Method::GET && !request.uri().path().starts_with("/apis/coordination.k8s.io/");
        let number = if is_write { count.fetch_add(1, Ordering::SeqCst) + 1 } else { 0 };
        let answer = (number <= writes).then(|| server.answer("migrator", request));
        async move {
            let answered = match answer {
                Some(answer) => Some(answer.await),
                None => None,
            };
            let received = answered.filter(|_| number == 0 || number < writes);
            Ok::<_, Infallible>(received.unwrap_or_else(|| {
                let lost = Response::builder().status(StatusCode::SERVICE_UNAVAILABLE);
                lost.body(axum::body::Body::empty()).expect("an answer")
            }))
        }
    });
    (kube::Client::new(service, NAMESPACE), sent)
}

/// Runs the migration until it ends or is interrupted. Returns its error, and the number of writes.
async fn migrate(client: (kube::Client, Arc<AtomicUsize>)) -> (Result<(), String>, usize) {
    let admission = Admission::new(&DriverSet::built_in(), &[]).expect("rules");
    let place = Place::new(client.0, NAMESPACE.to_owned());
    let ended = place.migrate(&|class| admission.judge(class), &mut Vec::new()).await;
    (ended.map(drop).map_err(|failure| failure.to_string()), client.1.load(Ordering::SeqCst))
}

/// Runs a manager while the story lasts.
async fn with_manager(stage: &Stage, simulation: &str, story: impl Future<Output = ()>) {
    let (stop, stopped) = oneshot::channel::<()>();
    let environment = stage.environment(&stage.managers_client(), Endpoints::InProcess(Box::new(drop)), 1);
    let told = async {
        story.await;
        drop(stop);
    };
    let running = run_in(settings(&[simulation]), environment, async { drop(stopped.await) });
    let (ended, ()) = tokio::join!(running, told);
    ended.expect("the manager ends well");
}

/// What a rollout would change: machines, their VMs, sets, and Nodes.
async fn fleet_now(client: &kube::Client) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for machine in list(client, &format!("{MACHINE_PATH}/machines")).await {
        let (uid, vm) = (text(&machine, "/metadata/uid"), text(&machine, "/spec/providerID"));
        assert!(machine["metadata"]["deletionTimestamp"].is_null(), "{machine}");
        assert_eq!(fleet::phase(&machine), "Running", "{}", fleet::describe(&machine));
        found.insert(format!("machine {} {uid} {vm}", name(&machine)));
    }
    for path in [format!("{MACHINE_PATH}/machinesets"), "/api/v1/nodes".to_owned()] {
        let objects = list(client, &path).await;
        found.extend(objects.iter().map(|object| format!("{path} {} {}", name(object), text(object, "/metadata/uid"))));
    }
    found
}

/// The number of references to the kind in all objects.
async fn references_to(client: &kube::Client, kind: &str) -> usize {
    let mut count = 0;
    for user in USERS {
        for object in list(client, &format!("{MACHINE_PATH}/{}", user.plural())).await {
            count += places(user).iter().filter(|place| text(&object, &format!("{place}/kind")) == kind).count();
        }
    }
    count
}

async fn merge(client: &kube::Client, path: &str, patch: &Value) {
    send(client, "PATCH", path, patch).await.expect("the patch is accepted");
}

/// Lets the fleet name the old class again, as before any migration.
async fn as_before(client: &kube::Client) {
    for kind in USERS {
        for object in list(client, &format!("{MACHINE_PATH}/{}", kind.plural())).await {
            let class = json!({"class": {"kind": OLD}});
            let spec = if kind.plural() == "machines" { class } else { json!({"template": {"spec": class}}) };
            merge(client, &format!("{MACHINE_PATH}/{}/{}", kind.plural(), name(&object)), &json!({"spec": spec})).await;
        }
    }
    let new = format!("{MACHINE_PATH}/machineclasses/{CLASS}");
    if !list(client, &format!("{MACHINE_PATH}/machineclasses")).await.is_empty() {
        merge(client, &new, &json!({"metadata": {"finalizers": []}})).await;
        send(client, "DELETE", &new, &Value::Null).await.expect("it is deleted");
    }
    let old = format!("{MACHINE_PATH}/awsmachineclasses");
    if list(client, &old).await.is_empty() {
        post(client, &old, &old_class(NAMESPACE)).await;
    }
    let metadata = json!({"finalizers": [FINALIZER], "annotations": {"machine.sapcloud.io/migrated": null}});
    merge(client, &format!("{old}/{CLASS}"), &json!({"metadata": metadata})).await;
    assert_eq!(references_to(client, OLD).await, MACHINES + 2);
}

/// The old class is released, and nothing names it.
async fn is_migrated(client: &kube::Client) {
    assert_eq!(references_to(client, OLD).await, 0);
    assert_eq!(references_to(client, "MachineClass").await, MACHINES + 2);
    let old = list(client, &format!("{MACHINE_PATH}/awsmachineclasses")).await.remove(0);
    assert!(!has_finalizer(&old, FINALIZER), "{old}");
    assert_eq!(text(&old, "/metadata/annotations/machine.sapcloud.io~1migrated"), "machine-controller-AWSMachineClass");
}

#[test]
fn no_rollout_begins_when_a_migration_is_interrupted_after_any_write() {
    count_ran("class_migration::no_rollout_begins");
    let began = Instant::now();
    let config = subfolder("class-migration").join("simulation.yaml");
    std::fs::write(&config, SWIFT_CLOUD).expect("the folder is writable");
    let simulation = format!("--simulation-config={}", config.display());
    play(async {
        let stage = Stage::new(1);
        let client = &stage.client;
        for definition in early_definitions().iter().chain([&old_definition()]) {
            post(client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
        }
        with_manager(&stage, &simulation, async {
            for object in fleet_of(NAMESPACE, MACHINES) {
                let path = match object["kind"].as_str() {
                    Some("Secret") => "/api/v1/namespaces/default/secrets".to_owned(),
                    Some("MachineClass") => format!("{MACHINE_PATH}/machineclasses"),
                    _ => format!("{MACHINE_PATH}/machinedeployments"),
                };
                post(client, &path, &object).await;
            }
            tokio::time::sleep(WHILE).await;
        })
        .await;
        let before = fleet_now(client).await;
        assert_eq!(before.len(), 2 * MACHINES + 1, "{before:#?}");

        // After the class, the deployment, the set, the first machine, some machines, all machines, and the end.
        for writes in [1, 2, 3, 4, 3 + MACHINES / 2, 3 + MACHINES, WRITES] {
            as_before(client).await;
            let (ended, _) = migrate(interrupted_after(writes, &stage.server)).await;
            ended.expect_err("it is interrupted");
            let is_held = list(client, &format!("{MACHINE_PATH}/awsmachineclasses")).await.remove(0);
            assert_eq!(has_finalizer(&is_held, FINALIZER), writes < WRITES, "after {writes} writes");
            with_manager(&stage, &simulation, tokio::time::sleep(WHILE)).await;
            assert_eq!(fleet_now(client).await, before, "after {writes} writes and a manager");
            let (ended, _) = migrate(interrupted_after(usize::MAX, &stage.server)).await;
            assert_eq!(ended, Ok(()), "after {writes} writes");
            is_migrated(client).await;
        }

        // The definitions of this release have rules that refuse new references to old kinds. Each run makes one write.
        as_before(client).await;
        for definition in definitions(&CrdOptions::default()) {
            let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}", name(&definition));
            merge(client, &path, &json!({"spec": definition["spec"]})).await;
        }
        for run in 1..=WRITES {
            let (ended, writes) = migrate(interrupted_after(1, &stage.server)).await;
            assert!(ended.is_err() && writes == 1, "run {run}: {ended:?}, {writes} writes");
        }
        let (ended, writes) = migrate(interrupted_after(usize::MAX, &stage.server)).await;
        assert_eq!((ended, writes), (Ok(()), 0));
        is_migrated(client).await;
        with_manager(&stage, &simulation, tokio::time::sleep(WHILE)).await;
        assert_eq!(fleet_now(client).await, before);
    });
    println!("{:.1} s", began.elapsed().as_secs_f64());
}

/// Exit code, output and errors of the command.
async fn migrate_classes(arguments: &[&str], input: &str) -> (i32, String, String) {
    run([&["migrate-classes"][..], arguments].concat(), input).await
}

/// The old class, and a machine that names it.
async fn old_objects(namespace: &Namespace) {
    let machine = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": "m"},
        "spec": {"class": {"kind": OLD, "name": CLASS}},
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [old_class(&namespace.name), machine]});
    namespace.apply(&list.to_string()).await.succeed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_shows_refuses_asks_and_migrates() {
    let Some(rig) = Rig::own("class_migration::the_command").await else { return };
    for definition in early_definitions().iter().chain([&old_definition()]) {
        rig.apply(&definition.to_string()).await.succeed();
    }
    rig.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]).await.succeed();
    let namespace = rig.namespace("old").await;
    old_objects(&namespace).await;
    rig.install_crds().await;
    let kubeconfig = rig.manager_kubeconfig(&namespace, Rights::Everything).await;
    let place = [format!("--kubeconfig={}", kubeconfig.display()), format!("--namespace={}", namespace.name)];
    let with = |more: &'static str| [place[0].as_str(), place[1].as_str(), more];

    let (code, said, errors) = migrate_classes(&with("--dry-run"), "").await;
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains(&format!("would let Machine {}/m name MachineClass {CLASS}", namespace.name)), "{errors}");
    let shown = parse_documents("output", &said).expect("YAML").remove(0).value;
    assert_eq!(shown, convert(OldKind::Aws, &old_class(&namespace.name)).class);
    let (code, said, errors) = migrate_classes(&["-f", "-"], &old_class(&namespace.name).to_string()).await;
    assert_eq!(code, 0, "{errors}");
    assert_eq!(parse_documents("output", &said).expect("YAML").remove(0).value, shown);

    let (code, _, errors) = migrate_classes(&with("--output=yaml"), "no\n").await;
    assert!(code == 1 && errors.contains("nothing was done"), "{errors}");
    assert_eq!(namespace.list("machineclasses").await.len(), 0);

    let leader = renew_lease(&rig, &namespace).await;
    let (code, said, errors) = migrate_classes(&with("--yes"), "").await;
    assert!(code == 1 && errors.contains("somebody renews Lease machine-controller"), "{said}{errors}");
    leader.abort();
    namespace.kubectl(&["delete", "lease", "--all"]).await.succeed();
    assert_eq!(text(&namespace.get("machine", "m").await, "/spec/class/kind"), OLD);

    let (code, said, errors) =
        migrate_classes(&place.each_ref().map(String::as_str), &format!("{}\n", namespace.name)).await;
    assert_eq!(code, 0, "{said}{errors}");
    assert_eq!(text(&namespace.get("machine", "m").await, "/spec/class/kind"), "MachineClass");
    assert_eq!(namespace.get("machineclass", CLASS).await["providerSpec"], shown["providerSpec"]);
    let old = namespace.get("awsmachineclass", CLASS).await;
    assert!(!has_finalizer(&old, FINALIZER), "{old}");
    let (code, said, _) = migrate_classes(&with("--yes"), "").await;
    assert!(code == 0 && said.contains("nothing is left to migrate"), "{said}");
}
