//! The output of the plugin's commands: formats, colours and marks.
//!
//! Every command makes one typed answer. Text and JSON are made from the same answer, so that both say the same. Nothing here reads a
//! cluster. Source: spec/packaging §5.3.

use std::io::{IsTerminal, Write};

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::{Failure, output::OutputFormat};
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
        Some(Format::Wide) | None => Ok(write!(out, "{}", answer.text(source, &Style::of_stdout(args, now)))?),
    }
}

/// Columns that are as wide as their widest cell. The last column is not padded, and nothing is cut.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let cells = || std::iter::once(head.iter().map(|cell| (*cell).to_owned()).collect()).chain(rows.iter().cloned());
    let mut widths = vec![0; head.len()];
    for row in cells() {
        let row: Vec<String> = row;
        for (width, cell) in widths.iter_mut().zip(&row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in cells() {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width));
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
        let text =
            table(&["NAME", "PHASE"], &[vec![long.clone(), "Running".into()], vec!["ä".into(), "Failed".into()]]);
        let at = |line: &str, word: &str| line.split(word).next().map(|before| before.chars().count());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains(&long));
        assert_eq!(at(lines[0], "PHASE"), at(lines[1], "Running"));
        assert_eq!(at(lines[0], "PHASE"), at(lines[2], "Failed"));
        assert!(lines.iter().all(|line| !line.ends_with(' ')), "{text}");
    }

    #[test]
    fn a_moment_has_its_distance() {
        let style = testing::plain(at(0));
        assert_eq!(style.moment(at(90)), "2027-01-15T08:01:30Z (in 1m30s)");
        assert_eq!(style.moment(at(-5)), "2027-01-15T07:59:55Z (5s ago)");
    }
}
