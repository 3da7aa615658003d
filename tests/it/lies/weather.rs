//! The lies of the table, and how a lie is applied to all managers of a world.

use std::{collections::BTreeMap, time::Duration};

use kube_dev_server::DevServer;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::ledger::Ledger;
use crate::support::{
    lying::{Answer, Lie, Rule, in_process::InProcessLiar},
    one_thread::line,
};

/// How often a lie applies to each request.
const TIMES: usize = 2;
/// How long a lasting fault lasts.
const LASTS: Duration = Duration::from_secs(150);
/// The period in which watches are closed while old events are replayed.
const BREAKS: Duration = Duration::from_secs(25);
/// The number of old events that are replayed at a time.
const MOST_EVENTS: usize = 60;

/// A row of the table: the fault in place of the true answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// No fault.
    Truth,
    /// 404 with a `Status` without details.
    NotFound,
    /// 404 from a gateway.
    NotFoundPage,
    TooManyRequests,
    /// 500 with a `Status`.
    ServerFault,
    /// 503 with a `Status`.
    Unavailable,
    /// 502 from a gateway.
    BadGateway,
    /// True answers are late.
    Late,
    /// True answers arrive after the client's deadline.
    TooLate,
    /// The request takes effect, but the connection is closed without an answer.
    Lost,
    /// Open watches deliver no more events.
    Silence,
    /// The history is compacted, and a resource cannot be listed.
    NoListsOf(&'static str),
    /// Watches are closed; new watches begin with old events.
    OldEvents,
}

/// The resources that a manager watches.
const WATCHED: [&str; 8] = [
    "machines",
    "machinesets",
    "machinedeployments",
    "machineclasses",
    "nodes",
    "pods",
    "secrets",
    "poddisruptionbudgets",
];

impl Told {
    /// The fault that applies once to each request.
    fn of_each_question(self) -> Option<Lie> {
        let status = |status, reason| Some(Lie::Answers(Answer::status(status, reason)));
        match self {
            Self::NotFound => status(404, "NotFound"),
            Self::NotFoundPage => Some(Lie::Answers(Answer::page(404))),
            Self::TooManyRequests => status(429, "TooManyRequests"),
            Self::ServerFault => status(500, "InternalError"),
            Self::Unavailable => status(503, "ServiceUnavailable"),
            Self::BadGateway => Some(Lie::Answers(Answer::page(502))),
            Self::Late => Some(Lie::Held(Duration::from_secs(5))),
            Self::TooLate => Some(Lie::Held(Duration::from_secs(45))),
            Self::Lost => Some(Lie::Lost),
            Self::Truth | Self::Silence | Self::NoListsOf(_) | Self::OldEvents => None,
        }
    }
}

/// A lie that applies to the managers of a world.
pub struct ActiveLie {
    told: Told,
    /// The start of the lie.
    since: Option<Instant>,
    liars: Vec<InProcessLiar>,
    /// The last time that watches were closed.
    broke: Option<Instant>,
    stops: Vec<(InProcessLiar, crate::support::lying::RuleId)>,
}

impl ActiveLie {
    /// Prepares a lie; it applies after [`Self::begins`].
    pub fn of(told: Told) -> Self {
        Self { told, since: None, liars: Vec::new(), broke: None, stops: Vec::new() }
    }

    /// Starts the lie.
    pub fn begins(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Applies the lie to this manager, if the lie has started.
    pub fn begins_for(&mut self, liar: &InProcessLiar) {
        if self.since.is_none() {
            return;
        }
        self.liars.push(liar.clone());
        if let Some(lie) = self.told.of_each_question() {
            liar.add(Rule::about("/", lie).times_each(TIMES));
        }
        match self.told {
            Told::Silence => liar.falls_silent(),
            Told::NoListsOf(resource) => {
                let refusal = Lie::Answers(Answer::status(500, "InternalError"));
                let rule = liar.add(Rule::about_lists_of(resource, refusal).times(usize::MAX));
                self.stops.push((liar.clone(), rule));
            }
            _ => {}
        }
    }

    /// Continues a lasting fault.
    pub fn disturbs(&mut self, server: &DevServer, ledger: &mut Ledger) {
        let Some(since) = self.since else { return };
        let is_over = since.elapsed() > LASTS;
        match self.told {
            Told::NoListsOf(_) if is_over => {
                for (liar, rule) in self.stops.drain(..) {
                    liar.end(rule);
                }
            }
            Told::NoListsOf(_) if self.broke.is_none() => {
                self.broke = Some(Instant::now());
                ledger.looks(server);
                server.compact();
                self.liars.iter().for_each(InProcessLiar::hangs_up);
            }
            Told::OldEvents if !is_over && self.broke.is_none_or(|broke| broke.elapsed() >= BREAKS) => {
                self.broke = Some(Instant::now());
                for (liar, rule) in self.stops.drain(..) {
                    liar.end(rule);
                }
                let old = old_events(server);
                for liar in &self.liars {
                    for (resource, events) in &old {
                        let rule = Rule::about_watches_of(resource, Lie::Replays(events.clone()));
                        self.stops.push((liar.clone(), liar.add(rule)));
                    }
                    liar.hangs_up();
                }
            }
            _ => {}
        }
    }
}

/// The old states of the objects of each resource, oldest first, including deleted objects.
fn old_events(server: &DevServer) -> BTreeMap<&'static str, Vec<Value>> {
    let mut old: BTreeMap<&'static str, Vec<Value>> = BTreeMap::new();
    for written in server.writes() {
        let Some((_, place, object)) = line(&written) else { continue };
        let resource = place.split('/').nth(1).unwrap_or_default();
        let Some(resource) = WATCHED.into_iter().find(|watched| *watched == resource) else { continue };
        if let Ok(object) = serde_json::from_str::<Value>(object) {
            old.entry(resource).or_default().push(json!({ "type": "MODIFIED", "object": object }));
        }
    }
    for events in old.values_mut() {
        events.drain(..events.len().saturating_sub(MOST_EVENTS));
    }
    old
}
