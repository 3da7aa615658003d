//! The keys that the Secrets of a class for Alibaba Cloud must have.

use std::collections::BTreeSet;

/// The keys with the id of the access key, in the order in which they are used.
pub const ACCESS_KEY_ID: [&str; 2] = ["alicloudAccessKeyID", "accessKeyID"];
/// The keys with the secret of the access key, in the order in which they are used.
pub const ACCESS_KEY_SECRET: [&str; 2] = ["alicloudAccessKeySecret", "accessKeySecret"];
/// The key with the token of temporary credentials.
#[cfg(feature = "driver")]
pub const SECURITY_TOKEN: &str = "securityToken";
/// The message for a missing id.
pub const NO_ID: &str = "alicloudAccessKeyID or accessKeyID is required";
/// The message for a missing secret.
pub const NO_SECRET: &str = "alicloudAccessKeySecret or accessKeySecret is required";

/// The messages for missing keys. `keys` are the keys with a value that is not blank.
pub fn missing(keys: &BTreeSet<String>) -> Vec<&'static str> {
    let has = |key: &str| keys.contains(key);
    let rules = [
        (ACCESS_KEY_ID.into_iter().any(has), NO_ID),
        (ACCESS_KEY_SECRET.into_iter().any(has), NO_SECRET),
        (has("userData"), "userData is required"),
    ];
    rules.into_iter().filter(|(is_there, _)| !is_there).map(|(_, text)| text).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::the_usual_keys(&["alicloudAccessKeyID", "alicloudAccessKeySecret", "userData"], &[])]
    #[case::the_other_keys(&["accessKeyID", "accessKeySecret", "userData"], &[])]
    #[case::nothing(&[], &[NO_ID, NO_SECRET, "userData is required"])]
    #[case::half_a_key(&["accessKeyID", "userData"], &[NO_SECRET])]
    fn a_secret_lacks(#[case] keys: &[&str], #[case] expected: &[&str]) {
        assert_eq!(missing(&keys.iter().map(|key| (*key).to_owned()).collect()), expected);
    }
}
