//! Machine objects in one cluster and Nodes in the other, with a release in each.

use std::{path::Path, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::released::{NAME, Outside, Release};
use crate::support::{
    cluster_object::{items, name},
    wait::expect,
    wait_until,
};

/// How long a client uses a token after its file has changed, and an API server after the token has been withdrawn.
const TOKEN_IN_USE: Duration = Duration::from_secs(60 + 10);

/// The Nodes of the release's cluster.
async fn nodes(release: &Release) -> Vec<Value> {
    items(&release.rig.kubectl(&["get", "nodes", "--output", "json"]).await.json())
}

/// Sets the number of machines, and waits until they run with their Nodes in the other cluster.
async fn scale(control: &Release, target: &Release, replicas: usize) {
    let flag = format!("--replicas={replicas}");
    control.kubectl(&["scale", "machinedeployment", "example-deployment", &flag]).await.succeed();
    control.machines_running(replicas).await;
    wait_until("one Node for each machine", Duration::from_secs(60), || async {
        let nodes = nodes(target).await;
        expect(nodes.len() == replicas, || format!("{:?}", nodes.iter().map(name).collect::<Vec<_>>()))
    })
    .await;
    assert_eq!(nodes(control).await, Vec::<Value>::new(), "no Node is where the machine objects are");
}

/// A token that is valid as long as a Secret of this name exists, which is created.
async fn token_until_withdrawn(release: &Release, secret: &str) -> String {
    release.kubectl(&["create", "secret", "generic", secret]).await.succeed();
    let bound = ["--bound-object-kind=Secret", "--bound-object-name", secret];
    let line = [&["create", "token", NAME][..], &bound].concat();
    release.kubectl(&line).await.succeed().trim().to_owned()
}

/// Replaces a file as a kubelet does.
fn replace(path: &Path, content: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, content).expect("the rig's folder is writable");
    std::fs::rename(&next, path).expect("the rig's folder is writable");
}

/// A kubeconfig that reads its token from a file.
async fn kubeconfig_with_token_file(release: &Release, token: &Path) -> String {
    let path = release.kubeconfig_of(NAME).await;
    let mut config: Value = serde_json::from_slice(&std::fs::read(path).expect("just written")).expect("JSON");
    config["users"][0]["user"] = json!({"tokenFile": token});
    config.to_string()
}

/// Starts the process of a Deployment with the files of its mounted kubeconfigs, and waits until it is ready.
async fn started(release: &Release, mounted: &[(&str, String)], further: Vec<String>) -> Outside {
    let outside = release.start_with(mounted, further);
    outside.wait_until_ready().await;
    outside
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_031_machine_objects_and_nodes_are_in_two_clusters() {
    let why = "tokens of the development server are not bound to Secrets";
    let Some(control) = Release::in_real_cluster("pk_031_two_clusters", why).await else { return };
    let cluster = control.rig.another().await;
    let Some(mut target) = Release::in_cluster("pk_031_two_clusters", cluster).await else { return };
    target.secure_port = control.secure_port;
    let rights = json!({"simulation": {"enabled": true}, "bootstrapTokens": {"enabled": true}});
    let with = |further: Value| {
        let mut values = rights.clone();
        values.as_object_mut().expect("a map").extend(further.as_object().expect("a map").clone());
        values
    };
    let elsewhere = json!({"mode": "kubeconfig", "kubeconfig": {"secretName": "target"}});
    let url = json!({"url": format!("https://127.0.0.1:{}", control.secure_port)});
    target.with_values("install", &with(json!({"part": "target"})), &[]).expect("installed");
    let values = with(json!({"part": "control", "target": elsewhere, "webhooks": url}));
    control.with_values("install", &values, &[]).expect("installed");

    // The manager runs beside the machine objects.
    let token_file = target.rig.folder.join("token");
    replace(&token_file, &token_until_withdrawn(&target, "first").await);
    let path = target.rig.folder.join("mounted-target");
    replace(&path, &kubeconfig_with_token_file(&target, &token_file).await);
    let in_cluster = control.kubeconfig_of(NAME).await.display().to_string();
    let mounted = [("inClusterConfig", in_cluster), ("/kubeconfigs/target/kubeconfig", path.display().to_string())];
    let manager = started(&control, &mounted, Vec::new()).await;
    replace(&token_file, &token_until_withdrawn(&target, "second").await);
    let replaced = Instant::now();
    control.run_example().await;
    scale(&control, &target, 4).await;

    tokio::time::sleep_until(replaced + Duration::from_secs(60)).await;
    target.kubectl(&["delete", "secret", "first"]).await.succeed();
    tokio::time::sleep_until(replaced + TOKEN_IN_USE).await;
    scale(&control, &target, 3).await;
    scale(&control, &target, 4).await;
    let log = manager.process.log();
    for refusal in ["Forbidden", "Unauthorized"] {
        assert!(!log.contains(refusal), "{log}");
    }
    // Any other content ends the process, to come back with it.
    replace(&path, &std::fs::read_to_string(target.kubeconfig_of(NAME).await).expect("just written"));
    manager.ended_well(Duration::from_secs(30));

    // The manager runs beside the Nodes.
    let values = with(json!({"part": "control", "replicas": 0, "target": {"mode": "none"}, "webhooks": url}));
    control.with_values("upgrade", &values, &[]).expect("upgraded");
    let values = with(json!({"control": {"kubeconfig": {"secretName": "control"}}}));
    target.with_values("upgrade", &values, &[]).expect("upgraded");
    let path = target.kubeconfig_of(NAME).await.display().to_string();
    let from = control.kubeconfig_of(NAME).await.display().to_string();
    let mounted = [("/kubeconfigs/control/kubeconfig", from)];
    let manager = started(&target, &mounted, vec![format!("--target-kubeconfig={path}")]).await;
    scale(&control, &target, 2).await;
    let (refused, job) = target.uninstall_with(&mounted).await;
    assert!(refused.is_err() && job.output.contains("objects need the manager of namespace"), "{refused:?} {job:?}");
    control.delete_example().await;
    wait_until("the last Node to go", Duration::from_secs(60), || async {
        let nodes = nodes(&target).await;
        expect(nodes.is_empty(), || format!("{:?}", nodes.iter().map(name).collect::<Vec<_>>()))
    })
    .await;
    assert!(!manager.process.log().contains("Forbidden"), "{}", manager.process.log());
    let (done, job) = target.uninstall_with(&mounted).await;
    done.unwrap_or_else(|error| panic!("{error}: {job:?}"));
    manager.end();
}
