//! Forwards a request to a registered server, and its answer to the client.
//!
//! Source: spec/extension-apiserver §5.2, §5.3.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode, header,
    request::Parts,
    uri::{Authority, PathAndQuery},
};

use super::GroupVersion;
use crate::{
    access::User,
    server::{Answer, AnswerBody, Server},
};
use kube_listener::Peer;
use kube_protocol::status::{ApiStatus, Form};

/// The time within which an answer must begin. A watch begins at once.
const DEADLINE: Duration = Duration::from_secs(60);
/// The headers of a single connection, and the headers that authenticate a client.
static NOT_FORWARDED: [HeaderName; 9] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::AUTHORIZATION,
    header::HOST,
];
const IDENTITY_PREFIXES: [&str; 2] = ["x-remote-", "impersonate-"];
const FORWARDED_FOR: &str = "x-forwarded-for";

impl Server {
    /// Forwards a request to the server of its group-version, in the name of its user.
    ///
    /// # Errors
    /// 503 as plain text, as in kube-aggregator, if the server can't be reached; 504 if its answer does not begin in time.
    pub(crate) async fn forward(
        &self,
        serves: &GroupVersion,
        head: &Parts,
        body: &Bytes,
        user: &User,
    ) -> Result<Answer, ApiStatus> {
        let Some(backend) = self.aggregator.backend(serves) else { return Err(ApiStatus::page_not_found()) };
        let (Ok(client), Ok(_)) = (&backend.client, &backend.documents) else {
            return Err(unreachable("service unavailable".to_owned()));
        };
        let path_and_query = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let sent = client.send(head.method.clone(), path_and_query, forwarded_headers(head, user), body.clone());
        let response = match tokio::time::timeout(DEADLINE, sent).await {
            Ok(Ok(response)) => response,
            Ok(Err(why)) => {
                self.aggregator.check_again();
                return Err(unreachable(format!("error trying to reach service: {why}")));
            }
            Err(_) => return Err(ApiStatus::new(504, "Timeout", "the registered server did not answer in time")),
        };
        let (answered, body) = response.into_parts();
        let mut headers = answered.headers;
        for name in &NOT_FORWARDED {
            headers.remove(name);
        }
        let body = if answered.status == StatusCode::NOT_MODIFIED {
            AnswerBody::Empty
        } else {
            AnswerBody::Stream(Body::new(body))
        };
        Ok(Answer { headers, ..Answer::new(answered.status, body) })
    }
}

fn unreachable(message: String) -> ApiStatus {
    ApiStatus { form: Form::Text, ..ApiStatus::new(503, "ServiceUnavailable", message) }
}

/// The headers of the forwarded request: the headers of the client, without the headers that only this server may set, and the user.
fn forwarded_headers(head: &Parts, user: &User) -> HeaderMap {
    let mut headers = head.headers.clone();
    for name in &NOT_FORWARDED {
        headers.remove(name);
    }
    let claims: Vec<HeaderName> = headers
        .keys()
        .filter(|name| IDENTITY_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix)))
        .cloned()
        .collect();
    for name in claims {
        headers.remove(name);
    }
    // The client sets the length of the body.
    headers.remove(header::CONTENT_LENGTH);
    let mut add = |name: &'static str, text: &str| {
        if let Ok(value) = HeaderValue::from_str(text) {
            headers.append(name, value);
        }
    };
    add("x-remote-user", &user.name);
    for group in &user.groups {
        add("x-remote-group", group);
    }
    add("x-forwarded-uri", head.uri.path());
    add("x-forwarded-proto", "https");
    let host = head.uri.authority().map(Authority::as_str).map(str::to_owned);
    let host = host.or_else(|| head.headers.get(header::HOST)?.to_str().ok().map(str::to_owned));
    add("x-forwarded-host", &host.unwrap_or_default());
    if let Some(peer) = head.extensions.get::<Peer>() {
        let before = head.headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
        let all: Vec<String> = before.map(str::to_owned).chain([peer.address.ip().to_string()]).collect();
        if let Ok(value) = HeaderValue::from_str(&all.join(", ")) {
            headers.insert(FORWARDED_FOR, value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xa_143_xa_169_clients_can_not_set_the_headers_of_identity() {
        let mut request = http::Request::get("/apis/g/v1/pets?limit=5")
            .header("authorization", "Bearer secret")
            .header("x-remote-user", "root")
            .header("x-remote-group", "system:masters")
            .header("x-remote-extra-scope", "all")
            .header("impersonate-user", "root")
            .header("connection", "keep-alive")
            .header("x-forwarded-for", "9.9.9.9")
            .header("accept", "application/json")
            .header("host", "127.0.0.1:1")
            .body(())
            .unwrap();
        request.extensions_mut().insert(Peer::new(([127, 0, 0, 1], 1).into(), Vec::new()));
        let (head, ()) = request.into_parts();
        let user = User::known("alice", ["people".to_owned()]);
        let headers = forwarded_headers(&head, &user);
        let all = |name: &str| -> Vec<&str> {
            headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect()
        };
        assert_eq!(all("x-remote-user"), ["alice"]);
        assert_eq!(all("x-remote-group"), ["people", "system:authenticated"]);
        assert_eq!(all(FORWARDED_FOR), ["9.9.9.9, 127.0.0.1"]);
        assert_eq!(all("x-forwarded-uri"), ["/apis/g/v1/pets"]);
        assert_eq!(all("accept"), ["application/json"]);
        for name in ["authorization", "x-remote-extra-scope", "impersonate-user", "connection", "host"] {
            assert_eq!(all(name), [""; 0], "{name}");
        }
    }
}
