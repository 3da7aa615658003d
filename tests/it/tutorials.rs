//! The tutorials of the documents: the commands of their `sh` blocks run in order, and print what the `text` block after each says (PK-093).

use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use tokio::process::Command;

use crate::support::{
    assets,
    process::Process,
    scratch::{count_ran, count_skipped, subfolder},
    wait_until,
};

const MCM: &str = env!("CARGO_BIN_EXE_mcm");
/// Separates the outputs of blocks.
const MARK: &str = "---- the next block ----";
/// The commands of the first tutorial may take this long.
const BAR: Duration = Duration::from_secs(60);

/// A block of commands, and what they print.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    commands: String,
    prints: Option<String>,
}

/// The steps of a document.
fn steps(document: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in document.split("\n```").skip(1).step_by(2) {
        let (language, content) = block.split_once('\n').expect("a block has lines");
        match (language, steps.last_mut()) {
            ("sh", _) => steps.push(Step { commands: content.to_owned(), prints: None }),
            ("text", Some(step)) => step.prints = Some(content.to_owned()),
            _ => panic!("a block is neither sh nor text after sh: {language:?}"),
        }
    }
    steps
}

/// Whether lines match a pattern, in which a line `…` stands for any lines, and `…` in a line for any text.
fn matches(pattern: &[&str], lines: &[&str]) -> bool {
    match pattern.split_first() {
        None => lines.is_empty(),
        Some((&"…", rest)) => (0..=lines.len()).any(|skipped| matches(rest, &lines[skipped..])),
        Some((first, rest)) => {
            lines.split_first().is_some_and(|(line, lines)| line_matches(first, line) && matches(rest, lines))
        }
    }
}

fn line_matches(pattern: &str, line: &str) -> bool {
    // Columns are as wide as the widest name, which differs from run to run.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (pattern, line) = (words(pattern), words(line));
    let mut parts = pattern.split('…').map(str::trim);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        let Some(place) = rest.find(part) else { return false };
        rest = &rest[place + part.len()..];
        last = Some(part);
    }
    rest.is_empty() || last == Some("")
}

fn demand(step: &Step, printed: &str) {
    let Some(expected) = &step.prints else { return };
    let expected: Vec<&str> = expected.lines().map(str::trim_end).collect();
    let lines: Vec<&str> = printed.trim().lines().map(str::trim_end).collect();
    assert!(matches(&expected, &lines), "{}\nprints\n{printed}\nand not\n{}", step.commands, expected.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_093_the_first_tutorial_runs_as_it_is_written() {
    const NAME: &str = "tutorials::pk_093_the_first_tutorial";
    let assets = match assets::find() {
        Ok(assets) => assets,
        Err(why) => return count_skipped(NAME, &why),
    };
    count_ran(NAME);
    let document =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/first-cluster.md")).expect("UTF-8");
    let steps = steps(&document);
    let (start, others) = steps.split_first().expect("steps");
    assert!(others.len() >= 7, "{} steps", others.len());
    let folder = subfolder("first-cluster");
    let words: Vec<String> = start.commands.split_whitespace().skip(1).map(str::to_owned).collect();
    // The process has no working folder of its own.
    let words = words.into_iter().map(|word| match word.strip_prefix("--kubeconfig=") {
        Some(file) => format!("--kubeconfig={}", folder.join(file).display()),
        None => word,
    });
    let process = Process::start(&folder, "mcm-dev", Path::new(MCM), &words.collect::<Vec<_>>());
    wait_until("the hints", Duration::from_secs(60), || async {
        let log = process.log();
        if log.contains("second terminal") { Ok(()) } else { Err(log) }
    })
    .await;
    let log = process.log().replace(&format!("{}/", folder.display()), "");
    demand(start, &log);
    let blocks = others.iter().map(|step| format!("{}\necho; echo '{MARK}'\n", step.commands));
    let script = format!("exec 2>&1\n{}", blocks.collect::<String>());
    let programs = Path::new(MCM).parent().expect("a folder").display();
    let path = format!("{}:{programs}:{}", assets.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("PATH", path).env("HOME", &folder).current_dir(&folder);
    shell.stdin(Stdio::null()).kill_on_drop(true);
    let began = Instant::now();
    let done = tokio::time::timeout(2 * BAR, shell.output()).await.expect("the commands end").expect("a shell");
    let took = began.elapsed();
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    println!("{printed}");
    let outputs: Vec<&str> = printed.split(MARK).collect();
    assert_eq!(outputs.len(), others.len() + 1, "{printed}");
    for (step, output) in others.iter().zip(outputs) {
        demand(step, output);
    }
    assert!(took <= BAR, "the commands took {took:?}");
}

#[test]
fn a_pattern_matches_what_its_dots_leave_open() {
    for (pattern, lines, expected) in [
        (vec!["a …"], vec!["a b"], true),
        (vec!["a … c"], vec!["a   b   c"], true),
        (vec!["a … c"], vec!["a b d"], false),
        (vec!["a"], vec!["a b"], false),
        (vec!["…", "z"], vec!["x", "y", "z"], true),
        (vec!["…", "z"], vec!["x", "y"], false),
        (vec!["a", "…"], vec!["a"], true),
        (vec!["a"], vec!["a", "b"], false),
    ] {
        assert_eq!(matches(&pattern, &lines), expected, "{pattern:?} {lines:?}");
    }
}

#[test]
fn the_text_after_commands_is_their_output() {
    let document = "a\n```sh\nx\n```\n```text\ny\n```\n\n```sh\nz\n```\n";
    let step = |commands: &str, prints: Option<&str>| Step {
        commands: commands.to_owned(),
        prints: prints.map(str::to_owned),
    };
    assert_eq!(steps(document), [step("x", Some("y")), step("z", None)]);
}
