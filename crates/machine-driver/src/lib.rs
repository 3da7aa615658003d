//! The contract between the machine controller and a cloud: the [`Driver`] trait, its requests, answers and codes.
//!
//! Source: spec/providers §1. What a driver's author needs, and nothing else: a driver is a crate of its own; which one serves a class is
//! decided by [`Registry`]. A driver never reads or writes machine objects. With the feature `contract`, the module `contract` holds the tests
//! that every driver passes.

#![forbid(unsafe_code)]

mod class_rules;
#[cfg(any(test, feature = "contract"))]
pub mod contract;
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
pub use class_rules::ClassRules;
/// The time of [`ListedVm::created`].
pub use jiff::Timestamp;
/// The address of a VM and the volumes of a drain.
pub use k8s_openapi::api::core::v1::{NodeAddress, PersistentVolumeSpec};
/// What [`Driver::validate`] finds, and where.
pub use kube_values::field::{FieldPath, Findings, RuleId};
pub use life::DriverTask;
/// What went wrong in a call, and what follows from it.
pub use machine_api::machine_code::Code;
/// What requests are about.
pub use machine_api::v1alpha1::{Machine, MachineClass};
pub use measured::Measured;
pub use meter::{Meter, Operation};
pub use owner::Owner;
pub use owner_tags::OwnerTags;
pub use provider_spec::provider_spec;
pub use registry::Registry;
pub use requests::OpContext;
pub use same_instance::SameInstance;
pub use status::Status;
/// Of [`OpContext::deadline`].
pub use tokio::time::Instant;
/// The end of a leadership, for [`Driver::begin`].
pub use tokio_util::sync::CancellationToken;
pub use types::*;

/// The answer of a driver's call within a deadline.
///
/// # Errors
/// What the call fails with; `Internal` when the driver panics, `DeadlineExceeded` when it does not answer in time.
pub async fn answered<T>(deadline: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    tokio::time::timeout(deadline, unless_it_crashes(call)).await.unwrap_or_else(|_| {
        Err(Status::new(Code::DeadlineExceeded, format!("no answer within {} s", deadline.as_secs())))
    })
}

/// The answer of a driver's call, which is `Internal` when the driver panics: a defect of a driver costs one attempt and
/// nothing else.
async fn unless_it_crashes<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let answer = AssertUnwindSafe(call).catch_unwind().await;
    answer.unwrap_or_else(|_panic| Err(Status::new(Code::Internal, "the driver crashed during this call")))
}

/// Makes, finds and removes VMs at one provider.
///
/// # Guarantees asked of an implementation (spec/providers §1.5)
/// One VM per machine, found by machine name and ownership tags; `create_machine` is idempotent; `delete_machine`
/// answers OK or `NotFound` only when nothing is left; `list_machines` fails as a whole rather than answer a part.
/// Dropping a future must not leave a side effect that a later call can't find.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// What this driver is called, serves and can do. Cheap; asked often.
    fn info(&self) -> &DriverInfo;

    /// This process leads from now on: what only one process may have begins, such as a listener or a cache that is kept fresh. The
    /// tasks run until `stop` is cancelled: the process stops, which it also does soon after it has lost the leadership. One try may take
    /// five minutes. Calls of the controllers come
    /// after this has answered, or after 30 s; lists for views may come to a process that does not lead.
    ///
    /// # Errors
    /// A transient code ([`Code`]: `Unavailable`, `DeadlineExceeded`, `Aborted`, `ResourceExhausted`, `Unknown`) is tried again,
    /// ever more slowly; any other ends the process.
    async fn begin(&self, _stop: CancellationToken) -> Result<Vec<DriverTask>, Status> {
        Ok(Vec::new())
    }

    /// The leadership has ended: no call is under way any more, and the tasks have ended. Called once, if the driver has begun; it
    /// may take 3 s.
    async fn end(&self) {}

    /// Whose the VMs of a class are, as its `providerSpec` says, for example by tags; `None` when it says nothing of that. Then they are
    /// those of the flag `--cluster-name` and the class's namespace. Calls find it in [`OpContext::owner`].
    fn owner(&self, _class: &MachineClass) -> Option<Owner> {
        None
    }

    /// Checks a class without I/O; paths start at `providerSpec`. Also run before every operation.
    fn validate(&self, class: &MachineClass, found: &mut Findings);

    /// What is missing in Secrets that hold values which are not blank under these keys. What comes without a word of the
    /// driver is what the known rules of the class's provider ask for.
    fn missing_in_secret(&self, rules: Option<&dyn ClassRules>, keys: &BTreeSet<String>) -> Vec<&'static str> {
        rules.map(|rules| rules.missing_in_secret(keys)).unwrap_or_default()
    }

    /// Makes the VM, or answers the one that exists for the machine.
    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status>;

    /// Finishes a VM that was created but not initialised.
    async fn initialize_machine(&self, _cx: &OpContext, _request: MachineRequest) -> Result<VmIdentity, Status> {
        Err(Status::new(Code::Unimplemented, "InitializeMachine is not supported by this driver"))
    }

    /// Removes the VM and everything made for it.
    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status>;

    /// Finds the VM of a machine.
    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status>;

    /// All VMs that belong to a class's cluster and role.
    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status>;

    /// What the cloud itself says of a class, for `mcm validate --ask-provider`: whether what the class names is there and a VM of it
    /// could be made. Nothing is made. Paths start at `providerSpec`.
    ///
    /// # Errors
    /// The cloud could not be asked; `Unimplemented` for a driver that never asks.
    async fn ask_about_class(&self, _cx: &OpContext, _request: ListRequest) -> Result<Findings, Status> {
        Err(Status::new(Code::Unimplemented, "the driver of this provider can't ask it about a class"))
    }

    /// Which inventory a class belongs to: classes of one key and the same credentials get the same answer of
    /// [`Self::list_machines`], so that one call is enough for all of them. A driver whose lists depend on owner and region alone says
    /// those. What comes without a word of the driver is always right, and costs a call for each kind of class.
    fn inventory_key(&self, class: &MachineClass) -> String {
        class.provider_spec.to_string()
    }

    /// Whether a machine's provider id (as this driver answered it) and a Node's (as the cloud's controller manager or the
    /// kubelet wrote it) name the same instance. Pure and cheap; asked in every pass. What comes without a word of the
    /// driver never says [`SameInstance::Another`]: whose the Node is, is then decided by names, and told as unknown.
    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        same_instance::unless_they_differ(machine, node)
    }

    /// The provider's names of the volumes behind these persistent volumes.
    async fn get_volume_ids(&self, cx: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status>;
}
