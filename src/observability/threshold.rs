//! The limits in the expressions of the alerts. An operator may change each of them by its name.

use std::fmt;

/// Declares the limits with their names in flags and chart values, and their defaults.
macro_rules! thresholds {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal, $default:literal;)+) => {
        /// A limit in the expression of an alert.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Threshold { $($(#[doc = $doc])+ $variant),+ }

        impl Threshold {
            /// All limits.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in flags, in values of the chart, and between percent signs in expressions.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// What it limits.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii()),+ }
            }

            /// The value that applies if an operator sets none.
            pub const fn default_value(self) -> f64 {
                match self { $(Self::$variant => $default),+ }
            }
        }
    };
}

thresholds! {
    /// Replicas that must run.
    Replicas = "replicas", 2.0;
    /// Seconds since the last event of a watch.
    CacheAge = "cacheAgeSeconds", 600.0;
    /// Share of the machines of a namespace that are not well, from 0 to 1.
    FailedShare = "failedShare", 0.2;
    /// Number of machines from which on their share is judged.
    FleetMinimum = "fleetMinimum", 5.0;
    /// Share of the calls to a provider that fail, from 0 to 1.
    ErrorShare = "errorShare", 0.1;
    /// Seconds in which a rollout must make a step.
    RolloutStep = "rolloutStepSeconds", 3600.0;
    /// Days before the end of a certificate at which a warning begins.
    CertificateWarning = "certificateWarningDays", 7.0;
    /// Days before the end of a certificate at which it is critical.
    CertificateCritical = "certificateCriticalDays", 2.0;
    /// Contested CA bundles in an hour.
    Contests = "caBundleContests", 3.0;
    /// Seconds that 99 of 100 admission reviews may take.
    AdmissionDuration = "admissionSeconds", 1.0;
    /// Keys that wait in a work queue.
    QueueDepth = "queueDepth", 100.0;
    /// Seconds that a worker may work on one key.
    QueueItem = "queueItemSeconds", 300.0;
    /// Seconds by which the clocks of a replica and of the API server may differ.
    ClockOffset = "clockOffsetSeconds", 60.0;
    /// Steps of a clock in an hour.
    ClockSteps = "clockSteps", 2.0;
}

impl Threshold {
    /// Whether the limit is a duration of `PromQL`, which is a whole number of seconds and not 0.
    pub const fn is_duration(self) -> bool {
        matches!(self, Self::RolloutStep)
    }

    /// The limit of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|threshold| threshold.name() == name)
    }
}

/// The value of a [`Threshold`] as the text that goes into an expression: a number, or a placeholder that a template engine such as
/// Helm replaces by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit(String);

impl Limit {
    /// A number. Prometheus gets it in decimal notation.
    pub fn number(value: f64) -> Self {
        Self(value.to_string())
    }

    /// A text that a template engine replaces by a number.
    pub fn placeholder(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
