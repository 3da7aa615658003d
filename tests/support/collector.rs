//! A collector of OpenTelemetry: takes spans over HTTP and keeps them.

use std::sync::{Arc, Mutex};

use axum::{Router, body::Bytes, extract::State, routing::post};
use machine_controller_manager::observability::traces::otlp::{OneValue, PATH, Request, WireSpan};
use prost::Message;
use tokio::{net::TcpListener, task::JoinHandle};

type Bodies = Arc<Mutex<Vec<Bytes>>>;

/// A collector on loopback.
pub struct Collector {
    /// The flag of a manager that sends its spans here.
    pub flag: String,
    bodies: Bodies,
    serving: JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Collector {
    /// Starts a collector.
    pub async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let flag = format!("--tracing-endpoint=http://{}", listener.local_addr().expect("it is bound"));
        let bodies = Bodies::default();
        let take = async |State(bodies): State<Bodies>, body: Bytes| bodies.lock().expect("nobody panicked").push(body);
        let router = Router::new().route(PATH, post(take)).with_state(Arc::clone(&bodies));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { flag, bodies, serving }
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<WireSpan> {
        let bodies = self.bodies.lock().expect("nobody panicked").clone();
        let requests = bodies.into_iter().map(|body| Request::decode(body).expect("a request of the protocol"));
        let scopes = requests.flat_map(|request| request.resource_spans).flat_map(|spans| spans.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// All bytes so far, as text.
    pub fn text(&self) -> String {
        let bodies = self.bodies.lock().expect("nobody panicked");
        bodies.iter().map(|body| String::from_utf8_lossy(body).into_owned()).collect()
    }
}

/// The value of an attribute, as text.
pub fn attribute(span: &WireSpan, key: &str) -> Option<String> {
    let pair = span.attributes.iter().find(|pair| pair.key == key)?;
    match pair.value.as_ref()?.value.as_ref()? {
        OneValue::Text(text) => Some(text.clone()),
        OneValue::Number(number) => Some(number.to_string()),
        OneValue::List(list) => Some(format!("{list:?}")),
    }
}
