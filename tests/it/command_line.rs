//! Runs the binary as a user does: exit codes, streams and messages.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

fn mcm(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mcm")).args(arguments).output().expect("mcm runs")
}

/// Runs with a text on standard input.
fn with_input(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_mcm"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mcm starts");
    child.stdin.take().expect("stdin is piped").write_all(input.as_bytes()).expect("mcm reads");
    child.wait_with_output().expect("mcm ends")
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
fn manifests_are_checked_offline_with_the_admission_rules() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/manifests");
    let output =
        mcm(&["validate", "-f", &format!("{seeds}/machineclass.yaml"), "-f", &format!("{seeds}/secrets.yaml")]);
    assert_eq!(output.status.code(), Some(0), "{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
    let broken = "{apiVersion: machine.sapcloud.io/v1alpha1, kind: Machine, metadata: {name: m}, spec: {}}";
    let output = with_input(&["validate", "-f", "-"], broken);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("spec.class.name") && said.contains("Name is required"), "{said}");
}

#[test]
fn manifests_are_converted_there_and_back() {
    let seed = include_str!("../manifests/machinedeployment.yaml");
    let there = with_input(&["convert", "-f", "-", "--to", "v1beta1"], seed);
    let there = String::from_utf8(there.stdout).unwrap();
    assert!(there.contains("machine.sapcloud.io/v1beta1"), "{there}");
    let back = with_input(&["convert", "-f", "-", "--to", "v1alpha1"], &there);
    let back = String::from_utf8(back.stdout).unwrap();
    assert!(back.contains("machine.sapcloud.io/v1alpha1") && back.contains("minReadySeconds: 500"), "{back}");
    let missing = mcm(&["convert", "-f", "/no/such/file", "--to", "v1beta1"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("/no/such/file"));
}

#[test]
fn the_version_is_printed_as_text_and_as_json() {
    let text = String::from_utf8(mcm(&["version"]).stdout).unwrap();
    assert!(text.starts_with(concat!("mcm ", env!("CARGO_PKG_VERSION"))), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&mcm(&["version", "-o", "json"]).stdout).unwrap();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["storageVersion"], "machine.sapcloud.io/v1alpha1");
}

#[test]
fn completions_contain_the_commands() {
    let script = String::from_utf8(mcm(&["completion", "bash"]).stdout).unwrap();
    assert!(script.contains("manifests") && script.contains("--target-kubeconfig"));
}

#[test]
fn a_closed_output_pipe_is_no_failure() {
    let piped = Command::new("sh")
        .args(["-c", r#""$1" completion bash | true; "$1" manifests rbac | head -n1"#, "sh", env!("CARGO_BIN_EXE_mcm")])
        .output()
        .expect("sh runs");
    assert_eq!(stderr(&piped), "");
}
