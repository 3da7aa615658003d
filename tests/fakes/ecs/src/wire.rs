//! The connections: which action a request calls, whether its caller may, and whether request and answer are as the model says.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, header, request::Parts};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::json;
use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    Call, Shared,
    cloud::Answer,
    errors::Refusal,
    lists,
    model::{self, Action},
    signature::{Parameters, Received},
};

/// Serves connections. All of them end when this future is dropped.
pub async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(|request| respond(&shared, request));
            // The result is ignored, because clients close connections at any time.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn respond(shared: &Shared, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let id = shared.cloud().next_request();
    let (status, kind, text) = match called(shared, &received(&head, &body), &id) {
        Ok(value) => (200, "application/json;charset=utf-8", value.to_string()),
        Err(refusal) => (refusal.status(), refusal.content_type(), refusal.body(&id)),
    };
    let built = Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, kind)
        .header("x-acs-request-id", id)
        .body(Full::new(Bytes::from(text)));
    Ok(built.unwrap_or_default())
}

fn received<'a>(head: &'a Parts, body: &'a [u8]) -> Received<'a> {
    let pairs = |text: &[u8]| -> Parameters { form_urlencoded::parse(text).into_owned().collect() };
    let kind = head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_form = kind.starts_with("application/x-www-form-urlencoded");
    Received {
        method: head.method.as_str(),
        path: head.uri.path(),
        headers: &head.headers,
        query: pairs(head.uri.query().unwrap_or_default().as_bytes()),
        form: if is_form { pairs(body) } else { Parameters::new() },
        body,
    }
}

fn called(shared: &Shared, request: &Received<'_>, id: &str) -> Answer {
    let name = request.action();
    let Some(action) = Action::named(&name).filter(|_| request.path == "/") else {
        return Err(violation(shared, &format!("{} {name}", request.path), &["there is no such action".to_owned()]));
    };
    let caller = shared.cloud().callers.check(request, Timestamp::now().as_second());
    let call = Call {
        action,
        parameters: request.parameters(),
        caller: caller.clone().unwrap_or_default(),
        scheme: request.scheme(),
    };
    shared.cloud().calls.push(call.clone());
    caller?;

    let mut wrong = model::check_parameters(action, &call.parameters);
    wrong.extend(lists::unknown_filters(action, &call.parameters));
    if request.version() != action.version() {
        wrong.push(format!("the version is {}, and not {:?}", action.version(), request.version()));
    }
    if !["GET", "POST"].contains(&request.method) {
        wrong.push(format!("the method is POST or GET, and not {}", request.method));
    }
    if !request.wants_json() {
        wrong.push("the service answers in XML, unless the request asks for JSON".to_owned());
    }
    if !wrong.is_empty() {
        return Err(violation(shared, action.name(), &wrong));
    }
    let mut answer = shared.cloud().answer(&call)?;
    answer["RequestId"] = json!(id);
    let wrong = model::check_answer(action, &answer);
    if wrong.is_empty() { Ok(answer) } else { Err(violation(shared, &format!("the answer to {name}"), &wrong)) }
}

/// Records violations, and refuses the request.
fn violation(shared: &Shared, what: &str, wrong: &[String]) -> Refusal {
    let message = format!("{what}: {}", wrong.join("; "));
    shared.cloud().violations.push(message.clone());
    Refusal::new(400, "InvalidParameter", &message)
}
