//! The connection between a process and the API servers. Here requests are lost, refused and delayed, a process dies at a request, renewals of a
//! Lease do not arrive, and a target cluster is unresponsive.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::{Request, Response, body::Frame, header::CONTENT_TYPE};
use kube::client::Body;
use machine_simulation::mirror::{Fault, Refused};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::book::Record;
use crate::support::lying::{
    in_process::{AnyBody, AnyError, InProcessLiar, broken},
    is_counted,
};

/// The fault of a request.
#[derive(Clone, Copy, Debug)]
pub enum FailureKind {
    /// A fault of a simulated history.
    Fault(Fault),
    /// The request arrives later by this time.
    Late(Duration),
}

/// The faults that all processes of a world share.
#[derive(Clone, Copy, Debug, Default)]
pub struct SharedFaults {
    /// The kind of writes that the API server refuses for hours.
    pub refused: Option<Refused>,
    /// Whether the target cluster is unresponsive.
    pub silent: bool,
    /// Whether every process that requests the Lease gets it.
    pub leases_for_all: bool,
    /// Whether events of watches are delayed.
    pub events_wait: bool,
    /// The time until which events pass nevertheless, for each of [`LAGGING`].
    pub events_pass: [Option<Instant>; LAGGING.len()],
}

/// The resources whose watches are delayed, in the numbering of the history's steps.
pub const LAGGING: [&str; 4] = ["machines", "machinesets", "machinedeployments", "nodes"];

impl SharedFaults {
    /// Whether events of this resource arrive now.
    fn lets_events_pass(&self, resource: usize) -> bool {
        let passes = self.events_pass.get(resource).copied().flatten();
        !self.events_wait || passes.is_some_and(|until| Instant::now() <= until)
    }
}

/// The cluster of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Control,
    Target,
}

/// The gateway of a process. Clones share their state.
#[derive(Clone)]
pub struct Gateway {
    process: usize,
    book: Record,
    shared: watch::Sender<SharedFaults>,
    control: InProcessLiar,
    target: InProcessLiar,
    state: Arc<Mutex<State>>,
    definitions: Definitions,
}

/// The definitions that processes have read, by their paths.
pub type Definitions = Arc<Mutex<BTreeMap<String, String>>>;

/// The path prefix of single definitions.
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/";

#[derive(Default)]
struct State {
    /// Faults, each with the number of requests before it.
    failures: Vec<(u8, FailureKind)>,
    /// Whether renewals of the Lease are lost.
    lease_is_cut: bool,
    is_dead: bool,
}

impl Gateway {
    pub fn new(process: usize, book: &Record, shared: &watch::Sender<SharedFaults>, definitions: &Definitions) -> Self {
        Self {
            process,
            book: book.clone(),
            shared: shared.clone(),
            control: InProcessLiar::default(),
            target: InProcessLiar::default(),
            state: Arc::default(),
            definitions: Arc::clone(definitions),
        }
    }

    /// The clients of a process, for the control cluster and for the target cluster.
    pub fn clients(&self, server: &kube::Client) -> (kube::Client, kube::Client) {
        let client = |side, liar: &InProcessLiar| {
            let (gateway, behind) = (self.clone(), liar.in_front_of(server));
            let service = tower::service_fn(move |request: Request<Body>| {
                let (gateway, behind) = (gateway.clone(), behind.clone());
                async move { gateway.answer(side, &behind, request).await }
            });
            kube::Client::new(service, server.default_namespace())
        };
        (client(Side::Control, &self.control), client(Side::Target, &self.target))
    }

    /// The number of the process.
    pub fn process(&self) -> usize {
        self.process
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the lock panics")
    }

    /// Adds a fault to the request after this number of other requests.
    pub fn failures(&self, after: u8, failure: FailureKind) {
        self.state().failures.push((after, failure));
    }

    /// From now on renewals of the Lease are lost.
    pub fn cuts_lease(&self) {
        self.state().lease_is_cut = true;
    }

    /// Removes all faults.
    pub fn clears(&self) {
        let mut state = self.state();
        state.failures.clear();
        state.lease_is_cut = false;
    }

    /// Marks the process as dead: its remaining tasks in this thread reach no server.
    pub fn dies(&self) {
        self.state().is_dead = true;
        self.control.cuts_off();
        self.target.cuts_off();
    }

    pub fn is_dead(&self) -> bool {
        self.state().is_dead
    }

    /// From now on open watches of the target cluster deliver nothing.
    pub fn silence_target(&self) {
        self.target.falls_silent();
    }

    async fn while_it_lives(&self) {
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    async fn answer(
        &self,
        side: Side,
        server: &kube::Client,
        request: Request<Body>,
    ) -> Result<Response<AnyBody>, AnyError> {
        self.while_it_lives().await;
        if side == Side::Target {
            let mut shared = self.shared.subscribe();
            // The process's deadline ends the request and drops it.
            shared.wait_for(|shared| !shared.silent).await?;
        }
        if request.uri().path().starts_with(DEFINITIONS) {
            return self.definition(server, request).await;
        }
        if request.uri().path().contains("/leases") {
            return self.lease(server, request).await;
        }
        if !is_write(&request) {
            let lagging = lagging(&request);
            let answer = passed_on(server.send(request).await?);
            return Ok(match lagging {
                Some(resource) => answer.map(|body| self.lags(resource, body)),
                None => answer,
            });
        }
        let what = format!("{} {}", request.method(), request.uri().path());
        let asked = Asked::of(&request);
        if self.shared.borrow().refused.is_some_and(|refused| asked.is_refused(refused)) {
            return Ok(asked.refusal());
        }
        let failure = self.next_trouble();
        if let Some(failure) = failure {
            self.book.read().say(|| format!("  process {}: {what}: {failure:?}", self.process));
        }
        match failure {
            Some(FailureKind::Fault(Fault::LoseRequest)) => return Err(broken("the request is lost")),
            Some(FailureKind::Fault(Fault::Conflict)) => return Ok(asked.conflict()),
            Some(FailureKind::Fault(Fault::Refused)) => return Ok(asked.refusal()),
            Some(FailureKind::Fault(Fault::DieBefore)) => self.dies(),
            Some(FailureKind::Fault(Fault::LoseLease)) => self.cuts_lease(),
            Some(FailureKind::Late(time)) => sleep(time).await,
            _ => {}
        }
        self.while_it_lives().await;
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        self.book.read().writes_now(self.process, format!("{what} {}", short(&body)));
        let answer = passed_on(server.send(Request::from_parts(head, Body::from(body))).await?);
        match failure {
            Some(FailureKind::Fault(Fault::LoseAnswer)) => return Err(broken("the answer is lost")),
            Some(FailureKind::Fault(Fault::DieAfter)) => self.dies(),
            _ => {}
        }
        self.while_it_lives().await;
        Ok(answer)
    }

    /// A watch whose events are delayed.
    fn lags(&self, resource: usize, body: AnyBody) -> AnyBody {
        let rest = stream::unfold(
            (body.into_data_stream(), self.shared.subscribe()),
            move |(mut data, mut shared)| async move {
                let next = data.next().await?;
                // An error means that the world is dropped. Then no client reads the events.
                let _ = shared.wait_for(|shared| shared.lets_events_pass(resource)).await;
                Some((next, (data, shared)))
            },
        );
        StreamBody::new(rest.map_ok(Frame::data)).boxed_unsync()
    }

    /// A definition without its schemas: processes read definitions often, no history changes them, and schemas are large.
    async fn definition(&self, server: &kube::Client, request: Request<Body>) -> Result<Response<AnyBody>, AnyError> {
        let path = request.uri().path().to_owned();
        let known = self.definitions.lock().expect("no holder of the lock panics").get(&path).cloned();
        let text = if let Some(text) = known {
            text
        } else {
            let mut definition: Value = serde_json::from_str(&server.request_text(without_body(request)).await?)?;
            for version in definition["spec"]["versions"].as_array_mut().into_iter().flatten() {
                version["schema"] = Value::Null;
            }
            let text = definition.to_string();
            self.definitions.lock().expect("no holder of the lock panics").insert(path, text.clone());
            text
        };
        Ok(passed_on(Response::builder().header(CONTENT_TYPE, "application/json").body(Body::from(text.into_bytes()))?))
    }

    /// The fault of this request.
    fn next_trouble(&self) -> Option<FailureKind> {
        let mut state = self.state();
        let due = state.failures.iter().position(|(after, _)| *after == 0);
        let due = due.map(|place| state.failures.remove(place).1);
        for (after, _) in &mut state.failures {
            *after = after.saturating_sub(1);
        }
        due
    }

    /// A request about the Lease.
    async fn lease(&self, server: &kube::Client, request: Request<Body>) -> Result<Response<AnyBody>, AnyError> {
        if self.state().lease_is_cut {
            return Err(broken("the network to the Lease is cut"));
        }
        let is_read = request.method() == hyper::Method::GET;
        let (mut head, body) = request.into_parts();
        let mut lease: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
        let holds = !is_read && has_holder(&lease);
        if self.shared.borrow().leases_for_all {
            let suffix = format!("-of-{}", self.process);
            let path = head.uri.path();
            if !path.ends_with("/leases") && !path.ends_with(&suffix) {
                head.uri = format!("{path}{suffix}").parse()?;
            }
            if let Some(name) = lease.pointer("/metadata/name").and_then(Value::as_str)
                && !name.ends_with(&suffix)
            {
                lease["metadata"]["name"] = json!(format!("{name}{suffix}"));
            }
        }
        let body = if is_read { Vec::new() } else { lease.to_string().into_bytes() };
        let answer = passed_on(server.send(Request::from_parts(head, Body::from(body))).await?);
        if holds && answer.status().is_success() {
            self.book.read().leader = Some(self.process);
        }
        Ok(answer)
    }
}

/// The index in [`LAGGING`] of the resource that this request watches.
fn lagging(request: &Request<Body>) -> Option<usize> {
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let resource = request.uri().path().rsplit('/').next().filter(|_| is_watch)?;
    LAGGING.iter().position(|lagging| *lagging == resource)
}

fn passed_on(answer: Response<Body>) -> Response<AnyBody> {
    answer.map(|body| body.map_err(AnyError::from).boxed_unsync())
}

fn without_body(request: Request<Body>) -> Request<Vec<u8>> {
    request.map(|_| Vec::new())
}

/// Whether a Lease has a holder.
fn has_holder(lease: &Value) -> bool {
    lease.pointer("/spec/holderIdentity").and_then(Value::as_str).is_some_and(|holder| !holder.is_empty())
}

/// Whether a request is a write with an effect. Events and reviews have none.
fn is_write(request: &Request<Body>) -> bool {
    let path = request.uri().path();
    is_counted(request) && !path.contains("/events") && !path.contains("/authorization.k8s.io/")
}

fn short(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}

/// The parts of a request that decide about its refusal.
struct Asked {
    method: hyper::Method,
    resource: String,
    name: String,
}

impl Asked {
    fn of(request: &Request<Body>) -> Self {
        const RESOURCES: [&str; 6] =
            ["machines", "machinesets", "machinedeployments", "machineclasses", "nodes", "pods"];
        let mut parts = request.uri().path().split('/').skip_while(|part| !RESOURCES.contains(part));
        let resource = parts.next().unwrap_or_default().to_owned();
        let name = parts.next().unwrap_or_default().to_owned();
        Self { method: request.method().clone(), resource, name }
    }

    fn is_refused(&self, refused: Refused) -> bool {
        let (method, resource) = match refused {
            Refused::Machines => (hyper::Method::POST, "machines"),
            Refused::Sets => (hyper::Method::POST, "machinesets"),
            Refused::MachinePatches => (hyper::Method::PATCH, "machines"),
            Refused::NodePatches => (hyper::Method::PATCH, "nodes"),
        };
        (&self.method, self.resource.as_str()) == (&method, resource)
    }

    fn refusal(&self) -> Response<AnyBody> {
        let Self { resource, name, .. } = self;
        self.status(403, "Forbidden", &format!("{resource} \"{name}\" is forbidden: refused by the history"))
    }

    fn conflict(&self) -> Response<AnyBody> {
        let Self { resource, name, .. } = self;
        self.status(
            409,
            "Conflict",
            &format!("Operation cannot be fulfilled on {resource} \"{name}\": the object has been modified"),
        )
    }

    fn status(&self, code: u16, reason: &str, message: &str) -> Response<AnyBody> {
        let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
            "reason": reason, "message": message, "details": { "name": self.name, "kind": self.resource } });
        let answer = Response::builder().status(code).header(CONTENT_TYPE, "application/json");
        passed_on(answer.body(Body::from(status.to_string().into_bytes())).expect("an answer"))
    }
}
