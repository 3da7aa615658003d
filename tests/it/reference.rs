//! The reference and the pages that explain what it names: manual pages, the table of contents of the site, and an entry of
//! docs/troubleshooting.md for each reason.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use machine_api::names::{GROUPS, Sort};
use machine_controller_manager::observability::AlertName;
use regex::Regex;

use crate::support::scratch::{count_ran, count_skipped, subfolder};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).expect(path)
}

#[test]
fn pk_095_mandoc_finds_nothing_wrong_in_a_manual_page() {
    const NAME: &str = "reference::pk_095_mandoc";
    if Command::new("mandoc").arg("-V").output().is_err() {
        return count_skipped(NAME, "there is no mandoc (package mandoc)");
    }
    count_ran(NAME);
    let folder = subfolder("man");
    let wrote = Command::new(env!("CARGO_BIN_EXE_mcm")).args(["reference", "man", "--write"]).arg(&folder).output();
    assert!(wrote.expect("mcm starts").status.success());
    let pages: Vec<_> = fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("a file").path()).collect();
    assert!(pages.len() > 20, "{pages:?}");
    let lint = Command::new("mandoc").args(["-T", "lint"]).args(&pages).output().expect("mandoc starts");
    let said = String::from_utf8_lossy(&lint.stdout);
    assert!(lint.status.success() && said.is_empty(), "{said}");
}

/// The reasons that an entry of docs/troubleshooting.md explains: the first cells of its tables of reasons.
fn explained(document: &str) -> Vec<String> {
    let mut explained = Vec::new();
    let mut is_reasons = false;
    for line in document.lines() {
        if line.starts_with("| Reason | Meaning | What to do |") {
            is_reasons = true;
        } else if !line.starts_with("| ") {
            is_reasons = false;
        } else if is_reasons && !line.starts_with("| --- ") {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            assert!(cells.len() == 3 && cells.iter().all(|cell| cell.len() > 1), "an incomplete entry: {line}");
            explained.push(cells[0].trim_matches('`').to_owned());
        }
    }
    explained
}

#[test]
fn pk_096_each_reason_has_an_entry_and_each_alert_a_runbook() {
    let entries = explained(&read("docs/troubleshooting.md"));
    let explained: BTreeSet<&str> = entries.iter().map(String::as_str).collect();
    assert_eq!(explained.len(), entries.len(), "a reason has two entries: {entries:#?}");
    let groups = GROUPS.iter().filter(|group| group.sort == Sort::Reasons);
    let reasons: BTreeSet<&str> = groups.flat_map(|group| group.names).map(|name| name.text).collect();
    let missing: Vec<_> = reasons.difference(&explained).collect();
    assert!(missing.is_empty(), "docs/troubleshooting.md has no entry for {missing:#?}");
    let unknown: Vec<_> = explained.difference(&reasons).collect();
    assert!(unknown.is_empty(), "docs/troubleshooting.md explains reasons that nothing writes: {unknown:#?}");
    for alert in AlertName::ALL {
        let page = format!("docs/runbooks/{alert}.md");
        assert!(Path::new(ROOT).join(&page).exists(), "{page} is missing");
    }
}

/// `mdbook build docs` makes a page of each file that SUMMARY.md lists, and only of those.
#[test]
fn pk_090_the_site_has_every_page_once() {
    let link = Regex::new(r"\]\(([^)]+\.md)\)").expect("a pattern");
    let summary = read("docs/SUMMARY.md");
    let listed: Vec<String> = link.captures_iter(&summary).map(|found| found[1].to_owned()).collect();
    let once: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(once.len(), listed.len(), "a page is listed twice");
    let mut pages = BTreeSet::new();
    for folder in ["", "runbooks/", "reference/"] {
        let entries = fs::read_dir(Path::new(ROOT).join("docs").join(folder)).expect("a folder");
        let names = entries.map(|entry| entry.expect("a file").file_name().into_string().expect("UTF-8"));
        pages.extend(
            names
                .filter(|name| Path::new(name).extension().is_some_and(|end| end == "md"))
                .map(|name| format!("{folder}{name}")),
        );
    }
    pages.remove("SUMMARY.md");
    assert_eq!(once, pages, "docs/SUMMARY.md and the pages of docs differ");
}

#[test]
fn pk_090_mdbook_builds_the_site_without_a_warning() {
    const NAME: &str = "reference::pk_090_mdbook";
    let target = subfolder("book");
    let built = Command::new("mdbook").args(["build", "--dest-dir"]).arg(&target).arg(format!("{ROOT}/docs")).output();
    let Ok(built) = built else {
        return count_skipped(NAME, "there is no mdbook (cargo install mdbook --version 0.5.4)");
    };
    count_ran(NAME);
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success() && !said.contains("WARN") && !said.contains("ERROR"), "{said}");
    assert!(target.join("first-cluster.html").exists(), "{said}");
}
