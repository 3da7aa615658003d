//! The number of writes that lasting refusals cost the API server: refused creations of machines and sets, and refused evictions, for hours.
//!
//! API server, manager and virtual cloud run in one thread on paused time, as in [`crate::support::one_thread`]. Writes are creations, patches,
//! deletions and events, both attempted and successful. Refused writes are counted where they are refused, or where they are sent ([`Count`]).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use kube_dev_server::{DevServer, InProcess};
use machine_controller_manager::{
    manager::{Endpoints, run_in},
    server::{Reviewer, answer_at},
};

use rstest::rstest;
use serde_json::{Value, json};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    fleet::{self, describe, phase},
    lies::{
        weather::{ActiveLie, Told},
        world::{CloudState, OnExit, World},
    },
    support::{
        cluster_object::{name, number, text},
        lying::WriteAttempt,
        one_thread::{MACHINE_PATH, NAMESPACE, Stage, WEBHOOKS, install, list, play, post, settings},
        scratch::count_ran,
        wait::expect,
    },
};

const HOURS: usize = 6;
/// The highest allowed number of writes per object in an hour.
const MOST: usize = 30;
/// The deployment whose machines are refused.
const WITHOUT_MACHINES: &str = "without-machines";
/// The deployment for whose machines the API server must call a webhook that is not reachable.
const UNREACHED: &str = "unreached";
/// The deployment whose sets are refused.
const WITHOUT_SETS: &str = "without-sets";

/// The deployment whose pods cannot be evicted.
const GUARDED: &str = "guarded";
/// The shortest time between two attempts of a refused eviction.
const EVICTED_AGAIN: Duration = Duration::from_secs(20);
/// A drain that uses force after some time would end within these hours.
const NO_FORCED_DRAIN: [&str; 3] =
    ["--leader-elect=false", "--machine-drain-timeout=24h", "--machine-max-evict-retries=10000"];
const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

/// The number of writes by the object that they concern.
type Writes = BTreeMap<String, usize>;

#[test]
fn hours_of_refused_creations_cost_few_writes() {
    count_ran("write_rate::hours_of_refused_creations_cost_few_writes");
    let hours = play(refused_for_hours());
    for (hour, writes) in hours.iter().enumerate() {
        println!("hour {}: {writes:?}", hour + 1);
        for (object, count) in writes {
            assert!(*count <= MOST, "{object} cost {count} writes in hour {}: {hours:?}", hour + 1);
        }
    }
    let refused =
        |prefix: &str| hours.iter().flatten().any(|(object, count)| object.starts_with(prefix) && *count > 10);
    for object in ["machinesets/without-machines", "machinesets/unreached", "machinedeployments/without-sets"] {
        assert!(refused(object), "{object}: {hours:?}");
    }
}

/// Why pods cannot be evicted.
#[derive(Clone, Copy, Debug)]
enum Guard {
    /// A budget allows no eviction, because a seventh pod is not healthy.
    Exhausted,
    /// A budget needs all existing pods, so that drains fail and start again.
    Misconfigured,
    /// Each pod has two budgets: the API server answers evictions with an error, and drains fail.
    Several,
}

impl Guard {
    /// The names of the budgets, and the number of pods that each needs.
    fn budgets(self) -> &'static [(&'static str, u32)] {
        match self {
            Self::Exhausted => &[("guard", 7)],
            Self::Misconfigured => &[("guard", 6)],
            Self::Several => &[("guard", 1), ("second-guard", 1)],
        }
    }
}

#[rstest]
#[case::by_a_budget_that_allows_nothing(Guard::Exhausted, HOURS)]
#[case::by_a_budget_that_wants_all_pods(Guard::Misconfigured, 2)]
#[case::by_two_budgets_of_a_pod(Guard::Several, 2)]
fn hours_of_refused_evictions_cost_few_writes(#[case] guard: Guard, #[case] hours: usize) {
    count_ran("write_rate::hours_of_refused_evictions_cost_few_writes");
    let hours = play(evictions_refused_for(hours, guard));
    for (hour, count) in hours.iter().enumerate() {
        println!("hour {}: {:?}, evictions {:?}", hour + 1, count.writes, count.evictions());
        for (object, count) in &count.writes {
            assert!(*count <= MOST, "{object} cost {count} writes in hour {}: {hours:?}", hour + 1);
        }
        assert_eq!(count.evictions.len(), 6, "each pod is asked for: {:?}", count.evictions());
        for (pod, tried) in &count.evictions {
            let pause = tried.windows(2).map(|two| two[1] - two[0]).min().expect("several in an hour");
            assert!(pause >= EVICTED_AGAIN, "{pod} was evicted again after {pause:?} in hour {}", hour + 1);
        }
    }
}

/// Deletes three machines, each with two pods that cannot be evicted.
async fn evictions_refused_for(hours_in_all: usize, guard: Guard) -> Vec<Count> {
    let mut world = World::new(7, CloudState::ConfigMap, ActiveLie::of(Told::Truth));
    install(&world.stage.client).await;
    world.start_manager(&NO_FORCED_DRAIN, OnExit::Fail).await;
    create(&world.stage.client, GUARDED).await;
    world
        .until("the machines to run", async |world| {
            let machines = world.ours("machines").await;
            let all = machines.len() == 3 && machines.iter().all(|machine| phase(machine) == "Running");
            expect(all, || machines.iter().map(describe).collect::<Vec<_>>().join("\n"))
        })
        .await;
    let machines = world.ours("machines").await;
    let labels = json!({ "app": GUARDED });
    for (name, wanted) in guard.budgets() {
        let budget = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": name },
            "spec": { "minAvailable": wanted, "selector": { "matchLabels": labels } } });
        post(&world.stage.client, BUDGETS, &budget).await;
    }
    for (number, machine) in machines.iter().chain(&machines).enumerate() {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": format!("{GUARDED}-{number}"), "labels": labels },
            "spec": { "nodeName": text(machine, "/metadata/labels/node"),
                "containers": [{ "name": "main", "image": "example.com/guarded" }] } });
        post(&world.stage.client, PODS, &pod).await;
    }
    if let Guard::Exhausted = guard {
        let nowhere = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "nowhere", "labels": labels },
            "spec": { "containers": [{ "name": "main", "image": "example.com/guarded" }] } });
        post(&world.stage.client, PODS, &nowhere).await;
    }
    world
        .until("the budgets to count their pods", async |world| {
            let budgets = list(&world.stage.client, BUDGETS).await;
            let counted = budgets.iter().all(|budget| number(budget, "/status/currentHealthy") == 6);
            expect(counted, || format!("{budgets:?}"))
        })
        .await;
    let pods_there = list(&world.stage.client, PODS).await.len();
    for machine in &machines {
        world.deletes_machine(machine).await;
    }
    let mut hours = vec![Count::default()];
    for _ in 0..hours_in_all {
        world
            .check_for(Duration::from_secs(3600), async |world| {
                let pods = list(&world.stage.client, PODS).await;
                let stay = pods.iter().filter(|pod| pod.pointer("/metadata/deletionTimestamp").is_none()).count();
                expect(stay == pods_there, || format!("{stay} pods stay"))
            })
            .await;
        let mut hour = hours[hours.len() - 1].next();
        hour.of(&world.take_attempts());
        hours.push(hour);
    }
    let waiting = world.ours("machines").await;
    let left = machines.iter().all(|machine| waiting.iter().any(|waiting| name(waiting) == name(machine)));
    assert!(left, "a machine is deleted before its pods");
    hours.split_off(1)
}

/// The writes that a manager attempted, by the objects that they concern; evictions are separate.
#[derive(Clone, Debug, Default)]
pub struct Count {
    pub writes: Writes,
    /// The times of the evictions of each pod.
    evictions: BTreeMap<String, Vec<Instant>>,
    /// The objects of the events, by the names of the events. A patch of an event's count does not contain its object.
    events: BTreeMap<String, String>,
}

impl Count {
    /// A count that starts after these writes. The writes are used only to learn the objects of events.
    pub fn after(tried: &[WriteAttempt]) -> Self {
        let mut before = Self::default();
        before.of(tried);
        before.next()
    }

    fn next(&self) -> Self {
        Self { events: self.events.clone(), ..Self::default() }
    }

    /// Counts these writes, too.
    pub fn of(&mut self, tried: &[WriteAttempt]) {
        for write in tried {
            if let Some(pod) = write.path.strip_suffix("/eviction") {
                let pod = pod.rsplit('/').next().unwrap_or_default().to_owned();
                self.evictions.entry(pod).or_default().push(write.at);
                continue;
            }
            let object = self.object_of(write);
            *self.writes.entry(object).or_default() += 1;
        }
    }

    /// The number of evictions of each pod.
    pub fn evictions(&self) -> BTreeMap<String, usize> {
        self.evictions.iter().map(|(pod, tried)| (pod.clone(), tried.len())).collect()
    }

    /// The object that a write concerns: `resource/name`, without the subresource. A creation concerns the owner of the new object, if there is one,
    /// because each attempt has another name. An event concerns its involved object.
    fn object_of(&mut self, write: &WriteAttempt) -> String {
        let body: Value = serde_json::from_slice(&write.body).unwrap_or_default();
        let word = |pointer: &str| text(&body, pointer).to_lowercase();
        let mut parts: Vec<&str> = write.path.trim_matches('/').split('/').collect();
        parts.drain(..if parts[0] == "api" { 2 } else { 3 });
        if parts[0] == "namespaces" && parts.len() > 2 {
            parts.drain(..2);
        }
        let (resource, object) = (parts[0], parts.get(1).copied());
        if resource == "events" {
            let event = object.map_or_else(|| word("/metadata/name"), str::to_owned);
            if object.is_none() {
                let about = format!("{}s/{}", word("/involvedObject/kind"), word("/involvedObject/name"));
                self.events.insert(event.clone(), about);
            }
            return self.events.get(&event).cloned().unwrap_or_else(|| format!("events/{event}"));
        }
        let owner =
            || format!("{}s/{}", word("/metadata/ownerReferences/0/kind"), word("/metadata/ownerReferences/0/name"));
        match object {
            Some(object) => format!("{resource}/{object}"),
            None if body.pointer("/metadata/ownerReferences/0").is_some() => owner(),
            None => format!("{resource}/{}", word("/metadata/name")),
        }
    }
}

async fn refused_for_hours() -> Vec<Writes> {
    let stage = Stage::new(7);
    let (server, client) = (&stage.server, &stage.client);
    install(client).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let (give, given) = oneshot::channel::<Arc<dyn Reviewer>>();
    let endpoints = Endpoints::InProcess(Box::new(|reviewer| drop(give.send(reviewer))));
    let environment = stage.environment(&stage.managers_client(), endpoints, 7);
    let story = async {
        let refused = Arc::new(Mutex::new(Writes::new()));
        refuse(server, given.await.expect("the manager passes its reviewer"), &refused);
        for name in [WITHOUT_MACHINES, UNREACHED, WITHOUT_SETS] {
            create(client, name).await;
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
        assert_eq!(list(client, &format!("{MACHINE_PATH}/machines")).await.len(), 0);
        let sets = list(client, &format!("{MACHINE_PATH}/machinesets")).await;
        assert_eq!(sets.len(), 2, "{sets:?}");
        for set in sets {
            assert_eq!(set["status"]["machineSetCondition"][0]["reason"], "FailedCreate", "{set}");
        }
        for deployment in list(client, &format!("{MACHINE_PATH}/machinedeployments")).await {
            let says = deployment["status"]["conditions"].to_string();
            let why = if name(&deployment) == UNREACHED { "failed calling webhook" } else { "no room" };
            assert!(says.contains(why), "{deployment}");
        }
        drop(stop);
        hours
    };
    let running = run_in(settings(&["--leader-elect=false"]), environment, async { drop(stopped.await) });
    let (ended, hours) = tokio::join!(running, story);
    ended.expect("the manager ends well");
    hours
}

/// Refuses machines of one deployment and sets of another, as a policy or a quota would: with the name in the message. Requests for machines of a
/// third deployment get no answer.
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
            if name.starts_with(UNREACHED) {
                return (503, Vec::new());
            }
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

/// The object that a write in the log concerns: one of our objects, or the object of an event.
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
