//! A small Elastic Compute Service (ECS) of Alibaba Cloud in this process, for tests: instances, their disks, and the caller's identity in STS.
//!
//! ```text
//! let ecs = FakeEcs::start().await?;
//! ecs.refuse(Action::RunInstances, Refusal::no_stock(), 1);
//! // … a driver with the endpoint `ecs.url()` and the access key `ACCESS_KEY_ID` …
//! assert_eq!(ecs.instances().len(), 1);
//! ```
//!
//! Every request and every answer is checked against the classes of Alibaba Cloud's own client (`model`), and every request for its
//! signature, time and nonce. A violation fails the test in which the fake lives: [`FakeEcs`] panics when it is dropped. How the
//! service behaves is our reading of its documentation; README.md says what that means.
//!
//! Other faults than those here, such as lost replies, come from `crates/fault-proxy` in front of the fake.

#![forbid(unsafe_code)]
#![recursion_limit = "256"]

mod catalogue;
mod cloud;
mod errors;
mod instances;
mod lists;
mod model;
mod signature;
mod wire;

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

pub use catalogue::{
    ACCOUNT_ID, IMAGE, IMAGE_GB, INSTANCE_TYPE, KEY_PAIR, OTHER_INSTANCE_TYPE, OTHER_REGION, OTHER_V_SWITCH,
    OTHER_ZONE, RAM_ROLE, REGION, SECURITY_GROUP, V_SWITCH, VPC, ZONE,
};
pub use errors::Refusal;
pub use model::Action;
pub use signature::{ACCESS_KEY_ID, ACCESS_KEY_SECRET, SECOND_ACCESS_KEY_ID, SECOND_ACCESS_KEY_SECRET, Scheme};

use cloud::Cloud;

/// How long things take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// How long a new instance is `Pending`. It can't be deleted meanwhile.
    pub pending: Duration,
    /// How long it is `Starting` after that. It can't be deleted meanwhile.
    pub starting: Duration,
    /// From a deletion until the instance is gone.
    pub stopping: Duration,
    /// From a creation until lists show the instance.
    pub visible_after: Duration,
}

/// A call of an action.
#[derive(Clone, Debug)]
pub struct Call {
    /// The action.
    pub action: Action,
    /// Its parameters.
    pub parameters: BTreeMap<String, String>,
    /// The access key that has signed the request. Empty if the signature is not accepted.
    pub caller: String,
    /// How the request is signed.
    pub scheme: Scheme,
}

/// What the connections share.
struct Shared {
    cloud: Mutex<Cloud>,
}

impl Shared {
    fn cloud(&self) -> MutexGuard<'_, Cloud> {
        self.cloud.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fake. It ends when it is dropped.
pub struct FakeEcs {
    url: String,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

impl FakeEcs {
    /// An empty account, on its own port of the loopback interface. A new instance runs at once.
    ///
    /// # Errors
    /// No port is available.
    pub async fn start() -> io::Result<Self> {
        Self::with(Timing::default()).await
    }

    /// An empty account in which things take as long as this.
    ///
    /// # Errors
    /// No port is available.
    pub async fn with(timing: Timing) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared { cloud: Mutex::new(Cloud::new(timing)) });
        let serving = tokio::spawn(wire::serve(listener, Arc::clone(&shared)));
        Ok(Self { url, shared, serving })
    }

    /// The URL of ECS and STS, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn cloud(&self) -> MutexGuard<'_, Cloud> {
        self.shared.cloud()
    }

    /// Answers the next calls of an action with a refusal. Nothing else happens in them. A refusal for lack of capacity or quota is
    /// remembered with the client token of its request.
    pub fn refuse(&self, action: Action, refusal: Refusal, times: usize) {
        self.cloud().refuse(action, refusal, times);
    }

    /// Lets the next instances end when they would start, as if their capacity were gone.
    pub fn vanish(&self, times: usize) {
        self.cloud().vanish(times);
    }

    /// Changes how long things take from now on.
    pub fn set_timing(&self, timing: Timing) {
        self.cloud().timing = timing;
    }

    /// Lets pages have fewer items than usual.
    pub fn set_page_limit(&self, items: usize) {
        self.cloud().page_limit = items;
    }

    /// No instance changes its state from now on.
    pub fn hold_states(&self) {
        self.cloud().hold();
    }

    /// Instances change their state again.
    pub fn release_states(&self) {
        self.cloud().release();
    }

    /// Creates a running instance in [`ZONE`], as another user, and returns its id. `change` adds parameters of `RunInstances` or
    /// replaces them.
    ///
    /// # Panics
    /// If a parameter is wrong, or the account can't have the instance.
    pub fn put_instance(&self, name: &str, tags: &[(&str, &str)], change: &[(&str, &str)]) -> String {
        let own = [
            ("RegionId", REGION),
            ("ImageId", IMAGE),
            ("InstanceType", INSTANCE_TYPE),
            ("SecurityGroupId", SECURITY_GROUP),
            ("VSwitchId", V_SWITCH),
            ("InstanceName", name),
        ];
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut parameters: BTreeMap<_, _> = own.iter().chain(change).map(owned).collect();
        for (number, (key, value)) in (1..).zip(tags) {
            parameters.insert(format!("Tag.{number}.Key"), (*key).to_owned());
            parameters.insert(format!("Tag.{number}.Value"), (*value).to_owned());
        }
        let wrong = model::check_parameters(Action::RunInstances, &parameters);
        assert!(wrong.is_empty(), "no instance of ECS: {}", wrong.join("; "));
        self.cloud().put_instance(&parameters)
    }

    /// Changes an instance behind the driver's back. It has the fields of `DescribeInstances`.
    ///
    /// # Panics
    /// If there is no instance with this id.
    pub fn change_instance(&self, id: &str, change: impl FnOnce(&mut Value)) {
        self.cloud().change_instance(id, change);
    }

    /// Stops an instance behind the driver's back.
    ///
    /// # Panics
    /// If there is no instance with this id.
    pub fn stop_instance(&self, id: &str) {
        self.change_instance(id, |instance| instance["Status"] = json!("Stopped"));
    }

    /// Removes an instance at once, as a reclaimed spot instance.
    pub fn remove_instance(&self, id: &str) {
        self.cloud().remove(id);
    }

    /// The instances of all regions, as `DescribeInstances` shows them.
    pub fn instances(&self) -> Vec<Value> {
        self.cloud().instances()
    }

    /// The disks of all regions, as `DescribeDisks` shows them.
    pub fn disks(&self) -> Vec<Value> {
        self.cloud().disks()
    }

    /// The names of all instances that have ever been created, one for each creation.
    pub fn created(&self) -> Vec<String> {
        self.cloud().created.clone()
    }

    /// All calls of actions, in their order. Refused calls are included.
    pub fn requests(&self) -> Vec<Call> {
        self.cloud().calls.clone()
    }

    /// The number of calls of an action.
    pub fn count(&self, action: Action) -> usize {
        self.cloud().calls.iter().filter(|call| call.action == action).count()
    }

    /// The violations so far. The fake forgets them.
    pub fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut self.cloud().violations)
    }
}

impl Drop for FakeEcs {
    fn drop(&mut self) {
        self.serving.abort();
        let violations = self.take_violations();
        // A test that fails already keeps its own message.
        let fine = violations.is_empty() || std::thread::panicking();
        assert!(fine, "requests or answers that Alibaba Cloud's own client does not have:\n{}", violations.join("\n"));
    }
}

#[cfg(test)]
mod tests;
