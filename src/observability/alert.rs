//! What an alert is: its name, severity, expression, delay and texts.

use std::{fmt, str::FromStr, time::Duration};

use super::rules::UnknownName;

/// The beginning of the name of each alert.
pub const PREFIX: &str = "MachineControllerManager";

/// Declares the names of the alerts.
macro_rules! alert_names {
    ($($(#[$meta:meta])* $variant:ident,)+) => {
        /// The name of an alert, and of its page in `docs/runbooks`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum AlertName { $($(#[$meta])* $variant),+ }

        impl AlertName {
            /// All names.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name without [`PREFIX`].
            pub const fn short(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }
        }
    };
}

alert_names! {
    /// No replica runs.
    Down,
    /// Fewer replicas run than wanted.
    ReplicaMissing,
    /// No replica has a Lease.
    NoLeader,
    /// Two replicas have one Lease.
    TwoLeaders,
    /// Nothing is created or replaced.
    Frozen,
    /// A watch delivers nothing.
    CacheStale,
    /// Objects are stored in a version that is not served or not converted.
    StoredVersionUnserved,
    /// Many machines of a namespace are not well.
    MassFailure,
    /// A machine is Failed.
    MachineFailed,
    /// The VM of a machine can't be made.
    MachineCrashLooping,
    /// A machine has exceeded its own deadline.
    MachineOverdue,
    /// A VM did not join in time.
    JoinFailed,
    /// VMs without a machine were deleted.
    OrphansDeleted,
    /// New machines of a set repeatedly fail to join.
    SetBackingOff,
    /// A driver can't decide whether Nodes belong to machines.
    NodeUnidentified,
    /// The provider refuses the credentials.
    ProviderCredentials,
    /// The provider has no capacity.
    ProviderCapacity,
    /// The provider fails.
    ProviderErrors,
    /// A driver in another process does not serve.
    DriverDown,
    /// Disruption budgets delay drains.
    DrainRefused,
    /// A deployment has fewer available machines than wanted.
    DeploymentShort,
    /// A rollout makes no step.
    RolloutStuck,
    /// A set has far too many machines.
    SetFrozen,
    /// A certificate ends soon.
    CertificateExpiring,
    /// Another program writes the CA bundle.
    CABundleContested,
    /// An object lacks the CA bundle.
    CABundleDrifted,
    /// Reviews are turned away.
    AdmissionRejecting,
    /// Reviews are slow.
    AdmissionSlow,
    /// A work queue does not make progress.
    QueueStuck,
    /// The clocks of a host and of the API server differ.
    ClockOffset,
    /// The clock of a host is set repeatedly.
    ClockStepping,
    /// A part of the program panicked.
    Panic,
    /// A conversion lost data.
    ConversionLoss,
    /// The API server can't reach a webhook.
    WebhookUnreachable,
}

impl fmt::Display for AlertName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.short())
    }
}

/// The name with or without [`PREFIX`].
impl FromStr for AlertName {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let short = text.strip_prefix(PREFIX).unwrap_or(text);
        let found = Self::ALL.iter().copied().find(|name| name.short() == short);
        found.ok_or_else(|| UnknownName::alert(text))
    }
}

/// How urgent an alert is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Somebody must act at once.
    Critical,
    /// Somebody must act in the next working hours.
    Warning,
    /// Worth knowing; nobody must act.
    Info,
}

impl Severity {
    /// The value of the label `severity`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// Whether an alert is part of the rules if the operator does not name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installation {
    /// It is.
    Usual,
    /// It is not, because it needs metrics of another program.
    OnRequest,
}

/// The expression of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expression {
    /// `PromQL` in which `%job%` is the matcher of the job and `%name%` a [`Threshold`](super::Threshold).
    Text(&'static str),
    /// One of the counters rose in the last hour, or its series is less than an hour old and not 0.
    Events {
        /// Names of the counters.
        counters: &'static [&'static str],
        /// The labels that remain in the alert.
        by: &'static [&'static str],
    },
}

/// An alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alert {
    /// Its name.
    pub name: AlertName,
    /// Its severity.
    pub severity: Severity,
    /// Whether it is installed by default.
    pub installation: Installation,
    /// When it holds.
    pub expression: Expression,
    /// How long the expression must hold before the alert fires.
    pub holds_for: Duration,
    /// What happens, in one sentence.
    pub summary: &'static str,
    /// What follows from it. `{{ $labels.x }}` is the value of a label of the expression.
    pub description: &'static str,
}
