//! Counts sentences that are too long, and phrases that are hard to read, in the documents (PK-094). The counts only fall: a page that
//! `tests/fixtures/plain-words.txt` does not list has none.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const COUNTS: &str = "tests/fixtures/plain-words.txt";
const FOLDERS: [&str; 4] = ["", "docs", "docs/runbooks", "docs/reference"];
/// The history is not rewritten.
const LEFT_OUT: [&str; 1] = ["CHANGELOG.md"];
/// The words of a sentence.
const LONGEST: usize = 25;
/// Phrases that are hard to read, in lower case.
const BANNED: [&str; 20] = [
    "nobody will",
    "somebody",
    "whoever",
    "those of",
    "those who",
    "the one who",
    "the one that",
    "such a ",
    "such an ",
    "in order to",
    "so as to",
    "be rid of",
    "all the same",
    "of its own accord",
    "as to whether",
    "thereof",
    "whereby",
    "thereby",
    "lest ",
    "is to be ",
];

/// The paragraphs, items and cells of a document, without code and headings.
fn texts(document: &str) -> Vec<String> {
    let item = Regex::new(r"^(?:[-*]|\d+\.) ").expect("a pattern");
    let (mut texts, mut open, mut is_code) = (Vec::new(), String::new(), false);
    for line in document.lines().map(str::trim).chain([""]) {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        let is_none = line.is_empty() || line.starts_with('#') || line.starts_with("<!--");
        if is_fence || is_code || is_none {
            texts.push(std::mem::take(&mut open));
        } else if line.starts_with('|') {
            texts.push(std::mem::take(&mut open));
            texts.extend(line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()));
        } else if let Some(bullet) = item.find(line) {
            texts.push(std::mem::take(&mut open));
            line[bullet.end()..].clone_into(&mut open);
        } else {
            open.push(' ');
            open.push_str(line);
        }
    }
    texts.retain(|text| !text.is_empty());
    texts
}

/// The sentences of a text. Code counts as one word, and a link as its text.
fn sentences(text: &str) -> Vec<String> {
    let code = Regex::new("`[^`]*`").expect("a pattern");
    let link = Regex::new(r"\[([^\]]*)\]\([^)]*\)").expect("a pattern");
    let end = Regex::new(r#"[.!?]["”)*]*(?:\s+|$)"#).expect("a pattern");
    let text = code.replace_all(text, "CODE");
    let text = link.replace_all(&text, "$1");
    end.split(&text).filter(|sentence| !sentence.trim().is_empty()).map(str::to_owned).collect()
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Findings {
    long: Vec<String>,
    banned: Vec<String>,
}

fn findings(document: &str) -> Findings {
    let mut found = Findings::default();
    for text in texts(document) {
        let long = sentences(&text).into_iter().filter(|sentence| sentence.split_whitespace().count() > LONGEST);
        found.long.extend(long);
        let lower = format!("{} ", text.to_lowercase());
        for phrase in BANNED {
            let times = lower.matches(phrase).count();
            found.banned.extend((0..times).map(|_| format!("{phrase:?} in {text}")));
        }
    }
    found
}

fn documents() -> Vec<(String, String)> {
    let entries = FOLDERS.iter().flat_map(|folder| fs::read_dir(Path::new(ROOT).join(folder)).expect("a folder"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    let named = paths.into_iter().map(|path| {
        let name = path.strip_prefix(ROOT).expect("below the root").display().to_string();
        (name, fs::read_to_string(&path).expect("UTF-8"))
    });
    // Generated pages have the texts of the code.
    named.filter(|(name, text)| !LEFT_OUT.contains(&name.as_str()) && !text.starts_with("<!-- generated")).collect()
}

/// `UPDATE_WORDS=1 cargo test` writes the counts.
#[test]
fn pk_094_long_sentences_and_hard_phrases_only_become_fewer() {
    let documents = documents();
    assert!(documents.len() > 40, "{} documents", documents.len());
    let path = Path::new(ROOT).join(COUNTS);
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let allowed: BTreeMap<&str, (usize, usize)> = committed
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |place: usize| words[place].parse::<usize>().expect("a number");
            (words[0], (number(1), number(2)))
        })
        .collect();
    let mut counts =
        "# Sentences with more than 25 words, and hard phrases, per document. UPDATE_WORDS=1 writes them.\n".to_owned();
    let mut wrong = Vec::new();
    for (name, text) in &documents {
        let found = findings(text);
        let (long, banned) = allowed.get(name.as_str()).copied().unwrap_or_default();
        if found.long.len() > long || found.banned.len() > banned {
            wrong.push(format!("{name} has more than {long} and {banned}: {found:#?}"));
        }
        if found != Findings::default() {
            let _ = writeln!(counts, "{name} {} {}", found.long.len(), found.banned.len());
        }
    }
    if std::env::var_os("UPDATE_WORDS").is_some() {
        fs::write(&path, counts).expect("writable");
    } else {
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn sentences_are_counted_without_code_and_headings() {
    let words = |count: usize| vec!["word"; count].join(" ");
    let short = format!("# {}\n\n{} `{}` (a. b).\n\n```sh\n{}\n```\n", words(40), words(20), words(9), words(40));
    assert_eq!(findings(&short), Findings::default());
    let long = format!("- {}\n  {}. End.\n| {} | x |\n", words(20), words(6), words(26));
    assert_eq!(findings(&long).long.len(), 2);
    assert_eq!(findings("Nobody will see such a thing.").banned.len(), 2);
}
