//! Client tokens that have made an instance which EC2 does not show yet.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use machine_driver::Instant;

/// So many tokens are remembered.
const MOST: usize = 1000;

/// Since when tokens are known to have made an instance that is not shown.
#[derive(Default)]
pub struct Unseen(Mutex<BTreeMap<String, Instant>>);

impl Unseen {
    /// How long it has been known that this token has made an instance which is not shown; nothing at the first time.
    pub fn known_for(&self, token: &str, now: Instant) -> Duration {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() >= MOST && !tokens.contains_key(token) {
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
        let (unseen, began) = (Unseen::default(), Instant::now());
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        assert_eq!(unseen.known_for("a", at(0)), Duration::ZERO);
        assert_eq!(unseen.known_for("a", at(7)), Duration::from_secs(7));
        for number in 0..MOST {
            unseen.known_for(&number.to_string(), at(8));
        }
        assert_eq!(unseen.known_for("a", at(9)), Duration::ZERO);
        assert_eq!(unseen.known_for("999", at(9)), Duration::from_secs(1));
    }
}
