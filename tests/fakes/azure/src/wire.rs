//! The connections: which method a request calls, whether its caller may, and whether request and answer fit Microsoft's clients.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, header, request::Parts};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    Call, Shared, accounts,
    cloud::{Answer, Done},
    errors::Refusal,
    model::{self, Method},
};

/// Headers that calls keep for tests and for the methods.
const KEPT: [&str; 4] = ["if-none-match", "if-match", "x-ms-client-request-id", "user-agent"];

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
    let answer = called(shared, &head, &body);
    let number = shared.cloud().calls.len();
    let mut response = Response::builder().header("x-ms-request-id", format!("0a1b2c3d-0000-4000-c000-{number:012x}"));
    let text = match answer {
        Ok(done) => {
            response = response.status(done.status);
            for (name, value) in done.headers {
                response = response.header(name, value);
            }
            response = response.header(header::CONTENT_TYPE, "application/json; charset=utf-8");
            done.body.map(|body| body.to_string()).unwrap_or_default()
        }
        Err(refusal) => {
            response = response.status(refusal.status());
            let has_type = refusal.headers().iter().any(|(name, _)| *name == "content-type");
            for (name, value) in refusal.headers() {
                response = response.header(*name, value);
            }
            if !has_type {
                response = response.header(header::CONTENT_TYPE, "application/json; charset=utf-8");
            }
            refusal.body()
        }
    };
    Ok(response.body(Full::new(Bytes::from(text))).unwrap_or_default())
}

fn called(shared: &Shared, head: &Parts, body: &[u8]) -> Answer {
    let path = decoded(head.uri.path());
    let Some((method, parameters)) = model::method_at(head.method.as_str(), &path) else {
        return Err(violation(shared, &format!("{} {path}", head.method), &["there is no such method".to_owned()]));
    };
    let query: BTreeMap<String, String> =
        form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
    let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let headers = KEPT.iter().filter_map(|name| Some(((*name).to_owned(), header(name)?))).collect();
    let form = method == Method::GetToken;
    let json = if form { None } else { serde_json::from_slice(body).ok().map(without_nulls) };
    let mut call = Call { method, path, parameters, query, body: json, headers, by: String::new() };
    let caller = if method.is_of_entra() {
        Ok("")
    } else {
        shared.cloud().tokens.caller(&header("authorization").unwrap_or_default())
    };
    caller.as_ref().copied().unwrap_or_default().clone_into(&mut call.by);
    shared.cloud().calls.push(call.clone());

    let mut wrong = model::check_query(method, &call.query);
    let version = call.query.get("api-version").map(String::as_str).unwrap_or_default();
    wrong.extend(model::check_request(method, version, call.body.as_ref()));
    if method.is_poll() && call.query.get("s").is_none_or(|given| given != crate::operations::SIGNATURE) {
        wrong.push("the URL of an operation is used as the service gave it".to_owned());
    }
    if !wrong.is_empty() {
        return Err(violation(shared, method.id(), &wrong));
    }
    caller?;
    if let Some(refusal) = shared.cloud().next_refusal(method) {
        return Err(refusal);
    }
    if form {
        let form = form_urlencoded::parse(body).into_owned().collect();
        let token = shared.cloud().tokens.issue(&call.parameters["tenant"], &form)?;
        return Ok(Done::ok(token));
    }
    if method == Method::GetOpenIdConfiguration {
        return Ok(Done::ok(accounts::open_id_configuration(&call.parameters["tenant"])));
    }
    let host = header("host").unwrap_or_default();
    let scheme = if host.starts_with("127.0.0.1") || host.starts_with("localhost") { "http" } else { "https" };
    let done = shared.cloud().answer(&call, &format!("{scheme}://{host}"))?;
    let wrong = done.body.as_ref().map(|body| model::check_answer(method, body)).unwrap_or_default();
    if wrong.is_empty() { Ok(done) } else { Err(violation(shared, &format!("the answer to {}", method.id()), &wrong)) }
}

/// Records violations, and refuses the request.
fn violation(shared: &Shared, what: &str, wrong: &[String]) -> Refusal {
    let message = format!("{what}: {}", wrong.join("; "));
    shared.cloud().violations.push(message.clone());
    Refusal::new(400, "InvalidRequestContent", &message)
}

/// A field that is null is absent.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (name, without_nulls(value))).collect())
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// A path without percent signs. A plus sign stays one.
fn decoded(path: &str) -> String {
    let escaped = path.replace('+', "%2B");
    form_urlencoded::parse(escaped.as_bytes()).next().map(|(path, _)| path.into_owned()).unwrap_or_default()
}
