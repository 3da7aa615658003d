//! Tests of logins and of TLS.

use std::sync::Arc;

use machine_driver::{Code, Driver, ListRequest};
use rstest::rstest;
use serde_json::{Value, json};

use crate::services::{Subject, services};

#[rstest]
#[case::by_its_id("appcred-id", &[])]
#[case::o4_by_its_name_and_user("appcred-name", &[("applicationCredentialID", ""), ("applicationCredentialName", "mcm"), ("username", "mcm")])]
#[tokio::test]
async fn an_application_credential_logs_in(#[case] test: &'static str, #[case] change: &[(&str, &str)]) {
    let Some(services) = services(test) else { return };
    let mut subject = Subject::new(&services, "appcred", test, json!({}));
    for (key, value) in change {
        subject.secret.set(*key, value.as_bytes().to_vec());
    }
    subject.create().await.unwrap();
    subject.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
    subject.secret.set("applicationCredentialSecret", b"wrong".to_vec());
    assert_eq!(subject.list().await.unwrap_err().code, Code::Unauthenticated);
}

/// The access rules in the documents are enough, and without them calls are refused.
#[tokio::test]
async fn access_rules_of_the_documents_are_enough() {
    let Some(services) = services("access_rules_of_the_documents_are_enough") else { return };
    let rules: Value = serde_json::from_str(include_str!("../../../../docs/openstack-access-rules.json")).unwrap();
    let credential = async |name: &str, rules: Value| {
        let name = format!("{name}-{}", std::process::id());
        let body = json!({"application_credential": {"name": name, "secret": "secret", "access_rules": rules}});
        let made = services.call("machines", "POST", "identity", "/users/USER/application_credentials", body).await;
        made["application_credential"]["id"].as_str().unwrap().to_owned()
    };
    let patch = json!({"rootDiskSize": 2, "rootDiskType": "standard"});
    let mut subject = Subject::new(&services, "appcred", "ruled", patch);
    subject.secret.set("applicationCredentialID", credential("ruled", rules.clone()).await.into_bytes());
    subject.create().await.unwrap();
    subject.initialize().await.unwrap();
    subject.status().await.unwrap();
    assert_eq!(subject.list().await.unwrap().len(), 1);
    subject.delete().await.unwrap();
    let by_name = Subject {
        secret: subject.secret.clone(),
        ..Subject::new(
            &services,
            "appcred",
            "ruled",
            json!({
                "networkID": null, "subnetID": null, "networks": [{"name": "machines", "podNetwork": true}],
            }),
        )
    };
    by_name.create().await.unwrap();
    by_name.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
    // A class without volumes needs no right in Cinder.
    let no_cinder = rules.as_array().unwrap().iter().filter(|rule| rule["service"] != "block-storage").cloned();
    let no_cinder = credential("no-cinder", no_cinder.collect()).await;
    let mut without = Subject::new(&services, "appcred", "ruled", json!({}));
    without.secret.set("applicationCredentialID", no_cinder.into_bytes());
    without.create().await.unwrap();
    assert_eq!(without.list().await.unwrap().len(), 1);
    without.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
    let fewer: Vec<_> = rules.as_array().unwrap().iter().filter(|rule| rule["method"] != "POST").cloned().collect();
    subject.secret.set("applicationCredentialID", credential("fewer", json!(fewer)).await.into_bytes());
    let refused = subject.create().await.unwrap_err();
    assert_eq!(refused.code, Code::Unauthenticated, "{}", refused.message);
    subject.assert_nothing_is_left().await;
}

#[rstest]
#[case::a_wrong_password("password", "wrong")]
#[case::an_unknown_user("username", "nobody")]
#[case::an_unknown_project("tenantName", "nowhere")]
#[tokio::test]
async fn o_05_every_call_fails_with_a_wrong_login(#[case] key: &str, #[case] value: &str) {
    let Some(services) = services("o_05_every_call_fails_with_a_wrong_login") else { return };
    let mut subject = Subject::new(&services, "machines", "login", json!({}));
    subject.secret.set(key, value.as_bytes().to_vec());
    let errors = [
        subject.create().await.unwrap_err(),
        subject.status().await.unwrap_err(),
        subject.delete().await.unwrap_err(),
        subject.list().await.unwrap_err(),
    ];
    for status in errors {
        assert_eq!(status.code, Code::Unauthenticated);
        assert!(
            status.message.starts_with(
                "logging in: keystone answers 401 Unauthorized: The request you have made requires authentication."
            ),
            "{}",
            status.message
        );
    }
}

#[rstest]
#[case::an_authority_in_the_secret("tls", &[], None)]
#[case::an_unknown_authority("tls", &["caCert"], Some("invalid peer certificate: UnknownIssuer"))]
#[case::a_certificate_of_the_client("mutual", &[], None)]
#[case::no_certificate_of_the_client("mutual", &["clientCert", "clientKey"], Some("certificate"))]
#[tokio::test]
async fn connections_are_encrypted(
    #[case] cloud: &'static str,
    #[case] without: &[&str],
    #[case] refused: Option<&str>,
) {
    let Some(services) = services("connections_are_encrypted") else { return };
    let mut subject = Subject::new(&services, cloud, "encrypted", json!({}));
    for key in without {
        subject.secret.set(*key, Vec::new());
    }
    let Some(text) = refused else {
        subject.name = format!("encrypted-{cloud}");
        assert!(subject.create().await.unwrap().vm.provider_id.contains("TLS/"));
        subject.delete().await.unwrap();
        return;
    };
    let error = subject.list().await.unwrap_err();
    assert_eq!(error.code, Code::Unavailable);
    assert!(error.message.to_lowercase().contains(&text.to_lowercase()), "{}", error.message);
}

#[tokio::test]
async fn certificates_are_not_checked_if_the_secret_says_so() {
    let Some(services) = services("certificates_are_not_checked_if_the_secret_says_so") else { return };
    let mut subject = Subject::new(&services, "tls", "insecure", json!({}));
    subject.secret.set("caCert", Vec::new());
    subject.secret.set("insecure", b"true".to_vec());
    assert_eq!(subject.list().await.unwrap(), []);
}

#[rstest]
#[case::no_service("http://127.0.0.1:9", Code::Unavailable)]
#[case::no_keystone("KEYSTONE/nowhere", Code::FailedPrecondition)]
#[tokio::test]
async fn a_wrong_address_is_an_error(#[case] url: &str, #[case] code: Code) {
    let Some(services) = services("a_wrong_address_is_an_error") else { return };
    let mut subject = Subject::new(&services, "machines", "address", json!({}));
    let url = url.replace("KEYSTONE", services.made["urls"]["keystone"].as_str().unwrap());
    subject.secret.set("authURL", url.into_bytes());
    let error = subject.list().await.unwrap_err();
    assert_eq!(error.code, code, "{}", error.message);
}

#[tokio::test]
async fn a_region_that_the_catalogue_lacks_is_an_error() {
    let Some(services) = services("a_region_that_the_catalogue_lacks_is_an_error") else { return };
    let subject = Subject::new(&services, "machines", "region", json!({"region": "nowhere"}));
    let error = subject.list().await.unwrap_err();
    assert_eq!(error.message, "the catalogue has no public endpoint of the service compute in region \"nowhere\"");
}

/// `mcm validate --ask-provider` makes this call.
#[rstest]
#[case::a_good_class(json!({"rootDiskSize": 2, "rootDiskType": "standard"}), &[])]
#[case::nothing_exists(
    json!({
        "flavorName": "gone", "imageName": null, "imageID": "11111111-2222-3333-4444-555555555555", "keyName": "gone",
        "availabilityZone": "gone", "securityGroups": ["gone"], "serverGroupID": "11111111-2222-3333-4444-555555555555",
        "networkID": null, "subnetID": null, "networks": [{"name": "gone"}], "rootDiskSize": 2, "rootDiskType": "gone",
    }),
    &["flavorName", "imageID", "keyName", "availabilityZone", "networks[0].name", "securityGroups[0]", "serverGroupID", "rootDiskType"]
)]
#[tokio::test]
async fn names_and_ids_of_a_class_are_checked(#[case] patch: Value, #[case] expected: &[&str]) {
    let Some(services) = services("names_and_ids_of_a_class_are_checked") else { return };
    let subject = Subject::new(&services, "machines", "asked", patch);
    let request = ListRequest { class: Arc::new(subject.class()), secret: subject.secret.clone() };
    let found = subject.driver.ask_about_class(&Subject::cx(), request).await.unwrap();
    let paths: Vec<_> = found.errors().map(|error| error.path.as_str().to_owned()).collect();
    assert_eq!(paths, expected.iter().map(|path| format!("providerSpec.spec.{path}")).collect::<Vec<_>>());
    assert_eq!(found.warned(), 0);
}
