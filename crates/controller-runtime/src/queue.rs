//! The work queue of one controller.
//!
//! A key never has two passes at once. A key that is added during its pass runs again afterwards. Of several delayed additions, a
//! key keeps the earliest deadline. Failed keys are retried with an exponential back-off per key (spec/deployment-and-set §1.4). A
//! queue whose passes look at many objects may let each key rest after the start of a pass: changes during the rest are handled by
//! one pass, so that a thousand machines that change within seconds do not cost their set a thousand passes. All deadlines are in
//! one ordered map with one timer, so that no task sleeps per object. This file has the workers and the timer; [`state`] has the
//! keys.

mod state;

use std::{
    hash::Hash,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use self::state::{State, Wake};
use super::error::ApiError;
use crate::lock;
use mcm_metrics::{QueueMetrics, Waiting};

/// The result of a pass over a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more to do until a change.
    Settled,
    /// Look again after this time, or earlier at a change. The reason is for the log.
    LookAgain(Duration, &'static str),
    /// The pass failed. The next pass comes after a back-off that grows with consecutive failures.
    Retry(String),
    /// The API server refuses a write of the pass. Until the write may be sent again ([`super::refusals`]), passes cost no write,
    /// so the pause between them is short.
    Refused(String),
}

impl Outcome {
    /// The outcome of a pass that met this error.
    pub fn after(error: &ApiError, text: String) -> Self {
        if error.is_refusal() { Self::Refused(text) } else { Self::Retry(text) }
    }

    /// The back-off of a key after this outcome and `failures` earlier failures in a row; `None` when this pass did not fail.
    pub fn backoff(&self, failures: u32) -> Option<Duration> {
        match self {
            Self::Settled | Self::LookAgain(..) => None,
            Self::Retry(_) => Some(backoff(failures)),
            Self::Refused(_) => Some(backoff(failures).min(LONGEST_REFUSED)),
        }
    }
}

/// First pause after a failure, as in client-go's `ItemExponentialFailureRateLimiter`.
const FIRST_BACKOFF: Duration = Duration::from_millis(5);
/// Longest pause. It is shorter than client-go's 1000 s: this queue never drops a key, so after a fault has ended, the repair waits
/// only for this pause (spec/machine-controller §17.14, MC-282).
const LONGEST_BACKOFF: Duration = Duration::from_secs(5 * 60);
/// Longest pause after a pass with a refused write.
const LONGEST_REFUSED: Duration = Duration::from_secs(10);

/// Keys that wait for a pass. `K` identifies the object of a pass, usually an `ObjectKey`.
pub struct WorkQueue<K> {
    name: &'static str,
    metrics: QueueMetrics,
    rest: Duration,
    longest_backoff: Duration,
    state: Mutex<State<K>>,
    work: Notify,
    timer: Notify,
}

impl<K: Clone + Ord + Hash + Send + Sync + 'static> WorkQueue<K> {
    /// An empty queue that reports its metrics to `metrics`.
    pub fn new(name: &'static str, metrics: QueueMetrics) -> Self {
        Self {
            name,
            metrics,
            rest: Duration::ZERO,
            longest_backoff: LONGEST_BACKOFF,
            state: Mutex::new(State::default()),
            work: Notify::new(),
            timer: Notify::new(),
        }
    }

    /// Sets the shortest time between the starts of two passes of a key. If it is over, the next pass begins at once.
    #[must_use]
    pub fn resting(mut self, rest: Duration) -> Self {
        self.rest = rest;
        self
    }

    /// Sets the longest pause after a failure, for keys whose pass must follow soon after an outage.
    #[must_use]
    pub fn retrying_within(mut self, longest_backoff: Duration) -> Self {
        self.longest_backoff = longest_backoff;
        self
    }

    /// An empty queue with unused metrics.
    ///
    /// # Panics
    /// Never: the declarations of the metrics do not clash.
    #[cfg(any(test, feature = "testing"))]
    pub fn for_tests(name: &'static str) -> Self {
        let metrics = mcm_metrics::Metrics::new(Arc::new(|| Duration::ZERO)).expect("the declarations agree");
        Self::new(name, metrics.queue(name))
    }

    /// The name given at creation.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Requests a pass over the key now.
    pub fn add(&self, key: K) {
        let mut state = self.lock();
        let wake = state.want(key, &self.metrics);
        drop(state);
        self.notify(wake);
    }

    /// Requests a pass over the key after this time. An earlier request stays.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let mut state = self.lock();
        if state.schedule(key, Instant::now() + delay) {
            drop(state);
            self.timer.notify_one();
        }
    }

    /// Requests a pass over the key now, unless its last pass failed and the back-off is not over; the pass after the back-off is
    /// soon enough then. For changes that a failing pass may have made itself, such as a status with the failure.
    pub fn add_unless_backing_off(&self, key: K) {
        let mut state = self.lock();
        let wake = state.want_unless_backing_off(key, &self.metrics);
        drop(state);
        self.notify(wake);
    }

    /// The number of keys that wait for a worker.
    pub fn depth(&self) -> usize {
        self.lock().ready.len()
    }

    /// Whether no key waits, runs, or becomes due within the given time. For tests and for draining.
    pub fn is_idle(&self, within: Duration) -> bool {
        let state = self.lock();
        let soon = Instant::now() + within;
        state.ready.is_empty()
            && state.running.is_empty()
            && state.deadlines.first_key_value().is_none_or(|((at, _), _)| *at > soon)
    }

    /// Runs `workers` workers until `shutdown`, and then finishes the running passes.
    ///
    /// `pass` never runs twice at once for one key. The supervisor should own the future.
    pub async fn run<F, Fut>(self: Arc<Self>, workers: usize, shutdown: CancellationToken, pass: F)
    where
        F: Fn(K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send,
    {
        let pass = Arc::new(pass);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(Arc::clone(&self).serve_deadlines(shutdown.clone()));
        for _ in 0..workers.max(1) {
            let (queue, pass) = (Arc::clone(&self), Arc::clone(&pass));
            tasks.spawn(async move {
                while let Some((key, waited)) = queue.next().await {
                    let working = waited.started();
                    // Boxed, so that an idle worker does not hold the memory of a pass.
                    let outcome = Box::pin(pass(key.clone())).await;
                    drop(working);
                    queue.done(&key, &outcome);
                }
            });
        }
        // Before the shutdown, a task ends only by a panic. Then the whole queue ends at once; otherwise the key of that task would
        // stay in `running` for ever.
        tokio::select! {
            biased;
            () = shutdown.cancelled() => {}
            Some(ended) = tasks.join_next() => pass_panic_on(ended),
        }
        self.lock().closed = true;
        self.work.notify_waiters();
        while let Some(ended) = tasks.join_next().await {
            pass_panic_on(ended);
        }
    }

    /// The next key to work on; `None` once the queue is closed.
    async fn next(&self) -> Option<(K, Waiting)> {
        loop {
            let notified = self.work.notified();
            tokio::pin!(notified);
            // Enabled before the check, so that no notification between check and wait is lost.
            notified.as_mut().enable();
            {
                let mut state = self.lock();
                if state.closed {
                    return None;
                }
                if let Some((key, waited)) = state.ready.pop_front() {
                    state.wanted.remove(&key);
                    state.unschedule(&key);
                    state.running.insert(key.clone());
                    state.rest(&key, self.rest);
                    return Some((key, waited));
                }
            }
            notified.await;
        }
    }

    fn done(&self, key: &K, outcome: &Outcome) {
        let mut state = self.lock();
        state.running.remove(key);
        let mut wake_timer = false;
        let may_wait = state.wanted_unless_failed.remove(key);
        if may_wait && !matches!(outcome, Outcome::Retry(_) | Outcome::Refused(_)) {
            state.wanted.insert(key.clone());
        }
        match outcome {
            Outcome::Settled => {
                state.failures.remove(key);
            }
            Outcome::LookAgain(delay, reason) => {
                tracing::trace!(controller = self.name, retry_in_ms = delay.as_millis(), code = reason, "look again");
                state.failures.remove(key);
                wake_timer = state.schedule(key.clone(), Instant::now() + *delay);
            }
            Outcome::Retry(error) | Outcome::Refused(error) => {
                self.metrics.retried();
                let failures = state.failures.entry(key.clone()).or_insert(0);
                let delay = outcome.backoff(*failures).unwrap_or_default().min(self.longest_backoff);
                *failures = failures.saturating_add(1);
                tracing::debug!(controller = self.name, retry_in_ms = delay.as_millis(), error, "retry");
                wake_timer = state.schedule(key.clone(), Instant::now() + delay);
            }
        }
        let wake = if state.wanted.remove(key) { state.want(key.clone(), &self.metrics) } else { Wake::Nothing };
        drop(state);
        self.notify(wake);
        if wake_timer {
            self.timer.notify_one();
        }
    }

    async fn serve_deadlines(self: Arc<Self>, shutdown: CancellationToken) {
        loop {
            let next = {
                let mut state = self.lock();
                let now = Instant::now();
                let mut due = 0_usize;
                while let Some(entry) = state.deadlines.first_entry() {
                    if entry.key().0 > now {
                        break;
                    }
                    let key = entry.remove();
                    state.deadline_of.remove(&key);
                    due += usize::from(state.want(key, &self.metrics) == Wake::Worker);
                }
                let next = state.deadlines.first_key_value().map(|((at, _), _)| *at);
                drop(state);
                for _ in 0..due {
                    self.work.notify_one();
                }
                next
            };
            let sleep = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = sleep => {}
                () = self.timer.notified() => {}
            }
        }
    }

    fn notify(&self, wake: Wake) {
        match wake {
            Wake::Worker => self.work.notify_one(),
            Wake::Timer => self.timer.notify_one(),
            Wake::Nothing => {}
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<K>> {
        lock(&self.state)
    }
}

fn pass_panic_on(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// The back-off after this number of earlier failures in a row.
fn backoff(failures: u32) -> Duration {
    FIRST_BACKOFF.saturating_mul(2_u32.saturating_pow(failures.min(31))).min(LONGEST_BACKOFF)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Rig {
        queue: Arc<WorkQueue<String>>,
        passes: Arc<Mutex<Vec<(String, Duration)>>>,
        shutdown: CancellationToken,
        worker: tokio::task::JoinHandle<()>,
    }

    fn rig(outcome: impl Fn(usize) -> Outcome + Send + Sync + 'static) -> Rig {
        rig_of(WorkQueue::for_tests("test"), outcome)
    }

    fn rig_of(queue: WorkQueue<String>, outcome: impl Fn(usize) -> Outcome + Send + Sync + 'static) -> Rig {
        let queue = Arc::new(queue);
        let passes = Arc::new(Mutex::new(Vec::new()));
        let shutdown = CancellationToken::new();
        let log = Arc::clone(&passes);
        let start = Instant::now();
        let outcome = Arc::new(outcome);
        let count = Arc::new(AtomicUsize::new(0));
        let worker = tokio::spawn(Arc::clone(&queue).run(2, shutdown.clone(), move |key: String| {
            let (log, outcome, count) = (Arc::clone(&log), Arc::clone(&outcome), Arc::clone(&count));
            async move {
                log.lock().unwrap().push((key, start.elapsed()));
                tokio::time::sleep(Duration::from_millis(100)).await;
                outcome(count.fetch_add(1, Ordering::SeqCst))
            }
        }));
        Rig { queue, passes, shutdown, worker }
    }

    impl Rig {
        async fn settle(self) -> Vec<(String, u128)> {
            while !self.queue.is_idle(Duration::from_secs(3600)) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            self.shutdown.cancel();
            self.worker.await.unwrap();
            self.passes.lock().unwrap().iter().map(|(key, at)| (key.clone(), at.as_millis())).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn mc_282_a_key_that_fails_a_hundred_times_is_still_tried_again_within_five_minutes() {
        let rig = rig(|_| Outcome::Retry("no".to_owned()));
        rig.queue.add("a".to_owned());
        tokio::time::sleep(Duration::from_secs(100 * 301)).await;
        let passes = rig.passes.lock().unwrap().clone();
        assert!(passes.len() > 100, "{} passes", passes.len());
        let longest = passes.windows(2).map(|two| two[1].1.saturating_sub(two[0].1)).max().unwrap();
        assert!(longest <= Duration::from_secs(301), "{longest:?}");
        rig.shutdown.cancel();
        rig.worker.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_may_bound_the_pause_after_failures() {
        let queue = WorkQueue::for_tests("test").retrying_within(Duration::from_secs(1));
        let rig = rig_of(queue, |_| Outcome::Retry("no".to_owned()));
        rig.queue.add("a".to_owned());
        tokio::time::sleep(Duration::from_secs(110)).await;
        let passes = rig.passes.lock().unwrap().len();
        assert!((100..120).contains(&passes), "{passes} passes");
        rig.shutdown.cancel();
        rig.worker.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_while_it_is_worked_on_runs_again_and_only_once() {
        let rig = rig(|_| Outcome::Settled);
        rig.queue.add("a".to_owned());
        tokio::time::sleep(Duration::from_millis(50)).await;
        for _ in 0..5 {
            rig.queue.add("a".to_owned());
        }
        let passes = rig.settle().await;
        assert_eq!(passes, [("a".to_owned(), 0), ("a".to_owned(), 100)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_resting_key_runs_once_for_all_additions_during_the_rest() {
        let rest = Duration::from_millis(500);
        let rig = rig_of(WorkQueue::for_tests("test").resting(rest), |_| Outcome::Settled);
        for _ in 0..30 {
            rig.queue.add("a".to_owned());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        rig.queue.add("b".to_owned());
        let passes: Vec<(String, u128)> = rig.settle().await.into_iter().map(|(key, at)| (key, at / 10 * 10)).collect();
        // Pass 1 runs at once, pass 2 after the rest, pass 3 for what was added since. Another key does not wait.
        assert_eq!(passes, [("a", 0), ("a", 500), ("b", 600), ("a", 1000)].map(|(key, at)| (key.to_owned(), at)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_has_rested_runs_at_once() {
        let rig = rig_of(WorkQueue::for_tests("test").resting(Duration::from_millis(500)), |_| Outcome::Settled);
        rig.queue.add("a".to_owned());
        tokio::time::sleep(Duration::from_millis(600)).await;
        rig.queue.add("a".to_owned());
        assert_eq!(rig.settle().await, [("a".to_owned(), 0), ("a".to_owned(), 600)]);
    }

    #[tokio::test(start_paused = true)]
    async fn s_evt_27_the_earliest_of_several_delays_wins() {
        let rig = rig(|_| Outcome::Settled);
        rig.queue.add_after("a".to_owned(), Duration::from_secs(60));
        rig.queue.add_after("a".to_owned(), Duration::from_secs(10));
        rig.queue.add_after("a".to_owned(), Duration::from_secs(30));
        tokio::time::sleep(Duration::from_secs(11)).await;
        let passes = rig.settle().await;
        assert_eq!(passes.len(), 1);
        assert!((10_000..10_010).contains(&passes[0].1), "{passes:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_key_is_retried_with_growing_pauses() {
        let rig = rig(|pass| if pass < 3 { Outcome::Retry("no".to_owned()) } else { Outcome::Settled });
        rig.queue.add("a".to_owned());
        let passes = rig.settle().await;
        let pauses: Vec<u128> = passes.windows(2).map(|pair| pair[1].1 - pair[0].1 - 100).collect();
        assert_eq!(passes.len(), 4);
        assert!(pauses.windows(2).all(|pair| pair[1] > pair[0]), "{pauses:?}");
    }

    /// The passes of a key that writes its own status at each failure; the write wakes the key.
    #[tokio::test(start_paused = true)]
    async fn writes_of_a_failing_pass_do_not_shorten_its_back_off() {
        let queue = Arc::new(WorkQueue::<String>::for_tests("test"));
        let passes = Arc::new(Mutex::new(Vec::new()));
        let shutdown = CancellationToken::new();
        let (log, same_queue, start) = (Arc::clone(&passes), Arc::clone(&queue), Instant::now());
        let worker = tokio::spawn(Arc::clone(&queue).run(2, shutdown.clone(), move |key: String| {
            let (log, same_queue) = (Arc::clone(&log), Arc::clone(&same_queue));
            async move {
                log.lock().unwrap().push(start.elapsed());
                // The answer shows the write during the pass, the watch after it.
                same_queue.add_unless_backing_off(key.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    same_queue.add_unless_backing_off(key);
                });
                Outcome::Retry("refused".to_owned())
            }
        }));
        queue.add("a".to_owned());
        tokio::time::sleep(Duration::from_secs(60)).await;
        let alone = passes.lock().unwrap().len();
        assert!(alone <= 14, "{alone} passes in a minute");
        // Any other change starts a pass at once.
        let before = start.elapsed();
        queue.add("a".to_owned());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(passes.lock().unwrap().last(), Some(&before));
        shutdown.cancel();
        worker.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn writes_of_a_successful_pass_start_another_pass() {
        let rig = rig(|_| Outcome::Settled);
        rig.queue.add_unless_backing_off("a".to_owned());
        tokio::time::sleep(Duration::from_millis(50)).await;
        rig.queue.add_unless_backing_off("a".to_owned());
        assert_eq!(rig.settle().await, [("a".to_owned(), 0), ("a".to_owned(), 100)]);
    }

    #[test]
    fn mc_282_s_cli_11_a_key_that_goes_on_failing_is_never_dropped_and_tried_every_five_minutes() {
        assert_eq!(backoff(0), FIRST_BACKOFF);
        assert_eq!((backoff(8).as_secs(), backoff(15).as_secs()), (1, 163));
        assert!((16..100).all(|failures| backoff(failures) == Duration::from_secs(300)));
        assert_eq!(backoff(u32::MAX), Duration::from_secs(300));
    }

    #[test]
    fn a_key_with_a_refused_write_runs_every_ten_seconds() {
        let refused = Outcome::after(&ApiError::Forbidden("quota".to_owned()), "refused".to_owned());
        assert_eq!(refused.backoff(0), Some(FIRST_BACKOFF));
        assert!((14..100).all(|failures| refused.backoff(failures) == Some(Duration::from_secs(10))));
        let away = Outcome::after(&ApiError::Unavailable("away".to_owned()), "away".to_owned());
        assert_eq!(away.backoff(100), Some(Duration::from_secs(300)));
        assert_eq!(Outcome::Settled.backoff(100), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panicking_pass_ends_the_queue_at_once() {
        let rig = rig(|_| panic!("a defect"));
        rig.queue.add("a".to_owned());
        let ended = tokio::time::timeout(Duration::from_secs(1), rig.worker).await.unwrap();
        assert!(ended.unwrap_err().is_panic());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_under_way_is_finished_at_shutdown() {
        let rig = rig(|_| Outcome::LookAgain(Duration::from_secs(1), "test"));
        rig.queue.add("a".to_owned());
        tokio::time::sleep(Duration::from_millis(50)).await;
        rig.shutdown.cancel();
        rig.worker.await.unwrap();
        assert_eq!(rig.passes.lock().unwrap().len(), 1);
    }
}
