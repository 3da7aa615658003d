//! Accessors of machines.

use controller_runtime::snapshot::Snapshot;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{NodeAddress, NodeCondition},
    apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference},
};
use kube_values::selector::Labels;
use machine_api::{
    names::label,
    v1alpha1::{
        ClassSpec, LastOperation, Machine, MachineConfiguration, MachinePhase, MachineSpec, MachineStatus,
        NodeTemplateSpec,
    },
};

use super::{
    metadata::{Described, Metadata, metadata},
    snapshot,
};

snapshot! {
    /// A machine.
    MachineSnapshot of Machine
}
metadata!(MachineSnapshot of Machine);

impl MachineSnapshot {
    /// The name of the machine's Node; empty while the Node is unknown.
    pub fn node_name(&self) -> &str {
        self.label(label::NODE).unwrap_or_default()
    }

    /// The class from which the VM is made.
    pub fn class_ref(&self) -> &ClassSpec {
        &self.0.spec.class
    }

    /// The identity of the VM at the provider; empty while there is none.
    pub fn provider_id(&self) -> &str {
        &self.0.spec.provider_id
    }

    /// Labels, annotations and taints of the Node. They are hashed and compared as a whole.
    pub fn node_template(&self) -> &NodeTemplateSpec {
        &self.0.spec.node_template
    }

    /// Time limits and health settings.
    pub fn configuration(&self) -> &MachineConfiguration {
        &self.0.spec.configuration
    }

    /// A copy with another provider id, to ask a question about that VM.
    #[must_use]
    pub fn with_provider_id(&self, provider_id: &str) -> Self {
        let mut machine = Machine::clone(&self.0);
        provider_id.clone_into(&mut machine.spec.provider_id);
        machine.into()
    }

    /// A copy with other limits, to ask a question about them.
    #[must_use]
    pub fn with_configuration(&self, configuration: MachineConfiguration) -> Self {
        let mut machine = Machine::clone(&self.0);
        machine.spec.configuration = configuration;
        machine.into()
    }

    /// A copy with this annotation, or without it, as a planned write leaves the machine.
    #[must_use]
    pub fn with_annotation(&self, key: &str, value: Option<&str>) -> Self {
        let mut machine = Machine::clone(&self.0);
        let annotations = machine.metadata.annotations.get_or_insert_default();
        match value {
            Some(value) => annotations.insert(key.to_owned(), value.to_owned()),
            None => annotations.remove(key),
        };
        machine.into()
    }

    /// The `spec`. The set makes the wanted `spec` from it and writes the difference.
    pub fn spec(&self) -> &MachineSpec {
        &self.0.spec
    }

    /// The phase.
    pub fn phase(&self) -> &MachinePhase {
        &self.0.status.current_status.phase
    }

    /// Whether a creation or health timeout is running.
    pub fn timeout_active(&self) -> bool {
        self.0.status.current_status.timeout_active
    }

    /// Start of the running timeout.
    pub fn last_update_time(&self) -> Option<Timestamp> {
        self.0.status.current_status.last_update_time.as_ref().map(|time| time.0)
    }

    /// End of the preservation.
    pub fn preserve_expiry_time(&self) -> Option<Timestamp> {
        self.0.status.current_status.preserve_expiry_time.as_ref().map(|time| time.0)
    }

    /// The last operation on the machine.
    pub fn last_operation(&self) -> &LastOperation {
        &self.0.status.last_operation
    }

    /// Addresses of the VM.
    pub fn addresses(&self) -> &[NodeAddress] {
        &self.0.status.addresses
    }

    /// The copy of the Node's conditions.
    pub fn conditions(&self) -> &[NodeCondition] {
        &self.0.status.conditions
    }

    /// The conditions of the machine itself, which contain the reason why it is not in its intended state.
    pub fn machine_conditions(&self) -> &[Condition] {
        &self.0.status.machine_conditions
    }

    /// The state that the driver stores for itself; opaque to this program.
    pub fn last_known_state(&self) -> &str {
        &self.0.status.last_known_state
    }

    /// The status. A new status is compared with the stored one as a whole before it is written.
    pub fn status(&self) -> &MachineStatus {
        &self.0.status
    }
}
