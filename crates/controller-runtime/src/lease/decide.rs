//! What to do about a lease, decided from what was seen of it and when it was seen here.
//!
//! Rules: client-go's `leaderelection` (`tryAcquireOrRenew`), with three differences on the safe side. A leader that sees
//! another holder steps down at once, and its renew deadline counts from the sending of the last renewal that succeeded. A
//! candidate does not take the deletion of a lease for the end of its holder: the holder makes it again.
//! The holder's clock is never read: a lease is over when it has not changed for its duration *here*.

use std::time::Duration;

use tokio::time::Instant;

/// The times of a leader election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// How long others wait after the last change before they take a lease (`--leader-elect-lease-duration`).
    pub lease_duration: Duration,
    /// How long a leader goes on without a renewal that succeeded (`--leader-elect-renew-deadline`).
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

/// client-go's spread of the pauses between tries to take a lease.
pub(super) const JITTER_FACTOR: f64 = 1.2;

impl Times {
    /// Checks what client-go checks: lease > renew deadline > retry period × 1.2, and none is zero.
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

/// What a lease says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Who holds it; empty when it was released.
    pub holder: String,
    /// How long it lasts after a change; `None` when the lease does not say.
    pub duration: Option<Duration>,
    /// How often it changed hands.
    pub transitions: i32,
}

/// What is seen where a lease should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Nothing, now and before.
    Absent,
    /// Nothing, where there was this before.
    Deleted(Record),
    /// A lease that says this.
    There(Record),
}

/// A lease as it was last seen here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What it says.
    pub record: Sight,
    /// When it was first seen in this form, by this process's clock; of a deleted one, when it was last seen to change.
    pub since: Instant,
}

/// What this process is with respect to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It would like to hold it.
    Candidate,
    /// It holds it; the last renewal that succeeded was sent at this time.
    Leader {
        /// When that renewal was sent.
        renewed: Instant,
    },
}

/// Why a leader steps down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepDown {
    /// No renewal succeeded in time.
    #[error("it could not be renewed within {0:?}")]
    NotRenewed(Duration),
    /// Somebody else holds it.
    #[error("it is held by {0:?} now")]
    TakenBy(String),
    /// Somebody took our name off it.
    #[error("the holder was taken off it")]
    Cleared,
}

/// What to do about a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Create it; it does not exist.
    Create,
    /// Take it: it is free or over.
    Take {
        /// How often it will have changed hands then.
        transitions: i32,
    },
    /// Renew it: it is ours, perhaps from before a restart.
    Renew,
    /// Leave it: somebody holds it, at least for this long if nothing changes.
    Follow(Duration),
    /// Stop leading.
    StepDown(StepDown),
}

/// Decides about one lease. `me` is this process's identity.
pub fn decide(seen: &Seen, me: &str, role: Role, times: &Times, now: Instant) -> Decision {
    if let Role::Leader { renewed } = role {
        if now >= renewed + times.renew_deadline {
            return Decision::StepDown(StepDown::NotRenewed(times.renew_deadline));
        }
        return match &seen.record {
            Sight::Absent | Sight::Deleted(_) => Decision::Create,
            Sight::There(record) if record.holder == me => Decision::Renew,
            Sight::There(record) if record.holder.is_empty() => Decision::StepDown(StepDown::Cleared),
            Sight::There(record) => Decision::StepDown(StepDown::TakenBy(record.holder.clone())),
        };
    }
    let (record, free) = match &seen.record {
        Sight::Absent => return Decision::Create,
        Sight::Deleted(record) => (record, Decision::Create),
        Sight::There(record) if record.holder == me => return Decision::Renew,
        Sight::There(record) => (record, Decision::Take { transitions: record.transitions.saturating_add(1) }),
    };
    let over = seen.since + record.duration.unwrap_or(times.lease_duration);
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
    #[case::creates_a_missing_lease(Sight::Absent, 0, Decision::Create)]
    #[case::waits_for_the_holder_of_a_deleted_lease(Sight::Deleted(held_by("other")), 14, Decision::Follow(secs(1)))]
    #[case::creates_a_deleted_lease_whose_holder_does_not_come_back(
        Sight::Deleted(held_by("other")),
        15,
        Decision::Create
    )]
    #[case::creates_a_deleted_lease_that_was_released(Sight::Deleted(held_by("")), 0, Decision::Create)]
    #[case::creates_its_own_deleted_lease(Sight::Deleted(held_by("me")), 0, Decision::Create)]
    #[case::takes_a_released_lease_at_once(Sight::There(held_by("")), 0, Decision::Take { transitions: 4 })]
    #[case::follows_a_lease_just_seen_however_old_it_says_it_is(
        Sight::There(held_by("other")),
        0,
        Decision::Follow(secs(15))
    )]
    #[case::follows_until_the_very_end(Sight::There(held_by("other")), 14, Decision::Follow(secs(1)))]
    #[case::takes_a_lease_that_did_not_change_for_its_duration(Sight::There(held_by("other")), 15, Decision::Take { transitions: 4 })]
    #[case::assumes_its_own_duration_where_none_is_given(
        Sight::There(without_duration("other")),
        14,
        Decision::Follow(secs(1))
    )]
    #[case::goes_on_with_its_own_lease_after_a_restart(Sight::There(held_by("me")), 0, Decision::Renew)]
    fn a_candidate(#[case] record: Sight, #[case] seen_for: u64, #[case] expected: Decision) {
        let since = Instant::now();
        let seen = Seen { record, since };
        assert_eq!(decide(&seen, "me", Role::Candidate, &Times::default(), since + secs(seen_for)), expected);
    }

    #[rstest]
    #[case::renews_its_lease(Sight::There(held_by("me")), 2, Decision::Renew)]
    #[case::renews_until_the_deadline(Sight::There(held_by("me")), 9, Decision::Renew)]
    #[case::steps_down_at_the_deadline(
        Sight::There(held_by("me")),
        10,
        Decision::StepDown(StepDown::NotRenewed(secs(10)))
    )]
    #[case::creates_a_deleted_lease_again(Sight::Absent, 2, Decision::Create)]
    #[case::steps_down_when_another_holds_it(Sight::There(held_by("other")), 2, Decision::StepDown(StepDown::TakenBy("other".to_owned())))]
    #[case::steps_down_when_the_holder_was_cleared(Sight::There(held_by("")), 2, Decision::StepDown(StepDown::Cleared))]
    #[case::never_takes_even_when_the_others_lease_is_over(Sight::There(held_by("other")), 9, Decision::StepDown(StepDown::TakenBy("other".to_owned())))]
    fn a_leader(#[case] record: Sight, #[case] since_renewal: u64, #[case] expected: Decision) {
        let renewed = Instant::now();
        let seen = Seen { record, since: renewed };
        let role = Role::Leader { renewed };
        assert_eq!(decide(&seen, "me", role, &Times::default(), renewed + secs(since_renewal)), expected);
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
