//! Removes known secret values, addresses and names from texts. Pure functions.
//!
//! Lists of allowed fields decide which texts a bundle has ([`super::allowed`]). Texts such as logs and messages of clouds can still repeat
//! a secret, an address or a name.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{Ipv4Addr, Ipv6Addr},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::hmac;
use serde_json::Value;

use super::redact::Addresses;

/// Shorter values are words such as `true` or `eu-west`, which also stand for something else.
const SHORTEST_SECRET: usize = 8;
/// Shorter lines of a value with several lines, and shorter values of a `providerSpec`, are words too.
const SHORTEST_LINE: usize = 12;
/// What stands for a secret value.
const SECRET: &str = "[secret]";
/// What stands for an address.
const ADDRESS: &str = "[address]";
/// Bytes of a pseudonym.
const PSEUDONYM_BYTES: usize = 5;

/// Whether names of objects are replaced.
#[derive(Clone)]
pub enum Names {
    /// They stay.
    Keep,
    /// Each is replaced by a word that depends on the name and on this key, so that equal names stay equal.
    Pseudonyms(hmac::Key),
}

impl Names {
    /// Pseudonyms that are the same in every bundle with the same key.
    pub fn pseudonyms(key: &[u8]) -> Self {
        Self::Pseudonyms(hmac::Key::new(hmac::HMAC_SHA256, key))
    }
}

/// Removes what a bundle must not contain from texts.
pub struct Scrub {
    /// The values by their first bytes, the longest first. One look at each place of a text finds all, however many there are.
    secrets: HashMap<[u8; SHORTEST_SECRET], Vec<String>>,
    addresses: Addresses,
    pseudonyms: BTreeMap<String, String>,
}

impl Scrub {
    /// Removes these secret values, addresses unless they stay, and these names unless they stay.
    pub fn new(
        secrets: impl IntoIterator<Item = String>,
        addresses: Addresses,
        names: &Names,
        known: BTreeSet<String>,
    ) -> Self {
        let mut all = BTreeSet::new();
        for secret in secrets.into_iter().flat_map(with_credentials) {
            // A value of several lines is printed line by line in logs, and in Base64 in objects.
            let lines = secret.lines().map(str::trim);
            let lines = lines.flat_map(|line| [Some(line), credential_in(line)]).flatten();
            for line in lines.filter(|line| line.len() >= SHORTEST_LINE) {
                all.extend(escaped(line));
                all.insert(line.to_owned());
            }
            all.extend(escaped(&secret));
            all.insert(BASE64_STANDARD.encode(&secret));
            all.insert(secret);
        }
        let mut secrets: HashMap<[u8; SHORTEST_SECRET], Vec<String>> = HashMap::new();
        for secret in all {
            if let Some(first) = secret.as_bytes().first_chunk() {
                secrets.entry(*first).or_default().push(secret);
            }
        }
        for same in secrets.values_mut() {
            same.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        }
        let pseudonyms = match names {
            Names::Keep => BTreeMap::new(),
            Names::Pseudonyms(key) => known.into_iter().map(|name| (name.clone(), pseudonym(key, &name))).collect(),
        };
        Self { secrets, addresses, pseudonyms }
    }

    /// The text without them.
    pub fn text(&self, text: &str) -> String {
        let mut text = self.without_secrets(text);
        if self.addresses == Addresses::Remove {
            text = replaced(&text, is_part_of_address, without_address);
        }
        if self.pseudonyms.is_empty() {
            return text;
        }
        replaced(&text, is_part_of_name, |word| self.renamed(word))
    }

    fn without_secrets(&self, text: &str) -> String {
        let mut result = String::with_capacity(text.len());
        let (mut copied, mut place) = (0, 0);
        while let Some(first) = text.as_bytes()[place..].first_chunk() {
            let here = self.secrets.get(first).into_iter().flatten();
            // A match begins and ends between characters, because both texts are UTF-8.
            match here.into_iter().find(|secret| text.as_bytes()[place..].starts_with(secret.as_bytes())) {
                Some(secret) => {
                    result.push_str(&text[copied..place]);
                    result.push_str(SECRET);
                    place += secret.len();
                    copied = place;
                }
                None => place += 1,
            }
        }
        result.push_str(&text[copied..]);
        result
    }

    /// The value with scrubbed texts. Keys stay: they are names of fields.
    pub fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(members) => {
                Value::Object(members.iter().map(|(key, value)| (key.clone(), self.value(value))).collect())
            }
            other => other.clone(),
        }
    }

    /// The pseudonym of a word, or of its parts between dots. `None` if none is a known name.
    fn renamed(&self, word: &str) -> Option<String> {
        let name = word.trim_matches(['.', '-']);
        if let Some(pseudonym) = self.pseudonyms.get(name) {
            return Some(word.replacen(name, pseudonym, 1));
        }
        if !word.contains('.') || !word.split('.').any(|part| self.pseudonyms.contains_key(part)) {
            return None;
        }
        let parts = word.split('.').map(|part| self.pseudonyms.get(part).map_or(part, String::as_str));
        Some(parts.collect::<Vec<_>>().join("."))
    }
}

/// The names of objects, and those in their references. They are what pseudonyms replace.
pub fn names_in(objects: &[Value]) -> BTreeSet<String> {
    let places = [
        "/metadata/name",
        "/metadata/namespace",
        "/involvedObject/name",
        "/spec/nodeName",
        "/spec/class/name",
        "/spec/providerID",
        "/secretRef/name",
        "/credentialsSecretRef/name",
        "/metadata/labels/node",
        "/metadata/labels/kubernetes.io~1hostname",
    ];
    let mut names = BTreeSet::new();
    for object in objects {
        names.extend(places.iter().filter_map(|place| object.pointer(place)?.as_str()));
        let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        names.extend(owners.filter_map(|owner| owner["name"].as_str()));
        let addresses = object["status"]["addresses"].as_array().into_iter().flatten();
        let hosts = addresses.filter(|address| address["type"] != "InternalIP" && address["type"] != "ExternalIP");
        names.extend(hosts.filter_map(|host| host["address"].as_str()));
    }
    // An id of a VM is a path: its last part is the name at the provider.
    let last_parts: Vec<&str> = names.iter().filter_map(|name| name.rsplit_once('/').map(|(_, last)| last)).collect();
    names.extend(last_parts);
    names.into_iter().filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned).collect()
}

/// The value in a line of YAML, such as a line of a kubeconfig, whose key says that it is a credential.
fn credential_in(line: &str) -> Option<&str> {
    let (key, value) = line.split_once(": ")?;
    is_credential(key.trim_start_matches("- ")).then(|| value.trim().trim_matches(['"', '\'']))
}

/// Whether the value of a key is a credential.
fn is_credential(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["token", "password", "secret", "key", "key-data"].iter().any(|end| key.ends_with(end))
}

/// The value, and the credentials in it if it is JSON, such as the key file of an account.
fn with_credentials(value: String) -> Vec<String> {
    let mut all = Vec::new();
    if let Ok(read) = serde_json::from_str(&value) {
        add_credentials(&read, &mut all);
    }
    all.push(value);
    all
}

fn add_credentials(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                match member {
                    // A member named only "key" is the name of something, such as of a label.
                    Value::String(text) if key != "key" && (key == "auth" || is_credential(key)) => {
                        found.push(text.clone());
                    }
                    _ => add_credentials(member, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| add_credentials(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The forms in which logs and messages print a value with quotes, backslashes, or characters outside ASCII.
fn escaped(value: &str) -> [String; 6] {
    let json = in_json(value);
    // Programs in Go also escape these characters in JSON.
    let json_of_go = json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    // A line of a log in JSON repeats a quoted value with a second level of quotes.
    let twice = in_json(&json);
    let of_path = percent_encoded(value, "$&+:=@");
    let of_query = percent_encoded(value, "");
    let of_form = of_query.replace("%20", "+");
    [json, json_of_go, twice, of_path, of_query, of_form]
}

/// The text between the quotes of a string in JSON. For printable texts, `%q` of Go gives the same.
fn in_json(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or_default().to_owned()
}

/// The text in an address, where letters, digits, `-_.~` and the `further` characters stay (RFC 3986).
fn percent_encoded(text: &str, further: &str) -> String {
    let stays = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(byte) || further.as_bytes().contains(byte);
    let encoded = |byte: u8| if stays(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encoded).collect()
}

fn pseudonym(key: &hmac::Key, name: &str) -> String {
    let tag = hmac::sign(key, name.as_bytes());
    tag.as_ref().iter().take(PSEUDONYM_BYTES).fold("name-".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// Replaces each longest run of characters of a kind for which `replacement` has something.
fn replaced(text: &str, is_part: fn(char) -> bool, replacement: impl Fn(&str) -> Option<String>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find(is_part) {
        result.push_str(&rest[..begin]);
        rest = &rest[begin..];
        let end = rest.find(|character| !is_part(character)).unwrap_or(rest.len());
        let word = &rest[..end];
        match replacement(word) {
            Some(other) => result.push_str(&other),
            None => result.push_str(word),
        }
        rest = &rest[end..];
    }
    result.push_str(rest);
    result
}

const fn is_part_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '-' || character == '.'
}

const fn is_part_of_address(character: char) -> bool {
    character.is_ascii_hexdigit() || character == '.' || character == ':'
}

/// The replacement of a word that is an address, with or without a port.
fn without_address(word: &str) -> Option<String> {
    let address = word.trim_end_matches(['.', ':']);
    let host = address.split_once(':').map_or(address, |(host, _)| host);
    (host.parse::<Ipv4Addr>().is_ok() || is_of_version_6(address))
        .then(|| format!("{ADDRESS}{}", &word[address.len()..]))
}

/// Paths of Rust in logs, such as `driver::ec2`, contain short addresses by chance.
fn is_of_version_6(word: &str) -> bool {
    let digits = word.chars().filter(char::is_ascii_hexdigit).count();
    digits >= 4 && word.chars().any(|character| character.is_ascii_digit()) && word.parse::<Ipv6Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn scrub(secrets: &[&str], names: &[&str]) -> Scrub {
        let secrets = secrets.iter().map(|&secret| secret.to_owned());
        let known = names.iter().map(|&name| name.to_owned()).collect();
        Scrub::new(secrets, Addresses::Remove, &Names::pseudonyms(b"key"), known)
    }

    #[rstest]
    #[case::a_word("error: s3cr3t-value was refused", "error: [secret] was refused")]
    #[case::in_base64("data: czNjcjN0LXZhbHVl", "data: [secret]")]
    #[case::a_line_of_several("line-two-of-it here", "[secret] here")]
    #[case::a_short_value_stays("abc", "abc")]
    fn pk_102_secret_values_are_removed_wherever_they_are(#[case] text: &str, #[case] expected: &str) {
        let scrub = scrub(&["s3cr3t-value", "line-one-of-it\nline-two-of-it\n", "abc"], &[]);
        assert_eq!(scrub.text(text), expected);
    }

    #[rstest]
    #[case::as_it_is(r#"pa"ss\word-1234-Ω & <x>"#)]
    #[case::in_json(r#"{"error":"pa\"ss\\word-1234-Ω & <x>"}"#)]
    #[case::in_json_of_go(r#"{"error":"pa\"ss\\word-1234-Ω \u0026 \u003cx\u003e"}"#)]
    #[case::quoted_by_go(r#"refused "pa\"ss\\word-1234-Ω & <x>""#)]
    #[case::quoted_by_go_in_json(r#"{"error":"refused \"pa\\\"ss\\\\word-1234-Ω & <x>\""}"#)]
    #[case::in_a_path("/pa%22ss%5Cword-1234-%CE%A9%20&%20%3Cx%3E/")]
    #[case::in_a_query("?p=pa%22ss%5Cword-1234-%CE%A9%20%26%20%3Cx%3E")]
    #[case::in_a_form("p=pa%22ss%5Cword-1234-%CE%A9+%26+%3Cx%3E")]
    fn pk_102_escaped_secret_values_are_removed(#[case] text: &str) {
        let value = r#"pa"ss\word-1234-Ω & <x>"#;
        for secret in [value.to_owned(), format!("a first line\n  {value}\n")] {
            let found = scrub(&[&secret], &[]).text(text);
            assert!(found.contains(SECRET) && !found.contains("word-1234"), "{found}");
        }
    }

    #[rstest]
    #[case::a_token("    token: eyJhbGciOi.x", "sent eyJhbGciOi.x", "sent [secret]")]
    #[case::quoted("- password: 'hunter-22-hunter'", "hunter-22-hunter", "[secret]")]
    #[case::a_key("client-key-data: LS0tLS1CRUdJTg==", "LS0tLS1CRUdJTg==", "[secret]")]
    #[case::no_credential("namespace: shoot--garden", "in shoot--garden", "in shoot--garden")]
    fn pk_102_credentials_in_a_kubeconfig_are_removed(#[case] line: &str, #[case] text: &str, #[case] expected: &str) {
        assert_eq!(scrub(&[&format!("kind: Config\n{line}\n")], &[]).text(text), expected);
    }

    #[rstest]
    #[case::of_an_account(r#"{"type": "service_account", "client_secret": "hunter-22-hunter"}"#)]
    #[case::of_registries(r#"{"auths":{"registry.example":{"auth":"hunter-22-hunter"}}}"#)]
    #[case::a_key_of_several_lines(r#"{"keys": [{"private_key": "-----BEGIN-----\nhunter-22-hunter\n"}]}"#)]
    fn pk_102_credentials_in_json_are_removed(#[case] value: &str) {
        let scrub = scrub(&[value], &[]);
        assert_eq!(scrub.text("sent hunter-22-hunter"), "sent [secret]");
        assert_eq!(scrub.text("of type service_account"), "of type service_account");
    }

    #[test]
    fn names_of_labels_in_json_stay() {
        let text = "dedicated-for-databases";
        assert_eq!(scrub(&[r#"[{"key": "dedicated-for-databases"}]"#], &[]).text(text), text);
    }

    #[rstest]
    #[case::of_version_4("dial 10.0.3.17:443: refused", "dial [address]: refused")]
    #[case::at_the_end("no route to 10.0.3.17.", "no route to [address].")]
    #[case::a_path_of_rust("machine_controllers::add::ec2: x", "machine_controllers::add::ec2: x")]
    #[case::of_version_6("dial [fd00::17]:443", "dial [[address]]:443")]
    #[case::a_time("at 2026-01-01T10:20:30.123Z", "at 2026-01-01T10:20:30.123Z")]
    #[case::a_version("kubelet v1.36.3", "kubelet v1.36.3")]
    #[case::a_digest("sha256:abcdef0123", "sha256:abcdef0123")]
    fn addresses_are_removed(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(scrub(&[], &[]).text(text), expected);
    }

    #[test]
    fn addresses_stay_if_that_is_asked_for() {
        let scrub = Scrub::new([], Addresses::Keep, &Names::Keep, BTreeSet::new());
        assert_eq!(scrub.text("10.0.3.17 m"), "10.0.3.17 m");
    }

    #[rstest]
    #[case::a_word("machine=pool-x1 drained", "pool-x1")]
    #[case::a_path("virtual:///ns/pool-x1", "pool-x1")]
    #[case::with_dots("node ip-10-0-3-17.ec2.internal left.", "ip-10-0-3-17.ec2.internal")]
    #[case::before_a_dot("event pool-x1.17f3ab", "pool-x1")]
    #[case::quoted("\"pool-x1\"", "pool-x1")]
    #[case::an_identity("pool-x1_5f3", "pool-x1")]
    fn pk_107_names_are_replaced_by_the_same_word_everywhere(#[case] text: &str, #[case] name: &str) {
        let scrub = scrub(&[], &["pool-x1", "ip-10-0-3-17.ec2.internal", "pool"]);
        let other = scrub.text(name);
        assert!(other.starts_with("name-") && other.len() == 15, "{other}");
        assert_eq!(scrub.text(text), text.replace(name, &other));
    }

    #[test]
    fn a_longer_word_is_no_name() {
        assert_eq!(scrub(&[], &["pool"]).text("pool-x2 pools"), "pool-x2 pools");
    }

    #[test]
    fn keys_of_objects_stay() {
        let value = json!({"name": {"name": "name"}});
        let found = scrub(&[], &["name"]).value(&value);
        assert!(found["name"]["name"].as_str().unwrap().starts_with("name-"), "{found}");
    }

    #[test]
    fn names_are_those_of_objects_and_references() {
        let machine = json!({
            "metadata": {"name": "m", "namespace": "ns", "labels": {"node": "n"}, "ownerReferences": [{"name": "set"}]},
            "spec": {"providerID": "aws:///eu/i-1", "class": {"name": "c"}},
            "status": {"addresses": [{"type": "Hostname", "address": "h.internal"}, {"type": "InternalIP", "address": "10.1.2.3"}]},
        });
        let found: Vec<String> = names_in(&[machine]).into_iter().collect();
        assert_eq!(found, ["c", "h.internal", "i-1", "m", "n", "ns", "set"]);
    }
}
