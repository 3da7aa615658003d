//! The last warnings that events report about an object, or about the machine objects of a namespace.
//!
//! Events tell what has happened, and API servers keep them for an hour. The state of an object does not depend on them, so that a command
//! goes on without them. Source: spec/packaging §5.2.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::{Api, Client, api::ListParams};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    notices::Notices,
    output::{Style, length},
    state::line,
};
use controller_runtime::{error::ApiError, key::Target};
use machine_api::{kind::Kind, names::GROUP};
use machine_controllers::times::rfc3339;

/// How many warnings are shown.
const SHOWN: usize = 3;
/// How many warnings about objects of a namespace are shown.
const SHOWN_OF_ALL: usize = 5;
/// How many events are read. An API server sends them in no useful order.
const READ: u32 = 500;
/// How long the command waits for events.
const WITHIN: Duration = Duration::from_secs(2);

/// A warning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Warning {
    /// The reason, as one word in CamelCase.
    pub reason: String,
    /// What has happened, as a sentence.
    pub message: String,
    /// When it happened last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last: Option<Timestamp>,
    /// How often it happened.
    pub count: i32,
}

impl Warning {
    /// The warning as a line.
    pub fn line(&self, indent: &str, style: &Style) -> String {
        let often = if self.count > 1 { format!(" ({} times)", self.count) } else { String::new() };
        let last = self.last.map(|last| format!("   {} ({} ago)", rfc3339(last), length(style.now, last)));
        line(indent, "warning", &format!("{}: {}{often}{}", self.reason, self.message, last.unwrap_or_default()))
    }
}

/// A warning about an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ObjectWarning {
    /// The kind of the object, in lower case.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The warning.
    #[serde(flatten)]
    pub warning: Warning,
}

/// The last warnings about an object, the newest first. None if events can't be read, which is said.
pub async fn warnings(client: &Client, kind: Kind, about: &Target, notices: &Notices) -> Vec<Warning> {
    let fields = format!(
        "involvedObject.kind={},involvedObject.name={},involvedObject.uid={},type=Warning",
        kind.as_str(),
        about.key.name,
        about.uid
    );
    let events = Api::namespaced(client.clone(), &about.key.namespace);
    let mut all: Vec<Warning> = listed(&events, &fields, notices).await.into_iter().map(warning).collect();
    newest_first(&mut all, |known| known);
    all.truncate(SHOWN);
    all
}

/// The last warnings about machine objects of a namespace, or of all. None if events can't be read, which is said.
pub async fn recent(client: &Client, namespace: Option<&str>, notices: &Notices) -> Vec<ObjectWarning> {
    let events = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    newest_of_machines(listed(&events, "type=Warning", notices).await)
}

async fn listed(events: &Api<Event>, fields: &str, notices: &Notices) -> Vec<Event> {
    let params = ListParams::default().fields(fields).limit(READ);
    let why = match tokio::time::timeout(WITHIN, events.list(&params)).await {
        Ok(Ok(list)) => return list.items,
        Ok(Err(error)) => ApiError::from(error).to_string(),
        Err(_) => format!("no answer within {} s", WITHIN.as_secs()),
    };
    notices.say(&format!("events can't be read, so warnings are not shown: {why}"));
    Vec::new()
}

/// The newest warnings about machine objects. Pure.
fn newest_of_machines(events: Vec<Event>) -> Vec<ObjectWarning> {
    let is_ours = |event: &Event| {
        let version = event.involved_object.api_version.as_deref().unwrap_or_default();
        version.split_once('/').is_some_and(|(group, _)| group == GROUP)
    };
    let about = |mut event: Event| {
        let object = std::mem::take(&mut event.involved_object);
        ObjectWarning {
            kind: object.kind.unwrap_or_default().to_ascii_lowercase(),
            namespace: object.namespace.unwrap_or_default(),
            name: object.name.unwrap_or_default(),
            warning: warning(event),
        }
    };
    let mut all: Vec<ObjectWarning> = events.into_iter().filter(is_ours).map(about).collect();
    newest_first(&mut all, |known| &known.warning);
    all.truncate(SHOWN_OF_ALL);
    all
}

fn newest_first<T>(all: &mut [T], warning: impl Fn(&T) -> &Warning) {
    all.sort_by(|one, other| {
        let (one, other) = (warning(one), warning(other));
        other.last.cmp(&one.last).then_with(|| one.reason.cmp(&other.reason))
    });
}

fn warning(event: Event) -> Warning {
    let series = event.series.unwrap_or_default();
    let last = series.last_observed_time.map(|time| time.0).or_else(|| event.last_timestamp.map(|time| time.0));
    let last = last.or_else(|| event.event_time.map(|time| time.0));
    let last = last.or_else(|| event.metadata.creation_timestamp.map(|time| time.0));
    Warning {
        reason: event.reason.unwrap_or_default(),
        message: event.message.unwrap_or_default(),
        last,
        count: series.count.or(event.count).unwrap_or(1),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{
        output::testing::plain,
        testing::{ago, now},
    };
    use super::*;

    fn event(reason: &str, times: &serde_json::Value) -> Event {
        let mut event =
            json!({ "metadata": {}, "involvedObject": {}, "type": "Warning", "reason": reason, "message": "no quota" });
        json_patch::merge(&mut event, times);
        serde_json::from_value(event).unwrap()
    }

    #[test]
    fn the_newest_warnings_come_first_and_are_few() {
        let events = vec![
            event("Oldest", &json!({ "lastTimestamp": ago(500) })),
            event(
                "Repeated",
                &json!({ "lastTimestamp": ago(400), "series": { "count": 7, "lastObservedTime": ago(10) } }),
            ),
            event("Made", &json!({ "metadata": { "creationTimestamp": ago(300) } })),
            event("Counted", &json!({ "lastTimestamp": ago(60), "count": 3 })),
        ];
        let mut shown: Vec<Warning> = events.into_iter().map(warning).collect();
        newest_first(&mut shown, |known| known);
        shown.truncate(SHOWN);
        let reasons: Vec<&str> = shown.iter().map(|one| one.reason.as_str()).collect();
        assert_eq!(reasons, ["Repeated", "Counted", "Made"]);
        let text: String = shown.iter().map(|one| one.line("  ", &plain(now()))).collect();
        assert_eq!(
            text,
            "  warning     Repeated: no quota (7 times)   2027-01-15T07:59:50Z (10s ago)\n  warning     Counted: no quota (3 \
             times)   2027-01-15T07:59:00Z (1m0s ago)\n  warning     Made: no quota   2027-01-15T07:55:00Z (5m0s ago)\n"
        );
    }

    #[test]
    fn only_machine_objects_are_reported_for_a_namespace() {
        let about = |version: &str, name: &str, seconds: i64| {
            event(
                "Seen",
                &json!({ "lastTimestamp": ago(seconds), "involvedObject": { "apiVersion": version,
                "kind": "Machine", "namespace": "ns", "name": name } }),
            )
        };
        let version = format!("{GROUP}/v1alpha1");
        let mut events: Vec<Event> = (0..9).map(|n| about(&version, &format!("m-{n}"), 100 - n)).collect();
        events.extend([about("v1", "pod", 1), about("apps/v1", "set", 1)]);
        let shown = newest_of_machines(events);
        let names: Vec<&str> = shown.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["m-8", "m-7", "m-6", "m-5", "m-4"]);
        assert_eq!((shown[0].kind.as_str(), shown[0].namespace.as_str()), ("machine", "ns"));
    }
}
