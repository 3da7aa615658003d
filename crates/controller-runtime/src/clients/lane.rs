//! A lane between a client and its transport: user agent, rate, limit of parallel calls, deadline, observer.

use std::{io, sync::Arc, time::Duration};

use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{DATE, USER_AGENT},
};
use kube::client::Body;
use tokio::{sync::Semaphore, time::Instant};

use super::{ClientSettings, FIRST_ANSWER, PARALLEL_CALLS, Purpose, TokenBucket};
use crate::latch::Latch;

/// How an API call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// The server answered with this status.
    Answered(StatusCode),
    /// There was no answer: connection, TLS or deadline.
    Failed,
}

/// One API call, for metrics (`rest_client_*`).
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The purpose of the client.
    pub purpose: Purpose,
    /// HTTP method.
    pub method: &'a Method,
    /// Host and port of the server.
    pub host: &'a str,
    /// Path of the URL; holds names of objects.
    pub path: &'a str,
    /// How it ended.
    pub result: CallResult,
    /// Time from sending until the response began.
    pub took: Duration,
    /// Time that the call waited before for its rate and for a free slot.
    pub waited: Duration,
    /// When it was sent.
    pub sent: Instant,
    /// The `Date` header of the answer.
    pub date: Option<&'a HeaderValue>,
}

/// Called after every call; must be quick.
pub trait ObserveCall: Send + Sync {
    /// A call ended.
    fn observe(&self, call: &Call<'_>);
}

/// Signals when a request leaves its lane, because its deadline starts then. It is an extension of the request. Cheap to clone; all
/// clones share one state.
#[derive(Clone, Debug, Default)]
pub struct SentSignal(Arc<Latch>);

impl SentSignal {
    /// Waits until the request is sent.
    pub async fn sent(&self) {
        self.0.opened().await;
    }
}

pub(super) struct Lane {
    purpose: Purpose,
    host: String,
    user_agent: HeaderValue,
    bucket: Option<TokenBucket>,
    slots: Option<Arc<Semaphore>>,
    observer: Option<Arc<dyn ObserveCall>>,
}

impl Lane {
    pub(super) fn new(purpose: Purpose, host: &str, settings: &ClientSettings) -> Self {
        let user_agent = format!(
            "machine-controller-manager/v{} ({}/{})/{}",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::OS,
            std::env::consts::ARCH,
            purpose.user_agent()
        );
        let throttled = purpose.is_throttled();
        Self {
            purpose,
            host: host.to_owned(),
            user_agent: HeaderValue::from_str(&user_agent)
                .unwrap_or(HeaderValue::from_static("machine-controller-manager")),
            bucket: purpose.rate(settings.rate).map(TokenBucket::new),
            slots: throttled.then(|| Arc::new(Semaphore::new(PARALLEL_CALLS))),
            observer: settings.observer.clone(),
        }
    }

    /// A client that sends its calls through this lane.
    pub(super) fn wrap(self, transport: &kube::Client) -> kube::Client {
        let lane = Arc::new(self);
        let default_namespace = transport.default_namespace().to_owned();
        let transport = transport.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (lane, transport) = (Arc::clone(&lane), transport.clone());
            async move { lane.send(&transport, request).await }
        });
        kube::Client::new(service, default_namespace)
    }

    async fn send(&self, transport: &kube::Client, mut request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        request.headers_mut().entry(USER_AGENT).or_insert_with(|| self.user_agent.clone());
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        let asked = Instant::now();
        if let Some(bucket) = &self.bucket {
            let Some(wait) = bucket.take_within(asked, self.purpose.max_wait()) else {
                return Err(too_many(self.purpose));
            };
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
        }
        let _slot = match &self.slots {
            // The semaphore is never closed.
            Some(slots) => Arc::clone(slots).acquire_owned().await.ok(),
            None => None,
        };
        let sent = Instant::now();
        if let Some(signal) = request.extensions().get::<SentSignal>() {
            signal.0.open();
        }
        let answer = match tokio::time::timeout(FIRST_ANSWER, transport.send(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(no_answer(&self.host)),
        };
        if let Some(observer) = &self.observer {
            let result = answer.as_ref().map_or(CallResult::Failed, |answer| CallResult::Answered(answer.status()));
            observer.observe(&Call {
                purpose: self.purpose,
                method: &method,
                host: &self.host,
                path: &path,
                result,
                took: sent.elapsed(),
                waited: sent.duration_since(asked),
                sent,
                date: answer.as_ref().ok().and_then(|answer| answer.headers().get(DATE)),
            });
        }
        answer
    }
}

fn too_many(purpose: Purpose) -> kube::Error {
    let text = format!("too many calls of {} wait for their turn", purpose.user_agent());
    kube::Error::Service(Box::new(io::Error::new(io::ErrorKind::WouldBlock, text)))
}

fn no_answer(host: &str) -> kube::Error {
    let text = format!("API server {host} did not begin to answer within {FIRST_ANSWER:?}");
    kube::Error::Service(Box::new(io::Error::new(io::ErrorKind::TimedOut, text)))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::clients::{Cluster, Rate};

    #[derive(Default)]
    struct Recorded(Mutex<Vec<(Purpose, CallResult, u128)>>);

    impl ObserveCall for Recorded {
        fn observe(&self, call: &Call<'_>) {
            self.0.lock().unwrap().push((call.purpose, call.result, call.waited.as_millis()));
        }
    }

    /// A server that answers with the user agent of the request, and never on `/hang`.
    fn server() -> kube::Client {
        let service = tower::service_fn(|request: Request<Body>| async move {
            if request.uri().path() == "/hang" {
                std::future::pending::<()>().await;
            }
            let agent = request.headers()[USER_AGENT].as_bytes().to_vec();
            Ok::<_, kube::Error>(Response::new(Body::from(agent)))
        });
        kube::Client::new(service, "default")
    }

    fn cluster(observer: &Arc<Recorded>) -> Cluster {
        let observer: Arc<dyn ObserveCall> = Arc::<Recorded>::clone(observer);
        let settings = ClientSettings { rate: Rate { qps: 10.0, burst: 1 }, observer: Some(observer) };
        Cluster::over(&server(), &server(), "api:6443", &settings)
    }

    fn get(path: &str) -> Request<Vec<u8>> {
        Request::get(path).body(Vec::new()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn each_purpose_has_its_own_rate_and_leases_none() {
        let recorded = Arc::new(Recorded::default());
        let cluster = cluster(&recorded);
        for purpose in [Purpose::Machines, Purpose::Machines, Purpose::Rollout, Purpose::Leases, Purpose::Leases] {
            cluster.client(purpose).request_text(get("/")).await.unwrap();
        }
        let ok = CallResult::Answered(StatusCode::OK);
        assert_eq!(
            *recorded.0.lock().unwrap(),
            [
                (Purpose::Machines, ok, 0),
                (Purpose::Machines, ok, 100),
                (Purpose::Rollout, ok, 0),
                (Purpose::Leases, ok, 0),
                (Purpose::Leases, ok, 0),
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn th_22_a_flood_of_tokens_delays_neither_access_reviews_nor_later_tokens() {
        let cluster = cluster(&Arc::default());
        let ask = |purpose| {
            let client = cluster.client(purpose);
            async move { client.request_text(get("/")).await.is_ok() }
        };
        // More calls than the rate allows within their time; the rest is refused at once.
        let began = Instant::now();
        let flood = futures::future::join_all((0..100_000).map(|_| ask(Purpose::TokenReviews)));
        let (answers, known) = futures::future::join(flood, async {
            let known = ask(Purpose::AccessReviews).await;
            (known, began.elapsed())
        })
        .await;
        assert_eq!(known, (true, std::time::Duration::ZERO));
        assert_eq!(answers.iter().filter(|answered| **answered).count(), 400 + 400);
        assert!(ask(Purpose::TokenReviews).await && began.elapsed() < std::time::Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_evictions_delay_no_other_purpose() {
        let cluster = cluster(&Arc::default());
        let evictions = cluster.client(Purpose::Evictions);
        let mut slow = tokio::task::JoinSet::new();
        for _ in 0..2 * PARALLEL_CALLS {
            let client = evictions.clone();
            slow.spawn(async move { client.request_text(get("/hang")).await.is_err() });
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        let asked = Instant::now();
        cluster.client(Purpose::TargetCore).request_text(get("/")).await.unwrap();
        assert_eq!(asked.elapsed(), Duration::ZERO);
        assert_eq!(slow.len(), 2 * PARALLEL_CALLS);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_call_begins_when_it_is_sent() {
        use crate::{error::ApiError, objects::in_time};
        let cluster = cluster(&Arc::default());
        let client = cluster.client(Purpose::TargetCore);
        let ask = |path| {
            let client = client.clone();
            async move { in_time(get(path), |request| async move { client.request_text(request).await }).await }
        };
        // At ten per second, the last of these waits longer in its lane than a call may take.
        let calls = (0..400).map(|_| ask("/"));
        let began = Instant::now();
        let answers = futures::future::join_all(calls).await;
        assert!(began.elapsed() > crate::objects::CALL_TIMEOUT);
        assert!(answers.iter().all(|answer| matches!(answer, Ok(Ok(_)))), "{answers:?}");
        let late = futures::future::join_all((0..650).map(|_| ask("/"))).await;
        let unsent = |answer: &Result<_, ApiError>| matches!(answer, Err(ApiError::Unavailable(text)) if text.contains("was not sent"));
        let unsent_calls = late.iter().filter(|answer| unsent(answer)).count();
        assert!((40..60).contains(&unsent_calls), "those that wait longer than a minute: {unsent_calls}");
    }

    #[tokio::test(start_paused = true)]
    async fn calls_name_their_purpose_in_the_user_agent() {
        let cluster = cluster(&Arc::default());
        let agent = cluster.client(Purpose::Leases).request_text(get("/")).await.unwrap();
        assert!(agent.starts_with("machine-controller-manager/v"), "{agent}");
        assert!(agent.ends_with("/machine-leader-election"), "{agent}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answers_does_not_hang_the_caller() {
        let recorded = Arc::new(Recorded::default());
        let error = cluster(&recorded).client(Purpose::Watches).request_text(get("/hang")).await.unwrap_err();
        assert!(crate::error::chain(&error).contains("api:6443 did not begin to answer"), "{error}");
        assert_eq!(recorded.0.lock().unwrap()[0].1, CallResult::Failed);
    }
}
