//! The world of a history: an embedded API server, a provider that outlives all processes, two processes behind their gateways, and users, Nodes and
//! pods. Everything runs in one thread on paused time.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use machine_controller_manager::{
    DriverSet,
    manager::{ClusterAccess, Endpoints, Environment, Randomness, run_in},
    server::{Reviewer, answer_at},
    settings::Settings,
};
use machine_controllers::deployment::AvailabilityRule;
use machine_simulation::{
    history::{Edit, History, Luck, Step},
    mirror::{CLASSES, CallFault, Fault, Mirror, Request, USER_DATA, WITHOUT_TOKEN, pod_on},
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{
    book::{Lines, Record, path_of},
    cloud::{Provider, provider_spec},
    gateway::{Definitions, FailureKind, Gateway, SharedFaults},
};
use crate::support::one_thread::{MACHINE_PATH, NAMESPACE, Stage, WEBHOOKS, install, post, send, settings};

/// The duration of a step that the simulation controls by hand.
const MOMENT: Duration = Duration::from_secs(1);
/// The time after which an ended process restarts, as a pod does.
const BEGINS_AGAIN: Duration = Duration::from_secs(10);
/// How long the history waits while the target cluster is unresponsive.
const SILENCE: Duration = Duration::from_secs(8 * 60);
/// The time after the faults within which all writes must stop.
const CALM: Duration = Duration::from_secs(6 * 3600);
/// The period of checks while the world waits for the end of writes.
const LOOK: Duration = Duration::from_secs(5);
/// Users clean up when no write has happened for this time. It is longer than the controllers need to notice that an API server answers again.
const QUIET: Duration = Duration::from_secs(75);
/// At rest, no write happens for this time.
const REST: Duration = Duration::from_secs(3 * 60);

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const SECRET: &str = "credentials";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
const BUDGET: &str = "budget";
/// The query parameter of a deletion that removes a pod at once.
const AT_ONCE: &str = "gracePeriodSeconds=0";

const FLAGS: [&str; 4] = [
    "--drivers=virtual",
    "--leader-elect-lease-duration=60s",
    "--leader-elect-renew-deadline=40s",
    "--leader-elect-retry-period=10s",
];

/// A defect of the stage, to check that histories find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// No defect.
    Not,
    /// Every process that requests the Lease gets it.
    LeasesForAll,
    /// The provider confirms the deletion of VMs and keeps them.
    VmsStay,
}

/// The current reviewer of webhooks; none while no process runs.
type Answering = Arc<Mutex<Option<Arc<dyn Reviewer>>>>;

struct Process {
    gateway: Gateway,
    task: JoinHandle<anyhow::Result<()>>,
    reviewer: Answering,
    /// The time at which the process ended.
    ended: Option<Instant>,
}

pub struct World {
    stage: Stage,
    pub book: Record,
    provider: Provider,
    weather: watch::Sender<SharedFaults>,
    processes: Vec<Process>,
    answering: Answering,
    definitions: Definitions,
    started: usize,
    seed: u64,
    settings: Settings,
    silent_until: Option<Instant>,
    budget_until: Option<Instant>,
    user_data: u32,
}

impl World {
    /// Creates the world of a history and waits until it is at rest.
    pub async fn begin(history: &History, lines_kept: Lines, broken: Broken) -> Self {
        let stage = Stage::new(history.seed);
        install(&stage.client).await;
        let kubelets = stage.server.client("kubelets", NAMESPACE);
        let provider = Provider::begin(history.seed, history.provider, stage.clock.now(), kubelets).await;
        let book = Record::new(&stage.server, &stage.clock, &provider, lines_kept);
        provider.set_record(&book);
        if broken == Broken::VmsStay {
            provider.forgets();
        }
        let (weather, _) =
            watch::channel(SharedFaults { leases_for_all: broken == Broken::LeasesForAll, ..SharedFaults::default() });
        let mut flags = FLAGS.to_vec();
        if history.counts == AvailabilityRule::NodeReady {
            flags.push("--strict-availability");
        }
        let mut world = Self {
            stage,
            book,
            provider,
            weather,
            processes: Vec::new(),
            answering: Arc::default(),
            definitions: Arc::default(),
            started: 0,
            seed: history.seed,
            settings: settings(&flags),
            silent_until: None,
            budget_until: None,
            user_data: 0,
        };
        world.serve_webhooks();
        world.start_process();
        // In every second history a second process stands by. In the others, the ended process restarts.
        if history.seed.is_multiple_of(2) {
            world.start_process();
        }
        while world.answering.lock().expect("no holder of the lock panics").is_none() {
            sleep(MOMENT).await;
        }
        world.applies(history).await;
        world.wait_until_at_rest().await;
        world
    }

    /// Creates the classes, their Secret and the deployment.
    async fn applies(&mut self, history: &History) {
        let client = &self.stage.client;
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": SECRET },
            "stringData": { "userData": USER_DATA } });
        post(client, SECRETS, &secret).await;
        for class in CLASSES {
            let class = json!({ "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass",
                "metadata": { "name": class }, "provider": "virtual", "providerSpec": provider_spec(),
                "secretRef": { "name": SECRET, "namespace": NAMESPACE } });
            post(client, &format!("{MACHINE_PATH}/machineclasses"), &class).await;
        }
        let deployment = Mirror::deployment(history.setup, NAMESPACE).expect("a deployment is JSON");
        post(client, &path_of("machinedeployments", ""), &deployment).await;
    }

    fn serve_webhooks(&self) {
        let answering = Arc::clone(&self.answering);
        let handler: kube_dev_server::InProcess = Arc::new(move |path, body| {
            let reviewer = answering.lock().expect("no holder of the lock panics").clone();
            match reviewer.and_then(|reviewer| answer_at(&*reviewer, path, body)) {
                Some(answer) => (answer.status, answer.body),
                None => (503, Vec::new()),
            }
        });
        self.stage.server.answer_webhooks(WEBHOOKS.trim_start_matches("https://"), handler);
    }

    fn start_process(&mut self) {
        let number = self.started;
        self.started += 1;
        let gateway = Gateway::new(number, &self.book, &self.weather, &self.definitions);
        let (control, target) = gateway.clients(&self.stage.managers_client());
        if self.weather.borrow().silent {
            gateway.silence_target();
        }
        let reviewer = Answering::default();
        let (own, all) = (Arc::clone(&reviewer), Arc::clone(&self.answering));
        let given = move |reviewer: Arc<dyn Reviewer>| {
            *own.lock().expect("no holder of the lock panics") = Some(Arc::clone(&reviewer));
            all.lock().expect("no holder of the lock panics").get_or_insert(reviewer);
        };
        let environment = Environment {
            cluster_access: ClusterAccess::Clients { control, target: Some(target) },
            endpoints: Endpoints::InProcess(Box::new(given)),
            clock: Arc::clone(&self.stage.clock),
            randomness: Randomness::Seeded(self.seed.wrapping_mul(1000) + number as u64),
            drivers: DriverSet::built_in().with(self.provider.clone()),
        };
        let task = tokio::spawn(run_in(self.settings.clone(), environment, std::future::pending()));
        self.book.read().say(|| format!("process {number} begins"));
        self.processes.push(Process { gateway, task, reviewer, ended: None });
    }

    /// Advances time.
    async fn passes(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end && !self.is_violated() {
            sleep(LOOK.min(end - Instant::now())).await;
            self.book.read().update_vms();
            self.restart_ended_processes();
            self.maintain_pods().await;
            self.end_expired_faults().await;
        }
    }

    /// Ends dead processes, and restarts processes that have ended.
    fn restart_ended_processes(&mut self) {
        for process in &mut self.processes {
            if process.gateway.is_dead() {
                process.task.abort();
            }
            if process.ended.is_none() && (process.gateway.is_dead() || process.task.is_finished()) {
                process.gateway.dies();
                process.ended = Some(Instant::now());
                self.book.read().say(|| "a process has ended".to_owned());
            }
        }
        let again = |process: &mut Process| process.ended.is_some_and(|ended| ended.elapsed() >= BEGINS_AGAIN);
        let again = self.processes.extract_if(.., again).count();
        for _ in 0..again {
            self.start_process();
        }
        let mut lives = self.processes.iter().filter(|process| process.ended.is_none());
        let reviewer = lives.find_map(|process| process.reviewer.lock().expect("no holder of the lock panics").clone());
        *self.answering.lock().expect("no holder of the lock panics") = reviewer;
    }

    /// Creates a pod on each Node that accepts pods, and deletes the pods of deleted Nodes.
    async fn maintain_pods(&mut self) {
        let (free, lost) = {
            let pages = self.book.read();
            (pages.mirror.nodes_without_pod(), pages.mirror.lost_pods())
        };
        for node in free {
            let pod = json!({ "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": pod_on(&node), "labels": { "app": "pod" } },
                "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "example.com/pod" }] } });
            // The previous pod may still exist.
            let _ = send(&self.stage.client, "POST", &path_of("pods", ""), &pod).await;
        }
        for pod in lost {
            let path = format!("{}?{AT_ONCE}", path_of("pods", &pod));
            let _ = send(&self.stage.client, "DELETE", &path, &Value::Null).await;
        }
    }

    async fn end_expired_faults(&mut self) {
        if self.silent_until.is_some_and(|end| end <= Instant::now()) {
            self.target_answers_again();
        }
        if self.budget_until.is_some_and(|end| end <= Instant::now()) {
            self.budget_ends().await;
        }
    }

    fn target_answers_again(&mut self) {
        if self.silent_until.take().is_some() {
            self.book.read().say(|| "the target cluster answers again".to_owned());
            self.weather.send_modify(|weather| weather.silent = false);
            self.book.read().silent = None;
        }
    }

    async fn budget_ends(&mut self) {
        if self.budget_until.take().is_some() {
            self.book.read().say(|| "evictions are allowed again".to_owned());
            let _ = send(&self.stage.client, "DELETE", &format!("{BUDGETS}/{BUDGET}"), &Value::Null).await;
        }
    }

    pub fn is_violated(&self) -> bool {
        self.book.read().mirror.violation().is_some()
    }

    /// The process that holds the Lease, or otherwise the first process.
    fn leader(&self) -> &Gateway {
        let leader = self.book.read().leader;
        let is_leader = |process: &&Process| Some(process.gateway.process()) == leader;
        &self.processes.iter().find(is_leader).unwrap_or(&self.processes[0]).gateway
    }

    /// Starts the faults: events of watches arrive only when the history says so.
    pub fn start_faults(&self) {
        self.weather.send_modify(|weather| weather.events_wait = true);
    }

    /// Executes a step.
    pub async fn step(&mut self, step: Step) {
        let say = |text: String| self.book.read().say(|| text);
        match step {
            Step::Pass(_, misfortune) | Step::GoOn(_, misfortune) => {
                if let Some(CallFault { call, fault }) = misfortune {
                    self.leader().failures(call, FailureKind::Fault(fault));
                }
                self.passes(MOMENT).await;
            }
            Step::Begin(pick, calls) => {
                self.leader().failures(calls, FailureKind::Late(Duration::from_secs(u64::from(pick % 16))));
                self.passes(MOMENT).await;
            }
            Step::StalePass(_) => self.passes(MOMENT).await,
            Step::Watch(kind, _) => {
                self.weather.send_modify(|weather| {
                    if let Some(passes) = weather.events_pass.get_mut(usize::from(kind)) {
                        *passes = Some(Instant::now());
                    }
                });
                self.passes(MOMENT).await;
            }
            Step::Wait(seconds) => self.passes(Duration::from_secs(seconds.into())).await,
            Step::Cloud(_, luck) => {
                if luck != Luck::Good {
                    self.provider.next_call(luck);
                }
                self.passes(MOMENT).await;
            }
            Step::Node(pick, event) => {
                let asked = {
                    let mut pages = self.book.read();
                    let now = pages.now();
                    pages.mirror.node_event(pick, event, now)
                };
                if !asked.is_empty() {
                    say(format!("a Node: {event:?}"));
                }
                self.asks(asked).await;
            }
            Step::Budget(minutes) => {
                say(format!("evictions are refused for {minutes} minutes"));
                self.budget_until = Some(Instant::now() + Duration::from_secs(60 * u64::from(minutes)));
                let budget = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                    "metadata": { "name": BUDGET },
                    "spec": { "maxUnavailable": 0, "selector": { "matchLabels": { "app": "pod" } } } });
                // A budget may exist already.
                let _ = send(&self.stage.client, "POST", BUDGETS, &budget).await;
            }
            Step::UserData => {
                say("a user changes the user data of all classes".to_owned());
                self.user_data += 1;
                let text = if self.user_data.is_multiple_of(2) { USER_DATA } else { WITHOUT_TOKEN };
                let data = json!({ "data": { "userData": BASE64_STANDARD.encode(text) } });
                let _ = send(&self.stage.client, "PATCH", &format!("{SECRETS}/{SECRET}"), &data).await;
            }
            Step::Silence(minutes) => {
                say(format!("the target cluster is silent for {minutes} minutes"));
                self.weather.send_modify(|weather| weather.silent = true);
                self.book.read().silent = Some(Instant::now());
                for process in &self.processes {
                    process.gateway.silence_target();
                }
                let silence = Duration::from_secs(60 * u64::from(minutes));
                self.silent_until = Some(Instant::now() + silence);
                self.passes(silence.min(SILENCE)).await;
            }
            Step::Edit(edit) => self.edits(edit).await,
            Step::Refuse(refused, hours) => {
                say(format!("for {hours} hours the API server refuses {refused:?}"));
                self.weather.send_modify(|weather| weather.refused = Some(refused));
                self.passes(Duration::from_secs(3600) * u32::from(hours)).await;
                self.weather.send_modify(|weather| weather.refused = None);
            }
            Step::Crash(_) => {
                say("the process dies".to_owned());
                self.leader().dies();
                self.passes(MOMENT).await;
            }
            // In this world classes do not change, only the manager deletes VMs, and pods have no volumes. Classes and Secrets are reconciled when
            // they are due.
            Step::Classes(_) | Step::Finalizers(..) | Step::VmVanishes(_) | Step::Detaching(_) | Step::NewPods => {
                self.passes(MOMENT).await;
            }
            Step::Usurped(_) => {
                say("the process can't renew the Lease any more".to_owned());
                self.leader().failures(0, FailureKind::Fault(Fault::LoseLease));
                self.passes(MOMENT).await;
            }
        }
    }

    async fn edits(&mut self, edit: Edit) {
        let asked = {
            let mut pages = self.book.read();
            let now = pages.now();
            let asked = pages.mirror.edit(edit, now);
            if !asked.is_empty() {
                pages.say(|| edit.to_string());
            }
            asked
        };
        if !self.asks(asked).await {
            self.book.read().mirror.edit_is_refused();
        }
    }

    /// Sends all requests to the API server. Returns whether no request was refused.
    async fn asks(&mut self, asked: Vec<Request>) -> bool {
        let mut is_accepted = true;
        for request in asked {
            let (method, path, body) = match &request {
                Request::Create { resource, object } => ("POST", path_of(resource, ""), object.clone()),
                Request::Change { resource, name, part, patch } => {
                    ("PATCH", format!("{}{part}", path_of(resource, name)), patch.clone())
                }
                Request::Delete { resource, name } => ("DELETE", path_of(resource, name), Value::Null),
            };
            if let Err(error) = send(&self.stage.client, method, &path, &body).await {
                self.book.read().say(|| format!("  {method} {path} is refused: {error}"));
                is_accepted = false;
            }
        }
        is_accepted
    }

    /// Ends all faults and waits until all writes stop.
    pub async fn end_faults(&mut self) {
        self.book.read().say(|| "the faults end".to_owned());
        self.provider.clears();
        for process in &self.processes {
            process.gateway.clears();
        }
        self.weather.send_modify(|weather| weather.events_wait = false);
        self.target_answers_again();
        self.budget_ends().await;
        let asked = {
            let mut pages = self.book.read();
            let now = pages.now();
            pages.mirror.clears(now)
        };
        self.asks(asked).await;
        self.wait_until_at_rest().await;
    }

    async fn wait_until_at_rest(&mut self) {
        let end = Instant::now() + CALM;
        let (mut seen, mut since) = (self.effects(), Instant::now());
        while !self.is_violated() {
            self.passes(LOOK).await;
            let asked = self.book.read().mirror.agents();
            self.asks(asked).await;
            if self.effects() != seen || !self.is_led() {
                (seen, since) = (self.effects(), Instant::now());
            }
            if since.elapsed() >= QUIET {
                let asked = {
                    let mut pages = self.book.read();
                    let now = pages.now();
                    pages.mirror.tidies(now)
                };
                let differences = self.book.read().mirror.differences();
                if asked.is_empty() && differences.is_empty() && self.stays_at_rest().await {
                    return;
                }
                self.asks(asked).await;
                since = Instant::now();
            }
            if Instant::now() > end {
                let mut pages = self.book.read();
                let differences = pages.mirror.differences().join("; ");
                pages.mirror.violated("nothing comes to rest", || differences);
            }
        }
    }

    /// Whether the process that holds the Lease is alive.
    fn is_led(&self) -> bool {
        let leader = self.book.read().leader;
        self.processes.iter().any(|process| process.ended.is_none() && Some(process.gateway.process()) == leader)
    }

    /// The number of writes of all processes so far.
    fn effects(&self) -> u64 {
        self.book.read().effects
    }

    /// Checks that no write happens for a while. Returns `false` when a write is caused by time alone, or is not allowed.
    async fn stays_at_rest(&mut self) -> bool {
        let before = self.effects();
        let kept = self.book.read().mirror.kept_until();
        self.passes(REST).await;
        let mut pages = self.book.read();
        if pages.effects == before {
            pages.say(|| "everything is at rest".to_owned());
            pages.mirror.at_rest();
            return true;
        }
        // The end of a preservation is a separate event.
        if kept.is_none_or(|kept| kept > pages.now()) {
            let last = pages.last_effect.clone();
            pages.mirror.violated("something is written although everything is at rest", || last);
        }
        false
    }
}
