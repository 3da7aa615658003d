//! The output of the plugin's commands: formats, colours and marks.
//!
//! Every command makes one typed answer. Text and JSON are made from the same answer, so that both say the same. Nothing here reads a
//! cluster. Source: spec/packaging §5.3.

use std::io::{IsTerminal, Write};

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::{
    Failure,
    output::{OutputFormat, printable},
};
use kube_values::duration::GoDuration;
use machine_controllers::times::{rfc3339, since};

/// The version of the answers of all commands.
pub const API_VERSION: &str = "cli.machine.sapcloud.io/v1alpha1";

/// Format of the output, with the names of kubectl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text with more details
    Wide,
    /// One JSON value
    Json,
    /// One YAML document
    Yaml,
    /// Names only, as KIND/NAME
    Name,
}

/// When the output has colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Flags of the output.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct OutputArgs {
    /// Format of the output
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// Colours in text; marks say the same without colours
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: ColorWhen,
}

/// What an answer was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The computed views, and stored objects.
    Views,
    /// Stored objects only.
    Stored,
}

impl Source {
    /// The source in the words of the text.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Views => "computed now (views)",
            Self::Stored => "stored objects (the views were not used)",
        }
    }
}

/// How well an object is. Each has a mark and a colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// It is as it should be.
    #[default]
    Well,
    /// It changes, or waits.
    Busy,
    /// It has failed, or does not get on.
    Bad,
}

/// The characters of marks and branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Characters {
    /// `✓ ! ✗` and lines.
    Unicode,
    /// `ok ! x` and ASCII, for terminals without UTF-8.
    Ascii,
}

/// Whether the text has colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Escape sequences for colours.
    Colored,
    /// None.
    Plain,
}

/// How much the text says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// What most readers need.
    Usual,
    /// `-o wide`.
    Wide,
}

/// How text is written.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Colours.
    pub paint: Paint,
    /// Characters.
    pub characters: Characters,
    /// Details.
    pub detail: Detail,
    /// The time that durations are relative to.
    pub now: Timestamp,
}

impl Style {
    /// The style for standard output.
    pub fn of_stdout(args: &OutputArgs, now: Timestamp) -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let is_quiet = variable("NO_COLOR").is_some() || variable("TERM").is_some_and(|terminal| terminal == "dumb");
        let is_colored = match args.color {
            ColorWhen::Always => true,
            ColorWhen::Never => false,
            ColorWhen::Auto => !is_quiet && std::io::stdout().is_terminal(),
        };
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable).unwrap_or_default();
        Self {
            paint: if is_colored { Paint::Colored } else { Paint::Plain },
            characters: characters_of(&locale),
            detail: if args.output == Some(Format::Wide) { Detail::Wide } else { Detail::Usual },
            now,
        }
    }

    /// The mark of an object.
    pub fn mark(&self, health: Health) -> String {
        let text = match (self.characters, health) {
            (Characters::Unicode, Health::Well) => "✓",
            (Characters::Ascii, Health::Well) => "ok",
            (_, Health::Busy) => "!",
            (Characters::Unicode, Health::Bad) => "✗",
            (Characters::Ascii, Health::Bad) => "x",
        };
        self.colored(health, text)
    }

    /// The text in the colour of this health.
    fn colored(&self, health: Health, text: &str) -> String {
        let color = match health {
            Health::Well => 32,
            Health::Busy => 33,
            Health::Bad => 31,
        };
        match self.paint {
            Paint::Colored => format!("\x1b[{color}m{text}\x1b[0m"),
            Paint::Plain => text.to_owned(),
        }
    }

    /// The time, and how far it is from now.
    pub fn moment(&self, time: Timestamp) -> String {
        let distance = if time > self.now {
            format!("in {}", length(time, self.now))
        } else {
            format!("{} ago", length(self.now, time))
        };
        format!("{} ({distance})", rfc3339(time))
    }
}

/// The characters that a locale can show. Without a locale, as in most containers, UTF-8 is usual.
fn characters_of(locale: &str) -> Characters {
    let locale = locale.to_ascii_lowercase();
    if locale.is_empty() || locale.contains("utf-8") || locale.contains("utf8") {
        Characters::Unicode
    } else {
        Characters::Ascii
    }
}

/// The time between two moments in whole seconds.
pub fn length(later: Timestamp, earlier: Timestamp) -> GoDuration {
    GoDuration::from_secs(i64::try_from(since(later, earlier).as_secs()).unwrap_or(i64::MAX))
}

/// The answer of a command.
pub trait Answer: Serialize {
    /// Its kind in JSON.
    const KIND: &'static str;

    /// The answer as text, with a line break at its end.
    fn text(&self, source: Source, style: &Style) -> String;

    /// The names for `-o name`.
    fn names(&self) -> Vec<String>;
}

/// An answer in JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a, A> {
    api_version: &'static str,
    kind: &'static str,
    source: Source,
    #[serde(flatten)]
    answer: &'a A,
}

/// Writes an answer in the requested format.
///
/// # Errors
/// When the stream is closed.
pub fn write<A: Answer>(
    answer: &A,
    source: Source,
    args: &OutputArgs,
    now: Timestamp,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let document = Document { api_version: API_VERSION, kind: A::KIND, source, answer };
    match args.output {
        Some(Format::Json) => OutputFormat::Json.write(&document, out),
        Some(Format::Yaml) => OutputFormat::Yaml.write(&document, out),
        Some(Format::Name) => Ok(answer.names().iter().try_for_each(|name| writeln!(out, "{name}"))?),
        Some(Format::Wide) | None => {
            Ok(write!(out, "{}", printable(&answer.text(source, &Style::of_stdout(args, now))))?)
        }
    }
}

/// The words of a text with one space between them, because a message of a provider may have several lines.
pub fn one_line(text: &str) -> String {
    if text.contains(|c: char| c.is_control()) {
        text.split(|c: char| c.is_whitespace()).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    } else {
        text.to_owned()
    }
}

/// A number with its noun: `1 machine`, `2 machines`.
pub fn counted<N: std::fmt::Display + Copy + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    let end = if number == N::from(1) { "" } else { "s" };
    format!("{number} {noun}{end}")
}

/// The columns of a terminal that a text takes: wide characters of Asian scripts and emoji take two, combining marks none.
pub fn columns(text: &str) -> usize {
    let width = |c: char| match u32::from(c) {
        0x0300..=0x036F | 0x200B..=0x200F | 0x20D0..=0x20FF | 0xFE00..=0xFE0F => 0,
        0x1100..=0x115F
        | 0x2E80..=0xA4CF
        | 0xAC00..=0xD7A3
        | 0xF900..=0xFAFF
        | 0xFE30..=0xFE6F
        | 0xFF00..=0xFF60
        | 0xFFE0..=0xFFE6
        | 0x1_F300..=0x1_F64F
        | 0x1_F900..=0x1_F9FF
        | 0x2_0000..=0x3_FFFD => 2,
        _ => 1,
    };
    text.chars().map(width).sum()
}

/// Columns that are as wide as their widest cell. The last column is not padded, and nothing is cut.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let rows = rows.iter().map(|row| row.iter().map(|cell| one_line(cell)).collect::<Vec<String>>());
    let cells: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let mut widths = vec![0; cells[0].len()];
    for row in &cells {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(columns(cell));
        }
    }
    let mut text = String::new();
    for row in &cells {
        let padded = row.iter().zip(&widths).map(|(cell, width)| {
            let space = width.saturating_sub(columns(cell));
            format!("{cell}{:space$}", "")
        });
        text.push_str(padded.collect::<Vec<_>>().join("   ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
pub mod testing {
    //! A style whose text does not depend on the terminal.

    use super::*;

    /// Text without colours at this time.
    pub fn plain(now: Timestamp) -> Style {
        Style { paint: Paint::Plain, characters: Characters::Unicode, detail: Detail::Usual, now }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[rstest]
    #[case::unset("", Characters::Unicode)]
    #[case::utf_8("de_DE.UTF-8", Characters::Unicode)]
    #[case::another_spelling("C.utf8", Characters::Unicode)]
    #[case::latin("de_DE.ISO-8859-1", Characters::Ascii)]
    #[case::posix("C", Characters::Ascii)]
    fn pk_077_marks_fit_the_locale(#[case] locale: &str, #[case] expected: Characters) {
        assert_eq!(characters_of(locale), expected);
    }

    #[test]
    fn pk_077_a_mark_says_the_same_without_its_colour() {
        let style = testing::plain(at(0));
        let colored = Style { paint: Paint::Colored, ..style };
        for health in [Health::Well, Health::Busy, Health::Bad] {
            assert!(colored.mark(health).contains(&style.mark(health)));
        }
        let ascii = Style { characters: Characters::Ascii, ..style };
        assert_eq!([Health::Well, Health::Busy, Health::Bad].map(|health| ascii.mark(health)), ["ok", "!", "x"]);
    }

    #[test]
    fn pk_077_columns_align_and_no_name_is_cut() {
        let long = "m".repeat(253);
        // Characters of two columns, of one, and of none.
        let names = ["ä", "機械", "\u{1F4BB}vm", "e\u{301}-vm"];
        let rows: Vec<Vec<String>> =
            names.iter().chain([&long.as_str()]).map(|name| vec![(*name).to_owned(), "Failed".to_owned()]).collect();
        let text = table(&["NAME", "PHASE"], &rows);
        let at = |line: &str| line.split("Failed").next().and_then(|line| line.split("PHASE").next()).map(columns);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[5].contains(&long));
        assert!(lines.iter().all(|line| at(line) == at(lines[0]) && at(line) == Some(256)), "{text}");
        assert_eq!(["機械", "\u{1F4BB}vm", "e\u{301}-vm"].map(columns), [4, 4, 4]);
        assert!(lines.iter().all(|line| !line.ends_with(' ')), "{text}");
    }

    #[test]
    fn a_moment_has_its_distance() {
        let style = testing::plain(at(0));
        assert_eq!(style.moment(at(90)), "2027-01-15T08:01:30Z (in 1m30s)");
        assert_eq!(style.moment(at(-5)), "2027-01-15T07:59:55Z (5s ago)");
    }
}
