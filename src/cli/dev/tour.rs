//! `mcm dev --tour`: runs the commands of README's quick start one after the other and prints their output.
//!
//! The commands come from README itself, so that both always say the same. What a command is expected to do stands in its comment.
//! Source: spec/packaging §1.3, PK-005.

use std::{
    io::{IsTerminal, Write},
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use tokio::process::Command;

const README: &str = include_str!("../../../README.md");
/// The lines of README around the commands of the quick start.
const BEGIN: &str = "in a second terminal:";
const END: &str = "The VMs of `mcm dev` are simulated";
/// How long a command runs that would never end by itself.
const WATCHED: Duration = Duration::from_secs(3);
/// How long any other command may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a command of the tour is expected to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// It succeeds.
    Success,
    /// It is refused, which is what it is there to show.
    Refusal,
    /// It runs until it is stopped.
    Watching,
}

/// A command of README, and the comment after it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    command: String,
    comment: String,
    expected: Expected,
}

/// Why a tour ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum TourError {
    /// A command did not do what README says of it.
    #[error("{command}: {fault}")]
    Command {
        /// The command.
        command: String,
        /// What it did instead.
        fault: String,
    },
    /// The terminal can't be used.
    #[error("the tour can't be shown: {0}")]
    Terminal(#[from] std::io::Error),
}

/// The commands of a text like README, in order.
fn steps(readme: &str) -> Vec<Step> {
    let after = readme.split_once(BEGIN).map_or("", |(_, rest)| rest);
    let commands = after.split_once(END).map_or(after, |(commands, _)| commands);
    commands.lines().filter(|line| line.starts_with("kubectl ")).map(step).collect()
}

fn step(line: &str) -> Step {
    let (command, comment) = line.split_once(" #").unwrap_or((line, ""));
    let (command, comment) = (command.trim().to_owned(), comment.trim().to_owned());
    let expected = if comment.starts_with("refused") {
        Expected::Refusal
    } else if command.ends_with("--watch") {
        Expected::Watching
    } else {
        Expected::Success
    };
    Step { command, comment, expected }
}

/// What is wrong with the end of a command, if anything is.
fn fault(expected: Expected, ended: &Output) -> Option<String> {
    let as_expected = match expected {
        Expected::Success => ended.status.success(),
        Expected::Refusal => !ended.status.success(),
        Expected::Watching => true,
    };
    let with_advice = |code: i32| match code {
        127 => "kubectl is not on the PATH; the tour needs it".to_owned(),
        0 => "it succeeded, and README says that it is refused".to_owned(),
        code => format!("it ended with code {code}"),
    };
    (!as_expected).then(|| ended.status.code().map_or_else(|| "a signal ended it".to_owned(), with_advice))
}

/// Shows the commands of README with their output. On a terminal it asks before each. Returns when all are done, or when the user has
/// enough.
///
/// # Errors
/// [`TourError`] when a command fails, or the terminal can't be used.
pub(super) async fn run(kubeconfig: &Path, out: &mut (dyn Write + Send)) -> Result<(), TourError> {
    let asks = std::io::stdin().is_terminal();
    for step in steps(README) {
        if !step.comment.is_empty() {
            writeln!(out, "\n# {}", step.comment)?;
        }
        writeln!(out, "$ {}", step.command)?;
        match if asks { ask(out).await? } else { Answer::Run } {
            Answer::Run => {}
            Answer::Skip => continue,
            Answer::End => return Ok(()),
        }
        out.flush()?;
        let ended = output(&step, kubeconfig).await?;
        out.write_all(&ended.stdout)?;
        out.write_all(&ended.stderr)?;
        out.flush()?;
        if let Some(fault) = fault(step.expected, &ended) {
            return Err(TourError::Command { command: step.command, fault });
        }
    }
    Ok(())
}

/// What the user wants to happen with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Run,
    Skip,
    End,
}

impl Answer {
    /// The answer in a line of input; without a line the input has ended.
    fn of(line: &str) -> Self {
        match line.trim() {
            _ if line.is_empty() => Self::End,
            "s" | "skip" => Self::Skip,
            "q" | "quit" => Self::End,
            _ => Self::Run,
        }
    }
}

async fn ask(out: &mut (dyn Write + Send)) -> std::io::Result<Answer> {
    write!(out, "  [Enter] run, [s] skip, [q] quit: ")?;
    out.flush()?;
    let read = || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    };
    let line = tokio::task::spawn_blocking(read).await.map_err(std::io::Error::other)??;
    Ok(Answer::of(&line))
}

/// Runs a command of README in a shell, for at most its time.
async fn output(step: &Step, kubeconfig: &Path) -> Result<Output, TourError> {
    let mut shell = Command::new("sh");
    // `exec`, so that a stopped command leaves no child.
    shell.args(["-c", &format!("exec {}", step.command)]).env("KUBECONFIG", kubeconfig);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let failed = |fault: String| TourError::Command { command: step.command.clone(), fault };
    if step.expected == Expected::Watching {
        let seconds = WATCHED.as_secs().to_string();
        let mut stopped = Command::new("timeout");
        stopped.args([&seconds, "sh", "-c", &format!("exec {}", step.command)]).env("KUBECONFIG", kubeconfig);
        stopped.stdin(Stdio::null()).kill_on_drop(true);
        shell = stopped;
    }
    match tokio::time::timeout(PATIENCE, shell.output()).await {
        Ok(ended) => ended.map_err(|error| failed(format!("it can't be started: {error}"))),
        Err(_) => Err(failed(format!("it did not end within {} s", PATIENCE.as_secs()))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn pk_005_the_commands_come_from_the_readme() {
        let all = steps(README);
        let expecting = |expected| all.iter().filter(|step| step.expected == expected).count();
        assert!(all.len() >= 10, "{all:?}");
        assert_eq!((expecting(Expected::Refusal), expecting(Expected::Watching)), (1, 1), "{all:?}");
        assert!(all.iter().any(|step| step.comment.starts_with("why each machine")), "{all:?}");
    }

    #[test]
    fn a_step_is_a_command_and_its_comment() {
        let refused = step("kubectl patch x -p '{\"a\": \"#\"}'   # refused, with the path");
        assert_eq!(refused.command, "kubectl patch x -p '{\"a\": \"#\"}'");
        assert_eq!((refused.comment.as_str(), refused.expected), ("refused, with the path", Expected::Refusal));
        assert_eq!(step("kubectl get machines --watch  # until Ctrl-C").expected, Expected::Watching);
        assert_eq!(step("kubectl get machines").expected, Expected::Success);
    }

    #[test]
    fn a_fault_is_an_end_that_the_readme_does_not_announce() {
        let ended = |code: i32| Output {
            status: std::process::ExitStatus::from_raw(code << 8),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        assert_eq!(fault(Expected::Success, &ended(0)), None);
        assert_eq!(fault(Expected::Refusal, &ended(1)), None);
        assert_eq!(fault(Expected::Watching, &ended(124)), None);
        assert_eq!(fault(Expected::Success, &ended(1)).as_deref(), Some("it ended with code 1"));
        assert!(fault(Expected::Success, &ended(127)).is_some_and(|fault| fault.contains("PATH")));
        assert!(fault(Expected::Refusal, &ended(0)).is_some_and(|fault| fault.contains("README")));
    }

    #[test]
    fn answers_are_a_letter_or_nothing() {
        let answers = ["\n", "s\n", " q \n", "yes\n", ""].map(Answer::of);
        assert_eq!(answers, [Answer::Run, Answer::Skip, Answer::End, Answer::Run, Answer::End]);
    }
}
