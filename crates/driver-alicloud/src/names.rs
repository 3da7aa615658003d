//! The forms of regions and of ids of instances, which become parts of host names and provider ids.

/// The maximum number of characters of a name. A label of a host name has no more.
const LONGEST: usize = 63;

/// Whether a text has the form of a region or of the id of an instance: lower case letters, digits and hyphens, beginning with a letter.
pub fn is_name(text: &str) -> bool {
    text.len() <= LONGEST
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && !text.ends_with('-')
        && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// The name of an instance's Node: `izuf69zddmom11ci7est12z` for `i-uf69zddmom11ci7est12`. ECS gives the instance this host name.
#[cfg(feature = "driver")]
pub fn node_name(id: &str) -> String {
    format!("{}z", id.replacen('-', "z", 1))
}

/// The region and the id of an instance.
#[cfg(feature = "driver")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceLocation<'a> {
    pub region: &'a str,
    pub id: &'a str,
}

#[cfg(feature = "driver")]
impl<'a> InstanceLocation<'a> {
    /// Parses a provider id of the form `REGION.INSTANCE`. Cloud controllers may write `alicloud://` before it. `None` for any other text.
    pub fn of(provider_id: &'a str) -> Option<Self> {
        let id = provider_id.strip_prefix("alicloud://").unwrap_or(provider_id);
        let (region, id) = id.split_once('.')?;
        (is_name(region) && is_name(id)).then_some(Self { region, id })
    }

    /// The provider id.
    pub fn provider_id(self) -> String {
        format!("{}.{}", self.region, self.id)
    }
}

#[cfg(all(test, feature = "driver"))]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("cn-shanghai", true)]
    #[case("i-uf69zddmom11ci7est12", true)]
    #[case("", false)]
    #[case(" cn-shanghai", false)]
    #[case("CN-Shanghai", false)]
    #[case("cn-shanghai-", false)]
    #[case("a.b", false)]
    #[case("a/../b", false)]
    #[case("a123456789012345678901234567890123456789012345678901234567890123", false)]
    fn names(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(is_name(text), expected);
    }

    #[rstest]
    #[case::ours("cn-x.i-1", Some(("cn-x", "i-1")))]
    #[case::of_a_cloud_controller("alicloud://cn-x.i-1", Some(("cn-x", "i-1")))]
    #[case::no_region("i-1", None)]
    #[case::too_long("cn-x.i-1.i-2", None)]
    #[case::blanks("cn-x.i-1 ", None)]
    #[case::another_case("cn-x.I-1", None)]
    #[case::a_host("cn-x.evil/i-1", None)]
    #[case::another_cloud("aws:///eu-west-1/i-1", None)]
    #[case::nothing("", None)]
    fn a_provider_id_names_a_region_and_an_instance(#[case] id: &str, #[case] expected: Option<(&str, &str)>) {
        let location = InstanceLocation::of(id);
        assert_eq!(location.map(|location| (location.region, location.id)), expected);
        if let Some(location) = location {
            assert_eq!(InstanceLocation::of(&location.provider_id()), Some(location));
        }
    }

    #[test]
    fn a_node_has_the_host_name_of_its_instance() {
        assert_eq!(node_name("i-uf69zddmom11ci7est12"), "izuf69zddmom11ci7est12z");
        assert_eq!(node_name("i-a-b"), "iza-bz");
    }
}
