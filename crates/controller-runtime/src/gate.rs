//! The gate that all effects pass: whether this process leads, and whether an object may be destroyed now.
//!
//! Each write asks [`Gate::may_act`]. A destructive effect also asks [`Gate::permit`] (decisions.md 18). When the lease is lost the
//! gate closes at once, before another replica can begin to act. Driver calls run through [`Gate::call`]. No call begins after the
//! process was asked to stop, and no call continues after leadership is lost (decisions.md 56).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{error::ApiError, lease::Leadership};
use crate::lock;

/// The kind of object that a destructive effect destroys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destruction {
    /// A VM at the provider.
    Vm,
    /// A Node of the target cluster.
    Node,
    /// A Pod, by eviction or deletion.
    Pod,
    /// A volume attachment.
    VolumeAttachment,
    /// A Machine object.
    Machine,
    /// A `MachineSet` object.
    MachineSet,
}

/// The gate. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub struct Gate {
    leadership: Leadership,
    /// Cancelled when the process is asked to stop.
    stopping: CancellationToken,
    /// How long running calls may continue after `stopping` is cancelled.
    drain: Duration,
    passed: Arc<Mutex<BTreeMap<(Destruction, &'static str), u64>>>,
    /// Why the gate is closed although this process leads. `None` if it is not suspended.
    suspended: Arc<Mutex<Option<String>>>,
}

impl Gate {
    /// A gate that is open until `leadership_lost` is cancelled, for processes without an election and for tests.
    pub fn open_until(leadership_lost: CancellationToken) -> Self {
        Self::open_while(Leadership::without_election(leadership_lost))
    }

    /// A gate that is open while all leases are held and their last renewal is recent enough. A process that was suspended finds
    /// the gate closed before its election task runs again.
    pub fn open_while(leadership: Leadership) -> Self {
        Self {
            leadership,
            stopping: CancellationToken::new(),
            drain: Duration::ZERO,
            passed: Arc::default(),
            suspended: Arc::default(),
        }
    }

    /// No driver call begins after `stopping` is cancelled. Calls that are running at that moment may continue for `drain`.
    #[must_use]
    pub fn draining_calls(self, stopping: CancellationToken, drain: Duration) -> Self {
        Self { stopping, drain, ..self }
    }

    /// A gate that is always closed, for processes that only read.
    pub fn closed() -> Self {
        let lost = CancellationToken::new();
        lost.cancel();
        Self::open_until(lost)
    }

    /// Whether effects are allowed.
    ///
    /// # Errors
    /// [`ApiError::NotLeading`] when the lease is lost or the gate is suspended.
    pub fn may_act(&self) -> Result<(), ApiError> {
        if !self.leadership.is_leading() {
            return Err(ApiError::NotLeading("the lease is not held (any more) or the process is stopping".to_owned()));
        }
        match &*lock(&self.suspended) {
            Some(why) => Err(ApiError::NotLeading(why.clone())),
            None => Ok(()),
        }
    }

    /// Closes the gate for good, because the objects that this process has read can't be trusted. Only a restart opens it again,
    /// because effects that were refused here are not retried.
    pub fn suspend(&self, why: &str) {
        *lock(&self.suspended) = Some(why.to_owned());
    }

    /// Whether a driver call may begin.
    ///
    /// # Errors
    /// [`ApiError::NotLeading`] when the lease is lost or the process was asked to stop.
    pub fn may_call(&self) -> Result<(), ApiError> {
        if self.stopping.is_cancelled() {
            return Err(ApiError::NotLeading("the process is stopping and begins no driver call".to_owned()));
        }
        self.may_act()
    }

    /// Runs a driver call. The call is dropped at once when the lease is lost. It is also dropped when the process was asked to
    /// stop and the time for running calls is over; the leases are not released then, because what the provider did is unknown.
    ///
    /// # Errors
    /// [`ApiError::NotLeading`] when the call may not begin, or was dropped.
    pub async fn call<T>(&self, call: impl Future<Output = T>) -> Result<T, ApiError> {
        self.may_call()?;
        let begun = self.leadership.call_begins();
        let drained = async {
            self.stopping.cancelled().await;
            tokio::time::sleep(self.drain).await;
        };
        tokio::select! {
            biased;
            () = self.leadership.lost().cancelled() => {
                Err(ApiError::NotLeading("the lease was lost during a driver call".to_owned()))
            }
            answer = call => {
                begun.answered();
                Ok(answer)
            }
            () = drained => {
                Err(ApiError::NotLeading(format!("no answer of the driver within {:?} of the end", self.drain)))
            }
        }
    }

    /// Asks for the permission to destroy an object. `rule` is the rule of the decision. The audit log records kind, rule and
    /// object.
    ///
    /// # Errors
    /// The errors of [`Gate::may_act`].
    pub fn permit(
        &self,
        what: Destruction,
        rule: &'static str,
        object: &(dyn std::fmt::Display + Sync),
    ) -> Result<(), ApiError> {
        self.may_act()?;
        tracing::info!(target: "audit", effect = format_args!("{what:?} {object}"), rule, "destroy");
        *lock(&self.passed).entry((what, rule)).or_insert(0) += 1;
        Ok(())
    }

    /// The number of permitted destructions, by kind and rule.
    pub fn passed(&self) -> BTreeMap<(Destruction, &'static str), u64> {
        lock(&self.passed).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_passes_once_the_lease_is_lost() {
        let lost = CancellationToken::new();
        let gate = Gate::open_until(lost.clone());
        assert_eq!(gate.permit(Destruction::Vm, "deletion", &"m-1"), Ok(()));
        lost.cancel();
        assert!(matches!(gate.permit(Destruction::Vm, "deletion", &"m-2"), Err(ApiError::NotLeading(_))));
        assert_eq!(gate.passed(), BTreeMap::from([((Destruction::Vm, "deletion"), 1)]));
    }

    struct Rig {
        leadership: Leadership,
        lost: CancellationToken,
        stopping: CancellationToken,
        gate: Gate,
    }

    fn rig() -> Rig {
        let (lost, stopping) = (CancellationToken::new(), CancellationToken::new());
        let leadership = Leadership::without_election(lost.clone());
        let gate = Gate::open_while(leadership.clone()).draining_calls(stopping.clone(), Duration::from_secs(20));
        Rig { leadership, lost, stopping, gate }
    }

    async fn seconds(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopping_process_begins_no_call_and_still_writes() {
        let rig = rig();
        rig.stopping.cancel();
        assert!(matches!(rig.gate.call(async {}).await, Err(ApiError::NotLeading(_))));
        assert_eq!((rig.gate.may_act(), rig.leadership.unanswered()), (Ok(()), 0));
    }

    #[rstest::rstest]
    #[case::answers_in_time(19, true)]
    #[case::takes_too_long(21, false)]
    #[tokio::test(start_paused = true)]
    async fn a_call_that_runs_when_the_process_is_asked_to_stop(#[case] takes: u64, #[case] answered: bool) {
        let rig = rig();
        let began = tokio::time::Instant::now();
        let stop = async {
            seconds(5).await;
            rig.stopping.cancel();
        };
        let (ended, ()) = tokio::join!(rig.gate.call(seconds(5 + takes)), stop);
        assert_eq!((ended.is_ok(), rig.leadership.unanswered()), (answered, usize::from(!answered)));
        assert_eq!(began.elapsed().as_secs(), 5 + takes.min(20));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_lease_drops_a_call_at_once() {
        let rig = rig();
        let began = tokio::time::Instant::now();
        let lose = async {
            seconds(5).await;
            rig.lost.cancel();
        };
        let (ended, ()) = tokio::join!(rig.gate.call(seconds(600)), lose);
        assert!(matches!(ended, Err(ApiError::NotLeading(_))));
        assert_eq!((rig.leadership.unanswered(), began.elapsed().as_secs()), (1, 5));
    }

    #[test]
    fn nothing_passes_a_suspended_gate() {
        let gate = Gate::open_until(CancellationToken::new());
        let same = gate.clone();
        gate.suspend("objects are hollow");
        assert_eq!(same.may_act(), Err(ApiError::NotLeading("objects are hollow".to_owned())));
        assert!(same.permit(Destruction::Vm, "deletion", &"m-1").is_err());
    }
}
