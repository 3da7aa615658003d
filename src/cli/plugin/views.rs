//! The computed views, as a client reads them: the requests, and what happens without an answer. [`shapes`] has their types.
//!
//! A view may be absent, broken or forbidden. That is noticed once, reported once on standard error, and the command goes on with the
//! stored objects. The server's side of the views is in `extension/`. Source: spec/packaging §5.3, docs/views.md.

mod shapes;

use std::{
    cell::{OnceCell, RefCell},
    collections::BTreeSet,
    time::Duration,
};

use futures::future::join_all;
use http::Method;
use kube::Client;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

pub use self::shapes::{
    Admission, BlockedPod, Blocker, Budget, DrainPlan, Effect, FieldMessage, Limit, Named, Object, Orphan, Outlook,
    Replaced, RolloutPlan, Step, Stuck, Totals, Vm, Wave,
};
use super::{notices::Notices, output::Source};
use crate::extension::view::{GROUP, VERSION};
use controller_runtime::{error::ApiError, objects::call};

/// How long the command waits to learn whether the views are served.
const NOTICED_WITHIN: Duration = Duration::from_secs(2);
/// Objects per page of a list.
const PAGE: u32 = 500;
/// The view of machines.
const OUTLOOKS: &str = "machineoutlooks";
/// The view of VMs.
const VMS: &str = "providermachines";
/// Up to this number of objects are read one by one. More are listed.
const SINGLE: usize = 20;
/// A name that no `ProviderMachine` has: theirs end with eight digits.
const NO_VM: &str = "no-vm";

/// An object whose status has the answer.
#[derive(Deserialize)]
struct WithStatus<T> {
    status: T,
}

/// A page of a list.
#[derive(Deserialize)]
struct List<T> {
    items: Vec<T>,
    #[serde(default)]
    metadata: ListMeta,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ListMeta {
    r#continue: String,
}

/// The answer to a request for a plan.
#[derive(Debug)]
pub enum Planned<T> {
    /// The plan.
    Plan(T),
    /// The server knows no such object, or refuses the review. The text says why.
    Refused(String),
    /// The views can't be used. It has been reported.
    NoViews,
}

/// Whether a provider has a VM.
#[derive(Clone, Debug, PartialEq)]
pub enum Provider {
    /// It has the VM.
    Has(Box<Vm>),
    /// It does not have it.
    Lacks,
    /// That is not known at the moment. The text says why.
    Unknown(String),
    /// The views can't be used. It has been reported.
    NoViews,
}

/// A client of the views.
pub struct Views {
    client: Client,
    /// Why the views are not used, once that is known. The inner value is `None` while they are used.
    unusable: OnceCell<Option<String>>,
    /// The views that were asked and could not be used. They are not asked again.
    failed: RefCell<BTreeSet<&'static str>>,
    notices: Notices,
}

impl Views {
    /// The views behind the API server of this client. No request is sent yet.
    pub fn new(client: Client, notices: Notices) -> Self {
        Self { client, unusable: OnceCell::new(), failed: RefCell::default(), notices }
    }

    /// What the answers so far were made from.
    pub fn source(&self) -> Source {
        match self.unusable.get() {
            Some(None) if self.failed.borrow().is_empty() => Source::Views,
            Some(_) | None => Source::Stored,
        }
    }

    /// The outlooks of a namespace, or of all. `None`: the views can't be used.
    pub async fn outlooks(&self, namespace: Option<&str>) -> Option<Vec<Outlook>> {
        self.list(namespace, OUTLOOKS).await
    }

    /// The outlooks of these machines of a namespace. `None`: the views can't be used.
    pub async fn outlooks_of(&self, namespace: &str, machines: &[&str]) -> Option<Vec<Outlook>> {
        if machines.len() > SINGLE {
            return self.outlooks(Some(namespace)).await;
        }
        if !self.are_usable(OUTLOOKS).await {
            return None;
        }
        if machines.is_empty() {
            // One object tells whether the views can be used, which the answer says.
            let path = format!("namespaces/{namespace}/{OUTLOOKS}?limit=1");
            let read = self.send::<List<Outlook>>(Method::GET, path, None).await;
            return read.map(|_| Vec::new()).map_err(|error| self.fail(OUTLOOKS, &error)).ok();
        }
        let path = |name: &&str| format!("namespaces/{namespace}/{OUTLOOKS}/{name}");
        let reads = machines.iter().map(|name| self.send::<Outlook>(Method::GET, path(name), None));
        let mut all = Vec::new();
        for read in join_all(reads).await {
            match read {
                Ok(outlook) => all.push(outlook),
                // The machine is gone, or the manager does not know it yet.
                Err(ApiError::NotFound(_)) => {}
                Err(error) => {
                    self.fail(OUTLOOKS, &error);
                    return None;
                }
            }
        }
        Some(all)
    }

    /// Whether the provider has a VM, as the view `providermachines` knows.
    pub async fn provider_has(&self, namespace: &str, provider_id: &str) -> Provider {
        let Some(all) = self.vms(namespace).await else { return Provider::NoViews };
        if let Some(vm) = all.into_iter().find(|vm| vm.provider_id == provider_id) {
            return Provider::Has(Box::new(vm));
        }
        // The list leaves out the VMs of a provider that does not answer. A read of an unknown VM tells whether the list is whole.
        let path = format!("namespaces/{namespace}/{VMS}/{NO_VM}");
        match self.send::<Value>(Method::GET, path, None).await {
            Err(ApiError::NotFound(_)) => Provider::Lacks,
            Err(error) => Provider::Unknown(error.to_string()),
            Ok(_) => Provider::Unknown("the list of VMs changes".to_owned()),
        }
    }

    /// The VMs of a namespace. `None`: the views can't be used.
    pub async fn vms(&self, namespace: &str) -> Option<Vec<Vm>> {
        self.list(Some(namespace), VMS).await
    }

    /// The rest of the rollout of a deployment.
    pub async fn rollout_plan(&self, namespace: &str, name: &str) -> Planned<RolloutPlan> {
        self.plan(Method::GET, "rolloutplans", format!("namespaces/{namespace}/rolloutplans/{name}"), None).await
    }

    /// The rollout of a proposal: a `RolloutPlan` with a specification.
    pub async fn proposed_rollout(&self, namespace: &str, review: &Value) -> Planned<RolloutPlan> {
        self.plan(Method::POST, "rolloutplans", format!("namespaces/{namespace}/rolloutplans"), Some(review)).await
    }

    /// The drain of a node: a `DrainPlan` with a specification.
    pub async fn drain_plan(&self, namespace: &str, review: &Value) -> Planned<DrainPlan> {
        self.plan(Method::POST, "drainplans", format!("namespaces/{namespace}/drainplans"), Some(review)).await
    }

    async fn plan<T: DeserializeOwned>(
        &self,
        method: Method,
        plural: &'static str,
        path: String,
        review: Option<&Value>,
    ) -> Planned<T> {
        if !self.are_usable(plural).await {
            return Planned::NoViews;
        }
        match self.send::<WithStatus<T>>(method, path, review).await {
            Ok(plan) => Planned::Plan(plan.status),
            Err(ApiError::NotFound(text) | ApiError::Invalid(text) | ApiError::Other(text)) => Planned::Refused(text),
            Err(error) => {
                self.fail(plural, &error);
                Planned::NoViews
            }
        }
    }

    async fn list<T: DeserializeOwned>(&self, namespace: Option<&str>, plural: &'static str) -> Option<Vec<T>> {
        if !self.are_usable(plural).await {
            return None;
        }
        let within = namespace.map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let token = if after.is_empty() { String::new() } else { format!("&continue={after}") };
            let page = self.send::<List<T>>(Method::GET, format!("{within}{plural}?limit={PAGE}{token}"), None).await;
            match page {
                Ok(page) => {
                    all.extend(page.items);
                    after = page.metadata.r#continue;
                    if after.is_empty() {
                        return Some(all);
                    }
                }
                Err(error) => {
                    self.fail(plural, &error);
                    return None;
                }
            }
        }
    }

    /// Whether a view can be asked: the views are served, and this view has not failed before.
    async fn are_usable(&self, plural: &'static str) -> bool {
        self.are_served().await && !self.failed.borrow().contains(plural)
    }

    /// Whether the views are registered and answer. Asked once.
    async fn are_served(&self) -> bool {
        if let Some(known) = self.unusable.get() {
            return known.is_none();
        }
        let asked = tokio::time::timeout(NOTICED_WITHIN, self.send::<Value>(Method::GET, String::new(), None)).await;
        let why = match asked {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(why_unusable(&error)),
            Err(_) => Some(format!("no answer within {} s", NOTICED_WITHIN.as_secs())),
        };
        if let Some(why) = &why {
            self.report(why);
        }
        self.unusable.get_or_init(|| why).is_none()
    }

    /// Reports that a view can't be used although the group is served.
    fn fail(&self, plural: &'static str, error: &ApiError) {
        if self.failed.borrow_mut().insert(plural) {
            self.report(&why_unusable(error));
        }
    }

    fn report(&self, why: &str) {
        self.notices.say(&format!("the views can't be used, so the answer is made from stored objects: {why}"));
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        body: Option<&Value>,
    ) -> Result<T, ApiError> {
        let separator = if path.is_empty() { "" } else { "/" };
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = http::Request::builder()
            .method(method)
            .uri(format!("/apis/{GROUP}/{VERSION}{separator}{path}"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.into_bytes())
            .map_err(|error| ApiError::Other(error.to_string()))?;
        call(self.client.request::<T>(request)).await
    }
}

/// Why the views can't be used, and what helps.
fn why_unusable(error: &ApiError) -> String {
    match error {
        ApiError::NotFound(_) | ApiError::NotServed(_) => "they are not registered in this cluster".to_owned(),
        ApiError::Forbidden(text) => {
            format!("{text}; the ClusterRoles mcm-views-reader and mcm-views-planner grant the views")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use kube::client::Body;
    use rstest::rstest;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    /// How the API server answers.
    #[derive(Clone, Copy)]
    enum Server {
        Answers,
        /// The group is not registered.
        Knows404,
        /// The registered server does not answer the API server.
        Says503,
        /// The user may discover the group, and read no view.
        Forbids,
        Silent,
    }

    fn client(server: Server, asked: Arc<AtomicUsize>) -> Client {
        let failure = |code: u16, reason: &str| json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": reason });
        let service = tower::service_fn(move |request: http::Request<Body>| {
            asked.fetch_add(1, Ordering::Relaxed);
            async move {
                let is_single = request.uri().path().contains("machineoutlooks/");
                let is_list = !is_single && request.uri().path().contains("machineoutlooks");
                let second = request.uri().query().unwrap_or_default().contains("continue=next");
                let list = json!({ "items": [{ "metadata": { "name": if second { "m-2" } else { "m-1" } } }],
                "metadata": { "continue": if second { "" } else { "next" } } });
                let (code, body) = match server {
                    Server::Silent => std::future::pending().await,
                    Server::Knows404 => (404, failure(404, "NotFound")),
                    Server::Says503 => (503, failure(503, "ServiceUnavailable")),
                    Server::Forbids if is_list => (403, failure(403, "Forbidden")),
                    Server::Answers if is_list => (200, list),
                    Server::Answers if is_single => (200, json!({ "metadata": { "name": "m-1" } })),
                    Server::Answers | Server::Forbids => (200, json!({ "resources": [] })),
                };
                let answer = http::Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                Ok::<_, tower::BoxError>(answer.expect("a response"))
            }
        });
        Client::new(service, "ns")
    }

    #[rstest]
    #[case::served(Server::Answers, Some(2), Source::Views)]
    #[case::not_registered(Server::Knows404, None, Source::Stored)]
    #[case::down(Server::Says503, None, Source::Stored)]
    #[case::forbidden(Server::Forbids, None, Source::Stored)]
    #[case::silent(Server::Silent, None, Source::Stored)]
    #[tokio::test(start_paused = true)]
    async fn pk_070_views_that_cannot_be_used_are_noticed_within_two_seconds(
        #[case] server: Server,
        #[case] expected: Option<usize>,
        #[case] source: Source,
    ) {
        let asked: Arc<AtomicUsize> = Arc::default();
        let (views, began) = (Views::new(client(server, Arc::clone(&asked)), Notices::default()), Instant::now());
        assert_eq!(views.source(), Source::Stored, "nothing was asked yet");
        for _ in 0..2 {
            assert_eq!(views.outlooks(Some("ns")).await.map(|all| all.len()), expected);
            assert_eq!(views.source(), source);
        }
        assert_eq!(views.outlooks_of("ns", &[]).await.is_some(), expected.is_some());
        let before = asked.load(Ordering::Relaxed);
        assert_eq!(views.outlooks_of("ns", &["m-1", "m-2"]).await.is_some(), expected.is_some());
        let reads = asked.load(Ordering::Relaxed) - before;
        assert_eq!(reads, if expected.is_some() { 2 } else { 0 }, "a view that failed is not asked again");
        // Timers are exact to a millisecond.
        let limit = NOTICED_WITHIN + Duration::from_millis(1);
        assert!(began.elapsed() <= limit, "asked once: {:?}", began.elapsed());
    }
}
