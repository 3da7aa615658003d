//! Decides which event texts are new and worth an event.
//!
//! The same text is reported once. Another text under the same reason is reported at once, but only a few times per
//! period: a provider or an API server that puts a time or an id into each answer would otherwise cause an event for
//! every attempt. Pure. Source: none; the original reports each failure each time.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

/// At most this number of texts per reason are reported within [`PERIOD`].
const TEXTS: usize = 3;
/// The period in which texts are counted.
const PERIOD: Duration = Duration::from_secs(30 * 60);

/// The texts that were reported about an object, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News(BTreeMap<&'static str, Reported>);

/// The texts that were reported under one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reported {
    text: String,
    /// When texts were reported, the latest last; at most [`TEXTS`].
    at: Vec<Timestamp>,
}

impl News {
    /// Whether this text is to be reported now. If so, it counts as reported.
    pub fn is_news(&mut self, reason: &'static str, text: &str, now: Timestamp) -> bool {
        let reported = self.0.entry(reason).or_default();
        if !reported.at.is_empty() && reported.text == text {
            return false;
        }
        let is_recent =
            |at: &Timestamp| now.duration_since(*at) < SignedDuration::try_from(PERIOD).unwrap_or(SignedDuration::MAX);
        reported.at.retain(is_recent);
        let is_due = reported.at.len() < TEXTS;
        if is_due {
            text.clone_into(&mut reported.text);
            reported.at.push(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + 60 * minutes).unwrap()
    }

    /// For each text and the minute at which it comes up: whether it is reported.
    fn news(told: &[(i64, &str)]) -> Vec<bool> {
        let mut news = News::default();
        told.iter().map(|(minute, text)| news.is_news("Reason", text, at(*minute))).collect()
    }

    #[test]
    fn the_same_text_is_reported_once() {
        assert_eq!(news(&[(0, "no"), (1, "no"), (500, "no")]), [true, false, false]);
        assert_eq!(news(&[(0, ""), (1, "")]), [true, false], "no words are words, too");
    }

    #[test]
    fn other_texts_are_reported_at_once_but_not_without_limit() {
        let told =
            news(&[(0, "id 1"), (1, "id 2"), (2, "id 3"), (3, "id 4"), (29, "id 5"), (30, "id 6"), (30, "id 7")]);
        assert_eq!(told, [true, true, true, false, false, true, false]);
    }

    #[test]
    fn an_unreported_text_does_not_count_as_reported() {
        assert_eq!(news(&[(0, "a"), (0, "b"), (0, "a"), (1, "c"), (31, "c")]), [true, true, true, false, true]);
    }

    #[test]
    fn reasons_do_not_stand_in_each_others_way() {
        let mut news = News::default();
        assert!(news.is_news("One", "no", at(0)) && news.is_news("Other", "no", at(0)));
    }
}
