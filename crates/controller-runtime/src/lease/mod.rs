//! Leader election over Lease objects, compatible with client-go's, so that a Go manager and this one exclude each other.
//!
//! [`decide`](decide::decide) holds the rules; this file observes and acts. Leases are taken in the order given, the next
//! only while the ones before are held: two replicas that each hold one would wait for each other for ever
//! (spec/machine-controller §12.3). All of them are observed from the start, so that a takeover lasts one lease duration
//! and not one for each. Losing one loses all.

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
    decide::{Decision, Record, Role, Seen, Sight, StepDown, Times, decide},
    leadership::{Begun, Leadership},
};
use super::{
    clock::SharedClock,
    error::ApiError,
    events::{EventNote, Recorder},
};

/// How long giving a lease back may take.
const RELEASE: Duration = Duration::from_secs(5);

/// What an election is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionSettings {
    /// Namespace of the leases.
    pub namespace: String,
    /// Names of the leases in the order they are taken.
    pub leases: Vec<String>,
    /// Who this process is; see [`identity_of`].
    pub identity: String,
    /// Times.
    pub times: Times,
}

/// Who a process is: the name of its host, an underscore and a random suffix, as client-go's example makes it. The host's
/// name alone would make two processes of one host take each other for themselves, so that both lead.
pub fn identity_of(host: &str, random: impl Fn() -> u64) -> String {
    format!("{host}_{:016x}", random())
}

/// How an election ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The process was asked to stop; what was held has been given back.
    Released,
    /// The process was asked to stop while driver calls had no answer; what was held expires by itself.
    Expiring {
        /// How many calls had no answer.
        unanswered: usize,
    },
    /// A lease was lost after it had been won; all effects have stopped.
    Lost {
        /// Name of the lease.
        lease: String,
        /// Why.
        why: StepDown,
    },
}

/// Whether a lease may be taken: all before it must be held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Ours,
    OfAnEarlierLease,
}

/// What became of a try to take a lease.
enum Tried {
    /// It is ours; the write was sent at this time.
    Won(Box<Lease>, Instant),
    /// Somebody holds it, at least for this long if nothing changes.
    HeldFor(Duration),
    /// It may be taken, but not by us or not yet.
    InVain,
}

/// Takes part in the election.
pub struct LeaderElection {
    settings: ElectionSettings,
    api: Arc<dyn LeaseApi>,
    clock: SharedClock,
    jitter: Box<dyn Fn() -> u64 + Send + Sync>,
    recorder: Option<Recorder>,
    leadership: Leadership,
}

impl LeaderElection {
    /// An election that has not begun. `jitter` is a source of random numbers; `recorder` tells of a change of leaders.
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

    /// An election through a client, which should serve nothing else ([`super::clients::Purpose::Leases`]).
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

    /// Tells whether this process leads; the gate is made from it.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Runs until a won lease is lost or `shutdown` is cancelled. Cancel `shutdown` only after all work has ended: leases
    /// are given back then, and the next leader begins at once. They are left to expire when a driver call was dropped
    /// without an answer. The future is to be owned by the supervisor.
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
                tracing::error!(lease, %why, "leadership lost; all effects have stopped");
                return Ended::Lost { lease, why };
            }
            tracing::warn!(lease, %why, "a lease was lost before all were held; beginning anew");
        }
        // Closes the gate before the leases are free.
        self.leadership.lose();
        let unanswered = self.leadership.unanswered();
        if unanswered > 0 {
            tracing::warn!(unanswered, "the leases are not given back, because driver calls were cut off; they expire");
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

    /// Takes and holds all leases; ends when one of them is lost.
    async fn lead(&self) -> (String, StepDown) {
        let (held, _) = watch::channel(0);
        let leases = self.settings.leases.iter().enumerate();
        let mut kept: FuturesUnordered<_> = leases.map(|(index, name)| self.keep(index, name, &held)).collect();
        match kept.next().await {
            Some(lost) => lost,
            // No lease is needed, so that none can be lost.
            None => std::future::pending().await,
        }
    }

    /// Takes this lease once all before it are held, and holds it until it is lost. `held` counts the leases that are
    /// held, from the first one on.
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

    /// Tries until the lease is ours; answers it and when the successful write was sent. It is observed from the start, so
    /// that it can be taken at once when it has expired by the time its turn comes.
    async fn acquire(&self, index: usize, name: &str, mut held: watch::Receiver<usize>) -> (Lease, Instant) {
        let mut seen: Option<(Lease, Instant)> = None;
        let mut followed = String::new();
        loop {
            let turn = if *held.borrow_and_update() >= index { Turn::Ours } else { Turn::OfAnEarlierLease };
            let mut expires = Duration::MAX;
            match self.try_acquire(name, turn, &mut seen, &mut followed).await {
                Ok(Tried::Won(lease, sent)) => return (*lease, sent),
                Ok(Tried::HeldFor(remaining)) => expires = remaining,
                Ok(Tried::InVain) => {}
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

    async fn try_acquire(
        &self,
        name: &str,
        turn: Turn,
        seen: &mut Option<(Lease, Instant)>,
        followed: &mut String,
    ) -> Result<Tried, ApiError> {
        let lease = self.call(self.api.get(name), self.call_timeout()).await?;
        let now = Instant::now();
        // Any change counts as a sign of life, whoever made it.
        let since = match (&lease, &*seen) {
            (Some(lease), Some((known, since))) if known.spec == lease.spec => *since,
            (None, Some((_, since))) => *since,
            _ => now,
        };
        let record = match (&lease, &*seen) {
            (Some(lease), _) => Sight::There(api::record_of(lease)),
            (None, Some((known, _))) => Sight::Deleted(api::record_of(known)),
            (None, None) => Sight::Absent,
        };
        if let Some(lease) = &lease {
            *seen = Some((lease.clone(), since));
        }
        let decision =
            decide(&Seen { record, since }, &self.settings.identity, Role::Candidate, &self.settings.times, now);
        let transitions = match (&decision, &lease) {
            (Decision::Follow(remaining), None) => return Ok(Tried::HeldFor(*remaining)),
            (Decision::Follow(remaining), Some(lease)) => {
                let holder = api::record_of(lease).holder;
                if *followed != holder {
                    tracing::info!(lease = name, holder, "somebody else leads; standing by");
                    *followed = holder;
                }
                return Ok(Tried::HeldFor(*remaining));
            }
            (Decision::Take { transitions }, _) => *transitions,
            (Decision::Renew, Some(lease)) => api::record_of(lease).transitions,
            (Decision::Create, _) => 0,
            (Decision::StepDown(_) | Decision::Renew, _) => return Ok(Tried::InVain),
        };
        if turn == Turn::OfAnEarlierLease {
            return Ok(Tried::InVain);
        }
        self.write(lease, name, transitions).await.map(|(lease, sent)| Tried::Won(Box::new(lease), sent))
    }

    /// Renews until that is no longer possible.
    async fn renew(&self, index: usize, name: &str, lease: Lease, mut renewed: Instant) -> StepDown {
        let times = self.settings.times;
        // `None` once the lease has been deleted; writing creates it again then.
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
            // No call may outlive the deadline: stepping down late is worse than stepping down needlessly.
            let attempt = tokio::time::timeout_at(deadline, self.write(current.clone(), name, transitions)).await;
            match attempt {
                Ok(Ok((written, sent))) => {
                    renewed = sent;
                    self.leadership.holds(index, renewed + times.renew_deadline);
                    current = Some(written);
                }
                Ok(Err(error)) => {
                    tracing::warn!(lease = name, %error, "the lease could not be renewed; trying again");
                    // The next try goes by what the lease says now. Where it says somebody else there is none.
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

    /// Why the leader of this lease steps down, if it must.
    fn ends(&self, lease: Option<&Lease>, renewed: Instant, now: Instant) -> Option<StepDown> {
        let record = lease.map_or(Sight::Absent, |lease| Sight::There(api::record_of(lease)));
        let seen = Seen { record, since: now };
        match decide(&seen, &self.settings.identity, Role::Leader { renewed }, &self.settings.times, now) {
            Decision::StepDown(why) => Some(why),
            _ => None,
        }
    }

    /// Writes the lease as ours: creates it, or updates the one given. Answers it and when the write was sent.
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

    /// client-go gives one call half of the renew deadline.
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
