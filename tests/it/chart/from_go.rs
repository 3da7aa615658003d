//! From the Go programs to the chart, and back to the Go programs (docs/migrate-from-go.md). Stand-ins write as the Go programs do.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use super::{
    adopted::definitions_of_another_program,
    released::{NAME, NAMESPACE, Release},
};
use crate::{
    go::{
        halves::{GoHalf, Which},
        left_behind::{self, KINDS},
    },
    support::{
        cluster_object::{items, name, text},
        wait::expect,
        wait_until,
    },
};

const TIMEOUT: Duration = Duration::from_secs(90);
/// Several passes of the stand-ins over all sets and machines.
const PASSES: Duration = Duration::from_secs(3);

/// What is wanted of each object: everything that is no status and no bookkeeping.
async fn wanted(release: &Release) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (plural, group, _) in KINDS.iter().filter(|(_, group, _)| !group.is_empty()) {
        let resource = format!("{plural}.{group}");
        for object in items(&release.kubectl(&["get", &resource, "--output", "json"]).await.json()) {
            let mut fields = ["spec", "provider", "providerSpec", "secretRef"].map(|field| object[field].clone());
            // The Go programs leave a zero out, and our definitions fill it in.
            if *plural == "machinesets" && fields[0]["replicas"].is_null() {
                fields[0]["replicas"] = json!(0);
            }
            let metadata = ["uid", "labels", "annotations", "ownerReferences", "deletionTimestamp"]
                .map(|field| object["metadata"][field].clone());
            all.insert(format!("{plural}/{}", name(&object)), json!([fields, metadata]));
        }
    }
    all
}

fn unchanged(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) {
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (key, object) in before {
        assert_eq!(object, &after[key], "{key} has changed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_115_a_fleet_of_the_go_programs_is_taken_over_by_the_chart_and_given_back() {
    let Some(release) = Release::in_own_cluster("pk_115").await else { return };
    let rig = &release.rig;
    rig.apply(&definitions_of_another_program()).await.succeed();
    rig.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]).await.succeed();
    left_behind::recreate(&rig.client().await, NAMESPACE, |_| true).await;
    let before = wanted(&release).await;
    assert!(before.len() > 30, "{:?}", before.keys());

    // The VMs of these machines do not exist, so the controllers that create and delete VMs are off.
    let mut values = release.values();
    values["flags"] = json!({"controllers": ["machinedeployment", "machineset"]});
    release.with_values("install", &values, release.adopting()).expect("installed");
    let outside = release.start_ready().await;
    wait_until("every deployment to be reconciled", TIMEOUT, || async {
        let deployments = items(&release.kubectl(&["get", "machinedeployments", "--output", "json"]).await.json());
        let all = deployments.iter().all(|deployment| !text(deployment, "/status/selector").is_empty());
        expect(all, || format!("{}\n{}", json!(deployments), outside.process.log_tail()))
    })
    .await;
    unchanged(&before, &wanted(&release).await);
    // The webhooks of the chart judge: the objects of the Go programs pass, and a mistake does not.
    let refused = release.try_machine("high").await.fail();
    assert!(refused.contains("must be an integer"), "{refused}");

    // The way back, in the order of the page.
    let registrations = "validatingwebhookconfiguration,mutatingwebhookconfiguration";
    rig.kubectl(&["delete", registrations, NAME]).await.succeed();
    outside.end();
    let client = rig.client().await;
    let _halves = [Which::Sets, Which::Machines].map(|half| GoHalf::start(half, client.clone(), NAMESPACE));
    tokio::time::sleep(PASSES).await;
    let after = wanted(&release).await;
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "no machine is made or deleted");
    for (key, object) in &before {
        let identity = |object: &Value| (object[1][0].clone(), object[1][4].clone());
        assert_eq!(identity(object), identity(&after[key]), "{key} is another object, or is being deleted");
    }
    release.kubectl(&["scale", "machineset", "surge-664b9", "--replicas=7"]).await.succeed();
    wait_until("the Go programs to make a machine", TIMEOUT, || async {
        let count = wanted(&release).await.keys().filter(|key| key.starts_with("machines/")).count();
        let earlier = before.keys().filter(|key| key.starts_with("machines/")).count();
        expect(count == earlier + 1, || format!("{count} machines, {earlier} before"))
    })
    .await;
}
