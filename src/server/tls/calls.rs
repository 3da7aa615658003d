//! The deadline of calls to the Kubernetes API, and the waits between them.

use std::{future::Future, time::Duration};

use controller_runtime::error::ApiError;

/// The deadline of a call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The result of a call within its deadline.
pub async fn call<T>(future: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    match tokio::time::timeout(CALL_TIMEOUT, future).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(ApiError::TimedOut(CALL_TIMEOUT)),
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
