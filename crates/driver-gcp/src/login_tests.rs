//! Tests of the credentials in Secrets, and of the URLs and files that they must not name.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn secret(pairs: &[(&str, &str)]) -> SecretData {
    let mut secret = SecretData::default();
    for (key, value) in pairs {
        secret.set(*key, value.as_bytes().to_vec());
    }
    secret
}

fn service_account(patch: Value) -> String {
    let mut document = json!({
        "type": "service_account", "project_id": "p", "client_email": "e", "private_key_id": "k", "private_key": "secret-key",
        "token_uri": "https://evil.example.com/token",
    });
    json_patch::merge(&mut document, &patch);
    document.to_string()
}

fn external_account(patch: Value) -> String {
    let mut document = json!({
        "type": "external_account", "audience": "a", "subject_token_type": "t", "token_url": "https://sts.googleapis.com/v1/token",
        "credential_source": {"file": "/var/run/secrets/token"},
    });
    json_patch::merge(&mut document, &patch);
    document.to_string()
}

#[rstest]
#[case::gardeners_spelling("serviceaccount.json")]
#[case::the_usual_spelling("serviceAccountJSON")]
fn a_service_account_has_its_project(#[case] key: &str) {
    let login = Login::of(&secret(&[(key, &service_account(json!({})))])).unwrap();
    assert_eq!(login.project, "p");
    // Its token_uri is never used.
    let expected =
        Credentials::ServiceAccount { email: "e".to_owned(), key_id: "k".to_owned(), key: Secret::new("secret-key") };
    assert_eq!(login.credentials, expected);
    assert!(!format!("{login:?}").contains("secret-key"));
}

#[rstest]
#[case::text(json!({}), None, None)]
#[case::json(json!({"credential_source": {"format": {"type": "json", "subject_token_field_name": "f"}}}), Some("f"), None)]
#[case::impersonating(
    json!({"service_account_impersonation_url":
           "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/m@p.iam.gserviceaccount.com:generateAccessToken"}),
    None,
    Some("m@p.iam.gserviceaccount.com")
)]
fn a_workload_identity_takes_its_project_from_the_secret(
    #[case] patch: Value,
    #[case] field: Option<&str>,
    #[case] impersonates: Option<&str>,
) {
    let pairs = [("credentialsConfig", external_account(patch)), ("projectID", "q".to_owned())];
    let login = Login::of(&secret(&pairs.each_ref().map(|(key, value)| (*key, value.as_str())))).unwrap();
    assert_eq!(login.project, "q");
    let expected = ExternalAccount {
        audience: "a".to_owned(),
        subject_token_type: "t".to_owned(),
        file: "/var/run/secrets/token".into(),
        field: field.map(str::to_owned),
        impersonates: impersonates.map(str::to_owned),
    };
    assert_eq!(login.credentials, Credentials::ExternalAccount(expected));
}

#[rstest]
#[case::nothing(&[], "serviceAccountJSON, serviceaccount.json or credentialsConfig is required")]
#[case::no_json(&[("serviceAccountJSON", "secret-word")], "data[serviceAccountJSON]: can't be read as credentials (line 1, column 1)")]
#[case::a_field_of_another_type(&[("serviceAccountJSON", r#"{"private_key": 5}"#)], "data[serviceAccountJSON]: can't be read as credentials (line 1, column 17)")]
#[case::no_project(&[("credentialsConfig", r#"{"type": "external_account"}"#)], "data[credentialsConfig]: names no project_id, and the Secret has no projectID")]
#[case::a_path_as_project(&[("credentialsConfig", "{}"), ("projectID", "p/../q")], "\"p/../q\" can't be the id of a project")]
#[case::another_type(&[("credentialsConfig", r#"{"type": "authorized_user"}"#), ("projectID", "p")], "data[credentialsConfig]: type must be service_account or external_account")]
#[case::another_cloud(&[("serviceAccountJSON", r#"{"universe_domain": "evil.example.com"}"#)], "data[serviceAccountJSON]: universe_domain must be googleapis.com")]
fn a_secret_is_refused(#[case] pairs: &[(&str, &str)], #[case] message: &str) {
    let refused = Login::of(&secret(pairs)).unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (Code::InvalidArgument, message));
}

#[rstest]
#[case(json!({"client_email": ""}), "client_email is required")]
#[case(json!({"private_key": ""}), "private_key is required")]
fn a_service_account_is_refused(#[case] patch: Value, #[case] message: &str) {
    let refused = Login::of(&secret(&[("serviceAccountJSON", &service_account(patch))])).unwrap_err();
    assert_eq!(refused.message, format!("data[serviceAccountJSON]: {message}"));
}

const TOKEN_URL: &str = "token_url must be https://sts.googleapis.com/v1/token";
const IMPERSONATION: &str = "service_account_impersonation_url must be https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/EMAIL:generateAccessToken";

#[rstest]
#[case::no_audience(json!({"audience": ""}), "audience is required")]
#[case::no_token_type(json!({"subject_token_type": null}), "subject_token_type is required")]
#[case::another_host(json!({"token_url": "https://evil.example.com/v1/token"}), TOKEN_URL)]
#[case::a_host_that_begins_the_same(json!({"token_url": "https://sts.googleapis.com.evil.example.com/v1/token"}), TOKEN_URL)]
#[case::a_user(json!({"token_url": "https://sts.googleapis.com@evil.example.com/v1/token"}), TOKEN_URL)]
#[case::no_tls(json!({"token_url": "http://sts.googleapis.com/v1/token"}), TOKEN_URL)]
#[case::the_metadata_service(json!({"token_url": "http://169.254.169.254/v1/token"}), TOKEN_URL)]
#[case::an_account_elsewhere(json!({"service_account_impersonation_url": "https://evil.example.com/v1/projects/-/serviceAccounts/a:generateAccessToken"}), IMPERSONATION)]
#[case::a_path_as_account(json!({"service_account_impersonation_url": "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/../x?y:generateAccessToken"}), IMPERSONATION)]
#[case::a_url_as_source(json!({"credential_source": {"file": null, "url": "http://169.254.169.254/"}}), "credential_source.file is required; other sources of tokens are not supported")]
#[case::a_program_as_source(json!({"credential_source": {"file": null, "executable": {"command": "sh"}}}), "credential_source.file is required; other sources of tokens are not supported")]
#[case::a_field_without_name(json!({"credential_source": {"format": {"type": "json"}}}), "credential_source.format.subject_token_field_name is required for JSON")]
#[case::another_format(json!({"credential_source": {"format": {"type": "xml"}}}), "credential_source.format.type must be text or json")]
fn a_workload_identity_is_refused(#[case] patch: Value, #[case] message: &str) {
    let pairs = [("credentialsConfig", external_account(patch)), ("projectID", "p".to_owned())];
    let refused = Login::of(&secret(&pairs.each_ref().map(|(key, value)| (*key, value.as_str())))).unwrap_err();
    assert_eq!(refused.message, format!("data[credentialsConfig]: {message}"));
}
