//! Manual pages (man 1) of `mcm` and of each of its commands.

use std::{fs, io, path::Path};

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;

use crate::cli::Failure;

/// The date of the pages: the day of the last change of their form. A build has no date, so that equal sources give equal pages.
const DATE: &str = "2026-11-27";

/// Longest line of text, in bytes.
const WIDTH: usize = 79;

/// A manual page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManPage {
    /// Its file, such as `mcm-rollout-status.1`.
    pub file: String,
    /// Its text, in the `man` language of roff.
    pub text: String,
}

/// The pages of a command and of all commands below it.
///
/// # Errors
/// When a page is no UTF-8, which is a defect of this program.
pub fn pages(command: Command) -> io::Result<Vec<ManPage>> {
    // Each page names the commands below it, so that no page is needed for the command `help`.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, &mut pages)?;
    Ok(pages)
}

fn add(command: &Command, pages: &mut Vec<ManPage>) -> io::Result<()> {
    let man = Man::new(command.clone());
    let file = man.get_filename();
    let title = file.trim_end_matches(".1").to_uppercase();
    let man = man.title(title).date(DATE).source(format!("mcm {}", env!("CARGO_PKG_VERSION"))).manual("mcm");
    let mut text = Vec::new();
    man.render(&mut text)?;
    let text = String::from_utf8(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    pages.push(ManPage { file, text: tidy(&text) });
    command.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| add(below, pages))
}

/// The text without what mandoc complains about: empty lines and repeated line breaks around lists of values, and long lines.
fn tidy(text: &str) -> String {
    let mut tidy: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let last = tidy.last().map_or("", String::as_str);
        if is_request(line) {
            if line != ".br" || last != ".br" {
                tidy.push(line.to_owned());
            }
        } else if last == ".TP" {
            // The tag of a paragraph is one line.
            tidy.push(line.to_owned());
        } else {
            tidy.extend(wrapped(line));
        }
    }
    tidy.join("\n") + "\n"
}

/// Whether roff reads a line as a request, and not as text.
fn is_request(line: &str) -> bool {
    line.starts_with(['.', '\''])
}

/// A text in lines of at most [`WIDTH`] bytes, if its words allow that. roff fills the lines again.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_ascii_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= WIDTH || is_request(word) => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Writes the pages of a command into a folder, which is made if it does not exist.
///
/// # Errors
/// When a file can't be written. The error names it.
pub fn write(command: Command, folder: &Path) -> Result<(), Failure> {
    for page in pages(command).map_err(Failure::run)? {
        let path = folder.join(&page.file);
        let wrote = fs::create_dir_all(folder).and_then(|()| fs::write(&path, &page.text));
        wrote.with_context(|| format!("cannot write {}", path.display())).map_err(Failure::run)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_lines_and_repeated_breaks_are_left_out() {
        assert_eq!(tidy(".TP\na\n\n.br\n\n.br\nb\n"), ".TP\na\n.br\nb\n");
    }

    #[test]
    fn long_text_is_wrapped_and_a_tag_is_not() {
        let long = ["word"; 30].join(" ");
        let tidied = tidy(&format!(".TP\n{long}\n{long} .x\n"));
        let lines: Vec<&str> = tidied.lines().collect();
        assert_eq!((lines[0], lines[1].len(), lines.len()), (".TP", 149, 4));
        assert!(lines[2..].iter().all(|line| line.len() <= WIDTH) && lines[3].ends_with(" .x"), "{tidied}");
    }
}
