//! Whether somebody renews a Lease. The answer comes from watching the Lease on this process's own monotonic clock: its
//! `renewTime` was written by another clock, and is only compared with itself.

use std::time::Duration;

use kube::{Api, api::DynamicObject};
use serde_json::Value;
use tokio::time::Instant;

use super::cluster_objects::read;
use controller_runtime::error::ApiError;

/// Pause between two looks at a Lease.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A Lease is watched for so much longer than it lasts: a renewal may be on its way.
const MARGIN: Duration = Duration::from_secs(2);
/// A Lease is watched for this time at most, however long it says that it lasts.
const WATCH_AT_MOST: Duration = Duration::from_secs(60);
/// What a Lease lasts that does not say so.
const USUAL_DURATION: Duration = Duration::from_secs(15);

/// A Lease that somebody holds, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Who holds it.
    pub holder: String,
    /// When it was renewed, by the holder's clock.
    renewed: Value,
    /// How often it changed hands.
    transitions: Value,
    /// How long it lasts after a renewal.
    lasts: Duration,
}

impl Held {
    /// Reads the specification of a Lease; nothing when nobody holds it.
    pub fn read(spec: &Value) -> Option<Self> {
        let holder = spec["holderIdentity"].as_str().filter(|holder| !holder.is_empty())?;
        let lasts = spec["leaseDurationSeconds"].as_u64().filter(|seconds| *seconds > 0);
        Some(Self {
            holder: holder.to_owned(),
            renewed: spec["renewTime"].clone(),
            transitions: spec["leaseTransitions"].clone(),
            lasts: lasts.map_or(USUAL_DURATION, Duration::from_secs),
        })
    }
}

/// What watching a Lease has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pulse {
    /// Nobody holds it.
    Nobody,
    /// It changed while it was watched.
    Beats {
        /// Who holds it now.
        holder: String,
    },
    /// It is held, and did not change for longer than it lasts.
    Silent {
        /// What it said all the time.
        held: Held,
        /// How long it was watched.
        watched: Duration,
    },
    /// It is held, and did not change; but it lasts longer than it was watched.
    Unproven {
        /// What it said all the time.
        held: Held,
        /// How long it was watched.
        watched: Duration,
    },
}

/// What a first and a later look at a Lease show together; nothing while it must be watched further.
pub fn pulse(first: Option<&Held>, latest: Option<&Held>, watched: Duration) -> Option<Pulse> {
    let Some(held) = latest else { return Some(Pulse::Nobody) };
    if first != Some(held) {
        return Some(Pulse::Beats { holder: held.holder.clone() });
    }
    if watched > held.lasts + MARGIN {
        return Some(Pulse::Silent { held: held.clone(), watched });
    }
    (watched >= WATCH_AT_MOST).then(|| Pulse::Unproven { held: held.clone(), watched })
}

/// The Lease's holder, if it has one.
///
/// # Errors
/// When the API server does not say.
pub async fn look(leases: &Api<DynamicObject>, name: &str) -> Result<Option<Held>, ApiError> {
    Ok(read(leases, name).await?.and_then(|lease| Held::read(&lease.data["spec"])))
}

/// Watches a Lease until it is known whether somebody renews it: a few seconds if so, else a little longer than it lasts.
///
/// # Errors
/// When the API server does not say.
pub async fn watch(leases: &Api<DynamicObject>, name: &str) -> Result<Pulse, ApiError> {
    let began = Instant::now();
    let first = look(leases, name).await?;
    let mut latest = first.clone();
    loop {
        if let Some(pulse) = pulse(first.as_ref(), latest.as_ref(), began.elapsed()) {
            return Ok(pulse);
        }
        tokio::time::sleep(LOOK_EVERY).await;
        latest = look(leases, name).await?;
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn held(holder: &str, renewed: &str, lasts: u64) -> Option<Held> {
        Held::read(&json!({"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": lasts}))
    }

    const LONG_AGO: &str = "2019-01-01T00:00:00.000000Z";
    const LATER: &str = "2019-01-01T00:00:02.000000Z";

    /// No row has a "now": neither the reader's clock nor the holder's decides anything.
    #[rstest]
    #[case::nobody_holds_it(None, None, 0, Some("nobody"))]
    #[case::it_was_released(held("", LONG_AGO, 15), held("", LONG_AGO, 15), 0, Some("nobody"))]
    #[case::one_look_proves_nothing(held("a", LONG_AGO, 15), held("a", LONG_AGO, 15), 0, None)]
    #[case::its_duration_is_not_over(held("a", LONG_AGO, 15), held("a", LONG_AGO, 15), 16, None)]
    #[case::its_duration_is_over(held("a", LONG_AGO, 15), held("a", LONG_AGO, 15), 18, Some("silent"))]
    #[case::renewed_by_a_clock_that_is_years_behind(held("a", LONG_AGO, 15), held("a", LATER, 15), 2, Some("beats"))]
    #[case::renewed_by_a_clock_that_went_back(held("a", LATER, 15), held("a", LONG_AGO, 15), 2, Some("beats"))]
    #[case::taken_by_another(held("a", LONG_AGO, 15), held("b", LONG_AGO, 15), 2, Some("beats"))]
    #[case::taken_while_watched(None, held("b", LONG_AGO, 15), 2, Some("beats"))]
    #[case::given_back_while_watched(held("a", LONG_AGO, 15), None, 2, Some("nobody"))]
    #[case::it_lasts_too_long_to_be_watched(held("a", LONG_AGO, 3600), held("a", LONG_AGO, 3600), 60, Some("unproven"))]
    #[case::without_a_duration_it_has_the_usual_one(held("a", LONG_AGO, 0), held("a", LONG_AGO, 0), 18, Some("silent"))]
    fn a_lease_lives_while_it_changes(
        #[case] first: Option<Held>,
        #[case] latest: Option<Held>,
        #[case] seconds: u64,
        #[case] expected: Option<&str>,
    ) {
        let found = pulse(first.as_ref(), latest.as_ref(), Duration::from_secs(seconds)).map(|pulse| match pulse {
            Pulse::Nobody => "nobody",
            Pulse::Beats { .. } => "beats",
            Pulse::Silent { .. } => "silent",
            Pulse::Unproven { .. } => "unproven",
        });
        assert_eq!(found, expected);
    }
}
