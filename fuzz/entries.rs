//! The entry points for hostile bytes: one function per kind of external text. Each may be called with any bytes, and panics only when an answer is
//! not valid for its reader.
//!
//! Shared by the fuzz targets beside this file and by `tests/it/hostile_bytes.rs`, which runs them in CI for a bounded time.

use machine_api::{
    admission::{ANSWER_MAX, Admission, Endpoint, convert},
    conversion,
    validation::Policy,
};

use serde_json::{Value, json};

/// Sends an `AdmissionReview` to every endpoint.
pub fn admission_review(bytes: &[u8]) {
    let admission = Admission::new(Policy::default());
    for endpoint in Endpoint::ALL {
        let answer = admission.review(endpoint, bytes);
        assert!(answer.body.len() <= ANSWER_MAX, "{} bytes", answer.body.len());
        let body: Value = serde_json::from_slice(&answer.body).expect("every answer is JSON");
        match answer.status {
            200 => {
                let response = &body["response"];
                assert!(response["uid"].as_str().is_some_and(|uid| !uid.is_empty()), "{body}");
                let allowed = response["allowed"].as_bool().expect("a verdict");
                assert!(allowed || endpoint == Endpoint::Validate, "only validation denies: {body}");
                assert_eq!(response["status"].is_object(), !allowed, "{body}");
                assert_eq!(response["patch"].is_string(), response["patchType"].is_string(), "{body}");
                assert!(response["patch"].is_null() || endpoint == Endpoint::Mutate, "only mutation patches: {body}");
                let warnings = response["warnings"].as_array().map_or(0, |all| all.iter().map(length).sum());
                assert!(warnings <= 4096, "{warnings} bytes of warnings");
            }
            400 | 413 => assert_eq!(body["kind"], "Status", "{body}"),
            other => panic!("status {other}: {body}"),
        }
    }
}

fn length(warning: &Value) -> usize {
    let text = warning.as_str().expect("a warning is a text");
    assert!(!text.is_empty() && !text.contains(['\n', '\r']), "{text:?} would be dropped");
    text.len()
}

/// Sends a `ConversionReview`.
pub fn conversion_review(bytes: &[u8]) {
    let answer = convert(bytes);
    let body: Value = serde_json::from_slice(&answer.body).expect("every answer is JSON");
    match answer.status {
        200 => {
            let response = &body["response"];
            let converted = response["convertedObjects"].as_array().expect("a list");
            match response["result"]["status"].as_str() {
                Some("Success") => assert_eq!(converted.len() as u64, answer.facts.objects),
                Some("Failure") if answer.body.len() > ANSWER_MAX => panic!("{} bytes", answer.body.len()),
                Some("Failure") => assert!(converted.is_empty() && response["result"]["message"].is_string(), "{body}"),
                other => panic!("{other:?}: {body}"),
            }
        }
        400 => assert_eq!(body["kind"], "Status", "{body}"),
        other => panic!("status {other}: {body}"),
    }
}

/// Sends a driver's configuration in a review of its class, and through conversion, which must not change it.
pub fn provider_spec(bytes: &[u8]) {
    let Ok(spec) = serde_json::from_slice::<Value>(bytes) else { return };
    let class = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": "c", "namespace": "n"},
        "provider": "AWS", "providerSpec": spec, "secretRef": {"name": "s", "namespace": "n"},
    });
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "operation": "CREATE", "namespace": "n", "name": "c", "userInfo": {"username": "alice"},
            "kind": {"group": "machine.sapcloud.io", "version": "v1alpha1", "kind": "MachineClass"}, "object": class,
        },
    });
    admission_review(review.to_string().as_bytes());
    let there = conversion::convert(&class, "machine.sapcloud.io/v1beta1").expect("every class converts");
    let back = conversion::convert(&there, "machine.sapcloud.io/v1alpha1").expect("every class converts");
    assert_eq!(back["providerSpec"], class["providerSpec"]);
}
