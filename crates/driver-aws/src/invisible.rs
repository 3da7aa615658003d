//! Remembers client tokens that have made an instance which EC2 does not show yet.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use machine_driver::Instant;

/// The maximum number of client tokens that are remembered.
const MAX_TOKENS: usize = 1000;

/// The client tokens that have made an instance which EC2 does not show, with the time when the driver first noticed it.
#[derive(Default)]
pub struct InvisibleInstances(Mutex<BTreeMap<String, Instant>>);

impl InvisibleInstances {
    /// How long the driver has known that this token has made an invisible instance. Zero for the first call with this token.
    pub fn known_for(&self, token: &str, now: Instant) -> Duration {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() >= MAX_TOKENS && !tokens.contains_key(token) {
            let oldest = tokens.iter().min_by_key(|(_, since)| **since).map(|(token, _)| token.clone());
            oldest.and_then(|oldest| tokens.remove(&oldest));
        }
        now.saturating_duration_since(*tokens.entry(token.to_owned()).or_insert(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_from_its_first_time_on_and_the_oldest_is_forgotten() {
        let (invisible, began) = (InvisibleInstances::default(), Instant::now());
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        assert_eq!(invisible.known_for("a", at(0)), Duration::ZERO);
        assert_eq!(invisible.known_for("a", at(7)), Duration::from_secs(7));
        for number in 0..MAX_TOKENS {
            invisible.known_for(&number.to_string(), at(8));
        }
        assert_eq!(invisible.known_for("a", at(9)), Duration::ZERO);
        assert_eq!(invisible.known_for("999", at(9)), Duration::from_secs(1));
    }
}
