//! Remembers what the driver has done for as long as EC2 may not show it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use machine_driver::Instant;

use crate::lookup::VISIBILITY_TIMEOUT;

/// The most values that are remembered.
const MAX_VALUES: usize = 10_000;

/// Values by the id of the resource that they are about, until EC2 shows all changes of that time.
pub struct Recent<T>(Mutex<BTreeMap<String, (Instant, T)>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Recent<T> {
    fn values(&self) -> MutexGuard<'_, BTreeMap<String, (Instant, T)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a value, in place of an earlier one for the same id.
    pub fn put(&self, id: &str, value: T, now: Instant) {
        let mut values = self.values();
        if values.len() >= MAX_VALUES {
            values.retain(|_, (since, _)| is_recent(*since, now));
        }
        if values.len() >= MAX_VALUES && !values.contains_key(id) {
            let oldest = values.iter().min_by_key(|(_, (since, _))| *since).map(|(id, _)| id.clone());
            oldest.and_then(|oldest| values.remove(&oldest));
        }
        values.insert(id.to_owned(), (now, value));
    }

    /// The value for this id. `None` when EC2 shows the change by now.
    pub fn get(&self, id: &str, now: Instant) -> Option<T> {
        self.values().get(id).filter(|(since, _)| is_recent(*since, now)).map(|(_, value)| value.clone())
    }

    /// Forgets the value for this id.
    pub fn forget(&self, id: &str) {
        self.values().remove(id);
    }
}

fn is_recent(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < VISIBILITY_TIMEOUT
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_value_is_remembered_until_ec2_shows_the_change() {
        let (recent, began) = (Recent::default(), Instant::now());
        recent.put("a", 1, began);
        assert_eq!(recent.get("a", began + Duration::from_secs(299)), Some(1));
        assert_eq!(recent.get("a", began + VISIBILITY_TIMEOUT), None);
        assert_eq!(recent.get("b", began), None);
        recent.put("a", 2, began + Duration::from_secs(299));
        assert_eq!(recent.get("a", began + VISIBILITY_TIMEOUT), Some(2));
        recent.forget("a");
        assert_eq!(recent.get("a", began + VISIBILITY_TIMEOUT), None);
    }

    #[test]
    fn the_oldest_value_is_forgotten_when_there_are_too_many() {
        let (recent, began) = (Recent::default(), Instant::now());
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        recent.put("first", 0, at(0));
        for number in 1..=MAX_VALUES {
            recent.put(&number.to_string(), number, at(1));
        }
        assert_eq!((recent.get("first", at(2)), recent.get("1", at(2))), (None, Some(1)));
        recent.put("later", 0, at(400));
        assert_eq!(recent.values().len(), 1, "values that EC2 shows by now are forgotten first");
    }
}
