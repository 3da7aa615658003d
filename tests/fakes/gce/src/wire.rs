//! The connections: which method a request calls, whether its caller may, and whether request and answer are as documented.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response, header, request::Parts};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    Call, Shared,
    accounts::Caller,
    cloud::Answer,
    errors::Refusal,
    lists::Mask,
    model::{self, Method},
};

/// How often an operation is looked at while a call waits for it.
const PAUSE: Duration = Duration::from_millis(5);

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
    let answer = match (head.method.as_str(), head.uri.path()) {
        ("POST", "/token") => token(shared, &body),
        _ => called(shared, &head, &body).await,
    };
    let (status, text) = match answer {
        Ok(value) => (200, value.to_string()),
        Err(refusal) => (refusal.status(), refusal.body()),
    };
    let built = Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/json; charset=UTF-8")
        .body(Full::new(Bytes::from(text)));
    Ok(built.unwrap_or_default())
}

/// The token endpoint of OAuth has no discovery document.
fn token(shared: &Shared, body: &[u8]) -> Answer {
    let form = form_urlencoded::parse(body).into_owned().collect();
    shared.cloud().tokens.for_assertion(&form, &shared.url, Timestamp::now().as_second())
}

async fn called(shared: &Shared, head: &Parts, body: &[u8]) -> Answer {
    let path = decoded(head.uri.path());
    let Some((method, parameters)) = model::method_at(head.method.as_str(), &path) else {
        return Err(violation(shared, &format!("{} {path}", head.method), &["there is no such method".to_owned()]));
    };
    let query: BTreeMap<String, String> =
        form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
    let body = parsed(head, body);
    let mut call = Call { method, path, parameters, query, body, caller: String::new(), by: String::new() };
    let caller = authorized(shared, head, &call);
    if let Ok(caller) = &caller {
        (call.caller, call.by) = (caller.account.clone(), caller.by.clone());
    }
    shared.cloud().calls.push(call.clone());

    let mut wrong = model::check_parameters(method, &call.parameters, &call.query);
    wrong.extend(model::check_request(method, call.body.as_ref()));
    let mask = match call.query.get("fields") {
        None => Mask::default(),
        Some(fields) => Mask::parse(fields, model::schema(model::response_schema(method))).unwrap_or_else(|why| {
            wrong.push(why);
            Mask::default()
        }),
    };
    if !wrong.is_empty() {
        return Err(violation(shared, method.id(), &wrong));
    }
    let caller = caller?;
    if let Some(refusal) = shared.cloud().next_refusal(method) {
        return Err(refusal);
    }
    let answer = match method {
        Method::ExchangeToken => shared.cloud().tokens.for_external(call.body.as_ref().unwrap_or(&Value::Null)),
        Method::GenerateAccessToken => {
            let (name, body) = (&call.parameters["name"], call.body.as_ref().unwrap_or(&Value::Null));
            shared.cloud().tokens.for_account(name, body, &caller)
        }
        Method::WaitOperation => waited(shared, &call).await,
        _ => shared.cloud().answer(method, &call),
    };
    let answer = mask.of(answer?);
    let wrong = model::check_answer(method, &answer);
    if wrong.is_empty() {
        Ok(answer)
    } else {
        Err(violation(shared, &format!("the answer to {}", method.id()), &wrong))
    }
}

/// An operation, when it has ended or the longest time is over.
async fn waited(shared: &Shared, call: &Call) -> Answer {
    let until = Instant::now() + shared.cloud().longest_wait();
    loop {
        let answer = shared.cloud().answer(call.method, call);
        let running = answer.as_ref().is_ok_and(|operation| operation["status"] != "DONE");
        if !running || Instant::now() >= until {
            return answer;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The caller, if the method needs one.
fn authorized(shared: &Shared, head: &Parts, call: &Call) -> Result<Caller, Refusal> {
    if call.method == Method::ExchangeToken {
        return Ok(Caller::nobody());
    }
    let header = head.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let caller = shared.cloud().tokens.caller(header, Timestamp::now().as_second())?;
    // Google's own library asks IAM with a scope that the discovery document does not name; the method checks it.
    if call.method != Method::GenerateAccessToken && !caller.has_one_of(model::scopes(call.method)) {
        let message = "Request had insufficient authentication scopes.";
        return Err(Refusal::new(403, "insufficientPermissions", message));
    }
    Ok(caller)
}

/// Records violations, and refuses the request.
fn violation(shared: &Shared, what: &str, wrong: &[String]) -> Refusal {
    let message = format!("{what}: {}", wrong.join("; "));
    shared.cloud().violations.push(message.clone());
    Refusal::new(400, "badRequest", &message)
}

/// The body as JSON. A form, which STS takes as well, gets the names of the discovery document.
fn parsed(head: &Parts, body: &[u8]) -> Option<Value> {
    let kind = head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.starts_with("application/x-www-form-urlencoded") {
        return serde_json::from_slice(body).ok().map(without_nulls);
    }
    let fields = form_urlencoded::parse(body).map(|(name, value)| (camel_case(&name), Value::from(value.into_owned())));
    Some(Value::Object(fields.collect::<Map<_, _>>()))
}

/// In the JSON form of protocol buffers a field that is null is absent.
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

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut text = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        text.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        text.push_str(letters.as_str());
    }
    text
}

/// A path without percent signs. A plus sign stays one.
fn decoded(path: &str) -> String {
    let escaped = path.replace('+', "%2B");
    form_urlencoded::parse(escaped.as_bytes()).next().map(|(path, _)| path.into_owned()).unwrap_or_default()
}
