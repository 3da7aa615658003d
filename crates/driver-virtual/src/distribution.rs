//! Distributions of latencies: constant, uniform, normal or log-normal (spec/providers §7.2 `latency`).

use std::{f64::consts::TAU, time::Duration};

use rand::Rng;
use serde_json::Value;

use super::{
    draw::unit,
    reader::{Section, duration, duration_at, object},
};
use kube_values::field::{FieldPath, Findings};

/// The 99th percentile of the standard normal distribution.
const NORMAL_P99: f64 = 2.326_347_874_040_841;

/// A distribution of durations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Always the same duration.
    Constant(Duration),
    /// Equally distributed between two bounds.
    Uniform {
        /// The shortest.
        min: Duration,
        /// The longest.
        max: Duration,
    },
    /// Around a mean. Never below zero.
    Normal {
        /// The mean.
        mean: Duration,
        /// The standard deviation.
        sd: Duration,
    },
    /// Mostly short, with a long tail.
    LogNormal {
        /// The median.
        p50: Duration,
        /// The 99th percentile.
        p99: Duration,
    },
}

impl Distribution {
    /// Always zero.
    pub const ZERO: Self = Self::Constant(Duration::ZERO);

    /// Whether the duration is always zero.
    pub const fn is_zero(&self) -> bool {
        matches!(self, Self::Constant(length) if length.is_zero())
    }

    /// Draws a duration.
    pub fn sample(&self, generator: &mut impl Rng) -> Duration {
        match *self {
            Self::Constant(length) => length,
            Self::Uniform { min, max } => min + max.saturating_sub(min).mul_f64(unit(generator)),
            Self::Normal { mean, sd } => seconds(mean.as_secs_f64() + sd.as_secs_f64() * standard_normal(generator)),
            Self::LogNormal { p50, p99 } => {
                if p50.is_zero() {
                    return Duration::ZERO;
                }
                let sigma = (p99.as_secs_f64() / p50.as_secs_f64()).ln() / NORMAL_P99;
                seconds(p50.as_secs_f64() * (sigma * standard_normal(generator)).exp())
            }
        }
    }

    /// Reads `2s`, `{constant: 2s}`, `{uniform: [1s, 2s]}`, `{normal: {mean: 25s, sd: 5s}}` or
    /// `{lognormal: {p50: 2s, p99: 8s}}`.
    pub(super) fn read(value: &Value, path: &FieldPath, found: &mut Findings) -> Option<Self> {
        if !value.is_object() {
            return duration_at(value, path, found).map(Self::Constant);
        }
        let read = object(value, path, found, |section| {
            if section.map().len() != 1 {
                section.invalid("must be a duration or exactly one of constant, uniform, normal, lognormal");
                return None;
            }
            let uniform = "must be a list of two durations, the shorter one first";
            section
                .duration("constant")
                .map(Self::Constant)
                .or_else(|| section.value("uniform", uniform, Self::uniform))
                .or_else(|| section.object("normal", Self::normal).flatten())
                .or_else(|| section.object("lognormal", Self::log_normal).flatten())
        });
        read.flatten()
    }

    fn uniform(bounds: &Value) -> Option<Self> {
        let bounds: Option<Vec<Duration>> = bounds.as_array()?.iter().map(duration).collect();
        match bounds?.as_slice() {
            &[min, max] if min <= max => Some(Self::Uniform { min, max }),
            _ => None,
        }
    }

    fn normal(section: &mut Section<'_, '_>) -> Option<Self> {
        let (mean, sd) = (section.required_duration("mean"), section.required_duration("sd"));
        Some(Self::Normal { mean: mean?, sd: sd? })
    }

    fn log_normal(section: &mut Section<'_, '_>) -> Option<Self> {
        let (p50, p99) = (section.required_duration("p50"), section.required_duration("p99"));
        let (p50, p99) = (p50?, p99?);
        if p99 < p50 {
            section.invalid_key("p99", format!("{p99:?}"), "must not be less than p50");
        }
        Some(Self::LogNormal { p50, p99 })
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// Draws a value of the standard normal distribution (Box and Muller).
fn standard_normal(generator: &mut impl Rng) -> f64 {
    let radius = (-2.0 * (1.0 - unit(generator)).ln()).sqrt();
    radius * (TAU * unit(generator)).cos()
}

/// Draws a value of the exponential distribution with this mean.
pub fn exponential(mean: Duration, generator: &mut impl Rng) -> Duration {
    seconds(-mean.as_secs_f64() * (1.0 - unit(generator)).ln())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::{
        super::draw::{Decision, Draws},
        *,
    };

    fn median(distribution: Distribution) -> f64 {
        let mut lengths: Vec<f64> = (0..2001)
            .map(|attempt| {
                let decision = Decision { operation: "create", subject: "ns/m", attempt, purpose: "latency" };
                distribution.sample(&mut Draws::new(3).generator(decision)).as_secs_f64()
            })
            .collect();
        lengths.sort_by(f64::total_cmp);
        lengths[1000]
    }

    #[rstest]
    #[case::a_bare_duration(json!("2s"), 2.0)]
    #[case::a_bare_zero(json!(0), 0.0)]
    #[case::constant(json!({"constant": "1m"}), 60.0)]
    #[case::uniform(json!({"uniform": ["2s", "4s"]}), 3.0)]
    #[case::normal(json!({"normal": {"mean": "25s", "sd": "5s"}}), 25.0)]
    #[case::lognormal(json!({"lognormal": {"p50": "2s", "p99": "8s"}}), 2.0)]
    fn a_distribution_is_read_and_has_the_expected_median(#[case] written: Value, #[case] middle: f64) {
        let mut found = Findings::new();
        let distribution = Distribution::read(&written, &FieldPath::new("latency.create"), &mut found);
        assert_eq!(found.aggregate(), "[]");
        let median = median(distribution.unwrap());
        assert!((median - middle).abs() <= middle * 0.05, "median {median} instead of about {middle}");
    }

    #[rstest]
    #[case::no_unit(json!("5"), "latency.create: Invalid value: \"5\"")]
    #[case::bounds_reversed(json!({"uniform": ["4s", "2s"]}), "latency.create.uniform: Invalid value")]
    #[case::one_of_two_missing(json!({"normal": {"mean": "2s"}}), "latency.create.normal.sd: Required value")]
    #[case::an_unknown_kind(json!({"gamma": "2s"}), "latency.create.gamma")]
    #[case::two_kinds(json!({"constant": "2s", "uniform": ["1s", "2s"]}), "exactly one of")]
    fn a_wrong_distribution_is_refused_with_its_key(#[case] written: Value, #[case] words: &str) {
        let mut found = Findings::new();
        assert_eq!(Distribution::read(&written, &FieldPath::new("latency.create"), &mut found), None);
        assert!(found.aggregate().contains(words), "{}", found.aggregate());
    }
}
