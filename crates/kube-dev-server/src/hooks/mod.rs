//! Hooks for tests of clients: faults that a test injects into the API server. This file decides which requests a hook affects, without a clock.
//! Tests send hooks over the socket in [`socket`].
//!
//! Source: spec/extension-apiserver §6.8, and `thaw-watch` as the opposite of `freeze-watch`.

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

/// The maximum number of failures, and of delays, that are active at the same time.
const MAX_ACTIVE: usize = 100;
/// The longest delay of a request.
const LONGEST_DELAY: Duration = Duration::from_secs(60);
/// The largest skew of the clock in seconds: a hundred years.
const LARGEST_SKEW: u64 = 100 * 365 * 24 * 3600;

/// The HTTP status codes of injected failures, with their reasons.
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

/// A fault that a test injects. A hook without `verb` or `resource` affects all verbs or resources. As in roles, `machines` means the resource
/// without its subresources, and `machines/status` means a subresource.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "hook", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Hook {
    /// Drops the history of all objects. Watches of an older revision must list again.
    Compact {},
    /// Stops the events of all watches, including bookmarks, until `thaw-watch`. Other reads are not affected.
    FreezeWatch {},
    /// Continues the events of all watches.
    ThawWatch {},
    /// Closes all connections. New connections are accepted.
    DropConnections {},
    /// Refuses the next matching requests of any user, before they have an effect.
    FailNext {
        /// The verb. `None` for all verbs.
        #[serde(default, deserialize_with = "verb")]
        verb: Option<Verb>,
        /// The resource. `None` for all resources.
        resource: Option<String>,
        /// The HTTP status code of the failure.
        status: u16,
        /// The number of requests.
        #[serde(default = "once")]
        times: u32,
    },
    /// Delays all matching requests from now on. A delay of 0 ends the delay with the same verb and resource.
    Delay {
        /// The verb. `None` for all verbs.
        #[serde(default, deserialize_with = "verb")]
        verb: Option<Verb>,
        /// The resource. `None` for all resources.
        resource: Option<String>,
        /// The delay in milliseconds.
        milliseconds: u64,
    },
    /// Sets the clock of the server ahead of the true time, or behind it if negative.
    SkewClock {
        /// The skew in seconds. 0 sets the true time.
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

/// The error of a hook.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// The status code is not an error code of an API server.
    #[error("status {0} is none of {known}", known = REASONS.map(|(code, _)| code.to_string()).join(", "))]
    Status(u16),
    /// The delay is too long.
    #[error("{0:?} is longer than a request may be held up, which is {LONGEST_DELAY:?}")]
    Delay(Duration),
    /// The skew is too large.
    #[error("the clock cannot be set off by {0} s; at most {LARGEST_SKEW} s")]
    Skew(i64),
    /// Too many hooks are active.
    #[error("{MAX_ACTIVE} orders are waiting for their requests already")]
    TooMany,
}

/// Selects the requests that a hook affects.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RequestFilter {
    verb: Option<Verb>,
    resource: Option<String>,
}

impl RequestFilter {
    fn matches(&self, verb: Verb, request: &ResourceRequest) -> bool {
        let is_named = |wanted: &str| match (wanted.split_once('/'), request.subresource.as_deref()) {
            (None, None) => wanted == request.resource,
            (Some((resource, part)), Some(subresource)) => resource == request.resource && part == subresource,
            _ => false,
        };
        self.verb.is_none_or(|wanted| wanted == verb) && self.resource.as_deref().is_none_or(is_named)
    }
}

/// A failure of the next matching requests.
#[derive(Debug)]
struct Failure {
    filter: RequestFilter,
    code: u16,
    reason: &'static str,
    times: u32,
}

/// The active failures and delays.
#[derive(Debug, Default)]
struct ActiveHooks {
    failures: Vec<Failure>,
    delays: Vec<(RequestFilter, Duration)>,
}

/// The injected fault of a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fault {
    delay: Duration,
    failure: Option<(u16, &'static str)>,
}

impl ActiveHooks {
    fn fail(&mut self, filter: RequestFilter, code: u16, times: u32) -> Result<(), HookError> {
        let (_, reason) = REASONS.into_iter().find(|(known, _)| *known == code).ok_or(HookError::Status(code))?;
        if self.failures.len() == MAX_ACTIVE {
            return Err(HookError::TooMany);
        }
        if times > 0 {
            self.failures.push(Failure { filter, code, reason, times });
        }
        Ok(())
    }

    fn delay(&mut self, filter: RequestFilter, delay: Duration) -> Result<(), HookError> {
        if delay > LONGEST_DELAY {
            return Err(HookError::Delay(delay));
        }
        self.delays.retain(|(other, _)| *other != filter);
        if self.delays.len() == MAX_ACTIVE {
            return Err(HookError::TooMany);
        }
        if !delay.is_zero() {
            self.delays.push((filter, delay));
        }
        Ok(())
    }

    /// The longest delay and the oldest failure that match a request. The request counts for the failure.
    fn fault_of(&mut self, verb: Verb, request: &ResourceRequest) -> Fault {
        let delays = self.delays.iter().filter(|(filter, _)| filter.matches(verb, request));
        let delay = delays.map(|(_, delay)| *delay).max().unwrap_or_default();
        let failure = self.failures.iter_mut().find(|failure| failure.filter.matches(verb, request)).map(|failure| {
            failure.times -= 1;
            (failure.code, failure.reason)
        });
        self.failures.retain(|failure| failure.times > 0);
        Fault { delay, failure }
    }
}

/// The hooks of a server.
#[derive(Debug)]
pub(super) struct Hooks {
    active: Mutex<ActiveHooks>,
    frozen: watch::Sender<bool>,
    cut: watch::Sender<()>,
    /// The skew of the clock in seconds.
    skew: AtomicI64,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            active: Mutex::default(),
            frozen: watch::Sender::new(false),
            cut: watch::Sender::new(()),
            skew: AtomicI64::new(0),
        }
    }
}

impl Hooks {
    fn change(&self, change: impl FnOnce(&mut ActiveHooks) -> Result<(), HookError>) -> Result<(), HookError> {
        change(&mut self.active.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies the active hooks to a request: waits for the delay.
    ///
    /// # Errors
    /// The injected failure.
    pub(super) async fn apply(&self, verb: Verb, request: &ResourceRequest) -> Result<(), ApiStatus> {
        let fault = self.active.lock().unwrap_or_else(PoisonError::into_inner).fault_of(verb, request);
        if !fault.delay.is_zero() {
            tokio::time::sleep(fault.delay).await;
        }
        let Some((code, reason)) = fault.failure else { return Ok(()) };
        let message = format!("a hook for tests refuses to {} {}", verb.name(), request.resource);
        Err(ApiStatus::new(code, reason, message))
    }

    /// Receives whether watches are frozen.
    pub(super) fn frozen(&self) -> watch::Receiver<bool> {
        self.frozen.subscribe()
    }

    /// Notifies the listeners when they must close all connections.
    pub(super) fn cut(&self) -> watch::Sender<()> {
        self.cut.clone()
    }

    /// The time of the server's clock with the skew.
    pub(super) fn time(&self, now: Timestamp) -> Timestamp {
        let skew = SignedDuration::from_secs(self.skew.load(Ordering::Relaxed));
        now.checked_add(skew).unwrap_or(now)
    }
}

impl Server {
    /// Executes a hook, or activates it for the next requests.
    ///
    /// # Errors
    /// If a value is out of range.
    pub(super) fn apply_hook(&self, hook: Hook) -> Result<(), HookError> {
        match hook {
            Hook::Compact {} => self.store.compact(),
            Hook::FreezeWatch {} => drop(self.hooks.frozen.send_replace(true)),
            Hook::ThawWatch {} => drop(self.hooks.frozen.send_replace(false)),
            Hook::DropConnections {} => self.hooks.cut.send_replace(()),
            Hook::FailNext { verb, resource, status, times } => {
                self.hooks.change(|active| active.fail(RequestFilter { verb, resource }, status, times))?;
            }
            Hook::Delay { verb, resource, milliseconds } => {
                let delay = Duration::from_millis(milliseconds);
                self.hooks.change(|active| active.delay(RequestFilter { verb, resource }, delay))?;
            }
            Hook::SkewClock { seconds } if seconds.unsigned_abs() > LARGEST_SKEW => {
                return Err(HookError::Skew(seconds));
            }
            Hook::SkewClock { seconds } => self.hooks.skew.store(seconds, Ordering::Relaxed),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
