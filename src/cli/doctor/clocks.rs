//! Checks the clocks of Lease holders against that of the API server. Pure functions.
//!
//! The control loops don't need equal clocks, but certificates, and the times that a person reads, do.

use jiff::Timestamp;

use super::checks::{Finding, Health, Read};
use crate::{cli::lease_watch::LeaseState, observability::threshold::Threshold};

/// Seconds between two renewals of a Lease that gives none.
const DEFAULT_DURATION: i64 = 15;

/// The finding about the clock of a holder that renews its Lease. `now` is the time of the API server's clock.
pub fn clock(read: &Read, state: &LeaseState, now: Timestamp) -> Option<Finding> {
    let (Read::There(lease), LeaseState::Renewed { holder }) = (read, state) else { return None };
    let renewed: Timestamp = lease["spec"]["renewTime"].as_str()?.parse().ok()?;
    let passed = now.as_second() - renewed.as_second();
    let subject = format!("Clock of {holder}");
    // The last renewal may be as old as the Lease lasts.
    let duration = lease["spec"]["leaseDurationSeconds"].as_i64().unwrap_or(DEFAULT_DURATION);
    let tolerated = tolerated_seconds();
    let (seconds, word) = if passed < -tolerated {
        (-passed, "ahead of")
    } else if passed > duration + tolerated {
        (passed, "behind")
    } else {
        let message = format!("agrees with the clock of the API server, within {tolerated} s");
        return Some(Finding::new(subject, Health::Fine, message));
    };
    let message = format!(
        "it is {seconds} s {word} the clock of the API server: certificates can seem invalid, and times in objects are wrong; \
         set the clock of its host"
    );
    Some(Finding::new(subject, Health::Bad, message).mended_by("timedatectl set-ntp true # on the host of this holder"))
}

/// The limit of the alert about clocks, in whole seconds.
fn tolerated_seconds() -> i64 {
    let limit = Threshold::ClockOffset.default_value();
    // A sum of seconds is exact, and the limit is a small whole number.
    (0..3600_i32).find(|seconds| f64::from(*seconds) >= limit).map_or(3600, i64::from)
}

/// The findings without repetitions: one process usually holds both Leases.
pub fn distinct(findings: Vec<Finding>) -> Vec<Finding> {
    let mut distinct: Vec<Finding> = Vec::new();
    for finding in findings {
        let is_known = distinct.iter().any(|known| known.subject == finding.subject && known.health == finding.health);
        if !is_known {
            distinct.push(finding);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn lease(renewed: &str) -> Read {
        Read::There(json!({"spec": {"holderIdentity": "a", "renewTime": renewed, "leaseDurationSeconds": 15}}))
    }

    fn renewed() -> LeaseState {
        LeaseState::Renewed { holder: "a".to_owned() }
    }

    #[rstest]
    #[case::equal("2026-01-01T00:00:00Z", Health::Fine, "agrees with")]
    #[case::a_renewal_some_time_ago("2025-12-31T23:59:00Z", Health::Fine, "agrees with")]
    #[case::ahead("2026-01-01T00:02:00Z", Health::Bad, "it is 120 s ahead of")]
    #[case::behind("2025-12-31T23:00:00Z", Health::Bad, "it is 3600 s behind")]
    fn pk_105_clocks_are_compared(#[case] at: &str, #[case] health: Health, #[case] words: &str) {
        let found = clock(&lease(at), &renewed(), "2026-01-01T00:00:00Z".parse().unwrap()).unwrap();
        assert!(found.health == health && found.message.contains(words), "{found:?}");
        assert_eq!(found.command.is_some(), health == Health::Bad);
    }

    #[test]
    fn a_lease_that_is_not_renewed_says_nothing_about_a_clock() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(clock(&lease("2026-01-01T00:00:00Z"), &LeaseState::Free, now), None);
        assert_eq!(clock(&Read::Missing, &renewed(), now), None);
    }

    #[test]
    fn one_holder_of_both_leases_has_one_clock() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let one = clock(&lease("2026-01-01T00:00:00Z"), &renewed(), now).unwrap();
        assert_eq!(distinct(vec![one.clone(), one]).len(), 1);
    }

    #[test]
    fn the_limit_is_that_of_the_alert() {
        assert_eq!(tolerated_seconds(), 60);
    }
}
