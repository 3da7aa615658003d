//! The forms of names that become parts of URLs and provider ids (RFC 1035). A name of another form is refused before any request.

/// The maximum number of characters of a name.
const LONGEST: usize = 63;

/// Whether a text has the form of the name of an instance, a zone, a region or an operation: lower case letters, digits and hyphens, beginning
/// with a letter.
pub fn is_name(text: &str) -> bool {
    text.len() <= LONGEST
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && !text.ends_with('-')
        && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// Whether a text has the form of the id of a project. An id may begin with the domain of its organisation, as in `example.com:project`.
#[cfg(feature = "driver")]
pub fn is_project(text: &str) -> bool {
    let (domain, id) = text.rsplit_once(':').map_or((None, text), |(domain, id)| (Some(domain), id));
    let is_label = |label: &str| {
        (1..=LONGEST).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    is_label(id) && domain.is_none_or(|domain| domain.split('.').all(is_label))
}

#[cfg(all(test, feature = "driver"))]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("europe-west1-b", true)]
    #[case("m", true)]
    #[case("", false)]
    #[case("1m", false)]
    #[case("m-", false)]
    #[case("M", false)]
    #[case("a.b", false)]
    #[case("a/../b", false)]
    #[case("a123456789012345678901234567890123456789012345678901234567890123", false)]
    fn names(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(is_name(text), expected);
    }

    #[rstest]
    #[case("my-project-1", true)]
    #[case("123456", true)]
    #[case("example.com:my-project", true)]
    #[case("", false)]
    #[case("..", false)]
    #[case("a/b", false)]
    #[case("a?b", false)]
    #[case(":p", false)]
    #[case("x..y:p", false)]
    fn projects(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(is_project(text), expected);
    }
}
