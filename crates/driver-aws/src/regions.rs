//! Regions and the host names of their services.
//!
//! A region comes from a class or a provider id. A user must not be able to choose the host to which the driver sends requests: a region consists of
//! letters, digits and hyphens, and the host name ends with the suffix of the region's partition. Only the configuration of the process can name
//! another endpoint.

/// The maximum number of characters of a region.
const LONGEST: usize = 40;

/// Whether a text has the form of a region.
pub fn is_region(region: &str) -> bool {
    let allowed = |byte: u8| byte == b'-' || byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=LONGEST).contains(&region.len())
        && region.bytes().all(allowed)
        && !region.starts_with('-')
        && !region.ends_with('-')
}

/// The regions in botocore 1.44.
#[rustfmt::skip]
const REGIONS: [&str; 46] = [
    "af-south-1", "ap-east-1", "ap-east-2", "ap-northeast-1", "ap-northeast-2", "ap-northeast-3", "ap-south-1", "ap-south-2",
    "ap-southeast-1", "ap-southeast-2", "ap-southeast-3", "ap-southeast-4", "ap-southeast-5", "ap-southeast-6", "ap-southeast-7",
    "ca-central-1", "ca-west-1", "cn-north-1", "cn-northwest-1", "eu-central-1", "eu-central-2", "eu-isoe-west-1", "eu-north-1",
    "eu-south-1", "eu-south-2", "eu-west-1", "eu-west-2", "eu-west-3", "eusc-de-east-1", "il-central-1", "me-central-1",
    "me-south-1", "mx-central-1", "sa-east-1", "us-east-1", "us-east-2", "us-gov-east-1", "us-gov-west-1", "us-iso-east-1",
    "us-iso-west-1", "us-isob-east-1", "us-isob-west-1", "us-isof-east-1", "us-isof-south-1", "us-west-1", "us-west-2",
];

/// Whether a region is in the list of this version. AWS may have newer regions.
pub fn is_known(region: &str) -> bool {
    REGIONS.contains(&region)
}

/// The regions in the list of this version.
#[cfg(feature = "driver")]
pub fn known() -> impl Iterator<Item = &'static str> {
    REGIONS.into_iter()
}

/// Whether a name has the form of a zone of this region: the region and a letter. The name of a local zone has more words after the region.
#[cfg(feature = "driver")]
pub fn is_zone_of(region: &str, name: &str) -> bool {
    name.strip_prefix(region)
        .is_some_and(|rest| matches!(rest.as_bytes(), [letter] if letter.is_ascii_lowercase()) || rest.starts_with('-'))
}

/// The variant of AWS's endpoints.
#[cfg(feature = "driver")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Variant {
    /// Use endpoints with cryptography according to FIPS 140.
    pub fips: bool,
    /// Use endpoints with IPv4 and IPv6.
    pub dual_stack: bool,
}

/// The host name of a service in a region. The caller has checked the region with [`is_region`].
#[cfg(feature = "driver")]
pub fn host(service: &str, region: &str, variant: Variant) -> String {
    let (suffix, dual_stack) = suffixes(region);
    let fips = if variant.fips { "-fips" } else { "" };
    format!("{service}{fips}.{region}.{}", if variant.dual_stack { dual_stack } else { suffix })
}

/// The suffixes of host names in the partition of a region: of IPv4 endpoints, and of endpoints with IPv4 and IPv6.
#[cfg(feature = "driver")]
fn suffixes(region: &str) -> (&'static str, &'static str) {
    let partitions = [
        ("cn-", "amazonaws.com.cn", "api.amazonwebservices.com.cn"),
        ("eusc-", "amazonaws.eu", "api.amazonwebservices.eu"),
        ("us-iso-", "c2s.ic.gov", "api.aws.ic.gov"),
        ("us-isob-", "sc2s.sgov.gov", "api.aws.scloud"),
        ("eu-isoe-", "cloud.adc-e.uk", "api.cloud-aws.adc-e.uk"),
        ("us-isof-", "csp.hci.ic.gov", "api.aws.hci.ic.gov"),
    ];
    let found = partitions.into_iter().find(|(prefix, ..)| region.starts_with(prefix));
    found.map_or(("amazonaws.com", "api.aws"), |(_, suffix, dual_stack)| (suffix, dual_stack))
}

#[cfg(all(test, feature = "driver"))]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("eu-west-1", true)]
    #[case("us-gov-west-1", true)]
    #[case::a_host("evil.example.com/", false)]
    #[case::a_port("eu-west-1:8080", false)]
    #[case::a_path("eu-west-1/../x", false)]
    #[case::a_fragment("x#", false)]
    #[case::a_login("user@host", false)]
    #[case::a_line_break("eu-west-1\r\nhost", false)]
    #[case::upper_case("EU-WEST-1", false)]
    #[case::no_label("-", false)]
    #[case::nothing("", false)]
    #[case::too_long("a2345678901234567890123456789012345678901", false)]
    fn what_a_user_writes_is_a_region(#[case] region: &str, #[case] expected: bool) {
        assert_eq!(is_region(region), expected);
    }

    #[rstest]
    #[case("eu-west-1", Variant::default(), "ec2.eu-west-1.amazonaws.com")]
    #[case("cn-north-1", Variant::default(), "ec2.cn-north-1.amazonaws.com.cn")]
    #[case("us-gov-west-1", Variant::default(), "ec2.us-gov-west-1.amazonaws.com")]
    #[case("us-iso-east-1", Variant::default(), "ec2.us-iso-east-1.c2s.ic.gov")]
    #[case("us-isob-east-1", Variant::default(), "ec2.us-isob-east-1.sc2s.sgov.gov")]
    #[case("eusc-de-east-1", Variant::default(), "ec2.eusc-de-east-1.amazonaws.eu")]
    #[case("us-east-1", Variant { fips: true, dual_stack: false }, "ec2-fips.us-east-1.amazonaws.com")]
    #[case("us-east-1", Variant { fips: false, dual_stack: true }, "ec2.us-east-1.api.aws")]
    fn a_region_has_its_host(#[case] region: &str, #[case] variant: Variant, #[case] expected: &str) {
        assert_eq!(host("ec2", region, variant), expected);
        assert!(is_region(region));
    }
}
