//! The keys that the Secrets of a class for GCE must have (spec/providers §5.2, last paragraph).

use std::collections::BTreeSet;

/// The keys with credentials, in the order in which they are used.
pub const SERVICE_ACCOUNT_KEYS: [&str; 2] = ["serviceAccountJSON", "serviceaccount.json"];
/// The key with the configuration of a workload identity.
pub const CREDENTIALS_CONFIG: &str = "credentialsConfig";

/// The messages for missing keys. `keys` are the keys with a value that is not blank.
pub fn missing(keys: &BTreeSet<String>) -> Vec<&'static str> {
    let has = |key: &str| keys.contains(key);
    let has_credentials = has(CREDENTIALS_CONFIG) || SERVICE_ACCOUNT_KEYS.into_iter().any(has);
    let rules = [
        (has_credentials, "serviceAccountJSON, serviceaccount.json or credentialsConfig is required"),
        (has("userData"), "userData is required"),
    ];
    rules.into_iter().filter(|(is_there, _)| !is_there).map(|(_, text)| text).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NO_CREDENTIALS: &str = "serviceAccountJSON, serviceaccount.json or credentialsConfig is required";

    #[rstest]
    #[case::a_service_account(&["serviceAccountJSON", "userData"], &[])]
    #[case::gardeners_spelling(&["serviceaccount.json", "userData"], &[])]
    #[case::workload_identity(&["credentialsConfig", "projectID", "userData"], &[])]
    #[case::nothing(&[], &[NO_CREDENTIALS, "userData is required"])]
    #[case::only_a_project(&["projectID", "userData"], &[NO_CREDENTIALS])]
    fn a_secret_lacks(#[case] keys: &[&str], #[case] expected: &[&str]) {
        assert_eq!(missing(&keys.iter().map(|key| (*key).to_owned()).collect()), expected);
    }
}
