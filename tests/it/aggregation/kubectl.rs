//! Runs every kubectl command that people try on a view, for every view, through an aggregating API server, and checks the printed output. The same
//! checks run against a standby and a process without controllers.

use std::time::Duration;

use serde_json::{Value, json};

use super::{World, views::with_a_fleet};
use crate::support::{Rig, kubectl::Answer, wait_until};

const GROUP: &str = "views.machine.sapcloud.io";
const REFUSED: &str = "the server does not allow this method on the requested resource";

/// A view, as the users of kubectl see it.
struct Known {
    plural: &'static str,
    short: &'static str,
    kind: &'static str,
    /// The header of the table, and the header with `-o wide`.
    columns: &'static str,
    wide: &'static str,
    /// A field, and words of its text in `kubectl explain`.
    field: (&'static str, &'static str),
    /// A word in the output of `kubectl describe`.
    described: &'static str,
}

const LISTED: [Known; 3] = [
    Known {
        plural: "providermachines",
        short: "pvm",
        kind: "ProviderMachine",
        columns: "NAME CLASS STATE MACHINE NODE AGE",
        wide: "NAME PROVIDER ID CLASS STATE MACHINE NODE AGE",
        field: ("state", "Orphan: no machine has the VM"),
        described: "Provider ID:",
    },
    Known {
        plural: "machineoutlooks",
        short: "mco",
        kind: "MachineOutlook",
        columns: "NAME PHASE STAGE NEXT BLOCKED BY DEADLINE AGE",
        wide: "NAME PHASE STAGE NEXT BLOCKED BY DEADLINE NODE AGE",
        field: ("blockers.resolvedBy", "The event that ends the wait"),
        described: "Stage:",
    },
    Known {
        plural: "fleetsummaries",
        short: "fleet",
        kind: "FleetSummary",
        columns: "NAME MACHINES RUNNING PENDING FAILED TERMINATING ORPHANS FROZEN",
        wide: "NAME MACHINES RUNNING PENDING FAILED TERMINATING ORPHANS FROZEN",
        field: ("machines.byStage", "Machines by stage"),
        described: "Capacity:",
    },
];

const PLANS: [Known; 2] = [
    Known {
        plural: "drainplans",
        short: "drp",
        kind: "DrainPlan",
        columns: "NAME NODE MODE PODS WITH VOLUMES BLOCKED ESTIMATE",
        wide: "NAME NODE MODE PODS WITH VOLUMES BLOCKED ESTIMATE",
        field: ("status.blocked.forcedAfter", "deleted without an eviction"),
        described: "Will Force:",
    },
    Known {
        plural: "rolloutplans",
        short: "rop",
        kind: "RolloutPlan",
        columns: "NAME STRATEGY REPLACE KEEP CREATE PEAK MIN AVAILABLE ESTIMATE STUCK",
        wide: "NAME STRATEGY REPLACE UPDATE KEEP CREATE PEAK MIN AVAILABLE ESTIMATE STUCK",
        field: ("spec.assume.updateDuration", "default: ten minutes"),
        described: "Min Available:",
    },
];

/// Runs a command and prints the command with its output, for readers of the test's log.
async fn run(world: &World, arguments: &[&str]) -> Answer {
    let answer = world.namespace.kubectl(arguments).await;
    println!("$ kubectl {}\n{}{}", arguments.join(" "), answer.stdout, answer.stderr);
    answer
}

/// The first line, with one space between words.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

async fn reads(world: &World, known: &Known, name: &str) {
    let Known { plural, short, kind, .. } = *known;
    let table = run(world, &["get", short, name]).await;
    assert_eq!(first_line(&table.stdout), known.columns, "{}", table.stderr);
    assert!(table.stdout.lines().nth(1).is_some_and(|line| line.starts_with(name)), "{}", table.stdout);
    let wide = run(world, &["get", plural, name, "-o", "wide"]).await;
    assert_eq!(first_line(&wide.stdout), known.wide, "{}", wide.stderr);
    let yaml = run(world, &["get", short, name, "-o", "yaml"]).await.succeed();
    for line in [format!("apiVersion: {GROUP}/v1alpha1"), format!("kind: {kind}"), format!("  name: {name}")] {
        assert!(yaml.lines().any(|found| found == line), "{line} in {yaml}");
    }
    assert!(yaml.contains("observedAt: ") && !yaml.contains("managedFields"), "{yaml}");
    let described = run(world, &["describe", short, name]).await.succeed();
    for word in ["Name:", name, known.described, "Observed At:"] {
        assert!(described.contains(word), "{word} in {described}");
    }
    let (field, says) = known.field;
    let explained = run(world, &["explain", plural]).await.succeed();
    assert!(explained.contains(&format!("KIND:       {kind}")) && explained.contains("FIELDS:"), "{explained}");
    let explained = run(world, &["explain", &format!("{short}.{field}")]).await.succeed();
    assert!(explained.split_whitespace().collect::<Vec<_>>().join(" ").contains(says), "{explained}");
}

async fn is_refused(world: &World, arguments: &[&str]) {
    let refused = run(world, arguments).await;
    assert!(!refused.succeeded(), "{}", refused.stdout);
    let lines: Vec<&str> = refused.stderr.lines().filter(|line| !line.starts_with("Warning:")).collect();
    assert_eq!(lines, [format!("Error from server (MethodNotAllowed): {REFUSED}")], "one line with the error");
}

/// The answer of `kubectl auth can-i` for a user with one of the roles of the views.
async fn may(world: &World, user: &str, verb: &str, plural: &str) -> String {
    let (user, what) = (format!("--as={user}"), format!("{plural}.{GROUP}"));
    let answer = run(world, &["auth", "can-i", verb, &what, &user]).await;
    answer.stdout.trim().to_owned()
}

async fn bind(rig: &Rig, namespace: &str, role: &str, user: &str) {
    let (name, role, user) = (format!("{role}-{user}"), format!("--clusterrole={role}"), format!("--user={user}"));
    rig.kubectl(&["-n", namespace, "create", "rolebinding", &name, &role, &user]).await.succeed();
}

fn reviews(machine: &str) -> [Value; 2] {
    let review = |kind: &str, spec: &Value| json!({ "apiVersion": format!("{GROUP}/v1alpha1"), "kind": kind, "metadata": { "name": "what-if" }, "spec": spec });
    [
        review("DrainPlan", &json!({ "machineName": machine, "force": true })),
        review("RolloutPlan", &json!({ "machineDeploymentName": "pool", "proposed": { "replicas": 3 } })),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_141_xa_145_every_command_on_every_view() {
    let Some((world, machines)) = with_a_fleet("aggregation::kubectl::every_command", &[]).await else { return };
    let (rig, namespace, machine) = (&world.rig, world.namespace.name.as_str(), machines[0].as_str());

    let resources = run(&world, &["api-resources", &format!("--api-group={GROUP}"), "-o", "wide"]).await.succeed();
    for known in LISTED.iter().chain(&PLANS) {
        let line = resources.lines().find(|line| line.starts_with(known.plural)).unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let plain = [known.plural, known.short, &format!("{GROUP}/v1alpha1"), "true", known.kind];
        assert_eq!(words.get(..5), Some(&plain[..]), "{resources}");
        let verbs = if known.plural.ends_with("plans") { "create,get" } else { "get,list" };
        assert_eq!(words.get(5), Some(&verbs), "{resources}");
    }

    let vm = wait_until("the VM to be owned", Duration::from_secs(60), || async {
        let all = world.namespace.list("pvm").await;
        let owned = all.iter().find(|vm| vm["machineRef"]["name"] == machine && vm["state"] == "Owned");
        owned.and_then(|vm| vm["metadata"]["name"].as_str().map(str::to_owned)).ok_or_else(|| format!("{all:?}"))
    })
    .await;
    for (known, name) in LISTED.iter().zip([vm.as_str(), machine, namespace]) {
        reads(&world, known, name).await;
        let listed = run(&world, &["get", known.short]).await;
        assert_eq!(first_line(&listed.stdout), known.columns, "{}", listed.stderr);
        is_refused(&world, &["get", known.short, "-w"]).await;
        is_refused(&world, &["delete", known.short, name]).await;
    }
    for (known, name) in PLANS.iter().zip([machine, "pool"]) {
        reads(&world, known, name).await;
        is_refused(&world, &["get", known.short]).await;
        is_refused(&world, &["get", known.short, name, "-w"]).await;
    }
    let explained = run(&world, &["explain", "mco.stage"]).await.succeed();
    let words: Vec<&str> = explained.split_whitespace().collect();
    assert!(words.windows(3).any(|three| three == ["ENUM:", "Create", "Join"]), "{explained}");
    // The category `machineviews` contains all views that can be listed.
    let all = run(&world, &["get", "machineviews"]).await;
    assert!(all.succeeded() && all.stdout.contains("STAGE") && all.stdout.contains("ORPHANS"), "{}", all.stderr);

    for (known, review) in PLANS.iter().zip(reviews(machine)) {
        let file = rig.folder.join(format!("{}.json", known.short));
        std::fs::write(&file, review.to_string()).expect("the rig's folder is writable");
        let file = file.display().to_string();
        let created = run(&world, &["create", "--dry-run=server", "-f", &file]).await.succeed();
        assert_eq!(created.trim(), format!("{}.{GROUP}/what-if created (server dry run)", known.kind.to_lowercase()));
        let table = run(&world, &["create", "--dry-run=server", "-f", &file, "-o", "yaml"]).await.succeed();
        assert!(table.contains("observedAt: "), "{table}");
        if known.kind == "RolloutPlan" {
            let denied = review.to_string().replace("\"replicas\":3", "\"replicas\":-3");
            std::fs::write(&file, denied).expect("the rig's folder is writable");
            let output = run(&world, &["create", "-f", &file]).await;
            assert!(
                output.succeeded() && output.stderr.contains("Warning: would be denied: spec.replicas"),
                "{}",
                output.stderr
            );
        }
        let mistaken = review.to_string().replace("\"spec\":{", "\"spec\":{\"mistake\":1,");
        std::fs::write(&file, mistaken).expect("the rig's folder is writable");
        let refused = run(&world, &["create", "--dry-run=server", "-f", &file]).await.fail();
        assert!(refused.contains("unknown field") && refused.contains("mistake"), "{refused}");
    }

    // The roles grant the rights that their names promise, and no others.
    bind(rig, namespace, "mcm-views-reader", "reader").await;
    bind(rig, namespace, "mcm-views-planner", "planner").await;
    bind(rig, namespace, "mcm-drainplan-reader", "drainer").await;
    for (user, verb, plural, expected) in [
        ("nobody", "get", "machineoutlooks", "no"),
        ("reader", "list", "providermachines", "yes"),
        ("reader", "list", "machineoutlooks", "yes"),
        ("reader", "list", "fleetsummaries", "yes"),
        ("reader", "get", "rolloutplans", "yes"),
        ("reader", "create", "rolloutplans", "no"),
        ("reader", "get", "drainplans", "no"),
        ("planner", "create", "rolloutplans", "yes"),
        ("planner", "create", "drainplans", "yes"),
        ("planner", "list", "providermachines", "no"),
        ("drainer", "get", "drainplans", "yes"),
        ("drainer", "create", "drainplans", "no"),
        ("reader", "delete", "machineoutlooks", "no"),
    ] {
        assert_eq!(may(&world, user, verb, plural).await, expected, "{user} {verb} {plural}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_and_a_process_without_loops_have_all_views() {
    let Some((mut world, machines)) = with_a_fleet("aggregation::kubectl::a_standby_and_one_without_loops", &[]).await
    else {
        return;
    };
    // A process that waits for leases that another process holds.
    let lease = |name: &str| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name },
            "spec": { "holderIdentity": "another", "leaseDurationSeconds": 3600, "leaseTransitions": 1,
                      "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z" },
        })
    };
    let leases = [lease("machine-controller-manager"), lease("machine-controller")];
    let leases = json!({ "apiVersion": "v1", "kind": "List", "items": leases }).to_string();
    world.manager.terminate();
    world.namespace.apply(&leases).await.succeed();
    world.manager.restart_with(&["--leader-elect=true"]);
    world.manager.wait_until_ready().await;
    wait_until("an outlook of a standby", Duration::from_secs(60), || async {
        let answer = world.namespace.kubectl(&["get", "mco", &machines[0], "-o", "json"]).await;
        let standing = if answer.succeeded() { answer.json()["status"].clone() } else { return Err(answer.stderr) };
        let stands_by = standing["computedBy"] == "standby" && standing["controllersRunning"] == false;
        if stands_by { Ok(()) } else { Err(standing.to_string()) }
    })
    .await;
    reads(&world, &PLANS[1], "pool").await;

    // A process without controllers reports this state.
    world.manager.terminate();
    world.manager.restart_with(&["--controllers=none"]);
    world.manager.wait_until_ready().await;
    let outlook = wait_until("an outlook of a process that only serves", Duration::from_secs(60), || async {
        let answer = world.namespace.kubectl(&["get", "mco", &machines[0], "-o", "json"]).await;
        if answer.succeeded() { Ok(answer.json()) } else { Err(answer.stderr) }
    })
    .await;
    assert_eq!(
        (&outlook["phase"], &outlook["status"]["computedBy"], &outlook["status"]["controllersRunning"]),
        (&json!("Running"), &json!("standby"), &json!(false)),
        "{outlook:#}"
    );
    for (known, name) in
        LISTED[1..].iter().chain(&PLANS).zip([machines[0].as_str(), &world.namespace.name, &machines[0], "pool"])
    {
        reads(&world, known, name).await;
    }
    // Only the leader runs the simulated cloud. Therefore the table shows the machines and a warning that the provider was not queried.
    let rows = run(&world, &["get", "pvm"]).await;
    assert!(rows.succeeded() && machines.iter().all(|machine| rows.stdout.contains(machine)), "{}", rows.stderr);
}
