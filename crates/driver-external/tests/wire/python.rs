//! Tests with the driver in Python of `examples/python-driver`, as a program that this process runs. It uses another implementation of gRPC.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command, time::Duration};

use driver_external::{ExternalDriver, Options, Place};
use machine_driver::{
    CancellationToken, Code, Driver, Machine, MachineClass, MachineRequest, OpContext, SecretData, contract,
};

use crate::{peer::until, program_of};

const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python-driver/driver.py");

/// The driver as a program without arguments. Its cloud is in this folder.
fn program(python: &Path, folder: &Path) -> std::path::PathBuf {
    let (program, cloud) = (folder.join("driver"), folder.join("cloud"));
    // The script writes its process id, so that the test can kill the driver.
    let script = format!(
        "#!/bin/sh\necho $$ > '{}'\nexec '{}' '{DRIVER}' --cloud '{}'\n",
        folder.join("pid").display(),
        python.display(),
        cloud.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_holds_for_the_driver_in_python() {
    let Some(python) = program_of("test-python") else { return };
    let folder = tempfile::tempdir().unwrap();
    let driver = ExternalDriver::new(Options::new("files", Place::Program(program(&python, folder.path()))));
    let stop = CancellationToken::new();
    let tasks = driver.begin(stop.clone()).await.unwrap();
    let running: Vec<_> = tasks.into_iter().map(|task| tokio::spawn(task.run)).collect();
    until(|| driver.accepted().is_some()).await;

    let provider_spec = serde_json::json!({ "cluster": "shoot-a", "size": "small" });
    let class = MachineClass { provider: "files".to_owned(), provider_spec, ..MachineClass::default() };
    contract::holds_for(&driver, class.clone(), SecretData::default()).await;

    // A driver that is killed is started again and finds the VM again.
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
