//! Owns every task of the process. Each task has a name, is never detached, and is stopped with its stage.
//!
//! A task that panics, or that ends before its stage is stopped, ends the process with an error that names the task: a restarted
//! process is better than a process without one of its tasks. Stages are stopped in this order: first [`Stage::Work`] and
//! [`Stage::Serve`], at the same time; [`Stage::Lease`] when no work is running; [`Stage::Support`] last.
//! Source: design §4, spec/extension-apiserver §4.6.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tokio::{
    task::{AbortHandle, Id, JoinError, JoinSet},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::panics::text_of;

/// The stage of a task, in the order in which stages end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Takes and does work: queues with their workers, periodic loops.
    Work,
    /// Holds the leases. They are released when no work is running.
    Lease,
    /// Answers requests: webhooks, views, metrics. Stops together with [`Stage::Work`], because clients must learn early that this
    /// process is ending.
    Serve,
    /// Serves the other stages: watches, the event publisher, caches.
    Support,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Work, Self::Lease, Self::Serve, Self::Support];
}

/// How long tasks may take to end before they are aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graces {
    /// For [`Stage::Work`]: a driver call that has begun may finish in this time (MC-010).
    pub work: Duration,
    /// For [`Stage::Serve`].
    pub serve: Duration,
}

impl Graces {
    fn of(self, stage: Stage) -> Duration {
        match stage {
            Stage::Work => self.work,
            Stage::Serve => self.serve,
            Stage::Lease | Stage::Support => Duration::from_secs(5),
        }
    }
}

/// Why the process ends without a request to stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A task ended although its stage was not stopped.
    #[error("task {0} ended unexpectedly")]
    Ended(String),
    /// A task reported an error that it can't recover from.
    #[error("task {name} failed: {cause}")]
    Failed {
        /// Name of the task.
        name: String,
        /// The error that the task reported.
        cause: String,
    },
    /// A task panicked; a defect of this program.
    #[error("task {name} panicked: {message}; this is a defect, please report it")]
    Panicked {
        /// Name of the task.
        name: String,
        /// The message of the panic.
        message: String,
    },
}

/// Owns the tasks of the process.
#[derive(Debug)]
pub struct Supervisor {
    tasks: JoinSet<Result<(), String>>,
    running: HashMap<Id, (Stage, String, AbortHandle)>,
    stops: BTreeMap<Stage, CancellationToken>,
    graces: Graces,
}

impl Supervisor {
    /// A supervisor without tasks.
    pub fn new(graces: Graces) -> Self {
        Self {
            tasks: JoinSet::new(),
            running: HashMap::new(),
            stops: Stage::ALL.into_iter().map(|stage| (stage, CancellationToken::new())).collect(),
            graces,
        }
    }

    /// The token of a stage, for the tasks of that stage: it is cancelled when they must end.
    pub fn stop_of(&self, stage: Stage) -> CancellationToken {
        // Every stage has its token from the start.
        self.stops.get(&stage).cloned().unwrap_or_default()
    }

    /// Starts a task that must not end before its stage is stopped.
    pub fn spawn<F>(&mut self, stage: Stage, name: impl Into<String>, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_fallible(stage, name, async move {
            task.await;
            Ok::<(), String>(())
        });
    }

    /// Starts a task that may report an error that it can't recover from.
    pub fn spawn_fallible<F, E>(&mut self, stage: Stage, name: impl Into<String>, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: std::fmt::Display,
    {
        let name = name.into();
        tracing::debug!(task = name, ?stage, "start");
        let handle = self.tasks.spawn(async move { task.await.map_err(|error| error.to_string()) });
        self.running.insert(handle.id(), (stage, name, handle));
    }

    /// Names of the running tasks, sorted.
    pub fn running(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.running.values().map(|(_, name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// Runs until `asked` ends or a task fails. Then stops stage by stage, and returns when no task is left. When the lease task
    /// fails, work is aborted at once: another replica may begin before the work ends by itself.
    ///
    /// # Errors
    /// [`Failure`] names the task that ended the process.
    pub async fn run(mut self, asked: impl Future<Output = ()>) -> Result<(), Failure> {
        let failed = tokio::select! {
            biased;
            failed = self.next_failure() => Some(failed),
            () = asked => None,
        };
        let lease_failed = matches!(failed, Some((Stage::Lease, _)));
        let mut outcome = failed.map_or(Ok(()), |(_, failure)| Err(failure));
        if let Err(failure) = &outcome {
            tracing::error!(error = %failure, "stopping");
        } else {
            tracing::info!("asked to stop");
        }
        let began = Instant::now();
        self.stop_of(Stage::Work).cancel();
        self.stop_of(Stage::Serve).cancel();
        for stage in Stage::ALL {
            self.stop_of(stage).cancel();
            let grace = if lease_failed && stage == Stage::Work { Duration::ZERO } else { self.graces.of(stage) };
            let deadline = if stage == Stage::Serve { began } else { Instant::now() } + grace;
            match timeout_at(deadline, self.stage_ends(stage)).await {
                Ok(Some(failure)) => outcome = outcome.and(Err(failure)),
                Ok(None) => {}
                Err(_) => self.abort_stage(stage),
            }
        }
        self.tasks.shutdown().await;
        outcome
    }

    /// The first task that ends.
    async fn next_failure(&mut self) -> (Stage, Failure) {
        match self.join_next().await {
            Some((stage, name, ended)) => (stage, failure_of(name, ended).unwrap_or_else(Failure::Ended)),
            // Without tasks nothing can fail.
            None => std::future::pending().await,
        }
    }

    /// Waits until no task of the stage is left. Returns the first failure among all tasks that end meanwhile.
    async fn stage_ends(&mut self, stage: Stage) -> Option<Failure> {
        let mut failure = None;
        while self.running.values().any(|(of, ..)| *of == stage) {
            let Some((of, name, ended)) = self.join_next().await else { break };
            let this = match failure_of(name, ended) {
                Err(name) if !self.stop_of(of).is_cancelled() => Some(Failure::Ended(name)),
                Err(_) => None,
                Ok(failure) => Some(failure),
            };
            if let Some(this) = this {
                tracing::error!(error = %this, "while stopping");
                failure.get_or_insert(this);
            }
        }
        failure
    }

    async fn join_next(&mut self) -> Option<(Stage, String, Result<Result<(), String>, JoinError>)> {
        let (id, ended) = match self.tasks.join_next_with_id().await? {
            Ok((id, ended)) => (id, Ok(ended)),
            Err(error) => (error.id(), Err(error)),
        };
        let (stage, name) = match self.running.remove(&id) {
            Some((stage, name, _)) => (stage, name),
            // Unreachable: every task is started by `spawn_fallible`, which adds it to `running`.
            None => (Stage::Support, "unknown".to_owned()),
        };
        Some((stage, name, ended))
    }

    fn abort_stage(&self, stage: Stage) {
        let mut names = Vec::new();
        for (of, name, handle) in self.running.values() {
            if *of == stage {
                handle.abort();
                names.push(name.as_str());
            }
        }
        names.sort_unstable();
        tracing::warn!(?stage, task = names.join(", "), "did not end in time; cut off");
    }
}

/// The failure of a task that ended. `Err` returns the name when the task ended without an error.
fn failure_of(name: String, ended: Result<Result<(), String>, JoinError>) -> Result<Failure, String> {
    match ended {
        Ok(Err(cause)) => Ok(Failure::Failed { name, cause }),
        Err(error) if error.is_panic() => {
            let message = text_of(&*error.into_panic()).to_owned();
            Ok(Failure::Panicked { name, message })
        }
        Ok(Ok(())) | Err(_) => Err(name),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const GRACES: Graces = Graces { work: Duration::from_secs(30), serve: Duration::from_secs(40) };

    fn supervisor() -> Supervisor {
        Supervisor::new(GRACES)
    }

    #[tokio::test(start_paused = true)]
    async fn stages_end_in_order_and_serving_ends_together_with_work() {
        let mut supervisor = supervisor();
        let log = Arc::new(Mutex::new(Vec::new()));
        for stage in Stage::ALL.into_iter().rev() {
            let (stop, log) = (supervisor.stop_of(stage), Arc::clone(&log));
            supervisor.spawn(stage, format!("{stage:?}"), async move {
                stop.cancelled().await;
                tokio::time::sleep(Duration::from_secs(2)).await;
                log.lock().unwrap().push(stage);
            });
        }
        assert_eq!(supervisor.running(), ["Lease", "Serve", "Support", "Work"]);
        let began = Instant::now();
        assert_eq!(supervisor.run(async {}).await, Ok(()));
        let mut log = log.lock().unwrap().clone();
        log[..2].sort();
        assert_eq!(log, [Stage::Work, Stage::Serve, Stage::Lease, Stage::Support]);
        assert_eq!(began.elapsed(), Duration::from_secs(6));
    }

    #[tokio::test(start_paused = true)]
    async fn the_lease_is_released_without_waiting_for_running_requests() {
        let mut supervisor = supervisor();
        let released = Arc::new(Mutex::new(None));
        let (serve, lease, log) =
            (supervisor.stop_of(Stage::Serve), supervisor.stop_of(Stage::Lease), Arc::clone(&released));
        let began = Instant::now();
        supervisor.spawn(Stage::Serve, "server", async move {
            serve.cancelled().await;
            tokio::time::sleep(Duration::from_secs(35)).await;
        });
        supervisor.spawn(Stage::Lease, "leader election", async move {
            lease.cancelled().await;
            *log.lock().unwrap() = Some(began.elapsed());
        });
        supervisor.spawn(Stage::Work, "stuck", std::future::pending());
        assert_eq!(supervisor.run(async {}).await, Ok(()));
        assert_eq!((*released.lock().unwrap(), began.elapsed().as_secs()), (Some(GRACES.work), 35));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ends_early_ends_the_process_by_name() {
        let mut supervisor = supervisor();
        supervisor.spawn(Stage::Support, "watch of machines", async {});
        let stop = supervisor.stop_of(Stage::Work);
        supervisor.spawn(Stage::Work, "machine queue", stop.cancelled_owned());
        let outcome = supervisor.run(std::future::pending()).await;
        assert_eq!(outcome, Err(Failure::Ended("watch of machines".to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_reported_with_name_and_cause() {
        let mut supervisor = supervisor();
        supervisor.spawn_fallible(Stage::Lease, "leader election", async { Err::<(), _>("lease lost") });
        let error = supervisor.run(std::future::pending()).await.unwrap_err();
        assert_eq!(error.to_string(), "task leader election failed: lease lost");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_lease_cuts_work_off_at_once() {
        let mut supervisor = supervisor();
        supervisor.spawn_fallible(Stage::Lease, "leader election", async { Err::<(), _>("lease lost") });
        supervisor.spawn(Stage::Work, "machine queue", std::future::pending());
        let began = Instant::now();
        assert!(supervisor.run(std::future::pending()).await.is_err());
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_reported_with_the_name_of_its_task() {
        let mut supervisor = supervisor();
        supervisor.spawn(Stage::Work, "machine queue", async { panic!("no index") });
        let error = supervisor.run(std::future::pending()).await.unwrap_err();
        assert_eq!(error, Failure::Panicked { name: "machine queue".to_owned(), message: "no index".to_owned() });
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_end_is_cut_off() {
        let mut supervisor = supervisor();
        supervisor.spawn(Stage::Work, "stuck", std::future::pending());
        let began = Instant::now();
        assert_eq!(supervisor.run(async {}).await, Ok(()));
        assert_eq!(began.elapsed(), GRACES.work);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_while_stopping_is_not_lost() {
        let mut supervisor = supervisor();
        let stop = supervisor.stop_of(Stage::Work);
        supervisor.spawn(Stage::Work, "machine queue", async move {
            stop.cancelled().await;
            panic!("late");
        });
        let error = supervisor.run(async {}).await.unwrap_err();
        assert!(error.to_string().contains("machine queue panicked: late"), "{error}");
    }
}
