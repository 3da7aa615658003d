//! The problems that `/readyz?verbose` reports beside readiness: incomplete or failing views, unresponsive API servers, and definitions that make
//! objects hollow. None of these makes a replica unready, because an unready replica serves no admission. Hollow definitions stop all effects.
//! The log also warns about API servers of an unsupported version, and about definitions that are older than this program.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use kube::runtime::watcher;
use serde_json::Value;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{Common, clusters::Clusters};
use crate::server::{Check, Gate as Decides, Health};
use controller_runtime::{
    clients::{Cluster, Purpose},
    definitions::{changes, definition_in, hollow, leaves_stored_version_unserved, name_of},
    error::ApiError,
    gate::Gate,
    installed_schemas::InstalledSchemas,
    objects::call,
    server_version::{self, Support, Supported, minor_of},
    supervisor::{Stage, Supervisor},
    watch::{WatchHealth, Watches},
};
use machine_api::{crd, kind::Kind};
use mcm_metrics::Metrics;

/// Pause between two reports on the watches. These reports need no request.
const VIEW_PERIOD: Duration = Duration::from_secs(1);
/// Pause between two requests to an API server.
const REQUEST_PERIOD: Duration = Duration::from_secs(30);
/// Pause between two requests when the API server forbids the request.
const FORBIDDEN_PERIOD: Duration = Duration::from_secs(600);
/// How long definitions that were hollow must be whole before the process ends. By then all API servers have to know the new
/// definitions.
const CONFIRM_AFTER: Duration = Duration::from_secs(5);

/// Why a process that has read hollow definitions ends once they are whole again.
pub(super) const CORRUPT_CACHES: &str = "the definitions let objects be read as they are stored again, but this manager may have read \
                                       hollow ones before: it ends, and the one that is started in its place reads all anew";

/// What the state of the definitions decides about the effects of this process.
pub(super) struct Effects {
    /// The gate that all effects pass.
    pub(super) gate: Gate,
    /// The fields that writes may have.
    pub(super) schemas: InstalledSchemas,
}

/// Reports on views, API servers and definitions until the process ends. `effects` is `None` for a process without effects.
pub(super) fn start(
    common: &Arc<Common>,
    clusters: &Clusters,
    watches: Watches,
    effects: Option<Effects>,
    tasks: &mut Supervisor,
) {
    let stop = tasks.stop_of(Stage::Support);
    tasks.spawn(Stage::Support, "state of views", report_views(common.health.clone(), watches, stop.clone()));
    let client = |cluster: &Cluster| cluster.client(Purpose::Discovery);
    let (control, target) = (Some(client(&clusters.control)), clusters.target.as_ref().map(client));
    for server in servers(&common.health, control, target) {
        tasks.spawn(Stage::Support, "state of API servers", server.report(stop.clone()));
    }
    let guard = Definitions {
        client: clusters.control.client(Purpose::Discovery),
        check: common.health.check("definitions", Decides::None, "were not read yet"),
        metrics: common.metrics.clone(),
        effects,
        caches_corrupt: common.caches_corrupt.clone(),
    };
    tasks.spawn(Stage::Support, "state of definitions", guard.keep(stop));
}

/// An API server that this process uses.
struct Server {
    /// Its role.
    cluster: &'static str,
    supported: Supported,
    check: Check,
    client: kube::Client,
}

/// The API servers that are configured.
fn servers(health: &Health, control: Option<kube::Client>, target: Option<kube::Client>) -> Vec<Server> {
    let roles = [("control", server_version::CONTROL, control), ("target", server_version::TARGET, target)];
    let configured = roles.into_iter().filter_map(|(cluster, supported, client)| {
        let client = client?;
        let check = health.check(&format!("cluster-{cluster}"), Decides::None, "was not asked yet");
        Some(Server { cluster, supported, check, client })
    });
    configured.collect()
}

/// The problem with a version of an API server. `None` if it is supported, or works by best effort.
fn unsupported(minor: u32, supported: Supported) -> Option<String> {
    let what = match supported.judge(minor) {
        Support::Full | Support::BestEffort => return None,
        Support::TooOld => "it is too old, and some functions will not work",
        Support::TooNew => "it is newer than the tested versions; look for a newer release of this program",
    };
    Some(format!("{what}; supported are {supported}"))
}

/// The problem of a view. `None` when the view is complete.
fn trouble(watch: &WatchHealth) -> Option<String> {
    match (&watch.last_error, watch.synced) {
        (Some(error), false) => Some(format!("not listed yet: {error}")),
        (Some(error), true) => Some(error.clone()),
        (None, false) => Some("not listed yet".to_owned()),
        (None, true) if watch.undecodable > 0 => Some(format!("{} objects can't be decoded", watch.undecodable)),
        (None, true) => None,
    }
}

async fn report_views(health: Health, watches: Watches, stop: CancellationToken) {
    let mut checks: BTreeMap<&'static str, Check> = BTreeMap::new();
    let forever = async {
        loop {
            for watch in watches.health() {
                let new = || health.check(&format!("view-{}", watch.kind), Decides::None, "not listed yet");
                set(checks.entry(watch.kind).or_insert_with(new), trouble(&watch).as_deref());
            }
            sleep(VIEW_PERIOD).await;
        }
    };
    stop.run_until_cancelled(forever).await;
}

impl Server {
    /// Asks the API server for its version from time to time. Reports whether it answers, and warns once about each version that is not
    /// supported.
    async fn report(self, stop: CancellationToken) {
        let forever = async {
            let mut judged = BTreeSet::new();
            loop {
                let answer = call(self.client.apiserver_version()).await;
                set(&self.check, answer.as_ref().err().map(ToString::to_string).as_deref());
                if let Ok(minor) = answer.and_then(|info| minor_of(&info.minor))
                    && judged.insert(minor)
                    && let Some(error) = unsupported(minor, self.supported)
                {
                    let (cluster, version) = (self.cluster, format!("1.{minor}"));
                    tracing::warn!(cluster, version, error, "the version of the API server is not supported");
                }
                sleep(REQUEST_PERIOD).await;
            }
        };
        stop.run_until_cancelled(forever).await;
    }
}

fn set(check: &Check, trouble: Option<&str>) {
    match trouble {
        None => check.pass(),
        Some(trouble) => check.fail(trouble),
    }
}

/// The state of the definitions, as far as this process knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    /// They have been whole since the process began.
    #[default]
    Whole,
    /// The API server returns hollow objects, for this reason.
    Hollow(String),
    /// They were hollow, and the last check found them whole. The views still contain hollow objects.
    Restored,
}

/// The result of reading the definitions.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    /// All definitions let objects be read as they are stored.
    Whole,
    /// One definition makes objects hollow, for this reason.
    Hollow(String),
    /// At least one definition could not be read, and the others are whole.
    Unanswered,
    /// Reading at least one definition is forbidden, and the others are whole.
    Forbidden,
}

/// The next step of the process after a check.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Continue with this state until the next check.
    GoOn(State),
    /// The process ends: the definitions are whole, and the views may hold hollow objects.
    End,
}

/// Whether a stored version of any definition is not served. `None` if that is unknown, because a definition could not be read.
fn stored_version_unserved<'a>(definitions: impl Iterator<Item = Option<&'a Value>>) -> Option<bool> {
    let mut is_whole = true;
    for definition in definitions {
        match definition {
            Some(definition) if leaves_stored_version_unserved(definition) => return Some(true),
            Some(_) => {}
            None => is_whole = false,
        }
    }
    is_whole.then_some(false)
}

impl Finding {
    /// The finding over all definitions, from the answer for each.
    fn of(answers: impl IntoIterator<Item = (Kind, Result<Option<String>, ApiError>)>) -> Self {
        answers.into_iter().fold(Self::Whole, |finding, (kind, answer)| match (finding, answer) {
            (Self::Hollow(why), _) => Self::Hollow(why),
            (_, Ok(Some(why))) => Self::Hollow(format!("CustomResourceDefinition of {kind}: {why}")),
            (finding, Ok(None)) => finding,
            (Self::Whole | Self::Forbidden, Err(ApiError::Forbidden(_))) => Self::Forbidden,
            (_, Err(_)) => Self::Unanswered,
        })
    }

    /// The pause before the next check, when the state after this one is `state`.
    fn pause(&self, state: &State) -> Duration {
        match (self, state) {
            (Self::Forbidden, _) => FORBIDDEN_PERIOD,
            (_, State::Restored) => CONFIRM_AFTER,
            _ => REQUEST_PERIOD,
        }
    }
}

/// The step after a finding in this state. Without an answer the state stays. `after_pause` says that the pause since the last check
/// is over. After a hollow definition, two good findings with a pause between them are needed, because one of several API servers
/// may not know the new definitions yet, and the next process could read from it.
fn next_step(state: State, finding: &Finding, after_pause: bool) -> Step {
    match (state, finding) {
        (_, Finding::Hollow(why)) => Step::GoOn(State::Hollow(why.clone())),
        (state, Finding::Unanswered | Finding::Forbidden) => Step::GoOn(state),
        (State::Whole, Finding::Whole) => Step::GoOn(State::Whole),
        (State::Restored, Finding::Whole) if after_pause => Step::End,
        (State::Hollow(_) | State::Restored, Finding::Whole) => Step::GoOn(State::Restored),
    }
}

/// How long a watch of a definition pauses after an error. The periodic check finds what the watch misses meanwhile.
fn pause_after(error: &watcher::Error) -> Duration {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            if matches!(status.code, 401 | 403) =>
        {
            FORBIDDEN_PERIOD
        }
        _ => Duration::ZERO,
    }
}

impl Effects {
    /// Takes the definition of a kind, and warns if it is older than this program.
    fn learn(&self, kind: Kind, definition: &Value) {
        let Some(missing) = self.schemas.learn(kind, definition).filter(|missing| !missing.is_empty()) else { return };
        let error = format!(
            "API servers drop the fields that it lacks: {}; apply the output of `mcm manifests crds`",
            crd::some(&missing)
        );
        tracing::warn!(name = %name_of(kind), error, "a definition is older than this program");
    }
}

/// Keeps this process from acting on hollow objects.
struct Definitions {
    client: kube::Client,
    check: Check,
    metrics: Metrics,
    effects: Option<Effects>,
    /// Ends the process.
    caches_corrupt: CancellationToken,
}

impl Definitions {
    async fn keep(self, stop: CancellationToken) {
        let forever = async {
            let mut state = State::default();
            let mut after_pause = true;
            // The watch finds a hollow definition before this process writes a hollow object.
            let mut changes = pin!(changes(&self.client, pause_after));
            loop {
                let finding = self.check_all().await;
                match next_step(state.clone(), &finding, after_pause) {
                    Step::GoOn(next) if next == state => {}
                    Step::GoOn(next) => {
                        self.apply(&next);
                        state = next;
                    }
                    Step::End => {
                        tracing::warn!(error = CORRUPT_CACHES, "the caches may be wrong");
                        self.caches_corrupt.cancel();
                        std::future::pending::<()>().await;
                    }
                }
                set(&self.check, state.trouble());
                after_pause = tokio::select! {
                    () = sleep(finding.pause(&state)) => true,
                    Some(()) = changes.next() => false,
                };
            }
        };
        stop.run_until_cancelled(forever).await;
    }

    async fn check_all(&self) -> Finding {
        let mut answers = Vec::new();
        for kind in Kind::ALL {
            answers.push((kind, definition_in(&self.client, kind).await));
        }
        if let Some(is_unserved) = stored_version_unserved(answers.iter().map(|(_, answer)| answer.as_ref().ok())) {
            self.metrics.manager.stored_version_unserved.set(&(), if is_unserved { 1.0 } else { 0.0 });
        }
        if let Some(effects) = &self.effects {
            for (kind, answer) in &answers {
                if let Ok(definition) = answer {
                    effects.learn(*kind, definition);
                }
            }
        }
        Finding::of(answers.into_iter().map(|(kind, answer)| (kind, answer.map(|definition| hollow(&definition)))))
    }

    /// Only the end of the process ends a suspension, for two reasons. Passes that found the gate closed are not repeated. And
    /// hollow objects have the same resource versions as the correct objects, so that a later list does not replace them in the
    /// views.
    fn apply(&self, state: &State) {
        let hollow = matches!(state, State::Hollow(_));
        self.metrics.machine.definitions_hollow.set(&(), if hollow { 1.0 } else { 0.0 });
        match state {
            State::Hollow(why) => {
                tracing::error!(error = %why, "nothing is created, changed or deleted any more");
                if let Some(Effects { gate, .. }) = &self.effects {
                    gate.suspend(why);
                }
            }
            State::Restored | State::Whole => {
                tracing::info!("the definitions let objects be read as they are stored again");
            }
        }
    }
}

impl State {
    /// The problem that `/readyz?verbose` reports.
    fn trouble(&self) -> Option<&str> {
        match self {
            Self::Whole => None,
            Self::Hollow(why) => Some(why),
            Self::Restored => Some(CORRUPT_CACHES),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use rstest::rstest;
    use serde_json::json;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use controller_runtime::{objects::CALL_TIMEOUT, watch::WatchedCluster};

    fn watch(synced: bool, last_error: Option<&str>, undecodable: usize) -> WatchHealth {
        WatchHealth {
            cluster: WatchedCluster::Target,
            kind: "pods",
            silent_for: None,
            synced,
            lists: u64::from(synced),
            failures: 0,
            last_error: last_error.map(str::to_owned),
            undecodable,
        }
    }

    #[rstest]
    #[case::complete(watch(true, None, 0), None)]
    #[case::incomplete(watch(false, None, 0), Some("not listed yet"))]
    #[case::not_allowed(watch(false, Some("forbidden: no"), 0), Some("not listed yet: forbidden: no"))]
    #[case::not_allowed_any_more(watch(true, Some("forbidden: no"), 0), Some("forbidden: no"))]
    #[case::undecodable(watch(true, None, 2), Some("2 objects can't be decoded"))]
    fn the_problem_of_a_view(#[case] watch: WatchHealth, #[case] expected: Option<&str>) {
        assert_eq!(trouble(&watch).as_deref(), expected);
    }

    /// An API server that answers with its version while `silent` is false.
    fn server(silent: &Arc<AtomicBool>) -> kube::Client {
        answering(36, silent)
    }

    fn server_of(minor: u32) -> kube::Client {
        answering(minor, &Arc::default())
    }

    fn answering(minor: u32, silent: &Arc<AtomicBool>) -> kube::Client {
        let silent = Arc::clone(silent);
        let service = tower::service_fn(move |request: Request<Body>| {
            let silent = silent.load(Ordering::Relaxed);
            async move {
                assert_eq!(request.uri().path(), "/version");
                if silent {
                    std::future::pending::<()>().await;
                }
                let version = json!({ "major": "1", "minor": minor.to_string(), "gitVersion": "", "gitCommit": "",
                    "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": "" });
                Ok::<_, kube::Error>(Response::new(Body::from(version.to_string().into_bytes())))
            }
        });
        kube::Client::new(service, "ns")
    }

    #[tokio::test(start_paused = true)]
    async fn a_target_cluster_that_does_not_answer_is_reported_and_readiness_stays() {
        let (health, silent, stop) = (Health::default(), Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let reports = |what: &str| health.report().lines().any(|line| line.starts_with(what));
        let cluster = Some(server(&silent));
        let mut reporting = Vec::new();
        for server in servers(&health, None, cluster) {
            reporting.push(tokio::spawn(server.report(stop.clone())));
        }
        assert!(reports("[-]cluster-target failed: was not asked yet") && !reports("[+]cluster-control"));
        sleep(Duration::from_secs(1)).await;
        assert!(reports("[+]cluster-target ok"), "{}", health.report());
        silent.store(true, Ordering::Relaxed);
        sleep(REQUEST_PERIOD + CALL_TIMEOUT).await;
        assert!(reports("[-]cluster-target failed: no answer within"), "{}", health.report());
        assert!(health.report().contains("(does not gate readiness)"), "{}", health.report());
        silent.store(false, Ordering::Relaxed);
        sleep(REQUEST_PERIOD + CALL_TIMEOUT).await;
        assert!(reports("[+]cluster-target ok"), "{}", health.report());
        stop.cancel();
        for task in reporting {
            task.await.unwrap();
        }
    }

    #[rstest]
    #[case::supported(36, 0)]
    #[case::by_best_effort(30, 0)]
    #[case::too_old(29, 1)]
    #[case::too_new(38, 1)]
    #[tokio::test(start_paused = true)]
    async fn pk_117_an_unsupported_version_causes_one_warning(#[case] minor: u32, #[case] warnings: usize) {
        let lines = Lines::default();
        let sink = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || sink.clone());
        let subscriber = tracing_subscriber::registry().with(layer);
        let _guard = tracing::subscriber::set_default(subscriber);
        let client = server_of(minor);
        let (health, stop) = (Health::default(), CancellationToken::new());
        let server = servers(&health, Some(client), None).remove(0);
        let reporting = tokio::spawn(server.report(stop.clone()));
        sleep(3 * REQUEST_PERIOD).await;
        stop.cancel();
        reporting.await.unwrap();
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let found: Vec<&str> = text.lines().filter(|line| line.contains("is not supported")).collect();
        assert_eq!(found.len(), warnings, "{text}");
        for line in found {
            for word in ["WARN", "control", &format!("1.{minor}"), "1.31 to 1.37"] {
                assert!(line.contains(word), "{word} in {line}");
            }
        }
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<std::sync::Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn hollow(why: &str) -> State {
        State::Hollow(why.to_owned())
    }

    #[rstest]
    #[case::all_served([Some(true), Some(true)], Some(false))]
    #[case::one_is_not([Some(true), Some(false)], Some(true))]
    #[case::one_is_not_and_the_other_is_not_answered([None, Some(false)], Some(true))]
    #[case::one_is_not_answered([None, Some(true)], None)]
    fn a_stored_version_is_unserved(#[case] served: [Option<bool>; 2], #[case] expected: Option<bool>) {
        let definition = |served: bool| json!({"spec": {"versions": [{"name": "v1alpha1", "served": served}]}, "status": {"storedVersions": ["v1alpha1"]}});
        let definitions = served.map(|served| served.map(definition));
        assert_eq!(stored_version_unserved(definitions.iter().map(Option::as_ref)), expected);
    }

    #[rstest]
    #[case::whole(State::Whole, Finding::Whole, Step::GoOn(State::Whole), true)]
    #[case::hollow(State::Whole, Finding::Hollow("a".to_owned()), Step::GoOn(hollow("a")), true)]
    #[case::hollow_for_another_reason(hollow("a"), Finding::Hollow("b".to_owned()), Step::GoOn(hollow("b")), true)]
    #[case::whole_by_one_check(hollow("a"), Finding::Whole, Step::GoOn(State::Restored), true)]
    #[case::whole_by_two_checks(State::Restored, Finding::Whole, Step::End, true)]
    #[case::whole_by_two_checks_without_a_pause(State::Restored, Finding::Whole, Step::GoOn(State::Restored), false)]
    #[case::hollow_before_the_pause_is_over(State::Whole, Finding::Hollow("a".to_owned()), Step::GoOn(hollow("a")), false)]
    #[case::hollow_again(State::Restored, Finding::Hollow("a".to_owned()), Step::GoOn(hollow("a")), true)]
    #[case::no_answer_ends_no_suspension(hollow("a"), Finding::Unanswered, Step::GoOn(hollow("a")), true)]
    #[case::no_answer_confirms_nothing(State::Restored, Finding::Unanswered, Step::GoOn(State::Restored), true)]
    #[case::lost_rights_end_no_suspension(hollow("a"), Finding::Forbidden, Step::GoOn(hollow("a")), true)]
    #[case::a_process_without_rights_works(State::Whole, Finding::Forbidden, Step::GoOn(State::Whole), true)]
    fn after_a_check(
        #[case] state: State,
        #[case] finding: Finding,
        #[case] expected: Step,
        #[case] after_pause: bool,
    ) {
        assert_eq!(next_step(state, &finding, after_pause), expected);
    }

    #[rstest]
    #[case::whole([Ok(None), Ok(None)], Finding::Whole, REQUEST_PERIOD)]
    #[case::one_is_hollow(
        [Ok(None), Ok(Some("w".to_owned()))],
        Finding::Hollow("CustomResourceDefinition of MachineSet: w".to_owned()),
        REQUEST_PERIOD
    )]
    #[case::a_missing_answer_hides_no_hollow_definition(
        [Ok(Some("w".to_owned())), Err(ApiError::TimedOut(CALL_TIMEOUT))],
        Finding::Hollow("CustomResourceDefinition of Machine: w".to_owned()),
        REQUEST_PERIOD
    )]
    #[case::one_does_not_answer([Ok(None), Err(ApiError::TimedOut(CALL_TIMEOUT))], Finding::Unanswered, REQUEST_PERIOD)]
    #[case::forbidden([Err(ApiError::Forbidden("no".to_owned())), Ok(None)], Finding::Forbidden, FORBIDDEN_PERIOD)]
    fn the_finding_over_all_definitions(
        #[case] answers: [Result<Option<String>, ApiError>; 2],
        #[case] expected: Finding,
        #[case] pause: Duration,
    ) {
        let finding = Finding::of([Kind::Machine, Kind::MachineSet].into_iter().zip(answers));
        assert_eq!(finding, expected);
        assert_eq!(finding.pause(&State::Whole), pause);
    }
}
