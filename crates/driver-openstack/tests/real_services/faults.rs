//! Tests with broken connections and busy services. There is a proxy with faults in front of each service of a region.

use std::time::{Duration, Instant};

use cloud_client::http::Method;
use fault_proxy::{Fault, FaultProxy, Reply, Rule, any, request};
use machine_driver::{Code, ListedVm};
use rstest::rstest;
use serde_json::{Value, json};

use crate::{
    futures,
    services::{Services, Subject, services},
};

/// A region whose services are behind proxies.
struct Region {
    name: String,
    compute: FaultProxy,
    network: FaultProxy,
    volume: FaultProxy,
}

impl Region {
    /// Adds a region with this name to the catalogue.
    async fn new(services: &Services, name: &str) -> Self {
        let name = format!("Region-{name}-{}", std::process::id());
        let proxy =
            async |service: &str| FaultProxy::before(services.made["urls"][service].as_str().unwrap()).await.unwrap();
        let region =
            Self { name, compute: proxy("nova").await, network: proxy("neutron").await, volume: proxy("cinder").await };
        let of = |service: &str, proxy: &FaultProxy| format!("{service}={}", proxy.url());
        let proxies =
            [of("compute", &region.compute), of("network", &region.network), of("block-storage", &region.volume)];
        services.run("project.py", &["region", &region.name, &proxies[0], &proxies[1], &proxies[2]]).await;
        region
    }

    fn subject<'s>(&self, services: &'s Services, test: &'static str, mut patch: Value) -> Subject<'s> {
        patch["region"] = json!(self.name);
        Subject::new(services, "machines", test, patch)
    }

    fn clear(&self) {
        for proxy in [&self.compute, &self.network, &self.volume] {
            proxy.clear();
        }
    }
}

/// Calls the driver as the controllers do until the machine has its server (decisions.md 58, with a shorter wait).
async fn create_machine(subject: &Subject<'_>) {
    let (began, mut unknown) = (Instant::now(), None::<Instant>);
    while began.elapsed() < Duration::from_secs(240) {
        let Err(status) = subject.status().await else { return };
        let waits = unknown.is_some_and(|since| since.elapsed() < Duration::from_secs(5));
        let outcome = match status.code {
            Code::Uninitialized => subject.initialize().await.map(drop),
            Code::NotFound | Code::Unimplemented if waits => Ok(()),
            Code::NotFound | Code::Unimplemented => {
                let made = subject.create().await.map(drop);
                unknown = made.is_err().then(Instant::now);
                made
            }
            _ => Err(status),
        };
        if let Err(status) = outcome {
            let passes =
                matches!(status.code, Code::Unavailable | Code::DeadlineExceeded | Code::Aborted | Code::Internal);
            assert!(passes, "{status}");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("{} has no server", subject.name);
}

async fn delete_machine(subject: &Subject<'_>) {
    let began = Instant::now();
    while let Err(status) = subject.delete().await {
        let passes = matches!(status.code, Code::Unavailable | Code::DeadlineExceeded | Code::Aborted | Code::Internal);
        assert!(passes && began.elapsed() < Duration::from_secs(240), "{status}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[rstest]
#[case::of_the_server("lost-server", Method::POST, "/v2.1/servers")]
#[case::of_the_port("lost-port", Method::POST, "/v2.0/ports")]
#[case::of_the_tags("lost-tags", Method::PUT, "/v2.0/ports")]
#[case::of_the_volume("lost-volume", Method::POST, "/v3/")]
#[case::of_the_end("lost-end", Method::DELETE, "/v2")]
#[tokio::test]
async fn a_lost_reply_makes_nothing_twice_and_leaves_nothing(
    #[case] test: &'static str,
    #[case] method: Method,
    #[case] path: &str,
) {
    let Some(services) = services(test) else { return };
    let region = Region::new(&services, test).await;
    for proxy in [&region.compute, &region.network, &region.volume] {
        proxy.add(Rule::new(request(method.clone(), path), Fault::LoseReply).times(1));
    }
    let subject = region.subject(&services, test, json!({"rootDiskSize": 2, "rootDiskType": "standard"}));
    create_machine(&subject).await;
    let there = subject.inventory().await;
    assert_eq!((there.servers.len(), there.ports.len(), there.volumes.len()), (1, 1, 1), "{there:?}");
    delete_machine(&subject).await;
    subject.assert_nothing_is_left().await;
}

/// One in eight requests has a fault: the request or its answer is lost, the answer is cut off, or it is refused by the service or a gateway.
#[tokio::test]
async fn with_many_faults_each_machine_gets_one_server_and_nothing_is_left_in_the_end() {
    let Some(services) = services("with_many_faults_each_machine_gets_one_server_and_nothing_is_left_in_the_end")
    else {
        return;
    };
    let region = Region::new(&services, "badday").await;
    let faults = [
        Fault::LoseReply,
        Fault::Answer(Reply::new(429, "slow down").with("retry-after", "1")),
        Fault::Drop,
        Fault::Answer(Reply::new(502, "<html>Bad Gateway</html>")),
        Fault::Cut(10),
        Fault::Answer(Reply::new(404, "<html>no route</html>")),
    ];
    for proxy in [&region.compute, &region.network, &region.volume] {
        for (fault, every) in faults.iter().zip([41, 43, 47, 53, 59, 61]) {
            proxy.add(Rule::new(any, fault.clone()).every(every));
        }
    }
    let subjects: Vec<_> = (1..=12)
        .map(|number| {
            let disk = if number % 3 == 0 { json!({"rootDiskSize": 2, "rootDiskType": "standard"}) } else { json!({}) };
            Subject { name: format!("badday-{number:02}"), ..region.subject(&services, "badday", disk) }
        })
        .collect();
    futures(subjects.iter().map(create_machine)).await;
    let there = subjects[0].inventory().await;
    let mut names: Vec<_> = there.servers.iter().map(|server| server["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    let expected: Vec<_> = subjects.iter().map(|subject| subject.name.as_str()).collect();
    assert_eq!(names, expected);
    assert_eq!((there.ports.len(), there.volumes.len()), (12, 4));
    futures(subjects.iter().map(delete_machine)).await;
    subjects[0].assert_nothing_is_left().await;
    region.clear();
    assert_eq!(subjects[0].list().await.unwrap(), []);
    println!(
        "{} requests, of which many had faults",
        region.compute.requests().len() + region.network.requests().len() + region.volume.requests().len()
    );
}

fn refused() -> Fault {
    Fault::Answer(Reply::new(403, r#"{"forbidden": {"code": 403, "message": "not now"}}"#))
}

/// The list. Other tests may change the servers of the project faster than pages of three are read.
async fn list(subject: &Subject<'_>) -> Vec<ListedVm> {
    let began = Instant::now();
    loop {
        match subject.list().await {
            Ok(all) => return all,
            Err(status) => {
                assert!(status.code == Code::Aborted && began.elapsed() < Duration::from_secs(240), "{status}");
            }
        }
    }
}

/// The collector of orphans works from the list, in which the server is not any more.
#[rstest]
#[case::the_port("left-port", "/v2.0/ports")]
#[case::the_volume("left-volume", "/v3/")]
#[tokio::test]
async fn what_is_left_of_a_server_is_listed_until_it_is_deleted(#[case] test: &'static str, #[case] path: &str) {
    let Some(services) = services(test) else { return };
    let region = Region::new(&services, test).await;
    let mut subject = region.subject(&services, test, json!({"rootDiskSize": 2, "rootDiskType": "standard"}));
    subject.provider_id = subject.create().await.unwrap().vm.provider_id;
    assert_eq!(list(&subject).await.len(), 1);
    for proxy in [&region.network, &region.volume] {
        proxy.add(Rule::new(request(Method::DELETE, path), refused()).times(1));
    }
    assert_eq!(subject.delete().await.unwrap_err().code, Code::PermissionDenied);
    let left = subject.inventory().await;
    assert!(left.servers.is_empty() && left.ports.len() + left.volumes.len() > 0, "{left:?}");
    let listed = list(&subject).await;
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert!(listed[0].machine_name == subject.name && listed[0].created.is_some(), "{listed:?}");
    subject.provider_id.clone_from(&listed[0].provider_id);
    subject.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
    assert_eq!(list(&subject).await, []);
}

/// The server, which shows the keys and the volume, is deleted before the port and the volume.
#[tokio::test]
async fn what_a_class_has_said_before_an_edit_is_deleted_too() {
    let Some(services) = services("what_a_class_has_said_before_an_edit_is_deleted_too") else { return };
    let region = Region::new(&services, "edited").await;
    let mut subject = region.subject(&services, "edited", json!({"rootDiskSize": 2, "rootDiskType": "standard"}));
    let made = subject.create().await.unwrap();
    (subject.provider_id, subject.last_known_state) = (made.vm.provider_id, made.last_known_state.unwrap());
    subject.patch = json!({
        "region": region.name, "tags": {"kubernetes.io-role-node": null, "kubernetes.io-role-worker": "1"},
    });
    region.network.add(Rule::new(request(Method::DELETE, "/v2.0/ports"), refused()).times(1));
    assert_eq!(subject.delete().await.unwrap_err().code, Code::PermissionDenied);
    subject.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_port_that_was_made_before_an_edit_of_the_class_is_not_used() {
    let Some(services) = services("a_port_that_was_made_before_an_edit_of_the_class_is_not_used") else { return };
    let region = Region::new(&services, "regroup").await;
    let mut subject = region.subject(&services, "regroup", json!({}));
    region.compute.add(Rule::new(request(Method::POST, "/v2.1/servers"), Fault::Drop).times(1));
    assert_eq!(subject.create().await.unwrap_err().code, Code::Unavailable);
    let old = subject.inventory().await.ports[0].clone();
    subject.patch["securityGroups"] = Value::Null;
    // Without a group in the class, the port has the default group of the project.
    region.network.add(Rule::new(request(Method::POST, "/v2.0/ports"), Fault::LoseReply).times(1));
    subject.create().await.unwrap();
    let there = subject.inventory().await;
    assert_eq!((there.servers.len(), there.ports.len()), (1, 1), "{there:?}");
    assert_ne!(there.ports[0]["id"], old["id"]);
    assert_ne!(there.ports[0]["security_group_ids"], old["security_group_ids"]);
    subject.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
}

/// Prints how many requests it takes to create and to delete a machine, for the documents.
#[rstest]
#[case::with_a_port("cost-port", json!({}))]
#[case::with_a_port_of_nova("cost-nova", json!({"subnetID": null}))]
#[case::with_a_volume("cost-volume", json!({"rootDiskSize": 2, "rootDiskType": "standard"}))]
#[tokio::test]
async fn the_requests_for_a_machine_are_counted(#[case] test: &'static str, #[case] patch: Value) {
    let Some(services) = services(test) else { return };
    let region = Region::new(&services, test).await;
    let subject = region.subject(&services, test, patch);
    let all = || [&region.compute, &region.network, &region.volume].map(FaultProxy::requests).concat();
    subject.status().await.unwrap_err();
    subject.create().await.unwrap();
    subject.initialize().await.unwrap();
    let up = all();
    subject.status().await.unwrap();
    subject.delete().await.unwrap();
    let down = all().len() - up.len();
    // The number of requests that wait for a server, and of further pages, depends on the speed of the cloud and on the size of its pages.
    let polls = |seen: &[fault_proxy::ReceivedRequest]| {
        let looks = |seen: &&fault_proxy::ReceivedRequest| {
            seen.method == Method::GET
                && (seen.path.starts_with("/v2.1/servers/") && !seen.path.ends_with("detail")
                    || !seen.parameter("marker").is_empty())
        };
        seen.iter().filter(looks).count()
    };
    println!(
        "{test}: {} up, of which {} looks or further pages; {down} down, {} in all",
        up.len(),
        polls(&up),
        polls(&all())
    );
    subject.assert_nothing_is_left().await;
}
