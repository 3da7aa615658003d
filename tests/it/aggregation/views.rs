//! kubectl commands that people use on views, through an aggregating API server, with a fleet of the virtual cloud. The ids come from the
//! specification.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    aggregation::World,
    fleet::{manifests, running_machines},
    support::{kubectl::Answer, ports::free_port, wait_until},
    weather::{Cloud, FLEET},
};

const TIMEOUT: Duration = Duration::from_secs(60);
const GROUP: &str = "views.machine.sapcloud.io";

/// A world with two running machines of the deployment `pool`.
pub async fn with_a_fleet(test: &str, flags: &[&str]) -> Option<(World, Vec<String>)> {
    let world = World::begin(test, flags).await?;
    world.namespace.apply(&manifests(&world.namespace.name, "pool", 2, FLEET)).await.succeed();
    let machines = running_machines(&world.namespace, 2, TIMEOUT).await;
    let names = machines.iter().filter_map(|machine| machine["metadata"]["name"].as_str()).map(str::to_owned).collect();
    // Clients cache discovery for a while. Therefore the views must be discovered before the first command.
    wait_until("the views to be discovered", TIMEOUT, || async {
        let answer = world.rig.kubectl(&["api-resources", "--cached=false", &format!("--api-group={GROUP}")]).await;
        if answer.stdout.contains("machineoutlooks") { Ok(()) } else { Err(answer.stdout + &answer.stderr) }
    })
    .await;
    Some((world, names))
}

fn has_all(answer: &Answer, words: &[&str]) {
    for word in words {
        assert!(answer.stdout.contains(word), "{word} in {}{}", answer.stdout, answer.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_141_kubectl_reads_views_like_any_other_resource() {
    let Some((world, machines)) = with_a_fleet("aggregation::views::kubectl_reads_views", &[]).await else { return };
    let namespace = &world.namespace;
    let machine = machines[0].as_str();
    let list = namespace.kubectl(&["get", "mco"]).await;
    list.succeeded();
    has_all(&list, &["NAME", "PHASE", "STAGE", "NEXT", "BLOCKED BY", "DEADLINE", "AGE", "Running", machine]);
    has_all(&namespace.kubectl(&["get", "machineoutlooks", "-o", "wide"]).await, &["NODE", machine]);
    has_all(&namespace.kubectl(&["get", "mco", machine, "-o", "yaml"]).await, &["kind: MachineOutlook", "observedAt:"]);
    let name = namespace.kubectl(&["get", "mco", "-o", "name"]).await.succeed();
    assert!(name.contains(&format!("machineoutlook.{GROUP}/{machine}")), "{name}");
    has_all(&namespace.kubectl(&["get", "fleet"]).await, &["MACHINES", "RUNNING", &namespace.name]);
    // kubectl prints one table per kind.
    has_all(&namespace.kubectl(&["get", "mco,fleet,machines"]).await, &["STAGE", "ORPHANS", machine]);
    has_all(&world.rig.kubectl(&["get", "mco", "-A"]).await, &["NAMESPACE", machine]);
    has_all(&namespace.kubectl(&["get", "mco", "--field-selector", "phase=Running"]).await, &[machine]);
    let none = namespace.kubectl(&["get", "mco", "--field-selector", "phase=Failed"]).await;
    assert!(none.stderr.contains("No resources found"), "{}", none.stderr);
    has_all(&namespace.kubectl(&["get", "mco", "-l", "fleet=pool"]).await, &[machine]);
    has_all(&namespace.kubectl(&["get", "mco", "--chunk-size=1"]).await, &[machine, &machines[1]]);
    has_all(&namespace.kubectl(&["describe", "mco", machine]).await, &["Name:", machine, "Phase:"]);
    has_all(&namespace.kubectl(&["explain", "machineoutlooks"]).await, &["MachineOutlook", "FIELDS", "phase"]);
    has_all(&namespace.kubectl(&["explain", "mco.status.observedAt"]).await, &["observedAt"]);
    let resources = world.rig.kubectl(&["api-resources", &format!("--api-group={GROUP}")]).await;
    has_all(&resources, &["mco", "MachineOutlook", "true"]);
    has_all(&namespace.kubectl(&["auth", "can-i", "list", &format!("machineoutlooks.{GROUP}")]).await, &["yes"]);
    let absent = namespace.kubectl(&["get", "mco", "nobody"]).await.fail();
    assert!(absent.contains(&format!("machineoutlooks.{GROUP} \"nobody\" not found")), "{absent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_145_xa_146_views_can_only_be_read() {
    let Some((world, machines)) = with_a_fleet("aggregation::views::only_read", &[]).await else { return };
    let (namespace, machine) = (&world.namespace, machines[0].as_str());
    let refused = "the server does not allow this method on the requested resource";
    let watched = namespace.kubectl(&["get", "mco", "-w"]).await;
    assert!(watched.stderr.contains(refused), "XA-145: {}{}", watched.stdout, watched.stderr);
    let deleted = namespace.kubectl(&["delete", "mco", machine]).await.fail();
    assert!(deleted.contains(refused), "XA-146: {deleted}");
    let patched =
        namespace.kubectl(&["patch", "mco", machine, "--type=merge", "-p", "{\"phase\": \"x\"}"]).await.fail();
    assert!(patched.contains(refused), "XA-146: {patched}");
    let object = namespace.get("mco", machine).await.to_string();
    let file = world.rig.folder.join("outlook.json");
    std::fs::write(&file, object).expect("the rig's folder is writable");
    let replaced = namespace.kubectl(&["replace", "-f", &file.display().to_string()]).await.fail();
    assert!(replaced.contains("does not allow this method") || replaced.contains("not allowed"), "XA-146: {replaced}");
}

#[tokio::test(flavor = "multi_thread")]
async fn th_28_readers_need_rights_on_the_view_and_on_its_source_only() {
    let Some((world, machines)) = with_a_fleet("aggregation::views::readers", &[]).await else { return };
    let namespace = world.namespace.name.as_str();
    let ask = async |rest: &[&str]| {
        let mut arguments = vec!["-n", namespace, "get"];
        arguments.extend_from_slice(rest);
        world.rig.kubectl_as_alice(&arguments).await
    };
    let refused = ask(&["mco"]).await.fail();
    assert!(refused.contains("alice") && refused.contains(GROUP), "XA-142: {refused}");
    let bind = async |role: &str, name: &str| {
        let role = format!("--clusterrole={role}");
        world.rig.kubectl(&["-n", namespace, "create", "rolebinding", name, &role, "--user=alice"]).await.succeed();
    };
    bind("mcm-views-reader", "views").await;
    wait_until("the view's right to count, and the source's to be missing", Duration::from_secs(30), || async {
        let refused = ask(&["mco"]).await.stderr;
        if refused.contains("cannot list resource \"machines\"") { Ok(()) } else { Err(refused) }
    })
    .await;
    let reads =
        ["create", "clusterrole", "machine-reader", "--verb=get,list", "--resource=machines.machine.sapcloud.io"];
    world.rig.kubectl(&reads).await.succeed();
    bind("machine-reader", "machines").await;
    // The authorizer caches a refusal for ten seconds.
    wait_until("both rights to count", Duration::from_secs(30), || async {
        let answer = ask(&["mco"]).await;
        if answer.stdout.contains(&machines[0]) { Ok(()) } else { Err(answer.stderr) }
    })
    .await;
    for elsewhere in [&["-n", "default", "get", "mco"][..], &["get", "mco", "-A"]] {
        let refused = world.rig.kubectl_as_alice(elsewhere).await.fail();
        assert!(refused.contains("forbidden"), "TH-28: {refused}");
    }
}

/// The answer of a view, or kubectl's error output.
async fn raw(world: &World, path: &str) -> Result<Value, String> {
    let answer = world.rig.kubectl(&["get", "--raw", &world.path(path)]).await;
    if answer.succeeded() { Ok(answer.json()) } else { Err(answer.stderr) }
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_139_every_view_answers_or_is_not_there() {
    let Some((world, _)) = with_a_fleet("aggregation::views::every_view", &["--views=machineoutlooks"]).await else {
        return;
    };
    let list = world.rig.kubectl(&["get", "--raw", "/apis/views.machine.sapcloud.io/v1alpha1"]).await.json();
    let names: Vec<&Value> = list["resources"].as_array().expect("a list").iter().map(|one| &one["name"]).collect();
    assert_eq!(names, [&json!("machineoutlooks")], "the enabled views");
    assert!(raw(&world, "fleetsummaries").await.is_err());
    assert_eq!(raw(&world, "machineoutlooks").await.expect("a list")["items"].as_array().map(Vec::len), Some(2));
}

/// The number of calls for the list of VMs so far.
async fn lists(world: &World) -> u64 {
    let metrics = world.manager.http_get("/metrics").await;
    let line = metrics.lines().find(|line| {
        line.starts_with("mcm_cloud_api_driver_request_duration_seconds_count") && line.contains("list_machine")
    });
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_149_xa_150_xa_151_th_30_vms_of_the_provider_are_shown_with_few_calls() {
    let port = free_port();
    let admin = format!("--simulation-admin=127.0.0.1:{port}");
    let flags = [admin.as_str(), "--inventory-max-age=1s", "--machine-safety-orphan-vms-period=1h"];
    let Some((world, machines)) = with_a_fleet("aggregation::views::what_the_provider_has", &flags).await else {
        return;
    };
    let cloud = Cloud::at(port);
    let namespace = &world.namespace;
    let rows = async || namespace.kubectl(&["get", "pvm"]).await;
    wait_until("both VMs to be owned", TIMEOUT, || async {
        let answer = rows().await;
        let owned = machines.iter().all(|machine| answer.stdout.contains(machine)) && answer.stdout.contains("Owned");
        if owned { Ok(()) } else { Err(answer.stdout + &answer.stderr) }
    })
    .await;

    // XA-149: a VM that the manager did not create.
    let orphan = cloud.create_orphan(&namespace.name, "never-was").await;
    let seen = wait_until("the orphan to be seen", TIMEOUT, || async {
        let all = namespace.list("pvm").await;
        let found = all.iter().find(|vm| vm["providerID"] == orphan.as_str() && vm["state"] == "Orphan").cloned();
        found.ok_or_else(|| format!("{all:#?}"))
    })
    .await;
    assert!(seen.get("machineRef").is_none(), "{seen}");

    // XA-151: many requests cause few calls.
    let (client, path) = (world.rig.client().await, world.path("providermachines"));
    let before = lists(&world).await;
    let asked = (0..100).map(|_| async {
        let request = http::Request::get(&path).body(Vec::new()).expect("a request");
        client.request_text(request).await.map(drop)
    });
    for answer in futures::future::join_all(asked).await {
        answer.expect("a list");
    }
    let calls = lists(&world).await - before;
    assert!(calls <= 2, "{calls} calls for a hundred requests");

    // XA-150: listing the VMs fails at the provider.
    cloud.fails(json!([{"op": "list", "code": "Unavailable"}])).await;
    wait_until("the failure to be reported", TIMEOUT, || async {
        let answer = rows().await;
        if answer.succeeded() && answer.stderr.contains("Warning:") {
            Ok(())
        } else {
            Err(answer.stdout + &answer.stderr)
        }
    })
    .await;
    // kubectl and kube retry on `Retry-After` ten times and more before they report the error.
    let one = http::Request::get(format!("{path}/nobody.00000000")).body(Vec::new()).expect("a request");
    let absent = world.rig.client_without_retries().await.request_text(one).await.expect_err("no answer");
    assert!(matches!(&absent, kube::Error::Api(error) if error.code == 503), "{absent}");
}
