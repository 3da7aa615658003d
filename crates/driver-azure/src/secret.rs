//! The keys that the Secrets of a class for Azure must have (spec/providers §4.2, last paragraph).

use std::collections::BTreeSet;

/// The keys of a value, in the order in which they are used: its name, and the deprecated one.
pub const CLIENT_ID: [&str; 2] = ["clientID", "azureClientId"];
/// The keys of the client's secret.
pub const CLIENT_SECRET: [&str; 2] = ["clientSecret", "azureClientSecret"];
/// The keys of the subscription.
pub const SUBSCRIPTION: [&str; 2] = ["subscriptionID", "azureSubscriptionId"];
/// The keys of the tenant.
pub const TENANT: [&str; 2] = ["tenantID", "azureTenantId"];
/// The key with the path of a file with the token of another issuer.
pub const TOKEN_FILE: &str = "workloadIdentityTokenFile";
/// What is wrong with a Secret that has both kinds of credentials.
pub const EXCLUSIVE: &str = "clientSecret is mutually exclusive with workloadIdentityTokenFile";
/// What is wrong with a Secret that has neither.
pub const NO_PROOF: &str = "must provide clientSecret or workloadIdentityTokenFile";

/// The messages for missing keys. `keys` are the keys with a value that is not blank.
pub fn missing(keys: &BTreeSet<String>) -> Vec<&'static str> {
    let has = |names: &[&str]| names.iter().any(|name| keys.contains(*name));
    let proof = match (has(&CLIENT_SECRET), keys.contains(TOKEN_FILE)) {
        (true, true) => Some(EXCLUSIVE),
        (false, false) => Some(NO_PROOF),
        _ => None,
    };
    let rules = [
        (!has(&CLIENT_ID)).then_some("must provide clientID"),
        proof,
        (!has(&SUBSCRIPTION)).then_some("must provide subscriptionID"),
        (!has(&TENANT)).then_some("must provide tenantID"),
        (!has(&["userData"])).then_some("must provide userData"),
    ];
    rules.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_client(&["clientID", "clientSecret", "subscriptionID", "tenantID", "userData"], &[])]
    #[case::old_keys(&["azureClientId", "azureClientSecret", "azureSubscriptionId", "azureTenantId", "userData"], &[])]
    #[case::workload_identity(&["clientID", "workloadIdentityTokenFile", "subscriptionID", "tenantID", "userData"], &[])]
    #[case::z15_two_proofs(&["clientID", "azureClientSecret", "workloadIdentityTokenFile", "subscriptionID", "tenantID", "userData"], &[EXCLUSIVE])]
    #[case::nothing(&[], &["must provide clientID", NO_PROOF, "must provide subscriptionID", "must provide tenantID", "must provide userData"])]
    fn a_secret_lacks(#[case] keys: &[&str], #[case] expected: &[&str]) {
        assert_eq!(missing(&keys.iter().map(|key| (*key).to_owned()).collect()), expected);
    }
}
