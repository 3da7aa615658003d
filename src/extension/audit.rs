//! The audit log: one line per request, as Kubernetes writes such events at level Metadata.
//!
//! Contents: the content of an event ([`Record::event`], pure) and the file of the log. An event never contains bodies, tokens or credentials.
//! Source: spec/extension-apiserver §3.6.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
};

use http::HeaderMap;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::authentication::{decide::AuthMethod, identity::Identity};
use crate::settings::AuditLog;
use kube_protocol::request::{ResourceRequest, Verb};
use mcm_metrics::Metrics;

/// Maximum number of lines in the queue to the writer.
const QUEUE: usize = 10_000;
/// Longest text of a caller in an event, in characters.
const MAX_TEXT: usize = 1_024;
/// A parameter may be a secret if its name contains one of these words.
const SECRET_WORDS: [&str; 5] = ["token", "secret", "password", "key", "continue"];

/// A request, as the audit log describes it.
#[derive(Clone, Debug)]
pub struct Record {
    /// The id that the caller and other logs have too.
    pub audit_id: String,
    /// HTTP method.
    pub method: String,
    /// The path, as sent.
    pub path: String,
    /// The query, as sent.
    pub query: Option<String>,
    /// Address of the peer.
    pub source: String,
    /// `X-Forwarded-For`, as sent.
    pub forwarded_for: String,
    /// `User-Agent`, as sent.
    pub user_agent: String,
    /// The caller, once it is identified.
    pub identity: Option<Identity>,
    /// The authenticator that identified the caller.
    pub auth_method: Option<AuthMethod>,
    /// The resource, if the request is for one.
    pub request: Option<ResourceRequest>,
    /// The time at which the request was received.
    pub received: Timestamp,
}

impl Record {
    /// The record of a request before its caller is identified.
    pub fn of(audit_id: &str, request: &http::request::Parts, source: String, received: Timestamp) -> Self {
        let text = |headers: &HeaderMap, name: &str| {
            let values: Vec<_> =
                headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
            values.join(", ")
        };
        Self {
            audit_id: audit_id.to_owned(),
            method: request.method.to_string(),
            path: request.uri.path().to_owned(),
            query: request.uri.query().map(str::to_owned),
            source,
            forwarded_for: text(&request.headers, "x-forwarded-for"),
            user_agent: text(&request.headers, "user-agent"),
            identity: None,
            auth_method: None,
            request: None,
            received,
        }
    }

    /// The event of the answered request.
    pub fn event(&self, code: u16, now: Timestamp) -> Value {
        let (sources, unverified) = self.sources();
        let verb = match &self.request {
            Some(request) => request.verb.map_or("", Verb::name).to_owned(),
            None => self.method.to_ascii_lowercase(),
        };
        let mut event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "stage": "ResponseComplete",
            "auditID": cut(&self.audit_id), "requestURI": cut(&self.uri()), "verb": verb,
            "user": self.identity.as_ref().map_or(json!({}), user), "sourceIPs": sources,
            "userAgent": cut(&self.user_agent), "responseStatus": {"metadata": {}, "code": code},
            "requestReceivedTimestamp": time(self.received), "stageTimestamp": time(now),
        });
        if !unverified.is_empty() {
            event["annotations"] = json!({"unverified.views.machine.sapcloud.io/forwarded-for": unverified.join(", ")});
        }
        if let Some(request) = &self.request {
            event["objectRef"] = json!({
                "resource": cut(&request.resource), "namespace": request.namespace.as_deref().map(cut),
                "name": request.name.as_deref().map(cut), "apiGroup": cut(&request.group), "apiVersion": cut(&request.version),
            });
        }
        event
    }

    /// The verified addresses, and the unverified ones that the headers contain. A front proxy appends the address of its peer to
    /// the header of the client, so that only the last address is verified.
    fn sources(&self) -> (Vec<String>, Vec<String>) {
        let claimed = self.forwarded_for.split(',').map(str::trim).filter(|text| !text.is_empty());
        let mut claimed: Vec<String> = claimed.map(cut).collect();
        let mut sources = Vec::new();
        if self.auth_method == Some(AuthMethod::FrontProxy) {
            sources.extend(claimed.pop());
        }
        sources.push(self.source.clone());
        (sources, claimed)
    }

    fn uri(&self) -> String {
        let Some(query) = &self.query else { return self.path.clone() };
        let masked = |pair: &str| {
            let name = pair.split('=').next().unwrap_or_default();
            let lower = name.to_ascii_lowercase();
            let is_secret = SECRET_WORDS.iter().any(|word| lower.contains(word));
            if is_secret { format!("{name}=<redacted>") } else { pair.to_owned() }
        };
        format!("{}?{}", self.path, query.split('&').map(masked).collect::<Vec<_>>().join("&"))
    }
}

fn user(identity: &Identity) -> Value {
    let mut user = json!({"username": cut(&identity.user), "groups": identity.groups.iter().map(|group| cut(group)).collect::<Vec<_>>()});
    if !identity.uid.is_empty() {
        user["uid"] = json!(cut(&identity.uid));
    }
    user
}

/// A text of a caller, cut to the longest length. JSON escapes its line ends.
fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// Queues lines for the writer, and drops them when the queue is full.
#[derive(Clone)]
pub struct Audit {
    lines: mpsc::Sender<String>,
    metrics: Metrics,
}

impl Audit {
    /// A log and its writer.
    ///
    /// # Errors
    /// When the file can't be opened.
    pub fn open(log: &AuditLog, metrics: Metrics) -> io::Result<(Self, AuditWriter)> {
        let output: Box<dyn Write + Send> = match log {
            AuditLog::Stdout => Box::new(io::stdout()),
            AuditLog::File(path) => Box::new(OpenOptions::new().create(true).append(true).mode(0o600).open(path)?),
        };
        let (lines, waiting) = mpsc::channel(QUEUE);
        Ok((Self { lines, metrics }, AuditWriter { output, waiting }))
    }

    /// Queues an event.
    pub fn log(&self, event: &Value) {
        if self.lines.try_send(format!("{event}\n")).is_err() {
            self.metrics.extension.audit_dropped.inc(&());
        }
    }
}

/// Writes the log.
pub struct AuditWriter {
    output: Box<dyn Write + Send>,
    waiting: mpsc::Receiver<String>,
}

impl AuditWriter {
    /// Writes until `stop`, and then the rest of the queue. The writes run on threads that may block.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut lines = Vec::new();
        loop {
            tokio::select! {
                _ = self.waiting.recv_many(&mut lines, 256) => {}
                () = stop.cancelled() => {
                    self.waiting.close();
                    self.waiting.recv_many(&mut lines, QUEUE).await;
                }
            }
            if lines.is_empty() {
                // All senders are gone, so that no event can follow.
                return stop.cancelled().await;
            }
            let text = std::mem::take(&mut lines).concat();
            let mut output = self.output;
            let written = tokio::task::spawn_blocking(move || {
                let result = output.write_all(text.as_bytes()).and_then(|()| output.flush());
                (output, result)
            });
            let Ok((returned, result)) = written.await else { return };
            self.output = returned;
            if let Err(error) = result {
                tracing::error!(%error, "cannot write the audit log");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn record(uri: &str, forwarded: &str, auth_method: AuthMethod) -> Record {
        let request = http::Request::get(uri).header("x-forwarded-for", forwarded).header("user-agent", "kubectl");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let mut record = Record::of("a-1", &parts, "10.0.0.1".to_owned(), Timestamp::UNIX_EPOCH);
        record.auth_method = Some(auth_method);
        record
    }

    #[rstest]
    #[case::xa_169_what_a_client_claims(AuthMethod::FrontProxy, "9.9.9.9, 127.0.0.1", &["127.0.0.1", "10.0.0.1"], "9.9.9.9")]
    #[case::directly(AuthMethod::Certificate, "9.9.9.9", &["10.0.0.1"], "9.9.9.9")]
    #[case::nothing_claimed(AuthMethod::FrontProxy, "127.0.0.1", &["127.0.0.1", "10.0.0.1"], "")]
    fn the_sources_of_a_request(
        #[case] auth_method: AuthMethod,
        #[case] forwarded: &str,
        #[case] sources: &[&str],
        #[case] unverified: &str,
    ) {
        let event = record("/apis", forwarded, auth_method).event(200, Timestamp::UNIX_EPOCH);
        assert_eq!(event["sourceIPs"], json!(sources));
        let found = &event["annotations"]["unverified.views.machine.sapcloud.io/forwarded-for"];
        assert_eq!(found.as_str().unwrap_or_default(), unverified);
    }

    #[rstest]
    #[case::plain("/apis?limit=5", "/apis?limit=5")]
    #[case::tokens("/apis?access_token=abc&limit=5", "/apis?access_token=<redacted>&limit=5")]
    #[case::none("/apis", "/apis")]
    fn secrets_are_masked(#[case] uri: &str, #[case] expected: &str) {
        assert_eq!(record(uri, "", AuthMethod::Anonymous).event(200, Timestamp::UNIX_EPOCH)["requestURI"], expected);
    }

    #[test]
    fn th_36_texts_of_callers_are_cut_and_stay_on_their_line() {
        let mut record = record("/apis", "", AuthMethod::Token);
        record.identity = Some(Identity { user: format!("a\nb{}", "x".repeat(5_000)), ..Identity::default() });
        record.user_agent = "y".repeat(60_000);
        let line = record.event(200, Timestamp::UNIX_EPOCH).to_string();
        assert!(!line.contains('\n') && line.len() < 4_000, "{}", line.len());
    }

    #[test]
    fn an_event_names_caller_and_action() {
        let mut record = record("/x", "", AuthMethod::Token);
        record.identity =
            Some(Identity { user: "alice".to_owned(), groups: vec!["dev".to_owned()], ..Identity::default() });
        let event = record.event(403, "1970-01-01T00:00:01.5Z".parse().unwrap());
        assert_eq!(event["user"], json!({"username": "alice", "groups": ["dev"]}));
        assert_eq!((&event["responseStatus"]["code"], &event["verb"]), (&json!(403), &json!("get")));
        assert_eq!(event["stageTimestamp"], "1970-01-01T00:00:01.500000Z");
    }

    #[tokio::test]
    async fn lines_reach_the_file_and_none_is_lost_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let metrics = Metrics::new(std::sync::Arc::new(|| std::time::Duration::ZERO)).unwrap();
        let (audit, writer) = Audit::open(&AuditLog::File(path.clone()), metrics).unwrap();
        let stop = CancellationToken::new();
        for n in 0..1_000 {
            audit.log(&json!({"n": n}));
        }
        stop.cancel();
        writer.run(stop).await;
        assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 1_000);
    }
}
