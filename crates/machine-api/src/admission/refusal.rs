//! The reason why a review could not be read: the full reason for the caller, and a reason without the content of objects for the log.

use serde_json::error::Category;

/// The longest foreign text in a message, in characters.
const FOREIGN_MAX: usize = 80;
/// The longest reason, in characters.
const REASON_MAX: usize = 400;

/// Why a review is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason for the administrator of the webhook. May quote the request.
    pub reason: String,
    /// The reason for logs.
    pub for_logs: String,
}

impl Refusal {
    /// Makes a refusal whose reason quotes only names of kinds and versions.
    pub fn plain(reason: impl Into<String>) -> Self {
        let reason = cut(&reason.into());
        Self { for_logs: reason.clone(), reason }
    }

    /// Makes a refusal from an error of the JSON parser. If a value has the wrong type, the reason quotes the value, and the text for logs does
    /// not.
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

/// A foreign text for a message: quoted and cut to a readable length.
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
