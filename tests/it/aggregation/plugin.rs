//! `kubectl mcm`: the program as a plugin of kubectl, with the views, without them, and with users of few rights. The ids come from the
//! specification of the plugin (packaging, §5).

use std::{
    io::{Read, Write},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use regex::Regex;
use serde_json::{Value, json};

use super::{
    World,
    drains::{budget, is_ready, pod, wait_for_budget},
    views::with_a_fleet,
};
use crate::{
    support::{aggregation::API_SERVICE, cluster_object::text, wait_until},
    weather::FLEET,
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The output of the plugin.
struct Output {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Output {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}{}", self.stdout, self.stderr))
    }
}

/// A folder with a link to the program, by the name that kubectl looks for, and with the executable that kubectl asks for completions.
fn folder(world: &World) -> PathBuf {
    let folder = world.rig.folder.join("plugins");
    if !folder.exists() {
        std::fs::create_dir(&folder).expect("the rig's folder is writable");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mcm"), folder.join("kubectl-mcm")).expect("a link");
        let mut install = std::process::Command::new(env!("CARGO_BIN_EXE_mcm"));
        let installed = install.args(["completion", "kubectl", "--install"]).arg(&folder).output().expect("mcm runs");
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    }
    folder
}

/// Runs kubectl with the plugin in its path, as a user does: without a terminal, in the namespace of the world.
async fn kubectl(world: &World, arguments: &[&str]) -> Output {
    kubectl_in(world, arguments, &[]).await
}

/// The same with further variables in the environment.
async fn kubectl_in(world: &World, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let path = format!("{}:{}", folder(world).display(), std::env::var("PATH").unwrap_or_default());
    let mut command = tokio::process::Command::new(world.rig.assets.join("kubectl"));
    command.args(arguments).env("PATH", path).env("HOME", &world.rig.folder).env("LC_ALL", "C.UTF-8");
    command.env("KUBECONFIG", world.rig.admin_kubeconfig()).stdin(Stdio::null()).kill_on_drop(true);
    command.envs(variables.iter().copied());
    let done = tokio::time::timeout(Duration::from_secs(240), command.output()).await;
    let done = done.unwrap_or_else(|_| panic!("kubectl {arguments:?} does not end")).expect("kubectl runs");
    let output = Output {
        code: done.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&done.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&done.stderr).into_owned(),
    };
    println!("$ kubectl {}\n{}{}[{}]", arguments.join(" "), output.stdout, output.stderr, output.code);
    assert!(!output.stderr.contains("panicked"), "{}", output.stderr);
    output
}

/// `kubectl mcm` in the namespace of the world.
async fn mcm(world: &World, arguments: &[&str]) -> Output {
    let all: Vec<&str> = ["mcm"].iter().chain(arguments).chain(&["-n", &world.namespace.name]).copied().collect();
    kubectl(world, &all).await
}

/// A running machine of the fleet, and its Node.
async fn a_machine(world: &World) -> (String, String) {
    wait_until("a machine to run", TIMEOUT, || async {
        let all = world.namespace.list("machines").await;
        let runs = |machine: &&Value| {
            text(machine, "/status/currentStatus/phase") == "Running"
                && machine.pointer("/metadata/deletionTimestamp").is_none()
        };
        let found = all.iter().find(runs).ok_or_else(|| format!("{all:?}"))?;
        Ok((text(found, "/metadata/name").to_owned(), text(found, "/metadata/labels/node").to_owned()))
    })
    .await
}

/// The state that a command meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meets {
    Views,
    /// The views are not registered, broken or forbidden.
    NoViews,
}

/// Runs every command that reads, in JSON and as text, and checks exit code and source.
async fn reads(world: &World, meets: Meets, further: &[&str]) {
    let (machine, node) = a_machine(world).await;
    let (by_node, by_machine) = (format!("node/{node}"), format!("machine/{machine}"));
    // The commands, and whether they need the views.
    let commands: [(&[&str], bool, &str); 11] = [
        (&["top"], false, "Top"),
        (&["why", &by_machine], false, "Why"),
        (&["why", &by_node], false, "Why"),
        (&["why", "deployment/pool"], false, "Why"),
        (&["wait", &by_machine, "--for=running"], false, "Wait"),
        (&["tree"], false, "Tree"),
        (&["tree", "pool"], false, "Tree"),
        (&["rollout", "status", "pool"], false, "RolloutStatus"),
        (&["rollout", "history", "pool"], false, "RolloutHistory"),
        (&["rollout", "plan", "pool"], true, "RolloutPlan"),
        (&["drain", "plan", &by_node], false, "DrainPlan"),
    ];
    for (command, needs_views, kind) in commands {
        let command: Vec<&str> = command.iter().chain(further).copied().collect();
        let said = mcm(world, &command).await;
        let json = mcm(world, &[&command[..], &["-o", "json"]].concat()).await;
        if needs_views && meets == Meets::NoViews {
            assert_eq!((said.code, json.code), (1, 1), "PK-070: {command:?}");
            assert!(said.stderr.contains("planned without the views"), "PK-070: {}", said.stderr);
            continue;
        }
        if kind == "DrainPlan" && further.contains(&"carol") {
            assert_eq!((said.code, json.code), (1, 1), "PK-070: {command:?}");
            assert!(said.stderr.contains("cannot list pods") && said.stderr.contains("ClusterRole"), "{}", said.stderr);
            continue;
        }
        assert_eq!((said.code, json.code), (0, 0), "PK-070: {command:?}: {}", said.stderr);
        assert!(!said.stdout.contains('\x1b'), "PK-077: a pipe gets no escape sequences");
        let answer = json.json();
        is_of_the_schema(&answer);
        let has_golden = kind != "Why" || command.contains(&by_machine.as_str());
        if let Some((_, golden)) = GOLDEN.iter().find(|(known, _)| *known == kind && has_golden) {
            let used =
                if meets == Meets::Views { "computed now (views)" } else { "stored objects (the views were not used)" };
            assert_eq!(
                normalised(&said.stdout, &machine, &node),
                golden.replace("SOURCE", used),
                "PK-070: {command:?}"
            );
        }
        let asks_views = !["RolloutHistory", "Wait"].contains(&kind);
        let source = if meets == Meets::Views && asks_views { "views" } else { "stored" };
        assert_eq!((text(&answer, "/kind"), text(&answer, "/source")), (kind, source), "PK-070: {answer}");
        assert_eq!(answer["apiVersion"], "cli.machine.sapcloud.io/v1alpha1");
        let reports = said.stderr.matches("the views can't be used").count();
        assert_eq!(reports, usize::from(asks_views && meets == Meets::NoViews), "PK-070: once: {}", said.stderr);
    }
}

/// The texts of commands about a fleet of two machines that run.
const GOLDEN: [(&str, &str); 4] = [
    (
        "Why",
        "MACHINE runs.\n  chain       vm VM → node NODE → machine MACHINE (Running) → set SET (revision 1) → deployment pool \
         (revision 1, rolled out)\n  source      SOURCE\n",
    ),
    (
        "Tree",
        "✓ deployment pool is rolled out (revision 1): 2 of 2 machines updated, 2 available, 2 in all\n└─ set SET (revision 1): 2 \
         of 2 machines\n   └─ ✓ 2 machines run\n",
    ),
    ("RolloutStatus", "✓ pool is rolled out (revision 1): 2 of 2 machines updated, 2 available, 2 in all\n"),
    ("Wait", "MACHINE runs\n"),
];

/// A text without names that differ from run to run, and without lines about what comes next.
fn normalised(text: &str, machine: &str, node: &str) -> String {
    let expression = |text: &str| Regex::new(text).expect("an expression");
    let text = expression(r"(?m)^  (then|at latest) .*\n").replace_all(text, "");
    let text = expression(r"vm \S+").replace_all(&text, "vm VM");
    let text = text.replace(&format!("node {node}"), "node NODE").replace(machine, "MACHINE");
    expression(r"pool-[a-z0-9]+").replace_all(&text, "SET").into_owned()
}

/// The answer fits the committed schema.
fn is_of_the_schema(answer: &Value) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/kubectl-mcm.schema.json");
    let schemas: Value =
        serde_json::from_str(&std::fs::read_to_string(path).expect("the schema is there")).expect("the schema is JSON");
    let validator = jsonschema::validator_for(&schemas[text(answer, "/kind")]).expect("a schema");
    let faults: Vec<String> =
        validator.iter_errors(answer).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(faults.is_empty(), "PK-076: {faults:?} in {answer:#}");
}

/// Tries every command that writes. Nothing is stored.
async fn tries_writes(world: &World, may_write: bool, further: &[&str]) {
    let (machine, _) = a_machine(world).await;
    let commands: [&[&str]; 4] = [
        &["rollout", "pause", "pool"],
        &["rollout", "restart", "pool"],
        &["replace", &machine],
        &["preserve", &machine],
    ];
    for command in commands {
        let said = mcm(world, &[command, &["--dry-run=server", "-o", "json"], further].concat()).await;
        assert!(said.stderr.contains("will "), "PK-070: the change is shown: {}", said.stderr);
        if may_write {
            assert_eq!(said.code, 0, "PK-070: {command:?}: {}", said.stderr);
            let answer = said.json();
            is_of_the_schema(&answer);
            assert_eq!((&answer["source"], &answer["changes"][0]["dryRun"]), (&json!("stored"), &json!(true)));
        } else {
            let names_right =
                said.stderr.contains("cannot ") && said.stderr.contains("carol") && said.stderr.contains("Role");
            assert!(said.code == 1 && names_right, "PK-070: {command:?}: {}", said.stderr);
        }
    }
    let undo = mcm(world, &[&["rollout", "undo", "pool", "--dry-run=server"], further].concat()).await;
    assert!(undo.code == 1 && undo.stderr.contains("no revision before"), "PK-070: {}", undo.stderr);
    let resume = mcm(world, &[&["rollout", "resume", "pool", "--dry-run=server"], further].concat()).await;
    assert!(resume.code == 0 && resume.stdout.contains("is not paused"), "PK-070: {}", resume.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_070_every_command_with_views_without_them_and_with_few_rights() {
    let Some((mut world, _)) = with_a_fleet("aggregation::plugin::pk_070_every_command", &[]).await else { return };
    reads(&world, Meets::Views, &[]).await;
    tries_writes(&world, true, &[]).await;

    // 403: carol may read the machine objects, and no view.
    let namespace = world.namespace.name.clone();
    let rights = "--resource=machines.machine.sapcloud.io,machinesets.machine.sapcloud.io,machinedeployments.machine.sapcloud.io";
    let create = ["-n", &namespace, "create"];
    let role = [&create[..], &["role", "machines", "--verb=get,list", rights]].concat();
    world.rig.kubectl(&role).await.succeed();
    let binding = [&create[..], &["rolebinding", "machines", "--role=machines", "--user=carol"]].concat();
    world.rig.kubectl(&binding).await.succeed();
    reads(&world, Meets::NoViews, &["--as", "carol"]).await;
    tries_writes(&world, false, &["--as", "carol"]).await;
    let refused = mcm(&world, &["why", "pool", "--as", "carol"]).await;
    assert!(refused.stderr.contains("mcm-views-reader"), "the role is named: {}", refused.stderr);
    let refused = mcm(&world, &["tree", "--as", "mallory"]).await;
    let (code, said) = (refused.code, refused.stderr);
    assert!(code == 1 && said.contains("machines") && said.contains("mallory") && said.contains("Role"), "{said}");

    // The registration is there, and the manager is not.
    world.manager.kill();
    wait_until("the API server to see that the views are down", TIMEOUT, || async {
        let answer = world.rig.kubectl(&["get", "--raw", super::GROUP_VERSION]).await;
        if answer.succeeded() { Err(answer.stdout) } else { Ok(()) }
    })
    .await;
    reads(&world, Meets::NoViews, &[]).await;
    tries_writes(&world, true, &[]).await;
    let unknown = mcm(&world, &["wait", "vm/virtual:///nobody", "--for=gone"]).await;
    assert!(unknown.code == 1 && unknown.stderr.contains("only the views know"), "{}", unknown.stderr);

    world.rig.kubectl(&["delete", "apiservice", API_SERVICE]).await.succeed();
    reads(&world, Meets::NoViews, &[]).await;
    tries_writes(&world, true, &[]).await;
    let absent = mcm(&world, &["why", "machine/nobody"]).await;
    assert!(absent.code == 1 && absent.stderr.contains("no machine \"nobody\" in namespace"), "{}", absent.stderr);
    let wrong = mcm(&world, &["why", "pod/x"]).await;
    assert!(wrong.code == 2 && wrong.stderr.contains("none of machine, node, set"), "{}", wrong.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_074_pk_075_writes_ask_and_change_what_was_shown() {
    let Some((world, _)) = with_a_fleet("aggregation::plugin::pk_074_writes", &[]).await else { return };
    let deployment = async || world.namespace.get("machinedeployment", "pool").await;

    // Without a terminal and without --yes nothing is written.
    let before = deployment().await;
    let unconfirmed = mcm(&world, &["rollout", "pause", "pool"]).await;
    assert!(unconfirmed.code == 1 && unconfirmed.stderr.contains("--yes"), "{}", unconfirmed.stderr);
    let tried = mcm(&world, &["rollout", "pause", "pool", "--dry-run=server"]).await;
    assert!(tried.code == 0 && tried.stdout.contains("(server dry run)"), "{}", tried.stdout);
    assert_eq!(deployment().await["spec"], before["spec"], "nothing was stored");

    assert_eq!(mcm(&world, &["rollout", "pause", "pool", "--yes"]).await.code, 0);
    let paused = world
        .namespace
        .kubectl(&["get", "machinedeployment", "pool", "-o", "json", "--show-managed-fields"])
        .await
        .json();
    assert_eq!(paused["spec"]["paused"], true);
    let managers = paused["metadata"]["managedFields"].to_string();
    assert!(managers.contains("\"kubectl-mcm\""), "{managers}");
    let again = mcm(&world, &["rollout", "pause", "pool", "--yes"]).await;
    assert!(again.code == 0 && again.stdout.contains("paused already"), "{}", again.stdout);
    let refused = mcm(&world, &["rollout", "restart", "pool", "--yes"]).await;
    assert!(refused.code == 1 && refused.stderr.contains("rollout resume pool"), "{}", refused.stderr);

    // PK-073: paused with a change.
    world.namespace.kubectl(&["scale", "machinedeployment", "pool", "--replicas=3"]).await.succeed();
    world
        .namespace
        .kubectl(&[
            "patch",
            "machinedeployment",
            "pool",
            "--type=merge",
            "-p",
            r#"{"spec":{"template":{"metadata":{"annotations":{"a":"b"}}}}}"#,
        ])
        .await
        .succeed();
    wait_until("the manager to see the change", TIMEOUT, || async {
        let status = mcm(&world, &["rollout", "status", "pool", "-o", "json"]).await;
        if status.json()["verdict"] == "Paused" { Ok(()) } else { Err(status.stdout) }
    })
    .await;
    let status = mcm(&world, &["rollout", "status", "pool", "--timeout=1s"]).await;
    assert!(status.code == 1 && status.stderr.contains("is paused"), "PK-073: {}", status.stderr);
    assert_eq!(mcm(&world, &["rollout", "resume", "pool", "--yes"]).await.code, 0);
    assert_eq!(mcm(&world, &["rollout", "status", "pool", "--timeout=2m"]).await.code, 0, "PK-073: complete");

    let (old, _) = a_machine(&world).await;
    assert_eq!(mcm(&world, &["rollout", "restart", "pool", "--yes"]).await.code, 0);
    assert_eq!(mcm(&world, &["wait", "deployment/pool", "--for=complete", "--timeout=2m"]).await.code, 0);
    let gone = mcm(&world, &["wait", &format!("machine/{old}"), "--for=gone", "--timeout=1m"]).await;
    assert_eq!(gone.code, 0, "each machine is replaced");
    let history = mcm(&world, &["rollout", "history", "pool", "-o", "json"]).await.json();
    assert_eq!(history["revisions"].as_array().map(Vec::len), Some(3), "{history}");
    let diff = mcm(&world, &["rollout", "history", "pool", "--revision=3"]).await;
    assert!(
        diff.stdout.contains("+ template.metadata.annotations[machine.sapcloud.io/restartedAt]"),
        "{}",
        diff.stdout
    );

    // The same template as `mcm rollback` restores.
    assert_eq!(mcm(&world, &["rollout", "undo", "pool", "--to-revision=2", "--yes"]).await.code, 0);
    assert_eq!(mcm(&world, &["rollout", "status", "pool", "--timeout=2m"]).await.code, 0);
    let annotations = deployment().await["spec"]["template"]["metadata"]["annotations"].clone();
    assert_eq!(annotations, serde_json::json!({ "a": "b" }));

    let (machine, _) = a_machine(&world).await;
    assert_eq!(mcm(&world, &["preserve", &machine, "--when-failed", "--yes"]).await.code, 0);
    let annotations = world.namespace.get("machine", &machine).await["metadata"]["annotations"].clone();
    assert_eq!(annotations["node.machine.sapcloud.io/preserve"], "when-failed");
    let replaced = mcm(&world, &["replace", &machine, "--yes", "--wait", "--timeout=2m"]).await;
    assert_eq!(replaced.code, 0, "{}", replaced.stderr);
    assert_eq!(mcm(&world, &["wait", &machine, "--for=gone", "--timeout=0s"]).await.code, 0);

    let deleted = world.namespace.kubectl(&["delete", "machinedeployment", "pool", "--wait=false"]).await;
    deleted.succeed();
    let status = mcm(&world, &["rollout", "status", "pool", "--timeout=1m"]).await;
    assert!(status.code == 1, "PK-073: deleted: {}", status.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_080_the_plugin_is_found_and_its_examples_work() {
    let Some((world, _)) = with_a_fleet("aggregation::plugin::pk_080_examples", &[]).await else { return };
    let listed = kubectl(&world, &["plugin", "list"]).await;
    assert!(listed.code == 0 && listed.stdout.contains("kubectl-mcm"), "{}{}", listed.stdout, listed.stderr);
    assert!(!format!("{}{}", listed.stdout, listed.stderr).contains("arning"), "{}{}", listed.stdout, listed.stderr);
    let help = kubectl(&world, &["mcm", "--help"]).await.stdout;
    assert!(help.contains("Usage: kubectl mcm "), "{help}");
    let place = |word: &str| help.find(&format!("\n  {word} ")).unwrap_or_else(|| panic!("{word} in {help}"));
    let first = ["why", "tree", "rollout", "drain", "replace", "preserve", "top", "wait", "serve"].map(place);
    assert!(first.is_sorted(), "the plugin's commands come first: {help}");

    // A second revision, for the examples that restore one.
    assert_eq!(mcm(&world, &["rollout", "restart", "pool", "--yes"]).await.code, 0);
    assert_eq!(mcm(&world, &["rollout", "status", "pool", "--timeout=2m"]).await.code, 0);
    let commands: [&[&str]; 13] = [
        &["top"],
        &["why"],
        &["tree"],
        &["rollout", "status"],
        &["rollout", "history"],
        &["rollout", "pause"],
        &["rollout", "undo"],
        &["rollout", "plan"],
        &["drain", "plan"],
        &["preserve"],
        &["wait"],
        &["replace"],
        &["rollout", "resume"],
    ];
    for command in commands {
        let help = kubectl(&world, &[&["mcm"], command, &["--help"]].concat()).await.stdout;
        assert!(help.contains(&format!("Usage: kubectl mcm {}", command.join(" "))), "{help}");
        let (_, examples) = help.split_once("Examples:\n").unwrap_or_else(|| panic!("examples in {help}"));
        let examples: Vec<&str> =
            examples.lines().filter_map(|line| line.trim().strip_prefix("kubectl mcm ")).collect();
        assert!(examples.len() >= 2, "{help}");
        for example in examples {
            let (machine, node) = a_machine(&world).await;
            // An object that is waited for to be gone must not exist.
            let known = if example.contains("--for=gone") { "ip-10-0-3-17" } else { &node };
            let words: Vec<String> = example
                .split_whitespace()
                .map(|word| {
                    let word = word.replace("web-1-x7qzt", &machine).replace("ip-10-0-3-17", known);
                    let word = word.replace("class.name=large", "class.name=weather");
                    if word == "web" { "pool".to_owned() } else { word.replace("deployment/web", "deployment/pool") }
                })
                .collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            // `-A` needs no namespace.
            let said = mcm(&world, &words).await;
            assert_eq!(said.code, 0, "PK-080: {example}: {}{}", said.stdout, said.stderr);
        }
    }
}

/// `why` about an object, as soon as it has these words.
async fn why_says(world: &World, object: &str, words: &[&str]) -> String {
    wait_until(&format!("why {object} to say {words:?}"), TIMEOUT, || async {
        let said = mcm(world, &["why", object]).await;
        let says_all = said.code == 0 && words.iter().all(|word| said.stdout.contains(word));
        if says_all { Ok(said.stdout) } else { Err(said.stdout + &said.stderr) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_071_what_why_names_unblocks_the_machine() {
    let Some((world, machines)) = with_a_fleet("aggregation::plugin::pk_071_blockers", &[]).await else { return };
    let (namespace, machine) = (&world.namespace, machines[0].as_str());
    world.rig.with_controller_manager().await;

    // A class that does not exist.
    let alone = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
        "metadata": { "name": "alone", "namespace": namespace.name },
        "spec": { "class": { "kind": "MachineClass", "name": "later" } },
    });
    namespace.apply(&alone.to_string()).await.succeed();
    let said = why_says(&world, "machine/alone", &["waits for", "MachineClass \"later\"", "since "]).await;
    assert!(said.contains("create it") && said.contains("ends when") && said.contains("at latest"), "{said}");
    assert!(!said.contains("LookAgain") && !said.contains("PatchMachine"), "effects are sentences: {said}");
    let early = mcm(&world, &["wait", "machine/alone", "--for=running", "--timeout=1s"]).await;
    assert!(
        early.code == 1 && early.stderr.contains("timed out after 1s") && early.stderr.contains("later"),
        "{}",
        early.stderr
    );
    let mut class = namespace.get("machineclass", FLEET).await;
    class["metadata"] = json!({ "name": "later", "namespace": namespace.name });
    namespace.apply(&class.to_string()).await.succeed();
    let runs = mcm(&world, &["wait", "machine/alone", "--for=running", "--timeout=2m"]).await;
    assert_eq!((runs.code, runs.stdout.as_str()), (0, "alone runs\n"), "{}", runs.stderr);
    let warned = mcm(&world, &["why", "alone", "-o", "json"]).await.json();
    assert!(warned["warnings"].as_array().is_some_and(|all| !all.is_empty() && all.len() <= 3), "events: {warned:#}");

    // A budget that allows no eviction.
    let node = text(&namespace.get("machine", machine).await, "/metadata/labels/node").to_owned();
    let held =
        json!({ "apiVersion": "v1", "kind": "List", "items": [pod("db-0", &node, "db", &json!({})), budget("db", 1)] });
    namespace.apply(&held.to_string()).await.succeed();
    is_ready(namespace, "db-0").await;
    wait_for_budget(namespace, "db", 1, 0).await;
    let plan = mcm(&world, &["drain", "plan", machine]).await;
    assert!(plan.code == 0 && plan.stdout.contains("blocked     ✗"), "{}", plan.stdout);
    assert_eq!(mcm(&world, &["rollout", "restart", "pool", "--yes"]).await.code, 0);
    let said = why_says(&world, machine, &["waits for", "db-0", "is being drained", "since "]).await;
    assert!(said.contains(&format!("{}/db", namespace.name)) && said.contains("ends when"), "{said}");
    let tree = mcm(&world, &["tree", "deployment/pool"]).await;
    assert!(tree.stdout.contains(machine) && tree.stdout.contains("db-0"), "{}", tree.stdout);
    wait_until("the rollout to wait for that machine only", TIMEOUT, || async {
        let status = mcm(&world, &["rollout", "status", "pool", "--timeout=1s"]).await;
        let waits = status.code == 1 && status.stderr.contains(&format!("it waits for {machine}\n"));
        if waits { Ok(()) } else { Err(status.stderr) }
    })
    .await;
    let leaving = mcm(&world, &["preserve", machine, "--yes"]).await;
    assert!(leaving.code == 1 && leaving.stderr.contains("is being deleted"), "{}", leaving.stderr);
    let again = mcm(&world, &["replace", machine, "--yes"]).await;
    assert!(again.code == 0 && again.stdout.contains("being deleted already"), "{}", again.stdout);
    namespace.kubectl(&["delete", "poddisruptionbudget", "db"]).await.succeed();
    let gone = mcm(&world, &["wait", &format!("machine/{machine}"), "--for=gone", "--timeout=2m", "-o", "json"]).await;
    assert_eq!((gone.code, &gone.json()["goal"]), (0, &json!("gone")), "{}", gone.stderr);
    assert_eq!(mcm(&world, &["rollout", "status", "pool", "--timeout=2m"]).await.code, 0, "PK-073: complete");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_without_a_machine_is_not_gone() {
    let Some((mut world, machines)) = with_a_fleet("aggregation::plugin::a_vm_without_a_machine", &[]).await else {
        return;
    };
    let vm = text(&world.namespace.get("machine", &machines[0]).await, "/spec/providerID").to_owned();
    let object = format!("vm/{vm}");
    // The machine goes without its VM, as when somebody removes its finalizers.
    world.manager.terminate();
    world.namespace.kubectl(&["delete", "machine", &machines[0], "--wait=false"]).await.succeed();
    let finalizers = r#"{"metadata":{"finalizers":null}}"#;
    world.namespace.kubectl(&["patch", "machine", &machines[0], "--type=merge", "-p", finalizers]).await.succeed();
    world.manager.restart_with(&[]);
    world.manager.wait_until_ready().await;
    let said = why_says(&world, &object, &["has the state Orphan"]).await;
    assert!(said.contains(&format!("VM {vm} has the state Orphan")), "{said}");
    let waited = mcm(&world, &["wait", &object, "--for=gone", "--timeout=0s"]).await;
    assert!(waited.code == 1 && waited.stderr.contains("has the state Orphan"), "{}", waited.stderr);
    let nobody = mcm(&world, &["wait", "vm/virtual:///nobody", "--for=gone", "--timeout=0s", "-o", "json"]).await;
    assert_eq!((nobody.code, &nobody.json()["source"]), (0, &json!("views")), "{}", nobody.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_077_pk_078_a_pipe_gets_whole_names_and_a_terminal_the_live_view() {
    let Some((world, machines)) = with_a_fleet("aggregation::plugin::pk_077_widths", &[]).await else { return };
    let commands: [&[&str]; 3] = [&["tree", "--all"], &["why", &machines[0]], &["rollout", "history", "pool"]];
    // The age of a revision grows.
    let age = Regex::new(r" +\d+s").expect("an expression");
    for command in commands {
        let all = [&["mcm"], command, &["-n", &world.namespace.name]].concat();
        let mut texts = Vec::new();
        for width in [None, Some("40"), Some("80"), Some("200")] {
            let variables: Vec<(&str, &str)> = width.iter().map(|width| ("COLUMNS", *width)).collect();
            let said = kubectl_in(&world, &all, &variables).await;
            assert_eq!(said.code, 0, "{}", said.stderr);
            texts.push(age.replace_all(&said.stdout, " AGE").into_owned());
        }
        assert!(texts.iter().all(|one| *one == texts[0]), "{texts:?}");
        assert!(!texts[0].contains('\x1b') && !texts[0].contains('…'), "{}", texts[0]);
    }
    let ascii = kubectl_in(&world, &["mcm", "tree", "-n", &world.namespace.name], &[("LC_ALL", "C")]).await;
    assert!(ascii.stdout.is_ascii() && ascii.stdout.starts_with("ok deployment pool"), "{}", ascii.stdout);
    live_view(&world, &machines[0]).await;
}

/// A command in a terminal of its own, which `script` of util-linux makes.
struct Terminal {
    process: Child,
    seen: Arc<Mutex<Vec<u8>>>,
    /// The output before this place was expected already.
    expected: usize,
}

impl Terminal {
    /// Starts a line of a shell.
    fn start(world: &World, line: &str) -> Self {
        let mut command = Command::new("script");
        command.args(["-qefc", line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8").env("KUBECONFIG", world.rig.admin_kubeconfig());
        let mut process = command.spawn().expect("script runs");
        let (mut output, seen) = (process.stdout.take().expect("a pipe"), Arc::<Mutex<Vec<u8>>>::default());
        let kept = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut part) {
                kept.lock().expect("no panic").extend(&part[..length]);
            }
        });
        Self { process, seen, expected: 0 }
    }

    fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().expect("no panic")).replace('\r', "")
    }

    fn press(&mut self, keys: &str) {
        let input = self.process.stdin.as_mut().expect("a pipe");
        input.write_all(keys.as_bytes()).and_then(|()| input.flush()).expect("the terminal reads");
    }

    /// Waits until a word shows up after those before. A frame has only what has changed, so that words come alone.
    async fn shows(&mut self, word: &str) {
        let from = self.expected;
        self.expected = wait_until(&format!("{word:?} in the terminal"), TIMEOUT, || async {
            let seen = self.seen();
            let rest = seen.get(from..).unwrap_or_default();
            rest.find(word).map(|place| from + place + word.len()).ok_or_else(|| format!("{rest:?}"))
        })
        .await;
    }
}

/// `top` in a terminal: a filter, a page, another size, the end.
async fn live_view(world: &World, machine: &str) {
    let top = format!("'{}' top -n {}", env!("CARGO_BIN_EXE_mcm"), world.namespace.name);
    let line = format!("stty rows 24 cols 120; tty; stty -g; {top}; echo code $?; stty -g; echo end");
    let mut terminal = Terminal::start(world, &line);
    terminal.shows("/dev/").await;
    terminal.shows("\x1b[?1049h").await;
    terminal.shows("updated").await;
    terminal.press("/");
    terminal.press(machine);
    terminal.shows(machine).await;
    // The end of the filter, the list of machines, and why.
    terminal.press("\r\t\r");
    terminal.shows("chain").await;
    let seen = terminal.seen();
    let tty = seen.split_whitespace().find(|word| word.starts_with("/dev/")).expect("the terminal has a name");
    let resized = Command::new("stty").args(["-F", tty, "rows", "20", "cols", "60"]).status().expect("stty runs");
    assert!(resized.success());
    terminal.shows("namespace").await;
    // `q` closes the page, and then the view. An escape and a letter at once would be another key.
    terminal.press("q");
    terminal.shows("deployments").await;
    terminal.press("q");
    terminal.shows("\x1b[?1049l").await;
    terminal.shows("code 0").await;
    terminal.shows("end").await;
    let seen = terminal.seen();
    let is_mode = |line: &&str| line.matches(':').count() > 10 && !line.contains('\x1b');
    let modes: Vec<&str> = seen.lines().filter(is_mode).collect();
    assert!(modes.len() == 2 && modes[0] == modes[1], "PK-078: the terminal is as before: {seen:?}");
    terminal.process.wait().expect("it ends");
}

/// The candidates of kubectl's completion.
async fn completions(world: &World, words: &[&str]) -> Vec<String> {
    let said = kubectl(world, &[&["__complete", "mcm"], words].concat()).await;
    assert_eq!(said.code, 0, "{}", said.stderr);
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert_eq!(lines.last(), Some(&":4"), "PK-079: no names of files: {lines:?}");
    lines[..lines.len() - 1].iter().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_079_kubectl_completes_commands_flags_and_names() {
    let Some((world, machines)) = with_a_fleet("aggregation::plugin::pk_079_completion", &[]).await else { return };
    let namespace = world.namespace.name.as_str();
    assert!(completions(&world, &["ro"]).await.contains(&"rollout".to_owned()));
    assert_eq!(completions(&world, &["rollout", "pa"]).await, ["pause"]);
    assert!(completions(&world, &["why", "--out"]).await.contains(&"--output".to_owned()));
    assert_eq!(completions(&world, &["wait", "x", "--for="]).await, ["--for=running", "--for=gone", "--for=complete"]);
    assert!(completions(&world, &["why", "-n", ""]).await.iter().any(|name| name == namespace));
    let all = completions(&world, &["why", "-n", namespace, ""]).await;
    for name in ["deployment/pool".to_owned(), format!("machine/{}", machines[0])] {
        assert!(all.contains(&name), "{name} in {all:?}");
    }
    let mut replaced = completions(&world, &["replace", "-n", namespace, "pool"]).await;
    replaced.sort();
    let mut expected = machines.clone();
    expected.sort();
    assert_eq!(replaced, expected);
    assert_eq!(completions(&world, &["rollout", "restart", "-n", namespace, "po"]).await, ["pool"]);

    // An API server that does not answer, and another one that refuses connections.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = listener.local_addr().expect("an address").to_string();
    for server in [silent.as_str(), "127.0.0.1:1"] {
        let path = world.rig.folder.join("unreachable");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": format!("https://{server}") } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "users": [{ "name": "u", "user": {} }],
        });
        std::fs::write(&path, config.to_string()).expect("the rig's folder is writable");
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_mcm"));
            let began = Instant::now();
            let said =
                command.args(["__complete", "--", "why", ""]).env("KUBECONFIG", &path).output().expect("mcm runs");
            best = best.min(began.elapsed());
            assert_eq!((said.status.code(), said.stdout.as_slice()), (Some(0), &b":4\n"[..]), "{server}");
        }
        assert!(best <= Duration::from_millis(600), "PK-079: {server}: {best:?}");
    }
}
