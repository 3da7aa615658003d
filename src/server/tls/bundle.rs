//! The `caBundle` fields of webhook configurations, CRDs and the `APIService`. They tell API servers which authorities to
//! trust.
//!
//! Pure functions from a stored object to the patch that corrects its field. A patch changes only this field. It contains
//! the object's UID and resourceVersion, so that it can't change another object or restore an old state.
//! Source: spec/api-and-admission §11.5.

use std::collections::BTreeSet;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

use super::{authority::is_of_our_making, material::Certificate};
use machine_api::names::annotation;

/// A kind of object that contains a CA bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TargetKind {
    /// `MutatingWebhookConfiguration`.
    MutatingWebhooks,
    /// `ValidatingWebhookConfiguration`.
    ValidatingWebhooks,
    /// `CustomResourceDefinition` with a conversion webhook.
    Definition,
    /// `APIService` of the views.
    ApiService,
}

/// How soon a wrong CA bundle is corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Haste {
    /// At once. The field is empty or broken, so no API server can call the webhooks.
    AtOnce,
    /// After a moment. The field differs, perhaps because another replica wrote it from a newer Secret that this process
    /// has not received yet.
    AfterAMoment,
    /// After a growing wait. The field contains other authorities and none of ours, so another program may regard the
    /// object as its own.
    Contested,
}

/// What to do with an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The object contains the bundle, or has no field for it.
    InOrder,
    /// The owner of the object manages the bundle without this program.
    OptedOut,
    /// The bundle is wrong. This patch corrects it.
    Drifted {
        /// Strategic merge patch for webhook configurations, merge patch for the others.
        patch: Value,
        /// How soon.
        haste: Haste,
    },
}

/// Compares a stored object with the bundle (PEM) that it should contain.
pub fn verdict(kind: TargetKind, object: &Value, bundle_pem: &str) -> Verdict {
    if opted_out(object) {
        return Verdict::OptedOut;
    }
    let wanted = BASE64_STANDARD.encode(bundle_pem);
    match kind {
        TargetKind::MutatingWebhooks | TargetKind::ValidatingWebhooks => webhooks(object, &wanted),
        TargetKind::Definition => definition(object, &wanted),
        TargetKind::ApiService => api_service(object, &wanted),
    }
}

fn opted_out(object: &Value) -> bool {
    let annotations = &object["metadata"]["annotations"];
    annotations[annotation::INJECT_CA].as_str() == Some("false")
        || annotation::FOREIGN_CA_INJECTORS.iter().any(|injector| annotations[injector].is_string())
}

/// Hosts and addresses in the URLs with which an object calls this process. The serving certificate must be valid for
/// them. Webhooks have URLs if API servers can't reach a Service, and only the objects tell this process its URLs.
pub fn url_hosts(kind: TargetKind, object: &Value) -> BTreeSet<String> {
    let of = |client_config: &Value| client_config["url"].as_str().and_then(super::names::url_host);
    match kind {
        TargetKind::MutatingWebhooks | TargetKind::ValidatingWebhooks => {
            object["webhooks"].as_array().into_iter().flatten().filter_map(|entry| of(&entry["clientConfig"])).collect()
        }
        TargetKind::Definition => of(&object["spec"]["conversion"]["webhook"]["clientConfig"]).into_iter().collect(),
        // An `APIService` can name only a Service.
        TargetKind::ApiService => BTreeSet::new(),
    }
}

/// Checks every entry, whether it names a Service or a URL.
fn webhooks(object: &Value, wanted: &str) -> Verdict {
    let mut entries = Vec::new();
    let mut haste = Haste::Contested;
    for entry in object["webhooks"].as_array().into_iter().flatten() {
        let present = &entry["clientConfig"]["caBundle"];
        if let (false, Some(name)) = (holds(present, wanted), entry["name"].as_str()) {
            entries.push(json!({ "name": name, "clientConfig": { "caBundle": wanted } }));
            haste = haste.min(haste_for(present, wanted));
        }
    }
    if entries.is_empty() { Verdict::InOrder } else { drifted(object, "webhooks", Value::Array(entries), haste) }
}

fn definition(object: &Value, wanted: &str) -> Verdict {
    let conversion = &object["spec"]["conversion"];
    let present = &conversion["webhook"]["clientConfig"]["caBundle"];
    if conversion["strategy"].as_str() != Some("Webhook") || holds(present, wanted) {
        return Verdict::InOrder;
    }
    let spec = json!({ "conversion": { "webhook": { "clientConfig": { "caBundle": wanted } } } });
    drifted(object, "spec", spec, haste_for(present, wanted))
}

fn api_service(object: &Value, wanted: &str) -> Verdict {
    let spec = &object["spec"];
    // A local service is not called over TLS. A service that skips verification must not have a bundle.
    if !spec["service"].is_object() || spec["insecureSkipTLSVerify"].as_bool() == Some(true) {
        return Verdict::OptedOut;
    }
    if holds(&spec["caBundle"], wanted) {
        return Verdict::InOrder;
    }
    drifted(object, "spec", json!({ "caBundle": wanted }), haste_for(&spec["caBundle"], wanted))
}

/// Whether a field contains the wanted bundle. Authorities that others have added may stay. An authority of ours that is
/// not wanted any more must not stay.
fn holds(present: &Value, wanted: &str) -> bool {
    let Some(present) = present.as_str() else { return false };
    if present == wanted {
        return true;
    }
    let (present, ours) = (authorities(present), authorities(wanted));
    let is_wanted = |authority: &Certificate| ours.contains(authority);
    ours.iter().all(|authority| present.contains(authority))
        && present.iter().all(|authority| is_wanted(authority) || !is_of_our_making(authority))
}

fn haste_for(present: &Value, wanted: &str) -> Haste {
    let (present, ours) = (authorities(present.as_str().unwrap_or_default()), authorities(wanted));
    if present.is_empty() {
        Haste::AtOnce
    } else if present.iter().any(|authority| ours.contains(authority)) {
        Haste::AfterAMoment
    } else {
        Haste::Contested
    }
}

/// The authorities in a field. Empty if the field is empty or can't be read as PEM.
fn authorities(bundle: &str) -> Vec<Certificate> {
    let pem = BASE64_STANDARD.decode(bundle).unwrap_or_default();
    Certificate::read_all(&pem, "caBundle").unwrap_or_default()
}

fn drifted(object: &Value, field: &str, value: Value, haste: Haste) -> Verdict {
    let metadata = json!({
        "uid": object["metadata"]["uid"],
        "resourceVersion": object["metadata"]["resourceVersion"],
    });
    let mut patch = Map::new();
    patch.insert("metadata".to_owned(), metadata);
    patch.insert(field.to_owned(), value);
    Verdict::Drifted { patch: Value::Object(patch), haste }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::server::tls::{
        authority::Authority,
        bundle::TargetKind::{ApiService, Definition, MutatingWebhooks, ValidatingWebhooks},
    };

    fn a_bundle() -> String {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        Authority::generate(now, jiff::SignedDuration::from_hours(10), [1; 16]).unwrap().certificate.to_pem()
    }

    fn webhooks_with(bundles: &[Value]) -> Value {
        let entry = |(number, bundle): (usize, &Value)| {
            let client = json!({ "url": "https://127.0.0.1/validate", "caBundle": bundle });
            json!({ "name": format!("hook-{number}"), "clientConfig": client, "sideEffects": "None" })
        };
        let entries: Vec<Value> = bundles.iter().enumerate().map(entry).collect();
        json!({ "metadata": { "uid": "u", "resourceVersion": "7" }, "webhooks": entries })
    }

    #[test]
    fn every_entry_that_drifted_is_put_right_and_no_other_field() {
        let (ours, other) = (a_bundle(), a_bundle());
        let good = json!(BASE64_STANDARD.encode(&ours));
        let object = webhooks_with(&[json!(""), good.clone(), json!(BASE64_STANDARD.encode(&other))]);
        let patch = json!({
            "metadata": { "uid": "u", "resourceVersion": "7" },
            "webhooks": [
                { "name": "hook-0", "clientConfig": { "caBundle": good } },
                { "name": "hook-2", "clientConfig": { "caBundle": good } },
            ],
        });
        let expected = Verdict::Drifted { patch, haste: Haste::AtOnce };
        assert_eq!(verdict(ValidatingWebhooks, &object, &ours), expected);
        assert_eq!(verdict(MutatingWebhooks, &object, &ours), expected);
    }

    #[test]
    fn the_hosts_of_urls_are_found() {
        let conversion = |client: Value| json!({ "spec": { "conversion": { "webhook": { "clientConfig": client } } } });
        let hosts = |kind, object: &Value| Vec::from_iter(url_hosts(kind, object));
        let hooks = json!({ "webhooks": [
            { "clientConfig": { "url": "https://127.0.0.1:9443/mutate" } },
            { "clientConfig": { "url": "https://Hooks.example.com/validate" } },
            { "clientConfig": { "url": "nonsense" } },
            { "clientConfig": { "service": { "name": "mcm" } } },
        ] });
        assert_eq!(hosts(MutatingWebhooks, &hooks), ["127.0.0.1", "hooks.example.com"]);
        assert_eq!(hosts(Definition, &conversion(json!({ "url": "https://[::1]:9443/convert" }))), ["::1"]);
        assert!(hosts(Definition, &conversion(Value::Null)).is_empty());
        assert!(hosts(ApiService, &json!({ "spec": { "service": {} } })).is_empty());
    }

    #[rstest]
    #[case::absent(Value::Null, Haste::AtOnce)]
    #[case::empty(json!(""), Haste::AtOnce)]
    #[case::no_pem(json!("aGVsbG8="), Haste::AtOnce)]
    #[case::foreign(json!(BASE64_STANDARD.encode(a_bundle())), Haste::Contested)]
    fn an_unusable_bundle_is_replaced_at_once(#[case] present: Value, #[case] expected: Haste) {
        let object = webhooks_with(&[present]);
        assert!(
            matches!(verdict(ValidatingWebhooks, &object, &a_bundle()), Verdict::Drifted { haste, .. } if haste == expected)
        );
    }

    #[test]
    fn an_older_or_newer_bundle_of_ours_is_replaced_after_a_moment() {
        let (old, new) = (a_bundle(), a_bundle());
        for (present, ours) in [(old.clone(), format!("{new}{old}")), (format!("{new}{old}"), new.clone())] {
            let object = webhooks_with(&[json!(BASE64_STANDARD.encode(present))]);
            let verdict = verdict(ValidatingWebhooks, &object, &ours);
            assert!(matches!(verdict, Verdict::Drifted { haste: Haste::AfterAMoment, .. }), "{verdict:?}");
        }
    }

    #[test]
    fn an_authority_that_another_program_has_added_stays() {
        let (ours, of_others) = (a_bundle(), a_foreign_authority());
        for present in [format!("{ours}{of_others}"), format!("{of_others}{ours}")] {
            let object = webhooks_with(&[json!(BASE64_STANDARD.encode(present))]);
            assert_eq!(verdict(ValidatingWebhooks, &object, &ours), Verdict::InOrder);
        }
        let object = webhooks_with(&[json!(BASE64_STANDARD.encode(of_others))]);
        assert!(matches!(
            verdict(ValidatingWebhooks, &object, &ours),
            Verdict::Drifted { haste: Haste::Contested, .. }
        ));
    }

    /// An authority that no manager has made.
    fn a_foreign_authority() -> String {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "corporate proxy");
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[rstest]
    #[case::by_our_annotation(json!({ "admission.machine.sapcloud.io/inject-ca": "false" }), true)]
    #[case::by_cert_managers(json!({ "cert-manager.io/inject-ca-from": "ns/cert" }), true)]
    #[case::by_cert_manager_from_a_secret(json!({ "cert-manager.io/inject-ca-from-secret": "ns/secret" }), true)]
    #[case::by_cert_manager_from_the_api_server(json!({ "cert-manager.io/inject-apiserver-ca": "true" }), true)]
    #[case::by_openshift(json!({ "service.beta.openshift.io/inject-cabundle": "true" }), true)]
    #[case::not_by_other_values(json!({ "admission.machine.sapcloud.io/inject-ca": "true" }), false)]
    fn an_owner_may_opt_out(#[case] annotations: Value, #[case] out: bool) {
        let mut object = webhooks_with(&[json!("")]);
        object["metadata"]["annotations"] = annotations;
        assert_eq!(verdict(MutatingWebhooks, &object, &a_bundle()) == Verdict::OptedOut, out);
    }

    #[test]
    fn a_definition_without_conversion_webhook_has_no_place_for_a_bundle() {
        let object = json!({ "metadata": {}, "spec": { "conversion": { "strategy": "None" } } });
        assert_eq!(verdict(Definition, &object, &a_bundle()), Verdict::InOrder);
    }

    #[test]
    fn a_definitions_conversion_stanza_is_put_right() {
        let object = json!({ "metadata": { "uid": "u", "resourceVersion": "7" }, "spec": { "conversion": {
            "strategy": "Webhook", "webhook": { "clientConfig": { "service": { "name": "mcm" } } } } } });
        let bundle = a_bundle();
        let wanted = BASE64_STANDARD.encode(&bundle);
        let patch = json!({ "metadata": { "uid": "u", "resourceVersion": "7" },
            "spec": { "conversion": { "webhook": { "clientConfig": { "caBundle": wanted } } } } });
        assert_eq!(verdict(Definition, &object, &bundle), Verdict::Drifted { patch, haste: Haste::AtOnce });
    }

    #[rstest]
    #[case::ours(json!({ "service": { "name": "mcm" } }), false)]
    #[case::a_local_one(json!({}), true)]
    #[case::one_that_skips_verification(json!({ "service": { "name": "mcm" }, "insecureSkipTLSVerify": true }), true)]
    fn an_api_service_is_put_right(#[case] spec: Value, #[case] left_alone: bool) {
        let object = json!({ "metadata": { "uid": "u", "resourceVersion": "7" }, "spec": spec });
        assert_eq!(verdict(ApiService, &object, &a_bundle()) == Verdict::OptedOut, left_alone);
    }
}
