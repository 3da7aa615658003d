//! Checks that admission is reached, by a creation that a rule of ours must refuse. Pure functions.
//!
//! The creation is a dry run: even if it is accepted, nothing is stored. It takes the way that the API server takes: network, TLS,
//! `caBundle`, path and rules (spec/packaging §7.4).

use controller_runtime::error::ApiError;
use machine_api::{
    kind::Kind,
    names::{self, annotation},
};
use serde_json::{Value, json};

use super::{
    checks::{Finding, Health},
    commands::Installed,
};

/// The rule that refuses the probe. No policy and no schema knows it, so that only the webhook can refuse.
const RULE: &str = "META-11";
/// The part of the refusal that only this rule writes: the id of a rule that does not exist.
const REFUSAL: &str = "doctor-probe";

/// A Machine that the rule refuses.
pub fn probe(namespace: &str) -> Value {
    json!({
        "apiVersion": names::API_VERSION_V1ALPHA1, "kind": Kind::Machine.as_str(),
        "metadata": {"generateName": "doctor-", "namespace": namespace, "annotations": {annotation::ADMISSION_SKIP: REFUSAL}},
        "spec": {"class": {"kind": names::MACHINE_CLASS_KIND, "name": "doctor"}},
    })
}

/// Whether webhook configurations of ours were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// At least one exists.
    Present,
    /// None exists.
    Absent,
    /// They could not be read.
    Unknown,
}

/// The finding about the answer to the probe.
pub fn reached(registration: Registration, answer: &Result<(), ApiError>, installed: &Installed) -> Finding {
    let subject = format!("Admission in namespace {}", installed.namespace);
    let found = |health, message: String| Finding::new(subject.clone(), health, message);
    let reinstall = || installed.apply("webhooks", "");
    match answer {
        _ if registration == Registration::Absent => {
            found(Health::Off, "no webhook of ours is registered".to_owned()).mended_by(reinstall())
        }
        Err(ApiError::Invalid(text)) if text.contains(REFUSAL) && text.contains("denied the request") => {
            found(Health::Fine, format!("the API server reaches it: a dry run was refused by rule {RULE}"))
        }
        Ok(()) => {
            let message = format!(
                "a dry run of a Machine that rule {RULE} refuses was accepted: no webhook was asked for it, or none answered \
                 and failurePolicy is Ignore"
            );
            found(Health::Bad, message).mended_by(reinstall())
        }
        Err(error) if is_unreached(error) => {
            found(Health::Bad, format!("the API server can't reach the webhooks: {error}"))
                .mended_by(installed.restart())
        }
        Err(ApiError::Forbidden(_)) => {
            found(Health::Unknown, missing_right("create", names::GROUP, Kind::Machine.plural(), &installed.namespace))
        }
        Err(error) => found(Health::Unknown, format!("the dry run of a Machine was answered by: {error}")),
    }
}

/// Whether an API server could not call a webhook.
fn is_unreached(error: &ApiError) -> bool {
    let text = error.to_string();
    text.contains("failed calling webhook") || text.contains("failed to call webhook")
}

/// The message about a right that the user of the doctor lacks.
pub fn missing_right(verb: &str, group: &str, resource: &str, namespace: &str) -> String {
    let resource = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
    let place = if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
    format!("your user lacks the right to {verb} {resource}{place}")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::cli::webhook_scope::WebhookScope;

    fn denied(text: &str) -> Result<(), ApiError> {
        Err(ApiError::Invalid(format!(
            "admission webhook \"x\" denied the request: Machine.machine.sapcloud.io \"\" is invalid: {text}"
        )))
    }

    #[rstest]
    #[case::refused_by_our_rule(
        Registration::Present,
        denied("metadata.annotations[admission.machine.sapcloud.io/skip]: Unsupported value: \"doctor-probe\""),
        Health::Fine,
        "refused by rule META-11",
        None
    )]
    #[case::accepted(Registration::Present, Ok(()), Health::Bad, "failurePolicy is Ignore", Some("mcm manifests webhooks"))]
    #[case::the_registration_is_not_known(
        Registration::Unknown, Ok(()), Health::Bad, "was accepted", Some("mcm manifests webhooks"))]
    #[case::not_reached(
        Registration::Present,
        Err(ApiError::ServerFault("Internal error occurred: failed calling webhook \"x\": no route to host".to_owned())),
        Health::Bad,
        "no route to host",
        Some("rollout restart deployment/machine-controller-manager")
    )]
    #[case::no_registration(Registration::Absent, Ok(()), Health::Off, "no webhook of ours", Some("mcm manifests webhooks"))]
    #[case::another_refusal(
        Registration::Present,
        Err(ApiError::Invalid("policy \"p\" denied".to_owned())),
        Health::Unknown,
        "policy \"p\" denied",
        None
    )]
    #[case::without_the_right(
        Registration::Present,
        Err(ApiError::Forbidden("no".to_owned())),
        Health::Unknown,
        "lacks the right to create machines.machine.sapcloud.io in namespace ns",
        None
    )]
    fn pk_105_the_answer_to_the_probe_is_judged(
        #[case] registration: Registration,
        #[case] answer: Result<(), ApiError>,
        #[case] health: Health,
        #[case] words: &str,
        #[case] command: Option<&str>,
    ) {
        let installed = Installed::of("ns", WebhookScope::Cluster, &[]);
        let found = reached(registration, &answer, &installed);
        assert!(found.health == health && found.message.contains(words), "{found:?}");
        assert_eq!(found.command.is_some(), command.is_some(), "{found:?}");
        assert!(found.command.unwrap_or_default().contains(command.unwrap_or_default()));
    }
}
