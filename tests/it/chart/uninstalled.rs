//! `helm uninstall`: what it refuses, what it leaves, and what happens between the end of the pods and the end of the webhooks.

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;

use super::released::{EXAMPLES, JOB, NAME, Release, every_object};
use crate::support::{Rig, wait::expect, wait_until};

async fn left_are(rig: &Rig, wanted: &BTreeSet<String>) {
    wait_until("only the wanted objects to be left", Duration::from_secs(60), || async {
        let now = every_object(rig).await;
        expect(now == *wanted, || {
            format!("{:?} are left, {:?} are missing", now.difference(wanted), wanted.difference(&now))
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_042_pk_043_pk_045_helm_uninstall_is_refused_while_machines_exist_and_then_leaves_nothing() {
    let Some(release) = Release::in_own_cluster("pk_042").await else { return };
    let rig = &release.rig;
    let values = release.values();
    let empty = every_object(rig).await;
    release.with_values("install", &values, &[]).expect("installed");
    let outside = release.start_ready().await;
    release.run_example().await;

    // PK-042
    let with_machines = every_object(rig).await;
    let (refused, job) = release.uninstall().await;
    let error = refused.expect_err("machines exist");
    assert!(error.contains(JOB), "{error}");
    assert_eq!(job.code, 1, "{job:?}");
    assert_eq!(job.output.matches("left: Machine ").count(), 3, "{job:?}");
    assert!(
        job.output.contains("left: the finalizer of MachineClass ") && job.output.contains("nothing was done"),
        "{job:?}"
    );
    let mut after = every_object(rig).await;
    assert!(after.remove(&format!("Job {}/{JOB}", release.namespace)), "the job stays for its log");
    assert_eq!(after, with_machines);
    release.machines_running(3).await;
    // The release is in the state `uninstalling` now.
    release.helm(&["rollback", &release.name, "1"]).expect("rolled back");
    release.with_values("upgrade", &values, &[]).expect("upgraded");

    // PK-043
    release.delete_example().await;
    let (done, job) = release.uninstall().await;
    done.unwrap_or_else(|error| panic!("{error}: {job:?}"));
    assert!(job.output.contains(&format!("done: delete ValidatingWebhookConfiguration {NAME}")), "{job:?}");
    outside.end();
    let kinds = ["machineclasses", "machinedeployments", "machines", "machinesets"];
    let definitions = kinds.map(|name| format!("CustomResourceDefinition /{name}.machine.sapcloud.io"));
    let kept: BTreeSet<String> = empty.iter().cloned().chain(definitions).collect();
    left_are(rig, &kept).await;

    // PK-045
    release.with_values("install", &values, &[]).expect("installed again");
    release.helm(&["uninstall", &release.name, "--no-hooks"]).expect("uninstalled");
    left_are(rig, &kept).await;
    let other = release.named("other");
    let error = other.with_values("install", &values, &[]).expect_err("the definitions are of the other release");
    assert!(error.contains("invalid ownership metadata"), "{error}");
    other.with_values("install", &values, other.adopting()).expect("installed under another name");

    // PK-043
    let mut values = values;
    values["crds"] = json!({"keep": false});
    other.with_values("upgrade", &values, &[]).expect("upgraded");
    let (done, job) = other.uninstall().await;
    done.unwrap_or_else(|error| panic!("{error}: {job:?}"));
    left_are(rig, &empty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_044_without_pods_no_request_of_another_group_is_refused_and_our_objects_can_be_deleted() {
    let why = "the development server has no policies";
    let Some(release) = Release::in_real_cluster("pk_044", why).await else { return };
    let mut values = release.values();
    values["policies"] = json!({"enabled": true});
    values["webhooks"]["statusWebhook"] = json!(true);
    release.with_values("install", &values, &[]).expect("installed");
    let outside = release.start_ready().await;
    let class = format!("{EXAMPLES}/machineclass-virtual.yaml");
    release.rig.kubectl(&["apply", "-f", &class]).await.succeed();
    outside.end();

    // The pods have ended, and the webhooks are still registered.
    release.kubectl(&["get", "validatingwebhookconfiguration", NAME]).await.succeed();
    for line in [
        &["create", "configmap", "other"][..],
        &["annotate", "configmap", "other", "a=b"],
        &["delete", "configmap", "other"],
        &["create", "namespace", "other"],
        &["delete", "namespace", "other", "--wait=false"],
        &["create", "role", "other", "--verb=get", "--resource=pods"],
        &["delete", "role", "other"],
    ] {
        release.kubectl(line).await.succeed();
    }
    // The finalizer is one that only the manager of the namespace removes.
    release.rig.kubectl(&["delete", "-f", &class, "--wait=false"]).await.succeed();
    let finalizers = json!({"metadata": {"finalizers": null}}).to_string();
    let patch =
        ["patch", "machineclass", "example-virtual", "--namespace=default", "--type=merge", "--patch", &finalizers];
    release.rig.kubectl(&patch).await.succeed();
    let gone = ["wait", "--for=delete", "machineclass/example-virtual", "--namespace=default", "--timeout=20s"];
    release.rig.kubectl(&gone).await.succeed();
    let refused = release.try_machine("3").await.fail();
    assert!(refused.contains("failed calling webhook"), "{refused}");

    release.helm(&["uninstall", &release.name, "--no-hooks"]).expect("uninstalled");
    release.try_machine("3").await.succeed();
}
