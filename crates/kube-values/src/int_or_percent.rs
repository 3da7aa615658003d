//! `maxSurge` and `maxUnavailable`: a number of machines or a percentage of the replicas.
//!
//! The stored form is Kubernetes' int-or-string. Parsing accepts what the validation of the Go original accepts (`N%`, optionally with a sign). The
//! rollout arithmetic of the Go original accepts more texts, but its validation refuses these (spec/deployment-and-set §3.3). The rules of admission
//! decide which values may be written.

use std::num::IntErrorKind;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A number of machines, or a percentage of `replicas`. Validation refuses negative values. A stored negative value is used as in the Go original's
/// arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntOrPercent {
    /// A number of machines.
    Count(i32),
    /// A percentage of the replicas.
    Percent(i32),
}

/// The error for a stored int-or-string that is no [`IntOrPercent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidIntOrPercent {
    /// A string that is not a whole number and a percent sign.
    #[error("{NOT_A_PERCENTAGE}")]
    NotAPercentage,
    /// A number outside 32 bits.
    #[error("must fit a 32-bit integer")]
    TooLarge,
}

/// The message of Kubernetes for a string that is no percentage.
pub const NOT_A_PERCENTAGE: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";

/// The rounding of a fraction of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Up to the next integer (`maxSurge`).
    Up,
    /// Down to the previous integer (`maxUnavailable`).
    Down,
}

impl IntOrPercent {
    /// The number of machines for this number of replicas, within `i32`. Negative for a negative margin.
    pub fn resolve(self, replicas: i32, rounding: Rounding) -> i32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => {
                let product = i64::from(percent) * i64::from(replicas.max(0));
                let whole = match rounding {
                    Rounding::Up => -(-product).div_euclid(100),
                    Rounding::Down => product.div_euclid(100),
                };
                i32::try_from(whole).unwrap_or(if whole < 0 { i32::MIN } else { i32::MAX })
            }
        }
    }

    /// Whether this is `0` or `0%`.
    pub const fn is_zero(self) -> bool {
        matches!(self, Self::Count(0) | Self::Percent(0))
    }

    /// Whether this is less than zero.
    pub const fn is_negative(self) -> bool {
        matches!(self, Self::Count(..=-1) | Self::Percent(..=-1))
    }
}

impl TryFrom<&IntOrString> for IntOrPercent {
    type Error = InvalidIntOrPercent;

    /// Parses like the validation of the Go original: a percentage may have a sign.
    fn try_from(stored: &IntOrString) -> Result<Self, Self::Error> {
        match stored {
            IntOrString::Int(number) => Ok(Self::Count(*number)),
            IntOrString::String(text) => {
                let number = text.strip_suffix('%').ok_or(InvalidIntOrPercent::NotAPercentage)?;
                number.parse().map(Self::Percent).map_err(|error: std::num::ParseIntError| match error.kind() {
                    IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => InvalidIntOrPercent::TooLarge,
                    _ => InvalidIntOrPercent::NotAPercentage,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::surge_rounds_up(IntOrPercent::Percent(25), 10, Rounding::Up, 3)]
    #[case::unavailable_rounds_down(IntOrPercent::Percent(25), 10, Rounding::Down, 2)]
    #[case::a_count_is_a_count(IntOrPercent::Count(4), 1, Rounding::Down, 4)]
    #[case::nothing_of_nothing(IntOrPercent::Percent(50), 0, Rounding::Up, 0)]
    #[case::no_overflow(IntOrPercent::Percent(i32::MAX), i32::MAX, Rounding::Up, i32::MAX)]
    #[case::no_underflow(IntOrPercent::Percent(i32::MIN), i32::MAX, Rounding::Down, i32::MIN)]
    #[case::a_negative_surge_rounds_up_too(IntOrPercent::Percent(-5), 10, Rounding::Up, 0)]
    #[case::a_negative_unavailable_rounds_down_too(IntOrPercent::Percent(-5), 10, Rounding::Down, -1)]
    #[case::a_negative_count(IntOrPercent::Count(-2), 1, Rounding::Up, -2)]
    fn a_share_is_resolved(
        #[case] value: IntOrPercent,
        #[case] replicas: i32,
        #[case] rounding: Rounding,
        #[case] machines: i32,
    ) {
        assert_eq!(value.resolve(replicas, rounding), machines);
    }

    #[rstest]
    #[case::a_number(IntOrString::Int(3), Ok(IntOrPercent::Count(3)))]
    #[case::a_percentage(IntOrString::String("30%".into()), Ok(IntOrPercent::Percent(30)))]
    #[case::negative(IntOrString::Int(-1), Ok(IntOrPercent::Count(-1)))]
    #[case::no_sign(IntOrString::String("5".into()), Err(InvalidIntOrPercent::NotAPercentage))]
    #[case::negative_percentage(IntOrString::String("-5%".into()), Ok(IntOrPercent::Percent(-5)))]
    #[case::a_percentage_with_a_plus(IntOrString::String("+5%".into()), Ok(IntOrPercent::Percent(5)))]
    #[case::a_sign_alone(IntOrString::String("-%".into()), Err(InvalidIntOrPercent::NotAPercentage))]
    #[case::a_blank(IntOrString::String(" 5%".into()), Err(InvalidIntOrPercent::NotAPercentage))]
    #[case::a_fraction(IntOrString::String("1.5%".into()), Err(InvalidIntOrPercent::NotAPercentage))]
    #[case::too_large(IntOrString::String("99999999999%".into()), Err(InvalidIntOrPercent::TooLarge))]
    fn a_stored_value_is_parsed(
        #[case] stored: IntOrString,
        #[case] parsed: Result<IntOrPercent, InvalidIntOrPercent>,
    ) {
        assert_eq!(IntOrPercent::try_from(&stored), parsed);
    }
}
