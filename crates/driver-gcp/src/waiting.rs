//! Waits for the end of an operation.

use std::time::Duration;

use cloud_client::Failure;

use crate::{compute::Session, resources::Operation, zone::Zone};

/// How long a call waits for an operation. The next call goes on waiting.
const LONGEST: Duration = Duration::from_secs(300);
/// A call ends this long before its deadline, so that its answer is not lost.
const MARGIN: Duration = Duration::from_secs(5);
/// The pause after an answer that came before the end of the operation.
const PAUSE: Duration = Duration::from_secs(1);

/// The result of waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The operation has ended, successfully or not.
    Done(Operation),
    /// GCE does not know the operation any more.
    Forgotten,
    /// The operation has not ended in time.
    StillRuns,
}

/// How long a call may wait that ends after this time.
fn limit(left: Duration) -> Duration {
    left.saturating_sub(MARGIN).min(LONGEST)
}

/// Waits until an operation has ended, at most [`LONGEST`] and until shortly before the deadline of the call.
///
/// # Errors
/// If GCE can't be asked.
pub async fn until_done(gce: &Session<'_>, zone: &Zone, operation: Operation) -> Result<Waited, Failure> {
    if operation.is_done() {
        return Ok(Waited::Done(operation));
    }
    let ended = ended(gce, zone, &operation.name);
    tokio::time::timeout(limit(gce.cx.left()), ended).await.unwrap_or(Ok(Waited::StillRuns))
}

async fn ended(gce: &Session<'_>, zone: &Zone, name: &str) -> Result<Waited, Failure> {
    loop {
        match gce.wait(zone, name).await? {
            None => return Ok(Waited::Forgotten),
            Some(operation) if operation.is_done() => return Ok(Waited::Done(operation)),
            Some(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::g06_a_creation_of_twenty_minutes(1200, 300)]
    #[case::a_call_that_ends_soon(60, 55)]
    #[case::a_call_that_ends_now(3, 0)]
    fn a_call_waits_for_an_operation_and_not_longer_than_its_deadline(#[case] left: u64, #[case] expected: u64) {
        assert_eq!(limit(Duration::from_secs(left)), Duration::from_secs(expected));
    }
}
