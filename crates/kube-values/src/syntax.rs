//! The syntax of names, labels and annotation keys, with the messages of the API machinery.
//!
//! Source: k8s.io/apimachinery/pkg/util/validation (v0.36). A check returns every objection as a finished text, so that a finding is equal to one of
//! the API server. All texts are constants: a list of thousands of bad names needs no memory for them.

use std::ops::Deref;

/// The longest DNS subdomain, in bytes.
const SUBDOMAIN_MAX: usize = 253;
/// The longest name part of a qualified name, and the longest label value, in bytes.
const NAME_MAX: usize = 63;

macro_rules! subdomain_text {
    () => {
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
    };
}

macro_rules! name_part_text {
    () => {
        "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
    };
}

const SUBDOMAIN_TEXT: &str = subdomain_text!();
const SUBDOMAIN_LENGTH_TEXT: &str = "must be no more than 253 bytes";
const PREFIX_TEXT: &str = concat!("prefix part ", subdomain_text!());
const PREFIX_LENGTH_TEXT: &str = "prefix part must be no more than 253 bytes";
const QUALIFIED_NAME_TEXT: &str = concat!(
    "a qualified name ",
    name_part_text!(),
    " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
);
const NAME_PART_TEXT: &str = concat!("name part ", name_part_text!());
const NAME_PART_LENGTH_TEXT: &str = "name part must be no more than 63 bytes";
const LABEL_VALUE_TEXT: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const LABEL_VALUE_LENGTH_TEXT: &str = "must be no more than 63 bytes";

/// The objections to a text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Objections {
    texts: [&'static str; Self::MAX],
    number: usize,
}

impl Objections {
    /// The maximum number of objections to one text: two for the prefix of a qualified name, and two for its name.
    const MAX: usize = 4;

    fn add_if(&mut self, is_wrong: bool, text: &'static str) {
        if is_wrong && let Some(free) = self.texts.get_mut(self.number) {
            *free = text;
            self.number += 1;
        }
    }
}

impl Deref for Objections {
    type Target = [&'static str];

    fn deref(&self) -> &Self::Target {
        self.texts.get(..self.number).unwrap_or_default()
    }
}

impl IntoIterator for Objections {
    type Item = &'static str;
    type IntoIter = std::iter::Take<std::array::IntoIter<&'static str, { Self::MAX }>>;

    fn into_iter(self) -> Self::IntoIter {
        self.texts.into_iter().take(self.number)
    }
}

/// The objections to a DNS-1123 subdomain, such as the name of an object.
pub fn dns1123_subdomain(text: &str) -> Objections {
    let mut objections = Objections::default();
    objections.add_if(text.len() > SUBDOMAIN_MAX, SUBDOMAIN_LENGTH_TEXT);
    objections.add_if(!is_subdomain(text), SUBDOMAIN_TEXT);
    objections
}

/// The objections to a qualified name, such as the key of a label or taint.
pub fn qualified_name(text: &str) -> Objections {
    let mut objections = Objections::default();
    // A search in bytes is several times as fast as a search in characters, and these texts are short and many.
    let slash = text.bytes().position(|byte| byte == b'/');
    let name = match slash.map(|at| (&text[..at], &text[at + 1..])) {
        None => text,
        Some((prefix, name)) if !name.bytes().any(|byte| byte == b'/') => {
            if prefix.is_empty() {
                objections.add_if(true, "prefix part must be non-empty");
            } else {
                objections.add_if(prefix.len() > SUBDOMAIN_MAX, PREFIX_LENGTH_TEXT);
                objections.add_if(!is_subdomain(prefix), PREFIX_TEXT);
            }
            name
        }
        Some(_) => {
            objections.add_if(true, QUALIFIED_NAME_TEXT);
            return objections;
        }
    };
    objections.add_if(name.is_empty(), "name part must be non-empty");
    objections.add_if(name.len() > NAME_MAX, NAME_PART_LENGTH_TEXT);
    objections.add_if(!is_name_part(name), NAME_PART_TEXT);
    objections
}

/// Whether there is no objection to a qualified name.
pub fn is_qualified_name(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    name.len() <= NAME_MAX
        && is_name_part(name)
        && prefix.is_none_or(|prefix| prefix.len() <= SUBDOMAIN_MAX && is_subdomain(prefix))
}

/// The objections to a label value. The empty string is valid.
pub fn label_value(text: &str) -> Objections {
    let mut objections = Objections::default();
    objections.add_if(text.len() > NAME_MAX, LABEL_VALUE_LENGTH_TEXT);
    objections.add_if(!text.is_empty() && !is_name_part(text), LABEL_VALUE_TEXT);
    objections
}

/// The bytes of a part of a subdomain. Tables are fast, and every key and label of an object is checked.
const SUBDOMAIN_BYTES: [bool; 256] = table(b"abcdefghijklmnopqrstuvwxyz0123456789-");
/// The bytes of a name part or a label value.
const NAME_BYTES: [bool; 256] = table(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.");

const fn table(allowed: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut at = 0;
    while at < allowed.len() {
        table[allowed[at] as usize] = true;
        at += 1;
    }
    table
}

fn is_subdomain(text: &str) -> bool {
    text.as_bytes().split(|byte| *byte == b'.').all(|bytes| {
        let edge = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(|byte| SUBDOMAIN_BYTES[usize::from(*byte)])
    })
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(|byte| NAME_BYTES[usize::from(*byte)])
}

/// The known name that a user may have meant by `name`: a name that differs only by case, or else the name with the fewest different letters, at most
/// two.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let length = name.chars().count();
    let distance = |known: &str| match known.chars().count().abs_diff(length) {
        _ if known.eq_ignore_ascii_case(name) => 0,
        // Each additional or missing letter is a difference, so that a much longer name is not compared letter by letter.
        difference if difference > 2 => difference,
        _ => edit_distance(known, name),
    };
    known.map(|known| (distance(known), known)).filter(|(distance, _)| *distance <= 2).min().map(|(_, known)| known)
}

fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (above, a) in left.chars().enumerate() {
        let mut next = vec![above + 1];
        let mut last = above + 1;
        for (b, pair) in right.iter().zip(row.windows(2)) {
            let (diagonal, up) = (pair[0], pair[1]);
            last = (diagonal + usize::from(a != *b)).min(up + 1).min(last + 1);
            next.push(last);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_plain_name("c1", true)]
    #[case::dots("a.b-c.d", true)]
    #[case::an_upper_case_letter("C1", false)]
    #[case::an_underscore("c_1", false)]
    #[case::a_leading_dash("-a", false)]
    #[case::two_dots("a..b", false)]
    #[case::empty("", false)]
    fn a_subdomain_is_checked(#[case] text: &str, #[case] good: bool) {
        assert_eq!(dns1123_subdomain(text).is_empty(), good);
    }

    #[rstest]
    #[case::a_name("MyName", &[])]
    #[case::a_prefix("example.com/My.Name_1", &[])]
    #[case::an_empty_prefix("/a", &["prefix part must be non-empty"])]
    #[case::a_blank("bad key!", &["name part must consist of"])]
    #[case::nothing_after_the_slash("a/", &["name part must be non-empty", "name part must consist of"])]
    #[case::two_slashes("a/b/c", &["a qualified name must consist of"])]
    #[case::a_bad_prefix("A/b", &["prefix part a lowercase RFC 1123 subdomain"])]
    fn a_qualified_name_is_checked(#[case] text: &str, #[case] expected: &[&str]) {
        let objections = qualified_name(text);
        assert_eq!(objections.len(), expected.len(), "{objections:?}");
        assert_eq!(is_qualified_name(text), objections.is_empty());
        for (objection, start) in objections.into_iter().zip(expected) {
            assert!(objection.starts_with(start), "{objection}");
        }
    }

    #[test]
    fn a_name_part_may_have_63_bytes_and_no_more() {
        assert!(qualified_name(&"x".repeat(63)).is_empty());
        assert_eq!(*qualified_name(&"x".repeat(64)), [NAME_PART_LENGTH_TEXT]);
        assert_eq!(*label_value(&"x".repeat(64)), [LABEL_VALUE_LENGTH_TEXT]);
        let told = |text: &str| text.ends_with(&format!("must be no more than {NAME_MAX} bytes"));
        assert!(told(NAME_PART_LENGTH_TEXT) && told(LABEL_VALUE_LENGTH_TEXT));
    }

    #[test]
    fn a_subdomain_may_have_253_bytes_and_no_more() {
        assert!(dns1123_subdomain(&"x".repeat(253)).is_empty());
        assert_eq!(*dns1123_subdomain(&"x".repeat(254)), [SUBDOMAIN_LENGTH_TEXT]);
        assert_eq!(*qualified_name(&format!("{}/a", "x".repeat(254))), [PREFIX_LENGTH_TEXT]);
        let told = |text: &str| text.ends_with(&format!("must be no more than {SUBDOMAIN_MAX} bytes"));
        assert!(told(SUBDOMAIN_LENGTH_TEXT) && told(PREFIX_LENGTH_TEXT));
    }

    #[test]
    fn all_objections_to_one_name_are_returned() {
        let name = format!("{}/{}", "X".repeat(254), "!".repeat(64));
        assert_eq!(*qualified_name(&name), [PREFIX_LENGTH_TEXT, PREFIX_TEXT, NAME_PART_LENGTH_TEXT, NAME_PART_TEXT]);
    }

    #[test]
    fn a_label_value_may_be_empty() {
        assert!(label_value("").is_empty());
        assert_eq!(*label_value("x y"), [LABEL_VALUE_TEXT]);
    }

    #[rstest]
    #[case("a", "a", 0)]
    #[case("drain", "train", 1)]
    #[case("abc", "", 3)]
    #[case("kitten", "sitting", 3)]
    fn letters_that_differ_are_counted(#[case] left: &str, #[case] right: &str, #[case] distance: usize) {
        assert_eq!(edit_distance(left, right), distance);
    }
}
