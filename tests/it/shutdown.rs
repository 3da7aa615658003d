//! How `mcm serve` ends.

use std::time::Duration;

use crate::support::{ManagerOptions, Rig, TestManager, cluster_object::text, wait::expect, wait_until};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn readiness_goes_first_then_the_lease_and_a_second_signal_ends_it_at_once() {
    let Some(rig) = Rig::shared("shutdown::readiness_goes_first").await else { return };
    let namespace = rig.namespace("shutdown").await;
    let flags = ["--leader-elect=true", "--shutdown-delay-duration=10m"].map(str::to_owned).to_vec();
    let options = ManagerOptions { flags, ..ManagerOptions::default() };
    let mut manager = TestManager::start(&rig, &namespace, &options).await;
    let holder = async |name: &str| {
        let lease = namespace.get("lease", name).await;
        text(&lease, "/spec/holderIdentity").to_owned()
    };
    for lease in ["machine-controller-manager", "machine-controller"] {
        wait_until("the lease to be held", PATIENCE, || async {
            let leases = namespace.kubectl(&["get", "lease", lease, "-o", "jsonpath={.spec.holderIdentity}"]).await;
            expect(!leases.stdout.is_empty(), || leases.stderr.clone())
        })
        .await;
    }

    // `timeout` and supervisors signal a process and its group: that is one wish.
    let asked = tokio::time::Instant::now();
    manager.signal("TERM");
    manager.signal("TERM");
    wait_until("readiness to go", PATIENCE, || async {
        let (status, report) = manager.http("/readyz").await;
        expect(status == 500 && report.contains("[-]shutdown failed"), || format!("{status}: {report}"))
    })
    .await;
    for lease in ["machine-controller-manager", "machine-controller"] {
        wait_until("the lease to be given back", PATIENCE, || async {
            let holder = holder(lease).await;
            expect(holder.is_empty(), || format!("{lease} is held by {holder}"))
        })
        .await;
    }
    assert_eq!(manager.http("/livez").await.0, 200, "others still have ten minutes to learn of it");

    // What comes within a second is the same wish.
    tokio::time::sleep_until(asked + Duration::from_secs(2)).await;
    manager.signal("TERM");
    assert_eq!(manager.wait(PATIENCE), 1);
    assert!(manager.log().contains("told to stop for the second time"), "{}", manager.log());
}
