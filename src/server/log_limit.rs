//! Keeps strangers from filling the log: of what a caller can bring about as often as it likes, one line a second is told.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// The shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Lets a line through now and then, and counts those it holds back. Metrics count all.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    held_back: u64,
}

impl LogLimit {
    /// Whether a line may be written; if so, how many were held back before it.
    pub fn permit(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn p04_one_line_a_second_tells_of_the_others() {
        let (limit, began) = (LogLimit::default(), Instant::now());
        let at = |millis: u64| limit.permit(began + Duration::from_millis(millis));
        assert_eq!(at(0), Some(0));
        assert_eq!([at(1), at(500), at(999)], [None; 3]);
        assert_eq!(at(1_000), Some(3));
        assert_eq!(at(5_000), Some(0));
    }
}
