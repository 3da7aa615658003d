//! Output for programs: `-o json` and `-o yaml`.

use std::io::Write;

use clap::ValueEnum;
use serde::Serialize;

use super::{Failure, documents};

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// One JSON value, indented.
    Json,
    /// One YAML document.
    Yaml,
}

impl OutputFormat {
    /// Writes a value in this format.
    ///
    /// # Errors
    /// When the value can't be serialised or the stream is closed.
    pub fn write(self, value: &impl Serialize, out: &mut dyn Write) -> Result<(), Failure> {
        let value = serde_json::to_value(value).map_err(Failure::run)?;
        let text = match self {
            Self::Json => format!("{}\n", serde_json::to_string_pretty(&value).map_err(Failure::run)?),
            Self::Yaml => documents::to_yaml([&value]).map_err(Failure::run)?,
        };
        Ok(out.write_all(text.as_bytes())?)
    }
}

/// The text without characters that change what a terminal shows: a message of a provider may contain escape sequences. Line breaks, tabs
/// and the colours of our own marks stay.
pub fn printable(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let color = COLORS.into_iter().find(|color| rest.starts_with(color));
        let taken = color.map_or(letter.len_utf8(), str::len);
        match color {
            Some(color) => plain.push_str(color),
            None if is_hidden(letter) => plain.extend(letter.escape_default()),
            None => plain.push(letter),
        }
        rest = &rest[taken..];
    }
    plain
}

/// The escape sequences of our own marks: red, green, yellow, and their end.
const COLORS: [&str; 4] = ["\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"];

/// Whether a character is a control character, or changes the direction of text.
fn is_hidden(letter: char) -> bool {
    let changes_direction = matches!(letter, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    letter.is_control() && letter != '\n' && letter != '\t' || changes_direction
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("a\tb\n✓ ä", "a\tb\n✓ ä")]
    #[case::our_colors("\x1b[31m✗\x1b[0m m", "\x1b[31m✗\x1b[0m m")]
    #[case::a_cleared_screen("no \x1b[2Jquota", "no \\u{1b}[2Jquota")]
    #[case::a_link("\x1b]8;;http://x\x07here", "\\u{1b}]8;;http://x\\u{7}here")]
    #[case::an_overwritten_line("bad\rgood", "bad\\rgood")]
    #[case::a_sequence_of_eight_bits("\u{9b}2J", "\\u{9b}2J")]
    #[case::another_direction("\u{202e}doog", "\\u{202e}doog")]
    fn texts_of_others_do_not_control_the_terminal(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(printable(text), expected);
    }
}
