//! `mcm reference`: what the program knows about itself, as pages for people.
//!
//! Each part is generated from the declarations that the program itself uses: the command line ([`flags`]), the metrics ([`metrics`]), the
//! definitions ([`fields`]), the names ([`names`]), the alerts ([`alerts`]), the machine codes ([`codes`]) and the old kinds of classes
//! ([`old_classes`]). `docs/reference` has the result, and a test compares them. Manual pages ([`man`]) are not committed. The rules of
//! admission have their own page, `docs/rules.md` (`machine-api/src/validation/reference_tests.rs`), and the values of the chart `VALUES.md`
//! (`cli/manifests/chart`).
//!
//! Source: spec/packaging §6.3.

mod alerts;
mod codes;
mod fields;
mod flags;
mod man;
mod metrics;
mod names;
mod old_classes;
mod page;

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{Args, CommandFactory, ValueEnum};

pub use self::page::Page;
use super::{Cli, Failure};

/// Flags of `mcm reference`.
#[derive(Clone, Debug, Args)]
pub struct ReferenceArgs {
    /// The part to print
    pub part: Part,
    /// Folder that the pages are written into, instead of printing them; needed for `man` and `all`
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
}

/// A part of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// All commands with their flags
    Flags,
    /// All metrics with their labels
    Metrics,
    /// All fields of the kinds, in both versions
    Fields,
    /// Finalizers, labels, annotations, taints, conditions and reasons
    Names,
    /// All alerts with their limits
    Alerts,
    /// The codes of driver calls
    Codes,
    /// The fields of the old kinds of classes, which `mcm migrate-classes` reads
    OldClasses,
    /// All parts above
    All,
    /// Manual pages of all commands, for man
    Man,
}

/// The parts that are one page of Markdown.
const PAGES: [Part; 7] =
    [Part::Flags, Part::Metrics, Part::Fields, Part::Names, Part::Alerts, Part::Codes, Part::OldClasses];

impl Part {
    /// The pages of this part, each with its file.
    fn pages(self) -> Result<Vec<(&'static str, Page)>, Failure> {
        Ok(match self {
            Self::Flags => vec![("flags.md", flags::page(Cli::command()))],
            Self::Metrics => vec![("metrics.md", metrics::page().map_err(Failure::run)?)],
            Self::Fields => vec![("fields.md", fields::page())],
            Self::Names => vec![("names.md", names::page())],
            Self::Alerts => vec![("alerts.md", alerts::page())],
            Self::Codes => vec![("codes.md", codes::page())],
            Self::OldClasses => vec![("old-classes.md", old_classes::page())],
            Self::All => {
                let pages = PAGES.into_iter().map(Self::pages).collect::<Result<Vec<_>, _>>()?;
                pages.into_iter().flatten().collect()
            }
            Self::Man => Vec::new(),
        })
    }
}

/// Prints or writes a part.
///
/// # Errors
/// [`Failure::Usage`] without the folder that a part needs; [`Failure::Run`] when a file can't be written.
pub fn run(args: &ReferenceArgs, out: &mut dyn Write) -> Result<(), Failure> {
    match (args.part, &args.write) {
        (Part::Man, Some(folder)) => man::write(Cli::command(), folder),
        (Part::Man | Part::All, None) => {
            Err(Failure::Usage("this part has several files: add --write DIR with their folder".to_owned()))
        }
        (part, Some(folder)) => write(part, folder),
        (part, None) => {
            for (_, page) in part.pages()? {
                out.write_all(page.text.as_bytes())?;
            }
            Ok(())
        }
    }
}

fn write(part: Part, folder: &Path) -> Result<(), Failure> {
    for (name, page) in part.pages()? {
        let path = folder.join(name);
        let wrote = fs::create_dir_all(folder).and_then(|()| fs::write(&path, &page.text));
        wrote.with_context(|| format!("cannot write {}", path.display())).map_err(Failure::run)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
