//! A small Compute Engine in this process, for tests: instances, their disks, operations, and the token endpoints of Google.
//!
//! ```text
//! let gce = FakeGce::start().await?;
//! gce.fail(Method::InsertInstance, &[OperationError::zone_exhausted()], 1);
//! // … a driver with the endpoint `gce.url()` and the secret `gce.service_account()` …
//! assert_eq!(gce.instances().len(), 1);
//! ```
//!
//! Every request and every answer is checked against Google's discovery documents (`model`). A violation fails the test in which the
//! fake lives: [`FakeGce`] panics when it is dropped. How the service behaves is our reading of its documentation; README.md says what
//! that means.
//!
//! Other faults than those here, such as lost replies, come from `crates/fault-proxy` in front of the fake.

#![forbid(unsafe_code)]

mod accounts;
mod catalogue;
mod cloud;
mod errors;
mod instances;
mod lists;
mod model;
mod operations;
mod wire;

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

pub use accounts::{ACCOUNT, AUDIENCE, SECOND_KEY_ID, SUBJECT_TOKEN};
pub use catalogue::{
    DUAL_SUBNETWORK, GPU, IMAGE, IMAGE_FAMILY, IMAGE_GB, MACHINE_TYPE, NETWORK, OTHER_MACHINE_TYPE, OTHER_ZONE,
    PROJECT, REGION, SECONDARY_RANGE, SUBNETWORK, ZONE,
};
pub use errors::{OperationError, Refusal};
pub use model::Method;

use accounts::Key;
use cloud::Cloud;

/// How long things take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From the beginning of an operation to its end.
    pub operation: Duration,
    /// The longest answer to `zoneOperations.wait`. Google waits 2 minutes.
    pub wait: Duration,
    /// From a creation until lists show the instance. `instances.get` shows it at once.
    pub visible_after: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { operation: Duration::from_millis(20), wait: Duration::from_millis(500), visible_after: Duration::ZERO }
    }
}

/// A request to a method of an API.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// The path.
    pub path: String,
    /// The parameters in the path.
    pub parameters: BTreeMap<String, String>,
    /// The parameters in the query.
    pub query: BTreeMap<String, String>,
    /// The body, if it is JSON.
    pub body: Option<Value>,
    /// The account of the caller. Empty if the authorization is not accepted.
    pub caller: String,
    /// How the caller is authorized: by the id of the key that signed a JWT, or by a token of `oauth`, `sts` or `iam`.
    pub by: String,
}

/// What the connections share.
struct Shared {
    url: String,
    cloud: Mutex<Cloud>,
}

impl Shared {
    fn cloud(&self) -> MutexGuard<'_, Cloud> {
        self.cloud.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fake. It ends when it is dropped.
pub struct FakeGce {
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

impl FakeGce {
    /// An empty project, on its own port of the loopback interface.
    ///
    /// # Errors
    /// No port is available.
    pub async fn start() -> io::Result<Self> {
        Self::with(Timing::default()).await
    }

    /// An empty project in which things take as long as this.
    ///
    /// # Errors
    /// No port is available.
    pub async fn with(timing: Timing) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared { url, cloud: Mutex::new(Cloud::new(timing)) });
        let serving = tokio::spawn(wire::serve(listener, Arc::clone(&shared)));
        Ok(Self { shared, serving })
    }

    /// The URL before all paths, without a slash at the end. The paths are those of Google: `/compute/v1/…`, `/token` of OAuth, `/v1/token` of
    /// STS, and `/v1/projects/-/serviceAccounts/…` of IAM.
    pub fn url(&self) -> &str {
        &self.shared.url
    }

    fn cloud(&self) -> MutexGuard<'_, Cloud> {
        self.shared.cloud()
    }

    /// The key file of [`ACCOUNT`].
    pub fn service_account(&self) -> String {
        accounts::key_file(Key::First)
    }

    /// Another key file of [`ACCOUNT`], as after a rotation. Its key is [`SECOND_KEY_ID`].
    pub fn second_service_account(&self) -> String {
        accounts::key_file(Key::Second)
    }

    /// A key file of [`ACCOUNT`] with a key that makes wrong signatures.
    pub fn service_account_with_unknown_key(&self) -> String {
        accounts::key_file(Key::Wrong)
    }

    /// The configuration of an external account. The file contains [`SUBJECT_TOKEN`].
    pub fn external_account(&self, token_file: &Path) -> String {
        accounts::external_account(token_file, None).to_string()
    }

    /// The configuration of an external account that acts as [`ACCOUNT`].
    pub fn impersonating_external_account(&self, token_file: &Path) -> String {
        accounts::external_account(token_file, Some(ACCOUNT)).to_string()
    }

    /// Answers the next calls of a method with a refusal. Nothing else happens in them.
    pub fn refuse(&self, method: Method, refusal: Refusal, times: usize) {
        self.cloud().refuse(method, refusal, times);
    }

    /// Lets the next operations of a method end with errors.
    pub fn fail(&self, method: Method, errors: &[OperationError], times: usize) {
        self.cloud().fail(method, errors, times);
    }

    /// Changes how long things take from now on.
    pub fn set_timing(&self, timing: Timing) {
        self.cloud().timing = timing;
    }

    /// No operation ends from now on.
    pub fn hold_operations(&self) {
        self.cloud().hold();
    }

    /// Operations end again.
    pub fn release_operations(&self) {
        self.cloud().release();
    }

    /// Ends all access tokens of the token endpoints.
    pub fn revoke_tokens(&self) {
        self.cloud().tokens.revoke();
    }

    /// Creates a running instance in [`ZONE`], as another user. The body is the body of `instances.insert`.
    ///
    /// # Panics
    /// If the body is wrong, or the project can't have the instance.
    pub fn put_instance(&self, body: &Value) {
        let wrong = model::check_request(Method::InsertInstance, Some(body));
        assert!(wrong.is_empty(), "no instance of Compute Engine: {}", wrong.join("; "));
        self.cloud().put_instance(ZONE, body);
    }

    /// Changes an instance behind the driver's back.
    ///
    /// # Panics
    /// If there is no instance with this name.
    pub fn change_instance(&self, name: &str, change: impl FnOnce(&mut Value)) {
        self.cloud().change_instance(name, change);
    }

    /// Stops an instance, as a preemption does.
    ///
    /// # Panics
    /// If there is no instance with this name.
    pub fn terminate_instance(&self, name: &str) {
        self.change_instance(name, |instance| instance["status"] = json!("TERMINATED"));
    }

    /// The instances of all zones, as `instances.get` shows them.
    pub fn instances(&self) -> Vec<Value> {
        self.cloud().instances()
    }

    /// The disks of all zones.
    pub fn disks(&self) -> Vec<Value> {
        self.cloud().disks()
    }

    /// The operations of all zones, in their order.
    pub fn operations(&self) -> Vec<Value> {
        self.cloud().operations()
    }

    /// The names of all instances that have ever been created, one for each creation, failed ones included.
    pub fn inserted(&self) -> Vec<String> {
        self.cloud().inserted.clone()
    }

    /// All calls of methods, in their order. Refused calls are included.
    pub fn requests(&self) -> Vec<Call> {
        self.cloud().calls.clone()
    }

    /// The number of calls of a method.
    pub fn count(&self, method: Method) -> usize {
        self.cloud().calls.iter().filter(|call| call.method == method).count()
    }

    /// The violations of the discovery documents so far. The fake forgets them.
    pub fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut self.cloud().violations)
    }
}

impl Drop for FakeGce {
    fn drop(&mut self) {
        self.serving.abort();
        let violations = self.take_violations();
        // A test that fails already keeps its own message.
        let fine = violations.is_empty() || std::thread::panicking();
        assert!(fine, "requests or answers that Google's discovery documents do not allow:\n{}", violations.join("\n"));
    }
}

#[cfg(test)]
mod tests;
