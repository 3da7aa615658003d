//! Why a review could not be read: the whole reason for its caller, and for the log what holds nothing of an object.

use serde_json::error::Category;

/// Longest part of a foreign text in a message, in characters.
const FOREIGN_MAX: usize = 80;
/// Longest reason, in characters.
const REASON_MAX: usize = 400;

/// Why a review is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For whoever configured the webhook; may quote what was sent.
    pub reason: String,
    /// For logs.
    pub for_logs: String,
}

impl Refusal {
    /// A reason that quotes nothing but names of kinds and versions.
    pub fn plain(reason: impl Into<String>) -> Self {
        let reason = cut(&reason.into());
        Self { for_logs: reason.clone(), reason }
    }

    /// What a reader of JSON objects to. Where the text is JSON and a value is of the wrong type, it quotes that value.
    pub fn of_json(what: &str, error: &serde_json::Error) -> Self {
        let reason = cut(&format!("{what}: {error}"));
        let for_logs = match error.classify() {
            Category::Data => {
                let (line, column) = (error.line(), error.column());
                format!("{what}: it holds something unexpected at line {line} column {column}")
            }
            Category::Io | Category::Syntax | Category::Eof => reason.clone(),
        };
        Self { reason, for_logs }
    }
}

/// A foreign text for a message: quoted, and cut to what a person can read.
pub fn printable(text: &str) -> String {
    format!("{:?}", text.chars().take(FOREIGN_MAX).collect::<String>())
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(REASON_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_the_wrong_type_is_quoted_to_its_sender_only() {
        let error = serde_json::from_str::<u8>("\"my secret\"").unwrap_err();
        let refusal = Refusal::of_json("no review", &error);
        assert!(refusal.reason.starts_with("no review: invalid type: string \"my secret\""), "{refusal:?}");
        assert_eq!(refusal.for_logs, "no review: it holds something unexpected at line 1 column 11");
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let reason = Refusal::plain("ä".repeat(10_000)).reason;
        assert_eq!((reason.chars().count(), reason.ends_with('…')), (REASON_MAX + 1, true));
    }
}
