//! What `/readyz?verbose` tells beside readiness: cold or failing views, silent API servers, definitions that spoil objects.
//! None of it makes a replica unready, since an unready one takes admission with it. The last one stops all effects.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use kube::runtime::watcher;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Common, clusters::Clusters};
use crate::server::{Check, Gate as Decides, Health};
use controller_runtime::{
    clients::{Cluster, Purpose},
    definitions::{changes, hollow_in},
    error::ApiError,
    gate::Gate,
    objects::CALL_TIMEOUT,
    supervisor::{Stage, Supervisor},
    watch::{WatchHealth, Watches},
};
use machine_api::kind::Kind;
use mcm_metrics::Metrics;

/// Pause between two looks at the watches, which cost nothing.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause between two questions to an API server.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// The same where the answer is that we may not ask.
const ASK_EVERY_WITHOUT_RIGHTS: Duration = Duration::from_secs(600);
/// Definitions that spoilt objects must be whole for so long before the process ends: all API servers have to know them by then.
const CONFIRM_AFTER: Duration = Duration::from_secs(5);

/// Why a process ends that has seen hollow definitions, once they are whole again.
pub(super) const SPOILT_VIEWS: &str = "the definitions let objects be read as they are stored again, but this manager may have read \
                                       hollow ones before: it ends, and the one that is started in its place reads all anew";

/// Tells of views, API servers and definitions until the process ends. `gate` is what all effects of this process pass, if
/// it has any.
pub(super) fn tell(
    common: &Arc<Common>,
    clusters: &Clusters,
    watches: Watches,
    gate: Option<Gate>,
    tasks: &mut Supervisor,
) {
    let stop = tasks.stop_of(Stage::Support);
    tasks.spawn(Stage::Support, "state of views", tell_views(common.health.clone(), watches, stop.clone()));
    let client = |cluster: &Cluster| cluster.client(Purpose::Discovery);
    let (control, target) = (Some(client(&clusters.control)), clusters.target.as_ref().map(client));
    for (check, client) in checks_of_servers(&common.health, control, target) {
        tasks.spawn(Stage::Support, "state of API servers", tell_server(client, check, stop.clone()));
    }
    let guard = Definitions {
        client: clusters.control.client(Purpose::Discovery),
        check: common.health.check("definitions", Decides::None, "were not read yet"),
        metrics: common.metrics.clone(),
        gate,
        views_spoilt: common.views_spoilt.clone(),
    };
    tasks.spawn(Stage::Support, "state of definitions", guard.keep(stop));
}

/// The checks that tell of API servers, each with the client that asks.
fn checks_of_servers(
    health: &Health,
    control: Option<kube::Client>,
    target: Option<kube::Client>,
) -> Vec<(Check, kube::Client)> {
    let servers = [("cluster-control", control), ("cluster-target", target)];
    let asked = servers.into_iter().filter_map(|(name, client)| Some((name, client?)));
    asked.map(|(name, client)| (health.check(name, Decides::None, "was not asked yet"), client)).collect()
}

/// What is said of a view; nothing when it is well.
fn trouble(watch: &WatchHealth) -> Option<String> {
    match (&watch.last_error, watch.synced) {
        (Some(error), false) => Some(format!("not listed yet: {error}")),
        (Some(error), true) => Some(error.clone()),
        (None, false) => Some("not listed yet".to_owned()),
        (None, true) if watch.undecodable > 0 => Some(format!("{} objects can't be decoded", watch.undecodable)),
        (None, true) => None,
    }
}

async fn tell_views(health: Health, watches: Watches, stop: CancellationToken) {
    let mut checks: BTreeMap<&'static str, Check> = BTreeMap::new();
    let forever = async {
        loop {
            for watch in watches.health() {
                let new = || health.check(&format!("view-{}", watch.kind), Decides::None, "not listed yet");
                say(checks.entry(watch.kind).or_insert_with(new), trouble(&watch).as_deref());
            }
            sleep(LOOK_EVERY).await;
        }
    };
    stop.run_until_cancelled(forever).await;
}

async fn tell_server(client: kube::Client, check: Check, stop: CancellationToken) {
    let forever = async {
        loop {
            let asked = Instant::now();
            let answer = tokio::time::timeout(CALL_TIMEOUT, client.apiserver_version()).await;
            let silence = match answer {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(ApiError::from(error).to_string()),
                Err(_) => Some(format!("no answer within {:?}", asked.elapsed())),
            };
            say(&check, silence.as_deref());
            sleep(ASK_EVERY).await;
        }
    };
    stop.run_until_cancelled(forever).await;
}

fn say(check: &Check, trouble: Option<&str>) {
    match trouble {
        None => check.pass(),
        Some(trouble) => check.fail(trouble),
    }
}

/// What this process knows of the definitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Known {
    /// They have spoilt nothing since it began.
    #[default]
    Whole,
    /// They spoil what the API server shows, for this reason.
    Hollow(String),
    /// They did, and don't any more by the last look. What was read meanwhile is still in the views.
    Mended,
}

/// What a look at the definitions said.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Look {
    /// All show objects as they are stored.
    Whole,
    /// One of them spoils what it shows, for this reason.
    Hollow(String),
    /// At least one could not be read, and none that could be spoils anything.
    Unanswered,
    /// The same, where the answer was that we may not read it.
    Forbidden,
}

/// What follows from a look.
#[derive(Debug, PartialEq, Eq)]
enum Then {
    /// This is known until the next look.
    Know(Known),
    /// The process ends: the definitions are whole for good, and its views may hold hollow objects.
    End,
}

impl Look {
    /// What a look says as a whole, by what was read of each definition.
    fn of(answers: impl IntoIterator<Item = (Kind, Result<Option<String>, ApiError>)>) -> Self {
        answers.into_iter().fold(Self::Whole, |so_far, (kind, answer)| match (so_far, answer) {
            (Self::Hollow(why), _) => Self::Hollow(why),
            (_, Ok(Some(why))) => Self::Hollow(format!("CustomResourceDefinition of {kind}: {why}")),
            (so_far, Ok(None)) => so_far,
            (Self::Whole | Self::Forbidden, Err(ApiError::Forbidden(_))) => Self::Forbidden,
            (_, Err(_)) => Self::Unanswered,
        })
    }

    /// The pause before the next look, by what is known after this one.
    fn pause(&self, known: &Known) -> Duration {
        match (self, known) {
            (Self::Forbidden, _) => ASK_EVERY_WITHOUT_RIGHTS,
            (_, Known::Mended) => CONFIRM_AFTER,
            _ => ASK_EVERY,
        }
    }
}

/// Whether a look came when the pause after the last one was over, or before that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    InTime,
    ByAChange,
}

/// What follows from a look for a process that knew so much. Without an answer, what was known goes on being so. One look that
/// finds everything whole is not enough after a hollow one: of several API servers some may not know the definitions yet, and the
/// next process could ask one of them.
fn after_look(known: Known, look: &Look, woken: Woken) -> Then {
    match (known, look) {
        (_, Look::Hollow(why)) => Then::Know(Known::Hollow(why.clone())),
        (known, Look::Unanswered | Look::Forbidden) => Then::Know(known),
        (Known::Whole, Look::Whole) => Then::Know(Known::Whole),
        (Known::Hollow(_), Look::Whole) => Then::Know(Known::Mended),
        (Known::Mended, Look::Whole) => match woken {
            Woken::InTime => Then::End,
            Woken::ByAChange => Then::Know(Known::Mended),
        },
    }
}

/// How long a watch of a definition rests after trouble. What it does not tell the next look does.
fn rest_after(error: &watcher::Error) -> Duration {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            if matches!(status.code, 401 | 403) =>
        {
            ASK_EVERY_WITHOUT_RIGHTS
        }
        _ => Duration::ZERO,
    }
}

/// Keeps this process from acting on objects that the definitions spoil.
struct Definitions {
    client: kube::Client,
    check: Check,
    metrics: Metrics,
    gate: Option<Gate>,
    /// Ends the process.
    views_spoilt: CancellationToken,
}

impl Definitions {
    async fn keep(self, stop: CancellationToken) {
        let forever = async {
            let mut known = Known::default();
            let mut woken = Woken::InTime;
            // A definition that spoils objects must be noticed before we write one of them.
            let mut changes = pin!(changes(&self.client, rest_after));
            loop {
                let look = self.look().await;
                match after_look(known.clone(), &look, woken) {
                    Then::Know(now) if now == known => {}
                    Then::Know(now) => {
                        self.act_on(&now);
                        known = now;
                    }
                    Then::End => {
                        tracing::warn!("{SPOILT_VIEWS}");
                        self.views_spoilt.cancel();
                        std::future::pending::<()>().await;
                    }
                }
                say(&self.check, known.trouble());
                woken = tokio::select! {
                    () = sleep(look.pause(&known)) => Woken::InTime,
                    Some(()) = changes.next() => Woken::ByAChange,
                };
            }
        };
        stop.run_until_cancelled(forever).await;
    }

    async fn look(&self) -> Look {
        let mut answers = Vec::new();
        for kind in Kind::ALL {
            answers.push((kind, hollow_in(&self.client, kind).await));
        }
        Look::of(answers)
    }

    /// A suspension ends with the process only: passes that met the closed gate are not repeated, and hollow objects have the
    /// versions of the true ones, so that no list would take their place.
    fn act_on(&self, known: &Known) {
        let hollow = matches!(known, Known::Hollow(_));
        self.metrics.machine.definitions_hollow.set(&(), if hollow { 1.0 } else { 0.0 });
        match known {
            Known::Hollow(why) => {
                tracing::error!("nothing is created, changed or deleted any more: {why}");
                if let Some(gate) = &self.gate {
                    gate.suspend(why);
                }
            }
            Known::Mended | Known::Whole => {
                tracing::info!("the definitions let objects be read as they are stored again");
            }
        }
    }
}

impl Known {
    /// What `/readyz?verbose` says of it.
    fn trouble(&self) -> Option<&str> {
        match self {
            Self::Whole => None,
            Self::Hollow(why) => Some(why),
            Self::Mended => Some(SPOILT_VIEWS),
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

    use super::*;

    fn watch(synced: bool, last_error: Option<&str>, undecodable: usize) -> WatchHealth {
        WatchHealth {
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
    #[case::well(watch(true, None, 0), None)]
    #[case::cold(watch(false, None, 0), Some("not listed yet"))]
    #[case::not_allowed(watch(false, Some("forbidden: no"), 0), Some("not listed yet: forbidden: no"))]
    #[case::not_allowed_any_more(watch(true, Some("forbidden: no"), 0), Some("forbidden: no"))]
    #[case::spoilt(watch(true, None, 2), Some("2 objects can't be decoded"))]
    fn a_view_says_what_ails_it(#[case] watch: WatchHealth, #[case] expected: Option<&str>) {
        assert_eq!(trouble(&watch).as_deref(), expected);
    }

    /// Answers what its version is, unless it is to be silent.
    fn server(silent: &Arc<AtomicBool>) -> kube::Client {
        let silent = Arc::clone(silent);
        let service = tower::service_fn(move |request: Request<Body>| {
            let silent = silent.load(Ordering::Relaxed);
            async move {
                assert_eq!(request.uri().path(), "/version");
                if silent {
                    std::future::pending::<()>().await;
                }
                let version = json!({ "major": "1", "minor": "36", "gitVersion": "", "gitCommit": "", "gitTreeState": "",
                    "buildDate": "", "goVersion": "", "compiler": "", "platform": "" });
                Ok::<_, kube::Error>(Response::new(Body::from(version.to_string().into_bytes())))
            }
        });
        kube::Client::new(service, "ns")
    }

    #[tokio::test(start_paused = true)]
    async fn a_target_cluster_that_does_not_answer_is_told_and_gates_nothing() {
        let (health, silent, stop) = (Health::default(), Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let says = |what: &str| health.report().lines().any(|line| line.starts_with(what));
        let cluster = Some(server(&silent));
        let mut telling = Vec::new();
        for (check, client) in checks_of_servers(&health, None, cluster) {
            telling.push(tokio::spawn(tell_server(client, check, stop.clone())));
        }
        assert!(says("[-]cluster-target failed: was not asked yet") && !says("[+]cluster-control"));
        sleep(Duration::from_secs(1)).await;
        assert!(says("[+]cluster-target ok"), "{}", health.report());
        silent.store(true, Ordering::Relaxed);
        sleep(ASK_EVERY + CALL_TIMEOUT).await;
        assert!(says("[-]cluster-target failed: no answer within"), "{}", health.report());
        assert!(health.report().contains("(does not gate readiness)"), "{}", health.report());
        silent.store(false, Ordering::Relaxed);
        sleep(ASK_EVERY + CALL_TIMEOUT).await;
        assert!(says("[+]cluster-target ok"), "{}", health.report());
        stop.cancel();
        for told in telling {
            told.await.unwrap();
        }
    }

    fn hollow(why: &str) -> Known {
        Known::Hollow(why.to_owned())
    }

    #[rstest]
    #[case::all_is_well(Known::Whole, Look::Whole, Then::Know(Known::Whole), Woken::InTime)]
    #[case::spoilt(Known::Whole, Look::Hollow("a".to_owned()), Then::Know(hollow("a")), Woken::InTime)]
    #[case::spoilt_otherwise(hollow("a"), Look::Hollow("b".to_owned()), Then::Know(hollow("b")), Woken::InTime)]
    #[case::whole_by_one_look(hollow("a"), Look::Whole, Then::Know(Known::Mended), Woken::InTime)]
    #[case::whole_by_two(Known::Mended, Look::Whole, Then::End, Woken::InTime)]
    #[case::whole_by_two_at_once(Known::Mended, Look::Whole, Then::Know(Known::Mended), Woken::ByAChange)]
    #[case::spoilt_meanwhile(Known::Whole, Look::Hollow("a".to_owned()), Then::Know(hollow("a")), Woken::ByAChange)]
    #[case::spoilt_again(Known::Mended, Look::Hollow("a".to_owned()), Then::Know(hollow("a")), Woken::InTime)]
    #[case::silence_ends_no_suspension(hollow("a"), Look::Unanswered, Then::Know(hollow("a")), Woken::InTime)]
    #[case::silence_confirms_nothing(Known::Mended, Look::Unanswered, Then::Know(Known::Mended), Woken::InTime)]
    #[case::rights_that_were_lost_end_none(hollow("a"), Look::Forbidden, Then::Know(hollow("a")), Woken::InTime)]
    #[case::a_process_without_rights_works(Known::Whole, Look::Forbidden, Then::Know(Known::Whole), Woken::InTime)]
    fn after_a_look(#[case] known: Known, #[case] look: Look, #[case] expected: Then, #[case] woken: Woken) {
        assert_eq!(after_look(known, &look, woken), expected);
    }

    #[rstest]
    #[case::whole([Ok(None), Ok(None)], Look::Whole, ASK_EVERY)]
    #[case::one_is_hollow(
        [Ok(None), Ok(Some("w".to_owned()))],
        Look::Hollow("CustomResourceDefinition of MachineSet: w".to_owned()),
        ASK_EVERY
    )]
    #[case::silence_hides_no_hollow_one(
        [Ok(Some("w".to_owned())), Err(ApiError::TimedOut(CALL_TIMEOUT))],
        Look::Hollow("CustomResourceDefinition of Machine: w".to_owned()),
        ASK_EVERY
    )]
    #[case::one_is_silent([Ok(None), Err(ApiError::TimedOut(CALL_TIMEOUT))], Look::Unanswered, ASK_EVERY)]
    #[case::may_not_ask([Err(ApiError::Forbidden("no".to_owned())), Ok(None)], Look::Forbidden, ASK_EVERY_WITHOUT_RIGHTS)]
    fn a_look_at_all_definitions(
        #[case] answers: [Result<Option<String>, ApiError>; 2],
        #[case] expected: Look,
        #[case] pause: Duration,
    ) {
        let look = Look::of([Kind::Machine, Kind::MachineSet].into_iter().zip(answers));
        assert_eq!(look, expected);
        assert_eq!(look.pause(&Known::Whole), pause);
    }
}
