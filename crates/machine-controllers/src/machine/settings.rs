//! The limits of the machine controller: the defaults of its flags, and the values that a machine sets itself.
//!
//! Source: spec/machine-controller §12.1, §4.7, §5.1, §6.4; spec/providers §2.3.

use std::{collections::BTreeSet, time::Duration};

use crate::{drain::EVICTION_RETRY, snapshots::MachineSnapshot};
use kube_values::duration::GoDuration;
use machine_api::names::annotation;
use serde::Serialize;

/// Settings of the machine controller. The defaults are the defaults of the flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSettings {
    /// `--machine-creation-timeout`.
    pub creation_timeout: Duration,
    /// `--machine-health-timeout`.
    pub health_timeout: Duration,
    /// `--machine-drain-timeout`.
    pub drain_timeout: Duration,
    /// `--machine-preserve-timeout`.
    pub preserve_timeout: Duration,
    /// `--machine-inplace-update-timeout`.
    pub in_place_update_timeout: Duration,
    /// `--machine-vm-gone-check`.
    pub vm_gone_check: VmGoneCheck,
    /// `--machine-max-evict-retries`.
    pub max_evict_retries: u32,
    /// `--machine-pv-detach-timeout`.
    pub pv_detach_timeout: Duration,
    /// `--machine-pv-reattach-timeout`.
    pub pv_reattach_timeout: Duration,
    /// `--node-conditions`.
    pub node_conditions: Vec<String>,
    /// `--bootstrap-token-auth-extra-groups`.
    pub bootstrap_token_auth_extra_groups: String,
    /// `--resource-exhausted-retry`; zero counts as ten minutes.
    pub resource_exhausted_retry: Duration,
    /// Driver calls that may run at once.
    pub concurrent_driver_calls: usize,
    /// Pods of one node that are evicted at once.
    pub evictions_per_node: usize,
    /// Evictions that may be under way at once in this process.
    pub concurrent_evictions: usize,
    /// How long driver calls may take.
    pub deadlines: CallDeadlines,
}

/// How long a driver call may take, by operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CallDeadlines {
    /// `CreateMachine`.
    pub create: Duration,
    /// `InitializeMachine`.
    pub initialize: Duration,
    /// `DeleteMachine`.
    pub delete: Duration,
    /// `GetMachineStatus`.
    pub status: Duration,
    /// `GetVolumeIDs`.
    pub volumes: Duration,
}

const MINUTE: Duration = Duration::from_secs(60);

impl Default for CallDeadlines {
    fn default() -> Self {
        Self {
            create: 20 * MINUTE,
            initialize: 5 * MINUTE,
            delete: 20 * MINUTE,
            status: MINUTE,
            volumes: Duration::from_secs(5),
        }
    }
}

impl Default for MachineSettings {
    fn default() -> Self {
        Self {
            creation_timeout: 20 * MINUTE,
            health_timeout: 10 * MINUTE,
            drain_timeout: 120 * MINUTE,
            preserve_timeout: 96 * 60 * MINUTE,
            in_place_update_timeout: 20 * MINUTE,
            vm_gone_check: VmGoneCheck::Off,
            max_evict_retries: 360,
            pv_detach_timeout: 2 * MINUTE,
            pv_reattach_timeout: Duration::from_secs(90),
            node_conditions: ["KernelDeadlock", "ReadonlyFilesystem", "DiskPressure", "NetworkUnavailable"]
                .map(str::to_owned)
                .into(),
            bootstrap_token_auth_extra_groups: String::new(),
            resource_exhausted_retry: 10 * MINUTE,
            concurrent_driver_calls: 500,
            evictions_per_node: 20,
            concurrent_evictions: 50,
            deadlines: CallDeadlines::default(),
        }
    }
}

/// The limits of one machine: its own values, or else the values of the flags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// A machine that is not Running this long after its creation is declared Failed.
    pub creation: Duration,
    /// A machine that is unhealthy this long is declared Failed.
    pub health: HealthTimeout,
    /// An in-place update that takes longer has failed.
    pub in_place_update: Duration,
    /// Whether the driver is asked about the VM of an unhealthy machine.
    pub vm_gone_check: VmGoneCheck,
    /// After this time, pods are deleted by force.
    pub drain: Duration,
    /// How long a machine is preserved.
    pub preserve: Duration,
    /// Evictions that may be refused before a pod is deleted.
    pub evict_retries: u32,
    /// Time a volume may take to detach, beyond the pod's grace period.
    pub detach: Duration,
    /// Time a volume may take to be attached elsewhere.
    pub reattach: Duration,
    /// How long driver calls may take.
    pub calls: CallDeadlines,
    /// Pause after `ResourceExhausted`.
    pub resource_exhausted_retry: Duration,
    /// Node conditions that make a machine unhealthy unless they are False.
    pub unhealthy_conditions: BTreeSet<String>,
}

/// Whether the driver is asked if the VM of an unhealthy machine still exists (M-48, decisions.md 12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum VmGoneCheck {
    /// The driver is not asked: a machine whose VM was deleted in the cloud is declared Failed after its health timeout.
    #[default]
    Off,
    /// The driver is asked.
    On,
}

/// Whether, and after which time, an unhealthy machine is declared Failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum HealthTimeout {
    /// Never (`spec.disableHealthTimeout`).
    Never,
    /// After this time.
    After(Duration),
}

impl MachineSettings {
    /// The limits of this machine.
    pub fn limits_of(&self, machine: &MachineSnapshot) -> Limits {
        let own = machine.configuration();
        let or = |own: Option<GoDuration>, flag: Duration| own.map_or(flag, GoDuration::to_std);
        let drain = or(own.drain_timeout, self.drain_timeout);
        let retries = match own.max_evict_retries {
            Some(retries) => u32::try_from(retries).unwrap_or(0),
            None => self.max_evict_retries,
        };
        let within_drain = u32::try_from(drain.as_secs() / EVICTION_RETRY.as_secs()).unwrap_or(u32::MAX);
        Limits {
            creation: effective_creation_timeout(machine).unwrap_or(self.creation_timeout),
            health: if own.disable_health_timeout == Some(true) {
                HealthTimeout::Never
            } else {
                HealthTimeout::After(or(own.health_timeout, self.health_timeout))
            },
            in_place_update: or(own.in_place_update_timeout, self.in_place_update_timeout),
            vm_gone_check: self.vm_gone_check,
            drain,
            preserve: or(own.machine_preserve_timeout, self.preserve_timeout),
            evict_retries: retries.min(within_drain),
            detach: self.pv_detach_timeout,
            reattach: self.pv_reattach_timeout,
            calls: self.deadlines,
            resource_exhausted_retry: if self.resource_exhausted_retry.is_zero() {
                10 * MINUTE
            } else {
                self.resource_exhausted_retry
            },
            unhealthy_conditions: match &own.node_conditions {
                Some(own) => condition_list(own),
                None => self.node_conditions.iter().cloned().collect(),
            },
        }
    }
}

/// The creation timeout that the machine itself sets: the annotation if it is a duration, or else the specification's value.
fn effective_creation_timeout(machine: &MachineSnapshot) -> Option<Duration> {
    machine
        .annotations()
        .get(annotation::EFFECTIVE_CREATION_TIMEOUT)
        .and_then(|text| text.parse::<GoDuration>().ok())
        .or(machine.configuration().creation_timeout)
        .map(GoDuration::to_std)
}

/// Condition types of a comma separated list; blanks around a type are ignored (M-57).
fn condition_list(text: &str) -> BTreeSet<String> {
    text.split(',').map(str::trim).filter(|kind| !kind.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use kube::ResourceExt;
    use machine_api::v1alpha1::Machine;

    fn machine(annotation: Option<&str>, spec: Option<i64>) -> Machine {
        let mut machine = Machine::default();
        if let Some(text) = annotation {
            machine.annotations_mut().insert(annotation::EFFECTIVE_CREATION_TIMEOUT.to_owned(), text.to_owned());
        }
        machine.spec.configuration.creation_timeout = spec.map(GoDuration::from_mins);
        machine
    }

    #[rstest]
    #[case::mc_072_the_annotation_beats_the_specification(Some("30m"), Some(5), 30)]
    #[case::mc_073_an_unreadable_annotation_is_ignored(Some("banana"), Some(5), 5)]
    #[case::the_specification_beats_the_flag(None, Some(5), 5)]
    #[case::the_flag_decides_otherwise(None, None, 20)]
    fn the_creation_timeout_is(#[case] annotation: Option<&str>, #[case] spec: Option<i64>, #[case] minutes: u32) {
        let limits = MachineSettings::default().limits_of(&machine(annotation, spec).into());
        assert_eq!(limits.creation, minutes * MINUTE);
    }

    #[rstest]
    #[case::the_flags_default(None, None, 360)]
    #[case::mc_201_the_specification(None, Some(2), 2)]
    #[case::mc_202_a_short_drain_leaves_none(Some(10), None, 0)]
    #[case::as_many_as_fit_into_the_drain(Some(100), None, 5)]
    #[case::a_negative_number_counts_as_none(None, Some(-1), 0)]
    fn the_eviction_retries_are(#[case] drain: Option<i64>, #[case] own: Option<i32>, #[case] retries: u32) {
        let mut machine = Machine::default();
        machine.spec.configuration.drain_timeout = drain.map(GoDuration::from_secs);
        machine.spec.configuration.max_evict_retries = own;
        let machine = MachineSnapshot::from(machine);
        assert_eq!(MachineSettings::default().limits_of(&machine).evict_retries, retries);
    }

    #[test]
    fn mc_003_no_pause_after_exhaustion_means_ten_minutes() {
        let settings = MachineSettings { resource_exhausted_retry: Duration::ZERO, ..MachineSettings::default() };
        assert_eq!(settings.limits_of(&Machine::default().into()).resource_exhausted_retry, 10 * MINUTE);
    }

    #[test]
    fn mc_110_blanks_in_the_condition_list_do_not_matter() {
        let mut machine = Machine::default();
        machine.spec.configuration.node_conditions = Some("DiskPressure, KernelDeadlock".to_owned());
        let machine = MachineSnapshot::from(machine);
        let limits = MachineSettings::default().limits_of(&machine);
        assert!(limits.unhealthy_conditions.contains("KernelDeadlock"));
    }

    #[test]
    fn mc_109_an_empty_list_of_the_machine_beats_the_flag() {
        let mut machine = Machine::default();
        machine.spec.configuration.node_conditions = Some(String::new());
        let machine = MachineSnapshot::from(machine);
        assert!(MachineSettings::default().limits_of(&machine).unhealthy_conditions.is_empty());
    }
}
