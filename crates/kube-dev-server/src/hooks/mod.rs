//! Hooks for tests of clients: weather of an API server, made to order. What is ordered and when it strikes is decided here,
//! without a clock; [`socket`] takes the orders.
//!
//! Source: spec/extension-apiserver §6.8. `thaw-watch` is ours: what freezes must thaw.

pub(super) mod socket;

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, de};
use tokio::sync::watch;

use super::server::Server;
use kube_protocol::{
    request::{ResourceRequest, Verb},
    status::ApiStatus,
};

/// Orders that can wait for their requests at a time.
const MOST_ORDERS: usize = 100;
/// The longest that a request is held up.
const LONGEST_DELAY: Duration = Duration::from_secs(60);
/// How far the clock can be set off: a hundred years.
const FURTHEST_SKEW: u64 = 100 * 365 * 24 * 3600;

/// Codes that a refusal can have, each with its reason.
const REASONS: [(u16, &str); 11] = [
    (400, "BadRequest"),
    (401, "Unauthorized"),
    (403, "Forbidden"),
    (404, "NotFound"),
    (409, "Conflict"),
    (410, "Expired"),
    (422, "Invalid"),
    (429, "TooManyRequests"),
    (500, "InternalError"),
    (503, "ServiceUnavailable"),
    (504, "Timeout"),
];

/// What a test orders. Without `verb` any verb is meant, without `resource` any resource; `machines` is the resource alone and
/// `machines/status` a subresource, as in roles.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "hook", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Hook {
    /// Forgets the history of all objects: watches that are behind must begin anew.
    Compact {},
    /// Holds back what watches tell, bookmarks too, until they are thawed. Reads go on.
    FreezeWatch {},
    /// Lets watches tell what they have held back.
    ThawWatch {},
    /// Ends all connections of the moment; new ones are taken.
    DropConnections {},
    /// Refuses the next requests that match, whoever sends them, before they have any effect.
    FailNext {
        /// Which verb.
        #[serde(default, deserialize_with = "verb")]
        verb: Option<Verb>,
        /// Which resource.
        resource: Option<String>,
        /// Code of the refusal.
        status: u16,
        /// How many requests.
        #[serde(default = "once")]
        times: u32,
    },
    /// Holds up all requests that match, from now on. 0 ends what was ordered in the same words.
    Delay {
        /// Which verb.
        #[serde(default, deserialize_with = "verb")]
        verb: Option<Verb>,
        /// Which resource.
        resource: Option<String>,
        /// For how long.
        milliseconds: u64,
    },
    /// Sets the server's clock ahead of the true time, or behind it if negative.
    SkewClock {
        /// By how much. 0 sets it right.
        seconds: i64,
    },
}

const fn once() -> u32 {
    1
}

fn verb<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Verb>, D::Error> {
    let name = String::deserialize(deserializer)?;
    let found = Verb::ALL.into_iter().find(|verb| verb.name() == name);
    found.map(Some).ok_or_else(|| {
        let known = Verb::ALL.map(Verb::name).join(", ");
        de::Error::custom(format!("verb {name:?} is none of {known}"))
    })
}

/// Why an order is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// Such a refusal would be none of an API server.
    #[error("status {0} is none of {known}", known = REASONS.map(|(code, _)| code.to_string()).join(", "))]
    Status(u16),
    /// Too long.
    #[error("{0:?} is longer than a request may be held up, which is {LONGEST_DELAY:?}")]
    Delay(Duration),
    /// Too far.
    #[error("the clock cannot be set off by {0} s; at most {FURTHEST_SKEW} s")]
    Skew(i64),
    /// Too many.
    #[error("{MOST_ORDERS} orders are waiting for their requests already")]
    TooMany,
}

/// Which requests an order is about.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Which {
    verb: Option<Verb>,
    resource: Option<String>,
}

impl Which {
    fn meets(&self, verb: Verb, request: &ResourceRequest) -> bool {
        let is_named = |wanted: &str| match (wanted.split_once('/'), request.subresource.as_deref()) {
            (None, None) => wanted == request.resource,
            (Some((resource, part)), Some(subresource)) => resource == request.resource && part == subresource,
            _ => false,
        };
        self.verb.is_none_or(|wanted| wanted == verb) && self.resource.as_deref().is_none_or(is_named)
    }
}

/// A refusal that waits for its requests.
#[derive(Debug)]
struct Failure {
    which: Which,
    code: u16,
    reason: &'static str,
    times: u32,
}

/// What was ordered and has not struck yet.
#[derive(Debug, Default)]
struct Orders {
    failures: Vec<Failure>,
    delays: Vec<(Which, Duration)>,
}

/// What happens to a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Weather {
    delay: Duration,
    refusal: Option<(u16, &'static str)>,
}

impl Orders {
    fn fail(&mut self, which: Which, code: u16, times: u32) -> Result<(), HookError> {
        let (_, reason) = REASONS.into_iter().find(|(known, _)| *known == code).ok_or(HookError::Status(code))?;
        if self.failures.len() == MOST_ORDERS {
            return Err(HookError::TooMany);
        }
        if times > 0 {
            self.failures.push(Failure { which, code, reason, times });
        }
        Ok(())
    }

    fn delay(&mut self, which: Which, delay: Duration) -> Result<(), HookError> {
        if delay > LONGEST_DELAY {
            return Err(HookError::Delay(delay));
        }
        self.delays.retain(|(other, _)| *other != which);
        if self.delays.len() == MOST_ORDERS {
            return Err(HookError::TooMany);
        }
        if !delay.is_zero() {
            self.delays.push((which, delay));
        }
        Ok(())
    }

    /// The longest delay and the oldest refusal that a request meets; the refusal is used up by it.
    fn strike(&mut self, verb: Verb, request: &ResourceRequest) -> Weather {
        let delays = self.delays.iter().filter(|(which, _)| which.meets(verb, request));
        let delay = delays.map(|(_, delay)| *delay).max().unwrap_or_default();
        let refusal = self.failures.iter_mut().find(|failure| failure.which.meets(verb, request)).map(|failure| {
            failure.times -= 1;
            (failure.code, failure.reason)
        });
        self.failures.retain(|failure| failure.times > 0);
        Weather { delay, refusal }
    }
}

/// The orders of one server.
#[derive(Debug)]
pub(super) struct Hooks {
    orders: Mutex<Orders>,
    frozen: watch::Sender<bool>,
    cut: watch::Sender<()>,
    /// In seconds.
    skew: AtomicI64,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            orders: Mutex::default(),
            frozen: watch::Sender::new(false),
            cut: watch::Sender::new(()),
            skew: AtomicI64::new(0),
        }
    }
}

impl Hooks {
    fn change(&self, change: impl FnOnce(&mut Orders) -> Result<(), HookError>) -> Result<(), HookError> {
        change(&mut self.orders.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets a request through, perhaps late.
    ///
    /// # Errors
    /// The refusal that was ordered for it.
    pub(super) async fn pass(&self, verb: Verb, request: &ResourceRequest) -> Result<(), ApiStatus> {
        let weather = self.orders.lock().unwrap_or_else(PoisonError::into_inner).strike(verb, request);
        if !weather.delay.is_zero() {
            tokio::time::sleep(weather.delay).await;
        }
        let Some((code, reason)) = weather.refusal else { return Ok(()) };
        let message = format!("a hook for tests refuses to {} {}", verb.name(), request.resource);
        Err(ApiStatus::new(code, reason, message))
    }

    /// Tells whether watches are held back.
    pub(super) fn frozen(&self) -> watch::Receiver<bool> {
        self.frozen.subscribe()
    }

    /// Told when the connections of the moment are to end.
    pub(super) fn cut(&self) -> watch::Sender<()> {
        self.cut.clone()
    }

    /// The time that the server takes for the true one.
    pub(super) fn time(&self, now: Timestamp) -> Timestamp {
        let skew = SignedDuration::from_secs(self.skew.load(Ordering::Relaxed));
        now.checked_add(skew).unwrap_or(now)
    }
}

impl Server {
    /// Carries an order out, or remembers it.
    ///
    /// # Errors
    /// When it is out of bounds.
    pub(super) fn order(&self, hook: Hook) -> Result<(), HookError> {
        match hook {
            Hook::Compact {} => self.store.compact(),
            Hook::FreezeWatch {} => drop(self.hooks.frozen.send_replace(true)),
            Hook::ThawWatch {} => drop(self.hooks.frozen.send_replace(false)),
            Hook::DropConnections {} => self.hooks.cut.send_replace(()),
            Hook::FailNext { verb, resource, status, times } => {
                self.hooks.change(|orders| orders.fail(Which { verb, resource }, status, times))?;
            }
            Hook::Delay { verb, resource, milliseconds } => {
                let delay = Duration::from_millis(milliseconds);
                self.hooks.change(|orders| orders.delay(Which { verb, resource }, delay))?;
            }
            Hook::SkewClock { seconds } if seconds.unsigned_abs() > FURTHEST_SKEW => {
                return Err(HookError::Skew(seconds));
            }
            Hook::SkewClock { seconds } => self.hooks.skew.store(seconds, Ordering::Relaxed),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
