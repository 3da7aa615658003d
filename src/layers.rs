//! Checks the layers of the sources: which module may import which, which files may not wait, call or read a clock, and where patches
//! are made.
//!
//! The tests read the sources as text, without comments. A failure names the file and the word. Then either the file belongs
//! elsewhere, or the tables below and `docs/architecture.md` have to change with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The modules of the binary's package. A module imports only modules that come before it, so that there are no circles. Between crates Cargo
/// prevents circles.
const MODULES: [&str; 7] = ["settings", "observability", "drivers", "server", "extension", "manager", "cli"];

/// Modules and crates with pure functions only.
const PURE_MODULES: [&str; 6] =
    ["kube-values", "machine-api", "kube-protocol", "mcm-metrics", "settings", "observability"];

/// The crate that polls futures by hand. It must not depend on anything outside the process either.
const SIMULATION: &str = "machine-simulation";

/// The files of `machine-controllers` that act, wait or run a loop, in addition to the `mod.rs` of each module. Every other file
/// decides or observes.
const ACTING: [&str; 8] =
    ["act", "loops", "reconcile", "driver_calls", "tokens", "calls", "collector", "api_server_monitor"];

/// Words that are allowed only in files that act, and in the simulation.
const WAITING: [&str; 3] = ["async fn", ".await", "tokio::"];

/// Words that are allowed only in files that act.
const IMPURE: [&str; 6] = ["kube::Client", "kube::Api", "Instant::now", "Timestamp::now", "SystemTime", "rand::rng"];

/// The sources in which only the `patches.rs` of a module makes the patches of effects.
const VERBAL: &str = "machine-controllers/src/";

/// The number of modules that match on their effects in `act.rs` and `patches.rs`: deployments, machines, the overshoot guard, sets.
const MODULES_WITH_EFFECTS: usize = 4;

/// The number of effects that other files may match on, for example to find out whether a plan makes machines.
const FEW_EFFECTS: usize = 3;

/// Words that are allowed only in the `patches.rs` of a module.
const WRITTEN: [&str; 2] = ["json!", "Patch"];

/// Functions that parse a text.
const READING: [&str; 5] = ["contains(", "starts_with(", "split", "find(", "strip_"];

/// The files that read a text of a status. They read texts that the Go original stored, or the original's text to which ours is appended.
const READERS: [&str; 6] = [
    "machine/creation/mod.rs",
    "machine/plan/deletion_stage.rs",
    "machine/preservation/drain.rs",
    "safety/orphans.rs",
    "deployment/conditions.rs",
    "deployment/waits.rs",
];

/// The files that need the whole object of a snapshot. All others read it through accessors.
const WHOLE: [&str; 10] = [
    "machine-controllers/src/checked.rs",
    "machine-controllers/src/deployment/hash_label.rs",
    "machine-controllers/src/deployment/patches.rs",
    "machine-controllers/src/deployment/revision.rs",
    "machine-controllers/src/deployment/rollback.rs",
    "machine-controllers/src/machine/reconcile.rs",
    "machine-simulation/src/checks.rs",
    "machine-simulation/src/forecast.rs",
    "machine-simulation/src/guards.rs",
    "machine-simulation/src/played.rs",
];

/// The files that make ids of rules: of admission, of fields and metadata that only `mcm validate` checks, and of the configuration of the virtual
/// cloud.
const DECLARING: [&str; 4] = [
    "cli/validate/unknown_fields.rs",
    "driver-virtual/src/reader.rs",
    "machine-api/src/validation/metadata.rs",
    "machine-api/src/validation/rule.rs",
];

#[derive(Clone)]
struct Source {
    /// Path below `src/` or `crates/`.
    path: PathBuf,
    /// Text without comments.
    code: String,
}

impl Source {
    fn module(&self) -> String {
        let first = self.path.components().next().expect("a file has a name");
        first.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned()
    }

    /// Whether the file is compiled for tests only, by its name.
    fn is_test(&self) -> bool {
        let path = self.path.to_string_lossy();
        ["test", "property", "scenarios"].iter().any(|word| path.contains(word))
    }

    /// Whether it is the `mod.rs` of a module. A folder inside a module has a `mod.rs`, too.
    fn is_root(&self) -> bool {
        self.path.ends_with("mod.rs") && self.path.components().count() == "crate/src/module/mod.rs".split('/').count()
    }

    /// The code above the tests at its end.
    fn outside_tests(&self) -> &str {
        self.code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
    }

    /// The modules that `crate::module` and `crate::{module::…, module::…}` name.
    fn imports(&self) -> Vec<String> {
        paths_after("crate::", &self.code).iter().map(|path| word(path)).collect()
    }
}

/// The paths that follow this word in the code: `lead::{a, b::{c, d}}` names `a`, `b::c` and `b::d`.
fn paths_after(lead: &str, code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (position, _) in code.match_indices(lead) {
        paths_of(&code[position + lead.len()..], "", &mut found);
    }
    found
}

/// Adds the paths of the tree that begins here, and returns the rest of the text.
fn paths_of<'a>(tree: &'a str, before: &str, found: &mut Vec<String>) -> &'a str {
    let end = tree.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':').unwrap_or(tree.len());
    let (path, mut rest) = (format!("{before}{}", &tree[..end]), &tree[end..]);
    if !rest.starts_with('{') {
        found.push(path);
        return rest;
    }
    while let Some(entry) = rest.strip_prefix(['{', ',']) {
        rest = paths_of(entry.trim_start(), &path, found);
        rest = &rest[rest.find([',', '}']).unwrap_or(rest.len())..];
    }
    rest.strip_prefix('}').unwrap_or(rest)
}

/// Whether the code has this word, and not only a longer word with this beginning.
fn says(code: &str, word: &str) -> bool {
    let continues = |c: char| c.is_ascii_alphanumeric() || c == '_';
    code.match_indices(word).any(|(position, _)| !code[position + word.len()..].starts_with(continues))
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
}

/// The sources of the modules, or of the crates.
fn sources_below(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let (mut folders, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the sources are there") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("UTF-8");
                let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
                let path = path.strip_prefix(&root).expect("below the root").to_owned();
                found.push(Source { path, code: code.join("\n") });
            }
        }
    }
    assert!(found.len() > 100, "only {} sources found in {folder}", found.len());
    found
}

fn layer(module: &str) -> Option<usize> {
    MODULES.iter().position(|known| *known == module)
}

#[test]
fn a_module_imports_only_modules_below_it() {
    let mut wrong = Vec::new();
    for source in
        sources_below("src").iter().filter(|source| !["lib", "main", "layers"].contains(&source.module().as_str()))
    {
        let module = source.module();
        let own = layer(&module).unwrap_or_else(|| panic!("the module {module} has no layer: add it to MODULES"));
        for imported in source.imports() {
            if imported != module && layer(&imported).is_some_and(|other| other > own) {
                wrong.push(format!("{} imports {imported}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Code that two modules of the controllers share is below both. The same applies to the parts of the machine module.
#[test]
fn no_two_modules_of_the_controllers_need_each_other() {
    for (folder, lead) in [("machine-controllers/src", ""), ("machine-controllers/src/machine", "machine::")] {
        let mut needs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for source in sources_below("crates").iter().filter(|source| !source.is_test()) {
            let Ok(below) = source.path.strip_prefix(folder) else { continue };
            let steps: Vec<_> = below.iter().map(|step| step.to_string_lossy()).collect();
            let up = "super::".repeat(steps.iter().filter(|step| *step != "mod.rs").count());
            let module = steps[0].trim_end_matches(".rs").to_owned();
            // The file that connects the modules needs all of them.
            if ["lib", "mod"].contains(&module.as_str()) {
                continue;
            }
            let code = source.outside_tests();
            let named =
                paths_after("crate::", code).into_iter().filter_map(|path| Some(word(path.strip_prefix(lead)?)));
            let above = paths_after(&up, code);
            let named = named.chain(above.iter().map(|path| word(path)));
            let others: Vec<String> = named.filter(|other| *other != module).collect();
            needs.entry(module).or_default().extend(others);
        }
        let modules: BTreeSet<String> = needs.keys().cloned().collect();
        assert!(modules.len() > 15, "{modules:?}");
        for others in needs.values_mut() {
            others.retain(|other| modules.contains(other));
        }
        while let Some(ground) = needs.iter().find(|(_, others)| others.is_empty()).map(|(module, _)| module.clone()) {
            needs.remove(&ground);
            for others in needs.values_mut() {
                others.remove(&ground);
            }
        }
        assert!(needs.is_empty(), "a circle of modules: {needs:#?}");
    }
}

#[test]
fn files_that_decide_do_not_wait_call_or_read_a_clock() {
    let mut wrong = Vec::new();
    let all = [sources_below("src"), sources_below("crates")].concat();
    for source in all.iter().filter(|source| !source.is_test()) {
        let name = source.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let decides = match source.module().as_str() {
            "machine-controllers" => !ACTING.contains(&name.as_str()) && !source.is_root(),
            module => PURE_MODULES.contains(&module),
        };
        let waiting = WAITING.iter().filter(|_| decides);
        let impure = IMPURE.iter().filter(|_| decides || source.module() == SIMULATION);
        let words = waiting.chain(impure).filter(|word| says(source.outside_tests(), word));
        wrong.extend(words.map(|word| format!("{}: {word}", source.path.display())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn patches_are_made_in_one_file_of_a_module() {
    let is_verbal = |source: &&Source| {
        let path = source.path.to_string_lossy().into_owned();
        path.starts_with(VERBAL) && !path.ends_with("patches.rs") && !source.is_test()
    };
    let crates = sources_below("crates");
    let modules: Vec<&Source> = crates.iter().filter(is_verbal).collect();
    assert!(modules.len() > 100, "{} files", modules.len());
    let mut wrong = Vec::new();
    for source in modules {
        let words = WRITTEN.iter().filter(|word| says(source.outside_tests(), word));
        wrong.extend(words.map(|word| format!("{}: {word}", source.path.display())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The files outside tests that have this code.
fn files_with(code: &str) -> BTreeSet<String> {
    let all = [sources_below("crates"), sources_below("src")].concat();
    let has_it = |source: &&Source| source.module() != "layers" && source.outside_tests().contains(code);
    let files = all.iter().filter(|source| !source.is_test()).filter(has_it);
    files.map(|source| source.path.display().to_string()).collect()
}

/// A snapshot can have less data than its object only if no file needs the whole object.
#[test]
fn few_files_ask_for_the_whole_object_of_a_snapshot() {
    assert_eq!(files_with(".whole_object()"), BTreeSet::from(WHOLE.map(str::to_owned)));
}

/// A finding has the id of a rule that is declared.
#[test]
fn ids_of_rules_are_made_where_rules_are_declared() {
    assert_eq!(files_with("RuleId::declare("), BTreeSet::from(DECLARING.map(str::to_owned)));
}

/// rustdoc starts once for every crate with doc tests, so crates without an example have none. A new example switches them on.
#[test]
fn examples_in_comments_are_run() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let read = |path: &Path| fs::read_to_string(crates.join(path)).expect("the file is there");
    let is_switched_off =
        |source: &&Source| read(&Path::new(&source.module()).join("Cargo.toml")).contains("\ndoctest = false\n");
    let has_an_example = |source: &&Source| {
        read(&source.path)
            .lines()
            .any(|line| matches!(line.trim(), "/// ```" | "//! ```" | "/// ```no_run" | "//! ```no_run"))
    };
    let sources = sources_below("crates");
    let quiet: Vec<&Source> = sources.iter().filter(is_switched_off).collect();
    assert!(quiet.len() > 100, "{} files", quiet.len());
    let untested: Vec<_> = quiet.into_iter().filter(has_an_example).map(|source| &source.path).collect();
    assert!(untested.is_empty(), "these examples are not compiled: {untested:?}");
}

/// Authors of drivers read only this page.
#[test]
fn the_page_on_drivers_names_every_call() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).expect("the file is there");
    let (source, page) = (read("crates/machine-driver/src/lib.rs"), read("docs/drivers.md"));
    let (_, contract) = source.split_once("pub trait Driver").expect("the contract is there");
    let calls: Vec<&str> = contract.split("fn ").skip(1).filter_map(|call| Some(call.split_once('(')?.0)).collect();
    assert!(calls.len() > 10, "{calls:?}");
    let unnamed: Vec<_> = calls.iter().filter(|call| !page.contains(&format!("`{call}`"))).collect();
    assert!(unnamed.is_empty(), "docs/drivers.md does not name {unnamed:?}");
}

/// The controllers decide on values. The texts made of these values are for people only.
#[test]
fn only_texts_of_the_original_are_read_back() {
    let mut readers = BTreeSet::new();
    let mut wrong = Vec::new();
    let modules = [sources_below("crates"), sources_below("src")].concat();
    let knows_standings = |source: &&Source| ["machine-controllers", "extension"].contains(&source.module().as_str());
    for source in modules.iter().filter(|source| !source.is_test()).filter(knows_standings) {
        let code = source.outside_tests();
        let reads = ["message", "description"]
            .iter()
            .flat_map(|field| READING.iter().map(move |how| format!("{field}.{how}")))
            .any(|reading| code.contains(&reading));
        match READERS.iter().find(|reader| source.path.ends_with(reader)) {
            Some(reader) if reads => _ = readers.insert(*reader),
            None if reads => wrong.push(source.path.display().to_string()),
            Some(_) | None => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(readers.len(), READERS.len(), "{readers:?} read a text; the other files must be removed from the list");
}

/// A new effect must not compile before `patches.rs` and `act.rs` know it, and no other file may need to know it.
#[test]
fn only_files_that_carry_out_effects_match_on_them() {
    let mut wrong = Vec::new();
    let mut matching = 0;
    let knows_effects = |source: &Source| source.module() != "driver-virtual";
    let all = [sources_below("crates"), sources_below("src")];
    for source in all.into_iter().flatten().filter(knows_effects) {
        let code = source.outside_tests();
        let arms: BTreeSet<String> = code
            .match_indices("Effect::")
            .map(|(place, lead)| &code[place + lead.len()..])
            .filter(|rest| is_pattern(rest))
            .map(word)
            .collect();
        let is_carried_out = ["patches.rs", "act.rs"].iter().any(|name| source.path.ends_with(name));
        if arms.len() > FEW_EFFECTS && is_carried_out {
            matching += 1;
        } else if arms.len() > FEW_EFFECTS && !source.is_test() {
            wrong.push(format!("{}: {arms:?}", source.path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(matching >= 2 * MODULES_WITH_EFFECTS, "{matching}");
}

/// Whether the text starts with an effect in a pattern: `=>` or another alternative follows its name.
fn is_pattern(rest: &str) -> bool {
    let after_name = rest.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_').trim_start();
    let closing = match after_name.chars().next() {
        Some('{') => '}',
        Some('(') => ')',
        _ => return after_name.starts_with("=>") || after_name.starts_with("| "),
    };
    let Some((_, after)) = after_name.split_once(closing) else { return false };
    let after = after.trim_start();
    after.starts_with("=>") || after.starts_with("| ")
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates =
        fs::read_dir(root.join("crates")).expect("there are crates").map(|entry| entry.expect("readable").path());
    let manifests: Vec<_> = crates.chain([root.to_owned()]).map(|folder| folder.join("Cargo.toml")).collect();
    assert!(manifests.len() > 10, "{manifests:?}");
    for manifest in manifests {
        let text = fs::read_to_string(&manifest).expect("UTF-8");
        assert!(text.contains("[lints]\nworkspace = true\n"), "{}", manifest.display());
    }
}

#[test]
fn an_import_is_found_in_every_spelling() {
    let code = "use crate::extension::views; use crate::{server::{tls, Peer}, drivers::known_rules,\n    settings};"
        .to_owned();
    let source = Source { path: PathBuf::from("cli/x.rs"), code };
    assert_eq!(source.imports(), ["extension", "server", "server", "drivers", "settings"]);
    assert_eq!(source.module(), "cli");
    assert!(says("call().await?", ".await") && !says("self.awaits_picks()", ".await"));
}
