//! Failed machines by the error code of the provider. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{
    super::common::{MOST_NAMES, scrubbed},
    shape::Failure,
};
use machine_api::v1alpha1::OperationState;
use machine_controllers::{snapshots::MachineSnapshot, times::rfc3339};

/// Longest message of a failure.
const LONGEST_MESSAGE: usize = 200;

/// Failed machines by error code.
#[derive(Default)]
pub struct Failures(BTreeMap<String, Failed>);

#[derive(Default)]
struct Failed {
    count: i32,
    last: Option<(Timestamp, String)>,
    classes: BTreeSet<String>,
    since: Option<Timestamp>,
}

impl Failures {
    /// Counts a machine if it has failed.
    pub fn count(&mut self, machine: &MachineSnapshot) {
        let last = machine.last_operation();
        if last.state != OperationState::Failed {
            return;
        }
        let failed = self.0.entry(last.error_code.clone()).or_default();
        failed.count += 1;
        failed.classes.insert(machine.class_ref().name.clone());
        let Some(at) = last.last_update_time.as_ref().map(|time| time.0) else { return };
        failed.since = Some(failed.since.map_or(at, |since| since.min(at)));
        if failed.last.as_ref().is_none_or(|(known, _)| *known <= at) {
            failed.last = Some((at, last.description.clone()));
        }
    }

    /// The failures, the most frequent first.
    pub fn by_frequency(self) -> Vec<Failure> {
        let mut all: Vec<Failure> = self
            .0
            .into_iter()
            .map(|(error_code, failed)| Failure {
                error_code,
                count: failed.count,
                last_message: failed
                    .last
                    .map(|(_, text)| scrubbed(&text).chars().take(LONGEST_MESSAGE).collect())
                    .unwrap_or_default(),
                classes: failed.classes.into_iter().take(MOST_NAMES).collect(),
                since: failed.since.map(rfc3339),
            })
            .collect();
        all.sort_by(|one, other| other.count.cmp(&one.count).then_with(|| one.error_code.cmp(&other.error_code)));
        all
    }
}
