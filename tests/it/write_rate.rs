//! What trouble that lasts costs the API server: machines and sets whose creation is refused for hours.
//!
//! API server, manager and virtual cloud run in one thread on paused time, as in [`crate::one_thread`]. Writes are creations,
//! patches, deletions and events, tried or done; those that were refused are counted where they are refused.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use machine_controller_manager::{
    cluster::clock::{SharedClock, TokioClock},
    dev_server::{DevServer, InProcess},
    manager::{Face, Randomness, Reach, Surroundings, run_in},
    server::{Reviewer, answer_at},
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::{
    fleet,
    one_thread::{MACHINE_PATH, NAMESPACE, WEBHOOKS, install, list, post, settings, start_server},
    support::scratch::count_ran,
};

const HOURS: usize = 6;
/// Writes that an object may cost in an hour.
const MOST: usize = 30;
/// The deployment whose machines are refused.
const WITHOUT_MACHINES: &str = "without-machines";
/// The deployment whose sets are refused.
const WITHOUT_SETS: &str = "without-sets";

/// Writes by the object that they are about.
type Writes = BTreeMap<String, usize>;

#[test]
fn what_is_refused_for_hours_costs_few_writes() {
    count_ran("write_rate::what_is_refused_for_hours");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let hours = runtime.expect("a runtime").block_on(refused_for_hours());
    for (hour, writes) in hours.iter().enumerate() {
        println!("hour {}: {writes:?}", hour + 1);
        for (object, count) in writes {
            assert!(*count <= MOST, "{object} cost {count} writes in hour {}: {hours:?}", hour + 1);
        }
    }
    let refused =
        |prefix: &str| hours.iter().flatten().any(|(object, count)| object.starts_with(prefix) && *count > 10);
    assert!(
        refused(&format!("machinesets/{WITHOUT_MACHINES}")) && refused("machinedeployments/without-sets"),
        "{hours:?}"
    );
}

async fn refused_for_hours() -> Vec<Writes> {
    let clock: SharedClock = Arc::new(TokioClock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time")));
    let server = start_server(7, &clock);
    let client = server.client("tester", NAMESPACE);
    install(&client).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let (give, given) = oneshot::channel::<Arc<dyn Reviewer>>();
    let surroundings = Surroundings {
        reach: Reach::Clients {
            control: server.client("manager", NAMESPACE),
            target: Some(server.client("manager", NAMESPACE)),
        },
        face: Face::Given(Box::new(|reviewer| drop(give.send(reviewer)))),
        clock,
        randomness: Randomness::Seeded(7),
    };
    let story = async {
        let refused = Arc::new(Mutex::new(Writes::new()));
        refuse(&server, given.await.expect("the manager gives its reviewer"), &refused);
        for name in [WITHOUT_MACHINES, WITHOUT_SETS] {
            create(&client, name).await;
        }
        let mut hours = Vec::new();
        let mut known = server.writes().len();
        for _ in 0..HOURS {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            let journal = server.writes();
            let mut writes = std::mem::take(&mut *refused.lock().expect("no panic"));
            for object in journal.iter().skip(known).filter_map(|line| about(line)) {
                *writes.entry(object).or_default() += 1;
            }
            known = journal.len();
            hours.push(writes);
        }
        assert_eq!(list(&client, &format!("{MACHINE_PATH}/machines")).await.len(), 0);
        let sets = list(&client, &format!("{MACHINE_PATH}/machinesets")).await;
        assert_eq!(sets.len(), 1, "{sets:?}");
        assert_eq!(sets[0]["status"]["machineSetCondition"][0]["reason"], "FailedCreate");
        for deployment in list(&client, &format!("{MACHINE_PATH}/machinedeployments")).await {
            assert!(deployment["status"]["conditions"].to_string().contains("no room"), "{deployment}");
        }
        drop(stop);
        hours
    };
    let running = run_in(settings(&["--leader-elect=false"]), surroundings, async { drop(stopped.await) });
    let (ended, hours) = tokio::join!(running, story);
    ended.expect("the manager ends well");
    hours
}

/// Refuses machines of one deployment and the sets of the other, as a policy or a quota would: quoting the name.
fn refuse(server: &DevServer, reviewer: Arc<dyn Reviewer>, refused: &Arc<Mutex<Writes>>) {
    let refused = Arc::clone(refused);
    let handler: InProcess = Arc::new(move |path, body| {
        let review: Value = serde_json::from_slice(body).unwrap_or_default();
        let request = &review["request"];
        let word = |field: &Value| field.as_str().unwrap_or_default().to_owned();
        let (kind, name) = (word(&request["kind"]["kind"]), word(&request["object"]["metadata"]["name"]));
        let object = match kind.as_str() {
            "Machine" => name.rsplit_once('-').map(|(set, _)| format!("machinesets/{set}")),
            "MachineSet" if name.starts_with(WITHOUT_SETS) => Some(format!("machinedeployments/{WITHOUT_SETS}")),
            _ => None,
        };
        if let Some(object) = object.filter(|_| path.contains("validate") && request["operation"] == "CREATE") {
            *refused.lock().expect("no panic").entry(object).or_default() += 1;
            let status = json!({ "code": 403, "message": format!("there is no room for {name:?}") });
            let response = json!({ "uid": request["uid"], "allowed": false, "status": status });
            let answer = json!({ "apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response });
            return (200, answer.to_string().into_bytes());
        }
        match answer_at(&*reviewer, path, body) {
            Some(answer) => (answer.status, answer.body),
            None => (404, Vec::new()),
        }
    });
    server.answer_webhooks(WEBHOOKS.trim_start_matches("https://"), handler);
}

async fn create(client: &kube::Client, name: &str) {
    let class = format!("class-of-{name}");
    let mut all: Value = serde_json::from_str(&fleet::manifests(NAMESPACE, name, 3, &class)).expect("JSON");
    for object in all["items"].as_array_mut().expect("a list") {
        let path = match object["kind"].as_str() {
            Some("Secret") => {
                object["metadata"]["name"] = json!(name);
                "/api/v1/namespaces/default/secrets".to_owned()
            }
            Some("MachineClass") => {
                object["secretRef"]["name"] = json!(name);
                format!("{MACHINE_PATH}/machineclasses")
            }
            _ => format!("{MACHINE_PATH}/machinedeployments"),
        };
        post(client, &path, &*object).await;
    }
}

/// What a write of the journal is about: one of our objects, or the object of an event.
fn about(line: &str) -> Option<String> {
    let mut parts = line.splitn(3, ' ').skip(1);
    let (place, object) = (parts.next()?, parts.next()?);
    let resource = place.split('/').nth(1)?;
    match resource {
        "events" => {
            let event: Value = serde_json::from_str(object).ok()?;
            let involved = &event["involvedObject"];
            let kind = involved["kind"].as_str()?.to_lowercase();
            Some(format!("{kind}s/{}", involved["name"].as_str()?))
        }
        "machines" | "machinesets" | "machinedeployments" | "machineclasses" | "secrets" => {
            Some(format!("{resource}/{}", place.rsplit('/').next()?))
        }
        _ => None,
    }
}
