//! Secrets that are never printed, and keys that identify credentials.

use std::fmt;

use ring::digest;

/// A secret text. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for the request that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(<redacted>)")
    }
}

/// Identifies credentials without containing them: the key of caches and budgets. Different credentials have different keys, so
/// that a rotated secret takes effect at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CredentialsKey([u8; 32]);

impl CredentialsKey {
    /// The key of credentials that consist of these parts.
    pub fn of(parts: &[&str]) -> Self {
        let mut hash = digest::Context::new(&digest::SHA256);
        for part in parts {
            // The length distinguishes `["ab", "c"]` from `["a", "bc"]`.
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        Self::finished(hash)
    }
}

impl CredentialsKey {
    /// The key of the same credentials in one place, such as a region. Each place has its own budget.
    #[must_use]
    pub fn with(self, place: &str) -> Self {
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(&self.0);
        hash.update(place.as_bytes());
        Self::finished(hash)
    }

    fn finished(hash: digest::Context) -> Self {
        let mut key = [0; 32];
        key.copy_from_slice(hash.finish().as_ref());
        Self(key)
    }
}

impl fmt::Debug for CredentialsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_prints_nothing() {
        let secret = Secret::new("hunter2");
        assert_eq!(
            format!("{secret:?} {:?}", CredentialsKey::of(&["hunter2"])),
            "Secret(<redacted>) CredentialsKey(…)"
        );
        assert_eq!(secret.reveal(), "hunter2");
    }

    #[test]
    fn keys_distinguish_credentials() {
        assert_eq!(CredentialsKey::of(&["a", "b"]), CredentialsKey::of(&["a", "b"]));
        assert_ne!(CredentialsKey::of(&["ab", "c"]), CredentialsKey::of(&["a", "bc"]));
        let key = CredentialsKey::of(&["a"]);
        assert_ne!(key.with("eu-west-1"), key.with("us-east-1"));
    }
}
