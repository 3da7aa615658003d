//! Accessors of sets.

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
    /// The wanted number of machines.
    pub fn replicas(&self) -> i32 {
        self.0.spec.replicas
    }

    /// Which machines belong to the set.
    pub fn selector(&self) -> Option<&LabelSelector> {
        self.0.spec.selector.as_ref()
    }

    /// The template of new machines. Templates are compared and copied as a whole.
    pub fn template(&self) -> &MachineTemplateSpec {
        &self.0.spec.template
    }

    /// The class outside the template; only a metric reads it.
    pub fn machine_class(&self) -> &ClassSpec {
        &self.0.spec.machine_class
    }

    /// Seconds that a machine must be ready to count as available.
    pub fn min_ready_seconds(&self) -> i32 {
        self.0.spec.min_ready_seconds
    }

    /// The maximum number of Failed machines that may be preserved automatically.
    pub fn auto_preserve_failed_machine_max(&self) -> i32 {
        self.0.spec.auto_preserve_failed_machine_max
    }

    /// Whether both have the same `spec`.
    pub fn has_spec_of(&self, other: &Self) -> bool {
        self.0.spec == other.0.spec
    }

    /// The status. A new status is made from the stored one and compared with it as a whole.
    pub fn status(&self) -> &MachineSetStatus {
        &self.0.status
    }
}
