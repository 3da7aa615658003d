//! The keys that the Secrets of a class for EC2 must have (spec/providers §3.2, last paragraph).

use std::collections::BTreeSet;

/// The messages for missing keys. `keys` are the keys with a value that is not blank. Both spellings of a credential are accepted.
pub fn missing(keys: &BTreeSet<String>) -> Vec<&'static str> {
    let has = |key: &str| keys.contains(key);
    let mut missing = Vec::new();
    if has("workloadIdentityTokenFile") {
        if !has("roleARN") {
            missing.push("Role ARN is required when workload identity is used");
        }
    } else {
        if !has("providerAccessKeyId") && !has("accessKeyID") {
            missing.push("Mention atleast providerAccessKeyId or accessKeyID");
        }
        if !has("providerSecretAccessKey") && !has("secretAccessKey") {
            missing.push("Mention atleast providerSecretAccessKey or secretAccessKey");
        }
    }
    if !has("userData") {
        missing.push("Mention userData");
    }
    missing
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a31_gardeners_spelling(&["accessKeyID", "secretAccessKey", "userData"], &[])]
    #[case::the_older_spelling(&["providerAccessKeyId", "providerSecretAccessKey", "userData"], &[])]
    #[case::a32_workload_identity_without_role(&["workloadIdentityTokenFile", "userData"], &["Role ARN is required when workload identity is used"])]
    #[case::workload_identity(&["workloadIdentityTokenFile", "roleARN", "userData"], &[])]
    #[case::nothing(&[], &["Mention atleast providerAccessKeyId or accessKeyID", "Mention atleast providerSecretAccessKey or secretAccessKey", "Mention userData"])]
    fn a_secret_lacks(#[case] keys: &[&str], #[case] expected: &[&str]) {
        assert_eq!(missing(&keys.iter().map(|key| (*key).to_owned()).collect()), expected);
    }
}
