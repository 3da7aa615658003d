//! Runs kubectl.

use std::{path::PathBuf, process::Stdio};

use serde_json::Value;
use tokio::{io::AsyncWriteExt, process::Command};

/// kubectl with a kubeconfig and perhaps a namespace.
#[derive(Clone, Debug)]
pub struct Kubectl {
    pub program: PathBuf,
    pub kubeconfig: PathBuf,
    pub namespace: Option<String>,
    /// HOME of kubectl, which caches discovery there.
    pub home: PathBuf,
}

/// The result of a run of kubectl.
#[derive(Clone, Debug)]
pub struct Answer {
    command: String,
    succeeded: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Kubectl {
    pub async fn run(&self, arguments: &[&str], input: Option<&str>) -> Answer {
        self.run_with(&[], arguments, input).await
    }

    /// Runs kubectl with further environment variables.
    pub async fn run_with(&self, variables: &[(&str, &str)], arguments: &[&str], input: Option<&str>) -> Answer {
        let mut command = Command::new(&self.program);
        command.envs(variables.iter().copied());
        command.arg("--kubeconfig").arg(&self.kubeconfig).env("HOME", &self.home).kill_on_drop(true);
        if let Some(namespace) = &self.namespace {
            command.args(["--namespace", namespace]);
        }
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let input = input.unwrap_or_default().to_owned();
        // Writing and reading run at the same time, so that no pipe fills up. kubectl may end before it has read everything.
        let writing = tokio::spawn(async move {
            let _ = stdin.write_all(input.as_bytes()).await;
        });
        let output = child.wait_with_output().await.expect("kubectl ends");
        let _ = writing.await;
        Answer {
            command: format!("kubectl {}", arguments.join(" ")),
            succeeded: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Answer {
    /// Whether the exit code was 0.
    pub fn succeeded(&self) -> bool {
        self.succeeded
    }

    /// Standard output of a run that must have succeeded.
    #[track_caller]
    pub fn succeed(self) -> String {
        assert!(self.succeeded, "{} failed:\n{}{}", self.command, self.stdout, self.stderr);
        self.stdout
    }

    /// Standard error of a run that must have failed.
    #[track_caller]
    pub fn fail(self) -> String {
        assert!(!self.succeeded, "{} succeeded, but should not have:\n{}", self.command, self.stdout);
        self.stderr
    }

    /// Standard output read as JSON.
    #[track_caller]
    pub fn json(self) -> Value {
        let command = self.command.clone();
        let text = self.succeed();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command} printed no JSON ({error}):\n{text}"))
    }
}
