//! The liar of a manager in the test's own thread: a layer between its clients and the embedded API server, without a socket.
//!
//! It also counts what the manager tries to write. Nobody lies to the simulated cloud and its kubelets.

use std::{convert::Infallible, io, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{Request, Response, StatusCode, body::Frame, header::CONTENT_TYPE};
use kube::client::Body;
use tokio::sync::watch;

use super::{Answer, Lie, Rule, Script, Told, Tried, WATCH, is_counted, is_of_the_cloud, line_of};

/// What goes wrong with a call.
pub type AnyError = Box<dyn std::error::Error + Send + Sync>;
/// An answer's body.
pub type AnyBody = UnsyncBoxBody<Bytes, AnyError>;

/// How the layer treats watches, by when they were opened.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// Counts what happens to the open ones.
    age: u64,
    /// Those of this age and older stay open and carry nothing any more.
    silent: Option<u64>,
    /// Those of this age and older end.
    ended: Option<u64>,
    /// Nobody is there any more who could ask or be answered.
    dead: bool,
}

/// The layer. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub struct InProcessLiar {
    script: Arc<Script>,
    line: watch::Sender<Line>,
}

impl InProcessLiar {
    /// A client whose calls all go through the layer. It tells the truth.
    pub fn in_front_of(&self, server: &kube::Client) -> kube::Client {
        let (liar, server) = (self.clone(), server.clone());
        let namespace = server.default_namespace().to_owned();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (liar, server) = (liar.clone(), server.clone());
            async move { liar.answer(&server, request).await }
        });
        kube::Client::new(service, namespace)
    }

    /// From now on this lie is told.
    pub fn tells(&self, rule: Rule) -> Told {
        self.script.tells(rule)
    }

    /// A rule tells no more lies; answers how many it has told.
    pub fn stops(&self, told: Told) -> usize {
        self.script.stops(told)
    }

    /// All watches that are open now stay open and carry nothing any more; new ones work.
    pub fn falls_silent(&self) {
        self.line.send_modify(|line| (line.silent, line.age) = (Some(line.age), line.age + 1));
    }

    /// All watches that are open now break off; new ones work.
    pub fn hangs_up(&self) {
        self.line.send_modify(|line| (line.ended, line.age) = (Some(line.age), line.age + 1));
    }

    /// The manager is dead: whatever of it still runs in this thread reaches nobody.
    pub fn cuts_off(&self) {
        self.line.send_modify(|line| line.dead = true);
    }

    /// What the manager has tried to write until now, but for its Leases; the count begins anew.
    pub fn take_tried(&self) -> Vec<Tried> {
        self.script.take_tried()
    }

    async fn answer(&self, server: &kube::Client, request: Request<Body>) -> Result<Response<AnyBody>, AnyError> {
        self.while_it_lives().await;
        let is_watch = request.uri().query().is_some_and(|query| query.contains(WATCH));
        let opened = Opened { age: self.line.borrow().age, is_cut: is_watch && !is_of_the_cloud(&request) };
        let lie = if is_of_the_cloud(&request) { None } else { self.script.lie_about(&request) };
        let request = self.noted(request).await?;
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
        Ok(passed_on(truth, before, opened, self.line.subscribe()))
    }

    /// Never ends once the manager is dead.
    async fn while_it_lives(&self) {
        if self.line.borrow().dead {
            std::future::pending::<()>().await;
        }
    }

    /// The request, once it is written down if it is a write of the manager.
    async fn noted(&self, request: Request<Body>) -> Result<Request<Body>, AnyError> {
        if !is_counted(&request) {
            return Ok(request);
        }
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        self.script.notes(&head, &body);
        Ok(Request::from_parts(head, Body::from(body)))
    }
}

/// A stream of an answer.
#[derive(Clone, Copy, Debug)]
struct Opened {
    age: u64,
    /// Whether it is a watch of the manager; else only its death ends it.
    is_cut: bool,
}

/// What becomes of a stream that is not heard any more.
enum Fate {
    Silent,
    Ends,
}

impl Opened {
    fn fate(self, line: Line) -> Option<Fate> {
        let is_among = |cut: Option<u64>| self.is_cut && cut.is_some_and(|age| self.age <= age);
        if line.dead || is_among(line.silent) { Some(Fate::Silent) } else { is_among(line.ended).then_some(Fate::Ends) }
    }

    /// Waits until it is not heard any more.
    async fn cut(self, line: &mut watch::Receiver<Line>) -> Fate {
        loop {
            if let Some(fate) = self.fate(*line.borrow_and_update()) {
                return fate;
            }
            if line.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// The connection breaks off.
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

/// The true answer, after some lines of long ago, for as long as it is heard.
fn passed_on(
    truth: Response<Body>,
    before: Vec<String>,
    opened: Opened,
    line: watch::Receiver<Line>,
) -> Response<AnyBody> {
    let (head, body) = truth.into_parts();
    let old = stream::iter(before.into_iter().map(|line| Ok(Bytes::from(line))));
    let rest = stream::unfold((body.into_data_stream(), line), move |(mut data, mut line)| async move {
        let next = tokio::select! {
            biased;
            fate = opened.cut(&mut line) => match fate {
                Fate::Silent => std::future::pending().await,
                Fate::Ends => Some(Err(broken("hung up by the test"))),
            },
            next = data.next() => next.map(|next| next.map_err(AnyError::from)),
        };
        next.map(|next| (next, (data, line)))
    });
    let frames = old.chain(rest).map_ok(Frame::data);
    Response::from_parts(head, StreamBody::new(frames).boxed_unsync())
}
