//! How it stands with a driver: connected, healthy, away, down. The decisions are pure; the clock is an argument.
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
use tonic::transport::Channel;

use crate::{
    info::Accepted,
    wire::driver::{Op, driver_client::DriverClient},
};

/// A driver that is ill or away for longer is down.
pub const DOWN_AFTER: Duration = Duration::from_secs(30);
/// The shortest pause before a driver is connected to again.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// So long a read waits for the connection that follows a lost one.
pub const RETRY_WITHIN: Duration = Duration::from_secs(5);

/// The pause after so many tries in a row that failed: between a half and the whole of a span that doubles from 0.4 s to 10 s. `random`
/// is any number.
pub fn pause(failures: u32, random: u64) -> Duration {
    let span = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(failures.saturating_add(1))).min(LONGEST_PAUSE);
    let half = span / 2;
    let thousandths = u32::try_from(random % 1001).unwrap_or_default();
    half + half * thousandths / 1000
}

/// What follows when the connection broke during a call, and nobody knows what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterLoss {
    /// The call is sent once more.
    Again,
    /// The core is told that the driver is unavailable; it decides.
    Tell,
}

/// What follows when the connection broke during this call, which was sent so many times.
pub const fn after_loss(op: Op, sent: u32) -> AfterLoss {
    match op {
        Op::Status | Op::List | Op::Volumes | Op::Validate if sent < 2 => AfterLoss::Again,
        _ => AfterLoss::Tell,
    }
}

/// How it stands with a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It was not connected yet.
    Unseen,
    /// It serves.
    Up,
    /// It is ill or away, but not for long.
    Shaky,
    /// It is ill or away for too long.
    Down,
}

/// How it stands with a driver that is ill or away for this time.
pub fn standing(was_seen: bool, ill_for: Option<Duration>, down_after: Duration) -> Standing {
    match ill_for {
        None => Standing::Up,
        Some(ill_for) if ill_for > down_after => Standing::Down,
        Some(_) if was_seen => Standing::Shaky,
        Some(_) => Standing::Unseen,
    }
}

/// A connection to a driver that has said who it is.
#[derive(Clone)]
pub struct Session {
    /// What calls go through.
    pub client: DriverClient<Channel>,
    /// What the driver told.
    pub accepted: Arc<Accepted>,
    /// The calls that may run at once, where the driver limits them.
    pub slots: Option<Arc<Semaphore>>,
    /// Tells sessions apart.
    pub number: u64,
}

struct State {
    session: Option<Session>,
    /// The slots of all sessions, and how many the driver wanted.
    slots: Option<(usize, Arc<Semaphore>)>,
    was_seen: bool,
    ill: Option<(Instant, String)>,
    sessions: u64,
}

impl State {
    fn standing(&self, down_after: Duration, now: Instant) -> Standing {
        let ill_for = self.ill.as_ref().map(|(since, _)| now.saturating_duration_since(*since));
        standing(self.was_seen, ill_for, down_after)
    }
}

/// The connection to a driver, as its keeper and its callers share it.
pub struct Link {
    driver: &'static str,
    down_after: Duration,
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

impl Link {
    /// No connection yet.
    pub fn new(driver: &'static str, down_after: Duration, now: Instant) -> Self {
        let ill = Some((now, "it has not been connected to yet".to_owned()));
        let state = State { session: None, slots: None, was_seen: false, ill, sessions: 0 };
        Self { driver, down_after, state: Mutex::new(state), changed: watch::Sender::new(()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is a connection now.
    pub fn connected(&self, client: DriverClient<Channel>, accepted: Arc<Accepted>) {
        {
            let mut state = self.state();
            state.sessions += 1;
            // Calls of an earlier connection may still run, such as after a change of certificates.
            let slots = match (accepted.at_once, state.slots.take()) {
                (Some(at_once), Some((before, slots))) if before == at_once => Some((at_once, slots)),
                (at_once, _) => at_once.map(|at_once| (at_once, Arc::new(Semaphore::new(at_once)))),
            };
            state.slots.clone_from(&slots);
            let slots = slots.map(|(_, slots)| slots);
            state.session = Some(Session { client, accepted, slots, number: state.sessions });
            (state.was_seen, state.ill) = (true, None);
        }
        self.changed.send_replace(());
    }

    /// The connection is lost, or could not be made.
    pub fn lost(&self, now: Instant, why: String) {
        let mut state = self.state();
        state.session = None;
        let since = state.ill.as_ref().map_or(now, |(since, _)| *since);
        state.ill = Some((since, why));
    }

    /// The driver says that it serves, or why it does not.
    pub fn health(&self, now: Instant, illness: Option<String>) {
        let mut state = self.state();
        let since = state.ill.as_ref().map_or(now, |(since, _)| *since);
        state.ill = illness.map(|why| (since, why));
    }

    /// How it stands with the driver.
    pub fn standing(&self, now: Instant) -> Standing {
        self.state().standing(self.down_after, now)
    }

    /// How long the driver has been ill or away; `None` when it is not.
    pub fn ill_for(&self, now: Instant) -> Option<Duration> {
        self.state().ill.as_ref().map(|(since, _)| now.saturating_duration_since(*since))
    }

    /// Why the driver is ill or away; empty when it is not.
    pub fn illness(&self) -> String {
        self.state().ill.as_ref().map(|(_, why)| why.clone()).unwrap_or_default()
    }

    /// The connection for a call.
    ///
    /// # Errors
    /// `Unavailable` when there is none, or the driver is down.
    pub fn session(&self, now: Instant) -> Result<Session, Status> {
        let state = self.state();
        let why = state.ill.as_ref().map(|(_, why)| why.as_str()).unwrap_or_default();
        match (&state.session, state.standing(self.down_after, now)) {
            (Some(session), Standing::Up | Standing::Shaky | Standing::Unseen) => Ok(session.clone()),
            (_, Standing::Down) => Err(self.unavailable(&format!("is down: {why}"))),
            (None, _) => Err(self.unavailable(&format!("is not connected: {why}"))),
        }
    }

    /// The next connection after the one of this number, unless it does not come in time.
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

    /// What callers are told when the driver does not answer.
    pub fn unavailable(&self, why: &str) -> Status {
        Status::new(Code::Unavailable, format!("external driver {:?} {why}", self.driver))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::the_first_shortest(0, 0, 200)]
    #[case::the_first_longest(0, 1000, 400)]
    #[case::the_next(1, 0, 400)]
    #[case::a_later_one(3, 500, 2400)]
    #[case::the_longest(40, 1000, 10_000)]
    #[case::however_many(u32::MAX, 0, 5000)]
    #[case::any_number_will_do(0, u64::MAX, 200 + 200 * (u64::MAX % 1001) / 1000)]
    fn a_pause(#[case] failures: u32, #[case] random: u64, #[case] millis: u64) {
        assert_eq!(pause(failures, random).as_millis(), u128::from(millis));
    }

    #[rstest]
    #[case::a_read(Op::Status, 1, AfterLoss::Again)]
    #[case::a_list(Op::List, 1, AfterLoss::Again)]
    #[case::a_read_twice(Op::Status, 2, AfterLoss::Tell)]
    #[case::e04_a_creation(Op::Create, 1, AfterLoss::Tell)]
    #[case::an_initialisation(Op::Initialize, 1, AfterLoss::Tell)]
    #[case::a_deletion(Op::Delete, 1, AfterLoss::Tell)]
    fn a_lost_call(#[case] op: Op, #[case] sent: u32, #[case] expected: AfterLoss) {
        assert_eq!(after_loss(op, sent), expected);
    }

    #[rstest]
    #[case::before_the_first_connection(false, Some(0), Standing::Unseen)]
    #[case::never_connected(false, Some(31), Standing::Down)]
    #[case::well(true, None, Standing::Up)]
    #[case::away_for_a_moment(true, Some(30), Standing::Shaky)]
    #[case::e05_ill_for_31_seconds(true, Some(31), Standing::Down)]
    fn a_driver(#[case] was_seen: bool, #[case] ill_for: Option<u64>, #[case] expected: Standing) {
        assert_eq!(standing(was_seen, ill_for.map(Duration::from_secs), DOWN_AFTER), expected);
    }

    #[test]
    fn what_is_ill_stays_ill_since_it_began() {
        let began = Instant::now();
        let link = Link::new("folder", DOWN_AFTER, began);
        link.health(began, None);
        assert_eq!(link.standing(began), Standing::Up);
        link.health(began + Duration::from_secs(1), Some("it says NOT_SERVING".to_owned()));
        link.lost(began + Duration::from_secs(20), "connection refused".to_owned());
        let error = link.session(began + Duration::from_secs(32)).err().unwrap();
        assert_eq!(
            error.to_string(),
            "machine codes error: code = [Unavailable] message = [external driver \"folder\" is down: connection refused]"
        );
    }
}
