//! What `/readyz?verbose` tells beside readiness: cold or failing views, silent API servers, definitions that spoil objects.
//! None of it makes a replica unready, since an unready one takes admission with it. The last one stops all effects.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Common, clusters::Clusters};
use crate::{
    api::kind::Kind,
    cluster::{
        clients::Purpose,
        definitions::hollow_in,
        error::ApiError,
        gate::Gate,
        objects::CALL_TIMEOUT,
        supervisor::{Stage, Supervisor},
        watch::{WatchHealth, Watches},
    },
    metrics::Metrics,
    server::{Check, Gate as Decides, Health},
};

/// Pause between two looks at the watches, which cost nothing.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause between two questions to an API server.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// The same where the answer is that we may not ask.
const ASK_EVERY_WITHOUT_RIGHTS: Duration = Duration::from_secs(600);

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
    let servers = [("control", Some(&clusters.control)), ("target", clusters.target.as_ref())];
    for (name, cluster) in servers {
        let Some(cluster) = cluster else { continue };
        let check = common.health.check(&format!("cluster-{name}"), Decides::None, "was not asked yet");
        let client = cluster.client(Purpose::Discovery);
        tasks.spawn(Stage::Support, "state of API servers", tell_server(client, check, stop.clone()));
    }
    let guard = Definitions {
        client: clusters.control.client(Purpose::Discovery),
        check: common.health.check("definitions", Decides::None, "were not read yet"),
        metrics: common.metrics.clone(),
        gate,
    };
    tasks.spawn(Stage::Support, "state of definitions", guard.keep(stop));
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

/// Keeps this process from acting on objects that the definitions spoil.
struct Definitions {
    client: kube::Client,
    check: Check,
    metrics: Metrics,
    gate: Option<Gate>,
}

impl Definitions {
    async fn keep(self, stop: CancellationToken) {
        let forever = async {
            let mut told = None;
            loop {
                let (mut found, mut pause) = (None, ASK_EVERY);
                for kind in Kind::ALL {
                    match hollow_in(&self.client, kind).await {
                        Ok(Some(why)) => found = Some(format!("CustomResourceDefinition of {kind}: {why}")),
                        Ok(None) => {}
                        Err(ApiError::Forbidden(_)) => pause = ASK_EVERY_WITHOUT_RIGHTS,
                        // What was known goes on being so.
                        Err(_) => found = found.or_else(|| told.clone()),
                    }
                }
                if found != told {
                    self.act_on(found.as_deref());
                    told.clone_from(&found);
                }
                say(&self.check, found.as_deref());
                sleep(pause).await;
            }
        };
        stop.run_until_cancelled(forever).await;
    }

    fn act_on(&self, hollow: Option<&str>) {
        self.metrics.machine.definitions_hollow.set(&(), if hollow.is_some() { 1.0 } else { 0.0 });
        if let Some(why) = hollow {
            tracing::error!("nothing is created, changed or deleted any more: {why}");
        } else {
            tracing::info!("the definitions let objects be read as they are stored again; work goes on");
        }
        if let Some(gate) = &self.gate {
            match hollow {
                Some(why) => gate.suspend(why),
                None => gate.resume(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

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
}
