//! What is read of sets.

use controller_runtime::snapshot::Snapshot;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube_values::selector::Labels;
use machine_api::v1alpha1::{ClassSpec, MachineSet, MachineSetStatus, MachineTemplateSpec};

use super::{
    metadata::{Described, Metadata, metadata},
    snapshot,
};

snapshot! {
    /// A set.
    SetSnapshot of MachineSet
}
metadata!(SetSnapshot of MachineSet);

impl SetSnapshot {
    /// The wanted machines.
    pub fn replicas(&self) -> i32 {
        self.0.spec.replicas
    }

    /// Which machines belong to the set.
    pub fn selector(&self) -> Option<&LabelSelector> {
        self.0.spec.selector.as_ref()
    }

    /// What new machines look like. Templates are compared and copied as a whole.
    pub fn template(&self) -> &MachineTemplateSpec {
        &self.0.spec.template
    }

    /// The class outside the template, which only a metric reads.
    pub fn machine_class(&self) -> &ClassSpec {
        &self.0.spec.machine_class
    }

    /// Seconds that a machine must be ready to count as available.
    pub fn min_ready_seconds(&self) -> i32 {
        self.0.spec.min_ready_seconds
    }

    /// How many Failed machines may be kept automatically.
    pub fn auto_preserve_failed_machine_max(&self) -> i32 {
        self.0.spec.auto_preserve_failed_machine_max
    }

    /// Whether both want the same.
    pub fn has_spec_of(&self, other: &Self) -> bool {
        self.0.spec == other.0.spec
    }

    /// What the set is. A new status is made from the stored one and compared with it as a whole.
    pub fn status(&self) -> &MachineSetStatus {
        &self.0.status
    }
}
