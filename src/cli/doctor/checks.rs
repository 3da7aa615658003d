//! What is wrong with the objects by which a cluster knows the manager. Pure: objects in, findings out.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    api::{kind::Kind, names},
    cli::{cluster_objects::holder, migrate_storage::definition::name_of},
};

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Health {
    /// As it should be.
    Fine,
    /// Not there, or off; somebody may want it so.
    Off,
    /// The API server does not say.
    Unknown,
    /// To be mended.
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

/// What is found out about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Kind and name.
    pub subject: String,
    /// How it is.
    pub health: Health,
    /// Why, and what to do.
    pub message: String,
}

/// What the API server says of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Read {
    /// It is there.
    There(Value),
    /// There is none.
    Missing,
    /// Why that is not known.
    Refused(String),
}

/// A definition of ours.
pub fn definition(kind: Kind, read: &Read) -> Finding {
    let subject = format!("CustomResourceDefinition {}", name_of(kind));
    judged(subject, read, |object| {
        let Some(object) = object else {
            return (Health::Bad, "is not there; apply the output of `mcm manifests crds`".to_owned());
        };
        for wanted in ["NamesAccepted", "Established"] {
            if let Err(why) = holds(object, wanted) {
                return (Health::Bad, format!("is not {wanted}: {why}"));
            }
        }
        let conversion = &object["spec"]["conversion"];
        if conversion["strategy"] == "Webhook" && !is_filled(&conversion["webhook"]["clientConfig"]["caBundle"]) {
            return (
                Health::Bad,
                "its conversion webhook has no caBundle, so that objects of other versions can't be read; a running manager fills \
                 it in (--cert-mode)"
                    .to_owned(),
            );
        }
        let stored: Vec<&str> =
            object["status"]["storedVersions"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        (Health::Fine, format!("stored as {}", stored.join(" and ")))
    })
}

/// A webhook configuration of ours.
pub fn webhooks(kind: &str, name: &str, read: &Read) -> Finding {
    judged(format!("{kind} {name}"), read, |object| {
        let Some(object) = object else {
            return (
                Health::Off,
                "is not there: nothing is checked or defaulted at kubectl apply; `mcm manifests webhooks` prints it"
                    .to_owned(),
            );
        };
        let all = object["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
        let bare: Vec<&str> = all
            .iter()
            .filter(|webhook| !is_filled(&webhook["clientConfig"]["caBundle"]))
            .filter_map(|webhook| webhook["name"].as_str())
            .collect();
        if bare.is_empty() {
            (Health::Fine, format!("{} webhooks", all.len()))
        } else {
            let message = format!(
                "no caBundle for {}, so that nobody can be called; a running manager fills it in (--cert-mode)",
                bare.join(", ")
            );
            (Health::Bad, message)
        }
    })
}

/// The registration of the views. One that is not available stalls more than the views (spec/extension-apiserver §5.4).
pub fn views(read: &Read) -> Finding {
    judged(format!("APIService {}", names::API_SERVICE), read, |object| {
        let Some(object) = object else {
            let message = "is not there: no views; `mcm manifests apiservice` prints it".to_owned();
            return (Health::Off, message);
        };
        match holds(object, "Available") {
            Ok(why) => (Health::Fine, format!("Available ({why})")),
            Err(why) => (
                Health::Bad,
                format!(
                    "is not Available: {why}. While that is so no namespace of the cluster can be deleted: mend it, or `kubectl \
                     delete apiservice {}`",
                    names::API_SERVICE
                ),
            ),
        }
    })
}

/// A Lease of the control loops.
pub fn lease(namespace: &str, name: &str, read: &Read, now: Timestamp) -> Finding {
    judged(format!("Lease {namespace}/{name}"), read, |object| {
        match object {
        None => (
            Health::Off,
            "is not there: no manager has ever led in this namespace (--namespace), unless it runs without --leader-elect"
                .to_owned(),
        ),
        Some(lease) => match holder(&lease["spec"], now) {
            Some(holder) => (Health::Fine, format!("held by {holder}")),
            None => (
                Health::Bad,
                format!(
                    "nobody holds it, so that no control loop runs; last renewed {}",
                    lease["spec"]["renewTime"].as_str().unwrap_or("never")
                ),
            ),
        },
    }
    })
}

fn judged(subject: String, read: &Read, judge: impl FnOnce(Option<&Value>) -> (Health, String)) -> Finding {
    let (health, message) = match read {
        Read::There(object) => judge(Some(object)),
        Read::Missing => judge(None),
        Read::Refused(why) => (Health::Unknown, format!("cannot be read: {why}")),
    };
    Finding { subject, health, message }
}

/// Whether a condition is True; else, and also then, why.
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
    use rstest::rstest;

    use super::*;

    fn condition(name: &str, status: &str) -> Value {
        json!({"type": name, "status": status, "reason": "Because", "message": "it is so"})
    }

    fn defined(conditions: &[Value], conversion: &Value) -> Read {
        Read::There(json!({"spec": {"conversion": conversion},
            "status": {"conditions": conditions, "storedVersions": ["v1alpha1"]}}))
    }

    fn good() -> [Value; 2] {
        [condition("NamesAccepted", "True"), condition("Established", "True")]
    }

    fn by_webhook(bundle: &str) -> Value {
        json!({"strategy": "Webhook", "webhook": {"clientConfig": {"caBundle": bundle}}})
    }

    #[rstest]
    #[case::it_is_there(defined(&good(), &json!({"strategy": "None"})), Health::Fine, "stored as v1alpha1")]
    #[case::it_converts(defined(&good(), &by_webhook("Q0E=")), Health::Fine, "stored as v1alpha1")]
    #[case::nobody_can_convert(defined(&good(), &by_webhook("")), Health::Bad, "no caBundle")]
    #[case::it_is_missing(Read::Missing, Health::Bad, "mcm manifests crds")]
    #[case::its_names_are_taken(
        defined(&[condition("NamesAccepted", "False")], &Value::Null), Health::Bad, "NamesAccepted: Because: it is so")]
    #[case::it_is_new(defined(&good()[..1], &Value::Null), Health::Bad, "has not said so yet")]
    #[case::nobody_may_look(Read::Refused("forbidden".to_owned()), Health::Unknown, "cannot be read: forbidden")]
    fn a_definition_is_judged(#[case] read: Read, #[case] health: Health, #[case] text: &str) {
        let found = definition(Kind::Machine, &read);
        assert_eq!((found.health, found.message.contains(text)), (health, true), "{}", found.message);
        assert_eq!(found.subject, "CustomResourceDefinition machines.machine.sapcloud.io");
    }

    fn configured(bundles: &[&str]) -> Read {
        let one = |bundle: &&str| json!({"name": "a.b", "clientConfig": {"caBundle": bundle}});
        Read::There(json!({"webhooks": bundles.iter().map(one).collect::<Vec<_>>()}))
    }

    #[rstest]
    #[case::both_can_be_called(configured(&["Q0E=", "Q0E="]), Health::Fine, "2 webhooks")]
    #[case::one_has_no_bundle(configured(&["Q0E=", ""]), Health::Bad, "no caBundle for a.b")]
    #[case::there_is_none(Read::Missing, Health::Off, "nothing is checked")]
    fn webhooks_are_judged(#[case] read: Read, #[case] health: Health, #[case] text: &str) {
        let found = webhooks("ValidatingWebhookConfiguration", "c", &read);
        assert_eq!((found.health, found.message.contains(text)), (health, true), "{}", found.message);
    }

    fn registered(conditions: &[Value]) -> Read {
        Read::There(json!({"status": {"conditions": conditions}}))
    }

    #[rstest]
    #[case::available(registered(&[condition("Available", "True")]), Health::Fine, "Available (Because)")]
    #[case::down(registered(&[condition("Available", "False")]), Health::Bad, "no namespace of the cluster can be deleted")]
    #[case::not_asked_yet(registered(&[]), Health::Bad, "has not said so yet")]
    #[case::there_are_no_views(Read::Missing, Health::Off, "no views")]
    fn the_registration_of_views_is_judged(#[case] read: Read, #[case] health: Health, #[case] text: &str) {
        let found = views(&read);
        assert_eq!((found.health, found.message.contains(text)), (health, true), "{}", found.message);
    }

    fn leased(holder: &str) -> Read {
        Read::There(json!({"spec": {
            "holderIdentity": holder, "renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15}}))
    }

    #[rstest]
    #[case::held(leased("a"), 10, Health::Fine, "held by a")]
    #[case::run_out(leased("a"), 20, Health::Bad, "last renewed 2026-01-01T00:00:00.000000Z")]
    #[case::never(Read::Missing, 10, Health::Off, "has ever led")]
    fn a_lease_is_judged(#[case] read: Read, #[case] second: i64, #[case] health: Health, #[case] text: &str) {
        let began: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let found = lease("ns", "l", &read, began + jiff::SignedDuration::from_secs(second));
        assert_eq!((found.health, found.message.contains(text)), (health, true), "{}", found.message);
    }
}
