//! The committed pages are those of the code, and the manual pages are complete. `tests/it/reference.rs` checks them with mandoc.

use std::collections::BTreeSet;

use super::*;

/// Pages of the folder that no command prints. `cli/validate/example_tests.rs` tests the examples.
const OTHERS: [&str; 2] = ["README.md", "rule-examples.md"];

/// Flags of drivers that a build may lack are on the page.
const COMPLETE: bool = cfg!(all(feature = "aws", feature = "external", feature = "openstack"));

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference")
}

/// `UPDATE_REFERENCE=1 cargo test` writes the files.
#[test]
fn pk_091_the_committed_pages_are_those_of_the_code() {
    if !COMPLETE {
        return;
    }
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        write(Part::All, &folder()).unwrap();
    }
    let pages = Part::All.pages().unwrap();
    for (name, page) in &pages {
        let committed = fs::read_to_string(folder().join(name)).unwrap_or_default();
        assert!(
            committed == page.text,
            "docs/reference/{name} is stale: run cargo run -- reference all --write docs/reference"
        );
    }
    let committed: BTreeSet<_> =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let expected: BTreeSet<_> =
        pages.iter().map(|(name, _)| (*name).to_owned()).chain(OTHERS.map(str::to_owned)).collect();
    assert_eq!(committed, expected, "a page in docs/reference that nothing generates");
}

#[test]
fn pk_091_every_entry_has_a_description() {
    for (name, page) in Part::All.pages().unwrap() {
        assert!(page.undescribed.is_empty(), "{name}: {:#?}", page.undescribed);
        assert!(page.text.lines().filter(|line| line.starts_with("| ")).count() > 15, "{name} has hardly any entry");
    }
}

#[test]
fn parts_with_several_files_need_a_folder() {
    for part in [Part::Man, Part::All] {
        let failure = run(&ReferenceArgs { part, write: None }, &mut Vec::new()).unwrap_err();
        assert!(matches!(&failure, Failure::Usage(text) if text.contains("--write")), "{failure}");
    }
}

#[test]
fn a_page_is_printed_or_written() {
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("below");
    let mut printed = Vec::new();
    run(&ReferenceArgs { part: Part::Codes, write: None }, &mut printed).unwrap();
    run(&ReferenceArgs { part: Part::Codes, write: Some(below.clone()) }, &mut Vec::new()).unwrap();
    assert_eq!(fs::read(below.join("codes.md")).unwrap(), printed);
    assert!(String::from_utf8(printed).unwrap().contains("| 8 | `ResourceExhausted` |"));
}

#[test]
fn pk_095_every_command_has_a_manual_page() {
    let pages = man::pages(Cli::command()).unwrap();
    let files: Vec<&str> = pages.iter().map(|page| page.file.as_str()).collect();
    for file in ["mcm.1", "mcm-serve.1", "mcm-rollout.1", "mcm-rollout-status.1", "mcm-reference.1"] {
        assert!(files.contains(&file), "{file} is not among {files:?}");
    }
    assert_eq!(files.iter().collect::<BTreeSet<_>>().len(), files.len(), "{files:?}");
    let serve = pages.iter().find(|page| page.file == "mcm-serve.1").unwrap();
    assert!(serve.text.contains(r"\-\-machine\-drain\-timeout"), "{}", serve.text);
}
