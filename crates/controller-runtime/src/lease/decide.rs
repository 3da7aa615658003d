//! Decides what to do about a lease, from its last observed record and from the time of that observation in this process.
//!
//! Rules: client-go's `leaderelection` (`tryAcquireOrRenew`), with three differences on the safe side. A leader that observes
//! another holder steps down at once. The renew deadline of a leader counts from the time when its last successful renewal was
//! sent. A deleted lease does not tell a candidate that the holder has ended, because the holder creates the lease again. The
//! clock of the holder is never used: a lease has expired when this process has not observed a change for the duration of the
//! lease.

use std::time::Duration;

use tokio::time::Instant;

/// The times of a leader election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// How long candidates wait after the last change of a lease before they take it (`--leader-elect-lease-duration`).
    pub lease_duration: Duration,
    /// How long a leader goes on without a successful renewal (`--leader-elect-renew-deadline`).
    pub renew_deadline: Duration,
    /// Pause between tries (`--leader-elect-retry-period`).
    pub retry_period: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// client-go's jitter of the pauses between tries to take a lease.
pub(super) const JITTER_FACTOR: f64 = 1.2;

impl Times {
    /// Checks what client-go checks: lease duration > renew deadline > retry period × 1.2, and none is zero.
    ///
    /// # Errors
    /// A text that names the flags and their values.
    pub fn validate(&self) -> Result<(), String> {
        let Self { lease_duration: lease, renew_deadline: renew, retry_period: retry } = *self;
        if lease.as_secs() < 1 || renew.is_zero() || retry.is_zero() {
            return Err(format!(
                "--leader-elect-lease-duration ({lease:?}) must be at least 1s, --leader-elect-renew-deadline ({renew:?}) \
                 and --leader-elect-retry-period ({retry:?}) greater than zero"
            ));
        }
        if lease <= renew {
            return Err(format!(
                "--leader-elect-lease-duration ({lease:?}) must be greater than --leader-elect-renew-deadline ({renew:?})"
            ));
        }
        if renew <= retry.mul_f64(JITTER_FACTOR) {
            return Err(format!(
                "--leader-elect-renew-deadline ({renew:?}) must be greater than 1.2 times --leader-elect-retry-period \
                 ({retry:?})"
            ));
        }
        Ok(())
    }
}

/// The record in a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Identity of the holder; empty when the lease was released.
    pub holder: String,
    /// How long the lease is valid after a change. `None` if the lease does not contain a duration.
    pub duration: Option<Duration>,
    /// How often the holder changed.
    pub transitions: i32,
}

/// The result of reading the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// No lease, now and before.
    Absent,
    /// No lease. There was one with this record before.
    Deleted(Record),
    /// A lease with this record.
    Present(Record),
}

/// The last observation of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The result of the last read.
    pub state: LeaseState,
    /// When this process first observed this state, by its own clock. For a deleted lease: when this process last observed a
    /// change of it.
    pub since: Instant,
}

/// The role of this process for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It tries to take the lease.
    Candidate,
    /// It holds the lease.
    Leader {
        /// When the last successful renewal was sent.
        renewed: Instant,
    },
}

/// Why a leader steps down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepDown {
    /// No renewal was successful in time.
    #[error("it could not be renewed within {0:?}")]
    NotRenewed(Duration),
    /// Another process holds the lease.
    #[error("it is held by {0:?} now")]
    TakenBy(String),
    /// The holder was removed from the lease.
    #[error("the holder was taken off it")]
    Cleared,
}

/// The next step for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Create the lease; it does not exist.
    Create,
    /// Take the lease: it is free or has expired.
    Take {
        /// The number of changes of the holder to write.
        transitions: i32,
    },
    /// Renew the lease: this process holds it, perhaps since before a restart.
    Renew,
    /// Another process holds the lease. If the lease does not change, it expires after this time.
    Follow(Duration),
    /// Stop leading.
    StepDown(StepDown),
}

/// Decides about one lease. `me` is the identity of this process.
pub fn decide(observed: &Observation, me: &str, role: Role, times: &Times, now: Instant) -> Decision {
    if let Role::Leader { renewed } = role {
        if now >= renewed + times.renew_deadline {
            return Decision::StepDown(StepDown::NotRenewed(times.renew_deadline));
        }
        return match &observed.state {
            LeaseState::Absent | LeaseState::Deleted(_) => Decision::Create,
            LeaseState::Present(record) if record.holder == me => Decision::Renew,
            LeaseState::Present(record) if record.holder.is_empty() => Decision::StepDown(StepDown::Cleared),
            LeaseState::Present(record) => Decision::StepDown(StepDown::TakenBy(record.holder.clone())),
        };
    }
    let (record, free) = match &observed.state {
        LeaseState::Absent => return Decision::Create,
        LeaseState::Deleted(record) => (record, Decision::Create),
        LeaseState::Present(record) if record.holder == me => return Decision::Renew,
        LeaseState::Present(record) => (record, Decision::Take { transitions: record.transitions.saturating_add(1) }),
    };
    let over = observed.since + record.duration.unwrap_or(times.lease_duration);
    let is_held = !record.holder.is_empty() && record.holder != me;
    if is_held && now < over { Decision::Follow(over - now) } else { free }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn held_by(holder: &str) -> Record {
        Record { holder: holder.to_owned(), duration: Some(Duration::from_secs(15)), transitions: 3 }
    }

    fn without_duration(holder: &str) -> Record {
        Record { duration: None, ..held_by(holder) }
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[rstest]
    #[case::creates_a_missing_lease(LeaseState::Absent, 0, Decision::Create)]
    #[case::waits_for_the_holder_of_a_deleted_lease(
        LeaseState::Deleted(held_by("other")),
        14,
        Decision::Follow(secs(1))
    )]
    #[case::creates_a_deleted_lease_whose_holder_does_not_create_it(
        LeaseState::Deleted(held_by("other")),
        15,
        Decision::Create
    )]
    #[case::creates_a_deleted_lease_that_was_released(LeaseState::Deleted(held_by("")), 0, Decision::Create)]
    #[case::creates_its_own_deleted_lease(LeaseState::Deleted(held_by("me")), 0, Decision::Create)]
    #[case::takes_a_released_lease_at_once(LeaseState::Present(held_by("")), 0, Decision::Take { transitions: 4 })]
    #[case::follows_a_lease_that_was_just_observed_however_old_its_times_are(
        LeaseState::Present(held_by("other")),
        0,
        Decision::Follow(secs(15))
    )]
    #[case::follows_until_the_very_end(LeaseState::Present(held_by("other")), 14, Decision::Follow(secs(1)))]
    #[case::takes_a_lease_that_did_not_change_for_its_duration(LeaseState::Present(held_by("other")), 15, Decision::Take { transitions: 4 })]
    #[case::assumes_its_own_duration_where_none_is_given(
        LeaseState::Present(without_duration("other")),
        14,
        Decision::Follow(secs(1))
    )]
    #[case::goes_on_with_its_own_lease_after_a_restart(LeaseState::Present(held_by("me")), 0, Decision::Renew)]
    fn a_candidate(#[case] state: LeaseState, #[case] observed_for: u64, #[case] expected: Decision) {
        let since = Instant::now();
        let observed = Observation { state, since };
        assert_eq!(decide(&observed, "me", Role::Candidate, &Times::default(), since + secs(observed_for)), expected);
    }

    #[rstest]
    #[case::renews_its_lease(LeaseState::Present(held_by("me")), 2, Decision::Renew)]
    #[case::renews_until_the_deadline(LeaseState::Present(held_by("me")), 9, Decision::Renew)]
    #[case::steps_down_at_the_deadline(
        LeaseState::Present(held_by("me")),
        10,
        Decision::StepDown(StepDown::NotRenewed(secs(10)))
    )]
    #[case::creates_a_deleted_lease_again(LeaseState::Absent, 2, Decision::Create)]
    #[case::steps_down_when_another_holds_it(LeaseState::Present(held_by("other")), 2, Decision::StepDown(StepDown::TakenBy("other".to_owned())))]
    #[case::steps_down_when_the_holder_was_cleared(
        LeaseState::Present(held_by("")),
        2,
        Decision::StepDown(StepDown::Cleared)
    )]
    #[case::never_takes_even_when_the_others_lease_is_over(LeaseState::Present(held_by("other")), 9, Decision::StepDown(StepDown::TakenBy("other".to_owned())))]
    fn a_leader(#[case] state: LeaseState, #[case] since_renewal: u64, #[case] expected: Decision) {
        let renewed = Instant::now();
        let observed = Observation { state, since: renewed };
        let role = Role::Leader { renewed };
        assert_eq!(decide(&observed, "me", role, &Times::default(), renewed + secs(since_renewal)), expected);
    }

    #[rstest]
    #[case::the_defaults(15, 10, 2, None)]
    #[case::deadline_as_long_as_the_lease(10, 10, 2, Some("--leader-elect-lease-duration (10s) must be greater"))]
    #[case::retry_too_long(15, 6, 5, Some("--leader-elect-renew-deadline (6s) must be greater than 1.2 times"))]
    #[case::no_retry(15, 10, 0, Some("greater than zero"))]
    fn times_are_checked_as_client_go_checks_them(
        #[case] lease: u64,
        #[case] renew: u64,
        #[case] retry: u64,
        #[case] words: Option<&str>,
    ) {
        let times = Times { lease_duration: secs(lease), renew_deadline: secs(renew), retry_period: secs(retry) };
        match (times.validate(), words) {
            (Ok(()), None) => {}
            (Err(text), Some(words)) => assert!(text.contains(words), "{text}"),
            (outcome, words) => panic!("{outcome:?} but expected {words:?}"),
        }
    }
}
