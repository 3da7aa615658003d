//! Reads all log calls of the sources (PK-100).

use std::{fs, path::Path};

use super::fields::FIELDS;

/// A log call: its place and its arguments.
struct Call {
    place: String,
    arguments: Vec<String>,
}

const LEVELS: [&str; 7] = ["trace!(", "debug!(", "info!(", "warn!(", "error!(", "info_span!(", "debug_span!("];

/// The log calls of all sources outside tests.
fn calls() -> Vec<Call> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("src")];
    for entry in fs::read_dir(root.join("crates")).unwrap() {
        folders.push(entry.unwrap().path().join("src"));
    }
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("logging/scan.rs")
            {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                found.extend(calls_in(code, &path.strip_prefix(root).unwrap().display().to_string()));
            }
        }
    }
    found
}

fn calls_in(code: &str, file: &str) -> Vec<Call> {
    let mut found = Vec::new();
    for level in LEVELS {
        for (at, _) in code.match_indices(level) {
            let line = code[..at].rsplit('\n').next().unwrap_or_default();
            let is_other_word = code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
            if is_other_word || line.trim_start().starts_with("//") {
                continue;
            }
            let number = code[..at].matches('\n').count() + 1;
            found.push(Call { place: format!("{file}:{number}"), arguments: arguments(&code[at + level.len()..]) });
        }
    }
    found
}

/// The arguments up to the closing bracket, apart at the commas outside brackets and texts.
fn arguments(code: &str) -> Vec<String> {
    let (mut all, mut one, mut depth, mut in_text, mut escaped) = (Vec::new(), String::new(), 0, false, false);
    for character in code.chars() {
        match character {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => in_text = !in_text,
            _ if in_text => {}
            ')' if depth == 0 => break,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                all.push(std::mem::take(&mut one).trim().to_owned());
                continue;
            }
            _ => {}
        }
        one.push(character);
    }
    all.push(one.trim().to_owned());
    all.into_iter().filter(|one| !one.is_empty()).collect()
}

/// The name of the field that an argument sets. `None` for a message, and for the target of a line.
fn field(argument: &str) -> Option<&str> {
    if argument.starts_with('"') || argument.starts_with("target:") {
        return None;
    }
    let name = argument.split('=').next().unwrap_or_default();
    Some(name.trim().trim_start_matches(['%', '?']))
}

#[test]
fn pk_100_each_field_of_each_log_call_is_in_the_list() {
    let calls = calls();
    assert!(calls.len() > 120, "{} calls", calls.len());
    let mut wrong = Vec::new();
    for call in &calls {
        for name in call.arguments.iter().filter_map(|argument| field(argument)) {
            if !FIELDS.iter().any(|(known, _)| *known == name) {
                wrong.push(format!("{}: {name}", call.place));
            }
        }
    }
    assert!(wrong.is_empty(), "fields that src/cli/logging/fields.rs does not list:\n{}", wrong.join("\n"));
}

#[test]
fn pk_100_no_message_has_a_placeholder() {
    let calls = calls();
    let with_value = |call: &&Call| call.arguments.iter().any(|one| one.starts_with('"') && one.contains('{'));
    let wrong: Vec<&str> = calls.iter().filter(with_value).map(|call| call.place.as_str()).collect();
    assert!(wrong.is_empty(), "values belong into fields:\n{}", wrong.join("\n"));
    let is_message = |argument: &String| argument.starts_with('"');
    let without: Vec<&str> =
        calls.iter().filter(|call| !call.arguments.iter().any(is_message)).map(|call| call.place.as_str()).collect();
    assert!(without.is_empty(), "calls without a message:\n{}", without.join("\n"));
}

#[test]
fn the_scan_reads_a_call() {
    let code = r#"tracing::info!(%error, machine = f(a, "x, {y}"), "text {z}"); // warn!("no")"#;
    let found = calls_in(code, "f");
    assert_eq!(found[0].arguments, ["%error", r#"machine = f(a, "x, {y}")"#, r#""text {z}""#]);
    assert_eq!(found[0].arguments.iter().filter_map(|one| field(one)).collect::<Vec<_>>(), ["error", "machine"]);
}
