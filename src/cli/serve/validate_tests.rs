//! Scenarios MC-001…MC-006 and S-CLI-01…S-CLI-07, and the rules of our own flags.

use std::path::Path;

use clap::Parser;
use rstest::rstest;

use super::*;
use crate::cli::{Cli, Command};
use crate::settings::Half;
use controller_runtime::storage_version::ReadVersion;
use machine_api::kind::ApiVersion;

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

fn serve(flags: &[&str]) -> Result<Settings, Vec<String>> {
    let line = ["mcm", "serve"].into_iter().chain(flags.iter().copied()).map(Into::into);
    let cli = Cli::try_parse_from(crate::cli::normalised(line.collect())).expect("flags parse");
    let Command::Serve(args) = cli.command else { panic!("not serve") };
    let host = HostInfo { host_name: "host-1".to_owned(), pod_namespace: None };
    args.validate(&host)
}

#[test]
fn mc_129_a_flag_switches_the_check_for_vanished_vms_on() {
    let settings = serve(&["--machine-vm-gone-check"]).unwrap();
    assert_eq!(settings.machine.vm_gone_check, VmGoneCheck::On);
}

#[test]
fn flags_can_change_the_endpoints_of_clouds() {
    assert_eq!(serve(&["--target-kubeconfig=/kc"]).unwrap().clouds, CloudSettings::default());
    let settings = serve(&[
        "--provider-endpoint=AWS=http://127.0.0.1:5000",
        "--workload-identity-dirs=/var/run/secrets/,/tokens",
        "--strict-go-error-codes",
    ]);
    let expected = CloudSettings {
        endpoints: [("AWS".to_owned(), "http://127.0.0.1:5000".to_owned())].into(),
        identity_directories: vec!["/var/run/secrets/".into(), "/tokens".into()],
        codes: ErrorCodes::AsGo,
        ..CloudSettings::default()
    };
    assert_eq!(settings.unwrap().clouds, expected);
}

#[cfg(feature = "local")]
#[test]
fn the_template_of_pods_is_read_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pod.yaml");
    let flag = format!("--local-pod-template={}", path.display());
    let problems = serve(&[&flag]).unwrap_err();
    assert!(problems.len() == 1 && problems[0].starts_with("--local-pod-template: /"), "{problems:?}");
    let volumes = "volumes: [{name: userdata, secret: {}}]";
    std::fs::write(&path, format!("spec: {{containers: [{{name: node, image: mine}}], {volumes}}}")).unwrap();
    let clouds = serve(&[&flag]).unwrap().clouds;
    assert_ne!(clouds.pod_template, driver_local::PodTemplate::default());
    std::fs::write(&path, format!("spec: {{containers: [], {volumes}}}")).unwrap();
    let problems = serve(&[&flag]).unwrap_err();
    assert!(problems[0].ends_with("spec.containers: no container is named \"node\""), "{problems:?}");
}

#[rstest]
#[case::no_such_cloud(&["--provider-endpoint=Aws=http://x"], "\"Aws\" is no cloud of this program")]
#[case::no_url(&["--provider-endpoint=AWS"], "\"\" is no URL")]
#[case::another_scheme(&["--provider-endpoint=AWS=ftp://x"], "\"ftp://x\" is no URL")]
#[case::a_login(&["--provider-endpoint=AWS=http://me:secret@x"], "is no URL")]
#[case::twice(&["--provider-endpoint=AWS=http://x", "--provider-endpoint=AWS=http://y"], "AWS is named twice")]
#[case::a_relative_folder(&["--workload-identity-dirs=tokens"], "--workload-identity-dirs: the directories must begin with /")]
fn mistakes_in_flags_of_clouds_are_reported_at_the_start(#[case] flags: &[&str], #[case] expected: &str) {
    let problems = serve(flags).unwrap_err();
    assert!(problems.len() == 1 && problems[0].contains(expected), "{problems:?}");
    assert!(!problems[0].contains("secret@"), "{problems:?}");
}

#[test]
fn mc_001_and_s_cli_01_defaults_are_those_of_both_go_binaries() {
    let settings = serve(&["--target-kubeconfig=/kc"]).unwrap();
    assert_eq!((settings.http.port.get(), settings.http.compat_port.map(NonZeroU16::get)), (10258, Some(10259)));
    assert_eq!(settings.workers.controller_manager.get(), 10);
    assert_eq!(settings.workers.machine_controller.get(), 50);
    assert_eq!(settings.client_rate, ClientRate { qps: 20.0, burst: 30 });
    assert_eq!(settings.min_resync_period, minutes(12 * 60));
    assert_eq!(
        settings.machine,
        MachineSettings {
            creation_timeout: minutes(20),
            health_timeout: minutes(10),
            drain_timeout: minutes(2 * 60),
            in_place_update_timeout: minutes(20),
            vm_gone_check: VmGoneCheck::Off,
            preserve_timeout: minutes(96 * 60),
            max_evict_retries: 360,
            pv_detach_timeout: minutes(2),
            pv_reattach_timeout: Duration::from_secs(90),
            node_conditions: ["KernelDeadlock", "ReadonlyFilesystem", "DiskPressure", "NetworkUnavailable"]
                .map(str::to_owned)
                .into(),
            bootstrap_token_auth_extra_groups: String::new(),
            resource_exhausted_retry: minutes(10),
            ..MachineSettings::default()
        }
    );
    assert_eq!(settings.machine, MachineSettings::default(), "the flags and the room have the same defaults");
    assert_eq!(settings.rollout, DeploymentSettings::default());
    assert_eq!(
        settings.safety,
        SafetySettings {
            margins: Margins { up: 2, down: 1 },
            overshooting_period: minutes(1),
            orphan_vms_period: minutes(15),
            api_servers: Limits { timeout: Duration::from_secs(30), period: minutes(1) },
            watch_silence: Duration::from_secs(90),
        }
    );
    assert_eq!(
        settings.leader_election,
        Some(LeaderElection {
            host_name: "host-1".to_owned(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        })
    );
    assert_eq!(settings.controllers, ControllerSet::all());
    assert_eq!(settings.service.namespace, "default");
    assert_eq!(settings.secure, Some("0.0.0.0:9443".parse().unwrap()));
    assert_eq!(settings.warnings(), Vec::<String>::new());
}

/// Each flag of the original's machine half with its default (spec/machine-controller §12.1) is accepted and changes nothing. Exceptions: the default
/// of `--port` is the default of the other half, and a given number of workers applies to all queues.
#[rstest]
fn each_flag_of_the_machine_half_has_the_originals_default(
    #[values(
        "--port=10258",
        "--address=0.0.0.0",
        "--cloud-provider=",
        "--min-resync-period=12h0m0s",
        "--profiling=false",
        "--contention-profiling=false",
        "--control-kubeconfig=",
        "--namespace=default",
        "--kube-api-content-type=application/vnd.kubernetes.protobuf",
        "--kube-api-qps=20",
        "--kube-api-burst=30",
        "--controller-start-interval=0s",
        "--machine-creation-timeout=20m0s",
        "--machine-health-timeout=10m0s",
        "--machine-drain-timeout=2h0m0s",
        "--machine-inplace-update-timeout=20m0s",
        "--machine-max-evict-retries=360",
        "--machine-pv-detach-timeout=2m0s",
        "--machine-pv-reattach-timeout=1m30s",
        "--machine-preserve-timeout=96h0m0s",
        "--machine-safety-apiserver-statuscheck-timeout=30s",
        "--machine-safety-apiserver-statuscheck-period=1m0s",
        "--machine-safety-orphan-vms-period=15m0s",
        "--node-conditions=KernelDeadlock,ReadonlyFilesystem,DiskPressure,NetworkUnavailable",
        "--bootstrap-token-auth-extra-groups=",
        "--resource-exhausted-retry=10m0s",
        "--leader-elect=true",
        "--leader-elect-lease-duration=15s",
        "--leader-elect-renew-deadline=10s",
        "--leader-elect-retry-period=2s",
        "--leader-elect-resource-lock=leases",
        "--vmodule=",
        "--log-flush-frequency=5s",
        "--alsologtostderr=false",
        "--logtostderr=true",
        "--log_backtrace_at=:0",
        "--log_dir=",
        "--log_file=",
        "--log_file_max_size=1800",
        "--skip_headers=false",
        "--skip_log_headers=false",
        "--stderrthreshold=2"
    )]
    flag: &str,
) {
    let without = serve(&["--target-kubeconfig=/kc"]).unwrap();
    assert_eq!(serve(&["--target-kubeconfig=/kc", flag]).unwrap(), without);
}

#[test]
fn the_workers_of_the_machine_half_are_fifty() {
    let settings = serve(&["--target-kubeconfig=/kc", "--concurrent-syncs=50", "-v=2", "--port=10259"]).unwrap();
    assert_eq!(settings.workers.machine_controller.get(), 50);
    assert_eq!(settings.http.port.get(), 10259);
}

/// The answer contains exactly the named mistakes.
#[rstest]
#[case::mc_002_check_period_below_its_timeout(
    &["--machine-safety-apiserver-statuscheck-period=20s", "--machine-safety-apiserver-statuscheck-timeout=30s"],
    &["period should not be less than APIServer status check timeout"])]
#[case::mc_004_two_mistakes_are_both_named(
    &["--port=0", "--machine-max-evict-retries=-1"], &["--port: ", "--machine-max-evict-retries: "])]
#[case::mc_005_and_s_cli_04_no_cluster_at_all(
    &["--target-kubeconfig=none"], &["--control-kubeconfig cannot be empty if --target-kubeconfig=none is specified"])]
#[case::s_cli_02_port_and_qps(
    &["--port=70000", "--kube-api-qps=0"],
    &["invalid port number provided: got 70000", "kube api qps should be greater than zero"])]
#[case::s_cli_03_contention_without_profiling(
    &["--contention-profiling"], &["contention-profiling cannot be enabled without enabling profiling"])]
#[case::a_text_that_is_no_address(&["--address=here"], &["invalid IP address provided: got \"here\""])]
#[case::no_workers(&["--concurrent-syncs=0"], &["concurrent syncs should be greater than zero"])]
#[case::negative_numbers(
    &["--min-resync-period=-1s", "--kube-api-burst=-1", "--safety-up", "-1", "--machine-drain-timeout", "-5m"],
    &["kube api burst should not be a negative value", "min resync period should be a non negative value: got -1s",
      "machine drain timeout should be a non negative number: got -5m0s", "safety up should be a non negative value"])]
#[case::a_text_that_is_no_content_type(&["--kube-api-content-type=a b/c"], &["kube api content type cannot be parsed"])]
#[case::an_unknown_controller(&["--controllers=*,-pods"], &["\"pods\" is not in the list of known controllers"])]
#[case::none_beside_a_controller(&["--controllers=none,machine"], &["\"none\" must stand alone"])]
#[case::a_lease_shorter_than_its_renewal(
    &["--leader-elect-lease-duration=5s"], &["leaseDuration must be greater than renewDeadline"])]
#[case::an_old_lock(&["--leader-elect-resource-lock=endpoints"], &["only \"leases\" is"])]
#[case::certificate_files_without_files(&["--cert-mode=files"], &["--cert-mode=files needs --tls-cert-file"])]
#[case::certificate_files_in_another_mode(&["--tls-cert-file=/c"], &["with --cert-mode=files only"])]
#[case::an_unknown_certificate_mode(&["--cert-mode=acme"], &["unknown mode \"acme\""])]
#[case::an_unknown_profile(&["--admission-profile=lax"], &["must be compat or strict"])]
#[case::an_unreadable_simulation_state(&["--simulation-state=json:"], &["cannot read \"json:\""])]
#[case::a_simulation_state_that_names_no_config_map(&["--simulation-state=configmap:A_b"], &["configmap:NAME: NAME must be"])]
#[case::a_simulation_admin_api_that_other_hosts_could_reach(
    &["--simulation-admin=0.0.0.0:1"], &["must be a loopback address"])]
#[case::an_empty_list_entry(&["--drivers=virtual,"], &["--drivers: the list has an empty entry"])]
fn a_wrong_flag_is_named(#[case] flags: &[&str], #[case] wanted: &[&str]) {
    let problems = serve(flags).unwrap_err();
    assert_eq!(problems.len(), wanted.len(), "{problems:#?}");
    for wanted in wanted {
        assert!(problems.iter().any(|problem| problem.contains(wanted)), "{problems:#?} do not say {wanted:?}");
    }
}

#[test]
fn mc_003_no_wait_after_exhaustion_means_ten_minutes() {
    let settings = serve(&["--resource-exhausted-retry=0"]).unwrap();
    assert_eq!(settings.machine.resource_exhausted_retry, minutes(10));
}

#[rstest]
#[case::mc_006_control_without_target(
    &["--target-kubeconfig=none", "--control-kubeconfig=/c"],
    ControlCluster::Kubeconfig(Path::new("/c").into()), TargetCluster::None)]
#[case::s_cli_05_control_in_cluster(
    &["--target-kubeconfig=none", "--control-kubeconfig=inClusterConfig"], ControlCluster::InCluster, TargetCluster::None)]
#[case::s_cli_06_control_is_the_target(
    &["--target-kubeconfig=/t"],
    ControlCluster::Kubeconfig(Path::new("/t").into()), TargetCluster::Kubeconfig(Path::new("/t").into()))]
#[case::neither(&[], ControlCluster::InCluster, TargetCluster::InCluster)]
fn the_flags_select_the_clusters(
    #[case] flags: &[&str],
    #[case] control: ControlCluster,
    #[case] target: TargetCluster,
) {
    let settings = serve(flags).unwrap();
    assert_eq!((settings.control, settings.target), (control, target));
}

#[test]
fn pk_031_a_changed_kubeconfig_has_no_consequence_unless_a_flag_says_so() {
    assert_eq!(serve(&["--target-kubeconfig=/t"]).unwrap().kubeconfig_reload, KubeconfigReload::Never);
    let views = ["--extension-apiserver", "--authentication-kubeconfig=/a", "--authorization-kubeconfig=/t"];
    let flags = ["--kubeconfig-reload=exit", "--target-kubeconfig=/t", "--control-kubeconfig=/c"];
    let settings = serve(&[&flags[..], &views].concat()).unwrap();
    assert_eq!(settings.kubeconfig_reload, KubeconfigReload::Exit);
    let files: Vec<&Path> = settings.kubeconfigs().into_iter().collect();
    assert_eq!(files, ["/a", "/c", "/t"].map(Path::new));
    assert!(serve(&["--kubeconfig-reload=exit"]).unwrap().kubeconfigs().is_empty(), "service accounts have none");
}

#[rstest]
#[case::stored(&[], ReadVersion::Stored)]
#[case::named(&["--api-version=v1beta1"], ReadVersion::Fixed(ApiVersion::V1beta1))]
fn the_watched_version_can_be_fixed(#[case] flags: &[&str], #[case] expected: ReadVersion) {
    assert_eq!(serve(flags).unwrap().read_version, expected);
}

#[test]
fn callers_of_webhooks_can_be_restricted() {
    let webhooks = serve(&[]).unwrap().webhooks;
    assert_eq!((webhooks.client_authorities, webhooks.tls_min_version), (None, TlsMinVersion::V1_2));
    let flags = ["--webhook-client-ca=/ca.pem", "--max-inflight-admission=7", "--tls-min-version=VersionTLS13"];
    let settings = serve(&flags).unwrap();
    assert_eq!(settings.limits.requests.admission_in_flight, 7);
    assert_eq!(settings.webhooks.client_authorities, Some("/ca.pem".into()));
    assert_eq!(settings.webhooks.tls_min_version, TlsMinVersion::V1_3);
    let problems = serve(&["--max-inflight-admission=0", "--tls-min-version=1.3"]).unwrap_err();
    assert_eq!(
        problems,
        [
            "--max-inflight-admission: must be greater than 0: got 0",
            "--tls-min-version: unknown version \"1.3\": must be VersionTLS12 or VersionTLS13"
        ]
    );
}

#[test]
fn certificates_for_names_have_the_syntax_of_the_api_server() {
    let read = |flag: &str| serve(&[&format!("--tls-sni-cert-key={flag}")]).map(|settings| settings.sni_certificates);
    let pair = |names: &[&str]| SniCertificate {
        certificate: "a.crt".into(),
        private_key: "a.key".into(),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    assert_eq!(read("a.crt,a.key").unwrap(), [pair(&[])]);
    assert_eq!(read("a.crt,a.key:*.foo.com,foo.com").unwrap(), [pair(&["*.foo.com", "foo.com"])]);
    assert!(read("a.crt").unwrap_err()[0].contains("expected comma separated certificate and key file paths"));
    assert!(read("a.crt,a.key:10.0.0.1").unwrap_err()[0].contains("\"10.0.0.1\" is no DNS name"));
    assert!(read("a.crt,a.key:a.*.com").unwrap_err()[0].contains("\"a.*.com\" is no DNS name"));
}

#[test]
fn a_namespace_may_have_its_own_webhook_configurations() {
    let configuration = |flags: &[&str]| serve(flags).unwrap().webhooks.configuration;
    assert_eq!(configuration(&["--namespace=shoot"]), "machine-controller-manager");
    assert_eq!(configuration(&["--namespace=shoot", "--webhook-scope=namespace"]), "machine-controller-manager-shoot");
}

#[test]
fn a_flag_sends_late_requests_a_retry_after() {
    assert_eq!(serve(&[]).unwrap().shutdown.late_requests, LateRequests::FindNobody);
    assert_eq!(serve(&[]).unwrap().shutdown.driver_drain, Duration::from_secs(20));
    let settings = serve(&["--shutdown-send-retry-after"]).unwrap();
    assert_eq!(settings.shutdown.late_requests, LateRequests::AreToldToRetry);
}

#[test]
fn cipher_suites_are_named_as_in_go() {
    use TlsCipherSuite as Suite;
    let suites = |list: &str| {
        serve(&[&format!("--tls-cipher-suites={list}")]).map(|settings| settings.webhooks.tls_cipher_suites)
    };
    assert_eq!(serve(&[]).unwrap().webhooks.tls_cipher_suites, Suite::ALL);
    let tls13 = [Suite::Tls13Aes256, Suite::Tls13Aes128, Suite::Tls13ChaCha20];
    let list = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305";
    assert_eq!(suites(list).unwrap(), [&[Suite::RsaAes128, Suite::EcdsaChaCha20][..], &tls13].concat());
    assert_eq!(suites("TLS_AES_128_GCM_SHA256").unwrap(), [Suite::Tls13Aes128]);
    let problems = suites("TLS_RSA_WITH_AES_128_CBC_SHA").unwrap_err();
    assert!(problems[0].starts_with("--tls-cipher-suites: \"TLS_RSA_WITH_AES_128_CBC_SHA\" is unknown or not secure"));
    assert!(suites("").unwrap_err()[0].starts_with("--tls-cipher-suites: "), "a blank member is a mistake");
}

#[rstest]
#[case::others_may_serve_others(&[], Coverage::Some)]
#[case::even_if_some_are_named(&["--drivers=virtual"], Coverage::Some)]
#[case::no_other_process_serves_any(&["--drivers-exclusive"], Coverage::All)]
#[case::the_default_in_full(&["--drivers-exclusive=false"], Coverage::Some)]
fn a_process_knows_whether_it_has_all_drivers(#[case] flags: &[&str], #[case] expected: Coverage) {
    assert_eq!(serve(flags).unwrap().admission.providers, expected);
}

#[test]
fn warm_standbys_and_finalizers_in_admission_can_be_switched_off() {
    let settings = serve(&[]).unwrap();
    assert_eq!((settings.standby_caches, settings.admission.finalizers), (StandbyCaches::Warm, FinalizerDefault::Add));
    let settings = serve(&["--standby-caches=false", "--default-finalizers=false"]).unwrap();
    assert_eq!(
        (settings.standby_caches, settings.admission.finalizers),
        (StandbyCaches::Cold, FinalizerDefault::Leave)
    );
}

#[rstest]
#[case::views_would_have_no_caches(&["--controllers=none", "--standby-caches=false"], false)]
#[case::it_keeps_caches(&["--controllers=none"], true)]
#[case::it_may_lead(&["--standby-caches=false"], true)]
#[case::it_has_no_views(&["--controllers=none", "--standby-caches=false", "--extension-apiserver=false"], true)]
#[case::it_has_no_tls_port(&["--controllers=none", "--standby-caches=false", "--secure-port=0"], true)]
fn a_process_that_never_has_caches_can_not_serve_views(#[case] flags: &[&str], #[case] allowed: bool) {
    let result = serve(flags).map(|_| ()).map_err(|problems| problems.join("\n"));
    let expected = "--standby-caches=false: with --controllers=none this process never leads, so its views would never have a \
                    cache to be computed from: leave the flag out, or add --extension-apiserver=false";
    assert_eq!(result, if allowed { Ok(()) } else { Err(expected.to_owned()) });
}

#[test]
fn s_cli_07_underscores_and_single_dashes_are_accepted() {
    let settings = serve(&["--safety_up=3", "-leader-elect=false", "-v=4", "--logtostderr", "--skip_headers=true"]);
    let settings = settings.unwrap();
    assert_eq!((settings.safety.margins.up, settings.leader_election), (3, None));
}

#[test]
fn an_explicit_number_of_workers_applies_to_all_queues() {
    let workers = serve(&["--concurrent-syncs=7"]).unwrap().workers;
    assert_eq!((workers.controller_manager.get(), workers.machine_controller.get()), (7, 7));
}

#[rstest]
#[case::all_but_one("*,-node", 8, &Half::ALL)]
#[case::leaving_out_wins_in_any_order("-node,*", 8, &Half::ALL)]
#[case::one_half("machinedeployment,machineset", 2, &[Half::ControllerManager])]
#[case::none("none", 0, &[])]
fn a_flag_selects_the_loops(#[case] flag: &str, #[case] count: usize, #[case] halves: &[Half]) {
    let controllers = serve(&["--controllers", flag]).unwrap().controllers;
    assert_eq!((controllers.iter().count(), controllers.halves().as_slice()), (count, halves));
}

#[test]
fn the_same_port_in_both_flags_is_one_listener() {
    assert_eq!(serve(&["--port=10259"]).unwrap().http.compat_port, None);
    assert_eq!(serve(&["--compat-port=0", "--secure-port=0"]).unwrap().secure, None);
}

#[test]
fn probable_mistakes_cause_warnings() {
    let settings = serve(&["--machine-health-timeout=0", "--machine-pv-detach-timeout=3h"]).unwrap();
    assert_eq!(settings.warnings().len(), 2);
}

#[rstest]
#[case::a_loop_that_runs_nowhere(&["--controllers=*,-machinesafetyorphanvms"], &["--controllers leaves out machinesafetyorphanvms"])]
#[case::other_processes_run_it_without_leases(&["--controllers=machine", "--leader-elect=false"], &[])]
#[case::a_whole_half(&["--half=machine-controller"], &[])]
#[case::none(&["--controllers=none"], &[])]
fn an_incomplete_half_causes_a_warning(#[case] flags: &[&str], #[case] beginnings: &[&str]) {
    let warnings = serve(flags).unwrap().warnings();
    assert_eq!(warnings.len(), beginnings.len(), "{warnings:?}");
    assert!(warnings.iter().zip(beginnings).all(|(warning, beginning)| warning.starts_with(beginning)), "{warnings:?}");
}

#[rstest]
#[case::d_22_d_51_both_are_off(&[], AvailabilityRule::VmExists, OldSets::Left)]
#[case::d_22_strict_availability(&["--strict-availability"], AvailabilityRule::NodeReady, OldSets::Left)]
#[case::d_51_old_sets_are_synced(&["--sync-old-machine-sets=true"], AvailabilityRule::VmExists, OldSets::Synced)]
fn rollouts_may_be_stricter(#[case] flags: &[&str], #[case] availability: AvailabilityRule, #[case] old_sets: OldSets) {
    let flags: Vec<&str> = ["--target-kubeconfig=/kc"].iter().chain(flags).copied().collect();
    let settings = serve(&flags).unwrap();
    assert_eq!((settings.rollout.availability, settings.rollout.old_sets), (availability, old_sets));
}

fn called_as(program: &str, flags: &[&str]) -> Settings {
    let line = [program].into_iter().chain(flags.iter().copied()).map(Into::into).collect();
    let cli = Cli::try_parse_from(crate::cli::normalised(crate::cli::called_as::completed(line))).expect("flags parse");
    let Command::Serve(args) = cli.command else { panic!("not serve") };
    args.validate(&HostInfo { host_name: "host-1".to_owned(), pod_namespace: None }).unwrap()
}

#[rstest]
#[case::deployments_and_sets("./machine-controller-manager", Half::ControllerManager, 3, 10258)]
#[case::machines("./machine-controller", Half::MachineController, 6, 10259)]
fn a_program_with_the_name_of_a_half_is_that_half(
    #[case] program: &str,
    #[case] half: Half,
    #[case] loops: usize,
    #[case] port: u16,
) {
    // The flags that Gardener gives to both, and some of one half only.
    let settings = called_as(program, &["--control-kubeconfig=inClusterConfig", "--safety_up=2", "--v=3"]);
    assert_eq!((settings.controllers.halves().as_slice(), settings.controllers.iter().count()), (&[half][..], loops));
    assert_eq!((settings.http.port.get(), settings.http.compat_port), (port, None));
    assert_eq!((settings.secure, settings.extension.is_none()), (None, true));
    let settings = called_as(program, &["--port=8080", "--secure-port=9443", "--controllers=*,-node"]);
    assert_eq!((settings.http.port.get(), settings.secure.is_some()), (8080, true));
    assert_eq!(settings.controllers.halves().as_slice(), [half]);
}

#[test]
fn too_many_workers_and_impossible_names_are_refused_at_the_start() {
    let problems = serve(&["--concurrent-syncs=1000000", "--namespace=Bad_NS"]).unwrap_err();
    assert!(problems[0].starts_with("--namespace: \"Bad_NS\" is no name of a namespace"), "{problems:?}");
    assert!(problems[1].starts_with("--concurrent-syncs: must be at most 10000"), "{problems:?}");
}
