//! The program under the names of the Go binaries. A pod that was written for them has a container for each half. Each container has the command
//! `./machine-controller-manager` or only flags, and gets the flags of its half.

use std::{os::unix::fs::symlink, path::Path, time::Duration};

use crate::{
    fleet,
    support::{
        Rig, Rights,
        cluster_object::text,
        manager::{SWIFT_CLOUD, request},
        ports::free_port,
        process::Process,
        wait::expect,
        wait_until,
    },
};

const CONTROLLER_MANAGER: &str = "machine-controller-manager";
const MACHINE_CONTROLLER: &str = "machine-controller";

/// Starts a half by its name, in its own folder.
fn start(rig: &Rig, half: &str, flags: &[String]) -> Process {
    let program = rig.folder.join(half);
    symlink(env!("CARGO_BIN_EXE_mcm"), &program).expect("the rig's folder is writable");
    Process::start(&rig.folder, half, Path::new(&program), flags)
}

async fn metrics(port: u16) -> String {
    request(port, "GET", "/metrics", "").await.map(|(_, body)| body).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_halves_run_side_by_side_each_with_its_lease_its_port_and_its_flags() {
    let Some(rig) = Rig::own("halves::both_halves_run_side_by_side").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("halves").await;
    let kubeconfig = rig.manager_kubeconfig(&namespace, Rights::Everything).await.display().to_string();
    let simulation = rig.folder.join("halves.yaml");
    std::fs::write(&simulation, SWIFT_CLOUD).expect("the rig's folder is writable");
    let (port, machine_port) = (free_port(), free_port());
    let with = |port: u16, flags: &[&str]| {
        let mut all = vec![
            format!("--control-kubeconfig={kubeconfig}"),
            format!("--target-kubeconfig={kubeconfig}"),
            format!("--namespace={}", namespace.name),
            format!("--port={port}"),
            "--address=127.0.0.1".to_owned(),
            "--v=3".to_owned(),
        ];
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
        all
    };
    let first = with(port, &["--safety-up=2", "--safety-down=1", "--machine-safety-overshooting-period=1m"]);
    let second = with(
        machine_port,
        &[
            "--machine-creation-timeout=20m",
            "--machine-drain-timeout=2h",
            "--machine-safety-orphan-vms-period=30m",
            "--enable-simulation",
            &format!("--simulation-config={}", simulation.display()),
            "--logging-format=klog",
        ],
    );
    let mut manager = start(&rig, CONTROLLER_MANAGER, &first);
    let mut machines = start(&rig, MACHINE_CONTROLLER, &second);
    namespace.apply(&fleet::manifests(&namespace.name, "pool", 2, "c")).await.succeed();
    fleet::running_machines(&namespace, 2, Duration::from_secs(60)).await;

    let holder = async |lease: &str| text(&namespace.get("lease", lease).await, "/spec/holderIdentity").to_owned();
    assert!(!holder(CONTROLLER_MANAGER).await.is_empty() && !holder(MACHINE_CONTROLLER).await.is_empty());
    for (port, own, others) in [(port, "machinedeployment", "machine"), (machine_port, "machine", "machinedeployment")]
    {
        let page = metrics(port).await;
        let queue = |name: &str| page.contains(&format!("mcm_workqueue_adds_total{{name=\"{name}\"}}"));
        assert!(queue(own) && !queue(others), "{own}:\n{page}");
    }
    let secrets = namespace.list("secrets").await;
    assert_eq!(secrets.len(), 1, "no certificate where no port serves TLS: {secrets:?}");
    assert!(!manager.log().contains("virtual cloud starts"), "a simulated cloud must not run twice: {}", manager.log());
    // One half ends and releases its Lease; the other half continues.
    manager.signal("TERM");
    assert_eq!(manager.wait(Duration::from_secs(30)), 0, "{}", manager.log());
    wait_until("its Lease to be free", Duration::from_secs(10), || async {
        let holder = holder(CONTROLLER_MANAGER).await;
        expect(holder.is_empty(), || holder.clone())
    })
    .await;
    assert!(!holder(MACHINE_CONTROLLER).await.is_empty());
    machines.signal("TERM");
    assert_eq!(machines.wait(Duration::from_secs(30)), 0, "{}", machines.log());
    for line in machines.log().lines() {
        let (head, _) = line.split_once("] ").unwrap_or_default();
        let words: Vec<&str> = head.split_whitespace().collect();
        let is_klog = words.len() == 4
            && words[0].starts_with(['I', 'W', 'E'])
            && words[0][1..].len() == 4
            && words[0][1..].bytes().all(|byte| byte.is_ascii_digit())
            && words[2].parse::<u32>().is_ok();
        assert!(is_klog, "not a line of klog: {line}");
    }
}
