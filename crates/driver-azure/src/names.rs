//! The forms of names that become parts of URLs and resource ids. A name of another form is refused before any request. Names of Azure do not depend
//! on letter case, and Azure answers with ids in other letter cases than it was given.

/// The maximum number of characters of a VM's name (Linux).
#[cfg(feature = "driver")]
const LONGEST_VM: usize = 64;
/// The maximum number of characters of other names. No kind of resource has longer ones.
const LONGEST: usize = 90;

/// Whether a text can be the name of a resource or a resource group: letters, digits and `-._()`.
pub fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'(' | b')');
    // A name of dots would be another folder in a path.
    (1..=LONGEST).contains(&text.len()) && !text.ends_with('.') && text.bytes().all(is_allowed)
}

/// Whether a text can be the name of a region, such as `westeurope` or `West Europe`.
pub fn is_location(text: &str) -> bool {
    text.len() <= LONGEST && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b' ')
}

/// Whether a text can be the name of a VM, and the begin of the names of what belongs to it.
#[cfg(feature = "driver")]
pub fn is_vm_name(text: &str) -> bool {
    text.len() <= LONGEST_VM && is_name(text)
}

/// Whether a text can be the id of a subscription, a tenant or an application: letters, digits, hyphens and dots.
#[cfg(feature = "driver")]
pub fn is_account(text: &str) -> bool {
    is_name(text) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

/// The segments of a resource id, such as `/subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/images/I`. `None` for another text.
pub fn id_segments(id: &str) -> Option<Vec<&str>> {
    let segments: Vec<&str> = id.strip_prefix('/')?.trim_end_matches('/').split('/').collect();
    let is_id =
        segments.len() >= 2 && segments.len().is_multiple_of(2) && segments.iter().all(|segment| is_name(segment));
    is_id.then_some(segments)
}

/// The type of a resource from its id: the segment before the last one. `None` for a text that is no id of a resource of a provider.
pub fn id_type(id: &str) -> Option<&str> {
    let segments = id_segments(id)?;
    let has_provider = segments.iter().any(|segment| segment.eq_ignore_ascii_case("providers"));
    has_provider.then(|| segments.get(segments.len() - 2).copied()).flatten()
}

/// The name at the end of a resource id.
#[cfg(feature = "driver")]
pub fn last_segment(id: &str) -> &str {
    id.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("shoot--a--b", true)]
    #[case("My_Group.(1)", true)]
    #[case("", false)]
    #[case("..", false)]
    #[case("a/b", false)]
    #[case("a?b", false)]
    #[case("a b", false)]
    #[case("a%2fb", false)]
    fn names(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(is_name(text), expected);
    }

    const GROUP: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/capacityReservationGroups/c";

    #[rstest]
    #[case(GROUP, Some("capacityReservationGroups"))]
    #[case("/subscriptions/s/resourceGroups/g", None)]
    #[case("/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/x", None)]
    #[case("c", None)]
    #[case("/subscriptions/s/../g/providers/x/y/z", None)]
    fn an_id_has_a_type(#[case] id: &str, #[case] expected: Option<&str>) {
        assert_eq!(id_type(id), expected);
    }
}
