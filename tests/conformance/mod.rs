//! The conformance probes of spec/extension-apiserver §7 as data, and their runner.
//!
//! A probe is a list of requests with the facts that must hold about the answers. The probes do not depend on the server: the same table runs against
//! the development server and against a real kube-apiserver.

// The tables are long, and are easier to read without prefixes and borrows.
#![allow(clippy::too_many_lines, clippy::enum_glob_use, clippy::needless_pass_by_value)]

mod deletions;
mod lists;
mod patches;
mod plain;
pub mod programs;
mod refused;
mod writes;

use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::Value;

/// A fact about an answer.
#[derive(Clone, Debug)]
pub enum Fact {
    /// The value at a pointer is this value.
    Is(&'static str, Value),
    /// The object at a pointer has these fields, among others.
    Part(&'static str, Value),
    /// The value at a pointer is missing or null.
    Absent(&'static str),
    /// The value at a pointer exists and is not null.
    Present(&'static str),
    /// The list or object at a pointer has this number of entries.
    Count(&'static str, usize),
    /// The text at a pointer contains this text.
    Holds(&'static str, &'static str),
    /// The body contains this text.
    Text(&'static str),
    /// The body does not contain this text.
    Lacks(&'static str),
    /// The header contains this text, after variables are replaced.
    Header(&'static str, &'static str),
    /// Stores the value at a pointer in a variable.
    Keep(&'static str, &'static str),
    /// Stores a header in a variable.
    KeepHeader(&'static str, &'static str),
    /// The text at a pointer equals a variable.
    Same(&'static str, &'static str),
    /// The text at a pointer differs from a variable.
    Differs(&'static str, &'static str),
}

/// A request, and the facts that must hold about its answer.
#[derive(Clone, Debug)]
pub struct Step {
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: String,
    statuses: Vec<u16>,
    facts: Vec<Fact>,
    /// How long the request is repeated until its facts hold, for results of controllers.
    retried_for: std::time::Duration,
}

impl Step {
    fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            headers: Vec::new(),
            body: String::new(),
            statuses: vec![200],
            facts: Vec::new(),
            retried_for: std::time::Duration::ZERO,
        }
    }

    fn with(mut self, header: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((header, value.into()));
        self
    }

    fn status(mut self, status: u16) -> Self {
        self.statuses = vec![status];
        self
    }

    fn one_of(mut self, statuses: &[u16]) -> Self {
        self.statuses = statuses.to_vec();
        self
    }

    fn facts(mut self, facts: impl IntoIterator<Item = Fact>) -> Self {
        self.facts.extend(facts);
        self
    }

    fn eventually(mut self) -> Self {
        self.retried_for = std::time::Duration::from_secs(30);
        self
    }
}

pub fn get(path: &str) -> Step {
    Step::new("GET", path)
}

pub fn post(path: &str, body: impl ToString) -> Step {
    Step { body: body.to_string(), ..Step::new("POST", path) }.status(201).with("content-type", "application/json")
}

pub fn put(path: &str, body: impl ToString) -> Step {
    Step { body: body.to_string(), ..Step::new("PUT", path) }.with("content-type", "application/json")
}

pub fn delete(path: &str) -> Step {
    Step::new("DELETE", path)
}

pub fn merge(path: &str, body: impl ToString) -> Step {
    patch(path, "application/merge-patch+json", body)
}

pub fn patch(path: &str, content_type: &'static str, body: impl ToString) -> Step {
    Step { body: body.to_string(), ..Step::new("PATCH", path) }.with("content-type", content_type)
}

/// A `Thing` with this name and specification.
pub fn thing(name: &str, spec: Value) -> Value {
    serde_json::json!({"apiVersion": "probe.example.com/v1", "kind": "Thing", "metadata": {"name": name}, "spec": spec})
}

/// A config map.
pub fn config_map(name: &str) -> Value {
    serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

/// The servers that a probe needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// An API server without controllers.
    Server,
    /// Also garbage collection, namespace deletion and budgets.
    Controllers,
    /// A server without a controller that counts disruption budgets.
    UncountedBudgets,
}

/// A probe.
#[derive(Clone, Debug)]
pub struct Probe {
    pub id: &'static str,
    pub needs: Needs,
    pub steps: Vec<Step>,
}

impl Probe {
    fn new(id: &'static str, steps: impl IntoIterator<Item = Step>) -> Self {
        Self { id, needs: Needs::Server, steps: steps.into_iter().collect() }
    }

    fn with_controllers(self) -> Self {
        Self { needs: Needs::Controllers, ..self }
    }

    fn with_uncounted_budgets(self) -> Self {
        Self { needs: Needs::UncountedBudgets, ..self }
    }
}

/// All probes.
pub fn probes() -> Vec<Probe> {
    let of_verbs =
        [plain::probes(), writes::probes(), patches::probes(), deletions::probes(), lists::probes()].concat();
    [of_verbs, refused::probes()].concat()
}

const DEFINITION: &str = include_str!("things.yaml");

/// The definition of the kind `Thing`, which the probes use.
pub fn definition() -> Value {
    let documents = machine_controller_manager::cli::documents::parse_documents("things.yaml", DEFINITION);
    documents.expect("the definition is YAML").swap_remove(0).value
}

/// Runs a probe in its own namespace. Returns all facts that do not hold.
pub async fn run(client: &kube::Client, probe: &Probe) -> Vec<String> {
    let namespace = format!("probe-{}", probe.id.to_lowercase());
    let mut variables = vec![
        ("$T".to_owned(), format!("/apis/probe.example.com/v1/namespaces/{namespace}/things")),
        ("$M".to_owned(), format!("/api/v1/namespaces/{namespace}/configmaps")),
        ("$NS".to_owned(), namespace.clone()),
    ];
    let made = send(
        client,
        "POST",
        "/api/v1/namespaces",
        &[("content-type", "application/json".to_owned())],
        &format!("{{\"apiVersion\":\"v1\",\"kind\":\"Namespace\",\"metadata\":{{\"name\":\"{namespace}\"}}}}"),
    )
    .await;
    if made.status != 201 {
        return vec![format!("{}: no namespace: {} {}", probe.id, made.status, made.body)];
    }
    for (at, step) in probe.steps.iter().enumerate() {
        let deadline = tokio::time::Instant::now() + step.retried_for;
        loop {
            let path = filled(&step.path, &variables);
            let headers: Vec<_> = step.headers.iter().map(|(name, value)| (*name, filled(value, &variables))).collect();
            let answer = send(client, step.method, &path, &headers, &filled(&step.body, &variables)).await;
            let wrong = check(step, &answer, &mut variables);
            if wrong.is_empty() {
                break;
            }
            if tokio::time::Instant::now() >= deadline {
                let body: String = answer.body.chars().take(700).collect();
                let what = wrong.join("; ");
                return vec![format!(
                    "{} step {at} {} {path}: {what}\n    {} {body}",
                    probe.id, step.method, answer.status
                )];
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
    Vec::new()
}

struct Reply {
    status: u16,
    headers: HeaderMap,
    body: String,
}

/// Replaces variables, longest name first, so that `$N` does not match in `$NS`.
fn filled(text: &str, variables: &[(String, String)]) -> String {
    let mut sorted: Vec<_> = variables.iter().collect();
    sorted.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    sorted.into_iter().fold(text.to_owned(), |text, (name, value)| text.replace(name.as_str(), value))
}

async fn send(
    client: &kube::Client,
    method: &str,
    path: &str,
    headers: &[(&'static str, String)],
    body: &str,
) -> Reply {
    let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).expect("a method")).uri(path);
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let request = request.body(Body::from(body.as_bytes().to_vec())).expect("a request");
    let answer = client.send(request).await.expect("the server answers");
    let (head, body) = answer.into_parts();
    let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    Reply { status: head.status.as_u16(), headers: head.headers, body: String::from_utf8_lossy(&bytes).into_owned() }
}

fn check(step: &Step, answer: &Reply, variables: &mut Vec<(String, String)>) -> Vec<String> {
    let mut wrong = Vec::new();
    if !step.statuses.contains(&answer.status) {
        return vec![format!("status {} is none of {:?}", answer.status, step.statuses)];
    }
    // A watch answers one document per line; the lines are checked as a list.
    let json: Value = serde_json::from_str(&answer.body).unwrap_or_else(|_| {
        answer.body.lines().filter_map(|line| serde_json::from_str(line).ok()).collect::<Vec<Value>>().into()
    });
    let at = |pointer: &str| json.pointer(pointer).cloned().unwrap_or(Value::Null);
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let known = |name: &str, variables: &[(String, String)]| {
        variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()).unwrap_or_default()
    };
    for fact in &step.facts {
        let holds = match fact {
            Fact::Is(pointer, value) => {
                let value: Value = serde_json::from_str(&filled(&value.to_string(), variables)).expect("still JSON");
                at(pointer) == value
            }
            Fact::Part(pointer, fields) => {
                let fields = fields.as_object().into_iter().flatten();
                let there = at(pointer);
                fields.into_iter().all(|(name, value)| there[name] == *value)
            }
            Fact::Absent(pointer) => at(pointer).is_null(),
            Fact::Present(pointer) => !at(pointer).is_null(),
            Fact::Count(pointer, count) => match at(pointer) {
                Value::Array(items) => items.len() == *count,
                Value::Object(fields) => fields.len() == *count,
                _ => *count == 0,
            },
            Fact::Holds(pointer, part) => text(at(pointer)).contains(part),
            Fact::Text(part) => answer.body.contains(part),
            Fact::Lacks(part) => !answer.body.contains(part),
            Fact::Header(name, part) => {
                let part = filled(part, variables);
                answer
                    .headers
                    .get_all(*name)
                    .iter()
                    .any(|value| value.to_str().is_ok_and(|value| value.contains(&part)))
            }
            Fact::Keep(name, pointer) => {
                variables.retain(|(known, _)| known != name);
                variables.push(((*name).to_owned(), text(at(pointer))));
                true
            }
            Fact::KeepHeader(name, header) => {
                let value = answer.headers.get(*header).and_then(|value| value.to_str().ok()).unwrap_or_default();
                variables.retain(|(known, _)| known != name);
                variables.push(((*name).to_owned(), value.to_owned()));
                !value.is_empty()
            }
            Fact::Same(pointer, name) => text(at(pointer)) == known(name, variables),
            Fact::Differs(pointer, name) => text(at(pointer)) != known(name, variables),
        };
        if !holds {
            let shown = match fact {
                Fact::Is(pointer, _)
                | Fact::Part(pointer, _)
                | Fact::Same(pointer, _)
                | Fact::Count(pointer, _)
                | Fact::Holds(pointer, _) => at(pointer).to_string(),
                _ => String::new(),
            };
            wrong.push(format!("{fact:?} does not hold: {shown}"));
        }
    }
    wrong
}
