//! Finds out whether a Lease is renewed, by watching it for a time measured on this process's monotonic clock. Another clock wrote
//! `renewTime`, so that it is only compared with its earlier value.

use std::time::Duration;

use kube::Client;
use serde_json::Value;
use tokio::time::Instant;

use super::cluster_objects::LEASES;
use controller_runtime::error::ApiError;

/// Pause between two reads of a Lease.
pub const READ_PERIOD: Duration = Duration::from_secs(1);
/// How much longer than its duration a Lease is watched, since a renewal may be under way.
const MARGIN: Duration = Duration::from_secs(2);
/// The longest time for which a Lease is watched, whatever its duration.
const MAX_WATCH: Duration = Duration::from_secs(60);
/// The duration of a Lease that gives none.
const DEFAULT_DURATION: Duration = Duration::from_secs(15);

/// A Lease with a holder, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Name of the holder.
    pub holder: String,
    /// Time of the last renewal, by the holder's clock.
    renewed: Value,
    /// Number of changes of the holder.
    transitions: Value,
    /// Duration after a renewal.
    duration: Duration,
}

impl Held {
    /// Reads the specification of a Lease. `None` when it has no holder.
    pub fn read(spec: &Value) -> Option<Self> {
        let holder = spec["holderIdentity"].as_str().filter(|holder| !holder.is_empty())?;
        let duration = spec["leaseDurationSeconds"].as_u64().filter(|seconds| *seconds > 0);
        Some(Self {
            holder: holder.to_owned(),
            renewed: spec["renewTime"].clone(),
            transitions: spec["leaseTransitions"].clone(),
            duration: duration.map_or(DEFAULT_DURATION, Duration::from_secs),
        })
    }
}

/// The result of watching a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// The Lease has no holder.
    Free,
    /// The Lease changed while it was watched.
    Renewed {
        /// Name of the holder now.
        holder: String,
    },
    /// The Lease has a holder, and did not change for longer than its duration.
    NotRenewed {
        /// Its content during the whole watch.
        held: Held,
        /// How long the watch was.
        watched: Duration,
    },
    /// The Lease has a holder and did not change, but its duration is longer than the watch.
    Unproven {
        /// Its content during the whole watch.
        held: Held,
        /// How long the watch was.
        watched: Duration,
    },
}

/// The result of two reads of a Lease. `None` while the watch must go on.
pub fn state(first: Option<&Held>, latest: Option<&Held>, watched: Duration) -> Option<LeaseState> {
    let Some(held) = latest else { return Some(LeaseState::Free) };
    if first != Some(held) {
        return Some(LeaseState::Renewed { holder: held.holder.clone() });
    }
    if watched > held.duration + MARGIN {
        return Some(LeaseState::NotRenewed { held: held.clone(), watched });
    }
    (watched >= MAX_WATCH).then(|| LeaseState::Unproven { held: held.clone(), watched })
}

/// Reads the Lease, if it has a holder.
///
/// # Errors
/// When the Lease can't be read.
pub async fn read_held(client: &Client, namespace: &str, name: &str) -> Result<Option<Held>, ApiError> {
    Ok(LEASES.read(client, namespace, name).await?.and_then(|lease| Held::read(&lease.data["spec"])))
}

/// Watches a Lease until it is known whether it is renewed. If it is renewed, this takes a few seconds. Otherwise it takes a little
/// longer than the duration of the Lease.
///
/// # Errors
/// When the Lease can't be read.
pub async fn watch(client: &Client, namespace: &str, name: &str) -> Result<LeaseState, ApiError> {
    let began = Instant::now();
    let first = read_held(client, namespace, name).await?;
    let mut latest = first.clone();
    loop {
        if let Some(state) = state(first.as_ref(), latest.as_ref(), began.elapsed()) {
            return Ok(state);
        }
        tokio::time::sleep(READ_PERIOD).await;
        latest = read_held(client, namespace, name).await?;
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn held(holder: &str, renewed: &str, duration: u64) -> Option<Held> {
        Held::read(&json!({"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": duration}))
    }

    const LONG_AGO: &str = "2019-01-01T00:00:00.000000Z";
    const LATER: &str = "2019-01-01T00:00:02.000000Z";

    /// No case has a "now", because neither the reader's clock nor the holder's clock decides anything.
    #[rstest]
    #[case::no_holder(None, None, 0, Some("free"))]
    #[case::it_was_released(held("", LONG_AGO, 15), held("", LONG_AGO, 15), 0, Some("free"))]
    #[case::one_read_proves_nothing(held("a", LONG_AGO, 15), held("a", LONG_AGO, 15), 0, None)]
    #[case::its_duration_is_not_over(held("a", LONG_AGO, 15), held("a", LONG_AGO, 15), 16, None)]
    #[case::its_duration_is_over(held("a", LONG_AGO, 15), held("a", LONG_AGO, 15), 18, Some("not renewed"))]
    #[case::renewed_by_a_clock_that_is_years_behind(held("a", LONG_AGO, 15), held("a", LATER, 15), 2, Some("renewed"))]
    #[case::renewed_by_a_clock_that_went_back(held("a", LATER, 15), held("a", LONG_AGO, 15), 2, Some("renewed"))]
    #[case::acquired_by_another(held("a", LONG_AGO, 15), held("b", LONG_AGO, 15), 2, Some("renewed"))]
    #[case::acquired_while_watched(None, held("b", LONG_AGO, 15), 2, Some("renewed"))]
    #[case::released_while_watched(held("a", LONG_AGO, 15), None, 2, Some("free"))]
    #[case::it_lasts_too_long_to_be_watched(held("a", LONG_AGO, 3600), held("a", LONG_AGO, 3600), 60, Some("unproven"))]
    #[case::without_a_duration_it_has_the_default(
        held("a", LONG_AGO, 0),
        held("a", LONG_AGO, 0),
        18,
        Some("not renewed")
    )]
    fn a_lease_is_renewed_while_it_changes(
        #[case] first: Option<Held>,
        #[case] latest: Option<Held>,
        #[case] seconds: u64,
        #[case] expected: Option<&str>,
    ) {
        let found = state(first.as_ref(), latest.as_ref(), Duration::from_secs(seconds)).map(|state| match state {
            LeaseState::Free => "free",
            LeaseState::Renewed { .. } => "renewed",
            LeaseState::NotRenewed { .. } => "not renewed",
            LeaseState::Unproven { .. } => "unproven",
        });
        assert_eq!(found, expected);
    }
}
