//! The last release against this program: names that are gone (PK-116), and objects that it has written ([`objects`]).
//! `tests/fixtures/releases` has both. [`replicas`] runs both programs.

mod objects;
mod replicas;

use std::{collections::BTreeSet, fs, path::Path};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const RELEASES: &str = "tests/fixtures/releases";
/// The pages with names that users rely on. The page `rules.md` is no promise.
const PAGES: [&str; 6] = ["flags", "metrics", "fields", "names", "alerts", "codes"];

/// The versions whose fixtures are kept, the oldest first.
fn releases() -> Vec<String> {
    let entries = fs::read_dir(Path::new(ROOT).join(RELEASES)).expect("a folder");
    let mut versions: Vec<String> = entries
        .map(|entry| entry.expect("a file"))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().expect("UTF-8"))
        .collect();
    let number = |version: &str| version.split('.').map(|part| part.parse().unwrap_or_default()).collect::<Vec<u32>>();
    versions.sort_by_key(|version| number(version));
    versions
}

/// The texts in backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The names on a page of the reference, with what each belongs to: `mcm serve --port`, `mcm_machines namespace`,
/// `Machine v1alpha1 spec.class`, or the name alone.
fn names(page: &str, text: &str) -> BTreeSet<String> {
    let (mut section, mut header, mut names) = (String::new(), String::new(), BTreeSet::new());
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            title.trim_matches('`').clone_into(&mut section);
        }
        let Some(row) = line.strip_prefix("| ") else {
            header.clear();
            continue;
        };
        if header.is_empty() {
            row.clone_into(&mut header);
            continue;
        }
        let cells: Vec<&str> = row.split(" | ").collect();
        if row.starts_with("---") || header.contains("Answer when it does not hold") {
            continue;
        }
        let second = cells.get(1).copied().unwrap_or_default();
        match page {
            "flags" | "fields" => names.extend(quoted(cells[0]).into_iter().map(|name| format!("{section} {name}"))),
            "metrics" => {
                let metric = quoted(cells[0])[0];
                names.insert(metric.to_owned());
                names.extend(quoted(second).into_iter().map(|label| format!("{metric} {label}")));
            }
            "codes" => names.extend(quoted(second).into_iter().map(str::to_owned)),
            "alerts" => {
                let name = cells[0].trim_start_matches('[').split(']').next().unwrap_or_default();
                names.insert(name.trim_matches('`').to_owned());
            }
            _ => names.extend(quoted(cells[0]).into_iter().map(str::to_owned)),
        }
    }
    names
}

/// The subsections *You must act* of all releases after `version`.
fn you_must_act(changelog: &str, version: &str) -> String {
    let newer = changelog.split(&format!("\n## {version} ")).next().unwrap_or_default();
    let parts = newer.split("\n### You must act\n").skip(1);
    parts
        .map(|part| part.split("\n### ").next().unwrap_or_default().split("\n## ").next().unwrap_or_default())
        .collect()
}

/// What is gone and is not named. A name counts as named if the last word of it, or the command of a flag, is in backticks.
fn unannounced(before: &BTreeSet<String>, now: &BTreeSet<String>, announced: &str) -> Vec<String> {
    let announced: BTreeSet<&str> = quoted(announced).into_iter().collect();
    let is_announced = |name: &str| {
        let (owner, last) = name.rsplit_once(' ').unwrap_or(("", name));
        announced.contains(last) || announced.contains(name) || (!owner.is_empty() && announced.contains(owner))
    };
    before.difference(now).filter(|name| !is_announced(name)).cloned().collect()
}

#[test]
fn pk_116_what_the_last_release_had_is_still_there_or_the_changelog_says_so() {
    let releases = releases();
    let last = releases.last().expect("a release");
    let folder = Path::new(ROOT).join(RELEASES).join(last).join("reference");
    let changelog = fs::read_to_string(Path::new(ROOT).join("CHANGELOG.md")).expect("UTF-8");
    let announced = you_must_act(&changelog, last);
    let (mut gone, mut compared) = (Vec::new(), 0);
    for page in PAGES {
        // The first release had no alerts.
        let Ok(before) = fs::read_to_string(folder.join(format!("{page}.md"))) else { continue };
        let now = fs::read_to_string(Path::new(ROOT).join(format!("docs/reference/{page}.md"))).expect(page);
        let before = names(page, &before);
        compared += before.len();
        gone.extend(
            unannounced(&before, &names(page, &now), &announced).into_iter().map(|name| format!("{page}: {name}")),
        );
    }
    assert!(compared > 500, "{compared} names are compared");
    assert!(
        gone.is_empty(),
        "{last} had these names: keep them, or name them in \"You must act\" of CHANGELOG.md: {gone:#?}"
    );
}

#[test]
fn pk_116_a_removed_name_is_found_unless_the_changelog_names_it() {
    let flags = |rows: &str| names("flags", &format!("## `mcm serve`\n\n| Flag | Value |\n| --- | --- |\n{rows}\n"));
    let metrics = |rows: &str| names("metrics", &format!("## A\n\n| Gauge | Labels |\n| --- | --- |\n{rows}\n"));
    let before = flags("| `--a`, `-a` | `N` |\n| `--b` |  |");
    assert_eq!(before.iter().collect::<Vec<_>>(), ["mcm serve --a", "mcm serve --b", "mcm serve -a"]);
    let now = flags("| `--a`, `-a` | `N` |");
    assert_eq!(unannounced(&before, &now, ""), ["mcm serve --b"]);
    for announced in ["- `--b` is gone.", "- `mcm serve` is gone.", "- `mcm serve --b` is gone."] {
        assert_eq!(unannounced(&before, &now, announced), Vec::<String>::new(), "{announced}");
    }
    let before = metrics("| `mcm_x` | `namespace`, `name` | X. |");
    let now = metrics("| `mcm_x` | `namespace` | X. |");
    assert_eq!(unannounced(&before, &now, "- `mcm_y` is gone."), ["mcm_x name"]);
    let changelog = "# C\n\n## Unreleased\n\n### You must act\n- `a`\n\n### New\n- `b`\n\n## 0.2.0 (2026-01-01)\n\n### You must act\n- `c`\n\n\
                     ## 0.1.0 (2025-01-01)\n\n### You must act\n- `d`\n";
    assert_eq!(quoted(&you_must_act(changelog, "0.1.0")), ["a", "c"]);
    assert_eq!(quoted(&you_must_act(changelog, "0.2.0")), ["a"]);
}
