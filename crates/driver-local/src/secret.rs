//! The keys that the Secrets of a class for machines as pods must have (spec/providers §8).

use std::collections::BTreeSet;

/// The key of the kubeconfig of the cluster with the pods. Only classes with `credentialsSecretRef` need it, which the keys do not show.
#[cfg(feature = "driver")]
pub const KUBECONFIG: &str = "kubeconfig";
/// The key of the user data.
const USER_DATA: &str = "userData";

/// The messages for missing keys. `keys` are the keys with a value that is not blank.
pub fn missing(keys: &BTreeSet<String>) -> Vec<&'static str> {
    if keys.contains(USER_DATA) { Vec::new() } else { vec!["userData is required"] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_user_data_is_required() {
        assert_eq!(missing(&BTreeSet::new()), ["userData is required"]);
        assert!(missing(&BTreeSet::from(["userData".to_owned()])).is_empty());
    }
}
