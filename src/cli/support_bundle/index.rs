//! The index of a bundle: its files with the times that they cover, and what is missing.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// Something that a bundle lacks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Gap {
    /// The file that is missing, or the part of it.
    pub what: String,
    /// Why.
    pub why: String,
}

/// A file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Its path.
    pub path: String,
    /// Its size in bytes.
    pub bytes: usize,
    /// The time of its first entry, or of the read.
    pub from: Timestamp,
    /// The time of its last entry, or of the read.
    pub until: Timestamp,
}

/// The content of `index.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// When the bundle was made, by the clock of this computer.
    pub created: Timestamp,
    /// The version of the program that made it.
    pub version: &'static str,
    /// The namespace of the machine objects.
    pub namespace: String,
    /// Whether names were replaced.
    pub pseudonyms: bool,
    /// Whether addresses were kept.
    pub addresses: bool,
    /// The files.
    pub files: Vec<Listed>,
    /// What is missing.
    pub gaps: Vec<Gap>,
}

/// The times of the first and the last entry of a log whose lines begin with their time.
pub fn span_of_log(text: &str) -> Option<(Timestamp, Timestamp)> {
    let time = |line: &str| line.split_whitespace().next()?.parse::<Timestamp>().ok();
    Some((text.lines().find_map(time)?, text.lines().rev().find_map(time)?))
}

/// The times of the first and the last event among objects.
pub fn span_of_events(objects: &[Value]) -> Option<(Timestamp, Timestamp)> {
    let events = objects.iter().filter(|object| object["kind"] == "Event");
    let times = events.flat_map(|event| {
        let time = |field: &str| event[field].as_str()?.parse::<Timestamp>().ok();
        ["firstTimestamp", "lastTimestamp", "eventTime"].into_iter().filter_map(time).collect::<Vec<_>>()
    });
    let times: Vec<Timestamp> = times.collect();
    Some((*times.iter().min()?, *times.iter().max()?))
}

/// A text that is at most `longest` bytes: the end of it, because the end of a log matters most. The second value is what was cut off.
pub fn end_of(text: &str, longest: usize) -> (&str, usize) {
    let Some(mut begin) = text.len().checked_sub(longest).filter(|begin| *begin > 0) else { return (text, 0) };
    while !text.is_char_boundary(begin) {
        begin += 1;
    }
    let begin = text[begin..].find('\n').map_or(begin, |line| begin + line + 1);
    (&text[begin..], begin)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn pk_107_a_log_covers_the_time_from_its_first_to_its_last_line() {
        let log = "2026-01-01T00:00:00.5Z a\n  more\n2026-01-01T00:00:02Z b\nwithout a time\n";
        assert_eq!(span_of_log(log), Some((at("2026-01-01T00:00:00.5Z"), at("2026-01-01T00:00:02Z"))));
        assert_eq!(span_of_log("no times\n"), None);
    }

    #[test]
    fn pk_107_events_cover_the_time_from_the_first_to_the_last() {
        let event = |first: &str, last: &str| json!({"kind": "Event", "firstTimestamp": first, "lastTimestamp": last});
        let events = [
            event("2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"),
            event("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ];
        assert_eq!(span_of_events(&events), Some((at("2026-01-01T00:00:00Z"), at("2026-01-03T00:00:00Z"))));
        assert_eq!(span_of_events(&[json!({"kind": "Node"})]), None);
    }

    #[rstest]
    #[case::short("a\nb\n", 10, "a\nb\n", 0)]
    #[case::whole_lines_stay("aaa\nbbb\nccc\n", 7, "ccc\n", 8)]
    #[case::between_characters("äöü", 3, "ü", 4)]
    fn a_long_text_loses_its_beginning(
        #[case] text: &str,
        #[case] longest: usize,
        #[case] kept: &str,
        #[case] cut: usize,
    ) {
        assert_eq!(end_of(text, longest), (kept, cut));
    }
}
