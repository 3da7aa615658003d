//! Checks that links, files, flags and metrics that README.md and the documents mention exist.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use regex::Regex;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const FOLDERS: [&str; 6] = ["", "docs", "docs/runbooks", "docs/reference", "certs", "apiservice"];
/// Flags that documents mention and `mcm` does not have: placeholders, and flags of scripts.
const FLAGS_OF_OTHERS: [&str; 2] = ["--flag", "--all"];
/// The folders that paths in documents are relative to.
const BASES: [&str; 5] = ["", "crates", "src", "crates/machine-controllers/src", "tests"];

struct Document {
    path: PathBuf,
    text: String,
}

impl Document {
    /// Its `code spans`, without blocks of code.
    fn spans(&self) -> Vec<&str> {
        let outside = self.text.split("```").step_by(2);
        outside.flat_map(|text| text.split('`').skip(1).step_by(2)).collect()
    }

    /// The anchors of its headings, as the usual Git hosts create them.
    fn anchors(&self) -> BTreeSet<String> {
        let titles =
            self.text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
        let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        titles.map(|title| title.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
    }
}

fn documents() -> Vec<Document> {
    let entries = FOLDERS.iter().flat_map(|folder| fs::read_dir(Path::new(ROOT).join(folder)).expect("readable"));
    let paths = entries.map(|entry| entry.expect("readable").path());
    let paths = paths.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.map(|path| Document { text: fs::read_to_string(&path).expect("UTF-8"), path }).collect()
}

fn document(path: &Path) -> Option<Document> {
    fs::read_to_string(path).ok().map(|text| Document { path: path.to_owned(), text })
}

/// All findings of `judge`, each with the document's name.
fn complaints(judge: impl Fn(&Document) -> Vec<String>) -> Vec<String> {
    let documents = documents();
    assert!(documents.len() >= 8, "only {} documents", documents.len());
    let with_name = |document: &Document| {
        let name = document.path.strip_prefix(ROOT).expect("below the root").display().to_string();
        judge(document).into_iter().map(|complaint| format!("{name}: {complaint}")).collect::<Vec<_>>()
    };
    documents.iter().flat_map(with_name).collect()
}

#[test]
fn every_link_has_a_target() {
    let link = Regex::new(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)").expect("a pattern");
    let code = Regex::new("`[^`\n]*`").expect("a pattern");
    let wrong = complaints(|document| {
        let mut wrong = Vec::new();
        // A pattern in code may look like a link.
        let outside: String = document.text.split("```").step_by(2).collect();
        let text = code.replace_all(&outside, "CODE");
        for found in link.captures_iter(&text) {
            let (file, anchor) = (&found[1], found.get(2).map(|anchor| anchor.as_str()));
            if file.starts_with("http") {
                continue;
            }
            let folder = document.path.parent().expect("it is in a folder");
            let path = if file.is_empty() { document.path.clone() } else { folder.join(file) };
            let leads = match (anchor, self::document(&path)) {
                (Some(anchor), Some(target)) => target.anchors().contains(anchor),
                (Some(_), None) => false,
                (None, _) => path.exists(),
            };
            if !leads {
                wrong.push(found[0].to_owned());
            }
        }
        wrong
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Expands `a/{b,c}.rs` to `a/b.rs` and `a/c.rs`.
fn expanded(path: &str) -> Vec<String> {
    match (path.find('{'), path.find('}')) {
        (Some(open), Some(close)) if open < close => {
            let (head, tail) = (&path[..open], &path[close + 1..]);
            path[open + 1..close].split(',').map(|middle| format!("{head}{middle}{tail}")).collect()
        }
        _ => vec![path.to_owned()],
    }
}

#[test]
fn every_mentioned_file_exists() {
    let roots = "src|crates|tests|deploy|docs|scripts|crds|webhooks|apiservice|certs|fuzz|benches|(?:controller|driver|kube|machine|mcm)-[a-z-]+/src|\
                 deployment|set|machine|drain|safety|server|cli|extension|manager";
    let named = Regex::new(&format!(r"^(?:{roots})/[a-z_0-9./{{}},-]*$")).expect("a pattern");
    let is_there = |path: &String| BASES.iter().any(|base| Path::new(ROOT).join(base).join(path).exists());
    let wrong = complaints(|document| {
        let paths = document.spans().into_iter().filter(|span| named.is_match(span)).flat_map(expanded);
        paths.filter(|path| !is_there(path)).collect()
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Every long flag of every command, also of commands below commands.
fn flags() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    flags_below(&[], &mut found);
    assert!(found.len() > 100, "only {} flags found", found.len());
    found
}

fn flags_below(command: &[&str], found: &mut BTreeSet<String>) {
    let output = Command::new(env!("CARGO_BIN_EXE_mcm")).args(command).arg("--help").output().expect("mcm starts");
    let help = String::from_utf8(output.stdout).expect("UTF-8");
    let flag = Regex::new(r"(?m)^\s+(?:-\w, )?(--[a-z0-9-]+)").expect("a pattern");
    found.extend(flag.captures_iter(&help).map(|found| found[1].to_owned()));
    let section = help.split("Commands:").nth(1).unwrap_or_default();
    let names = section.lines().skip(1).take_while(|line| !line.is_empty());
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    for name in names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        flags_below(&[command, &[name]].concat(), found);
    }
}

#[test]
fn every_mentioned_flag_exists() {
    let flags = flags();
    let named = Regex::new(r"^(--[a-z0-9-]+)(…?)").expect("a pattern");
    let wrong = complaints(|document| {
        let found = document.spans().into_iter().filter_map(|span| named.captures(span));
        let unknown = found.filter(|found| {
            let (flag, is_prefix) = (&found[1], !found[2].is_empty());
            let known =
                if is_prefix { flags.iter().any(|known| known.starts_with(flag)) } else { flags.contains(flag) };
            !known && !FLAGS_OF_OTHERS.contains(&flag)
        });
        unknown.map(|found| found[0].to_owned()).collect()
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_mentioned_metric_exists() {
    let sources =
        ["mcm-metrics/src/catalogue.rs", "mcm-metrics/src/queue.rs", "machine-controllers/src/fleet_metrics.rs"];
    let read = |path| fs::read_to_string(format!("{ROOT}/crates/{path}")).expect("readable");
    let sources: String = sources.map(read).concat();
    let named = Regex::new(r"\b((?:mcm|workqueue)_[a-z_]+)(\*?)").expect("a pattern");
    let wrong = complaints(|document| {
        let found = document.spans().into_iter().flat_map(|span| named.captures_iter(span).collect::<Vec<_>>());
        let unknown = found.filter(|found| {
            let end = if found[2].is_empty() { "\"" } else { "" };
            !sources.contains(&format!("\"{}{end}", &found[1]))
        });
        unknown.map(|found| found[0].to_owned()).collect()
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}
