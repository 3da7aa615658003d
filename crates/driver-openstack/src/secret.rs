//! The keys that the Secrets of a class for `OpenStack` must have (spec/providers §6.1, last paragraphs).

use std::collections::BTreeSet;

/// The messages for missing keys and for keys that exclude each other. `keys` are the keys with a value that is not blank.
pub fn missing(keys: &BTreeSet<String>) -> Vec<&'static str> {
    let has = |key: &str| keys.contains(key);
    let rules = [
        (!has("authURL"), "authURL is required"),
        (!has("domainName") && !has("domainID"), "domainName or domainID is required"),
        (!has("tenantName") && !has("tenantID"), "tenantName or tenantID is required"),
        (
            has("password") && has("applicationCredentialSecret"),
            "password and applicationCredentialSecret must not be given both",
        ),
        (
            !has("password") && !has("applicationCredentialSecret"),
            "password or applicationCredentialSecret is required",
        ),
        (has("password") && !has("username"), "username is required beside password"),
        (
            has("applicationCredentialSecret")
                && !has("applicationCredentialID")
                && !(has("applicationCredentialName") && has("username")),
            "applicationCredentialID, or applicationCredentialName and username, is required beside applicationCredentialSecret",
        ),
        (has("clientCert") && !has("clientKey"), "clientKey is required beside clientCert"),
        (!has("userData"), "userData is required"),
    ];
    rules.into_iter().filter(|(broken, _)| *broken).map(|(_, text)| text).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_password(&["authURL", "domainName", "tenantID", "username", "password", "userData"], &[])]
    #[case::an_application_credential_by_id(&["authURL", "domainID", "tenantName", "applicationCredentialID", "applicationCredentialSecret", "userData"], &[])]
    #[case::o4_an_application_credential_by_name(&["authURL", "domainID", "tenantName", "applicationCredentialName", "username", "applicationCredentialSecret", "userData"], &[])]
    #[case::a_name_without_its_user(&["authURL", "domainID", "tenantName", "applicationCredentialName", "applicationCredentialSecret", "userData"], &["applicationCredentialID, or applicationCredentialName and username, is required beside applicationCredentialSecret"])]
    #[case::two_proofs(&["authURL", "domainID", "tenantName", "username", "password", "applicationCredentialID", "applicationCredentialSecret", "userData"], &["password and applicationCredentialSecret must not be given both"])]
    #[case::half_a_certificate(&["authURL", "domainID", "tenantName", "username", "password", "clientCert", "userData"], &["clientKey is required beside clientCert"])]
    #[case::nothing(&[], &["authURL is required", "domainName or domainID is required", "tenantName or tenantID is required", "password or applicationCredentialSecret is required", "userData is required"])]
    fn a_secret_lacks(#[case] keys: &[&str], #[case] expected: &[&str]) {
        assert_eq!(missing(&keys.iter().map(|key| (*key).to_owned()).collect()), expected);
    }
}
