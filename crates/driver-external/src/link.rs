//! The state of the connection to a driver: not connected yet, up, degraded or down. The decisions are pure functions, the time is an argument.
//!
//! Source: spec/providers §9.3.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use machine_driver::{Code, Status};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

use crate::{
    grpc_only::GrpcOnly,
    info::Accepted,
    wire::driver::{Op, driver_client::DriverClient},
};

/// A driver that is unhealthy or disconnected for longer than this is down.
pub const DOWN_AFTER: Duration = Duration::from_secs(30);
/// The shortest pause between two attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long a read waits for a new connection after it lost its own.
pub const RETRY_WITHIN: Duration = Duration::from_secs(5);

/// The pause after this number of failed attempts in a row. A span doubles from 0.4 s up to 10 s, and `random` selects a pause between half of
/// the span and the whole span.
pub fn pause(failures: u32, random: u64) -> Duration {
    let span = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(failures.saturating_add(1))).min(LONGEST_PAUSE);
    let half = span / 2;
    let thousandths = u32::try_from(random % 1001).unwrap_or_default();
    half + half * thousandths / 1000
}

/// Whether a call that was sent `sent` times may be sent again when its connection breaks. Reads may be sent twice. The outcome of any other call
/// is unknown then, and the controllers decide what to do.
pub const fn may_resend(op: Op, sent: u32) -> bool {
    matches!(op, Op::Status | Op::List | Op::Volumes | Op::Validate) && sent < 2
}

/// The state of the connection to a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// There was no connection yet, and this process has not waited long for one.
    NeverConnected,
    /// The driver serves.
    Up,
    /// The driver is unhealthy or disconnected, but not for long.
    Degraded,
    /// The driver has been unhealthy or disconnected for too long.
    Down,
}

/// The state of a connection that has been unhealthy or lost for this time.
pub fn link_state(was_connected: bool, unhealthy_for: Option<Duration>, down_after: Duration) -> LinkState {
    match unhealthy_for {
        None => LinkState::Up,
        Some(unhealthy_for) if unhealthy_for > down_after => LinkState::Down,
        Some(_) if was_connected => LinkState::Degraded,
        Some(_) => LinkState::NeverConnected,
    }
}

/// A connection to a driver whose answer to `GetInfo` is accepted.
#[derive(Clone)]
pub struct Session {
    /// The client of the connection.
    pub client: DriverClient<GrpcOnly>,
    /// The answer of the driver to `GetInfo`.
    pub accepted: Arc<Accepted>,
    /// Limits the calls that run at once, if the driver asks for a limit.
    pub slots: Option<Arc<Semaphore>>,
    /// The number of the session. Each new session has a higher one.
    pub number: u64,
}

struct State {
    session: Option<Session>,
    /// The number of concurrent calls that the driver asked for, and the semaphore for it, which all sessions share.
    slots: Option<(usize, Arc<Semaphore>)>,
    was_connected: bool,
    /// The time since which the driver has been unhealthy or disconnected, and the reason. `None` for a healthy driver.
    unhealthy: Option<(Instant, String)>,
    sessions: u64,
}

impl State {
    fn link_state(&self, down_after: Duration, now: Instant) -> LinkState {
        let unhealthy_for = self.unhealthy.as_ref().map(|(since, _)| now.saturating_duration_since(*since));
        link_state(self.was_connected, unhealthy_for, down_after)
    }
}

/// The connection to a driver. It is shared by the callers and by the task that keeps the connection.
pub struct Link {
    driver: &'static str,
    down_after: Duration,
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

impl Link {
    /// A link without a connection.
    pub fn new(driver: &'static str, down_after: Duration, now: Instant) -> Self {
        let unhealthy = Some((now, "it has not been connected to yet".to_owned()));
        let state = State { session: None, slots: None, was_connected: false, unhealthy, sessions: 0 };
        Self { driver, down_after, state: Mutex::new(state), changed: watch::Sender::new(()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a new connection.
    pub fn connected(&self, client: DriverClient<GrpcOnly>, accepted: Arc<Accepted>) {
        {
            let mut state = self.state();
            state.sessions += 1;
            // Calls of an earlier connection may still run, for example after a change of certificates. They count against the limit too.
            let slots = match (accepted.at_once, state.slots.take()) {
                (Some(at_once), Some((before, slots))) if before == at_once => Some((at_once, slots)),
                (at_once, _) => at_once.map(|at_once| (at_once, Arc::new(Semaphore::new(at_once)))),
            };
            state.slots.clone_from(&slots);
            let slots = slots.map(|(_, slots)| slots);
            state.session = Some(Session { client, accepted, slots, number: state.sessions });
            (state.was_connected, state.unhealthy) = (true, None);
        }
        self.changed.send_replace(());
    }

    /// Records that the connection is lost or could not be made.
    pub fn lost(&self, now: Instant, why: String) {
        let mut state = self.state();
        state.session = None;
        let since = state.unhealthy.as_ref().map_or(now, |(since, _)| *since);
        state.unhealthy = Some((since, why));
    }

    /// Records the health of the driver. `problem` says why the driver is unhealthy.
    pub fn health(&self, now: Instant, problem: Option<String>) {
        let mut state = self.state();
        let since = state.unhealthy.as_ref().map_or(now, |(since, _)| *since);
        state.unhealthy = problem.map(|why| (since, why));
    }

    /// The state of the connection.
    pub fn link_state(&self, now: Instant) -> LinkState {
        self.state().link_state(self.down_after, now)
    }

    /// How long the driver has been unhealthy or disconnected. `None` for a healthy driver.
    pub fn unhealthy_for(&self, now: Instant) -> Option<Duration> {
        self.state().unhealthy.as_ref().map(|(since, _)| now.saturating_duration_since(*since))
    }

    /// Why the driver is unhealthy or disconnected. Empty for a healthy driver.
    pub fn problem(&self) -> String {
        self.state().unhealthy.as_ref().map(|(_, why)| why.clone()).unwrap_or_default()
    }

    /// The session for a call.
    ///
    /// # Errors
    /// `Unavailable` when there is no connection or the driver is down.
    pub fn session(&self, now: Instant) -> Result<Session, Status> {
        let state = self.state();
        let why = state.unhealthy.as_ref().map(|(_, why)| why.as_str()).unwrap_or_default();
        match (&state.session, state.link_state(self.down_after, now)) {
            (Some(session), LinkState::Up | LinkState::Degraded | LinkState::NeverConnected) => Ok(session.clone()),
            (_, LinkState::Down) => Err(self.unavailable(&format!("is down: {why}"))),
            (None, _) => Err(self.unavailable(&format!("is not connected: {why}"))),
        }
    }

    /// Waits until `until` for a session with a higher number than `after`. `None` if there is none in time.
    pub async fn next_session(&self, after: u64, until: Instant) -> Option<Session> {
        let mut changes = self.changed.subscribe();
        loop {
            changes.mark_unchanged();
            let session = self.session(Instant::now()).ok().filter(|session| session.number > after);
            if session.is_some() {
                return session;
            }
            tokio::time::timeout_at(until, changes.changed()).await.ok()?.ok()?;
        }
    }

    /// The error for callers when the driver can't be reached.
    pub fn unavailable(&self, why: &str) -> Status {
        Status::new(Code::Unavailable, format!("external driver {:?} {why}", self.driver))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::the_shortest_first_pause(0, 0, 200)]
    #[case::the_longest_first_pause(0, 1000, 400)]
    #[case::the_second_pause(1, 0, 400)]
    #[case::a_later_pause(3, 500, 2400)]
    #[case::the_longest_pause(40, 1000, 10_000)]
    #[case::any_number_of_failures(u32::MAX, 0, 5000)]
    #[case::any_random_number(0, u64::MAX, 200 + 200 * (u64::MAX % 1001) / 1000)]
    fn a_pause(#[case] failures: u32, #[case] random: u64, #[case] millis: u64) {
        assert_eq!(pause(failures, random).as_millis(), u128::from(millis));
    }

    #[rstest]
    #[case::a_read(Op::Status, 1, true)]
    #[case::a_list(Op::List, 1, true)]
    #[case::a_read_twice(Op::Status, 2, false)]
    #[case::e04_a_creation(Op::Create, 1, false)]
    #[case::an_initialisation(Op::Initialize, 1, false)]
    #[case::a_deletion(Op::Delete, 1, false)]
    fn a_call_may_be_sent_again(#[case] op: Op, #[case] sent: u32, #[case] expected: bool) {
        assert_eq!(may_resend(op, sent), expected);
    }

    #[rstest]
    #[case::before_the_first_connection(false, Some(0), LinkState::NeverConnected)]
    #[case::never_connected(false, Some(31), LinkState::Down)]
    #[case::healthy(true, None, LinkState::Up)]
    #[case::disconnected_for_30_seconds(true, Some(30), LinkState::Degraded)]
    #[case::e05_unhealthy_for_31_seconds(true, Some(31), LinkState::Down)]
    fn a_connection_has_its_state(
        #[case] was_connected: bool,
        #[case] unhealthy_for: Option<u64>,
        #[case] expected: LinkState,
    ) {
        assert_eq!(link_state(was_connected, unhealthy_for.map(Duration::from_secs), DOWN_AFTER), expected);
    }

    #[test]
    fn a_driver_that_is_unhealthy_and_then_disconnected_counts_from_the_first_problem() {
        let began = Instant::now();
        let link = Link::new("folder", DOWN_AFTER, began);
        link.health(began, None);
        assert_eq!(link.link_state(began), LinkState::Up);
        link.health(began + Duration::from_secs(1), Some("it says NOT_SERVING".to_owned()));
        link.lost(began + Duration::from_secs(20), "connection refused".to_owned());
        let error = link.session(began + Duration::from_secs(32)).err().unwrap();
        assert_eq!(
            error.to_string(),
            "machine codes error: code = [Unavailable] message = [external driver \"folder\" is down: connection refused]"
        );
    }
}
