//! Leader election over Lease objects, compatible with client-go, so that a Go manager and this one exclude each other.
//!
//! [`decide`](decide::decide) holds the rules; this file observes and acts. Leases are taken in the given order, each only while
//! the ones before it are held. Otherwise two replicas that each hold one lease wait for each other for ever
//! (spec/machine-controller §12.3). All leases are observed from the start, so that a takeover takes one lease duration, not one
//! for each lease. A leader that loses one lease loses all of them.

mod api;
mod decide;
mod leadership;

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ObjectReference};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

pub use self::{
    api::LeaseApi,
    decide::{Decision, LeaseState, Observation, Record, Role, StepDown, Times, decide},
    leadership::{CallInFlight, Leadership},
};
use super::{
    clock::SharedClock,
    error::ApiError,
    events::{EventNote, Recorder},
};

/// How long the release of one lease may take.
const RELEASE: Duration = Duration::from_secs(5);

/// Settings of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionSettings {
    /// Namespace of the leases.
    pub namespace: String,
    /// Names of the leases, in the order in which they are taken.
    pub leases: Vec<String>,
    /// Identity of this process, see [`identity_of`].
    pub identity: String,
    /// Times.
    pub times: Times,
}

/// The identity of a process: the host name, an underscore and a random suffix, as in client-go's example. With the host name
/// alone, two processes of one host have one identity, and both lead.
pub fn identity_of(host: &str, random: impl Fn() -> u64) -> String {
    format!("{host}_{:016x}", random())
}

/// How an election ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The process was asked to stop. The leases are released.
    Released,
    /// The process was asked to stop while driver calls had no answer. The leases are not released; they expire.
    Expiring {
        /// The number of calls without an answer.
        unanswered: usize,
    },
    /// A lease was lost after all had been taken. All effects have stopped.
    Lost {
        /// Name of the lease.
        lease: String,
        /// Why it was lost.
        why: StepDown,
    },
}

/// The result of a try to take a lease.
enum Attempt {
    /// This process holds it; the write was sent at this time.
    Acquired(Box<Lease>, Instant),
    /// Another process holds it. Without a change it stays so for this time.
    HeldFor(Duration),
    /// It was not taken in this try.
    NotAcquired,
}

/// Takes the leases and holds them.
pub struct LeaderElection {
    settings: ElectionSettings,
    api: Arc<dyn LeaseApi>,
    clock: SharedClock,
    jitter: Box<dyn Fn() -> u64 + Send + Sync>,
    recorder: Option<Recorder>,
    leadership: Leadership,
}

impl LeaderElection {
    /// An election that has not begun. `jitter` is a source of random numbers; `recorder` writes an event when the leader changes.
    pub fn new(
        settings: ElectionSettings,
        api: Arc<dyn LeaseApi>,
        clock: SharedClock,
        jitter: impl Fn() -> u64 + Send + Sync + 'static,
        recorder: Option<Recorder>,
    ) -> Self {
        let leadership = Leadership::of_leases(settings.leases.len());
        Self { settings, api, clock, jitter: Box::new(jitter), recorder, leadership }
    }

    /// An election through a client. No other calls should go through this client ([`super::clients::Purpose::Leases`]).
    pub fn over(
        settings: ElectionSettings,
        client: kube::Client,
        clock: SharedClock,
        jitter: impl Fn() -> u64 + Send + Sync + 'static,
        recorder: Option<Recorder>,
    ) -> Self {
        let api: Arc<dyn LeaseApi> = Arc::new(kube::Api::<Lease>::namespaced(client, &settings.namespace));
        Self::new(settings, api, clock, jitter, recorder)
    }

    /// Whether this process leads. The gate is made from it.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Runs until a lease is lost after all were taken, or until `shutdown` is cancelled. Cancel `shutdown` only after all work has
    /// ended, because the leases are released then and the next leader begins at once. When a driver call was dropped without an
    /// answer, the leases are not released; they expire. The supervisor should own the future.
    pub async fn run(self, shutdown: CancellationToken) -> Ended {
        loop {
            let lost = {
                let leading = self.lead();
                tokio::pin!(leading);
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => None,
                    lost = &mut leading => Some(lost),
                }
            };
            let Some((lease, why)) = lost else { break };
            if self.leadership.has_won() {
                self.leadership.lose();
                tracing::error!(lease, error = %why, "leadership lost; all effects have stopped");
                return Ended::Lost { lease, why };
            }
            tracing::warn!(lease, error = %why, "a lease was lost before all were held; beginning anew");
        }
        // Closes the gate before the leases are free.
        self.leadership.lose();
        let unanswered = self.leadership.unanswered();
        if unanswered > 0 {
            tracing::warn!(
                count = unanswered,
                "the leases are not given back, because driver calls were cut off; they expire"
            );
            return Ended::Expiring { unanswered };
        }
        for name in self.settings.leases.iter().rev() {
            match tokio::time::timeout(RELEASE, self.release(name)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(lease = name, %error, "the lease could not be given back; it expires"),
                Err(_) => tracing::warn!(lease = name, "the lease could not be given back in time; it expires"),
            }
        }
        Ended::Released
    }

    /// Takes and holds all leases. Returns when one of them is lost.
    async fn lead(&self) -> (String, StepDown) {
        let (held, _) = watch::channel(0);
        let leases = self.settings.leases.iter().enumerate();
        let mut kept: FuturesUnordered<_> = leases.map(|(index, name)| self.keep(index, name, &held)).collect();
        match kept.next().await {
            Some(lost) => lost,
            // Without leases none can be lost.
            None => std::future::pending().await,
        }
    }

    /// Takes this lease once all leases before it are held, and holds it until it is lost. `held` is the number of leases that are
    /// held, counted from the first.
    async fn keep(&self, index: usize, name: &str, held: &watch::Sender<usize>) -> (String, StepDown) {
        let (lease, renewed) = self.acquire(index, name, held.subscribe()).await;
        self.leadership.holds(index, renewed + self.settings.times.renew_deadline);
        tracing::info!(lease = name, identity = self.settings.identity, "lease acquired");
        if let Some(recorder) = &self.recorder {
            let text = format!("{} became leader", self.settings.identity);
            recorder.note_about(reference(&lease), EventNote::normal("LeaderElection", text));
        }
        held.send_replace(index + 1);
        if index + 1 == self.settings.leases.len() {
            self.leadership.win();
            tracing::info!(identity = self.settings.identity, "leading");
        }
        let why = self.renew(index, name, lease, renewed).await;
        self.leadership.let_go(index);
        (name.to_owned(), why)
    }

    /// Tries until this process holds the lease. Returns the lease and when the successful write was sent. The lease is observed
    /// from the start: when it has expired by the time the leases before it are held, it is taken at once.
    async fn acquire(&self, index: usize, name: &str, mut held: watch::Receiver<usize>) -> (Lease, Instant) {
        let mut observed: Option<(Lease, Instant)> = None;
        let mut followed = String::new();
        loop {
            let may_take = *held.borrow_and_update() >= index;
            let mut expires = Duration::MAX;
            match self.try_acquire(name, may_take, &mut observed, &mut followed).await {
                Ok(Attempt::Acquired(lease, sent)) => return (*lease, sent),
                Ok(Attempt::HeldFor(remaining)) => expires = remaining,
                Ok(Attempt::NotAcquired) => {}
                Err(error) => {
                    tracing::warn!(lease = name, %error, "the lease could not be read or taken; trying again");
                }
            }
            let retry = self.settings.times.retry_period;
            #[expect(clippy::cast_precision_loss, reason = "a share of the way, not a count")]
            let share = (self.jitter)() as f64 / u64::MAX as f64;
            let pause = retry.mul_f64(decide::JITTER_FACTOR.mul_add(share, 1.0)).min(expires);
            tokio::select! {
                biased;
                // The sender lives as long as this future does.
                _ = held.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One try. It takes the lease only if `may_take`, when all leases before it are held.
    async fn try_acquire(
        &self,
        name: &str,
        may_take: bool,
        observed: &mut Option<(Lease, Instant)>,
        followed: &mut String,
    ) -> Result<Attempt, ApiError> {
        let lease = self.call(self.api.get(name), self.call_timeout()).await?;
        let now = Instant::now();
        // Any change shows that the holder lives, whichever client made it.
        let since = match (&lease, &*observed) {
            (Some(lease), Some((known, since))) if known.spec == lease.spec => *since,
            (None, Some((_, since))) => *since,
            _ => now,
        };
        let state = match (&lease, &*observed) {
            (Some(lease), _) => LeaseState::Present(api::record_of(lease)),
            (None, Some((known, _))) => LeaseState::Deleted(api::record_of(known)),
            (None, None) => LeaseState::Absent,
        };
        if let Some(lease) = &lease {
            *observed = Some((lease.clone(), since));
        }
        let decision =
            decide(&Observation { state, since }, &self.settings.identity, Role::Candidate, &self.settings.times, now);
        let transitions = match (&decision, &lease) {
            (Decision::Follow(remaining), None) => return Ok(Attempt::HeldFor(*remaining)),
            (Decision::Follow(remaining), Some(lease)) => {
                let holder = api::record_of(lease).holder;
                if *followed != holder {
                    tracing::info!(lease = name, identity = holder, "somebody else leads; standing by");
                    *followed = holder;
                }
                return Ok(Attempt::HeldFor(*remaining));
            }
            (Decision::Take { transitions }, _) => *transitions,
            (Decision::Renew, Some(lease)) => api::record_of(lease).transitions,
            (Decision::Create, _) => 0,
            (Decision::StepDown(_) | Decision::Renew, _) => return Ok(Attempt::NotAcquired),
        };
        if !may_take {
            return Ok(Attempt::NotAcquired);
        }
        self.write(lease, name, transitions).await.map(|(lease, sent)| Attempt::Acquired(Box::new(lease), sent))
    }

    /// Renews the lease until it is lost.
    async fn renew(&self, index: usize, name: &str, lease: Lease, mut renewed: Instant) -> StepDown {
        let times = self.settings.times;
        // `None` after the lease was deleted; the next write creates it again.
        let mut current = Some(lease);
        loop {
            let deadline = renewed + times.renew_deadline;
            let next = (Instant::now() + times.retry_period).min(deadline);
            tokio::time::sleep_until(next).await;
            let now = Instant::now();
            if let Some(why) = self.ends(current.as_ref(), renewed, now) {
                return why;
            }
            let transitions = current.as_ref().map_or(0, |lease| api::record_of(lease).transitions);
            // No call may last longer than the deadline: a leader that steps down too late is worse than one that steps down
            // without need.
            let attempt = tokio::time::timeout_at(deadline, self.write(current.clone(), name, transitions)).await;
            match attempt {
                Ok(Ok((written, sent))) => {
                    renewed = sent;
                    self.leadership.holds(index, renewed + times.renew_deadline);
                    current = Some(written);
                }
                Ok(Err(error)) => {
                    tracing::warn!(lease = name, %error, "the lease could not be renewed; trying again");
                    // The next try uses the current lease. If it names another holder, there is no next try.
                    if let Ok(Ok(fresh)) =
                        tokio::time::timeout_at(deadline, self.call(self.api.get(name), self.call_timeout())).await
                    {
                        if let Some(why) = self.ends(fresh.as_ref(), renewed, Instant::now()) {
                            return why;
                        }
                        current = fresh;
                    }
                }
                Err(_) => return StepDown::NotRenewed(times.renew_deadline),
            }
        }
    }

    /// Why the leader of this lease must step down, if it must.
    fn ends(&self, lease: Option<&Lease>, renewed: Instant, now: Instant) -> Option<StepDown> {
        let state = lease.map_or(LeaseState::Absent, |lease| LeaseState::Present(api::record_of(lease)));
        let observed = Observation { state, since: now };
        match decide(&observed, &self.settings.identity, Role::Leader { renewed }, &self.settings.times, now) {
            Decision::StepDown(why) => Some(why),
            _ => None,
        }
    }

    /// Writes this process as the holder: creates the lease, or updates the given one. Returns the lease and when the write was
    /// sent.
    async fn write(&self, lease: Option<Lease>, name: &str, transitions: i32) -> Result<(Lease, Instant), ApiError> {
        let ElectionSettings { namespace, identity, times, .. } = &self.settings;
        let now = self.clock.now();
        let sent = Instant::now();
        let written = match lease {
            None => {
                let lease = api::fresh(namespace, name, identity, times.lease_duration, now);
                self.call(self.api.create(&lease), self.call_timeout()).await?
            }
            Some(mut lease) => {
                api::hold(&mut lease, identity, times.lease_duration, transitions, now);
                self.call(self.api.update(&lease), self.call_timeout()).await?
            }
        };
        Ok((written, sent))
    }

    async fn release(&self, name: &str) -> Result<(), ApiError> {
        let Some(mut lease) = self.api.get(name).await? else { return Ok(()) };
        if api::record_of(&lease).holder != self.settings.identity {
            return Ok(());
        }
        api::release(&mut lease, self.clock.now());
        self.api.update(&lease).await.map(|_| tracing::info!(lease = name, "lease given back"))
    }

    /// client-go limits one call to half of the renew deadline.
    fn call_timeout(&self) -> Duration {
        self.settings.times.renew_deadline / 2
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, ApiError>>, within: Duration) -> Result<T, ApiError> {
        tokio::time::timeout(within, call).await.map_err(|_| ApiError::TimedOut(within))?
    }
}

fn reference(lease: &Lease) -> ObjectReference {
    ObjectReference {
        api_version: Some("coordination.k8s.io/v1".to_owned()),
        kind: Some("Lease".to_owned()),
        name: lease.metadata.name.clone(),
        namespace: lease.metadata.namespace.clone(),
        resource_version: lease.metadata.resource_version.clone(),
        uid: lease.metadata.uid.clone(),
        field_path: None,
    }
}

#[cfg(test)]
mod tests;
