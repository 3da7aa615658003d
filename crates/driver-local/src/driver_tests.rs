//! Tests of the calls of the driver against the development server, in paused time.

use machine_driver::contract;
use serde_json::{Value, json};

use super::*;
use crate::test_rig::{Rig, class, secret};

/// A creation while all pods run.
async fn made(rig: &Rig) -> Result<CreatedVm, Status> {
    tokio::select! {
        made = rig.create() => made,
        () = rig.run_pods() => unreachable!("it runs until it is dropped"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_contract_of_drivers_holds() {
    let rig = Rig::new();
    tokio::select! {
        () = contract::holds_for(&rig.driver, class(&json!({})), secret()) => {}
        () = rig.run_pods() => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_a_pod_with_a_secret_and_a_service() {
    let rig = Rig::new();
    let vm = made(&rig).await.unwrap().vm;
    assert_eq!((vm.provider_id.as_str(), vm.node_name.as_str()), ("machine-m", "machine-m"));
    assert_eq!(vm.addresses.iter().map(|one| one.address.as_str()).collect::<Vec<_>>(), ["10.1.0.7"]);
    let pod = rig.all("pods").await.remove(0);
    assert_eq!(pod["spec"]["containers"][0]["image"], "node:1");
    let manager = &pod["metadata"]["managedFields"][0];
    assert_eq!((&manager["manager"], &manager["operation"]), (&json!(subject::FIELD_MANAGER), &json!("Update")));
    let secrets = rig.all("secrets").await;
    let services: Vec<Value> =
        rig.all("services").await.into_iter().filter(|it| it["metadata"]["name"] != "kubernetes").collect();
    assert_eq!((secrets.len(), services.len()), (1, 1));
    for owned in [&secrets[0], &services[0]] {
        assert_eq!(owned["metadata"]["ownerReferences"][0]["uid"], pod["metadata"]["uid"]);
    }
    assert_eq!(rig.status().await.unwrap(), vm);
    let listed = rig.list().await.unwrap();
    assert_eq!((listed.len(), listed[0].machine_name.as_str(), listed[0].provider_id.as_str()), (1, "m", "machine-m"));
}

/// Most fields of a pod can't change, so that a write with another class would be refused.
#[tokio::test(start_paused = true)]
async fn a_live_pod_is_never_written_again() {
    let mut rig = Rig::new();
    let vm = made(&rig).await.unwrap().vm;
    let before = rig.all("pods").await;
    rig.class = class(&json!({"image": "node:2", "ipPoolNameV4": "four"}));
    assert_eq!(rig.create().await.unwrap().vm, vm);
    assert_eq!(rig.all("pods").await, before);
}

#[tokio::test(start_paused = true)]
async fn l01_a_pod_that_stays_pending_ends_the_creation_after_ten_minutes() {
    let rig = Rig::new();
    let began = Instant::now();
    let refused = rig.create().await.unwrap_err();
    assert_eq!(refused.code, Code::DeadlineExceeded);
    let begins = r#"pod "machine-m" is in phase "Pending", failed waiting for phase "Running": "#;
    assert!(refused.message.starts_with(begins), "{}", refused.message);
    assert_eq!(began.elapsed(), RUNNING_WITHIN);
    assert_eq!(rig.status().await.unwrap_err().code, Code::Unimplemented, "the creation is not finished");
    made(&rig).await.expect("the next creation uses the pod");
    assert_eq!(rig.all("pods").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_creation_with_little_time_ends_before_its_deadline() {
    let rig = Rig::new();
    let request = MachineRequest {
        machine: std::sync::Arc::new(rig.machine.clone()),
        class: std::sync::Arc::new(rig.class.clone()),
        secret: secret(),
    };
    let cx = OpContext::within(Duration::from_secs(60));
    let refused = rig.driver.create_machine(&cx, request).await.unwrap_err();
    assert_eq!(refused.code, Code::DeadlineExceeded, "{}", refused.message);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_can_not_be_pulled_fails_the_creation_after_two_minutes() {
    let rig = Rig::new();
    let began = Instant::now();
    let kubelet = async {
        tokio::time::sleep(Duration::from_secs(12)).await;
        let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "node:1 not found"}});
        let container = json!({"name": "node", "image": "node:1", "imageID": "", "ready": false, "restartCount": 0, "state": waiting});
        rig.pod_shows("machine-m", &json!({"phase": "Pending", "containerStatuses": [container]})).await;
    };
    let (refused, ()) = tokio::join!(rig.create(), kubelet);
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    assert!(refused.message.ends_with("waits with ErrImagePull: node:1 not found"), "{}", refused.message);
    assert_eq!(began.elapsed(), Duration::from_secs(15 + 120));
}

#[tokio::test(start_paused = true)]
async fn l02_the_deletion_of_a_pod_that_is_gone_is_not_found() {
    let rig = Rig::new();
    let gone = rig.delete().await.unwrap_err();
    assert_eq!(gone.code, Code::NotFound, "{}", gone.message);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_waits_until_the_pod_is_gone_and_takes_secret_and_service_with_it() {
    let rig = Rig::new();
    made(&rig).await.unwrap();
    let pod = format!("{}/machine-m", Rig::path("pods"));
    rig.send("PATCH", &pod, &json!({"metadata": {"finalizers": ["example.com/kubelet"]}})).await.unwrap();
    let began = Instant::now();
    let stuck = rig.delete().await.unwrap_err();
    assert_eq!((stuck.code, began.elapsed()), (Code::DeadlineExceeded, GONE_WITHIN));
    assert!(stuck.message.ends_with("; its finalizers: example.com/kubelet"), "{}", stuck.message);
    assert_eq!(rig.create().await.unwrap_err().code, Code::Aborted, "a pod that is deleted is no machine again");
    let kubelet = async {
        tokio::time::sleep(Duration::from_secs(12)).await;
        rig.send("PATCH", &pod, &json!({"metadata": {"finalizers": null}})).await.unwrap();
    };
    let began = Instant::now();
    let (deleted, ()) = tokio::join!(rig.delete(), kubelet);
    deleted.unwrap();
    assert_eq!(began.elapsed(), Duration::from_secs(15));
    assert_eq!(rig.delete().await.unwrap_err().code, Code::NotFound);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(rig.all("secrets").await.is_empty(), "the garbage collector deletes what the pod owned");
    assert!(rig.all("services").await.iter().all(|service| service["metadata"]["name"] != "machine-m"));
}

#[tokio::test(start_paused = true)]
async fn a_foreign_pod_is_never_used_or_deleted() {
    let mut rig = Rig::new();
    let foreign = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "machine-m"},
        "spec": {"containers": [{"name": "web", "image": "web:1"}]},
    });
    rig.send("POST", &Rig::path("pods"), &foreign).await.unwrap();
    assert_eq!(rig.create().await.unwrap_err().code, Code::AlreadyExists);
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::NotFound);
    rig.machine.spec.provider_id = "machine-m".to_owned();
    assert_eq!(rig.delete().await.unwrap_err().code, Code::FailedPrecondition, "it may be the machine's");
    assert!(rig.list().await.unwrap().is_empty());
    assert_eq!(rig.all("pods").await.len(), 1);
}

/// Secret or Service of another program would get the pod as owner, and be deleted with it.
#[tokio::test(start_paused = true)]
async fn a_foreign_secret_or_service_is_left_as_it_is() {
    for (resource, foreign) in [
        (
            "secrets",
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "machine-m-userdata"}, "data": {"a": "YQ=="}}),
        ),
        (
            "services",
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "machine-m"}, "spec": {"ports": [{"port": 80}]}}),
        ),
    ] {
        let rig = Rig::new();
        let before = rig.send("POST", &Rig::path(resource), &foreign).await.unwrap();
        let refused = made(&rig).await.unwrap_err();
        assert_eq!(refused.code, Code::AlreadyExists, "{}", refused.message);
        assert!(rig.all("pods").await.is_empty(), "it would run with what it found");
        assert!(rig.all(resource).await.iter().any(|left| left["metadata"] == before["metadata"]));
    }
}

/// Between the look and the creation another program can make a pod of this name.
#[tokio::test(start_paused = true)]
async fn a_pod_is_made_and_never_taken_over() {
    let rig = Rig::new();
    let place = Place::read(&rig.class).unwrap();
    let cx = Rig::cx();
    let subject = Subject::to_create(&rig.machine, &rig.class, &place, &cx).unwrap();
    let client = rig.driver.clusters.of(&rig.class, &secret()).await.unwrap();
    let requests = Requests::new(client, &cx, rig.driver.failures());
    let foreign = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "machine-m"},
        "spec": {"containers": [{"name": "node", "image": "web:1"}]},
    });
    let before = rig.send("POST", &Rig::path("pods"), &foreign).await.unwrap();
    let pod = objects::pod(&subject, &Spec::checked(&rig.class).unwrap(), &PodTemplate::default());
    assert_eq!(requests.make_pod(&subject, &pod).await.unwrap_err().code, Code::Aborted);
    assert_eq!(rig.all("pods").await.remove(0)["metadata"], before["metadata"]);
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_name_is_too_long_is_refused_and_deleted() {
    let mut rig = Rig::new();
    rig.machine.metadata.name = Some("a".repeat(56));
    assert_eq!(rig.create().await.unwrap_err().code, Code::InvalidArgument);
    assert_eq!(rig.status().await.unwrap_err().code, Code::NotFound);
    assert_eq!(rig.delete().await.unwrap_err().code, Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ended_before_its_machine_was_created_is_replaced() {
    let rig = Rig::new();
    let evicted = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        rig.pod_shows("machine-m", &json!({"phase": "Failed", "reason": "Evicted"})).await;
    };
    let (refused, ()) = tokio::join!(rig.create(), evicted);
    assert_eq!(refused.unwrap_err().code, Code::Aborted);
    assert_eq!(rig.create().await.unwrap_err().code, Code::Aborted);
    made(&rig).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_class_without_user_data_makes_no_pod() {
    let mut rig = Rig::new();
    let create = async |rig: &Rig| {
        let request = MachineRequest {
            machine: std::sync::Arc::new(rig.machine.clone()),
            class: std::sync::Arc::new(rig.class.clone()),
            secret: SecretData::default(),
        };
        rig.driver.create_machine(&Rig::cx(), request).await.unwrap_err()
    };
    let refused = create(&rig).await;
    assert!(refused.message.ends_with("secretRef.userData: Required value: Mention userData"), "{}", refused.message);
    rig.class.secret_ref = None;
    let refused = create(&rig).await;
    assert!(refused.message.ends_with("secretRef is required"), "{}", refused.message);
    assert!(rig.all("pods").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_class_that_was_broken_later_stops_no_deletion() {
    let mut rig = Rig::new();
    made(&rig).await.unwrap();
    rig.class = class(&json!({"image": 4, "ipPoolNameV4": []}));
    assert_eq!(rig.create().await.unwrap_err().code, Code::InvalidArgument);
    rig.status().await.unwrap();
    assert_eq!(rig.list().await.unwrap().len(), 1);
    rig.delete().await.unwrap();
    assert!(rig.all("pods").await.is_empty());
}

#[tokio::test]
async fn classes_of_one_namespace_share_a_list() {
    let driver = Rig::new().driver;
    let key = |patch| driver.inventory_key(&class(&patch));
    assert_eq!(key(json!({})), key(json!({"image": "node:2"})));
    let elsewhere = |patch: Value| {
        let mut class = class(&patch);
        class.credentials_secret_ref = Some(machine_api::v1alpha1::SecretReference::default());
        driver.inventory_key(&class)
    };
    assert_ne!(elsewhere(json!({})), key(json!({})));
    assert_ne!(elsewhere(json!({})), elsewhere(json!({"namespace": "shoot"})));
}

#[tokio::test]
async fn there_are_no_volumes_of_this_provider() {
    let volumes = vec![machine_driver::PersistentVolumeSpec::default()];
    let ids = Rig::new().driver.get_volume_ids(&Rig::cx(), VolumeIdsRequest { volumes }).await;
    assert_eq!(ids, Ok(Vec::new()));
}
