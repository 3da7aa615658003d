//! `kubectl mcm`: the program as a plugin of kubectl, with the views, without them, and with users of few rights. The ids come from the
//! specification of the plugin (packaging, §5).

use std::{path::PathBuf, process::Stdio, time::Duration};

use serde_json::Value;

use super::{World, views::with_a_fleet};
use crate::support::{aggregation::API_SERVICE, cluster_object::text, wait_until};

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

/// A folder with a link to the program, by the name that kubectl looks for.
fn folder(world: &World) -> PathBuf {
    let folder = world.rig.folder.join("plugins");
    if !folder.exists() {
        std::fs::create_dir(&folder).expect("the rig's folder is writable");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mcm"), folder.join("kubectl-mcm")).expect("a link");
    }
    folder
}

/// Runs kubectl with the plugin in its path, as a user does: without a terminal, in the namespace of the world.
async fn kubectl(world: &World, arguments: &[&str]) -> Output {
    let path = format!("{}:{}", folder(world).display(), std::env::var("PATH").unwrap_or_default());
    let mut command = tokio::process::Command::new(world.rig.assets.join("kubectl"));
    command.args(arguments).env("PATH", path).env("HOME", &world.rig.folder).env("LC_ALL", "C.UTF-8");
    command.env("KUBECONFIG", world.rig.admin_kubeconfig()).stdin(Stdio::null()).kill_on_drop(true);
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
    let commands: [(&[&str], bool, &str); 9] = [
        (&["why", &by_machine], false, "Why"),
        (&["why", &by_node], false, "Why"),
        (&["why", "deployment/pool"], false, "Why"),
        (&["tree"], false, "Tree"),
        (&["tree", "pool"], false, "Tree"),
        (&["rollout", "status", "pool"], false, "RolloutStatus"),
        (&["rollout", "history", "pool"], false, "RolloutHistory"),
        (&["rollout", "plan", "pool"], true, "RolloutPlan"),
        (&["drain", "plan", &by_node], true, "DrainPlan"),
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
        assert_eq!((said.code, json.code), (0, 0), "PK-070: {command:?}: {}", said.stderr);
        assert!(!said.stdout.contains('\x1b'), "PK-077: a pipe gets no escape sequences");
        let answer = json.json();
        let asks_views = kind != "RolloutHistory";
        let source = if meets == Meets::Views && asks_views { "views" } else { "stored" };
        assert_eq!((text(&answer, "/kind"), text(&answer, "/source")), (kind, source), "PK-070: {answer}");
        assert_eq!(answer["apiVersion"], "cli.machine.sapcloud.io/v1alpha1");
        let reports = said.stderr.matches("the views can't be used").count();
        assert_eq!(reports, usize::from(asks_views && meets == Meets::NoViews), "PK-070: once: {}", said.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_070_every_command_with_views_without_them_and_with_few_rights() {
    let Some((mut world, _)) = with_a_fleet("aggregation::plugin::pk_070_every_command", &[]).await else { return };
    reads(&world, Meets::Views, &[]).await;

    // 403: carol may read the machine objects, and no view.
    let namespace = world.namespace.name.clone();
    let rights = "--resource=machines.machine.sapcloud.io,machinesets.machine.sapcloud.io,machinedeployments.machine.sapcloud.io";
    let create = ["-n", &namespace, "create"];
    let role = [&create[..], &["role", "machines", "--verb=get,list", rights]].concat();
    world.rig.kubectl(&role).await.succeed();
    let binding = [&create[..], &["rolebinding", "machines", "--role=machines", "--user=carol"]].concat();
    world.rig.kubectl(&binding).await.succeed();
    reads(&world, Meets::NoViews, &["--as", "carol"]).await;
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

    world.rig.kubectl(&["delete", "apiservice", API_SERVICE]).await.succeed();
    reads(&world, Meets::NoViews, &[]).await;
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
    let first = ["why", "tree", "rollout", "drain", "replace", "preserve", "wait", "serve"].map(place);
    assert!(first.is_sorted(), "the plugin's commands come first: {help}");

    // A second revision, for the examples that restore one.
    assert_eq!(mcm(&world, &["rollout", "restart", "pool", "--yes"]).await.code, 0);
    assert_eq!(mcm(&world, &["rollout", "status", "pool", "--timeout=2m"]).await.code, 0);
    let commands: [&[&str]; 12] = [
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
