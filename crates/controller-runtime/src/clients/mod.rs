//! Clients of one cluster: one connection pool, and in front of it one lane per purpose with its own rate and user agent.
//!
//! A lane bounds calls as client-go does (`--kube-api-qps`, `--kube-api-burst` per client, spec/machine-controller §12.1),
//! so that a flood of one kind of call cannot hold up another. Leases have a connection pool of their own as well: nothing
//! that the controllers do can cost the lease. Nothing is retried here: a refusal is an answer (rust-ecosystem §7.1), and
//! what may be repeated is known to the work queue alone.

pub mod config;
mod lane;
mod rate;
mod transport;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub use config::{ConfigError, Source};
pub use lane::{Call, CallResult, Departure, ObserveCall};
pub use rate::{Rate, TokenBucket};

use lane::Lane;

/// What a client is for. Each purpose has its own rate and its own user agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Reads and writes of the deployment and set controllers.
    Rollout,
    /// Writes of machine objects and classes by the machine controllers.
    Machines,
    /// Their live reads, the last look before a VM is made among them: none waits behind a flood of writes.
    MachineReads,
    /// Secrets, config maps and webhook configurations of the control cluster.
    ControlCore,
    /// Nodes, volumes and bootstrap tokens of the target cluster.
    TargetCore,
    /// Looks at single Nodes, so that they don't wait behind writes, nor writes behind them.
    TargetReads,
    /// Evictions and deletions of pods: there can be thousands that are refused again and again, and none of them may hold
    /// up what a new machine needs.
    Evictions,
    /// Leader election; never throttled, with connections of its own.
    Leases,
    /// Kubernetes Events.
    Events,
    /// Watches and their lists; not throttled.
    Watches,
    /// Discovery, versions, access reviews; not throttled.
    Discovery,
    /// Whose token it is, for the callers of views; with a rate of its own, since anybody may send tokens, good or bad.
    TokenReviews,
    /// Who may do what, for the callers of views; apart from tokens, so that nobody who is unknown holds up who is known.
    AccessReviews,
    /// Owners of new objects, for admission; with a rate of its own, since anybody may name an owner.
    Owners,
    /// Simulated kubelets, each of which would be a client of its own in the world; not throttled.
    Simulation,
}

impl Purpose {
    const ALL: [Self; 15] = [
        Self::Rollout,
        Self::Machines,
        Self::MachineReads,
        Self::ControlCore,
        Self::TargetCore,
        Self::TargetReads,
        Self::Evictions,
        Self::Leases,
        Self::Events,
        Self::Watches,
        Self::Discovery,
        Self::TokenReviews,
        Self::AccessReviews,
        Self::Owners,
        Self::Simulation,
    ];

    /// The last part of the user agent, as the original's clients have it (spec/machine-controller §12.3).
    pub fn user_agent(self) -> &'static str {
        match self {
            Self::Rollout => "machine-controller-manager",
            Self::Machines => "machine-controller",
            Self::MachineReads => "machine-controller-reads",
            Self::ControlCore => "control-core",
            Self::TargetCore => "target-core",
            Self::TargetReads => "target-core-reads",
            Self::Evictions => "target-evictions",
            Self::Leases => "machine-leader-election",
            Self::Events => "event-recorder",
            Self::Watches => "shared-informers",
            Self::Discovery => "controller-discovery",
            Self::TokenReviews => "delegated-authentication",
            Self::AccessReviews => "delegated-authorization",
            Self::Owners => "admission",
            Self::Simulation => "virtual-cloud",
        }
    }

    /// How often it may call; none for as often as it likes.
    fn rate(self, configured: Rate) -> Option<Rate> {
        match self {
            Self::TokenReviews | Self::AccessReviews => Some(REVIEWS),
            Self::Owners => Some(OWNERS),
            throttled if throttled.is_throttled() => Some(configured),
            _ => None,
        }
    }

    fn is_throttled(self) -> bool {
        match self {
            Self::Rollout
            | Self::Machines
            | Self::MachineReads
            | Self::ControlCore
            | Self::TargetCore
            | Self::TargetReads
            | Self::Evictions
            | Self::Events => true,
            Self::Leases
            | Self::Watches
            | Self::Discovery
            | Self::TokenReviews
            | Self::AccessReviews
            | Self::Owners
            | Self::Simulation => false,
        }
    }

    /// How long a call may wait for its turn. Whoever asks for a review gives up after a while, and a queue of calls that nobody
    /// waits for would hold up all that come later.
    fn patience(self) -> Duration {
        match self {
            Self::TokenReviews | Self::AccessReviews => REVIEW_PATIENCE,
            Self::Owners => OWNER_PATIENCE,
            _ => Duration::MAX,
        }
    }
}

/// Reviews per second, whatever callers do.
const REVIEWS: Rate = Rate { qps: 200.0, burst: 400 };

/// How long a review waits for its turn; well below the time that is given to one.
const REVIEW_PATIENCE: Duration = Duration::from_secs(2);

/// Owners read per second, whatever anybody creates.
const OWNERS: Rate = Rate { qps: 20.0, burst: 40 };

/// How long the reading of an owner waits for its turn; below the second that admission gives to all of it.
const OWNER_PATIENCE: Duration = Duration::from_millis(500);

/// How many calls may be under way at once on each throttled lane; each costs a connection. The lanes share none of them, or
/// evictions that take long would hold up what a new machine needs.
pub const PARALLEL_CALLS: usize = 32;

/// How long a server may take until it begins to answer. Watches answer at once, so this holds for them as well.
pub const FIRST_ANSWER: Duration = Duration::from_secs(30);

/// How clients behave.
#[derive(Clone)]
pub struct ClientSettings {
    /// Calls per second and burst of each throttled client.
    pub rate: Rate,
    /// Is told of every call.
    pub observer: Option<Arc<dyn ObserveCall>>,
}

/// The clients of one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    clients: Arc<BTreeMap<Purpose, kube::Client>>,
    fallback: kube::Client,
    host: Arc<str>,
}

impl Cluster {
    /// Clients of the cluster that a configuration names. Connects when the first call is made.
    ///
    /// # Errors
    /// [`ConfigError`] when certificates, keys or credentials of the configuration can't be used.
    pub fn connect(config: &kube::Config, settings: &ClientSettings) -> Result<Self, ConfigError> {
        let host = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
        let calls = transport::open(config)?;
        let leases = transport::open(config)?;
        Ok(Self::over(&calls, &leases, &host, settings))
    }

    /// Clients over given transports: an embedded API server, or a layer that injects faults. `leases` carries the calls
    /// of the leader election, `calls` all others; `host` is the label in metrics.
    pub fn over(calls: &kube::Client, leases: &kube::Client, host: &str, settings: &ClientSettings) -> Self {
        let clients = Purpose::ALL
            .into_iter()
            .map(|purpose| {
                let transport = if purpose == Purpose::Leases { leases } else { calls };
                let lane = Lane::new(purpose, host, settings);
                (purpose, lane.in_front_of(transport))
            })
            .collect();
        Self { clients: Arc::new(clients), fallback: calls.clone(), host: host.into() }
    }

    /// Host and port of the API server.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The client for a purpose. All callers of one purpose share its rate.
    pub fn client(&self, purpose: Purpose) -> kube::Client {
        self.clients.get(&purpose).unwrap_or(&self.fallback).clone()
    }
}
