//! A network that lies: each kind of lie applies once within a whole life of machines, and no machine is deleted without a request.
//!
//! A life: two machines are created, the lie applies while something happens to them, one machine is deleted and replaced, and then all are deleted.
//! Each case names the machines whose VMs may end; every other VM must run until the end, and all writes stop. In some cases the leader dies in the
//! middle, and another process takes over behind its own lying proxy. The cases share one control plane and have separate namespaces. `lies` tests
//! all lies in all flows on paused time.

use std::{collections::BTreeSet, time::Duration};

use hyper::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::{
    fleet::none_left,
    guard,
    support::{
        cluster_object::{name, text},
        lying::{Answer, Liar, Lie, Rule},
        wait::expect,
        wait_until,
    },
    weather::{FLEET, TIMEOUT, Weather, names, node_of, sky, through},
};

/// A life whose manager reaches the API server through a lying proxy.
struct Life {
    weather: Weather,
    liar: Liar,
    /// The machines at the beginning.
    initial: Vec<Value>,
    /// The machines whose VMs may end.
    may_go: BTreeSet<String>,
}

impl Life {
    /// Starts a life with two running machines.
    async fn begins(test: &str, flags: &[&str]) -> Option<Self> {
        let rig = sky(test).await?;
        let (liar, kubeconfig) = rig.liar().await;
        let clusters = through(&kubeconfig);
        let all: Vec<&str> = clusters.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let weather = Weather::over(rig, &all).await;
        weather.want(2).await;
        let initial = weather.wait_until_healthy(2).await;
        Some(Self { weather, liar, initial, may_go: BTreeSet::new() })
    }

    /// Kills the leader. Another process takes over behind its own lying proxy, with these rules from the start.
    async fn fail_over_behind(&mut self, lies: impl IntoIterator<Item = Rule>) {
        self.weather.manager.kill();
        let (liar, kubeconfig) = self.weather.rig.liar().await;
        for lie in lies {
            liar.add(lie);
        }
        self.liar = liar;
        let clusters = through(&kubeconfig);
        self.weather.manager.restart_with(&clusters.each_ref().map(String::as_str));
        self.weather.manager.wait_until_ready().await;
    }

    fn first(&self) -> &str {
        name(&self.initial[0])
    }

    /// Checks that no machine was deleted or created.
    async fn nothing_has_changed(&self) {
        let now = self.weather.wait_until_healthy(2).await;
        assert_eq!(names(&now), names(&self.initial), "no machine is replaced");
        self.only_named_vms_ended().await;
    }

    async fn deletes(&mut self, machine: &str) {
        self.may_go.insert(machine.to_owned());
        self.weather.namespace.kubectl(&["delete", "machine", machine, "--wait=false"]).await.succeed();
    }

    async fn only_named_vms_ended(&self) {
        let ended = self.weather.cloud.happened("stopping").await;
        let unnamed: Vec<&String> =
            ended.keys().filter(|machine| !self.may_go.iter().any(|named| machine.ends_with(named.as_str()))).collect();
        assert!(unnamed.is_empty(), "these VMs must not end: {unnamed:?}");
        let twice: Vec<_> = ended.iter().filter(|(_, vms)| vms.len() != 1).collect();
        assert!(twice.is_empty(), "machines with several VMs: {twice:?}");
    }

    /// One machine is deleted and replaced, the pool is rolled, and all machines are deleted.
    async fn run_to_the_end(mut self) {
        let machine = self.first().to_owned();
        if !self.may_go.contains(&machine) {
            self.deletes(&machine).await;
        }
        wait_until("the deleted machine to go", TIMEOUT, || async {
            let left = names(&self.weather.namespace.list("machines").await);
            expect(!left.contains(&machine), || format!("{left:?}"))
        })
        .await;
        let now = self.weather.wait_until_healthy(2).await;
        self.only_named_vms_ended().await;
        self.may_go.extend(names(&now));
        let patch = json!({"spec": {"template": {"metadata": {"annotations": {"rolled": "yes"}}}}}).to_string();
        self.weather
            .namespace
            .kubectl(&["patch", "machinedeployment", crate::weather::FLEET, "--type=merge", "-p", &patch])
            .await
            .succeed();
        wait_until("the pool to be rolled", TIMEOUT, || async {
            let machines = self.weather.namespace.list("machines").await;
            let old: Vec<String> = names(&machines).intersection(&names(&now)).cloned().collect();
            expect(old.is_empty() && machines.len() == 2, || format!("old ones: {old:?} of {}", machines.len()))
        })
        .await;
        let rolled = self.weather.wait_until_healthy(2).await;
        self.only_named_vms_ended().await;
        self.may_go.extend(names(&rolled));
        self.weather.want(0).await;
        none_left(&self.weather.namespace, "machines", TIMEOUT).await;
        self.only_named_vms_ended().await;
        assert!(self.weather.cloud.vms().await.is_empty(), "all VMs are gone");
        assert!(!self.weather.manager.log().contains("panicked"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_404_of_a_gateway_to_a_node_write_deletes_no_machine() {
    let Some(life) = Life::begins("lying::a_404_to_a_node", &[]).await else { return };
    let path = format!("/api/v1/nodes/{}", node_of(&life.initial[0]));
    let lies = [Lie::Answers(Answer::page(404)), Lie::Answers(Answer::status(404, "NotFound"))];
    let rules = lies.map(|lie| life.liar.add(Rule::about(path.as_str(), lie).method(Method::PATCH)));
    // The deployment is patched, because the set would revert a change of a single machine.
    let template = json!({"nodeTemplate": {"metadata": {"labels": {"changed": "yes"}}}});
    let patch = json!({"spec": {"template": {"spec": template}}}).to_string();
    let patched = ["patch", "machinedeployment", FLEET, "--type=merge", "-p", patch.as_str()];
    life.weather.namespace.kubectl(&patched).await.succeed();
    for rule in rules {
        life.liar.applied(rule, 1, TIMEOUT).await;
    }
    wait_until("the Node to get its label all the same", TIMEOUT, || async {
        let node = life.weather.rig.get("node", node_of(&life.initial[0])).await;
        expect(text(&node, "/metadata/labels/changed") == "yes", || node["metadata"].to_string())
    })
    .await;
    life.nothing_has_changed().await;
    life.run_to_the_end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_404_of_a_gateway_to_a_machine_write_loses_no_machine() {
    let Some(life) = Life::begins("lying::a_404_to_a_machine", &[]).await else { return };
    let path = format!("/machines/{}/status", life.first());
    let rule = life.liar.add(Rule::about(path, Lie::Answers(Answer::page(404))).method(Method::PATCH));
    life.weather.set_nodes_ready(&[node_of(&life.initial[0])], "Unknown").await;
    life.liar.applied(rule, 1, TIMEOUT).await;
    life.weather.set_nodes_ready(&[node_of(&life.initial[0])], "True").await;
    life.nothing_has_changed().await;
    life.run_to_the_end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_without_a_backend_deletes_nothing() {
    let flags =
        ["--machine-safety-apiserver-statuscheck-timeout=3s", "--machine-safety-apiserver-statuscheck-period=3s"];
    let Some(life) = Life::begins("lying::a_gateway", &flags).await else { return };
    let rule = life.liar.add(Rule::about("/", Lie::Answers(Answer::page(404))).times(usize::MAX));
    wait_until("the loops to freeze", TIMEOUT, || async {
        let metrics = life.weather.manager.http_get("/metrics").await;
        expect(metrics.contains("mcm_machine_controller_frozen 1"), || "they flow".to_owned())
    })
    .await;
    life.liar.end(rule);
    life.nothing_has_changed().await;
    life.run_to_the_end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_or_late_answers_repeat_no_action() {
    let Some(mut life) = Life::begins("lying::lost_answers", &[]).await else { return };
    let machines = Rule::about("/machines/", Lie::Lost).method(Method::PATCH).times(3);
    let nodes = Rule::about("/api/v1/nodes/", Lie::Lost).method(Method::PATCH).times(2);
    let late = Rule::about("/api/v1/nodes/", Lie::Held(Duration::from_secs(3))).method(Method::GET).times(2);
    let created = Rule::about("/machines", Lie::Lost).method(Method::POST).without("/machines/");
    let rules = [machines, nodes, late, created].map(|rule| life.liar.add(rule));
    let machine = life.first().to_owned();
    life.deletes(&machine).await;
    life.liar.applied(rules[0], 3, TIMEOUT).await;
    life.liar.applied(rules[3], 1, TIMEOUT).await;
    life.run_to_the_end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn temporarily_refused_lists_and_writes_are_only_delayed() {
    let Some(mut life) = Life::begins("lying::refusals", &[]).await else { return };
    let busy =
        Rule::about("/machine", Lie::Answers(Answer::status(429, "TooManyRequests"))).without("watch=true").times(5);
    let away = Rule::about("/api/v1/nodes", Lie::Answers(Answer::page(503))).without("watch=true").times(5);
    let rules = [busy, away].map(|rule| life.liar.add(rule));
    let machine = life.first().to_owned();
    life.deletes(&machine).await;
    life.liar.applied(rules[0], 5, TIMEOUT).await;
    life.liar.applied(rules[1], 5, TIMEOUT).await;
    life.run_to_the_end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_created_during_a_silent_connection_are_drained_within_their_budgets() {
    let Some(mut life) = Life::begins("lying::silent_watches", &["--watch-silence-timeout=4s"]).await else { return };
    // The first drain of the process opens the watches of pods.
    let machine = life.first().to_owned();
    life.deletes(&machine).await;
    wait_until("the first drain to end", TIMEOUT, || async {
        let left = names(&life.weather.namespace.list("machines").await);
        expect(!left.contains(&machine), || format!("{left:?}"))
    })
    .await;
    let now = life.weather.wait_until_healthy(2).await;
    life.liar.falls_silent();
    let (machine, node) = (name(&now[0]).to_owned(), node_of(&now[0]).to_owned());
    guard::a_pod_on(&life.weather.namespace, &node).await;
    // Longer than the silence timeout: the watch is opened again from its last version and delivers the pod.
    tokio::time::sleep(Duration::from_secs(6)).await;
    life.deletes(&machine).await;
    life.weather
        .wait_for_machine("the drain to be blocked by the budget", |seen| {
            name(seen) == machine && crate::weather::explanation(seen).contains(guard::NAME)
        })
        .await;
    life.weather.namespace.kubectl(&["get", "pod", guard::NAME]).await.succeed();
    life.weather.namespace.kubectl(&["delete", "poddisruptionbudget", guard::NAME]).await.succeed();
    wait_until("the machine to go", TIMEOUT, || async {
        let left = names(&life.weather.namespace.list("machines").await);
        expect(!left.contains(&machine), || format!("{left:?}"))
    })
    .await;
    life.run_to_the_end().await;
}

/// The faults that apply to requests of the dying leader and of its successor for a while.
fn everywhere(lie: &Lie) -> [Rule; 3] {
    let about = |path: &str| Rule::about(path, lie.clone()).without("watch=true").without("/leases");
    [about("/machine").times(4), about("/api/v1/nodes").times(4), about("/api/v1/secrets").times(1)]
}

#[rstest]
#[case::a_gateway_without_a_backend("page", Lie::Answers(Answer::page(404)))]
#[case::a_busy_api_server("busy", Lie::Answers(Answer::status(429, "TooManyRequests")))]
#[case::an_api_server_that_fails("fault", Lie::Answers(Answer::status(500, "InternalError")))]
#[case::late_answers("late", Lie::Held(Duration::from_secs(3)))]
#[case::lost_answers("lost", Lie::Lost)]
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_behind_lies_completes(#[case] short: &str, #[case] lie: Lie) {
    let test = format!("lying::taken_over_behind_lies_{short}");
    let Some(mut life) = Life::begins(&test, &["--leader-elect=true"]).await else { return };
    let rules = everywhere(&lie).map(|rule| life.liar.add(rule));
    let machine = life.first().to_owned();
    life.deletes(&machine).await;
    life.liar.applied(rules[0], 4, TIMEOUT).await;
    life.fail_over_behind(everywhere(&lie)).await;
    life.run_to_the_end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replayed_old_events_restore_no_machine() {
    let Some(mut life) = Life::begins("lying::replays", &["--watch-silence-timeout=4s"]).await else { return };
    let machine = life.first().to_owned();
    let old = life.weather.namespace.get("machine", &machine).await;
    life.deletes(&machine).await;
    wait_until("the machine to go", TIMEOUT, || async {
        let left = names(&life.weather.namespace.list("machines").await);
        expect(!left.contains(&machine), || format!("{left:?}"))
    })
    .await;
    life.weather.wait_until_healthy(2).await;
    let lines = vec![json!({"type": "MODIFIED", "object": old})];
    let rule = life.liar.add(Rule::about("/machines?", Lie::Replays(lines)).with("watch=true").times(2));
    life.liar.falls_silent();
    life.liar.applied(rule, 1, TIMEOUT).await;
    let now = life.weather.wait_until_healthy(2).await;
    assert!(!names(&now).contains(&machine));
    life.run_to_the_end().await;
}
