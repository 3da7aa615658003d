//! Finds etcd, kube-apiserver, kube-controller-manager and kubectl.
//!
//! `KUBEBUILDER_ASSETS` names their folder, as in other Kubernetes projects. Otherwise `scripts/test-assets` finds or builds them, which
//! takes some minutes the first time and needs Go.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

/// The path that a script of `scripts/` prints, or the error `otherwise` when it fails or prints nothing.
pub fn printed_by(script: &str, otherwise: &str) -> Result<PathBuf, String> {
    let script = format!("{}/scripts/{script}", env!("CARGO_MANIFEST_DIR"));
    let run = Command::new(&script)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{script} could not be started: {error}"))?;
    let printed = String::from_utf8_lossy(&run.stdout).trim().to_owned();
    if run.status.success() && !printed.is_empty() { Ok(PathBuf::from(printed)) } else { Err(otherwise.to_owned()) }
}

/// The folder with the programs, or why there is none.
pub fn find() -> Result<PathBuf, String> {
    let folder = printed_by(
        "test-assets",
        "there is no API server to test with: set KUBEBUILDER_ASSETS, or install Go and run scripts/test-assets",
    )?;
    for program in ["etcd", "kube-apiserver", "kubectl"] {
        if !folder.join(program).is_file() {
            return Err(format!("{} has no {program}", folder.display()));
        }
    }
    Ok(folder)
}
