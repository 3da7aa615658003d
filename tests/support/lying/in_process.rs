//! The lying network of a manager in the test's thread: a layer between its clients and the embedded API server, without sockets.
//!
//! It also records the writes that the manager tries. The virtual cloud and its kubelets get true answers.

use std::{convert::Infallible, io, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{Request, Response, StatusCode, body::Frame, header::CONTENT_TYPE};
use kube::client::Body;
use tokio::sync::watch;

use super::{Answer, Lie, Rule, RuleId, Script, WATCH, WriteAttempt, is_counted, is_of_the_cloud, line_of};

/// The error of a call.
pub type AnyError = Box<dyn std::error::Error + Send + Sync>;
/// The body of an answer.
pub type AnyBody = UnsyncBoxBody<Bytes, AnyError>;

/// Changes of open watches. Each event that concerns all open watches begins a new age.
#[derive(Clone, Copy, Debug, Default)]
struct Connections {
    /// The age of watches that are opened now.
    age: u64,
    /// Watches of this age and earlier ones stay open and transfer nothing any more.
    silent: Option<u64>,
    /// Watches of this age and earlier ones end.
    ended: Option<u64>,
    /// The manager is dead: its requests are not sent, and it gets no answers.
    dead: bool,
}

/// The layer. All clones share their state.
#[derive(Clone, Default)]
pub struct InProcessLiar {
    script: Arc<Script>,
    connections: watch::Sender<Connections>,
}

impl InProcessLiar {
    /// A client whose calls all go through the layer. Without rules it gets true answers.
    pub fn in_front_of(&self, server: &kube::Client) -> kube::Client {
        let (liar, server) = (self.clone(), server.clone());
        let namespace = server.default_namespace().to_owned();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (liar, server) = (liar.clone(), server.clone());
            async move { liar.answer(&server, request).await }
        });
        kube::Client::new(service, namespace)
    }

    /// Adds a rule.
    pub fn add(&self, rule: Rule) -> RuleId {
        self.script.add(rule)
    }

    /// Ends a rule. Returns the number of its lies.
    pub fn end(&self, rule: RuleId) -> usize {
        self.script.end(rule)
    }

    /// All open watches stay open and transfer nothing any more. New ones work.
    pub fn falls_silent(&self) {
        self.connections.send_modify(|all| (all.silent, all.age) = (Some(all.age), all.age + 1));
    }

    /// All open watches break. New ones work.
    pub fn hangs_up(&self) {
        self.connections.send_modify(|all| (all.ended, all.age) = (Some(all.age), all.age + 1));
    }

    /// The manager is dead: its tasks that still run in this thread reach no server.
    pub fn cuts_off(&self) {
        self.connections.send_modify(|all| all.dead = true);
    }

    /// The writes that the manager has tried since the last call, except the writes of its Leases.
    pub fn take_attempts(&self) -> Vec<WriteAttempt> {
        self.script.take_attempts()
    }

    async fn answer(&self, server: &kube::Client, request: Request<Body>) -> Result<Response<AnyBody>, AnyError> {
        self.while_it_lives().await;
        let is_watch = request.uri().query().is_some_and(|query| query.contains(WATCH));
        let opened = Opened { age: self.connections.borrow().age, is_cut: is_watch && !is_of_the_cloud(&request) };
        let lie = if is_of_the_cloud(&request) { None } else { self.script.lie_about(&request) };
        let request = self.recorded(request).await?;
        if let Some(Lie::Answers(answer)) = &lie {
            return Ok(invented(answer));
        }
        let truth = server.send(request).await?;
        let mut before = Vec::new();
        match lie {
            Some(Lie::Lost) => return Err(broken("lost by the test")),
            Some(Lie::Held(time)) => tokio::time::sleep(time).await,
            Some(Lie::Replays(events)) => before = events.iter().map(line_of).collect(),
            Some(Lie::Answers(_)) | None => {}
        }
        self.while_it_lives().await;
        Ok(passed_on(truth, before, opened, self.connections.subscribe()))
    }

    /// Returns at once while the manager lives, and never after its death.
    async fn while_it_lives(&self) {
        if self.connections.borrow().dead {
            std::future::pending::<()>().await;
        }
    }

    /// Records a write of the manager, and returns the request.
    async fn recorded(&self, request: Request<Body>) -> Result<Request<Body>, AnyError> {
        if !is_counted(&request) {
            return Ok(request);
        }
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        self.script.record(&head, &body);
        Ok(Request::from_parts(head, Body::from(body)))
    }
}

/// An open stream of an answer.
#[derive(Clone, Copy, Debug)]
struct Opened {
    age: u64,
    /// Whether it is a watch of the manager. Other streams end only with the manager.
    is_cut: bool,
}

/// How a stream ends for the manager.
enum Fate {
    Silent,
    Ends,
}

impl Opened {
    fn fate(self, connections: Connections) -> Option<Fate> {
        let is_among = |cut: Option<u64>| self.is_cut && cut.is_some_and(|age| self.age <= age);
        if connections.dead || is_among(connections.silent) {
            Some(Fate::Silent)
        } else {
            is_among(connections.ended).then_some(Fate::Ends)
        }
    }

    /// Waits until the stream ends for the manager.
    async fn cut(self, connections: &mut watch::Receiver<Connections>) -> Fate {
        loop {
            if let Some(fate) = self.fate(*connections.borrow_and_update()) {
                return fate;
            }
            if connections.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// The error of a broken connection.
pub fn broken(why: &str) -> AnyError {
    io::Error::new(io::ErrorKind::ConnectionReset, why).into()
}

fn invented(answer: &Answer) -> Response<AnyBody> {
    let body = Full::new(Bytes::from(answer.body.clone())).map_err(|never: Infallible| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(answer.status).expect("a status");
    response.headers_mut().insert(CONTENT_TYPE, answer.content_type.parse().expect("a header"));
    response
}

/// The true answer, after some old lines, until the stream ends for the manager.
fn passed_on(
    truth: Response<Body>,
    before: Vec<String>,
    opened: Opened,
    connections: watch::Receiver<Connections>,
) -> Response<AnyBody> {
    let (head, body) = truth.into_parts();
    let old = stream::iter(before.into_iter().map(|line| Ok(Bytes::from(line))));
    let rest = stream::unfold((body.into_data_stream(), connections), move |(mut data, mut connections)| async move {
        let next = tokio::select! {
            biased;
            fate = opened.cut(&mut connections) => match fate {
                Fate::Silent => std::future::pending().await,
                Fate::Ends => Some(Err(broken("hung up by the test"))),
            },
            next = data.next() => next.map(|next| next.map_err(AnyError::from)),
        };
        next.map(|next| (next, (data, connections)))
    });
    let frames = old.chain(rest).map_ok(Frame::data);
    Response::from_parts(head, StreamBody::new(frames).boxed_unsync())
}
