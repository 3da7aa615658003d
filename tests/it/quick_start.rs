//! The quick start of README.md: the test runs its commands as they are written, in the cluster that the first command starts. The test also runs the
//! commands of docs/operations.md that change the storage version and change it back.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::process::Command;

use crate::support::{
    assets,
    process::Process,
    scratch::{count_ran, count_skipped, subfolder},
    wait_until,
};

const NAME: &str = "quick_start::every_command_works_as_in_the_readme";
const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
const OPERATIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md");
const MCM: &str = env!("CARGO_BIN_EXE_mcm");

/// A command of the quick start, and the comment after it.
struct Line {
    command: String,
    says: String,
}

/// The commands in a document between two phrases, with the comments after the commands.
fn lines(document: &str, after: &str, before: &str) -> Vec<Line> {
    let text = std::fs::read_to_string(document).expect(document);
    let (_, rest) = text.split_once(after).expect(after);
    let (commands, _) = rest.split_once(before).expect(before);
    commands
        .lines()
        .filter(|line| line.starts_with("kubectl ") || line.starts_with("mcm "))
        .map(|line| {
            let (command, says) =
                line.split_once("   #").unwrap_or_else(|| line.split_once(" #").unwrap_or((line, "")));
            Line { command: command.trim().to_owned(), says: says.trim().to_owned() }
        })
        .collect()
}

/// A shell in which `kubectl` and `mcm` are the programs under test.
fn shell(assets: &Path, kubeconfig: &Path, home: &Path, command: &str) -> Command {
    let programs = Path::new(MCM).parent().expect("a folder").display();
    let path = format!("{}:{programs}:{}", assets.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("PATH", path).env("KUBECONFIG", kubeconfig).env("HOME", home);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    shell
}

fn start(folder: &Path) -> (Process, PathBuf) {
    let kubeconfig = folder.join("kubeconfig");
    let arguments = ["dev", "--example", &format!("--kubeconfig={}", kubeconfig.display())].map(str::to_owned);
    (Process::start(folder, "mcm-dev", Path::new(MCM), &arguments), kubeconfig)
}

async fn wait_for_hints(process: &Process) {
    wait_until("the hints", Duration::from_secs(60), || async {
        let log = process.log();
        if log.contains("kubectl get machineoutlooks") { Ok(()) } else { Err(log) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_122_the_storage_goes_forth_and_back_as_the_document_says() {
    const NAME: &str = "quick_start::pk_122_the_storage_goes_forth_and_back";
    let assets = match assets::find() {
        Ok(assets) => assets,
        Err(why) => return count_skipped(NAME, &why),
    };
    count_ran(NAME);
    let folder = subfolder("both-versions");
    let (process, kubeconfig) = start(&folder);
    wait_for_hints(&process).await;
    let lines = lines(OPERATIONS, "Forth and back on any cluster", "**Don't apply the default definitions");
    let commented = lines.iter().filter(|line| !line.says.is_empty()).count();
    assert!(lines.len() >= 6 && commented >= 2, "{} commands are found", lines.len());
    for Line { command, says } in &lines {
        let done = shell(&assets, &kubeconfig, &folder, command).output();
        let done = tokio::time::timeout(Duration::from_secs(120), done).await;
        let done = done.unwrap_or_else(|_| panic!("{command} does not end")).expect("its output");
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        println!("$ {command}\n{out}{err}");
        assert!(done.status.success() && !out.is_empty() && out.contains(says.as_str()), "{command}: {out}{err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_works_as_in_the_readme() {
    let assets = match assets::find() {
        Ok(assets) => assets,
        Err(why) => return count_skipped(NAME, &why),
    };
    count_ran(NAME);
    let folder = subfolder("quick-start");
    let (process, kubeconfig) = start(&folder);
    wait_for_hints(&process).await;
    let lines = lines(README, "in a second terminal:", "The VMs of `mcm dev` are simulated");
    assert!(lines.len() >= 10, "{} commands are found", lines.len());
    let hints = process.log();
    for line in &lines[..3] {
        assert!(hints.contains(&line.command), "the program prints this command too: {}", line.command);
    }
    for Line { command, says } in &lines {
        let mut shell = shell(&assets, &kubeconfig, &folder, command);
        let child = shell.spawn().expect("a shell");
        if command.ends_with("--watch") {
            // The command runs until it is killed.
            let ended = tokio::time::timeout(Duration::from_secs(2), child.wait_with_output()).await;
            assert!(ended.is_err(), "{command}: {ended:?}");
            continue;
        }
        let done = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await;
        let done = done.unwrap_or_else(|_| panic!("{command} does not end")).expect("its output");
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        println!("$ {command}\n{out}{err}");
        if says.starts_with("refused") {
            assert!(!done.status.success() && err.contains("spec.selector: Required value"), "{command}: {out}{err}");
        } else {
            assert!(done.status.success() && !out.is_empty(), "{command}: {out}{err}");
        }
    }
    wait_until("all machines to be deleted by the last command", Duration::from_secs(60), || async {
        let mut shell = shell(&assets, &kubeconfig, &folder, "kubectl get machines,nodes -o name");
        let left = shell.output().await.expect("kubectl");
        let left = String::from_utf8_lossy(&left.stdout).into_owned();
        if left.trim().is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}
