//! Calls to the Kubernetes API with a time limit, and what their failures mean here.

use std::{future::Future, time::Duration};

use kube::runtime::watcher;

/// No call takes longer.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The object is not there, or is another one by now.
    #[error("not found")]
    NotFound,
    /// This process may not do that.
    #[error("forbidden: {0}")]
    Forbidden(String),
    /// Somebody else was faster.
    #[error("conflict")]
    Conflict,
    /// No answer in time.
    #[error("no answer within {}s", CALL_TIMEOUT.as_secs())]
    TimedOut,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl From<&kube::Error> for CallError {
    fn from(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => match status.code {
                403 => Self::Forbidden(status.message.clone()),
                404 => Self::NotFound,
                409 => Self::Conflict,
                // A patch that names the UID of an object that was made anew meanwhile.
                422 if status.message.contains("metadata.uid") => Self::NotFound,
                _ => Self::Other(status.message.clone()),
            },
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<&watcher::Error> for CallError {
    fn from(error: &watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error.into(),
            other => Self::Other(other.to_string()),
        }
    }
}

/// Waits for a call, but not for ever.
pub async fn call<T>(future: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    match tokio::time::timeout(CALL_TIMEOUT, future).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(CallError::from(&error)),
        Err(_) => Err(CallError::TimedOut),
    }
}

/// The wait before attempt number `failures` + 1: doubling from half a second to half a minute, of which between half and
/// the whole is waited. `random` decides how much.
pub fn back_off(failures: u32, random: [u8; 16]) -> Duration {
    let whole = Duration::from_millis(500).saturating_mul(1 << failures.min(6)).min(CALL_TIMEOUT);
    whole / 2 + fraction_of(whole / 2, random)
}

/// A random part of a duration.
pub fn fraction_of(whole: Duration, random: [u8; 16]) -> Duration {
    whole.mul_f64(f64::from(random[1]) / 256.0)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::soon_at_first(0, 250, 500)]
    #[case::doubling(3, 2_000, 4_000)]
    #[case::up_to_half_a_minute(40, 15_000, 30_000)]
    fn attempts_back_off(#[case] failures: u32, #[case] least: u64, #[case] most: u64) {
        assert_eq!(back_off(failures, [0; 16]), Duration::from_millis(least));
        let longest = back_off(failures, [255; 16]);
        assert!(longest > Duration::from_millis(least) && longest < Duration::from_millis(most), "{longest:?}");
    }
}
