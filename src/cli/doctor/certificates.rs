//! Checks whether callers can trust the serving certificate: its dates, and the authorities in the `caBundle` fields. Pure functions.
//!
//! A filled `caBundle` proves little: a replica whose clock was ahead makes certificates that become valid later, and another tool
//! may have restored an old bundle.

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;

use super::{
    checks::{Finding, Health, Read},
    commands::{Installed, allow_injection},
};
use crate::server::tls::{authority::CertSecret, material::Certificate};

/// A `caBundle` field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleField {
    /// The object and the position of the field in it.
    pub place: String,
    /// The value of the field, which is Base64 of PEM.
    pub content: String,
    /// The command that lets the manager write the field, if an annotation of the object forbids it.
    pub allow: Option<String>,
}

/// The filled `caBundle` fields of a webhook configuration or a definition.
pub fn bundle_fields(subject: &str, read: &Read) -> Vec<BundleField> {
    let Read::There(object) = read else { return Vec::new() };
    // kubectl takes the name of a kind for its resource.
    let allow = subject.split_once(' ').and_then(|(kind, name)| allow_injection(&kind.to_lowercase(), name, object));
    let field = |client_config: &Value, place: String| {
        let content = client_config["caBundle"].as_str().filter(|content| !content.is_empty())?;
        Some(BundleField { place, content: content.to_owned(), allow: allow.clone() })
    };
    let entries = object["webhooks"].as_array().into_iter().flatten().filter_map(|entry| {
        field(&entry["clientConfig"], format!("{subject}, {}", entry["name"].as_str().unwrap_or_default()))
    });
    let conversion = &object["spec"]["conversion"];
    let conversion = (conversion["strategy"] == "Webhook")
        .then(|| field(&conversion["webhook"]["clientConfig"], format!("{subject}, conversion")))
        .flatten();
    entries.chain(conversion).collect()
}

/// Checks the serving certificate and the authorities that callers trust, at the time `now`.
pub fn certificate(
    subject: String,
    secret: &Read,
    fields: &[BundleField],
    now: Timestamp,
    installed: &Installed,
) -> Finding {
    let (health, message) = match secret {
        Read::Refused(why) => (Health::Unknown, format!("cannot be read: {why}")),
        Read::Missing => (
            Health::Off,
            "is not there: certificates come from elsewhere (--cert-mode=files), or no manager has run yet".to_owned(),
        ),
        Read::There(object) => match content_of(object) {
            Ok(content) => judge(&content, fields, now),
            Err(why) => (Health::Bad, format!("{why}; a running manager writes it again")),
        },
    };
    // A bundle without a valid authority is wrong in every mode.
    let finding = match bundles_without_authority(fields, now) {
        Some(why) if health != Health::Bad => Finding::new(subject, Health::Bad, why),
        _ => Finding::new(subject, health, message),
    };
    match finding.health {
        Health::Bad => finding.mended_by(repair(fields, now, installed)),
        // The manifests contain the Secret, without content.
        Health::Off => finding.mended_by(installed.apply("rbac", "")),
        Health::Fine | Health::Unknown => finding,
    }
}

/// The command that lets the manager write certificate and bundles again.
fn repair(fields: &[BundleField], now: Timestamp, installed: &Installed) -> String {
    let useless = |field: &&BundleField| !authorities(field).iter().any(|authority| is_valid(authority, now));
    let forbidden = fields.iter().filter(useless).chain(fields).find_map(|field| field.allow.clone());
    forbidden.unwrap_or_else(|| installed.restart())
}

fn content_of(object: &Value) -> Result<CertSecret, String> {
    let secret: Secret = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    CertSecret::from_data(&secret.data.unwrap_or_default()).map_err(|error| error.to_string())
}

fn judge(content: &CertSecret, fields: &[BundleField], now: Timestamp) -> (Health, String) {
    let leaf = content.serving.leaf();
    let (from, until) = (leaf.not_before, leaf.not_after);
    if now < from {
        let text = format!(
            "its certificate is not valid before {from}: a replica whose clock was ahead made it, and calls fail until then; a \
             manager with the right clock makes another one"
        );
        return (Health::Bad, text);
    }
    if now >= until {
        return (Health::Bad, format!("its certificate ended at {until} and was not renewed; see the manager's log"));
    }
    let distrusts =
        |field: &&BundleField| !authorities(field).iter().any(|one| is_valid(one, now) && leaf.is_signed_by(one));
    let distrusting: Vec<&str> = fields.iter().filter(distrusts).map(|field| field.place.as_str()).collect();
    if distrusting.is_empty() {
        let left = until.duration_since(now);
        let days = left.as_hours() / 24;
        if left < overdue(until.duration_since(from)) {
            let text =
                format!("its certificate ends at {until}, in {days} days, and was not renewed; see the manager's log");
            return (Health::Bad, text);
        }
        let text = format!("valid until {until} ({days} days), and trusted by all {} caBundle fields", fields.len());
        (Health::Fine, text)
    } else {
        let text = format!(
            "the caBundle of {} trusts no authority that signed the certificate, so that calls fail with x509: another manager or \
             a GitOps tool may write the field",
            distrusting.join(" and ")
        );
        (Health::Bad, text)
    }
}

/// The time before its end at which a certificate should have been renewed long ago: when a sixth of its life is left, and at most a
/// week. A manager renews when a third is left.
fn overdue(life: SignedDuration) -> SignedDuration {
    (life / 6).min(SignedDuration::from_hours(7 * 24))
}

fn bundles_without_authority(fields: &[BundleField], now: Timestamp) -> Option<String> {
    let useless = |field: &&BundleField| !authorities(field).iter().any(|authority| is_valid(authority, now));
    let useless: Vec<&str> = fields.iter().filter(useless).map(|field| field.place.as_str()).collect();
    (!useless.is_empty())
        .then(|| format!("no authority in the caBundle of {} is valid now, so that calls fail", useless.join(" and ")))
}

fn authorities(field: &BundleField) -> Vec<Certificate> {
    let pem = BASE64_STANDARD.decode(&field.content).unwrap_or_default();
    Certificate::read_all(&pem, "caBundle").unwrap_or_default()
}

fn is_valid(certificate: &Certificate, now: Timestamp) -> bool {
    certificate.not_before <= now && now < certificate.not_after
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::server::tls::plan::{CertPlan, PlanSettings, carry_out};

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    fn installed() -> Installed {
        Installed::of("ns", crate::cli::webhook_scope::WebhookScope::Cluster, &[])
    }

    fn now() -> Timestamp {
        "2026-06-01T12:00:00Z".parse().unwrap()
    }

    fn made(at: Timestamp) -> CertSecret {
        let settings = PlanSettings::for_names(["mcm.ns.svc".to_owned()].into());
        carry_out(&CertPlan::Create, None, at, &settings, || [5; 16]).unwrap().unwrap()
    }

    fn stored(content: &CertSecret) -> Read {
        Read::There(serde_json::to_value(Secret { data: Some(content.to_data()), ..Secret::default() }).unwrap())
    }

    fn webhooks(content: &CertSecret) -> Read {
        let bundle = BASE64_STANDARD.encode(content.bundle_pem());
        let service = json!({ "name": "mcm", "namespace": "there" });
        Read::There(
            json!({ "webhooks": [{ "name": "hook", "clientConfig": { "service": service, "caBundle": bundle } }] }),
        )
    }

    #[rstest]
    #[case::in_order(SignedDuration::ZERO, SignedDuration::ZERO, Health::Fine, "trusted by all 1 caBundle fields")]
    #[case::made_eight_hours_ahead(HOUR * 8, HOUR * 8, Health::Bad, "not valid before 2026-06-01T19:55:00Z")]
    #[case::renewal_is_overdue(HOUR * -(365 * 24 - 71), HOUR * -(365 * 24 - 71), Health::Bad, "in 2 days, and was not renewed")]
    #[case::expired(HOUR * -9000, HOUR * -9000, Health::Bad, "was not renewed")]
    #[case::another_bundle(SignedDuration::ZERO, HOUR * -1, Health::Bad, "the caBundle of webhooks, hook trusts no authority")]
    fn pk_105_a_certificate_is_checked(
        #[case] made_at: SignedDuration,
        #[case] bundle_at: SignedDuration,
        #[case] health: Health,
        #[case] words: &str,
    ) {
        let certificates = made(now() + made_at);
        let bundles = if made_at == bundle_at { certificates.clone() } else { made(now() + bundle_at) };
        let fields = bundle_fields("webhooks", &webhooks(&bundles));
        let found = certificate("Secret".to_owned(), &stored(&certificates), &fields, now(), &installed());
        assert!(found.health == health && found.message.contains(words), "{found:?}");
    }

    #[test]
    fn without_the_secret_the_bundles_are_still_checked() {
        let judged = |at: SignedDuration| {
            let fields = bundle_fields("webhooks", &webhooks(&made(now() + at)));
            certificate("Secret".to_owned(), &Read::Missing, &fields, now(), &installed()).health
        };
        assert_eq!((judged(SignedDuration::ZERO), judged(HOUR * 8)), (Health::Off, Health::Bad));
    }

    #[test]
    fn an_unreadable_secret_is_bad() {
        let unreadable = Read::There(json!({ "data": { "tls.crt": "" } }));
        let found = certificate("Secret".to_owned(), &unreadable, &[], now(), &installed());
        assert_eq!(found.health, Health::Bad);
        assert_eq!(
            found.command.as_deref(),
            Some("kubectl -n ns rollout restart deployment/machine-controller-manager")
        );
    }
}
