//! The clock of production: the system's time of day, compared with the monotonic clock and with the API server's clock.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::{
    Clock, Reading, Step,
    offset::{Offset, difference},
};
use crate::lock;

/// A larger change of the difference between time of day and monotonic clock, from one reading to the next, is a step. A host that
/// was suspended shows a step too, because its monotonic clock stood still.
const STEP: SignedDuration = SignedDuration::from_secs(5);

/// A larger change of the offset is a step too. The limit is larger than the first five seconds of a drift, which are corrected all
/// at once.
const OFFSET_STEP: SignedDuration = SignedDuration::from_secs(30);

/// The system's time of day plus the offset of the control API server. Each reading looks for a step, so that no time after a step
/// is read without notice of it.
pub struct SystemClock {
    wall: Box<dyn Fn() -> Timestamp + Send + Sync>,
    state: Mutex<State>,
}

struct State {
    /// The last reading of both clocks.
    last: (Timestamp, Instant),
    offset: Offset,
    stepped: Option<Instant>,
    steps: u64,
    /// The sum of all steps.
    moved: SignedDuration,
}

impl SystemClock {
    /// The system's clock.
    pub fn new() -> Self {
        Self::over(Timestamp::now)
    }

    /// A clock over another source of the time of day.
    pub fn over(wall: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let last = (wall(), Instant::now());
        let state = State { last, offset: Offset::default(), stepped: None, steps: 0, moved: SignedDuration::ZERO };
        Self { wall: Box::new(wall), state: Mutex::new(state) }
    }

    /// Reads both clocks.
    fn read_both(&self) -> (MutexGuard<'_, State>, Timestamp, Instant) {
        let mut state = self.lock();
        // Both are read under the lock, so that no other reading comes between them.
        let (wall, at) = ((self.wall)(), Instant::now());
        let by = stepped_by(state.last, (wall, at));
        state.last = (wall, at);
        if let Some(by) = by {
            let before = state.offset.added();
            state.offset.stepped(by);
            let after = state.offset.added();
            state.moved += by + after - before;
            state.note_step(at, by, "the clock of this host was set or the host slept");
        }
        (state, wall, at)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    fn note_step(&mut self, at: Instant, by: SignedDuration, why: &str) {
        self.stepped = Some(at);
        self.steps += 1;
        tracing::warn!(
            took_ms = by.as_millis(), error = %why,
            "the clock has stepped: verdicts and creations rest for a minute"
        );
    }
}

/// By how much the time of day has moved against the monotonic clock between two readings, if that is a step.
fn stepped_by(before: (Timestamp, Instant), now: (Timestamp, Instant)) -> Option<SignedDuration> {
    let passed = SignedDuration::try_from(now.1.saturating_duration_since(before.1)).unwrap_or_default();
    let by = now.0.duration_since(before.0) - passed;
    (by.abs() > STEP).then_some(by)
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.reading().now
    }

    fn reading(&self) -> Reading {
        let (state, wall, at) = self.read_both();
        let now = wall.checked_add(state.offset.added()).unwrap_or(wall);
        Reading {
            now,
            steady: now.checked_sub(state.moved).unwrap_or(now),
            offset: state.offset.measured(),
            step: state.stepped.map(|stepped| Step { watched: at.saturating_duration_since(stepped) }),
            steps: state.steps,
        }
    }

    fn observe_date(&self, date: Timestamp, sent: Instant) {
        let (mut state, wall, at) = self.read_both();
        let took: Duration = at.saturating_duration_since(sent);
        // An answer to a request from before the step says nothing.
        if state.stepped.is_some_and(|stepped| sent < stepped) {
            return;
        }
        let Some(difference) = difference(date, wall, took) else { return };
        let by = state.offset.learn(difference);
        if by.abs() > OFFSET_STEP {
            state.moved += by;
            state.note_step(at, by, "the API server's clock was set");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    };

    use super::*;
    use crate::clock::{ClockTrouble, TokioClock};

    /// A host, its API server, and how far their clocks are ahead of the true time.
    struct Rig {
        truth: Arc<TokioClock>,
        ahead: Arc<AtomicI64>,
        server_ahead: Arc<AtomicI64>,
        clock: SystemClock,
    }

    fn rig(ahead: i64) -> Rig {
        let truth = Arc::new(TokioClock::starting_at("2026-06-01T12:00:00Z".parse().unwrap()));
        let ahead = Arc::new(AtomicI64::new(ahead));
        let (shown, shift) = (Arc::clone(&truth), Arc::clone(&ahead));
        let clock = SystemClock::over(move || shown.now() + SignedDuration::from_secs(shift.load(Ordering::SeqCst)));
        Rig { truth, ahead, server_ahead: Arc::default(), clock }
    }

    impl Rig {
        /// Lets this many seconds pass, with a reading each second and an answer of the API server every two seconds.
        async fn pass(&self, seconds: u64) {
            for second in 0..seconds {
                tokio::time::sleep(Duration::from_secs(1)).await;
                self.clock.reading();
                if second % 2 == 0 {
                    let second = self.truth.now().as_second() + self.server_ahead.load(Ordering::SeqCst);
                    let date = Timestamp::from_second(second).unwrap();
                    self.clock.observe_date(date, Instant::now());
                }
            }
        }

        /// How far the clock is ahead of the true time, in seconds.
        fn error(&self) -> i64 {
            self.clock.now().duration_since(self.truth.now()).as_secs()
        }
    }

    #[rstest::rstest]
    #[case::thirty_minutes_ahead(1800)]
    #[case::two_hours_behind(-7200)]
    #[tokio::test(start_paused = true)]
    async fn a_clock_with_a_constant_offset_is_corrected_and_reported(#[case] ahead: i64) {
        let rig = rig(ahead);
        rig.pass(1).await;
        assert!(rig.error().abs() <= 1, "{}", rig.error());
        let Some(ClockTrouble::Apart(offset)) = rig.clock.reading().trouble() else { panic!("no trouble is reported") };
        assert!((offset.as_secs() + ahead).abs() <= 1, "{offset}");
        rig.pass(600).await;
        assert!(rig.error().abs() <= 1 && rig.clock.reading().steps == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_corrected_after_the_start_is_right_at_once_and_counts_as_stepped() {
        let rig = rig(1800);
        rig.pass(8).await;
        rig.ahead.store(0, Ordering::SeqCst);
        assert!(rig.error().abs() <= 1);
        assert_eq!(rig.clock.reading().trouble(), Some(ClockTrouble::Stepped));
        rig.pass(61).await;
        assert_eq!((rig.clock.reading().trouble(), rig.clock.reading().steps), (None, 1));
    }

    #[rstest::rstest]
    #[case::forward(7200)]
    #[case::back(-7200)]
    #[tokio::test(start_paused = true)]
    async fn a_step_of_this_host_alone_does_not_move_the_time(#[case] by: i64) {
        let rig = rig(0);
        rig.pass(30).await;
        rig.ahead.store(by, Ordering::SeqCst);
        let reading = rig.clock.reading();
        assert!(rig.error().abs() <= 1);
        assert_eq!(reading.step, Some(Step { watched: Duration::ZERO }));
        assert!(matches!(reading.trouble(), Some(ClockTrouble::Apart(_))), "{reading:?}");
    }

    #[rstest::rstest]
    #[case::this_host_is_set_back(-7200, 0)]
    #[case::this_host_is_set_forward(7200, 0)]
    #[case::the_api_server_is_set_back(0, -7200)]
    #[case::the_api_server_is_set_forward(0, 7200)]
    #[case::both_are(-7200, -7200)]
    #[tokio::test(start_paused = true)]
    async fn the_steady_time_runs_on_over_every_step(#[case] host: i64, #[case] server: i64) {
        let rig = rig(0);
        rig.pass(30).await;
        let (steady, began) = (rig.clock.reading().steady, Instant::now());
        rig.ahead.store(host, Ordering::SeqCst);
        rig.clock.reading();
        rig.server_ahead.store(server, Ordering::SeqCst);
        rig.pass(60).await;
        assert!(rig.clock.reading().steps > 0, "the case means something");
        let ran = rig.clock.reading().steady.duration_since(steady).as_secs();
        assert!(ran.abs_diff(60) <= 1 && began.elapsed().as_secs() == 60, "{ran} s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_is_noticed_without_an_api_server() {
        let rig = rig(0);
        rig.ahead.store(7200, Ordering::SeqCst);
        let reading = rig.clock.reading();
        assert_eq!((rig.error(), reading.trouble()), (7200, Some(ClockTrouble::Stepped)));
        assert!((reading.now.duration_since(reading.steady).as_secs() - 7200).abs() <= 1);
        tokio::time::sleep(Duration::from_secs(90)).await;
        assert_eq!(rig.clock.reading().step, Some(Step { watched: Duration::from_secs(90) }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_drifts_slowly_does_not_step() {
        let rig = rig(0);
        for second in 0..100 {
            rig.pass(10).await;
            rig.ahead.store(second, Ordering::SeqCst);
        }
        assert_eq!(rig.clock.reading().steps, 0);
    }
}
