//! The metrics of work queues: `mcm_workqueue_*`, as in the Go binaries.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use prometheus::exponential_buckets;

use super::{Clock, Counters, Gauges, Histograms, OfQueue, family::Declarations};

struct Families {
    depth: Gauges<OfQueue<'static>>,
    adds: Counters<OfQueue<'static>>,
    queue_duration: Histograms<OfQueue<'static>>,
    work_duration: Histograms<OfQueue<'static>>,
    unfinished: Gauges<OfQueue<'static>>,
    longest_running: Gauges<OfQueue<'static>>,
    retries: Counters<OfQueue<'static>>,
}

/// The queues of a manager.
pub(super) struct Queues {
    families: Arc<Families>,
    clock: Clock,
    by_name: Mutex<BTreeMap<String, Arc<Running>>>,
}

/// When the running work of a queue began, by a sequence number.
#[derive(Default)]
struct Running(Mutex<(u64, BTreeMap<u64, Duration>)>);

impl Running {
    fn begin(&self, at: Duration) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += 1;
        let id = state.0;
        state.1.insert(id, at);
        id
    }

    fn end(&self, id: u64) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&id)
    }

    /// Sum and maximum of the durations of unfinished work.
    fn so_far(&self, now: Duration) -> (Duration, Duration) {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ages = state.1.values().map(|began| now.saturating_sub(*began));
        ages.fold((Duration::ZERO, Duration::ZERO), |(sum, longest), age| (sum + age, longest.max(age)))
    }
}

impl Queues {
    #[rustfmt::skip]
    pub(super) fn register(r: &Declarations, clock: Clock) -> prometheus::Result<Self> {
        let buckets = exponential_buckets(1e-8, 10.0, 10)?;
        let families = Families {
            depth: Gauges::register(r, "mcm_workqueue_depth", "Current depth of workqueue")?,
            adds: Counters::register(r, "mcm_workqueue_adds_total", "Total number of adds handled by workqueue")?,
            queue_duration: Histograms::register(r, "mcm_workqueue_queue_duration_seconds", "How long in seconds an item stays in workqueue before being requested.", &buckets)?,
            work_duration: Histograms::register(r, "mcm_workqueue_work_duration_seconds", "How long in seconds processing an item from workqueue takes.", &buckets)?,
            unfinished: Gauges::register(r, "mcm_workqueue_unfinished_work_seconds", "How many seconds of work has been done that is in progress and hasn't been observed by work_duration.")?,
            longest_running: Gauges::register(r, "mcm_workqueue_longest_running_processor_seconds", "How many seconds has the longest running processor for workqueue been running.")?,
            retries: Counters::register(r, "mcm_workqueue_retries_total", "Total number of retries handled by workqueue")?,
        };
        Ok(Self { families: Arc::new(families), clock, by_name: Mutex::default() })
    }

    pub(super) fn named(&self, name: &str) -> QueueMetrics {
        let running = {
            let mut queues = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(queues.entry(name.to_owned()).or_default())
        };
        let queue = QueueMetrics(Arc::new(Queue {
            name: name.to_owned(),
            families: Arc::clone(&self.families),
            clock: Arc::clone(&self.clock),
            running,
        }));
        queue.0.families.depth.add(&labels(name), 0.0);
        queue.0.families.adds.add(&labels(name), 0);
        queue.0.families.retries.add(&labels(name), 0);
        queue
    }

    /// Updates the gauges that grow with time.
    pub(super) fn refresh(&self) {
        let now = (self.clock)();
        for (name, running) in self.by_name.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let (sum, longest) = running.so_far(now);
            self.families.unfinished.set(&labels(name), sum.as_secs_f64());
            self.families.longest_running.set(&labels(name), longest.as_secs_f64());
        }
    }
}

fn labels(name: &str) -> OfQueue<'_> {
    OfQueue { name }
}

/// The handle through which one work queue reports. Clones share their series.
#[derive(Clone)]
pub struct QueueMetrics(Arc<Queue>);

struct Queue {
    name: String,
    families: Arc<Families>,
    clock: Clock,
    running: Arc<Running>,
}

impl QueueMetrics {
    /// A key was added to the queue. Keep the result with the key: the key counts as waiting until the result is started or
    /// dropped.
    #[must_use]
    pub fn added(&self) -> Waiting {
        self.0.families.adds.inc(&labels(&self.0.name));
        self.0.families.depth.add(&labels(&self.0.name), 1.0);
        Waiting { queue: self.clone(), since: (self.0.clock)() }
    }

    /// A key was added again because its work failed.
    pub fn retried(&self) {
        self.0.families.retries.inc(&labels(&self.0.name));
    }
}

impl fmt::Debug for QueueMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueueMetrics({})", self.0.name)
    }
}

/// A key that waits in its queue.
#[derive(Debug)]
pub struct Waiting {
    queue: QueueMetrics,
    since: Duration,
}

impl Waiting {
    /// A worker takes the key. Keep the result until the work is done.
    #[must_use]
    pub fn started(self) -> Working {
        let queue = &self.queue.0;
        let now = (queue.clock)();
        queue.families.queue_duration.observe(&labels(&queue.name), now.saturating_sub(self.since));
        Working { id: queue.running.begin(now), queue: self.queue.clone() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.queue.0.families.depth.add(&labels(&self.queue.0.name), -1.0);
    }
}

/// A worker that handles a key. The work is done when this is dropped.
#[derive(Debug)]
pub struct Working {
    queue: QueueMetrics,
    id: u64,
}

impl Drop for Working {
    fn drop(&mut self) {
        let queue = &self.queue.0;
        if let Some(began) = queue.running.end(self.id) {
            let took = (queue.clock)().saturating_sub(began);
            queue.families.work_duration.observe(&labels(&queue.name), took);
        }
    }
}
