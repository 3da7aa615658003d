//! Metrics of this process that are read at each scrape, because nothing changes them at a known moment: held Leases, the age of
//! caches, and counters that begin at 0 for each known object.
//!
//! The gauges of machines, sets and deployments are in [`machine_controllers::fleet_metrics`]. Source: spec/packaging §4.1.

use jiff::Timestamp;
use kube::ResourceExt;

use super::Common;
use crate::settings::{Build, Half};
use controller_runtime::{
    lease::Leadership,
    watch::{WatchHealth, Watches},
};
use machine_controllers::{machine::measures::show_failed_joins, views::ControlViews};
use mcm_metrics::{Cache, Metrics, OfClass, OfLease};

/// Shows which program runs.
pub(super) fn show_build(metrics: &Metrics) {
    let Build { version, commit, profile, .. } = Build::THIS;
    let labels = mcm_metrics::Build { version, commit: commit.unwrap_or_default(), profile };
    metrics.manager.build_info.set(&labels, 1.0);
}

/// Shows for the Lease of each of these halves whether this process holds it. `halves` are in the order in which Leases are taken.
pub(super) fn show_leases(metrics: &Metrics, halves: Vec<Half>, leadership: Leadership) {
    metrics.before_scrapes(move |catalogue| {
        for (place, half) in halves.iter().enumerate() {
            let held = leadership.holds_lease(place);
            catalogue.manager.leader.set(&OfLease { lease: half.lease_name() }, if held { 1.0 } else { 0.0 });
        }
    });
}

/// Shows when something last came from the API server for each cache.
pub(super) fn show_caches(common: &Common, watches: Watches) {
    let clock = common.clock.clone();
    common.metrics.before_scrapes(move |catalogue| {
        let now = clock.now();
        for watch in watches.health() {
            let Some(at) = last_event(&watch, now) else { continue };
            let cache = Cache { cluster: watch.cluster.as_str(), kind: watch.kind };
            catalogue.manager.cache_last_event.set(&cache, at);
        }
    });
}

/// Unix time of the last event of a watch, in seconds. `None` before the first one.
fn last_event(watch: &WatchHealth, now: Timestamp) -> Option<f64> {
    Some(now.as_duration().as_secs_f64() - watch.silent_for?.as_secs_f64())
}

/// Shows the counters of known objects before they count: an increase is seen only if there was a value before it.
pub(super) fn show_known_objects(metrics: &Metrics, halves: &[Half], views: ControlViews) {
    if !halves.contains(&Half::MachineController) {
        return;
    }
    metrics.before_scrapes(move |catalogue| {
        show_failed_joins(&catalogue.machine.num_failed_join, &views);
        for class in views.classes.snapshot() {
            catalogue.machine.orphan_vms_deleted.add(&OfClass { class: &class.name_any() }, 0);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use machine_api::v1alpha1::MachineClass;
    use rstest::rstest;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use controller_runtime::watch::WatchedCluster;

    fn metrics() -> Metrics {
        Metrics::new(Arc::new(|| Duration::ZERO)).unwrap()
    }

    #[rstest]
    #[case::a_moment_ago(Some(Duration::from_millis(1500)), Some(998.5))]
    #[case::never(None, None)]
    fn the_last_event_of_a_cache(#[case] silent_for: Option<Duration>, #[case] expected: Option<f64>) {
        let watch = WatchHealth {
            cluster: WatchedCluster::Target,
            kind: "nodes",
            silent_for,
            synced: true,
            lists: 1,
            failures: 0,
            last_error: None,
            undecodable: 0,
        };
        assert_eq!(last_event(&watch, Timestamp::from_second(1000).unwrap()), expected);
    }

    #[test]
    fn each_lease_is_shown_while_it_is_held_and_afterwards() {
        let (metrics, ended) = (metrics(), CancellationToken::new());
        show_leases(&metrics, Half::ALL.to_vec(), Leadership::without_election(ended.clone()));
        for expected in ["1", "0"] {
            let text = metrics.render().unwrap();
            for half in Half::ALL {
                let line = format!("mcm_leader{{lease=\"{}\"}} {expected}\n", half.lease_name());
                assert!(text.contains(&line), "{line} is not in\n{text}");
            }
            ended.cancel();
        }
    }

    #[rstest]
    #[case::the_half_of_machines(Half::MachineController, true)]
    #[case::the_half_of_sets(Half::ControllerManager, false)]
    fn a_class_has_its_counter_before_an_orphan_is_found(#[case] half: Half, #[case] expected: bool) {
        let (metrics, views) = (metrics(), ControlViews::default());
        let mut class = MachineClass::default();
        class.metadata.name = Some("small".to_owned());
        class.metadata.namespace = Some("shoot".to_owned());
        class.metadata.resource_version = Some("1".to_owned());
        show_known_objects(&metrics, &[half], views.clone());
        views.classes.apply(class);
        let text = metrics.render().unwrap();
        assert_eq!(text.contains("mcm_orphan_vms_deleted_total{class=\"small\"} 0\n"), expected, "{text}");
    }

    #[test]
    fn the_build_is_named() {
        let metrics = metrics();
        show_build(&metrics);
        let text = metrics.render().unwrap();
        let version = format!("version=\"{}\"}} 1\n", env!("CARGO_PKG_VERSION"));
        assert!(text.contains("mcm_build_info{commit=\"") && text.contains(&version), "{text}");
    }
}
