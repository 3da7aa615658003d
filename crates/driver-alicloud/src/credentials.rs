//! The credentials in the Secrets of a class.

use cloud_client::{CredentialsKey, Secret};
use machine_driver::{Code, SecretData, Status};

use crate::secret::{ACCESS_KEY_ID, ACCESS_KEY_SECRET, NO_ID, NO_SECRET, SECURITY_TOKEN};

/// An access key. `Debug` does not print its secret.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The id of the access key.
    pub id: String,
    /// The secret of the access key.
    pub secret: Secret,
    /// The token of temporary credentials.
    pub token: Option<Secret>,
    /// The key of these credentials in caches and request budgets.
    pub key: CredentialsKey,
}

impl Credentials {
    /// Reads the credentials in the Secrets of a class.
    ///
    /// # Errors
    /// `InvalidArgument` with the missing or invalid key, without its value.
    pub fn of(secret: &SecretData) -> Result<Self, Status> {
        let invalid = |message: &str| Status::new(Code::InvalidArgument, message);
        let id = filled(secret, &ACCESS_KEY_ID).ok_or_else(|| invalid(NO_ID))?;
        let of_id = filled(secret, &ACCESS_KEY_SECRET).ok_or_else(|| invalid(NO_SECRET))?;
        let token = filled(secret, &[SECURITY_TOKEN]);
        // Both become parts of headers.
        let is_visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_visible(id) || !token.is_none_or(is_visible) {
            return Err(invalid("the id of the access key and the token must be visible characters of ASCII"));
        }
        let key = CredentialsKey::of(&[id, of_id, token.unwrap_or_default()]);
        Ok(Self { id: id.to_owned(), secret: Secret::new(of_id), token: token.map(Secret::new), key })
    }
}

/// The value of the first key that is not blank.
fn filled<'s>(secret: &'s SecretData, keys: &[&str]) -> Option<&'s str> {
    let text = |key: &&str| std::str::from_utf8(secret.get(key)?).ok().map(str::trim);
    keys.iter().filter_map(text).find(|text| !text.is_empty())
}

#[cfg(test)]
pub mod tests {
    use rstest::rstest;

    use super::*;

    /// A Secret with these values.
    pub fn secret(values: &[(&str, &str)]) -> SecretData {
        let mut secret = SecretData::default();
        for (key, value) in values {
            secret.set(*key, value.as_bytes().to_vec());
        }
        secret
    }

    #[rstest]
    #[case::the_usual_keys(&[("alicloudAccessKeyID", "a"), ("alicloudAccessKeySecret", "b")], Ok(("a", "b")))]
    #[case::the_other_keys(&[("accessKeyID", " a\n"), ("accessKeySecret", "b\n")], Ok(("a", "b")))]
    #[case::the_first_wins(&[("alicloudAccessKeyID", "a"), ("accessKeyID", "x"), ("accessKeySecret", "b")], Ok(("a", "b")))]
    #[case::a_blank_one_does_not(&[("alicloudAccessKeyID", " "), ("accessKeyID", "a"), ("accessKeySecret", "b")], Ok(("a", "b")))]
    #[case::no_id(&[("accessKeySecret", "b")], Err(NO_ID))]
    #[case::no_secret(&[("accessKeyID", "a")], Err(NO_SECRET))]
    #[case::two_lines(&[("accessKeyID", "a\nb"), ("accessKeySecret", "b")], Err("the id of the access key and the token must be visible characters of ASCII"))]
    fn credentials_are_read(#[case] values: &[(&str, &str)], #[case] expected: Result<(&str, &str), &str>) {
        let read = Credentials::of(&secret(values));
        let read = read.as_ref().map(|read| (read.id.as_str(), read.secret.reveal()));
        assert_eq!(read.map_err(|status| status.message.as_str()), expected);
    }

    #[test]
    fn no_secret_is_shown() {
        let values = [("accessKeyID", "AK"), ("accessKeySecret", "hunter2"), ("securityToken", "swordfish")];
        let read = Credentials::of(&secret(&values)).unwrap();
        let shown = format!("{read:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("swordfish"), "{shown}");
    }
}
