//! Tokens of service accounts: JSON Web Tokens (ES256), signed with a key of the server.
//!
//! The key is stored in the data folder, so that tokens are valid after a restart. A token is not valid if its account was deleted, even if a new
//! account has the same name.
//! Source: spec/extension-apiserver §6.3 no. 9.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use rustls::crypto::ring;
use rustls_pki_types::alg_id;
use serde_json::{Value, json};

use super::{access::User, files, object::text};

const KEY_FILE: &str = "service-account.key";
const ISSUER: &str = "https://kubernetes.default.svc";
const HEADER: &str = r#"{"alg":"ES256","typ":"JWT"}"#;
/// The bytes of a number of P-256.
const NUMBER: usize = 32;

/// Signs and verifies tokens.
#[derive(Default)]
pub(super) struct AccountTokens {
    folder: Option<PathBuf>,
    /// The key is read or created with the first token that is signed or verified.
    key: OnceLock<Option<KeyPair>>,
}

/// The account of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// UID of the account.
    pub(super) uid: &'a str,
}

impl AccountTokens {
    /// Uses a key that is stored in a folder. Without a folder the key ends with the process.
    pub(super) fn in_folder(folder: Option<PathBuf>) -> Self {
        Self { folder, key: OnceLock::new() }
    }

    fn key(&self) -> Option<&KeyPair> {
        let made = self.key.get_or_init(|| match load(self.folder.as_deref()) {
            Ok(key) => Some(key),
            Err(why) => {
                tracing::error!(error = why, "the development server has no key for tokens of service accounts");
                None
            }
        });
        made.as_ref()
    }

    /// Signs a token for an account. `None` without a key.
    pub(super) fn issue(&self, holder: &Holder<'_>, id: &str, now: Timestamp, until: Timestamp) -> Option<String> {
        let claims = json!({
            "iss": ISSUER, "aud": [ISSUER], "sub": format!("system:serviceaccount:{}:{}", holder.namespace, holder.name),
            "iat": now.as_second(), "nbf": now.as_second(), "exp": until.as_second(), "jti": id,
            "kubernetes.io": {
                "namespace": holder.namespace, "serviceaccount": {"name": holder.name, "uid": holder.uid},
            },
        });
        let encode = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
        let signed = format!("{}.{}", encode(HEADER), encode(&claims.to_string()));
        let signature = self.key()?.sign(signed.as_bytes()).ok()?;
        Some(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(numbers_of(&signature)?)))
    }

    /// The user of a token. `None` if the signature or the time is not valid, or the account is another one. `uid_of` returns the UID of the
    /// account with a namespace and a name.
    pub(super) fn user(
        &self,
        token: &str,
        now: Timestamp,
        uid_of: impl FnOnce(&str, &str) -> Option<String>,
    ) -> Option<User> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).ok();
        let header: Value = serde_json::from_slice(&decode(header)?).ok()?;
        if header["alg"] != "ES256" || !self.signed(signed.as_bytes(), &decode(signature)?) {
            return None;
        }
        let claims: Value = serde_json::from_slice(&decode(claims)?).ok()?;
        let holds = claims["nbf"].as_i64()? <= now.as_second() && now.as_second() < claims["exp"].as_i64()?;
        let account = &claims["kubernetes.io"];
        let (namespace, name) = (text(account, "/namespace"), text(account, "/serviceaccount/name"));
        let same = uid_of(namespace, name)? == text(account, "/serviceaccount/uid");
        (holds && same).then(|| User::service_account(namespace, name))
    }

    fn signed(&self, message: &[u8], numbers: &[u8]) -> bool {
        let Some((key, signature)) = self.key().zip(der_of(numbers)) else { return false };
        let known = ring::default_provider().signature_verification_algorithms;
        let wanted = known.all.iter().find(|algorithm| {
            algorithm.public_key_alg_id() == alg_id::ECDSA_P256 && algorithm.signature_alg_id() == alg_id::ECDSA_SHA256
        });
        wanted.is_some_and(|algorithm| algorithm.verify_signature(key.der_bytes(), message, &signature).is_ok())
    }
}

fn load(folder: Option<&Path>) -> Result<KeyPair, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let Some(folder) = folder else { return KeyPair::generate().map_err(|error| text(&error)) };
    let path = folder.join(KEY_FILE);
    match std::fs::read_to_string(&path) {
        Ok(pem) => KeyPair::from_pem(&pem).map_err(|error| format!("{}: {error}", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key = KeyPair::generate().map_err(|error| text(&error))?;
            files::write_private(&path, &key.serialize_pem()).map_err(|error| text(&error))?;
            Ok(key)
        }
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Converts a signature from DER (RFC 3279 §2.2.3) to the format of JSON Web Tokens: two numbers.
fn numbers_of(der: &[u8]) -> Option<Vec<u8>> {
    let integer = |bytes: &mut &[u8]| -> Option<[u8; NUMBER]> {
        let [0x02, length, rest @ ..] = *bytes else { return None };
        let (number, after) = rest.split_at_checked(usize::from(*length))?;
        *bytes = after;
        let digits = &number[number.iter().position(|byte| *byte != 0).unwrap_or(number.len())..];
        let mut padded = [0; NUMBER];
        padded[NUMBER.checked_sub(digits.len())?..].copy_from_slice(digits);
        Some(padded)
    };
    let [0x30, _, rest @ ..] = der else { return None };
    let mut rest = rest;
    let numbers = [integer(&mut rest)?, integer(&mut rest)?].concat();
    rest.is_empty().then_some(numbers)
}

/// Converts a signature from the format of JSON Web Tokens to DER.
fn der_of(numbers: &[u8]) -> Option<Vec<u8>> {
    let integer = |number: &[u8]| {
        let digits = &number[number.iter().position(|byte| *byte != 0).unwrap_or(number.len() - 1)..];
        // Without the zero byte a number whose first bit is set would be negative.
        let sign: &[u8] = if digits[0] & 0x80 == 0 { &[] } else { &[0] };
        let length = u8::try_from(sign.len() + digits.len()).ok()?;
        Some([&[0x02, length], sign, digits].concat())
    };
    if numbers.len() != 2 * NUMBER {
        return None;
    }
    let body = [integer(&numbers[..NUMBER])?, integer(&numbers[NUMBER..])?].concat();
    Some([vec![0x30, u8::try_from(body.len()).ok()?], body].concat())
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rstest::rstest;

    use super::*;

    const HOLDER: Holder<'_> = Holder { namespace: "a", name: "robot", uid: "u" };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    #[rstest]
    #[case::good(500, Some("u"), true)]
    #[case::expired(700, Some("u"), false)]
    #[case::too_early(50, Some("u"), false)]
    #[case::the_account_is_another(500, Some("v"), false)]
    #[case::the_account_is_gone(500, None, false)]
    fn a_token_is_valid_for_its_time_and_its_account(#[case] now: i64, #[case] uid: Option<&str>, #[case] good: bool) {
        let tokens = AccountTokens::default();
        let token = tokens.issue(&HOLDER, "id", at(100), at(600)).unwrap();
        let user = tokens.user(&token, at(now), |namespace, name| {
            assert_eq!((namespace, name), ("a", "robot"));
            uid.map(str::to_owned)
        });
        assert_eq!(user, good.then(|| User::service_account("a", "robot")));
    }

    #[test]
    fn tokens_with_a_foreign_or_missing_signature_are_not_valid() {
        let (tokens, others) = (AccountTokens::default(), AccountTokens::default());
        let known = |_: &str, _: &str| Some("u".to_owned());
        let foreign = others.issue(&HOLDER, "id", at(100), at(600)).unwrap();
        assert_eq!(tokens.user(&foreign, at(500), known), None);
        let own = tokens.issue(&HOLDER, "id", at(100), at(600)).unwrap();
        let (signed, signature) = own.rsplit_once('.').unwrap();
        let claims = signed.split_once('.').unwrap().1;
        let none = BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"none","typ":"JWT"}"#);
        for forged in [
            format!("{none}.{claims}."),
            format!("{none}.{claims}.{signature}"),
            format!("{signed}x.{signature}"),
            format!("{signed}.{}", &signature[1..]),
            "no.token".to_owned(),
            String::new(),
        ] {
            assert_eq!(tokens.user(&forged, at(500), known), None, "{forged}");
        }
    }

    #[test]
    fn the_key_is_stored_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let first = AccountTokens::in_folder(Some(folder.path().to_path_buf()));
        let token = first.issue(&HOLDER, "id", at(100), at(600)).unwrap();
        let second = AccountTokens::in_folder(Some(folder.path().to_path_buf()));
        assert!(second.user(&token, at(500), |_, _| Some("u".to_owned())).is_some());
    }

    #[test]
    fn signatures_are_equal_after_both_conversions() {
        for lead in [0x00, 0x01, 0x7f, 0x80, 0xff] {
            let numbers: Vec<u8> = (0..64).map(|at| if at % 32 == 0 { lead } else { at }).collect();
            assert_eq!(numbers_of(&der_of(&numbers).unwrap()).unwrap(), numbers);
        }
        assert_eq!(der_of(&[0; 63]), None);
        assert_eq!(numbers_of(&[0x30, 0x02, 0x02]), None);
    }
}
