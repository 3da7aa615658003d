//! The flags of the extension API server, and their settings. The names are the same as in Go's library, which operators know.
//!
//! Source: spec/extension-apiserver §1.7, §3.1, §3.6, §4.4.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::problems::Problems;
use crate::{
    cli::go_flags::go_bool,
    extension::{authentication::config::header_name, authorization::decide::OpenPaths},
    settings::{
        AuditLog, AuthenticationSettings, AuthorizationSettings, ExtensionSettings, FrontProxySettings,
        SharedAuthority, SourceRights, ViewSelection,
    },
};
use kube_values::duration::GoDuration;
use machine_api::names;

/// Flags of the extension API server.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Views (extension API server)")]
#[allow(clippy::struct_excessive_bools)] // one per flag; `Settings` has enums
pub struct ExtensionArgs {
    /// Serve views on the TLS port, for the aggregation layer of the API server
    #[arg(long, default_value = "true", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub extension_apiserver: bool,
    /// Views to serve, comma separated; unset means all
    #[arg(long, value_delimiter = ',', value_name = "VIEWS")]
    pub views: Option<Vec<String>>,
    /// A reader of a view also needs the right to read the objects that the view is computed from
    #[arg(long, default_value = "true", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub views_check_source_rbac: bool,
    /// Maximum age of the list of a provider's VMs
    #[arg(long, default_value = "30s", value_name = "DURATION", allow_hyphen_values = true)]
    pub inventory_max_age: GoDuration,
    /// Kubeconfig for token reviews; unset means the kubeconfig of the control cluster
    #[arg(long, value_name = "FILE")]
    pub authentication_kubeconfig: Option<PathBuf>,
    /// Do not read kube-system/extension-apiserver-authentication, which names the trusted authorities
    #[arg(long, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub authentication_skip_lookup: bool,
    /// Always true here: a failed lookup makes only the views unavailable
    #[arg(long, hide = true, default_value = "true", default_missing_value = "true", num_args = 0..=1,
          require_equals = true, value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub authentication_tolerate_lookup_failure: bool,
    /// How long token reviews are cached
    #[arg(long, default_value = "10s", value_name = "DURATION", allow_hyphen_values = true)]
    pub authentication_token_webhook_cache_ttl: GoDuration,
    /// Audiences of tokens, comma separated; unset means the audience of the API server
    #[arg(long, value_delimiter = ',', value_name = "AUDIENCES")]
    pub api_audiences: Vec<String>,
    /// Kubeconfig for access reviews; unset means the kubeconfig of the control cluster
    #[arg(long, value_name = "FILE")]
    pub authorization_kubeconfig: Option<PathBuf>,
    /// How long allowed requests are cached
    #[arg(long, default_value = "10s", value_name = "DURATION", allow_hyphen_values = true)]
    pub authorization_webhook_cache_authorized_ttl: GoDuration,
    /// How long refused requests are cached
    #[arg(long, default_value = "10s", value_name = "DURATION", allow_hyphen_values = true)]
    pub authorization_webhook_cache_unauthorized_ttl: GoDuration,
    /// Paths that need no right, comma separated; "*" at the end matches all paths with this prefix
    #[arg(long, value_delimiter = ',', default_value = "/healthz,/readyz,/livez", value_name = "PATHS")]
    pub authorization_always_allow_paths: Vec<String>,
    /// Certificate authorities of clients in PEM, instead of the authorities that the API server publishes
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Certificate authorities of front proxies in PEM; the front proxies that the API server publishes are then ignored
    #[arg(long, value_name = "FILE")]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Allowed common names of front proxies; unset means any
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub requestheader_allowed_names: Vec<String>,
    /// Headers with the user's name
    #[arg(long, value_delimiter = ',', default_value = "x-remote-user", value_name = "HEADERS")]
    pub requestheader_username_headers: Vec<String>,
    /// Headers with the user's UID
    #[arg(long, value_delimiter = ',', value_name = "HEADERS")]
    pub requestheader_uid_headers: Vec<String>,
    /// Headers with groups
    #[arg(long, value_delimiter = ',', default_value = "x-remote-group", value_name = "HEADERS")]
    pub requestheader_group_headers: Vec<String>,
    /// Prefixes of headers with further attributes of the user
    #[arg(long, value_delimiter = ',', default_value = "x-remote-extra-", value_name = "PREFIXES")]
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// Trust front proxies of any name even if clients have certificates of the same authority
    #[arg(long, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub allow_shared_front_proxy_ca: bool,
    /// File to which a line per request is written; "-" means standard output
    #[arg(long, value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,
    /// Maximum number of concurrent requests to views
    #[arg(long, default_value = "200", value_name = "N", allow_negative_numbers = true)]
    pub max_requests_inflight: i64,
    /// Deadline of a request to a view
    #[arg(long, default_value = "1m", value_name = "DURATION", allow_hyphen_values = true)]
    pub request_timeout: GoDuration,
    /// Maximum number of plans that a view computes at the same time; further plans wait briefly
    #[arg(long, default_value = "2", value_name = "N", allow_negative_numbers = true)]
    pub max_plans_inflight: i64,
    /// Maximum number of inventories that are requested from providers at the same time; further inventories wait briefly
    #[arg(long, default_value = "8", value_name = "N", allow_negative_numbers = true)]
    pub max_inventories_inflight: i64,
}

impl ExtensionArgs {
    /// The settings. `None` when the extension API server is off.
    pub(super) fn settings(&self, problems: &mut Problems) -> Option<ExtensionSettings> {
        let authentication = self.authentication(problems);
        let open_paths = self.authorization_always_allow_paths.clone();
        if let Err(why) = OpenPaths::parse(&open_paths) {
            problems.add(format!("--authorization-always-allow-paths: {why}"));
        }
        let mut at_a_time = |flag: &str, given: i64| {
            let read = usize::try_from(given).unwrap_or(0);
            problems.unless(read > 0, &format!("{flag}: must be at least 1"));
            read
        };
        let in_flight = at_a_time("--max-requests-inflight", self.max_requests_inflight);
        let plans_at_a_time = at_a_time("--max-plans-inflight", self.max_plans_inflight);
        let inventories_at_a_time = at_a_time("--max-inventories-inflight", self.max_inventories_inflight);
        problems.unless(self.request_timeout > GoDuration::default(), "--request-timeout: must be greater than zero");
        let settings = ExtensionSettings {
            views: self.views(problems),
            source_rights: if self.views_check_source_rbac { SourceRights::Checked } else { SourceRights::NotChecked },
            inventory_max_age: problems.duration(self.inventory_max_age, "--inventory-max-age: must not be negative"),
            authentication,
            authorization: AuthorizationSettings {
                kubeconfig: self.authorization_kubeconfig.clone(),
                allowed_time_to_live: problems.duration(
                    self.authorization_webhook_cache_authorized_ttl,
                    "--authorization-webhook-cache-authorized-ttl: must not be negative",
                ),
                refused_time_to_live: problems.duration(
                    self.authorization_webhook_cache_unauthorized_ttl,
                    "--authorization-webhook-cache-unauthorized-ttl: must not be negative",
                ),
                open_paths,
            },
            audit_log: self.audit_log_path.as_ref().map(|path| match path.to_str() {
                Some("-") => AuditLog::Stdout,
                _ => AuditLog::File(path.clone()),
            }),
            requests_in_flight: in_flight,
            request_timeout: self.request_timeout.to_std(),
            plans_at_a_time,
            inventories_at_a_time,
        };
        self.extension_apiserver.then_some(settings)
    }

    fn views(&self, problems: &mut Problems) -> ViewSelection {
        let Some(chosen) = &self.views else { return ViewSelection::All };
        let chosen = problems.entries("--views", chosen);
        for name in chosen.iter().filter(|name| !names::VIEWS.contains(&name.as_str())) {
            problems.add(format!("--views: {name:?} is none of {}", names::VIEWS.join(", ")));
        }
        ViewSelection::Only(chosen.into_iter().collect())
    }

    fn authentication(&self, problems: &mut Problems) -> AuthenticationSettings {
        let front_proxy = self.requestheader_client_ca_file.as_ref().map(|ca| FrontProxySettings {
            ca: ca.clone(),
            allowed_names: problems.entries("--requestheader-allowed-names", &self.requestheader_allowed_names),
            user_headers: headers(problems, "--requestheader-username-headers", &self.requestheader_username_headers),
            uid_headers: headers(problems, "--requestheader-uid-headers", &self.requestheader_uid_headers),
            group_headers: headers(problems, "--requestheader-group-headers", &self.requestheader_group_headers),
            extra_prefixes: headers(
                problems,
                "--requestheader-extra-headers-prefix",
                &self.requestheader_extra_headers_prefix,
            ),
        });
        if front_proxy.is_none() && !self.requestheader_allowed_names.is_empty() {
            problems.add("--requestheader-allowed-names counts with --requestheader-client-ca-file only");
        }
        AuthenticationSettings {
            kubeconfig: self.authentication_kubeconfig.clone(),
            reads_config_map: !self.authentication_skip_lookup,
            token_time_to_live: problems.duration(
                self.authentication_token_webhook_cache_ttl,
                "--authentication-token-webhook-cache-ttl: must not be negative",
            ),
            audiences: problems.entries("--api-audiences", &self.api_audiences),
            client_ca: self.client_ca_file.clone(),
            front_proxy,
            shared_authority: if self.allow_shared_front_proxy_ca {
                SharedAuthority::Allowed
            } else {
                SharedAuthority::Refused
            },
        }
    }
}

/// The entries of a flag that lists header names.
fn headers(problems: &mut Problems, flag: &str, entries: &[String]) -> Vec<String> {
    let entries = problems.entries(flag, entries);
    for why in entries.iter().filter(|entry| !entry.is_empty()).filter_map(|entry| header_name(entry).err()) {
        problems.add(format!("{flag}: {why}"));
    }
    entries
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;
    use crate::{
        cli::{Cli, Command, serve::validate::HostInfo},
        settings::Settings,
    };

    fn serve(flags: &[&str]) -> Result<Settings, Vec<String>> {
        let line = ["mcm", "serve"].into_iter().chain(flags.iter().copied()).map(Into::into);
        let cli = Cli::try_parse_from(crate::cli::normalised(line.collect())).expect("flags parse");
        let Command::Serve(args) = cli.command else { panic!("not serve") };
        args.validate(&HostInfo { host_name: "host-1".to_owned(), pod_namespace: None })
    }

    #[test]
    fn the_defaults_are_those_of_gos_library() {
        let settings = serve(&[]).unwrap().extension.unwrap();
        let ten_seconds = std::time::Duration::from_secs(10);
        assert_eq!(settings.authentication.token_time_to_live, ten_seconds);
        assert_eq!(settings.authorization.allowed_time_to_live, ten_seconds);
        assert_eq!(settings.authorization.refused_time_to_live, ten_seconds);
        assert_eq!(settings.authorization.open_paths, ["/healthz", "/readyz", "/livez"]);
        assert_eq!((settings.views, settings.source_rights), (ViewSelection::All, SourceRights::Checked));
        assert_eq!((settings.authentication.reads_config_map, settings.authentication.front_proxy), (true, None));
        assert_eq!(
            (settings.requests_in_flight, settings.request_timeout.as_secs(), settings.audit_log),
            (200, 60, None)
        );
        assert_eq!((settings.plans_at_a_time, settings.inventories_at_a_time), (2, 8));
    }

    #[test]
    fn the_server_can_be_switched_off_and_restricted() {
        assert_eq!(serve(&["--extension-apiserver=false"]).unwrap().extension, None);
        let settings = serve(&["--views=machineoutlooks", "--audit-log-path=-"]).unwrap().extension.unwrap();
        assert!(settings.views.includes("machineoutlooks") && !settings.views.includes("drainplans"));
        assert_eq!(settings.audit_log, Some(AuditLog::Stdout));
        let settings = serve(&["--requestheader-client-ca-file=/ca", "--requestheader-allowed-names=a,b"]).unwrap();
        let proxy = settings.extension.unwrap().authentication.front_proxy.unwrap();
        assert_eq!(
            (proxy.allowed_names, proxy.user_headers),
            (vec!["a".to_owned(), "b".to_owned()], vec!["x-remote-user".to_owned()])
        );
    }

    #[rstest]
    #[case::unknown_view(&["--views=pods"], "\"pods\" is none of drainplans")]
    #[case::blank_path(&["--authorization-always-allow-paths=/healthz, "], "one of the paths is empty")]
    #[case::blank_member(&["--requestheader-client-ca-file=/ca", "--requestheader-allowed-names=a, "], "the list has an empty entry")]
    #[case::no_header(&["--requestheader-client-ca-file=/ca", "--requestheader-group-headers=a b"], "can't be the name of a header")]
    #[case::names_alone(&["--requestheader-allowed-names=a"], "counts with --requestheader-client-ca-file only")]
    #[case::no_request_at_a_time(&["--max-requests-inflight=0"], "must be at least 1")]
    #[case::no_plan_at_a_time(&["--max-plans-inflight=0"], "--max-plans-inflight: must be at least 1")]
    #[case::no_inventory_at_a_time(&["--max-inventories-inflight=-1"], "--max-inventories-inflight: must be at least 1")]
    #[case::no_time(&["--request-timeout=0s"], "must be greater than zero")]
    #[case::negative(&["--inventory-max-age=-1s"], "must not be negative")]
    fn mistakes_are_named(#[case] flags: &[&str], #[case] text: &str) {
        let problems = serve(flags).unwrap_err();
        assert!(problems.iter().any(|problem| problem.contains(text)), "{problems:?}");
    }
}
