//! Durations in Go's syntax: `1h30m`, `500ms`, `0`.
//!
//! Source: Go `time.ParseDuration` and `Duration.String`. Values are signed nanoseconds, as in Go.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration in nanoseconds, parsed and printed in Go's syntax. May be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// The error for a text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a duration such as \"30s\", \"10m\" or \"1h30m\"")]
pub struct InvalidDuration;

const NANOSECOND: i64 = 1;
const MICROSECOND: i64 = 1_000 * NANOSECOND;
const MILLISECOND: i64 = 1_000 * MICROSECOND;
const SECOND: i64 = 1_000 * MILLISECOND;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

impl GoDuration {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// A duration of this number of seconds.
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(SECOND))
    }

    /// A duration of this number of minutes.
    pub const fn from_mins(minutes: i64) -> Self {
        Self(minutes.saturating_mul(MINUTE))
    }

    /// A duration of this number of hours.
    pub const fn from_hours(hours: i64) -> Self {
        Self(hours.saturating_mul(HOUR))
    }

    /// A duration of this number of nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// The length in nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Whether the duration is negative.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// The duration for timers. A negative duration becomes zero.
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// The duration for arithmetic with timestamps.
    pub const fn to_signed(self) -> jiff::SignedDuration {
        jiff::SignedDuration::from_nanos(self.0)
    }
}

impl From<Duration> for GoDuration {
    fn from(value: Duration) -> Self {
        Self(i64::try_from(value.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl FromStr for GoDuration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(InvalidDuration);
        }
        // Wider than i64, so that the lowest value can be parsed (Go uses a uint64 for this).
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let (value, tail) = leading_part(rest)?;
            total = total.saturating_add(value);
            rest = tail;
        }
        let signed = if negative { -total } else { total };
        i64::try_from(signed).map(Self).map_err(|_| InvalidDuration)
    }
}

/// Parses one number with its unit at the beginning. Returns its nanoseconds and the rest of the text.
fn leading_part(text: &str) -> Result<(i128, &str), InvalidDuration> {
    let whole_len = text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, mut rest) = text.split_at(whole_len);
    let mut fraction = "";
    if let Some(after_dot) = rest.strip_prefix('.') {
        let len = after_dot.bytes().take_while(u8::is_ascii_digit).count();
        (fraction, rest) = after_dot.split_at(len);
    }
    if whole.is_empty() && fraction.is_empty() {
        return Err(InvalidDuration);
    }
    let (unit, rest) = leading_unit(rest)?;
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| InvalidDuration)? };
    if whole > i128::from(u64::MAX) {
        return Err(InvalidDuration);
    }
    // Later digits stand for less than a nanosecond, even with the unit hour. Without them, the arithmetic is exact and
    // bounded.
    let fraction = &fraction[..fraction.len().min(18)];
    let fraction_value: i128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| InvalidDuration)? };
    let scale = 10_i128.pow(u32::try_from(fraction.len()).map_err(|_| InvalidDuration)?);
    Ok((whole * i128::from(unit) + fraction_value * i128::from(unit) / scale, rest))
}

fn leading_unit(text: &str) -> Result<(i64, &str), InvalidDuration> {
    // "ms" comes before "m", because the prefix "m" would match too.
    const UNITS: [(&str, i64); 8] = [
        ("ns", NANOSECOND),
        ("us", MICROSECOND),
        ("µs", MICROSECOND),
        ("μs", MICROSECOND),
        ("ms", MILLISECOND),
        ("s", SECOND),
        ("m", MINUTE),
        ("h", HOUR),
    ];
    UNITS.iter().find_map(|(name, value)| text.strip_prefix(name).map(|rest| (*value, rest))).ok_or(InvalidDuration)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let sign = if self.0 < 0 { "-" } else { "" };
        let nanos = self.0.unsigned_abs();
        let second = SECOND.unsigned_abs();
        f.write_str(sign)?;
        if nanos < second {
            let (unit, name) = match nanos {
                0..1_000 => (1, "ns"),
                1_000..1_000_000 => (1_000, "µs"),
                _ => (1_000_000, "ms"),
            };
            write_decimal(f, nanos / unit, nanos % unit, unit)?;
            return f.write_str(name);
        }
        let seconds = nanos / second;
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        write_decimal(f, seconds % 60, nanos % second, second)?;
        f.write_str("s")
    }
}

/// Writes `whole.fraction` without trailing zeros. `unit` is the number of parts of a whole.
fn write_decimal(f: &mut fmt::Formatter<'_>, whole: u64, part: u64, unit: u64) -> fmt::Result {
    write!(f, "{whole}")?;
    if part == 0 {
        return Ok(());
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{part:0width$}");
    write!(f, ".{}", digits.trim_end_matches('0'))
}

impl schemars::JsonSchema for GoDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string"})
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(|error| serde::de::Error::custom(format!("duration {text:?} {error}")))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::zero_needs_no_unit("0", 0)]
    #[case::hours_and_minutes("1h30m", 90 * MINUTE)]
    #[case::a_fraction("1.5h", 90 * MINUTE)]
    #[case::a_leading_dot(".5s", 500 * MILLISECOND)]
    #[case::a_trailing_dot("1.s", SECOND)]
    #[case::milliseconds_are_no_minutes("500ms", 500 * MILLISECOND)]
    #[case::both_micro_signs("1µs1μs", 2 * MICROSECOND)]
    #[case::negative("-1m", -MINUTE)]
    #[case::explicit_plus("+5s", 5 * SECOND)]
    #[case::most_negative("-9223372036854775808ns", i64::MIN)]
    fn a_go_duration_is_read(#[case] text: &str, #[case] nanos: i64) {
        assert_eq!(text.parse(), Ok(GoDuration(nanos)));
    }

    #[rstest]
    #[case::no_unit("5")]
    #[case::a_blank("5 minutes")]
    #[case::only_a_sign("-")]
    #[case::empty("")]
    #[case::a_day("1d")]
    #[case::only_a_dot(".s")]
    #[case::overflow("9223372036854775808ns")]
    #[case::huge("99999999999999999999999999999999999999999999h")]
    fn what_go_refuses_is_refused(#[case] text: &str) {
        assert_eq!(text.parse::<GoDuration>(), Err(InvalidDuration));
    }

    #[rstest]
    #[case(0, "0s")]
    #[case(5 * MINUTE, "5m0s")]
    #[case(90 * MINUTE, "1h30m0s")]
    #[case(SECOND + 257_159_844, "1.257159844s")]
    #[case(1_500_000, "1.5ms")]
    #[case(-MINUTE, "-1m0s")]
    #[case(1_100, "1.1µs")]
    fn a_duration_prints_as_in_go(#[case] nanos: i64, #[case] text: &str) {
        assert_eq!(GoDuration(nanos).to_string(), text);
    }
}
