//! Limits the log lines about events that callers can cause at any rate, so that a caller can't fill the log. At most one
//! line per second is written.

use std::{sync::Mutex, time::Duration};

use controller_runtime::lock;
use tokio::time::Instant;

/// The shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Permits a line from time to time, and counts the lines that it holds back. Metrics count all events.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    held_back: u64,
}

impl LogLimit {
    /// The number of lines that were held back before this one. `None` if this line must not be written.
    pub fn permit(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.0);
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            state.held_back += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p04_one_line_per_second_counts_the_others() {
        let (limit, began) = (LogLimit::default(), Instant::now());
        let at = |millis: u64| limit.permit(began + Duration::from_millis(millis));
        assert_eq!(at(0), Some(0));
        assert_eq!([at(1), at(500), at(999)], [None; 3]);
        assert_eq!(at(1_000), Some(3));
        assert_eq!(at(5_000), Some(0));
    }
}
