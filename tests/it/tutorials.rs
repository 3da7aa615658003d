//! The tutorials of the documents: the commands of their `sh` blocks run in order, and print what the `text` block after each says (PK-093).

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use example_driver::FolderDriver;
use jiff::Timestamp;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use machine_controller_manager::{DriverSet, cli};
use serde_json::Value;
use tokio::process::Command;

use crate::{
    go::halves::{GoHalf, Which},
    support::{
        assets,
        cluster_object::text,
        one_thread::list,
        ports::free_port,
        process::Process,
        rig::is_left_out,
        scratch::{count_ran, count_skipped, subfolder},
        wait::expect,
        wait_until,
    },
};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const MCM: &str = env!("CARGO_BIN_EXE_mcm");
/// Separates the outputs of blocks.
const MARK: &str = "---- the next block ----";
/// The commands of the first tutorial may take this long.
const BAR: Duration = Duration::from_secs(60);
/// After this time the commands of a tutorial hang.
const TIMEOUT: Duration = Duration::from_secs(240);
/// Variables for [`the_program_of_the_second_tutorial`]: its folder, and the words of its command line.
const FOLDER: &str = "MCM_TUTORIAL_FOLDER";
const WORDS: &str = "MCM_TUTORIAL_WORDS";

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
            // `the_code_of_the_second_tutorial_is_the_example` checks the code.
            ("rust" | "toml", _) => {}
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

/// A page with a tutorial, and the program that its first command starts.
struct Tutorial {
    test: &'static str,
    page: &'static str,
    program: Program,
    /// What the program prints when it is ready.
    ready: &'static str,
}

enum Program {
    /// `mcm …`
    Mcm,
    /// `cargo run -- …` in the crate of the second tutorial.
    WithFolderDriver,
}

impl Program {
    /// Starts the program in a folder with the words of a command.
    fn start(&self, folder: &Path, command: &str) -> Process {
        match self {
            Self::Mcm => {
                let words = command.strip_prefix("mcm ").expect("a command of mcm").split_whitespace();
                // The process has no working folder of its own.
                let words = words.map(|word| match word.strip_prefix("--kubeconfig=") {
                    Some(file) => format!("--kubeconfig={}", folder.join(file).display()),
                    None => word.to_owned(),
                });
                Process::start(folder, "program", Path::new(MCM), &words.collect::<Vec<_>>())
            }
            Self::WithFolderDriver => {
                let words = command.strip_prefix("cargo run -- ").expect("a command of the crate");
                let this = std::env::current_exe().expect("a path").display().to_string();
                let test = "tutorials::the_program_of_the_second_tutorial";
                let (folder_is, words_are) = (format!("{FOLDER}={}", folder.display()), format!("{WORDS}={words}"));
                let words = [&folder_is, &words_are, &this, "--ignored", "--exact", "--nocapture", test];
                Process::start(folder, "program", Path::new("/usr/bin/env"), &words.map(str::to_owned))
            }
        }
    }
}

/// A tutorial whose commands have run. The program still runs.
struct Done {
    folder: PathBuf,
    /// The time of the commands.
    took: Duration,
    _program: Process,
}

impl Tutorial {
    /// Runs the tutorial in a folder that `prepare` fills. `None` if the test is skipped.
    async fn run(&self, prepare: impl FnOnce(&Path)) -> Option<Done> {
        if is_left_out(self.test, "`mcm dev` is the same beside either") {
            return None;
        }
        let assets = match assets::find() {
            Ok(assets) => assets,
            Err(why) => {
                count_skipped(self.test, &why);
                return None;
            }
        };
        count_ran(self.test);
        let document = fs::read_to_string(Path::new(ROOT).join(self.page)).expect("UTF-8");
        // Two suites may run at the same time.
        let steps = steps(&document.replace("--port=10258", &format!("--port={}", free_port())));
        let (start, others) = steps.split_first().expect("steps");
        assert!(others.len() >= 5, "{} steps", others.len());
        let folder = subfolder(self.test.rsplit("::").next().expect("a name"));
        prepare(&folder);
        let program = self.program.start(&folder, &start.commands);
        wait_until(self.ready, Duration::from_secs(60), || async {
            expect(program.log().contains(self.ready), || program.log())
        })
        .await;
        demand(start, &program.log().replace(&format!("{}/", folder.display()), ""));
        let blocks = others.iter().map(|step| format!("{}\necho; echo '{MARK}'\n", step.commands));
        let script = format!("exec 2>&1\n{}", blocks.collect::<String>());
        let programs = Path::new(MCM).parent().expect("a folder").display();
        let path = format!("{}:{programs}:{}", assets.display(), std::env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).env("PATH", path).env("HOME", &folder).current_dir(&folder);
        shell.stdin(Stdio::null()).kill_on_drop(true);
        let began = Instant::now();
        let done = tokio::time::timeout(TIMEOUT, shell.output()).await.expect("the commands end").expect("a shell");
        let took = began.elapsed();
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        println!("{printed}");
        let outputs: Vec<&str> = printed.split(MARK).collect();
        assert_eq!(outputs.len(), others.len() + 1, "{printed}");
        for (step, output) in others.iter().zip(outputs) {
            demand(step, output);
        }
        Some(Done { folder, took, _program: program })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_093_the_first_tutorial_runs_as_it_is_written() {
    let tutorial = Tutorial {
        test: "tutorials::pk_093_the_first_tutorial",
        page: "docs/first-cluster.md",
        program: Program::Mcm,
        ready: "second terminal",
    };
    let Some(done) = tutorial.run(|_| {}).await else { return };
    assert!(done.took <= BAR, "the commands took {:?}", done.took);
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_093_the_second_tutorial_runs_as_it_is_written() {
    let tutorial = Tutorial {
        test: "tutorials::pk_093_the_second_tutorial",
        page: "docs/first-driver.md",
        program: Program::WithFolderDriver,
        ready: "second terminal",
    };
    tutorial.run(|_| {}).await;
}

/// The program of docs/first-driver.md in this binary, with the words of a command line. It ends when its test kills it.
#[test]
#[ignore = "a program that the test of the second tutorial starts"]
fn the_program_of_the_second_tutorial() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    std::env::set_current_dir(folder).expect("the folder is there");
    let words = std::env::var(WORDS).expect("the words of the command");
    let words = ["mcm"].into_iter().chain(words.split_whitespace()).map(OsString::from);
    let _ = cli::run(words, DriverSet::built_in().with(FolderDriver::new("vms")));
}

#[test]
fn pk_093_the_code_of_the_second_tutorial_is_the_example() {
    let read = |file: &str| fs::read_to_string(Path::new(ROOT).join(file)).expect("UTF-8");
    let (page, example) = (read("docs/first-driver.md"), read("examples/driver/src/lib.rs"));
    let blocks = page.split("\n```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("rust\n"));
    let (programs, pieces): (Vec<&str>, Vec<&str>) = blocks.partition(|block| block.contains("fn main()"));
    let (tests, pieces) = pieces.split_last().expect("pieces");
    let lines = |text: &str| text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let (driver, its_tests) = example.split_once("#[cfg(test)]").expect("tests");
    assert_eq!(pieces.iter().flat_map(|piece| lines(piece)).collect::<Vec<_>>(), lines(driver));
    let tests = tests.strip_prefix("#[cfg(test)]").and_then(|tests| tests.strip_suffix("\n}")).expect("a module");
    assert!(its_tests.contains(tests), "{tests}");
    // The documentation of `run_with` has the same `main`, and is compiled.
    assert_eq!(programs.len(), 1);
    assert!(
        programs[0].contains("run_with(DriverSet::built_in().with(FolderDriver::new(\"vms\")))"),
        "{}",
        programs[0]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_093_the_third_tutorial_runs_as_it_is_written() {
    let tutorial = Tutorial {
        test: "tutorials::pk_093_the_third_tutorial",
        page: "docs/from-go.md",
        program: Program::Mcm,
        ready: "kubeconfig:",
    };
    let recorded = |folder: &Path| {
        let fleet = folder.join("fleet");
        fs::create_dir(&fleet).expect("a folder");
        for file in fs::read_dir(Path::new(ROOT).join("tests/fixtures/go")).expect("a folder") {
            let file = file.expect("a file");
            fs::copy(file.path(), fleet.join(file.file_name())).expect("a copy");
        }
    };
    let Some(done) = tutorial.run(recorded).await else { return };
    let kubeconfig = Kubeconfig::read_from(done.folder.join("kubeconfig")).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a cluster");
    go_goes_on(&Client::try_from(config).expect("a client")).await;
}

/// Stand-ins for the Go programs work on the fleet, and replace no machine.
async fn go_goes_on(client: &Client) {
    const NAMESPACE: &str = "default";
    let machines = || async {
        let machines = list(client, "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machines").await;
        machines.iter().map(|machine| text(machine, "/metadata/name").to_owned()).collect::<BTreeSet<_>>()
    };
    let (before, began) = (machines().await, Timestamp::now());
    let _halves = [Which::Sets, Which::Machines].map(|half| GoHalf::start(half, client.clone(), NAMESPACE));
    wait_until("both Go programs to lead", TIMEOUT, || async {
        let leases = list(client, "/apis/coordination.k8s.io/v1/namespaces/default/leases").await;
        let renewed = |lease: &&Value| text(lease, "/spec/renewTime").parse().is_ok_and(|time: Timestamp| time > began);
        expect(leases.iter().filter(renewed).count() == 2, || format!("{leases:?}"))
    })
    .await;
    // Several passes over all sets and machines.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(machines().await, before);
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
