//! Events about writes that the API server refuses for an object, which would stand still without a word.
//!
//! Source: none; the original only logs. Pure.

use jiff::Timestamp;

use super::news::News;
use controller_runtime::error::ApiError;

/// What is remembered of the refusals that an object has met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedWrites {
    last: LastWrite,
    news: News,
}

/// What became of the last write of which an answer is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastWrite {
    #[default]
    Done,
    Refused,
}

impl RefusedWrites {
    /// A pass was carried out, or ended with this error. The text of an event, if one is due in the steady time: from the second
    /// refusal in a row on, where it is news. The first may be that of a write which another writer overtook.
    pub fn after_pass(&mut self, error: Option<&ApiError>, steady: Timestamp) -> Option<String> {
        let Some(error) = error else {
            *self = Self::default();
            return None;
        };
        if !error.is_refusal() {
            return None;
        }
        if std::mem::replace(&mut self.last, LastWrite::Refused) == LastWrite::Done {
            return None;
        }
        let text = format!("the API server refuses to write what is to be done, tried again until it agrees: {error}");
        self.news.is_news(REASON, &text, steady).then_some(text)
    }
}

/// All refusals of an object are of one kind.
const REASON: &str = "WriteRefused";

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> ApiError {
        ApiError::Forbidden(text.to_owned())
    }

    #[test]
    fn the_second_refusal_in_a_row_is_told_once() {
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
