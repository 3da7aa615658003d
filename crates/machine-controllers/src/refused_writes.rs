//! Events about refused writes. Without them an object would stand still and no user would know why.
//!
//! Source: none; the original only logs. Pure.

use jiff::Timestamp;

use super::news::News;
use controller_runtime::error::ApiError;

/// The refused writes of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedWrites {
    /// Whether the last answer to a write was a refusal.
    is_last_refused: bool,
    news: News,
}

impl RefusedWrites {
    /// Records that a pass was carried out, or that it ended with this error. Returns the text of an event if one is
    /// due. An event is due from the second refusal in a row, if its text is new. The first refusal may only mean that
    /// another writer was faster. `steady` is the steady clock's time.
    pub fn after_pass(&mut self, error: Option<&ApiError>, steady: Timestamp) -> Option<String> {
        let Some(error) = error else {
            *self = Self::default();
            return None;
        };
        if !error.is_refusal() {
            return None;
        }
        if !std::mem::replace(&mut self.is_last_refused, true) {
            return None;
        }
        let text = format!("the API server refuses to write what is to be done, tried again until it agrees: {error}");
        self.news.is_news(REASON, &text, steady).then_some(text)
    }
}

/// All refusals of an object are reported under one reason.
const REASON: &str = "WriteRefused";

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> ApiError {
        ApiError::Forbidden(text.to_owned())
    }

    #[test]
    fn the_second_refusal_in_a_row_is_reported_once() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let mut refused = RefusedWrites::default();
        let told =
            |refused: &mut RefusedWrites, error: Option<ApiError>| refused.after_pass(error.as_ref(), now).is_some();
        assert!(!told(&mut refused, Some(refusal("a policy"))), "the first");
        assert!(!told(&mut refused, Some(ApiError::Unavailable("away".to_owned()))), "no refusal");
        assert!(told(&mut refused, Some(refusal("a policy"))), "the second");
        assert!(!told(&mut refused, Some(refusal("a policy"))), "the third");
        assert!(told(&mut refused, Some(refusal("a webhook"))), "another one");
        assert!(!told(&mut refused, None), "it agrees");
        assert!(!told(&mut refused, Some(refusal("a webhook"))), "a new beginning");
    }
}
