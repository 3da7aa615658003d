//! Where etcd, kube-apiserver, kube-controller-manager and kubectl are.
//!
//! `KUBEBUILDER_ASSETS` names the folder, as every Kubernetes developer knows it; else `scripts/test-assets` finds or builds
//! it, which takes minutes once and needs Go.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

/// The folder with the programs, or why there is none.
pub fn find() -> Result<PathBuf, String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/test-assets");
    let run = Command::new(script)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{script} could not be started: {error}"))?;
    let printed = String::from_utf8_lossy(&run.stdout).trim().to_owned();
    if !run.status.success() || printed.is_empty() {
        return Err("there is no API server to test with: set KUBEBUILDER_ASSETS, or install Go and run \
                    scripts/test-assets"
            .to_owned());
    }
    let folder = PathBuf::from(printed);
    for program in ["etcd", "kube-apiserver", "kubectl"] {
        if !folder.join(program).is_file() {
            return Err(format!("{} has no {program}", folder.display()));
        }
    }
    Ok(folder)
}
