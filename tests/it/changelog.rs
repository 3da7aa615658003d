//! The changelog, as `scripts/release-commit` demands it: no empty section, and an effect, an action and a check for each entry of *You must act*.

use std::{path::Path, process::Command};

use crate::support::scratch::subfolder;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The complaints of `scripts/release-commit --check` about a changelog. `None` if it has none.
fn complaints(changelog: &Path) -> Option<String> {
    let script = format!("{ROOT}/scripts/release-commit");
    let run = Command::new(script).arg("--check").arg(changelog).output().expect("the script starts");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.code() == Some(i32::from(!said.is_empty())), "{:?} {said}", run.status);
    Some(said).filter(|said| !said.is_empty())
}

#[test]
fn pk_120_the_release_script_refuses_empty_sections_and_entries_without_action_or_check() {
    let folder = subfolder("changelogs");
    let before = "\n## 0.1.0\n\n### New\n- All of it.\n";
    let whole = "- Flag `--x` is gone. **Do:** remove it.\n  **Check:** `mcm serve` starts.\n";
    for (number, (unreleased, complaint)) in [
        ("### New\n- A thing.\n".to_owned(), None),
        (format!("### You must act\n{whole}\n### New\n- A thing.\n"), None),
        (String::new(), Some("the section Unreleased has no entry")),
        ("### New\n\n### Mended\n- A thing.\n".to_owned(), Some("### New has no entry")),
        ("### New\n- A thing.\n\n### Mended\n".to_owned(), Some("### Mended has no entry")),
        (format!("### New\n- A thing.\n\n### You must act\n{whole}"), Some("not the first subsection")),
        ("### You must act\n- Flag `--x` is gone.\n".to_owned(), Some("nothing to do")),
        ("### You must act\n- Flag `--x` is gone. **Do:** remove it.\n".to_owned(), Some("no check")),
        ("### You must act\n- Flag `--x` is gone. **Do:** **Check:** it.\n".to_owned(), Some("nothing to do")),
        ("### You must act\n- **Do:** remove it. **Check:** it starts.\n".to_owned(), Some("no effect")),
    ]
    .into_iter()
    .enumerate()
    {
        let file = folder.join(format!("{number}.md"));
        std::fs::write(&file, format!("# Changelog\n\n## Unreleased\n\n{unreleased}{before}")).expect("writable");
        let said = complaints(&file);
        match complaint {
            None => assert_eq!(said, None, "{unreleased}"),
            Some(words) => assert!(said.as_ref().is_some_and(|said| said.contains(words)), "{unreleased}\n{said:?}"),
        }
    }
    let file = folder.join("released.md");
    std::fs::write(&file, format!("# Changelog\n{before}")).expect("writable");
    assert!(complaints(&file).is_some_and(|said| said.contains("## Unreleased")));
}

#[test]
fn pk_120_the_changelog_can_be_released() {
    let said = complaints(&Path::new(ROOT).join("CHANGELOG.md"));
    // Directly after a release there is nothing to release.
    let is_new =
        said.as_ref().is_some_and(|said| said.lines().count() == 1 && said.contains("Unreleased has no entry"));
    assert!(said.is_none() || is_new, "{said:?}");
}
