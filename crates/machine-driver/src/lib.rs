//! The contract between the machine controller and a cloud: the [`Driver`] trait, its requests, answers and codes.
//!
//! Source: spec/providers §1. The crate contains only what the author of a driver needs. Each driver is its own crate; [`Registry`]
//! decides which driver serves a class. A driver never reads or writes machine objects. With the feature `contract`, the module
//! `contract` has the tests that every driver passes.

#![forbid(unsafe_code)]

mod class_rules;
#[cfg(any(test, feature = "contract"))]
pub mod contract;
mod error_codes;
mod life;
mod measured;
mod meter;
mod owner;
mod owner_tags;
mod provider_spec;
mod registry;
mod requests;
pub mod same_instance;
mod status;
mod types;

use std::{collections::BTreeSet, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;

/// For implementations of [`Driver`].
pub use async_trait::async_trait;
pub use class_rules::{ClassRules, MissingKeys, SpecRules};
pub use error_codes::ErrorCodes;
/// The type of [`ListedVm::created`].
pub use jiff::Timestamp;
/// The address of a VM and the volumes of a drain.
pub use k8s_openapi::api::core::v1::{NodeAddress, PersistentVolumeSpec};
/// The findings of [`Driver::validate`], with their fields.
pub use kube_values::field::{FieldPath, Findings, RuleId};
pub use life::DriverTask;
/// The code of a failed call, which decides the reaction of the controller.
pub use machine_api::machine_code::Code;
/// The objects in requests.
pub use machine_api::v1alpha1::{Machine, MachineClass};
/// The span of a caller, as drivers in other processes get it.
pub use mcm_traces::TraceParent;
pub use measured::Measured;
pub use meter::{Meter, Operation};
pub use owner::Owner;
pub use owner_tags::OwnerTags;
pub use provider_spec::provider_spec;
pub use registry::Registry;
pub use requests::OpContext;
pub use same_instance::SameInstance;
pub use status::Status;
/// The type of [`OpContext::deadline`].
pub use tokio::time::Instant;
/// The type of the token of [`Driver::begin`].
pub use tokio_util::sync::CancellationToken;
pub use types::*;

/// Runs a driver call with a deadline.
///
/// # Errors
/// The error of the call; `Internal` when the driver panics, `DeadlineExceeded` when it does not answer in time.
pub async fn answered<T>(deadline: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    tokio::time::timeout(deadline, catching_panics(call)).await.unwrap_or_else(|_| {
        Err(Status::new(Code::DeadlineExceeded, format!("no answer within {} s", deadline.as_secs())))
    })
}

/// Runs a driver call and turns a panic into `Internal`, so that a defect of a driver costs one attempt and nothing else.
async fn catching_panics<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let answer = AssertUnwindSafe(call).catch_unwind().await;
    answer.unwrap_or_else(|_panic| Err(Status::new(Code::Internal, "the driver crashed during this call")))
}

/// Creates, finds and deletes VMs at one provider.
///
/// # Guarantees of an implementation (spec/providers §1.5)
/// * A machine has one VM, which is found by machine name and ownership tags.
/// * `create_machine` is idempotent.
/// * `delete_machine` answers OK or `NotFound` only when nothing is left.
/// * `list_machines` returns the complete list or an error, never a part.
/// * When the future of a call is dropped, a later call can find everything that the dropped call has done.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// Name, providers and abilities of this driver. Must be cheap; called often.
    fn info(&self) -> &DriverInfo;

    /// Called when this process begins to lead. Starts the parts that only one process may run, such as a listener or a cache. The
    /// returned tasks run until `stop` is cancelled, when the process stops. The process also stops soon after it has lost leadership.
    /// One try may take five minutes. The controllers make calls after this method has returned, or after 30 s. Lists for views may be
    /// requested from a process that does not lead.
    ///
    /// # Errors
    /// After a transient code ([`Code`]: `Unavailable`, `DeadlineExceeded`, `Aborted`, `ResourceExhausted`, `Unknown`) the process
    /// tries again, after growing pauses; any other code ends the process.
    async fn begin(&self, _stop: CancellationToken) -> Result<Vec<DriverTask>, Status> {
        Ok(Vec::new())
    }

    /// Called once after the end of leadership and of all calls and tasks, if `begin` was successful. May take 3 s.
    async fn end(&self) {}

    /// The owner of the VMs of a class, from its `providerSpec`, for example from tags. `None` if the `providerSpec` does not name the
    /// owner. In this case, the owner consists of the flag `--cluster-name` and the namespace of the class. Calls get it in
    /// [`OpContext::owner`].
    fn owner(&self, _class: &MachineClass) -> Option<Owner> {
        None
    }

    /// Checks a class without I/O; paths start at `providerSpec`. Also called before every operation.
    fn validate(&self, class: &MachineClass, found: &mut Findings);

    /// The missing keys in Secrets. `keys` are the keys with a value that is not blank. The default asks the known rules for the class's provider.
    fn missing_in_secret(&self, rules: Option<&ClassRules>, keys: &BTreeSet<String>) -> Vec<&'static str> {
        rules.map(|rules| rules.missing_in_secret(keys)).unwrap_or_default()
    }

    /// Creates the VM of a machine, or returns the existing one. A class that the method itself refuses counts as a failed creation in the metrics,
    /// as in the original: the Go drivers count a method from its first line on, before they check the class (spec/providers §2.1).
    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status>;

    /// Finishes a VM that was created but not initialised.
    async fn initialize_machine(&self, _cx: &OpContext, _request: MachineRequest) -> Result<VmIdentity, Status> {
        Err(Status::new(Code::Unimplemented, "InitializeMachine is not supported by this driver"))
    }

    /// Deletes the VM and everything that was created for it.
    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status>;

    /// Finds the VM of a machine.
    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status>;

    /// All VMs of the class's cluster and role.
    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status>;

    /// Asks the cloud about a class, for `mcm validate --ask-provider`: whether the resources that the class names exist, and
    /// whether a VM could be created. Nothing is created. Paths start at `providerSpec`.
    ///
    /// # Errors
    /// When the cloud could not be asked; `Unimplemented` for a driver that never asks.
    async fn ask_about_class(&self, _cx: &OpContext, _request: ListRequest) -> Result<Findings, Status> {
        Err(Status::new(Code::Unimplemented, "the driver of this provider can't ask it about a class"))
    }

    /// The inventory of a class: [`Self::list_machines`] gives the same answer for all classes with the same key and the same
    /// credentials, so that one call is enough for all of them. A driver whose lists depend only on owner and region returns these
    /// two. The default is always correct, but costs a call for each different `providerSpec`.
    fn inventory_key(&self, class: &MachineClass) -> String {
        class.provider_spec.to_string()
    }

    /// Whether the provider id of a machine (from this driver) and of a Node (from the cloud's controller manager or the kubelet)
    /// name the same instance. Must be pure and cheap; called in every pass. The default never returns [`SameInstance::Another`]:
    /// the owner of the Node is then decided by names and reported as unknown.
    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        same_instance::same_or_unknown(machine, node)
    }

    /// The provider's names for these persistent volumes.
    async fn get_volume_ids(&self, cx: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status>;
}
