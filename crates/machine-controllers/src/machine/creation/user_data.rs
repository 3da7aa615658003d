//! User data: which placeholders it has, and how they are filled in.
//!
//! Pure. Source: spec/machine-controller §11.1; decisions.md 33.

use crate::machine::observation::UserData;
use machine_driver::SecretData;

const TOKEN: &str = "<<BOOTSTRAP_TOKEN>>";
const TOKEN_ENCODED: &str = "%3C%3CBOOTSTRAP_TOKEN%3E%3E";
const NAME: &str = "<<MACHINE_NAME>>";
const NAME_ENCODED: &str = "%3C%3CMACHINE_NAME%3E%3E";

/// Whether the user data in a class's Secrets needs a bootstrap token. `None` stands for a class that names no Secret.
pub fn wants(secrets: Option<&SecretData>) -> UserData {
    let Some(secrets) = secrets else { return UserData::NotNamed };
    match secrets.get(SecretData::USER_DATA) {
        None => UserData::KeyMissing,
        Some(data) if holds(data, TOKEN) || holds(data, TOKEN_ENCODED) => UserData::NeedsToken,
        Some(_) => UserData::WithoutToken,
    }
}

/// The Secrets with the placeholders of their user data replaced; the originals are not touched.
#[must_use]
pub fn filled_in(secrets: &SecretData, machine: &str, token: Option<&str>) -> SecretData {
    let mut filled = secrets.clone();
    let Some(data) = secrets.get(SecretData::USER_DATA) else { return filled };
    let mut data = replace(data, NAME, NAME_ENCODED, machine);
    if let Some(token) = token {
        data = replace(&data, TOKEN, TOKEN_ENCODED, token);
    }
    filled.set(SecretData::USER_DATA, data);
    filled
}

/// Replaces all plain placeholders. Only if there is none, all URL-encoded placeholders are replaced by the URL-encoded
/// value. Works on bytes: user data may have parts that are not UTF-8.
fn replace(data: &[u8], plain: &str, encoded: &str, value: &str) -> Vec<u8> {
    if holds(data, plain) {
        with_all_replaced(data, plain, value)
    } else {
        with_all_replaced(data, encoded, &url_encoded(value))
    }
}

fn holds(data: &[u8], part: &str) -> bool {
    next(data, part).is_some()
}

/// The position of the first occurrence of this part.
fn next(data: &[u8], part: &str) -> Option<usize> {
    data.windows(part.len()).position(|window| window == part.as_bytes())
}

fn with_all_replaced(data: &[u8], part: &str, value: &str) -> Vec<u8> {
    let (mut rest, mut all) = (data, Vec::with_capacity(data.len()));
    while let Some(place) = next(rest, part) {
        all.extend_from_slice(&rest[..place]);
        all.extend_from_slice(value.as_bytes());
        rest = &rest[place + part.len()..];
    }
    all.extend_from_slice(rest);
    all
}

/// Go's `url.QueryEscape`.
fn url_encoded(text: &str) -> String {
    use std::fmt::Write;
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            // Writing to a String can't fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn secrets(user_data: &str) -> SecretData {
        let mut secrets = SecretData::default();
        secrets.set(SecretData::USER_DATA, user_data.as_bytes().to_vec());
        secrets
    }

    #[rstest]
    #[case::mc_094_two_placeholders("a <<BOOTSTRAP_TOKEN>> b <<BOOTSTRAP_TOKEN>>", "a i.s b i.s")]
    #[case::mc_095_only_the_encoded_one("x=%3C%3CBOOTSTRAP_TOKEN%3E%3E", "x=i.s")]
    #[case::the_encoded_one_stays_beside_a_plain_one(
        "<<BOOTSTRAP_TOKEN>> %3C%3CBOOTSTRAP_TOKEN%3E%3E",
        "i.s %3C%3CBOOTSTRAP_TOKEN%3E%3E"
    )]
    #[case::mc_096_none("plain", "plain")]
    #[case::the_name("<<MACHINE_NAME>>", "m 1")]
    #[case::the_encoded_name("%3C%3CMACHINE_NAME%3E%3E", "m+1")]
    fn placeholders_are_replaced(#[case] before: &str, #[case] after: &str) {
        let original = secrets(before);
        let filled = filled_in(&original, "m 1", Some("i.s"));
        assert_eq!(filled.get(SecretData::USER_DATA), Some(after.as_bytes()));
        assert_eq!(original.get(SecretData::USER_DATA), Some(before.as_bytes()));
    }

    #[test]
    fn placeholders_beside_bytes_that_are_no_utf_8_are_replaced_too() {
        let mut odd = SecretData::default();
        odd.set(SecretData::USER_DATA, b"# f\xfcr <<MACHINE_NAME>>\n<<BOOTSTRAP_TOKEN>>\xff".to_vec());
        assert_eq!(wants(Some(&odd)), UserData::NeedsToken);
        let filled = filled_in(&odd, "m", Some("i.s"));
        assert_eq!(filled.get(SecretData::USER_DATA), Some(b"# f\xfcr m\ni.s\xff".as_slice()));
    }

    #[rstest]
    #[case::nothing("", "")]
    #[case::shorter_than_a_placeholder("<<", "<<")]
    #[case::a_placeholder_that_is_cut("<<MACHINE_NAME>", "<<MACHINE_NAME>")]
    #[case::one_in_another("<<<<MACHINE_NAME>>>>", "<<m>>")]
    fn text_that_is_no_placeholder_stays(#[case] before: &str, #[case] after: &str) {
        let filled = filled_in(&secrets(before), "m", Some("i.s"));
        assert_eq!(filled.get(SecretData::USER_DATA), Some(after.as_bytes()));
    }

    #[rstest]
    #[case::no_secret_at_all(None, UserData::NotNamed)]
    #[case::mc_046_no_user_data(Some(SecretData::default()), UserData::KeyMissing)]
    #[case::mc_096_no_placeholder(Some(secrets("x")), UserData::WithoutToken)]
    #[case::a_placeholder(Some(secrets("<<BOOTSTRAP_TOKEN>>")), UserData::NeedsToken)]
    fn user_data_asks_for(#[case] secrets: Option<SecretData>, #[case] wanted: UserData) {
        assert_eq!(wants(secrets.as_ref()), wanted);
    }
}
