//! Checks the objects that connect a cluster with the manager. Pure functions from objects to findings.

use controller_runtime::definitions::{hollow, leaves_stored_version_unserved};
use jiff::Timestamp;
use machine_api::{
    admission::manifests::{CREATE_WEBHOOK, UPDATE_WEBHOOK},
    crd,
    kind::Kind,
    names,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::commands::{Installed, allow_injection};
use crate::cli::{lease_watch::LeaseState, migrate_storage::definition::name_of};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Health {
    /// The object is right.
    Fine,
    /// The object is missing or switched off, which may be intended.
    Off,
    /// The object could not be read.
    Unknown,
    /// The object must be repaired.
    Bad,
}

impl Health {
    /// One word for the terminal.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Off => "off",
            Self::Unknown => "unknown",
            Self::Bad => "BAD",
        }
    }
}

/// The result of checking one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Kind and name.
    pub subject: String,
    /// The result.
    pub health: Health,
    /// The reason, and what to do.
    pub message: String,
    /// The command that mends it. `None` if nothing has to be mended, or if no command does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

impl Finding {
    /// A finding without a command.
    pub const fn new(subject: String, health: Health, message: String) -> Self {
        Self { subject, health, message, command: None }
    }

    /// The finding with the command that mends it.
    #[must_use]
    pub fn mended_by(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }
}

/// The result of listing objects.
#[derive(Clone, Debug, PartialEq)]
pub enum List {
    /// The objects.
    All(Vec<Value>),
    /// The objects could not be listed, for this reason.
    Refused(String),
}

/// The result of reading an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Read {
    /// The object exists.
    There(Value),
    /// The object does not exist.
    Missing,
    /// The object could not be read, for this reason.
    Refused(String),
}

/// A finding if the namespace does not exist. The other findings would not show that its name is mistyped.
pub fn namespace(name: &str, read: &Read) -> Option<Finding> {
    let message = "is not there: name the namespace of the machine objects with --namespace".to_owned();
    (*read == Read::Missing).then(|| {
        Finding::new(format!("Namespace {name}"), Health::Bad, message)
            .mended_by(format!("kubectl create namespace {name}"))
    })
}

/// Checks a definition of our kinds.
pub fn definition(kind: Kind, read: &Read, installed: &Installed) -> Finding {
    let name = name_of(kind);
    let subject = format!("CustomResourceDefinition {name}");
    let serves_beta = matches!(read, Read::There(object) if serves(object, names::V1BETA1));
    let apply = || installed.apply("crds", if serves_beta { "--serve v1beta1" } else { "" });
    let object = match read {
        Read::Refused(why) => return Finding::new(subject, Health::Unknown, format!("cannot be read: {why}")),
        Read::Missing => {
            let message = "is not there; apply the output of `mcm manifests crds`".to_owned();
            return Finding::new(subject, Health::Bad, message).mended_by(apply());
        }
        Read::There(object) => object,
    };
    for wanted in ["NamesAccepted", "Established"] {
        if let Err(why) = holds(object, wanted) {
            let message = format!("is not {wanted}: {why}");
            return Finding::new(subject, Health::Bad, message).mended_by(format!("kubectl describe crd {name}"));
        }
    }
    if let Some(why) = hollow(object) {
        return Finding::new(subject, Health::Bad, why).mended_by(installed.apply("crds", "--serve v1beta1"));
    }
    if leaves_stored_version_unserved(object) {
        let message = format!("objects are stored as {}, and not all of these versions are served", stored(object));
        return Finding::new(subject, Health::Bad, message).mended_by(installed.apply("crds", "--serve v1beta1"));
    }
    let conversion = &object["spec"]["conversion"];
    if conversion["strategy"] == "Webhook" && !is_filled(&conversion["webhook"]["clientConfig"]["caBundle"]) {
        let message = "its conversion webhook has no caBundle, so that objects of other versions can't be read; a running manager \
                       fills it in (--cert-mode)"
            .to_owned();
        let allow = allow_injection("crd", &name, object);
        return Finding::new(subject, Health::Bad, message)
            .mended_by(allow.unwrap_or_else(|| installed.run_replicas()));
    }
    let missing = crd::missing_fields(kind, object);
    if !missing.is_empty() {
        let message = format!(
            "it is older than this program, and API servers drop the fields that it lacks: {}",
            crd::some(&missing)
        );
        return Finding::new(subject, Health::Bad, message).mended_by(apply());
    }
    Finding::new(subject, Health::Fine, format!("stored as {}", stored(object)))
}

/// Whether a definition serves a version.
fn serves(definition: &Value, version: &str) -> bool {
    let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    versions.into_iter().any(|entry| entry["name"] == version && entry["served"] == true)
}

fn stored(definition: &Value) -> String {
    let stored = definition["status"]["storedVersions"].as_array().into_iter().flatten();
    stored.filter_map(Value::as_str).collect::<Vec<_>>().join(" and ")
}

/// Checks a webhook configuration of ours.
pub fn webhooks(kind: &str, name: &str, read: &Read, installed: &Installed) -> Finding {
    let subject = format!("{kind} {name}");
    let object = match read {
        Read::Refused(why) => return Finding::new(subject, Health::Unknown, format!("cannot be read: {why}")),
        Read::Missing => {
            let message =
                "is not there: nothing is checked or defaulted at kubectl apply; `mcm manifests webhooks` prints it";
            return Finding::new(subject, Health::Off, message.to_owned()).mended_by(installed.apply("webhooks", ""));
        }
        Read::There(object) => object,
    };
    let all = object["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let bare: Vec<&str> = all
        .iter()
        .filter(|webhook| !is_filled(&webhook["clientConfig"]["caBundle"]))
        .filter_map(|webhook| webhook["name"].as_str())
        .collect();
    if bare.is_empty() {
        return Finding::new(subject, Health::Fine, format!("{} webhooks{}", all.len(), unanswered(all)));
    }
    let message = format!(
        "no caBundle for {}, so that API servers can't call them; a running manager fills it in (--cert-mode)",
        bare.join(", ")
    );
    let allow = allow_injection(&kind.to_lowercase(), name, object);
    Finding::new(subject, Health::Bad, message).mended_by(allow.unwrap_or_else(|| installed.run_replicas()))
}

/// The outcome of creations and updates while no replica answers.
fn unanswered(webhooks: &[Value]) -> String {
    let outcomes =
        [("creations", CREATE_WEBHOOK), ("updates", UPDATE_WEBHOOK)].into_iter().filter_map(|(what, name)| {
            let webhook = webhooks.iter().find(|webhook| webhook["name"] == name)?;
            let policy = webhook["failurePolicy"].as_str().unwrap_or("Fail");
            Some(format!("{what} {} ({policy})", if policy == "Ignore" { "pass" } else { "are refused" }))
        });
    let outcomes: Vec<String> = outcomes.collect();
    if outcomes.is_empty() { String::new() } else { format!("; while no replica answers {}", outcomes.join(" and ")) }
}

/// Checks the registration of the views. An unavailable registration blocks more than the views (spec/extension-apiserver §5.4).
pub fn views(read: &Read, installed: &Installed) -> Finding {
    let finding = judged(format!("APIService {}", names::API_SERVICE), read, |object| {
        let Some(object) = object else {
            let message = "is not there: no views; `mcm manifests apiservice` prints it".to_owned();
            return (Health::Off, message);
        };
        match holds(object, "Available") {
            Ok(why) => (Health::Fine, format!("Available ({why})")),
            Err(why) => (
                Health::Bad,
                format!(
                    "is not Available: {why}. While that is so no namespace of the cluster can be deleted: repair it, or `kubectl \
                     delete apiservice {}`",
                    names::API_SERVICE
                ),
            ),
        }
    });
    match finding.health {
        Health::Off => finding.mended_by(installed.apply("apiservice", "")),
        Health::Bad => finding.mended_by(format!("kubectl delete apiservice {}", names::API_SERVICE)),
        Health::Fine | Health::Unknown => finding,
    }
}

/// Checks a Lease of the control loops by the result of watching it. `now` is the time of the API server's clock.
pub fn lease(name: &str, read: &Read, state: &LeaseState, now: Timestamp, installed: &Installed) -> Finding {
    let namespace = &installed.namespace;
    let finding = judged(format!("Lease {namespace}/{name}"), read, |object| {
        let Some(lease) = object else {
            return (
                Health::Off,
                "is not there: no manager has ever led in this namespace (--namespace), unless it runs without \
                 --leader-elect"
                    .to_owned(),
            );
        };
        let renewed = lease["spec"]["renewTime"].as_str().unwrap_or("never");
        match state {
            LeaseState::Renewed { holder } => (Health::Fine, format!("held by {holder}{}", held_since(lease, now))),
            LeaseState::Free => (
                Health::Bad,
                format!("it has no holder, so that no control loop of its half runs; last renewed {renewed}"),
            ),
            LeaseState::NotRenewed { held, watched } => (
                Health::Bad,
                format!(
                    "{} holds it and did not renew it for {} s, so that no control loop of its half runs; last renewed \
                     {renewed} by the holder's clock",
                    held.holder,
                    watched.as_secs(),
                ),
            ),
            LeaseState::Unproven { held, watched } => (
                Health::Unknown,
                format!(
                    "{} holds it and did not renew it for {} s, but it lasts longer than that",
                    held.holder,
                    watched.as_secs(),
                ),
            ),
        }
    });
    match finding.health {
        Health::Bad | Health::Off => finding.mended_by(installed.run_replicas()),
        Health::Fine | Health::Unknown => finding,
    }
}

/// How long the holder has had a Lease, and when the Lease was renewed. The times come from the holder's clock, so that they are only
/// printed and decide nothing.
fn held_since(lease: &Value, now: Timestamp) -> String {
    let time = |field: &str| lease["spec"][field].as_str();
    let age = |time: &str| {
        let passed = now.as_second() - time.parse::<Timestamp>().ok()?.as_second();
        Some(if passed < 0 { format!("{} s ahead", -passed) } else { format!("{passed} s ago") })
    };
    let text = |what: &str, time: Option<&str>| {
        let time = time?;
        Some(format!(", {what} {time}{}", age(time).map(|age| format!(" ({age})")).unwrap_or_default()))
    };
    [text("since", time("acquireTime")), text("renewed", time("renewTime"))].into_iter().flatten().collect()
}

fn judged(subject: String, read: &Read, judge: impl FnOnce(Option<&Value>) -> (Health, String)) -> Finding {
    let (health, message) = match read {
        Read::There(object) => judge(Some(object)),
        Read::Missing => judge(None),
        Read::Refused(why) => (Health::Unknown, format!("cannot be read: {why}")),
    };
    Finding::new(subject, health, message)
}

/// The reason of a condition that is True, or otherwise the reason why it is not True.
fn holds(object: &Value, wanted: &str) -> Result<String, String> {
    let all = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(condition) = all.iter().find(|condition| condition["type"] == wanted) else {
        return Err("the API server has not said so yet".to_owned());
    };
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    if condition["status"] == json!("True") {
        Ok(text("reason"))
    } else {
        Err(format!("{}: {}", text("reason"), text("message")))
    }
}

fn is_filled(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;

    use super::*;
    use crate::cli::{lease_watch::Held, webhook_scope::WebhookScope};

    fn installed() -> Installed {
        Installed::of("ns", WebhookScope::Cluster, &[])
    }

    fn condition(name: &str, status: &str) -> Value {
        json!({"type": name, "status": status, "reason": "Because", "message": "it is so"})
    }

    fn defined(conditions: &[Value], conversion: &Value) -> Read {
        let versions = json!([{"name": "v1alpha1", "served": true}]);
        Read::There(json!({"spec": {"conversion": conversion, "versions": versions},
            "status": {"conditions": conditions, "storedVersions": ["v1alpha1"]}}))
    }

    fn good() -> [Value; 2] {
        [condition("NamesAccepted", "True"), condition("Established", "True")]
    }

    fn hollow_definition() -> Read {
        let status = json!({"conditions": good(), "storedVersions": ["v1beta1", "v1alpha1"]});
        Read::There(json!({"spec": {"conversion": {"strategy": "None"}}, "status": status}))
    }

    /// A definition that serves only the version in which not all objects are stored.
    fn unserved() -> Read {
        let status = json!({"conditions": good(), "storedVersions": ["v1beta1", "v1alpha1"]});
        let versions = json!([{"name": "v1alpha1", "served": true}, {"name": "v1beta1", "served": false}]);
        Read::There(json!({"spec": {"conversion": by_webhook("Q0E="), "versions": versions}, "status": status}))
    }

    fn older() -> Read {
        let schema =
            json!({"openAPIV3Schema": {"properties": {"spec": {"properties": {}}, "status": {"properties": {}}}}});
        let versions = json!([{"name": "v1alpha1", "served": true, "schema": schema}]);
        Read::There(json!({"spec": {"conversion": {"strategy": "None"}, "versions": versions},
            "status": {"conditions": good(), "storedVersions": ["v1alpha1"]}}))
    }

    fn by_webhook(bundle: &str) -> Value {
        json!({"strategy": "Webhook", "webhook": {"clientConfig": {"caBundle": bundle}}})
    }

    #[rstest]
    #[case::it_is_there(defined(&good(), &json!({"strategy": "None"})), Health::Fine, "stored as v1alpha1")]
    #[case::it_converts(defined(&good(), &by_webhook("Q0E=")), Health::Fine, "stored as v1alpha1")]
    #[case::conversion_without_bundle(defined(&good(), &by_webhook("")), Health::Bad, "no caBundle")]
    #[case::its_converter_was_removed(hollow_definition(), Health::Bad, "mcm manifests crds --serve v1beta1")]
    #[case::a_stored_version_is_not_served(unserved(), Health::Bad, "stored as v1beta1 and v1alpha1, and not all")]
    #[case::it_is_older_than_the_program(older(), Health::Bad, "v1alpha1: spec.class")]
    #[case::it_is_missing(Read::Missing, Health::Bad, "mcm manifests crds")]
    #[case::its_names_are_taken(
        defined(&[condition("NamesAccepted", "False")], &Value::Null), Health::Bad, "NamesAccepted: Because: it is so")]
    #[case::it_is_new(defined(&good()[..1], &Value::Null), Health::Bad, "has not said so yet")]
    #[case::forbidden(Read::Refused("forbidden".to_owned()), Health::Unknown, "cannot be read: forbidden")]
    fn pk_105_a_definition_is_checked(#[case] read: Read, #[case] health: Health, #[case] text: &str) {
        let found = definition(Kind::Machine, &read, &installed());
        assert_eq!((found.health, found.message.contains(text)), (health, true), "{}", found.message);
        assert_eq!(found.subject, "CustomResourceDefinition machines.machine.sapcloud.io");
        assert_eq!(found.command.is_some(), health == Health::Bad, "{found:?}");
    }

    fn configured(bundles: &[&str]) -> Read {
        let one = |bundle: &&str| json!({"name": "a.b", "clientConfig": {"caBundle": bundle}});
        Read::There(json!({"webhooks": bundles.iter().map(one).collect::<Vec<_>>()}))
    }

    #[rstest]
    #[case::both_can_be_called(configured(&["Q0E=", "Q0E="]), Health::Fine, "2 webhooks")]
    #[case::one_has_no_bundle(configured(&["Q0E=", ""]), Health::Bad, "no caBundle for a.b")]
    #[case::there_is_none(Read::Missing, Health::Off, "nothing is checked")]
    fn pk_105_webhooks_are_checked(#[case] read: Read, #[case] health: Health, #[case] text: &str) {
        let found = webhooks("ValidatingWebhookConfiguration", "c", &read, &installed());
        assert_eq!((found.health, found.message.contains(text)), (health, true), "{}", found.message);
    }

    #[test]
    fn the_choice_of_failure_policies_is_named() {
        let webhook = |name: &str, policy: Value| json!({"name": name, "failurePolicy": policy, "clientConfig": {"caBundle": "Q0E="}});
        let message = |create: Value, update: Value| {
            let all = json!([webhook(CREATE_WEBHOOK, create), webhook(UPDATE_WEBHOOK, update)]);
            webhooks("ValidatingWebhookConfiguration", "c", &Read::There(json!({"webhooks": all})), &installed())
                .message
        };
        let usual = "2 webhooks; while no replica answers creations are refused (Fail) and updates pass (Ignore)";
        assert_eq!(message(json!("Fail"), json!("Ignore")), usual);
        let gardener = "2 webhooks; while no replica answers creations pass (Ignore) and updates are refused (Fail)";
        assert_eq!(message(json!("Ignore"), Value::Null), gardener, "Fail is the API server's default");
    }

    fn registered(conditions: &[Value]) -> Read {
        Read::There(json!({"status": {"conditions": conditions}}))
    }

    #[rstest]
    #[case::available(registered(&[condition("Available", "True")]), Health::Fine, "Available (Because)")]
    #[case::down(registered(&[condition("Available", "False")]), Health::Bad, "no namespace of the cluster can be deleted")]
    #[case::not_checked_yet(registered(&[]), Health::Bad, "has not said so yet")]
    #[case::there_are_no_views(Read::Missing, Health::Off, "no views")]
    fn pk_105_the_registration_of_views_is_checked(#[case] read: Read, #[case] health: Health, #[case] text: &str) {
        let found = views(&read, &installed());
        assert_eq!((found.health, found.message.contains(text)), (health, true), "{}", found.message);
    }

    fn leased() -> Read {
        Read::There(json!({"spec": {
            "holderIdentity": "a", "renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15}}))
    }

    fn held() -> Held {
        Held::read(&json!({"holderIdentity": "a"})).unwrap()
    }

    #[rstest]
    #[case::renewed(leased(), LeaseState::Renewed { holder: "a".to_owned() }, Health::Fine, "held by a")]
    #[case::not_renewed(
        leased(), LeaseState::NotRenewed { held: held(), watched: Duration::from_secs(18) }, Health::Bad, "did not renew it for 18 s")]
    #[case::released(leased(), LeaseState::Free, Health::Bad, "last renewed 2026-01-01T00:00:00.000000Z")]
    #[case::watched_too_shortly(
        leased(), LeaseState::Unproven { held: held(), watched: Duration::from_secs(60) }, Health::Unknown, "it lasts longer")]
    #[case::never(Read::Missing, LeaseState::Free, Health::Off, "has ever led")]
    fn pk_105_a_lease_is_checked(
        #[case] read: Read,
        #[case] state: LeaseState,
        #[case] health: Health,
        #[case] text: &str,
    ) {
        let now = "2026-01-01T00:00:03Z".parse().unwrap();
        let found = lease("l", &read, &state, now, &installed());
        assert_eq!((found.health, found.message.contains(text)), (health, true), "{}", found.message);
    }

    #[rstest]
    #[case::by_a_clock_that_is_right(
        "2026-01-01T01:00:02Z",
        " (3602 s ago), renewed 2026-01-01T01:00:00.000000Z (2 s ago)"
    )]
    #[case::by_a_clock_that_is_ahead(
        "2026-01-01T00:59:30Z",
        " (3570 s ago), renewed 2026-01-01T01:00:00.000000Z (30 s ahead)"
    )]
    fn the_message_of_a_lease_has_its_times(#[case] now: &str, #[case] ages: &str) {
        let spec = json!({"acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T01:00:00.000000Z"});
        let renewed = LeaseState::Renewed { holder: "a".to_owned() };
        let found = lease("l", &Read::There(json!({"spec": spec})), &renewed, now.parse().unwrap(), &installed());
        assert_eq!(found.message, format!("held by a, since 2026-01-01T00:00:00.000000Z{ages}"));
    }
}
