//! The flags of `mcm serve`: the flags of both Go binaries with their names and defaults, and our own.
//!
//! This file only declares them; [`super::validate`] checks them. Numbers have wider types than needed, so that a value out of range
//! is reported together with all other mistakes.
//!
//! Sources: spec/machine-controller §12.1, spec/deployment-and-set §1.1.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

pub use super::{extension::ExtensionArgs, limits::LimitArgs, traces::TracingArgs};
use crate::{
    cli::{clouds::CloudArgs, go_flags::go_bool, logging::LoggingArgs, webhook_scope::WebhookScope},
    settings::Half,
};
use controller_runtime::storage_version::ReadVersion;
use kube_values::duration::GoDuration;
use machine_api::names;

/// The half with this program name.
///
/// # Errors
/// When no half has this name.
pub fn half(text: &str) -> Result<Half, String> {
    let named = Half::ALL.into_iter().find(|half| half.program() == text);
    named.ok_or_else(|| format!("must be {}", Half::ALL.map(Half::program).join(" or ")))
}

/// Flags of `mcm serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Clusters and clients.
    #[command(flatten)]
    pub clusters: ClusterArgs,
    /// Loops and their workers.
    #[command(flatten)]
    pub controllers: ControllerArgs,
    /// Timeouts of machines.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Safety loops.
    #[command(flatten)]
    pub safety: SafetyArgs,
    /// Leader election.
    #[command(flatten)]
    pub election: ElectionArgs,
    /// Plain HTTP listener.
    #[command(flatten)]
    pub http: HttpArgs,
    /// Traces.
    #[command(flatten)]
    pub tracing: TracingArgs,
    /// TLS listener, certificates and admission.
    #[command(flatten)]
    pub serving: ServingArgs,
    /// Views.
    #[command(flatten)]
    pub extension: ExtensionArgs,
    /// Limits of connections and requests.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Drivers and the virtual cloud.
    #[command(flatten)]
    pub drivers: DriverArgs,
    /// Logs.
    #[command(flatten)]
    pub logging: LoggingArgs,
    /// Flags without effect.
    #[command(flatten)]
    pub ignored: IgnoredArgs,
}

/// Clusters and clients.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Clusters")]
pub struct ClusterArgs {
    /// Kubeconfig of the target cluster (Nodes); "none" means no target cluster, empty means the pod's own cluster
    #[arg(long, default_value = "", value_name = "FILE")]
    pub target_kubeconfig: String,
    /// Kubeconfig of the control cluster (machine objects); "inClusterConfig" means the pod's own cluster, empty means
    /// the target cluster
    #[arg(long, default_value = "", value_name = "FILE")]
    pub control_kubeconfig: String,
    /// What the process does when the file of a kubeconfig has new content: nothing, or end like after SIGTERM, to be started again
    #[arg(long, default_value = "never", value_name = "ACTION")]
    pub kubeconfig_reload: Reload,
    /// Namespace of the machine objects and of the Leases
    #[arg(long, default_value = "default")]
    pub namespace: String,
    /// Version of the machine objects to watch; "stored" means the version that the API server stores
    #[arg(long, default_value = "stored", value_name = "VERSION")]
    pub api_version: ReadVersion,
    /// Maximum rate of each client, in requests per second
    #[arg(long, default_value = "20", allow_negative_numbers = true)]
    pub kube_api_qps: f32,
    /// Number of requests that each client may send at once
    #[arg(long, default_value = "30", allow_negative_numbers = true)]
    pub kube_api_burst: i64,
    /// Content type of requests; must be a media type, and has no other effect
    #[arg(long, default_value = "application/vnd.kubernetes.protobuf", value_name = "TYPE")]
    pub kube_api_content_type: String,
    /// Period after which caches are listed again
    #[arg(long, default_value = "12h", value_name = "DURATION", allow_hyphen_values = true)]
    pub min_resync_period: GoDuration,
}

/// What a kubeconfig file with new content causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reload {
    /// The process goes on with the content that it read at the start
    Never,
    /// The process ends
    Exit,
}

/// Loops and their workers.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Controllers")]
#[allow(clippy::struct_excessive_bools)] // one per flag; `Settings` has enums
pub struct ControllerArgs {
    /// Loops to run: "*" for all, a name for one, "-name" to leave one out, or "none" to run no loop and only serve
    #[arg(
        long,
        default_value = "*",
        value_delimiter = ',',
        allow_hyphen_values = true,
        value_name = "NAMES",
        long_help = "Loops to run: \"*\" for all, a name for one, \"-name\" to leave one out, or \"none\" to run no loop and only serve.\n\
            Names: machinedeployment, machineset, machinesafetyovershooting, machine, node, machineclass, secret, \
            machinesafetyorphanvms, machinesafetyapiserver"
    )]
    pub controllers: Vec<String>,
    /// Run only one half, while another program runs the other half: machine-controller-manager (deployments and sets) or
    /// machine-controller (machines); only the loops of --controllers that belong to this half run
    #[arg(long, value_parser = half, value_name = "HALF")]
    pub half: Option<Half>,
    /// Workers per queue; unset means 10 for deployments and sets, 50 for machines
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub concurrent_syncs: Option<i64>,
    /// Keep the caches of a replica filled while it does not lead; if false, it takes over more slowly, and views that need caches
    /// answer 503
    #[arg(long, default_value = "true", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub standby_caches: bool,
    /// Keep cluster-autoscaler from scaling down nodes during a rollout
    #[arg(long, default_value = "true", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub autoscaler_scaledown_annotation_during_rollout: bool,
    /// A machine counts as available in a rollout when its Node has been Ready for minReadySeconds, not when its VM exists
    #[arg(long, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub strict_availability: bool,
    /// Copy changed timeouts and health settings also to the old machine sets of a rollout
    #[arg(long, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub sync_old_machine_sets: bool,
}

/// Timeouts of machines.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Machines")]
pub struct MachineArgs {
    /// Time from creation to Running after which a machine fails
    #[arg(long, default_value = "20m", value_name = "DURATION", allow_hyphen_values = true)]
    pub machine_creation_timeout: GoDuration,
    /// Time for which a machine is unhealthy before it fails
    #[arg(long, default_value = "10m", value_name = "DURATION", allow_hyphen_values = true)]
    pub machine_health_timeout: GoDuration,
    /// Duration of a drain before it is forced
    #[arg(long, default_value = "2h", value_name = "DURATION", allow_hyphen_values = true)]
    pub machine_drain_timeout: GoDuration,
    /// Duration of an in-place update before it fails
    #[arg(long, default_value = "20m", value_name = "DURATION", allow_hyphen_values = true)]
    pub machine_inplace_update_timeout: GoDuration,
    /// Check with the provider whether the VM of an unhealthy machine still exists, and replace the machine early if not
    #[arg(long, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub machine_vm_gone_check: bool,
    /// Number of refused evictions before a pod is deleted
    #[arg(long, default_value = "360", value_name = "N", allow_negative_numbers = true)]
    pub machine_max_evict_retries: i64,
    /// Maximum wait until a volume is detached
    #[arg(long, default_value = "2m", value_name = "DURATION", allow_hyphen_values = true)]
    pub machine_pv_detach_timeout: GoDuration,
    /// Maximum wait until a volume is attached to another node
    #[arg(long, default_value = "90s", value_name = "DURATION", allow_hyphen_values = true)]
    pub machine_pv_reattach_timeout: GoDuration,
    /// Time for which a failed machine is preserved
    #[arg(long, default_value = "96h", value_name = "DURATION", allow_hyphen_values = true)]
    pub machine_preserve_timeout: GoDuration,
    /// Node condition types that make a machine unhealthy, comma separated
    #[arg(
        long,
        default_value = "KernelDeadlock,ReadonlyFilesystem,DiskPressure,NetworkUnavailable",
        value_name = "TYPES"
    )]
    pub node_conditions: String,
    /// Additional groups of bootstrap tokens, comma separated
    #[arg(long, default_value = "", value_name = "GROUPS")]
    pub bootstrap_token_auth_extra_groups: String,
    /// Wait after the provider reported exhausted capacity; 0 means 10m
    #[arg(long, default_value = "10m", value_name = "DURATION", allow_hyphen_values = true)]
    pub resource_exhausted_retry: GoDuration,
}

/// Safety loops.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Safety")]
pub struct SafetyArgs {
    /// Number of machines above the desired number at which a set is frozen
    #[arg(long, default_value = "2", value_name = "N", allow_negative_numbers = true)]
    pub safety_up: i64,
    /// Number of machines below that threshold at which the freeze ends
    #[arg(long, default_value = "1", value_name = "N", allow_negative_numbers = true)]
    pub safety_down: i64,
    /// Period of the overshoot check
    #[arg(long, default_value = "1m", value_name = "DURATION", allow_hyphen_values = true)]
    pub machine_safety_overshooting_period: GoDuration,
    /// Period of the search for VMs without a machine
    #[arg(long, default_value = "15m", value_name = "DURATION", allow_hyphen_values = true)]
    pub machine_safety_orphan_vms_period: GoDuration,
    /// Time without an answer of an API server after which the machine loops freeze
    #[arg(long, default_value = "30s", value_name = "DURATION", allow_hyphen_values = true)]
    pub machine_safety_apiserver_statuscheck_timeout: GoDuration,
    /// Period of that check
    #[arg(long, default_value = "1m", value_name = "DURATION", allow_hyphen_values = true)]
    pub machine_safety_apiserver_statuscheck_period: GoDuration,
    /// Time without events and bookmarks after which a watch is opened again; varies by up to a tenth
    #[arg(long, default_value = "90s", value_name = "DURATION", allow_hyphen_values = true)]
    pub watch_silence_timeout: GoDuration,
}

/// Leader election.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Leader election")]
pub struct ElectionArgs {
    /// Run the loops only while this process is the leader
    #[arg(long, default_value = "true", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub leader_elect: bool,
    /// How long other replicas wait before they take over
    #[arg(long, default_value = "15s", value_name = "DURATION", allow_hyphen_values = true)]
    pub leader_elect_lease_duration: GoDuration,
    /// How long the leader tries to renew before it gives up
    #[arg(long, default_value = "10s", value_name = "DURATION", allow_hyphen_values = true)]
    pub leader_elect_renew_deadline: GoDuration,
    /// Pause between two tries
    #[arg(long, default_value = "2s", value_name = "DURATION", allow_hyphen_values = true)]
    pub leader_elect_retry_period: GoDuration,
    /// Kind of the lock; must be "leases"
    #[arg(long, default_value = "leases", value_name = "KIND")]
    pub leader_elect_resource_lock: String,
}

/// Plain HTTP listener.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Health and metrics")]
#[allow(clippy::struct_excessive_bools)] // one per flag; `Settings` has enums
pub struct HttpArgs {
    /// Port for health, readiness and metrics
    #[arg(long, default_value = "10258", allow_negative_numbers = true)]
    pub port: i64,
    /// Second port for health, readiness and metrics, the port of the Go machine controller; 0 = off
    #[arg(long, default_value = "10259", value_name = "PORT", allow_negative_numbers = true)]
    pub compat_port: i64,
    /// Address of both ports
    #[arg(long, default_value = "0.0.0.0", value_name = "IP")]
    pub address: String,
    /// Serve /debug/pprof
    #[arg(long, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub profiling: bool,
    /// Profile lock contention; needs --profiling
    #[arg(long, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub contention_profiling: bool,
    /// Show metrics of each single machine; if false, machines are only counted, by phase, reason of their wait and stage
    #[arg(long, default_value = "true", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub metrics_per_machine: bool,
    /// Show how long requests to the API servers take, in a histogram for each verb and kind
    #[arg(long, default_value = "true", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub metrics_request_latency: bool,
}

/// TLS listener, certificates and admission.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Webhooks and certificates")]
pub struct ServingArgs {
    /// TLS port of webhooks and conversion; 0 = off
    #[arg(long, default_value = "9443", value_name = "PORT", allow_negative_numbers = true)]
    pub secure_port: i64,
    /// Address of the TLS port
    #[arg(long, default_value = "0.0.0.0", value_name = "IP")]
    pub secure_address: String,
    /// Source of the serving certificate: self-managed, files or dev
    #[arg(long, default_value = "self-managed", value_name = "MODE")]
    pub cert_mode: String,
    /// Certificate chain in PEM, with --cert-mode=files
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key in PEM, with --cert-mode=files
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Certificate chain and private key in PEM for callers that request certain names (SNI); may be repeated
    #[arg(
        long,
        value_name = "CERT,KEY[:NAMES]",
        long_help = "Certificate chain and private key in PEM for callers that request certain names (SNI); may be repeated.\n\
            Names are comma separated. \"*.example.com\" matches all names with one more label. Without names, those in the \
            certificate are used. Example: foo.crt,foo.key:*.foo.com,foo.com"
    )]
    pub tls_sni_cert_key: Vec<String>,
    /// Certificate authorities in PEM; callers of webhooks must present a certificate of one of them. Unset means that callers
    /// need no certificate
    #[arg(long, value_name = "FILE")]
    pub webhook_client_ca: Option<PathBuf>,
    /// Minimum TLS version
    #[arg(
        long,
        help = "Minimum TLS version: VersionTLS12 or VersionTLS13",
        default_value = "VersionTLS12",
        value_name = "VERSION"
    )]
    pub tls_min_version: String,
    /// Allowed TLS cipher suites, comma separated, with Go's names; unset means all secure suites. The suites of TLS 1.3 are all
    /// allowed unless the list names some of them
    #[arg(long, value_delimiter = ',', value_name = "SUITES")]
    pub tls_cipher_suites: Option<Vec<String>>,
    /// Additional DNS name or IP address on the self-signed certificate; may be repeated
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub cert_extra_san: Vec<String>,
    /// Service through which API servers reach the TLS port
    #[arg(long, default_value = names::WEBHOOK_CONFIGURATION, value_name = "NAME")]
    pub service_name: String,
    /// Namespace of that Service; unset means the namespace of the pod, or --namespace outside a cluster
    #[arg(long, value_name = "NAMESPACE")]
    pub service_namespace: Option<String>,
    /// Webhook configurations that get the CA bundle: configurations of the cluster or of the namespace (mcm manifests --scope)
    #[arg(long, default_value = "cluster", value_name = "SCOPE")]
    pub webhook_scope: WebhookScope,
    /// Level of the rules that have two levels: compat (warn) or strict (deny)
    #[arg(long, default_value = "compat", value_name = "PROFILE")]
    pub admission_profile: String,
    /// Users that admission treats as controllers, comma separated
    #[arg(long, value_delimiter = ',', value_name = "USERS")]
    pub controller_users: Vec<String>,
    /// Add our finalizer to new objects in admission, not only in the controllers
    #[arg(long, default_value = "true", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub default_finalizers: bool,
    /// How long the server still accepts requests after it became unready
    #[arg(long, default_value = "5s", value_name = "DURATION", allow_hyphen_values = true)]
    pub shutdown_delay_duration: GoDuration,
    /// How long running requests and effects may take after that
    #[arg(long, default_value = "30s", value_name = "DURATION", allow_hyphen_values = true)]
    pub shutdown_timeout: GoDuration,
    /// How long running driver calls may still take; if one is aborted then, the Leases are not released but expire
    #[arg(long, default_value = "20s", value_name = "DURATION", allow_hyphen_values = true)]
    pub driver_drain: GoDuration,
    /// Keep the TLS port open meanwhile, and answer new requests with 429 and Retry-After
    #[arg(long, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub shutdown_send_retry_after: bool,
}

/// Drivers and the virtual cloud.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Drivers")]
pub struct DriverArgs {
    /// Providers that this process serves, comma separated; unset means all providers that are compiled in
    #[arg(long, value_delimiter = ',', value_name = "PROVIDERS")]
    pub drivers: Option<Vec<String>>,
    /// Refuse classes of all other providers, because no other process serves them
    #[arg(long, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub drivers_exclusive: bool,
    /// Cluster that VMs belong to if the providerSpec of their class names none; drivers identify the VMs of this cluster by it
    #[arg(long, value_name = "NAME")]
    pub cluster_name: Option<String>,
    /// Endpoints of clouds.
    #[command(flatten)]
    pub clouds: CloudArgs,
    /// Use the error codes of the Go drivers for failed calls to clouds: Internal for nearly everything except exhausted capacity
    #[arg(long, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub strict_go_error_codes: bool,
    /// Drivers in other processes
    #[cfg(feature = "external")]
    #[command(flatten)]
    pub external: super::external::ExternalArgs,
    /// Let the virtual cloud serve the providers that its config names
    #[arg(long, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub enable_simulation: bool,
    /// File with latencies, failures and quota of the virtual cloud; read again when it changes
    #[arg(long, value_name = "FILE")]
    pub simulation_config: Option<PathBuf>,
    /// Place where the virtual cloud stores its VMs; "none" rebuilds them from their Nodes
    #[arg(long, default_value = "none", value_name = "none|file:PATH|json:PATH|configmap:NAME")]
    pub simulation_state: String,
    /// Address of the virtual cloud's admin API; only this host can reach it
    #[arg(long, value_name = "127.0.0.1:PORT|unix:PATH")]
    pub simulation_admin: Option<String>,
}

/// Flags without effect. Deployments of the Go binaries pass them.
#[derive(Clone, Debug, Args)]
pub struct IgnoredArgs {
    /// Without effect, as in Go
    #[arg(long, default_value = "", hide = true)]
    pub cloud_provider: String,
    /// Without effect, as in Go; must not be negative
    #[arg(long, default_value = "0s", hide = true, allow_hyphen_values = true)]
    pub controller_start_interval: GoDuration,
    /// Flag of klog, without effect
    #[arg(long, hide = true)]
    pub vmodule: Option<String>,
    /// Flag of klog, without effect
    #[arg(long, hide = true)]
    pub log_flush_frequency: Option<String>,
    /// Flag of klog, without effect
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub logtostderr: Option<String>,
    /// Flag of klog, without effect
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub alsologtostderr: Option<String>,
    /// Flag of klog, without effect
    #[arg(long, hide = true)]
    pub stderrthreshold: Option<String>,
    /// Flag of klog, without effect
    #[arg(long, hide = true)]
    pub log_dir: Option<String>,
    /// Flag of klog, without effect
    #[arg(long, hide = true)]
    pub log_file: Option<String>,
    /// Flag of klog, without effect
    #[arg(long, hide = true)]
    pub log_file_max_size: Option<String>,
    /// Flag of klog, without effect
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub one_output: Option<String>,
    /// Flag of klog, without effect
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub skip_headers: Option<String>,
    /// Flag of klog, without effect
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub skip_log_headers: Option<String>,
    /// Flag of klog, without effect
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub add_dir_header: Option<String>,
    /// Flag of klog, without effect
    #[arg(long, hide = true)]
    pub log_backtrace_at: Option<String>,
}
