//! Checks whether callers can trust the serving certificate: its dates, and the authorities in the `caBundle` fields. Pure functions.
//!
//! A filled `caBundle` proves little: a replica whose clock was ahead makes certificates that become valid later, and another tool
//! may have restored an old bundle.

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;

use super::checks::{Finding, Health, Read};
use crate::server::tls::{authority::CertSecret, material::Certificate};

/// A `caBundle` field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleField {
    /// The object and the position of the field in it.
    pub place: String,
    /// The value of the field, which is Base64 of PEM.
    pub content: String,
}

/// The filled `caBundle` fields of a webhook configuration or a definition.
pub fn bundle_fields(subject: &str, read: &Read) -> Vec<BundleField> {
    let Read::There(object) = read else { return Vec::new() };
    let field = |client_config: &Value, place: String| {
        let content = client_config["caBundle"].as_str().filter(|content| !content.is_empty())?;
        Some(BundleField { place, content: content.to_owned() })
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

/// The namespace of the webhooks' Service. The Secret with the certificate is in this namespace too.
pub fn service_namespace(read: &Read) -> Option<String> {
    let Read::There(object) = read else { return None };
    let mut entries = object["webhooks"].as_array()?.iter();
    entries.find_map(|entry| entry["clientConfig"]["service"]["namespace"].as_str()).map(str::to_owned)
}

/// Checks the serving certificate and the authorities that callers trust, at the time `now`.
pub fn certificate(subject: String, secret: &Read, fields: &[BundleField], now: Timestamp) -> Finding {
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
    match bundles_without_authority(fields, now) {
        Some(why) if health != Health::Bad => Finding { subject, health: Health::Bad, message: why },
        _ => Finding { subject, health, message },
    }
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
        (Health::Fine, format!("valid until {until}, and trusted by all {} caBundle fields", fields.len()))
    } else {
        let text = format!(
            "the caBundle of {} trusts no authority that signed the certificate, so that calls fail with x509: another manager or \
             a GitOps tool may write the field",
            distrusting.join(" and ")
        );
        (Health::Bad, text)
    }
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
    use jiff::SignedDuration;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::server::tls::plan::{CertPlan, PlanSettings, carry_out};

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

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
    #[case::expired(HOUR * -9000, HOUR * -9000, Health::Bad, "was not renewed")]
    #[case::another_bundle(SignedDuration::ZERO, HOUR * -1, Health::Bad, "the caBundle of webhooks, hook trusts no authority")]
    fn a_certificate_is_checked(
        #[case] made_at: SignedDuration,
        #[case] bundle_at: SignedDuration,
        #[case] health: Health,
        #[case] words: &str,
    ) {
        let certificates = made(now() + made_at);
        let bundles = if made_at == bundle_at { certificates.clone() } else { made(now() + bundle_at) };
        let fields = bundle_fields("webhooks", &webhooks(&bundles));
        let found = certificate("Secret".to_owned(), &stored(&certificates), &fields, now());
        assert!(found.health == health && found.message.contains(words), "{found:?}");
    }

    #[test]
    fn without_the_secret_the_bundles_are_still_checked() {
        let judged = |at: SignedDuration| {
            let fields = bundle_fields("webhooks", &webhooks(&made(now() + at)));
            certificate("Secret".to_owned(), &Read::Missing, &fields, now()).health
        };
        assert_eq!((judged(SignedDuration::ZERO), judged(HOUR * 8)), (Health::Off, Health::Bad));
    }

    #[test]
    fn an_unreadable_secret_is_bad_and_its_namespace_is_that_of_the_service() {
        let unreadable = Read::There(json!({ "data": { "tls.crt": "" } }));
        assert_eq!(certificate("Secret".to_owned(), &unreadable, &[], now()).health, Health::Bad);
        assert_eq!(service_namespace(&webhooks(&made(now()))).as_deref(), Some("there"));
    }
}
