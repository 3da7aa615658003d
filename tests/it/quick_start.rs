//! The quick start of README.md, word by word: its commands are run as they stand there, against the cluster that it starts.

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

const NAME: &str = "quick_start::every_command_does_what_the_readme_says";
const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");

/// A command of the quick start, and what its line says of it.
struct Line {
    command: String,
    says: String,
}

/// The commands for the second terminal: the blocks between the start of the cluster and what is told of it afterwards.
fn lines() -> Vec<Line> {
    let text = std::fs::read_to_string(README).expect("README.md");
    let (_, after) = text.split_once("in a second terminal:").expect("the hint");
    let (commands, _) = after.split_once("The VMs of `mcm dev` are simulated").expect("what is told of it");
    commands
        .lines()
        .filter(|line| line.starts_with("kubectl "))
        .map(|line| {
            let (command, says) =
                line.split_once("   #").unwrap_or_else(|| line.split_once(" #").unwrap_or((line, "")));
            Line { command: command.trim().to_owned(), says: says.trim().to_owned() }
        })
        .collect()
}

/// A shell in which `kubectl` is that of the tests.
fn shell(assets: &Path, kubeconfig: &Path, home: &Path, command: &str) -> Command {
    let path = format!("{}:{}", assets.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("PATH", path).env("KUBECONFIG", kubeconfig).env("HOME", home);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    shell
}

fn start(folder: &Path) -> (Process, PathBuf) {
    let kubeconfig = folder.join("kubeconfig");
    let arguments = ["dev", "--example", &format!("--kubeconfig={}", kubeconfig.display())].map(str::to_owned);
    (Process::start(folder, "mcm-dev", Path::new(env!("CARGO_BIN_EXE_mcm")), &arguments), kubeconfig)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_does_what_the_readme_says() {
    let assets = match assets::find() {
        Ok(assets) => assets,
        Err(why) => return count_skipped(NAME, &why),
    };
    count_ran(NAME);
    let folder = subfolder("quick-start");
    let (process, kubeconfig) = start(&folder);
    wait_until("the hints", Duration::from_secs(60), || async {
        let log = process.log();
        if log.contains("kubectl get machineoutlooks") { Ok(()) } else { Err(log) }
    })
    .await;
    let lines = lines();
    assert!(lines.len() >= 10, "{} commands are found", lines.len());
    let hints = process.log();
    for line in &lines[..3] {
        assert!(hints.contains(&line.command), "the program itself says so too: {}", line.command);
    }
    for Line { command, says } in &lines {
        let mut shell = shell(&assets, &kubeconfig, &folder, command);
        let child = shell.spawn().expect("a shell");
        if command.ends_with("--watch") {
            // It lasts until somebody ends it.
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
    wait_until("all machines to be gone, as the last command wants", Duration::from_secs(60), || async {
        let mut shell = shell(&assets, &kubeconfig, &folder, "kubectl get machines,nodes -o name");
        let left = shell.output().await.expect("kubectl");
        let left = String::from_utf8_lossy(&left.stdout).into_owned();
        if left.trim().is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}
