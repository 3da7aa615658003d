//! Two releases in one cluster, each for its own namespace.

use serde_json::{Value, json};

use super::released::Release;

/// Its webhooks accept what is right and refuse what is wrong.
async fn judges(release: &Release) {
    release.try_machine("3").await.succeed();
    let refused = release.try_machine("high").await.fail();
    assert!(refused.contains("must be an integer"), "{refused}");
}

fn values(release: &Release, has_definitions: bool) -> Value {
    let mut values = release.values();
    values["scope"] = json!("namespace");
    values["crds"] = json!({"install": has_definitions});
    values
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_030_releases_of_two_namespaces_judge_their_own_objects_and_end_alone() {
    let Some(first) = Release::in_own_cluster("pk_030").await else { return };
    let second = first.in_namespace("second").await;
    first.with_values("install", &values(&first, true), &[]).expect("installed");
    second.with_values("install", &values(&second, false), &[]).expect("installed");
    let of_first = first.start_ready().await;
    let of_second = second.start_ready().await;
    judges(&first).await;
    judges(&second).await;

    // While one process is away, only its own namespace is refused.
    of_second.end();
    judges(&first).await;
    let refused = second.try_machine("3").await.fail();
    assert!(refused.contains("failed calling webhook"), "{refused}");
    let of_second = second.start_ready().await;
    judges(&second).await;

    // The first one has the definitions, which stay.
    let before = second.state().await;
    let (done, job) = first.uninstall().await;
    done.unwrap_or_else(|error| panic!("{error}: {job:?}"));
    of_first.end();
    assert_eq!(second.state().await, before);
    judges(&second).await;
    // Without webhooks the definitions alone judge.
    first.try_machine("high").await.succeed();

    let (done, job) = second.uninstall().await;
    done.unwrap_or_else(|error| panic!("{error}: {job:?}"));
    of_second.end();
}
