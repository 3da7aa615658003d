//! The binary from outside: exit codes, streams and messages.

use std::process::{Command, Output};

fn mcm(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mcm")).args(arguments).output().expect("mcm runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_wrong_flag_is_named_and_the_exit_code_is_2() {
    let output = mcm(&["serve", "--port=70000", "--kube_api_qps=0", "-leader-elect=false"]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(text.contains("invalid port number provided: got 70000"), "{text}");
    assert!(text.contains("kube api qps should be greater than zero"), "{text}");
}

#[test]
fn an_unknown_flag_is_wrong_usage() {
    let output = mcm(&["serve", "--no-such-flag"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--no-such-flag"));
}

#[test]
fn the_version_is_printed_for_people_and_programs() {
    let text = String::from_utf8(mcm(&["version"]).stdout).unwrap();
    assert!(text.starts_with(concat!("mcm ", env!("CARGO_PKG_VERSION"))), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&mcm(&["version", "-o", "json"]).stdout).unwrap();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["storageVersion"], "machine.sapcloud.io/v1alpha1");
}

#[test]
fn completions_know_the_commands() {
    let script = String::from_utf8(mcm(&["completion", "bash"]).stdout).unwrap();
    assert!(script.contains("manifests") && script.contains("--target-kubeconfig"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let piped = Command::new("sh")
        .args(["-c", r#""$1" completion bash | true; "$1" manifests rbac | head -n1"#, "sh", env!("CARGO_BIN_EXE_mcm")])
        .output()
        .expect("sh runs");
    assert_eq!(stderr(&piped), "");
}
