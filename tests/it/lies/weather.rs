//! The lies of the table, and how one is told to all managers of a world.

use std::{collections::BTreeMap, time::Duration};

use kube_dev_server::DevServer;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::ledger::Ledger;
use crate::support::{
    lying::{Answer, Lie, Rule, in_process::InProcessLiar},
    one_thread::line,
};

/// How often a lie is told of each question.
const TIMES: usize = 2;
/// How long a state of things lasts.
const LASTS: Duration = Duration::from_secs(150);
/// How often watches break off while old events are told.
const BREAKS: Duration = Duration::from_secs(25);
/// Old events that are told at a time.
const MOST_EVENTS: usize = 60;

/// A row of the table: what the managers are told instead of the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nothing but the truth.
    Truth,
    /// 404 in a `Status` that names nothing.
    NotFound,
    /// 404 of a gateway.
    NotFoundPage,
    TooManyRequests,
    /// 500 in a `Status`.
    ServerFault,
    /// 503 in a `Status`.
    Unavailable,
    /// 502 of a gateway.
    BadGateway,
    /// True answers come late.
    Late,
    /// True answers come when nobody waits for them any more.
    TooLate,
    /// What was asked is done, and the connection breaks off.
    Lost,
    /// Open watches carry nothing any more.
    Silence,
    /// History is gone, and a resource can't be listed.
    NoListsOf(&'static str),
    /// Watches break off; new ones begin with what was long ago.
    OldEvents,
}

/// The watches of a manager, by the resource.
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
    /// What is told once of each question.
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

/// A lie that is told to the managers of a world.
pub struct Telling {
    told: Told,
    /// Since when.
    since: Option<Instant>,
    liars: Vec<InProcessLiar>,
    /// When watches broke off last.
    broke: Option<Instant>,
    stops: Vec<(InProcessLiar, crate::support::lying::RuleId)>,
}

impl Telling {
    /// It will be told once [`Self::begins`] is called.
    pub fn of(told: Told) -> Self {
        Self { told, since: None, liars: Vec::new(), broke: None, stops: Vec::new() }
    }

    /// From now on it is told.
    pub fn begins(&mut self) {
        self.since = Some(Instant::now());
    }

    /// This manager is told, too, if it has begun.
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
                let told = liar.add(Rule::about_lists_of(resource, refusal).times(usize::MAX));
                self.stops.push((liar.clone(), told));
            }
            _ => {}
        }
    }

    /// What lasts for a while goes on.
    pub fn disturbs(&mut self, server: &DevServer, ledger: &mut Ledger) {
        let Some(since) = self.since else { return };
        let is_over = since.elapsed() > LASTS;
        match self.told {
            Told::NoListsOf(_) if is_over => {
                for (liar, told) in self.stops.drain(..) {
                    liar.end(told);
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
                for (liar, told) in self.stops.drain(..) {
                    liar.end(told);
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

/// What the objects of each resource were, oldest first, the deleted ones with them.
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
