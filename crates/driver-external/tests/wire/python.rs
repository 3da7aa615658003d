//! The driver in Python of `examples/python-driver`, as a program that this process runs: another implementation of gRPC.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use driver_external::{ExternalDriver, Options, Place};
use machine_driver::{
    CancellationToken, Code, Driver, Machine, MachineClass, MachineRequest, OpContext, SecretData, contract,
};

use crate::peer::until;

const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python-driver/driver.py");

/// A Python that has what the driver needs: the one of `MCM_TEST_PYTHON`, or `python3`.
fn python() -> Option<String> {
    let python = std::env::var("MCM_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut asked = Command::new(&python);
    let asked = asked.args(["-c", "import grpc, grpc_tools"]).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success()).then_some(python)
}

/// The driver over a cloud in this folder, as a program without arguments.
fn program(python: &str, folder: &Path) -> std::path::PathBuf {
    let (program, cloud) = (folder.join("driver"), folder.join("cloud"));
    // It tells who runs, so that a test can kill it.
    let script = format!(
        "#!/bin/sh\necho $$ > '{}'\nexec '{python}' '{DRIVER}' --cloud '{}'\n",
        folder.join("pid").display(),
        cloud.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_holds_for_the_driver_in_python() {
    let Some(python) = python() else {
        // Not eprintln!: its output is captured for tests that pass.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED driver-external: no Python with grpcio and grpcio-tools (MCM_TEST_PYTHON)"
        );
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let driver = ExternalDriver::new(Options::new("files", Place::Program(program(&python, folder.path()))));
    let stop = CancellationToken::new();
    let tasks = driver.begin(stop.clone()).await.unwrap();
    let running: Vec<_> = tasks.into_iter().map(|task| tokio::spawn(task.run)).collect();
    until(|| driver.accepted().is_some()).await;

    let provider_spec = serde_json::json!({ "cluster": "shoot-a", "size": "small" });
    let class = MachineClass { provider: "files".to_owned(), provider_spec, ..MachineClass::default() };
    contract::holds_for(&driver, class.clone(), SecretData::default()).await;

    // A driver that is killed is started again, and what it made is found again.
    let mut machine = Machine::default();
    machine.metadata.name = Some("worker-1".to_owned());
    let request = MachineRequest { machine: machine.into(), class: class.into(), secret: SecretData::default() };
    let cx = || OpContext::within(Duration::from_secs(10));
    let made = driver.create_machine(&cx(), request.clone()).await.unwrap().vm;
    let pid = fs::read_to_string(folder.path().join("pid")).unwrap();
    assert!(Command::new("kill").args(["-9", pid.trim()]).status().unwrap().success());
    let mut found = driver.get_machine_status(&cx(), request.clone()).await;
    for _ in 0..300 {
        match &found {
            Err(status) => assert_eq!(status.code, Code::Unavailable, "{status}"),
            Ok(_) if fs::read_to_string(folder.path().join("pid")).unwrap() != pid => break,
            Ok(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        found = driver.get_machine_status(&cx(), request.clone()).await;
    }
    assert_eq!(found.unwrap(), made);

    stop.cancel();
    for task in running {
        tokio::time::timeout(Duration::from_secs(10), task).await.expect("it ends with the leadership").unwrap();
    }
}
