//! Plans through an API server that aggregates: what a change would do, and what a drain would do. The ids are those of the
//! specification.

use serde_json::{Value, json};

use crate::{
    aggregation_views::with_a_fleet,
    guard,
    support::{cluster_object::text, wait_until},
};

#[tokio::test(flavor = "multi_thread")]
async fn xa_147_xa_148_a_proposal_is_answered_and_nothing_is_stored() {
    let Some((world, _)) = with_a_fleet("aggregation_plans::a_proposal", &[]).await else { return };
    let namespace = &world.namespace;
    let review = json!({
        "apiVersion": "views.machine.sapcloud.io/v1alpha1", "kind": "RolloutPlan", "metadata": {"name": "what-if"},
        "spec": {"machineDeploymentName": "pool", "proposed": {"replicas": 5}},
    });
    let file = world.rig.folder.join("rolloutplan.json");
    std::fs::write(&file, review.to_string()).expect("the rig's folder is writable");
    let file = file.display().to_string();
    let plan = async |further: &[&str]| {
        let mut arguments = vec!["create", "-f", &file, "-o", "json"];
        arguments.extend_from_slice(further);
        let mut plan = namespace.kubectl(&arguments).await.json();
        plan["status"]["observedAt"] = Value::Null;
        plan
    };
    let first = plan(&[]).await;
    assert!(first["status"]["steps"].as_array().is_some_and(|steps| !steps.is_empty()), "XA-147: {first:#}");
    assert_eq!(first["status"]["toCreate"], 3, "XA-147: {first:#}");
    assert_eq!(plan(&["--dry-run=server"]).await["status"], first["status"], "XA-148");
    let stored = namespace.kubectl(&["get", "rolloutplan", "what-if"]).await.fail();
    assert!(stored.contains("not found"), "XA-147: {stored}");
    let table = namespace.kubectl(&["get", "rop", "pool"]).await;
    assert!(
        table.stdout.contains("STRATEGY") && table.stdout.contains("RollingUpdate"),
        "{}{}",
        table.stdout,
        table.stderr
    );
    let deployment = namespace.get("machinedeployment", "pool").await;
    assert_eq!(deployment["spec"]["replicas"], 2, "nothing was changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_152_a_plan_names_the_budget_that_blocks() {
    let Some((world, machines)) = with_a_fleet("aggregation_plans::the_budget", &[]).await else { return };
    world.rig.with_controller_manager().await;
    let (namespace, machine) = (&world.namespace, machines[0].as_str());
    let node = text(&namespace.get("machine", machine).await, "/metadata/labels/node").to_owned();
    guard::a_pod_on(namespace, &node).await;
    let blocked = wait_until("the plan to name pod and budget", std::time::Duration::from_secs(60), || async {
        let answer = namespace.kubectl(&["get", "drainplan", machine, "-o", "json"]).await;
        if !answer.succeeded() {
            return Err(answer.stderr);
        }
        let plan = answer.json();
        let blocked = plan["status"]["blocked"].as_array().cloned().unwrap_or_default();
        blocked.into_iter().next().ok_or_else(|| plan["status"].to_string())
    })
    .await;
    assert_eq!(blocked["name"], guard::NAME, "{blocked}");
    assert_eq!(blocked["budget"]["name"], guard::NAME, "{blocked}");
    // One pod under a budget that wants one: it can never allow an eviction.
    assert_eq!(blocked["misconfigured"], true, "{blocked}");
    let table = namespace.kubectl(&["get", "drp", machine]).await;
    assert!(table.stdout.contains("BLOCKED") && table.stdout.contains(&node), "{}{}", table.stdout, table.stderr);
    assert_eq!(namespace.list("pods").await.len(), 1, "nothing was drained");
}
