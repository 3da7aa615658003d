//! Turns flags into [`Settings`]. Contains every rule for the flags of `mcm serve`. All mistakes are reported together.
//!
//! Everything here is a pure function of the flags and of [`HostInfo`]. Each message names its flag, followed by the text of the Go
//! original if it has one.
//!
//! Sources: spec/machine-controller §12.2, spec/deployment-and-set §1.1 "Validation".

use std::{
    net::{IpAddr, SocketAddr},
    num::{NonZeroU16, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use super::{
    args::{
        ControllerArgs, DriverArgs, ElectionArgs, HttpArgs, MachineArgs, Reload, SafetyArgs, ServeArgs, ServingArgs,
    },
    problems::{Problems, address, is_media_type, port_or_off},
    simulation::simulation,
};
use crate::settings::{
    AdmissionSettings, CertMode, ClientRate, CloudSettings, ControlCluster, Controller, ControllerSet, DriverSelection,
    HttpSettings, KubeconfigReload, LateRequests, LeaderElection, MetricsSettings, Profiling, RequestLatency,
    SafetySettings, ServiceReference, Settings, ShutdownSettings, SniCertificate, StandbyCaches, TargetCluster,
    TlsCipherSuite, TlsMinVersion, WebhookSettings, Workers,
};
use kube_values::duration::GoDuration;
use machine_api::{
    defaulting::FinalizerDefault,
    validation::{Coverage, Profile},
};
use machine_controllers::{
    deployment::{AutoscalerAnnotations, AvailabilityRule, DeploymentSettings, OldSets},
    fleet_metrics::PerMachine,
    machine::settings::{MachineSettings, VmGoneCheck},
    overshooting::Margins,
    safety::freeze::Limits,
};
use machine_driver::ErrorCodes;

/// Facts about the host that no flag gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInfo {
    /// Host name; the holder's name in Leases begins with it.
    pub host_name: String,
    /// Namespace of the pod. `None` outside a cluster.
    pub pod_namespace: Option<String>,
}

/// Workers of the queues of deployments and sets when the flag is not set.
const CONTROLLER_MANAGER_WORKERS: usize = 10;
/// Maximum number of workers of a queue.
const MAX_WORKERS: usize = 10_000;
/// Workers of the queues of machines when the flag is not set.
const MACHINE_CONTROLLER_WORKERS: usize = 50;
/// Minimum of `--watch-silence-timeout`.
const MIN_WATCH_SILENCE: Duration = Duration::from_secs(1);
/// The meaning of `--resource-exhausted-retry=0`.
const DEFAULT_RESOURCE_EXHAUSTED_RETRY: Duration = Duration::from_secs(10 * 60);

impl ServeArgs {
    /// Checks all flags and turns them into typed settings.
    ///
    /// # Errors
    /// One line per mistake, each naming its flag.
    pub fn validate(&self, host: &HostInfo) -> Result<Settings, Vec<String>> {
        let mut problems = Problems::default();
        let (control, target) = self.clusters(&mut problems);
        let clusters = &self.clusters;
        problems.unless(
            is_media_type(&clusters.kube_api_content_type),
            "--kube-api-content-type: kube api content type cannot be parsed",
        );
        problems.unless(clusters.kube_api_qps > 0.0, "--kube-api-qps: kube api qps should be greater than zero");
        problems.namespace("--namespace", &clusters.namespace);
        if let Some(namespace) = &self.serving.service_namespace {
            problems.namespace("--service-namespace", namespace);
        }
        problems.duration(
            self.ignored.controller_start_interval,
            "--controller-start-interval: controller start interval should be a non negative value",
        );
        let settings = Settings {
            control,
            target,
            kubeconfig_reload: match clusters.kubeconfig_reload {
                Reload::Never => KubeconfigReload::Never,
                Reload::Exit => KubeconfigReload::Exit,
            },
            namespace: clusters.namespace.clone(),
            client_rate: ClientRate {
                qps: clusters.kube_api_qps,
                burst: problems
                    .count(clusters.kube_api_burst, "--kube-api-burst: kube api burst should not be a negative value"),
            },
            read_version: clusters.api_version,
            min_resync_period: problems.duration(
                clusters.min_resync_period,
                "--min-resync-period: min resync period should be a non negative value",
            ),
            http: http(&self.http, &mut problems),
            metrics: metrics(&self.http),
            tracing: self.tracing.settings(host, &mut problems),
            secure: secure_listener(&self.serving, &mut problems),
            certificates: certificates(&self.serving, &mut problems),
            sni_certificates: sni_certificates(&self.serving.tls_sni_cert_key, &mut problems),
            extra_certificate_names: problems.entries("--cert-extra-san", &self.serving.cert_extra_san),
            service: ServiceReference {
                name: self.serving.service_name.clone(),
                namespace: self
                    .serving
                    .service_namespace
                    .clone()
                    .or_else(|| host.pod_namespace.clone())
                    .unwrap_or_else(|| clusters.namespace.clone()),
            },
            extension: self.extension.settings(&mut problems),
            limits: self.limits.settings(&mut problems),
            webhooks: webhooks(&self.serving, &clusters.namespace, &mut problems),
            admission: admission(&self.serving, &self.drivers, &mut problems),
            controllers: controllers(&self.controllers, &mut problems),
            workers: workers(&self.controllers, &mut problems),
            standby_caches: if self.controllers.standby_caches { StandbyCaches::Warm } else { StandbyCaches::Cold },
            leader_election: leader_election(&self.election, host, &mut problems),
            machine: machine(&self.machine, &mut problems),
            rollout: self.rollout(),
            safety: safety(&self.safety, &mut problems),
            cluster_name: self.drivers.cluster_name.clone().inspect(|name| {
                problems.unless(
                    !name.trim().is_empty(),
                    "--cluster-name: the name must not be empty; leave the flag out where classes say whose their VMs are",
                );
            }),
            drivers: match &self.drivers.drivers {
                None => DriverSelection::All,
                Some(names) => DriverSelection::Only(problems.entries("--drivers", names).into_iter().collect()),
            },
            clouds: clouds(&self.drivers, &mut problems),
            #[cfg(feature = "external")]
            external: self.drivers.external.settings(&mut problems),
            simulation: simulation(&self.drivers, &mut problems),
            shutdown: ShutdownSettings {
                delay: problems.duration(
                    self.serving.shutdown_delay_duration,
                    "--shutdown-delay-duration: should be a non negative value",
                ),
                timeout: problems
                    .duration(self.serving.shutdown_timeout, "--shutdown-timeout: should be a non negative value"),
                driver_drain: problems
                    .duration(self.serving.driver_drain, "--driver-drain: should be a non negative value"),
                late_requests: if self.serving.shutdown_send_retry_after {
                    LateRequests::AreToldToRetry
                } else {
                    LateRequests::FindNobody
                },
            },
        };
        problems.unless(!views_without_caches(&settings), VIEWS_WITHOUT_CACHES);
        problems.none().map(|()| settings)
    }

    fn rollout(&self) -> DeploymentSettings {
        let flags = &self.controllers;
        DeploymentSettings {
            autoscaler_annotations: if flags.autoscaler_scaledown_annotation_during_rollout {
                AutoscalerAnnotations::DuringRollouts
            } else {
                AutoscalerAnnotations::Never
            },
            availability: if flags.strict_availability {
                AvailabilityRule::NodeReady
            } else {
                AvailabilityRule::VmExists
            },
            old_sets: if flags.sync_old_machine_sets { OldSets::Synced } else { OldSets::Left },
        }
    }

    /// Both clusters. An empty control flag means the target cluster, an empty target flag the pod's own cluster.
    fn clusters(&self, problems: &mut Problems) -> (ControlCluster, TargetCluster) {
        let target = match self.clusters.target_kubeconfig.as_str() {
            "none" => TargetCluster::None,
            "" => TargetCluster::InCluster,
            path => TargetCluster::Kubeconfig(PathBuf::from(path)),
        };
        let control = match (self.clusters.control_kubeconfig.as_str(), &target) {
            ("", TargetCluster::Kubeconfig(path)) => ControlCluster::Kubeconfig(path.clone()),
            ("", TargetCluster::None) => {
                problems.add("--control-kubeconfig cannot be empty if --target-kubeconfig=none is specified");
                ControlCluster::InCluster
            }
            ("" | "inClusterConfig", _) => ControlCluster::InCluster,
            (path, _) => ControlCluster::Kubeconfig(PathBuf::from(path)),
        };
        (control, target)
    }
}

/// The message about views without caches.
const VIEWS_WITHOUT_CACHES: &str = "--standby-caches=false: with --controllers=none this process never leads, so its views would never \
    have a cache to be computed from: leave the flag out, or add --extension-apiserver=false";

/// Whether the process would serve views but never have the caches for them. The API server sends a request for a view to any
/// replica, so one replica without caches makes views fail for all users.
fn views_without_caches(settings: &Settings) -> bool {
    settings.extension.is_some()
        && settings.secure.is_some()
        && settings.controllers.is_empty()
        && settings.standby_caches == StandbyCaches::Cold
}

fn http(args: &HttpArgs, problems: &mut Problems) -> HttpSettings {
    problems.unless(
        args.profiling || !args.contention_profiling,
        "--contention-profiling: contention-profiling cannot be enabled without enabling profiling",
    );
    let port = u16::try_from(args.port).ok().and_then(NonZeroU16::new);
    let compat_port = port_or_off("--compat-port", args.compat_port, problems);
    if port.is_none() {
        problems.add(format!("--port: invalid port number provided: got {} (1 to 65535)", args.port));
    }
    HttpSettings {
        address: address("--address", &args.address, problems),
        port: port.unwrap_or(NonZeroU16::MIN),
        // One listener is enough when both flags name the same port.
        compat_port: compat_port.filter(|compat| Some(*compat) != port),
        profiling: match (args.profiling, args.contention_profiling) {
            (false, _) => Profiling::Off,
            (true, false) => Profiling::On,
            (true, true) => Profiling::WithContention,
        },
    }
}

fn metrics(args: &HttpArgs) -> MetricsSettings {
    MetricsSettings {
        per_machine: if args.metrics_per_machine { PerMachine::Shown } else { PerMachine::LeftOut },
        request_latency: if args.metrics_request_latency { RequestLatency::Measured } else { RequestLatency::LeftOut },
    }
}

fn secure_listener(args: &ServingArgs, problems: &mut Problems) -> Option<SocketAddr> {
    let port = port_or_off("--secure-port", args.secure_port, problems);
    let address = address("--secure-address", &args.secure_address, problems);
    port.map(|port| SocketAddr::new(address, port.get()))
}

fn certificates(args: &ServingArgs, problems: &mut Problems) -> CertMode {
    let files = (&args.tls_cert_file, &args.tls_private_key_file);
    if args.cert_mode != "files" && files != (&None, &None) {
        problems.add("--tls-cert-file and --tls-private-key-file are read with --cert-mode=files only");
    }
    match (args.cert_mode.as_str(), files) {
        ("self-managed", _) => CertMode::SelfManaged,
        ("dev", _) => CertMode::Dev,
        ("files", (Some(certificate), Some(private_key))) => {
            CertMode::Files { certificate: certificate.clone(), private_key: private_key.clone() }
        }
        ("files", _) => {
            problems.add("--cert-mode=files needs --tls-cert-file and --tls-private-key-file");
            CertMode::SelfManaged
        }
        (other, _) => {
            problems.add(format!("--cert-mode: unknown mode {other:?}: must be self-managed, files or dev"));
            CertMode::SelfManaged
        }
    }
}

/// Reads `CERT,KEY[:NAMES]`, the syntax of the API server's flag.
fn sni_certificates(flags: &[String], problems: &mut Problems) -> Vec<SniCertificate> {
    let mut read = Vec::new();
    for flag in flags {
        let (files, names) = flag.split_once(':').map_or((flag.as_str(), None), |(files, names)| (files, Some(names)));
        let names: Vec<String> =
            names.into_iter().flat_map(|names| names.split(',')).map(|name| name.trim().to_owned()).collect();
        for name in names.iter().filter(|name| !is_server_name(name)) {
            problems.add(format!(
                "--tls-sni-cert-key: {name:?} is no DNS name, nor one whose first label is \"*\"; callers ask for names only"
            ));
        }
        match files.split_once(',') {
            Some((certificate, key)) if !certificate.is_empty() && !key.is_empty() && !key.contains(',') => {
                read.push(SniCertificate { certificate: certificate.into(), private_key: key.into(), names });
            }
            _ => problems.add(format!(
                "--tls-sni-cert-key: expected comma separated certificate and key file paths: got {flag:?}"
            )),
        }
    }
    read
}

/// Whether a caller can request this name, or a name that matches this pattern.
fn is_server_name(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.parse::<IpAddr>().is_err() && name.strip_prefix("*.").unwrap_or(name).split('.').all(is_label)
}

fn webhooks(args: &ServingArgs, namespace: &str, problems: &mut Problems) -> WebhookSettings {
    let tls_min_version = match args.tls_min_version.as_str() {
        "VersionTLS12" => TlsMinVersion::V1_2,
        "VersionTLS13" => TlsMinVersion::V1_3,
        other => {
            problems.add(format!("--tls-min-version: unknown version {other:?}: must be VersionTLS12 or VersionTLS13"));
            TlsMinVersion::V1_2
        }
    };
    WebhookSettings {
        client_authorities: args.webhook_client_ca.clone(),
        configuration: args.webhook_scope.configuration(namespace),
        tls_min_version,
        tls_cipher_suites: cipher_suites(args, problems),
    }
}

/// The named suites. Go's flag can't select suites of TLS 1.3, so a list for Go usually contains none of them. In this case, all
/// suites of TLS 1.3 are added.
fn cipher_suites(args: &ServingArgs, problems: &mut Problems) -> Vec<TlsCipherSuite> {
    let Some(names) = &args.tls_cipher_suites else { return TlsCipherSuite::ALL.into() };
    let names = problems.entries("--tls-cipher-suites", names);
    for name in names.iter().filter(|name| TlsCipherSuite::named(name).is_none()) {
        let known = TlsCipherSuite::ALL.map(TlsCipherSuite::as_str).join(", ");
        problems.add(format!("--tls-cipher-suites: {name:?} is unknown or not secure; there are {known}"));
    }
    let mut suites: Vec<_> = names.iter().filter_map(|name| TlsCipherSuite::named(name)).collect();
    if !suites.iter().any(|suite| suite.is_of_tls13()) {
        suites.extend(TlsCipherSuite::ALL.into_iter().filter(|suite| suite.is_of_tls13()));
    }
    suites
}

fn admission(args: &ServingArgs, drivers: &DriverArgs, problems: &mut Problems) -> AdmissionSettings {
    let profile = match args.admission_profile.as_str() {
        "compat" => Profile::Compat,
        "strict" => Profile::Strict,
        other => {
            problems.add(format!("--admission-profile: unknown profile {other:?}: must be compat or strict"));
            Profile::Compat
        }
    };
    AdmissionSettings {
        profile,
        controller_users: problems.entries("--controller-users", &args.controller_users),
        finalizers: if args.default_finalizers { FinalizerDefault::Add } else { FinalizerDefault::Leave },
        providers: if drivers.drivers_exclusive { Coverage::All } else { Coverage::Some },
    }
}

fn clouds(args: &DriverArgs, problems: &mut Problems) -> CloudSettings {
    let codes = if args.strict_go_error_codes { ErrorCodes::AsGo } else { ErrorCodes::Fine };
    match args.clouds.settings() {
        Ok(settings) => CloudSettings { codes, ..settings },
        Err(found) => {
            for problem in found {
                problems.add(problem);
            }
            CloudSettings::default()
        }
    }
}

/// `*` is every loop, a name adds one, `-name` leaves one out regardless of the order, and `none` is allowed only alone.
fn controllers(args: &ControllerArgs, problems: &mut Problems) -> ControllerSet {
    let words: Vec<&str> = args.controllers.iter().map(|word| word.trim()).collect();
    if words == ["none"] {
        return ControllerSet::none();
    }
    let mut selected = ControllerSet::default();
    let mut left_out = Vec::new();
    for word in words {
        let (name, off) = word.strip_prefix('-').map_or((word, false), |name| (name, true));
        match (name, off, Controller::named(name)) {
            ("*", false, _) => selected = ControllerSet::all(),
            (_, true, Some(controller)) => left_out.push(controller),
            (_, false, Some(controller)) => selected = selected.iter().chain([controller]).collect(),
            ("none", ..) => problems.add("--controllers: \"none\" must stand alone"),
            (_, _, None) => problems.add(format!(
                "--controllers: {name:?} is not in the list of known controllers: {}",
                Controller::ALL.map(Controller::name).join(", ")
            )),
        }
    }
    let in_half = |controller: Controller| args.half.is_none_or(|half| controller.half() == half);
    selected.iter().filter(|controller| !left_out.contains(controller) && in_half(*controller)).collect()
}

fn workers(args: &ControllerArgs, problems: &mut Problems) -> Workers {
    let wanted = |unset: usize| match args.concurrent_syncs {
        None => NonZeroUsize::new(unset),
        Some(wanted) => usize::try_from(wanted).ok().and_then(NonZeroUsize::new),
    };
    let both = (wanted(CONTROLLER_MANAGER_WORKERS), wanted(MACHINE_CONTROLLER_WORKERS));
    problems.unless(both.0.is_some(), "--concurrent-syncs: concurrent syncs should be greater than zero");
    // A million workers take 4 GB before the first machine is processed.
    problems.unless(
        both.0.is_none_or(|wanted| wanted.get() <= MAX_WORKERS),
        &format!(
            "--concurrent-syncs: must be at most {MAX_WORKERS}: each worker costs memory, and none waits for a provider"
        ),
    );
    Workers {
        controller_manager: both.0.unwrap_or(NonZeroUsize::MIN),
        machine_controller: both.1.unwrap_or(NonZeroUsize::MIN),
    }
}

/// The rules for the three durations are the same as in Go's library, which ends the process if a rule is broken.
fn leader_election(args: &ElectionArgs, host: &HostInfo, problems: &mut Problems) -> Option<LeaderElection> {
    if !args.leader_elect {
        return None;
    }
    let (lease, renew, retry) =
        (args.leader_elect_lease_duration, args.leader_elect_renew_deadline, args.leader_elect_retry_period);
    problems.unless(
        lease > renew,
        "--leader-elect-lease-duration: leaseDuration must be greater than renewDeadline (--leader-elect-renew-deadline)",
    );
    problems.unless(
        // retry × 1.2 in integers
        renew.as_nanos() > retry.as_nanos().saturating_add(retry.as_nanos() / 5),
        "--leader-elect-renew-deadline: renewDeadline must be greater than retryPeriod*1.2 (--leader-elect-retry-period)",
    );
    problems.unless(retry > GoDuration::ZERO, "--leader-elect-retry-period: retryPeriod must be greater than zero");
    if args.leader_elect_resource_lock != "leases" {
        problems.add(format!(
            "--leader-elect-resource-lock: {:?} is not supported any more: only \"leases\" is",
            args.leader_elect_resource_lock
        ));
    }
    Some(LeaderElection {
        host_name: host.host_name.clone(),
        lease_duration: lease.to_std(),
        renew_deadline: renew.to_std(),
        retry_period: retry.to_std(),
    })
}

fn machine(args: &MachineArgs, problems: &mut Problems) -> MachineSettings {
    let mut timeout = |value, flag: &str, words: &str| {
        problems.duration(value, &format!("{flag}: {words} should be a non negative number"))
    };
    let exhausted =
        timeout(args.resource_exhausted_retry, "--resource-exhausted-retry", "resource exhausted retry interval");
    MachineSettings {
        creation_timeout: timeout(
            args.machine_creation_timeout,
            "--machine-creation-timeout",
            "machine creation timeout",
        ),
        health_timeout: timeout(args.machine_health_timeout, "--machine-health-timeout", "machine health timeout"),
        drain_timeout: timeout(args.machine_drain_timeout, "--machine-drain-timeout", "machine drain timeout"),
        in_place_update_timeout: timeout(
            args.machine_inplace_update_timeout,
            "--machine-inplace-update-timeout",
            "machine in-place update timeout",
        ),
        vm_gone_check: if args.machine_vm_gone_check { VmGoneCheck::On } else { VmGoneCheck::Off },
        preserve_timeout: timeout(
            args.machine_preserve_timeout,
            "--machine-preserve-timeout",
            "machine preserve timeout",
        ),
        pv_detach_timeout: timeout(
            args.machine_pv_detach_timeout,
            "--machine-pv-detach-timeout",
            "machine PV detach timeout",
        ),
        pv_reattach_timeout: timeout(
            args.machine_pv_reattach_timeout,
            "--machine-pv-reattach-timeout",
            "machine PV reattach timeout",
        ),
        max_evict_retries: problems.count(
            args.machine_max_evict_retries,
            "--machine-max-evict-retries: max evict retries should be a non negative number",
        ),
        node_conditions: args
            .node_conditions
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
            .map(str::to_owned)
            .collect(),
        bootstrap_token_auth_extra_groups: args.bootstrap_token_auth_extra_groups.clone(),
        resource_exhausted_retry: if exhausted.is_zero() { DEFAULT_RESOURCE_EXHAUSTED_RETRY } else { exhausted },
        ..MachineSettings::default()
    }
}

fn safety(args: &SafetyArgs, problems: &mut Problems) -> SafetySettings {
    problems.unless(
        args.machine_safety_apiserver_statuscheck_period >= args.machine_safety_apiserver_statuscheck_timeout,
        "--machine-safety-apiserver-statuscheck-period: machine safety APIServer status check period should not be less \
         than APIServer status check timeout (--machine-safety-apiserver-statuscheck-timeout)",
    );
    let watch_silence = problems
        .duration(args.watch_silence_timeout, "--watch-silence-timeout: the silence of a watch can't be negative");
    problems.unless(
        watch_silence >= MIN_WATCH_SILENCE,
        "--watch-silence-timeout: less than 1s is not possible; API servers send a bookmark about once a minute, so give \
         more than that",
    );
    SafetySettings {
        watch_silence,
        margins: Margins {
            up: problems.count(args.safety_up, "--safety-up: safety up should be a non negative value"),
            down: problems.count(args.safety_down, "--safety-down: safety down should be a non negative value"),
        },
        overshooting_period: problems.duration(
            args.machine_safety_overshooting_period,
            "--machine-safety-overshooting-period: machine safety overshooting period should be a non negative number",
        ),
        orphan_vms_period: problems.duration(
            args.machine_safety_orphan_vms_period,
            "--machine-safety-orphan-vms-period: machine safety orphan VMs period should be a non negative number",
        ),
        api_servers: Limits {
            timeout: problems.duration(
            args.machine_safety_apiserver_statuscheck_timeout,
            "--machine-safety-apiserver-statuscheck-timeout: machine safety APIServer status check timeout should be a \
             non negative number",
        ),
            period: problems.duration(
            args.machine_safety_apiserver_statuscheck_period,
            "--machine-safety-apiserver-statuscheck-period: machine safety APIServer status check period should be a \
             non negative number",
        ),
        },
    }
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
