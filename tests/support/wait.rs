//! Waiting for a condition instead of for a time.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep};

/// Asks every 200 ms until the answer is `Ok`. After the timeout it panics with `what` and with what was seen last.
pub async fn wait_until<T, F, Fut>(what: &str, timeout: Duration, mut check: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let deadline = Instant::now() + timeout;
    loop {
        match check().await {
            Ok(value) => return value,
            Err(seen) if Instant::now() >= deadline => {
                panic!("waited {timeout:?} in vain for: {what}\nlast seen: {seen}")
            }
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Fails with what was seen unless the condition holds; for checks of [`wait_until`].
pub fn expect(holds: bool, seen: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(seen()) }
}
