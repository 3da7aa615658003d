//! Waits for a condition instead of a time.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep};

/// Checks every 200 ms until the result is `Ok`. After the timeout it panics with `what` and the last error.
pub async fn wait_until<T, F, Fut>(what: &str, timeout: Duration, mut check: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let deadline = Instant::now() + timeout;
    loop {
        match check().await {
            Ok(value) => return value,
            Err(last) if Instant::now() >= deadline => {
                panic!("waited {timeout:?} in vain for: {what}\nlast seen: {last}")
            }
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

/// An error with this text unless the condition holds, for checks of [`wait_until`].
pub fn expect(holds: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(text()) }
}
