//! Clients of one cluster. They share a connection pool, and each purpose has a lane to it with its own rate and user agent.
//!
//! A lane limits calls as client-go does (`--kube-api-qps`, `--kube-api-burst` per client, spec/machine-controller §12.1), so that
//! many calls of one purpose do not delay another. Leases also have their own connection pool, so that no call of the controllers
//! can delay a renewal. Clients do not retry: a refusal is an answer (rust-ecosystem §7.1), and only the work queue knows what may
//! be repeated.

pub mod config;
mod lane;
mod rate;
mod transport;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub use config::{ConfigError, Source};
pub use lane::{Call, CallResult, ObserveCall, SentSignal};
pub use rate::{Rate, TokenBucket};

use lane::Lane;

/// The purpose of a client. Each purpose has its own rate and user agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Reads and writes of the deployment and set controllers.
    Rollout,
    /// Writes of machine objects and classes by the machine controllers.
    Machines,
    /// Live reads of the machine controllers, such as the last check before a VM is created. They do not wait behind writes.
    MachineReads,
    /// Secrets, config maps and webhook configurations of the control cluster.
    ControlCore,
    /// Nodes, volumes and bootstrap tokens of the target cluster.
    TargetCore,
    /// Reads of single Nodes. They are separate from writes, so that reads and writes do not wait for each other.
    TargetReads,
    /// Evictions and deletions of pods. Thousands may be refused again and again; they must not delay the calls for a new machine.
    Evictions,
    /// Leader election. No rate limit, own connections.
    Leases,
    /// Kubernetes Events.
    Events,
    /// Watches and their lists. No rate limit.
    Watches,
    /// Discovery, versions, access reviews. No rate limit.
    Discovery,
    /// Token reviews for callers of views. They have their own rate, because any client may send tokens.
    TokenReviews,
    /// Access reviews for callers of views. They are apart from token reviews, so that unknown callers do not delay known ones.
    AccessReviews,
    /// Reads of the owners of new objects, for admission. They have their own rate, because any client may name an owner.
    Owners,
    /// Simulated kubelets. No rate limit, because each real kubelet is its own client.
    Simulation,
    /// Pods that are machines, with their Secrets and Services. They are polled, which must not delay other calls.
    MachinePods,
}

impl Purpose {
    const ALL: [Self; 16] = [
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
        Self::MachinePods,
    ];

    /// The last part of the user agent, as in the original's clients (spec/machine-controller §12.3).
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
            Self::MachinePods => "machine-pods",
        }
    }

    /// The rate of this purpose; `None` without a limit.
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
            | Self::Events
            | Self::MachinePods => true,
            Self::Leases
            | Self::Watches
            | Self::Discovery
            | Self::TokenReviews
            | Self::AccessReviews
            | Self::Owners
            | Self::Simulation => false,
        }
    }

    /// How long a call may wait in its lane. Callers of reviews give up after a while, and a call whose caller has given up would
    /// only delay later calls.
    fn max_wait(self) -> Duration {
        match self {
            Self::TokenReviews | Self::AccessReviews => REVIEW_MAX_WAIT,
            Self::Owners => OWNER_MAX_WAIT,
            _ => Duration::MAX,
        }
    }
}

/// Rate of reviews, for all callers together.
const REVIEWS: Rate = Rate { qps: 200.0, burst: 400 };

/// How long a review may wait in its lane; well below the time for one review.
const REVIEW_MAX_WAIT: Duration = Duration::from_secs(2);

/// Rate of reads of owners, for all callers together.
const OWNERS: Rate = Rate { qps: 20.0, burst: 40 };

/// How long the read of an owner may wait in its lane. This is less than the second that admission has for the whole read.
const OWNER_MAX_WAIT: Duration = Duration::from_millis(500);

/// Maximum number of parallel calls of each lane with a rate limit. Each call needs a connection. The lanes do not share the
/// limit, so that slow evictions do not delay the calls for a new machine.
pub const PARALLEL_CALLS: usize = 32;

/// How long a server may take until its response begins. The response to a watch begins at once, so this applies to watches too.
pub const FIRST_ANSWER: Duration = Duration::from_secs(30);

/// Settings of the clients.
#[derive(Clone)]
pub struct ClientSettings {
    /// Rate of each client with a rate limit.
    pub rate: Rate,
    /// Called after every call.
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
    /// Clients for the cluster of a configuration. They connect at the first call.
    ///
    /// # Errors
    /// [`ConfigError`] when certificates, keys or credentials of the configuration can't be used.
    pub fn connect(config: &kube::Config, settings: &ClientSettings) -> Result<Self, ConfigError> {
        let host = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
        let calls = transport::open(config)?;
        let leases = transport::open(config)?;
        Ok(Self::over(&calls, &leases, &host, settings))
    }

    /// Clients over given transports: an embedded API server, or a layer that injects faults. `leases` is for the leader election,
    /// `calls` for all other purposes; `host` is the label in metrics.
    pub fn over(calls: &kube::Client, leases: &kube::Client, host: &str, settings: &ClientSettings) -> Self {
        let clients = Purpose::ALL
            .into_iter()
            .map(|purpose| {
                let transport = if purpose == Purpose::Leases { leases } else { calls };
                let lane = Lane::new(purpose, host, settings);
                (purpose, lane.wrap(transport))
            })
            .collect();
        Self { clients: Arc::new(clients), fallback: calls.clone(), host: host.into() }
    }

    /// Host and port of the API server.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The client for a purpose. All callers of a purpose share its rate.
    pub fn client(&self, purpose: Purpose) -> kube::Client {
        self.clients.get(&purpose).unwrap_or(&self.fallback).clone()
    }
}
