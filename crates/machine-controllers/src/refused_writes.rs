//! Events about writes that the API server refuses for a set or a deployment, which would stand still without a word. Machines tell
//! of refusals on their own ([`super::machine`]).
//!
//! Source: none; the original only logs. Pure.

use super::machine::status_change::masked;
use controller_runtime::error::ApiError;

/// What is remembered of the refusals that an object has met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedWrites {
    /// The last one, without what changes from time to time.
    last: Option<String>,
    told: Told,
}

/// Whether an event tells of the last refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Told {
    #[default]
    No,
    Yes,
}

impl RefusedWrites {
    /// A pass was carried out, or ended with this error. The text of an event, if one is due: when a refusal is met for the second time
    /// in a row, and then once for as long as it stays the same. The first may be that of a write which another writer overtook.
    pub fn after_pass(&mut self, error: Option<&ApiError>) -> Option<String> {
        let Some(error) = error else {
            *self = Self::default();
            return None;
        };
        if !error.is_refusal() {
            return None;
        }
        let said = error.to_string();
        let text = masked(&said);
        if self.last.as_ref() != Some(&text) {
            *self = Self { last: Some(text), told: Told::No };
            return None;
        }
        let is_due = self.told == Told::No;
        self.told = Told::Yes;
        is_due
            .then(|| format!("the API server refuses to write what is to be done, tried again until it agrees: {said}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> ApiError {
        ApiError::Forbidden(text.to_owned())
    }

    #[test]
    fn the_second_of_equal_refusals_is_told_once() {
        let mut refused = RefusedWrites::default();
        let told = |refused: &mut RefusedWrites, error: Option<ApiError>| refused.after_pass(error.as_ref()).is_some();
        assert!(!told(&mut refused, Some(refusal("a policy at 12:00:01"))), "the first");
        assert!(!told(&mut refused, Some(ApiError::Unavailable("away".to_owned()))), "no refusal");
        assert!(told(&mut refused, Some(refusal("a policy at 12:00:02"))), "the second");
        assert!(!told(&mut refused, Some(refusal("a policy at 12:00:03"))), "the third");
        assert!(!told(&mut refused, Some(refusal("a webhook"))), "another one, for the first time");
        assert!(told(&mut refused, Some(refusal("a webhook"))), "for the second time");
        assert!(!told(&mut refused, None), "it agrees");
        assert!(!told(&mut refused, Some(refusal("a webhook"))), "a new beginning");
    }
}
