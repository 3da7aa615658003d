//! Digests: fingerprints of certificates, and keys of caches that must not contain secrets.

use std::fmt::Write;

use ring::{digest, hmac};

/// A keyed digest.
pub type Digest = [u8; 32];

/// SHA-256 as lower-case hex digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(64);
    for byte in digest::digest(&digest::SHA256, bytes).as_ref() {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// Makes digests that no other process can make, because each process has its own key.
pub struct Digester(hmac::Key);

impl Digester {
    /// A digester with this key.
    pub fn new(key: [u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }

    /// The digest of several parts. It depends on where each part ends.
    pub fn digest(&self, parts: &[&[u8]]) -> Digest {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_depends_on_where_each_part_ends() {
        let digester = Digester::new([7; 32]);
        assert_ne!(digester.digest(&[b"ab", b"c"]), digester.digest(&[b"a", b"bc"]));
        assert_eq!(digester.digest(&[b"ab", b"c"]), digester.digest(&[b"ab", b"c"]));
        assert_ne!(digester.digest(&[b"ab"]), Digester::new([8; 32]).digest(&[b"ab"]));
    }

    #[test]
    fn a_fingerprint_equals_that_of_other_tools() {
        assert_eq!(sha256_hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
