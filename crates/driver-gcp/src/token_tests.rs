//! Tests of tokens: signed, exchanged, kept and refused.

use cloud_client::{HttpOptions, HttpTransport, Limits, Tokens};
use fake_gce::Method;
use machine_driver::{Driver, SecretData};
use serde_json::json;

use super::*;
use crate::{
    GcpDriver,
    test_rig::{Rig, cx, driver, secret},
};

/// A driver and the Secret of a workload identity whose token file contains `token`. The file lives as long as the directory.
fn with_token(rig: &Rig, token: &str, impersonates: bool) -> (GcpDriver, SecretData, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, token).unwrap();
    let config =
        if impersonates { rig.gce.impersonating_external_account(&file) } else { rig.gce.external_account(&file) };
    let options = GcpOptions {
        endpoint: Some(rig.gce.url().to_owned()),
        identity_directories: vec![directory.path().to_owned()],
        ..GcpOptions::default()
    };
    (driver(options), secret("credentialsConfig", &config), directory)
}

#[tokio::test]
async fn a_service_account_signs_its_tokens_without_a_request_and_a_rotated_key_is_used_at_once() {
    let mut rig = Rig::new().await;
    rig.list().await.unwrap();
    rig.secret = secret("serviceaccount.json", &rig.gce.second_service_account());
    rig.list().await.unwrap();
    let requests = rig.gce.requests();
    assert_eq!(requests.len(), 2, "no token was requested");
    assert!(requests.iter().all(|call| call.caller == fake_gce::ACCOUNT));
    assert_ne!(requests[0].by, requests[1].by);
}

#[tokio::test]
async fn a_wrong_key_is_refused_as_unauthenticated() {
    let mut rig = Rig::new().await;
    rig.secret = secret("serviceAccountJSON", &rig.gce.service_account_with_unknown_key());
    assert_eq!(rig.list().await.unwrap_err().code, Code::Unauthenticated);
    let key =
        json!({"type": "service_account", "project_id": "p", "client_email": "e", "private_key": "a-secret-text"});
    rig.secret = secret("serviceAccountJSON", &key.to_string());
    let refused = rig.list().await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    assert!(refused.message.ends_with("private_key is no RSA key in PKCS #8 (PEM)"), "{refused}");
}

#[tokio::test]
async fn a_workload_identity_exchanges_its_token_once_and_again_after_a_refusal() {
    for impersonates in [false, true] {
        let mut rig = Rig::new().await;
        let (driver, secret, _directory) = with_token(&rig, fake_gce::SUBJECT_TOKEN, impersonates);
        (rig.driver, rig.secret) = (driver, secret);
        rig.list().await.unwrap();
        rig.list().await.unwrap();
        assert_eq!(rig.gce.count(Method::ExchangeToken), 1, "the token is kept");
        assert_eq!(rig.gce.count(Method::GenerateAccessToken), usize::from(impersonates));
        rig.gce.revoke_tokens();
        rig.list().await.unwrap();
        assert_eq!(rig.gce.count(Method::ExchangeToken), 2, "a refused token is exchanged again");
        let by = rig.gce.requests().pop().unwrap().by;
        assert_eq!(by, if impersonates { "iam" } else { "sts" });
    }
}

#[tokio::test]
async fn c_14_a_refused_token_is_not_repeated_in_messages_and_not_sent_for_each_machine() {
    let mut rig = Rig::new().await;
    let (driver, secret, _directory) = with_token(&rig, "a-wrong-token", false);
    (rig.driver, rig.secret) = (driver, secret);
    for _ in 0..3 {
        let refused = rig.list().await.unwrap_err();
        assert_eq!(refused.code, Code::Unauthenticated);
        assert!(refused.message.contains("exchanging the token: invalid_grant"), "{refused}");
        assert!(!refused.message.contains("a-wrong-token"), "{refused}");
    }
    assert_eq!(rig.gce.count(Method::ExchangeToken), 1);
}

#[tokio::test]
async fn an_outage_of_the_token_service_in_one_call_is_not_the_answer_to_the_next() {
    let mut rig = Rig::new().await;
    let (driver, secret, _directory) = with_token(&rig, fake_gce::SUBJECT_TOKEN, false);
    (rig.driver, rig.secret) = (driver, secret);
    rig.gce.refuse(Method::ExchangeToken, fake_gce::Refusal::unavailable(), 4);
    assert_eq!(rig.list().await.unwrap_err().code, Code::Unavailable);
    rig.list().await.unwrap();
}

#[tokio::test]
async fn a_failed_renewal_of_a_valid_token_is_not_repeated_by_each_call() {
    let rig = Rig::new().await;
    let (_, secret, directory) = with_token(&rig, fake_gce::SUBJECT_TOKEN, false);
    let options = GcpOptions {
        endpoint: Some(rig.gce.url().to_owned()),
        identity_directories: vec![directory.path().to_owned()],
        ..GcpOptions::default()
    };
    let client = Client::new(HttpTransport::new(HttpOptions::default()), Limits::default());
    let (login, context, tokens) = (Login::of(&secret).unwrap(), cx(), Tokens::default());
    let source = TokenSource { client: &client, cx: &context, options: &options, login: &login };
    let token = tokens.token(login.account, Timestamp::now(), source.fetch(Timestamp::now())).await.unwrap();
    let late = token.expires.saturating_sub(Duration::from_secs(60)).unwrap();
    rig.gce.refuse(Method::ExchangeToken, fake_gce::Refusal::unavailable(), 100);
    assert_eq!(tokens.token(login.account, late, source.fetch(late)).await, Ok(token.clone()));
    let asked = rig.gce.count(Method::ExchangeToken);
    assert_eq!(tokens.token(login.account, late, source.fetch(late)).await, Ok(token));
    assert!(asked > 1 && rig.gce.count(Method::ExchangeToken) == asked, "the service is left alone");
}

#[tokio::test]
async fn a_signed_token_is_valid_for_a_clock_that_is_late() {
    let rig = Rig::new().await;
    let login = Login::of(&rig.secret).unwrap();
    let Credentials::ServiceAccount { email, key_id, key } = &login.credentials else { panic!("a service account") };
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let token = signed(email, key_id, key, now).unwrap();
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.value.reveal().split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    let issued = now.as_second() - 10;
    assert_eq!((&claims["iat"], &claims["exp"]), (&json!(issued), &json!(issued + 3600)));
}

#[tokio::test]
async fn a_token_file_outside_its_directories_is_not_read() {
    let mut rig = Rig::new().await;
    let (_, secret, _directory) = with_token(&rig, fake_gce::SUBJECT_TOKEN, false);
    rig.secret = secret;
    let refused = rig.driver.get_machine_status(&cx(), rig.request()).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    assert!(refused.message.contains("credential_source.file: "), "{refused}");
    assert_eq!(rig.gce.requests().len(), 0);
}

#[test]
fn a_token_may_be_a_field_of_a_document() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let account = ExternalAccount {
        audience: String::new(),
        subject_token_type: String::new(),
        file: file.clone(),
        field: Some("id_token".to_owned()),
        impersonates: None,
    };
    let options = GcpOptions { identity_directories: vec![directory.path().to_owned()], ..GcpOptions::default() };
    std::fs::write(&file, r#"{"id_token": "t-1"}"#).unwrap();
    assert_eq!(subject_token(&account, &options), Ok(Secret::new("t-1")));
    std::fs::write(&file, r#"{"token": "t-1"}"#).unwrap();
    assert_eq!(subject_token(&account, &options).unwrap_err().code, Code::FailedPrecondition);
}
