//! How `mcm serve` ends, and which process leads afterwards.

use std::time::Duration;

use serde_json::Value;

use crate::support::{
    ManagerOptions, Rig, TestManager,
    cluster_object::{name, text},
    wait::expect,
    wait_until,
};

const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn readiness_ends_first_then_the_lease_and_a_second_signal_ends_the_process() {
    let Some(rig) = Rig::shared("shutdown::readiness_ends_first").await else { return };
    let namespace = rig.namespace("shutdown").await;
    let flags = ["--leader-elect=true", "--shutdown-delay-duration=10m"].map(str::to_owned).to_vec();
    let options = ManagerOptions { flags, ..ManagerOptions::default() };
    let mut manager = TestManager::start(&rig, &namespace, &options).await;
    let holder = async |name: &str| {
        let lease = namespace.get("lease", name).await;
        text(&lease, "/spec/holderIdentity").to_owned()
    };
    for lease in ["machine-controller-manager", "machine-controller"] {
        wait_until("the lease to be held", TIMEOUT, || async {
            let leases = namespace.list("leases").await;
            let held = |found: &Value| name(found) == lease && !text(found, "/spec/holderIdentity").is_empty();
            expect(leases.iter().any(held), || format!("{leases:?}"))
        })
        .await;
    }

    // `timeout` and supervisors send a signal to a process and to its group: both count as one request.
    let asked = tokio::time::Instant::now();
    manager.signal("TERM");
    manager.signal("TERM");
    wait_until("readiness to go", TIMEOUT, || async {
        let (status, report) = manager.http("/readyz").await;
        expect(status == 500 && report.contains("[-]shutdown failed"), || format!("{status}: {report}"))
    })
    .await;
    for lease in ["machine-controller-manager", "machine-controller"] {
        wait_until("the lease to be given back", TIMEOUT, || async {
            let holder = holder(lease).await;
            expect(holder.is_empty(), || format!("{lease} is held by {holder}"))
        })
        .await;
    }
    assert_eq!(manager.http("/livez").await.0, 200, "load balancers have ten minutes to react");

    // Signals within one second count as one request.
    tokio::time::sleep_until(asked + Duration::from_secs(2)).await;
    manager.signal("TERM");
    assert_eq!(manager.wait(TIMEOUT), 1);
    assert!(manager.log().contains("stopped by a second signal"), "{}", manager.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_031_a_process_ends_within_30_s_after_its_kubeconfig_has_changed() {
    let Some(rig) = Rig::shared("shutdown::pk_031_kubeconfig").await else { return };
    let namespace = rig.namespace("reload").await;
    let options = ManagerOptions::default();
    let original = rig.manager_kubeconfig(&namespace, options.rights).await;
    let copy = rig.folder.join(format!("{}-kubeconfig", namespace.name));
    std::fs::copy(&original, &copy).expect("the rig's folder is writable");
    let path = copy.display();
    let flags = [format!("--control-kubeconfig={path}"), format!("--target-kubeconfig={path}")];
    let flags = flags.into_iter().chain(["--kubeconfig-reload=exit".to_owned()]).collect();
    let mut manager = TestManager::start(&rig, &namespace, &ManagerOptions { flags, ..options }).await;
    let text = std::fs::read_to_string(&copy).expect("the copy is there");
    std::fs::write(&copy, format!("{text}\n# another token\n")).expect("the rig's folder is writable");
    assert_eq!(manager.wait(TIMEOUT), 0, "it ends as after a signal: {}", manager.log());
    for line in ["the kubeconfig has new content", "stopped"] {
        assert!(manager.log().contains(line), "{line}: {}", manager.log());
    }
}

/// The log lines in which a process reports that it leads.
fn leads(manager: &TestManager) -> Vec<String> {
    manager.log().lines().filter(|line| line.contains("leading identity=")).map(str::to_owned).collect()
}

/// The identities of two processes on one host differ in their suffixes.
#[tokio::test(flavor = "multi_thread")]
async fn pk_039_of_two_processes_on_one_host_one_leads_and_the_other_follows_it() {
    let Some(rig) = Rig::shared("shutdown::pk_039_two_processes").await else { return };
    let namespace = rig.namespace("one-host").await;
    let options = ManagerOptions { flags: vec!["--leader-elect=true".to_owned()], ..ManagerOptions::default() };
    let names = ["first", "second"].map(|which| format!("{}-{which}", namespace.name));
    let (first, second) = futures::join!(
        TestManager::start_as(&names[0], &rig, &namespace, &options),
        TestManager::start_as(&names[1], &rig, &namespace, &options)
    );
    let mut all = [first, second];
    wait_until("one process to lead and the other to stand by for both Leases", TIMEOUT, || async {
        let leading = all.iter().filter(|manager| !leads(manager).is_empty()).count();
        let stands_by = |manager: &TestManager| manager.log().matches("somebody else leads; standing by").count() >= 2;
        let standing_by = all.iter().filter(|manager| stands_by(manager)).count();
        expect(leading >= 1 && standing_by == 1, || format!("{leading} lead, {standing_by} stand by"))
    })
    .await;
    let holder = async || {
        let leases = ["machine-controller-manager", "machine-controller"];
        let [one, two] = leases.map(|lease| namespace.get("lease", lease));
        let (one, two) = futures::join!(one, two);
        let holder = text(&one, "/spec/holderIdentity").to_owned();
        assert_eq!(holder, text(&two, "/spec/holderIdentity"), "one process holds both Leases");
        holder
    };
    let before = holder().await;
    let (host, end) = before.rsplit_once('_').expect("an identity ends with a suffix");
    assert!(end.len() == 16 && end.chars().all(|c| c.is_ascii_hexdigit()), "{before}");
    assert_eq!(all.iter().map(|manager| leads(manager).len()).sum::<usize>(), 1, "both lead");

    all.sort_by_key(|manager| leads(manager).is_empty());
    let [leader, follower] = &mut all;
    leader.kill();
    wait_until("the other one to lead", TIMEOUT, || async {
        expect(!leads(follower).is_empty(), || follower.log().lines().rev().take(5).collect::<Vec<_>>().join("\n"))
    })
    .await;
    let after = holder().await;
    assert!(after != before && after.starts_with(&format!("{host}_")), "{before} was followed by {after}");
}
