//! Metrics that code sets when something happens: names, help texts, types and labels.
//!
//! Names, types and labels of the original are a contract; do not rename. Metrics that the original does not have are marked
//! "ours". The gauges of single objects are in `machine-controllers`, and the metrics of work queues in [`super::queue`].

use prometheus::{DEFAULT_BUCKETS, exponential_buckets};

#[allow(clippy::wildcard_imports)]
use super::labels::*;
use super::{Counters, Gauges, Histograms, family::Declarations};
use machine_api::webhooks::Webhook;

/// This process (spec/packaging §4.1). Ours.
pub struct ManagerMetrics {
    /// `mcm_build_info`: always 1; the labels name the program that runs.
    pub build_info: Gauges<Build<'static>>,
    /// `mcm_leader`: 1 while this process holds the Lease, otherwise 0. Each replica that could hold it has the series.
    pub leader: Gauges<OfLease<'static>>,
    /// `mcm_cache_last_event_seconds`: Unix time at which the API server last sent anything for a cache, bookmarks included.
    pub cache_last_event: Gauges<Cache<'static>>,
    /// `mcm_crd_stored_version_unserved`: 1 while a CRD does not serve, or does not convert, a version in which objects are stored.
    pub stored_version_unserved: Gauges<()>,
}

/// Calls to cloud APIs (spec/providers §2.1).
pub struct CloudMetrics {
    /// `mcm_cloud_api_requests_total`: successful low-level calls.
    pub requests: Counters<CloudCall<'static>>,
    /// `mcm_cloud_api_requests_failed_total`: failed low-level calls.
    pub requests_failed: Counters<CloudCall<'static>>,
    /// `mcm_cloud_api_api_request_duration_seconds`: duration of successful low-level calls.
    pub request_duration: Histograms<CloudCall<'static>>,
    /// `mcm_cloud_api_driver_request_duration_seconds`: duration of successful driver methods.
    pub driver_request_duration: Histograms<DriverCall<'static>>,
    /// `mcm_driver_up` (ours): 1 while a driver in another process answers, otherwise 0.
    pub driver_up: Gauges<OfDriver<'static>>,
    /// `mcm_cloud_api_driver_requests_failed_total`: failed driver methods by code.
    pub driver_requests_failed: Counters<FailedDriverCall<'static>>,
}

/// The time of day.
pub struct ClockMetrics {
    /// `mcm_clock_offset_seconds` (ours): how far the control API server's clock is ahead of this host's.
    pub offset: Gauges<()>,
    /// `mcm_clock_steps_total` (ours): observed steps of the clock.
    pub steps: Counters<()>,
}

/// Machines (spec/machine-controller §13.1). Durations are whole seconds, and a gauge has the value of the last machine.
pub struct MachineMetrics {
    /// `mcm_machine_controller_frozen`: 1 while the machine controllers are frozen.
    pub controller_frozen: Gauges<()>,
    /// `mcm_definitions_hollow`: 1 while objects are read without most of their fields, because their CRD has no converter.
    pub definitions_hollow: Gauges<()>,
    /// `mcm_machine_create_duration_seconds`: from the machine's creation to the driver's answer.
    pub create_duration: Gauges<PlacedMachine<'static>>,
    /// `mcm_machine_initialize_duration_seconds`: length of the initialisation.
    pub initialize_duration: Gauges<PlacedMachine<'static>>,
    /// `mcm_machine_join_duration_seconds`: from the machine's creation to the first Running.
    pub join_duration: Gauges<PlacedMachine<'static>>,
    /// `mcm_machine_drain_duration_seconds`: length of the last successful drain.
    pub drain_duration: Gauges<OfDeployment<'static>>,
    /// `mcm_machine_delete_duration_seconds`: from the deletion request until the VM is gone.
    pub delete_duration: Gauges<PlacedMachine<'static>>,
    /// `mcm_machine_num_failed_join`: machines that exceeded the creation timeout. A counter, despite its name.
    pub num_failed_join: Counters<PlacedMachine<'static>>,
    /// `mcm_machine_stale_machines_total`: deleted Failed machines whose last operation was a health check.
    pub stale_machines: Counters<()>,
    /// `mcm_machine_deletions_total` (ours): machines whose deletion has begun, and deleted VMs without a machine.
    pub deletions: Counters<Deletion<'static>>,
    /// `mcm_machine_set_backoff_seconds` (ours): how long a set waits before it replaces machines that never joined.
    pub set_back_off: Gauges<OfSet<'static>>,
    /// `mcm_machine_stage_duration_seconds` (ours): time spent in a stage.
    pub stage_duration: Histograms<Stage<'static>>,
    /// `mcm_machine_api_writes_total` (ours): writes to a Kubernetes API by object and rule.
    pub api_writes: Counters<ApiWrite<'static>>,
    /// `mcm_orphan_vms_deleted_total` (ours): deleted VMs without a machine.
    pub orphan_vms_deleted: Counters<OfClass<'static>>,
    /// `mcm_drain_pods` (ours): pods of running drains, by state.
    pub drain_pods: Gauges<DrainPods>,
    /// `mcm_bootstrap_token_collisions_total` (ours): bootstrap tokens whose name existed already.
    pub bootstrap_token_collisions: Counters<()>,
}

/// Failures of parts of a scrape: one counter for each of the two binaries of the original (constant label `binary`).
#[derive(Clone)]
pub struct ScrapeFailures {
    /// For sets and deployments.
    pub manager: Counters<ScrapeFailure>,
    /// For machines.
    pub provider: Counters<ScrapeFailure>,
}

impl ScrapeFailures {
    /// Adds to the counter of the binary that lists this kind. Adding 0 creates the series.
    pub fn add(&self, kind: ScrapeKind, more: u64) {
        let half = match kind {
            ScrapeKind::Machine => &self.provider,
            ScrapeKind::MachineSet | ScrapeKind::MachineDeployment => &self.manager,
        };
        half.add(&ScrapeFailure { kind }, more);
    }
}

/// Calls to Kubernetes APIs (spec/deployment-and-set §18).
pub struct RestClientMetrics {
    /// `rest_client_request_latency_seconds`.
    pub latency: Histograms<RestLatency<'static>>,
    /// `rest_client_requests_total`.
    pub requests: Counters<RestResult<'static>>,
}

/// Admission (spec/api-and-admission §9.14). Ours.
pub struct AdmissionMetrics {
    /// `mcm_admission_requests_total`: answered reviews.
    pub requests: Counters<Reviewed>,
    /// `mcm_admission_duration_seconds`: time from the request head to the answer.
    pub duration: Histograms<OfWebhook>,
    /// `mcm_admission_rule_total`: findings of rules.
    pub rules: Counters<RuleHit<'static>>,
}

/// Conversion (spec/api-and-admission §9.14). Ours.
pub struct ConversionMetrics {
    /// `mcm_conversion_requests_total`: answered reviews.
    pub requests: Counters<Conversion>,
    /// `mcm_conversion_objects_total`: converted objects.
    pub objects: Counters<()>,
    /// `mcm_conversion_residue_dropped_total`: conversions that lost data of the other version.
    pub residue_dropped: Counters<()>,
    /// `mcm_conversion_duration_seconds`: time from the request head to the answer.
    pub duration: Histograms<()>,
}

/// Certificates (spec/api-and-admission §11). Ours.
pub struct CertificateMetrics {
    /// `mcm_certificate_expiry_seconds`: Unix time at which a certificate expires.
    pub expiry: Gauges<Certificate<'static>>,
    /// `mcm_certificate_reload_failures_total`: certificate pairs that could not be loaded; the old pair stays in use.
    pub reload_failures: Counters<Certificate<'static>>,
    /// `mcm_certificate_ca_bundle_repairs_total`: CA bundles written into webhook configurations, CRDs or the `APIService`.
    pub ca_bundle_repairs: Counters<()>,
    /// `mcm_certificate_ca_bundle_contests_total`: CA bundles of another program that were overwritten.
    pub ca_bundle_contests: Counters<()>,
    /// `mcm_certificate_ca_bundles_drifted`: objects without the CA bundle of this process now.
    pub ca_bundles_drifted: Gauges<()>,
}

/// The HTTP server. Ours.
pub struct ServerMetrics {
    /// `mcm_server_connections`: open connections.
    pub connections: Gauges<OfListener>,
    /// `mcm_server_rejected_total`: connections and requests that were refused before a handler.
    pub rejected: Counters<Rejected>,
    /// `mcm_server_panics_total`: panics in handlers.
    pub panics: Counters<Panicked>,
}

/// The extension API server (spec/extension-apiserver §3.2, §3.6, §8). Ours.
pub struct ExtensionMetrics {
    /// `mcm_panics_total`: panics during the computation of a view.
    pub panics: Counters<OfView<'static>>,
    /// `mcm_extension_auth_config_errors_total`: parts of the authentication configuration that could not be used.
    pub auth_config_errors: Counters<AuthConfigPart<'static>>,
    /// `mcm_extension_requests_total`: answered requests.
    pub requests: Counters<ViewRequest<'static>>,
    /// `mcm_extension_request_duration_seconds`: time from the request head to the answer.
    pub duration: Histograms<OfView<'static>>,
    /// `mcm_extension_audit_dropped_total`: audit log lines that were dropped because its buffer was full.
    pub audit_dropped: Counters<()>,
}

/// Traces (spec/packaging §7.2). Ours. The series exist if traces are sent.
pub struct TraceMetrics {
    /// `mcm_trace_spans_sent_total`: spans that the collector took.
    pub sent: Counters<()>,
    /// `mcm_trace_spans_dropped_total`: spans that were not delivered.
    pub dropped: Counters<LostSpans>,
}

impl TraceMetrics {
    /// Creates all series with 0.
    pub fn show(&self) {
        self.sent.add(&(), 0);
        for reason in SpanLoss::ALL {
            self.dropped.add(&LostSpans { reason: *reason }, 0);
        }
    }
}

/// All metrics that code sets when something happens.
pub struct Catalogue {
    /// This process.
    pub manager: ManagerMetrics,
    /// Calls to cloud APIs.
    pub cloud: CloudMetrics,
    /// The time of day.
    pub clock: ClockMetrics,
    /// Machines.
    pub machine: MachineMetrics,
    /// Failures of parts of a scrape.
    pub scrape_failures: ScrapeFailures,
    /// Calls to Kubernetes APIs.
    pub rest_client: RestClientMetrics,
    /// Admission.
    pub admission: AdmissionMetrics,
    /// Conversion.
    pub conversion: ConversionMetrics,
    /// Certificates.
    pub certificate: CertificateMetrics,
    /// The HTTP server.
    pub server: ServerMetrics,
    /// The extension API server.
    pub extension: ExtensionMetrics,
    /// Traces.
    pub trace: TraceMetrics,
}

impl Catalogue {
    /// Declares all metrics.
    #[rustfmt::skip]
    pub(super) fn register(r: &Declarations) -> prometheus::Result<Self> {
        // 100 µs to 1.6 s, because the caller gives up after a second.
        let answer_buckets = exponential_buckets(0.0001, 2.0, 15)?;
        // 1 s to 4.5 h, because a stage may wait for a cloud or for pods.
        let stage_buckets = exponential_buckets(1.0, 2.0, 15)?;
        let catalogue = Self {
            manager: ManagerMetrics {
                build_info: Gauges::register(r, "mcm_build_info", "The program that runs: its version, the commit of its sources and the profile of its build. Always 1.")?,
                leader: Gauges::register(r, "mcm_leader", "Whether this process holds the Lease.")?,
                cache_last_event: Gauges::register(r, "mcm_cache_last_event_seconds", "Unix time in seconds at which the API server last sent anything for the cache, bookmarks included.")?,
                stored_version_unserved: Gauges::register(r, "mcm_crd_stored_version_unserved", "Whether a CRD does not serve, or does not convert, a version in which objects are stored.")?,
            },
            cloud: CloudMetrics {
                requests: Counters::register(r, "mcm_cloud_api_requests_total", "Number of cloud API requests that succeeded, by provider and service.")?,
                requests_failed: Counters::register(r, "mcm_cloud_api_requests_failed_total", "Number of cloud API requests that failed, by provider and service.")?,
                request_duration: Histograms::register(r, "mcm_cloud_api_api_request_duration_seconds", "Duration of successful cloud API requests in seconds.", DEFAULT_BUCKETS)?,
                driver_request_duration: Histograms::register(r, "mcm_cloud_api_driver_request_duration_seconds", "Duration of successful driver calls in seconds, by provider and operation.", DEFAULT_BUCKETS)?,
                driver_up: Gauges::register(r, "mcm_driver_up", "Whether the driver in another process serves.")?,
                driver_requests_failed: Counters::register(r, "mcm_cloud_api_driver_requests_failed_total", "Number of driver calls that failed, by provider, operation and code.")?,
            },
            machine: MachineMetrics {
                definitions_hollow: Gauges::register(r, "mcm_definitions_hollow", "Whether objects are stored in a version that nothing converts.")?,
                controller_frozen: Gauges::register(r, "mcm_machine_controller_frozen", "Whether the machine controllers are frozen.")?,
                create_duration: Gauges::register(r, "mcm_machine_create_duration_seconds", "Seconds from the creation of the machine object to the creation of its VM.")?,
                initialize_duration: Gauges::register(r, "mcm_machine_initialize_duration_seconds", "Seconds that the initialisation of the VM took.")?,
                join_duration: Gauges::register(r, "mcm_machine_join_duration_seconds", "Seconds from the creation of the machine object to its node's joining.")?,
                drain_duration: Gauges::register(r, "mcm_machine_drain_duration_seconds", "Seconds that the successful drain of the node took.")?,
                delete_duration: Gauges::register(r, "mcm_machine_delete_duration_seconds", "Seconds from the deletion of the machine object to the deletion of its VM.")?,
                num_failed_join: Counters::register(r, "mcm_machine_num_failed_join", "Number of machines whose node did not join within the creation timeout.")?,
                stale_machines: Counters::register(r, "mcm_machine_stale_machines_total", "Number of failed machines that were deleted after failed health checks.")?,
                deletions: Counters::register(r, "mcm_machine_deletions_total", "Number of machines whose deletion began, and of deleted VMs without a machine, by reason.")?,
                set_back_off: Gauges::register(r, "mcm_machine_set_backoff_seconds", "Seconds for which the machine set waits in all before it replaces machines that never joined; absent while it does not wait.")?,
                stage_duration: Histograms::register(r, "mcm_machine_stage_duration_seconds", "Seconds that machines spent in a stage of their creation or deletion.", &stage_buckets)?,
                api_writes: Counters::register(r, "mcm_machine_api_writes_total", "Number of writes to a Kubernetes API, by object and rule.")?,
                orphan_vms_deleted: Counters::register(r, "mcm_orphan_vms_deleted_total", "Number of VMs without a machine that were deleted.")?,
                drain_pods: Gauges::register(r, "mcm_drain_pods", "Number of pods that drains under way still wait for, by where they stand.")?,
                bootstrap_token_collisions: Counters::register(r, "mcm_bootstrap_token_collisions_total", "Number of bootstrap tokens whose name was taken.")?,
            },
            clock: ClockMetrics {
                offset: Gauges::register(r, "mcm_clock_offset_seconds", "Seconds that the control API server's clock is ahead of this host's.")?,
                steps: Counters::register(r, "mcm_clock_steps_total", "Number of jumps of the time of day by more than five seconds.")?,
            },
            scrape_failures: ScrapeFailures {
                manager: scrape_failures(r, "machine-controller-manager")?,
                provider: scrape_failures(r, "machine-controller-manager-provider")?,
            },
            rest_client: RestClientMetrics {
                latency: Histograms::register(r, "rest_client_request_latency_seconds", "Request latency in seconds, by verb and URL.", &exponential_buckets(0.001, 2.0, 10)?)?,
                requests: Counters::register(r, "rest_client_requests_total", "Number of HTTP requests, by status code, method and host.")?,
            },
            admission: AdmissionMetrics {
                requests: Counters::register(r, "mcm_admission_requests_total", "Number of admission reviews answered.")?,
                duration: Histograms::register(r, "mcm_admission_duration_seconds", "Duration of admission reviews in seconds.", &answer_buckets)?,
                rules: Counters::register(r, "mcm_admission_rule_total", "Number of hits of admission rules, by what they did.")?,
            },
            conversion: ConversionMetrics {
                requests: Counters::register(r, "mcm_conversion_requests_total", "Number of conversion reviews answered.")?,
                objects: Counters::register(r, "mcm_conversion_objects_total", "Number of objects converted.")?,
                residue_dropped: Counters::register(r, "mcm_conversion_residue_dropped_total", "Number of times that data which only the other version can express was lost in a conversion.")?,
                duration: Histograms::register(r, "mcm_conversion_duration_seconds", "Duration of conversion reviews in seconds.", &answer_buckets)?,
            },
            certificate: CertificateMetrics {
                expiry: Gauges::register(r, "mcm_certificate_expiry_seconds", "Unix time in seconds at which the certificate ends.")?,
                reload_failures: Counters::register(r, "mcm_certificate_reload_failures_total", "Number of certificate pairs that were refused while the old one stayed in use.")?,
                ca_bundle_repairs: Counters::register(r, "mcm_certificate_ca_bundle_repairs_total", "Number of objects whose CA bundle was written.")?,
                ca_bundles_drifted: Gauges::register(r, "mcm_certificate_ca_bundles_drifted", "Number of objects that do not hold the CA bundle at this moment.")?,
                ca_bundle_contests: Counters::register(r, "mcm_certificate_ca_bundle_contests_total", "Number of times that a CA bundle held the authorities of somebody else and was replaced.")?,
            },
            server: ServerMetrics {
                connections: Gauges::register(r, "mcm_server_connections", "Open connections, by listener.")?,
                rejected: Counters::register(r, "mcm_server_rejected_total", "Number of connections and requests turned away before a handler saw them.")?,
                panics: Counters::register(r, "mcm_server_panics_total", "Number of panics in request handlers.")?,
            },
            extension: ExtensionMetrics {
                panics: Counters::register(r, "mcm_panics_total", "Number of panics while a view was computed.")?,
                auth_config_errors: Counters::register(r, "mcm_extension_auth_config_errors_total", "Number of parts of the authentication configuration that could not be taken over.")?,
                requests: Counters::register(r, "mcm_extension_requests_total", "Number of requests to the extension API server, by view, verb and code.")?,
                duration: Histograms::register(r, "mcm_extension_request_duration_seconds", "Duration of requests to the extension API server in seconds.", &exponential_buckets(0.001, 2.0, 15)?)?,
                audit_dropped: Counters::register(r, "mcm_extension_audit_dropped_total", "Number of lines that the audit log had no room for.")?,
            },
            trace: TraceMetrics {
                sent: Counters::register(r, "mcm_trace_spans_sent_total", "Number of spans that the collector took.")?,
                dropped: Counters::register(r, "mcm_trace_spans_dropped_total", "Number of spans that were not delivered, by reason.")?,
            },
        };
        catalogue.show_from_the_start();
        Ok(catalogue)
    }

    /// Creates series whose absence means 0, so that alerts on an increase notice the first one.
    fn show_from_the_start(&self) {
        self.machine.controller_frozen.set(&(), 0.0);
        self.clock.offset.set(&(), 0.0);
        self.clock.steps.add(&(), 0);
        self.machine.definitions_hollow.set(&(), 0.0);
        self.manager.stored_version_unserved.set(&(), 0.0);
        self.machine.stale_machines.add(&(), 0);
        self.machine.bootstrap_token_collisions.add(&(), 0);
        for state in DrainPodState::ALL {
            self.machine.drain_pods.set(&DrainPods { state: *state }, 0.0);
        }
        self.conversion.objects.add(&(), 0);
        self.conversion.residue_dropped.add(&(), 0);
        self.certificate.ca_bundle_repairs.add(&(), 0);
        self.certificate.ca_bundle_contests.add(&(), 0);
        self.certificate.ca_bundles_drifted.set(&(), 0.0);
        for kind in ScrapeKind::ALL {
            self.scrape_failures.add(*kind, 0);
        }
        for webhook in Webhook::ALL {
            self.server.panics.add(&Panicked { webhook }, 0);
        }
    }
}

fn scrape_failures(declarations: &Declarations, binary: &'static str) -> prometheus::Result<Counters<ScrapeFailure>> {
    let help = "Number of times a part of the metrics could not be collected.";
    Counters::register_with(declarations, "mcm_misc_scrape_failure_total", help, Some(("binary", binary)))
}
