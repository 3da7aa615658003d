//! The flag for traces.

use clap::Args;
use http::Uri;

use super::{problems::Problems, validate::HostInfo};
use crate::{observability::traces::otlp, settings::TracingSettings};

/// Flags for traces.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Traces")]
pub struct TracingArgs {
    /// Address of a collector of OpenTelemetry that takes OTLP over HTTP, such as http://collector:4318; unset means no traces
    #[allow(clippy::doc_markdown)] // the text of `--help`, where a URL stands without brackets
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        hide_env_values = true,
        value_name = "URL",
        long_help = "Address of a collector of OpenTelemetry that takes OTLP over HTTP, such as http://collector:4318; unset means no traces.\n\
            The path /v1/traces is appended. The certificate of an https address is verified with the authorities of the system, or \
            with those that SSL_CERT_FILE names"
    )]
    pub tracing_endpoint: Option<String>,
}

impl TracingArgs {
    pub(super) fn settings(&self, host: &HostInfo, problems: &mut Problems) -> Option<TracingSettings> {
        // Charts and shells set the variable to nothing in order to unset it.
        let text = self.tracing_endpoint.as_deref().map(str::trim).filter(|text| !text.is_empty())?;
        let endpoint = endpoint(text);
        // The message doesn't repeat the address, because it could contain a password.
        problems.unless(
            endpoint.is_some(),
            "--tracing-endpoint: must be an http or https address such as http://collector:4318, without user, password and query",
        );
        endpoint.map(|endpoint| TracingSettings { endpoint, instance: host.host_name.clone() })
    }
}

/// The address for traces of a collector with this address. `None` for a text that is no such address.
fn endpoint(text: &str) -> Option<Uri> {
    let uri: Uri = text.parse().ok()?;
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
    let is_plain = matches!(scheme, "http" | "https")
        && !authority.host().is_empty()
        && !authority.as_str().contains('@')
        && uri.query().is_none();
    if !is_plain {
        return None;
    }
    let path = uri.path().trim_end_matches('/');
    let path = path.strip_suffix(otlp::PATH).unwrap_or(path);
    format!("{scheme}://{authority}{path}{}", otlp::PATH).parse().ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_collector("http://collector:4318", Some("http://collector:4318/v1/traces"))]
    #[case::with_a_slash("https://collector.example/", Some("https://collector.example/v1/traces"))]
    #[case::below_a_path("https://example.com/otlp", Some("https://example.com/otlp/v1/traces"))]
    #[case::with_the_whole_path("http://[::1]:4318/v1/traces", Some("http://[::1]:4318/v1/traces"))]
    #[case::no_scheme("collector:4318", None)]
    #[case::another_scheme("grpc://collector:4317", None)]
    #[case::with_a_password("https://user:secret@collector", None)]
    #[case::with_a_query("https://collector?token=secret", None)]
    #[case::nonsense("http://", None)]
    fn the_address_of_a_collector_gets_the_path_of_traces(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(endpoint(text).map(|uri| uri.to_string()).as_deref(), expected);
    }

    #[rstest]
    #[case::unset(None, true, false)]
    #[case::empty(Some(" "), true, false)]
    #[case::set(Some("http://collector:4318"), true, true)]
    #[case::wrong(Some("https://user:secret@collector"), false, false)]
    fn traces_are_off_unless_there_is_an_address(
        #[case] text: Option<&str>,
        #[case] is_right: bool,
        #[case] is_on: bool,
    ) {
        let args = TracingArgs { tracing_endpoint: text.map(str::to_owned) };
        let host = HostInfo { host_name: "pod-1".to_owned(), pod_namespace: None };
        let mut problems = Problems::default();
        let settings = args.settings(&host, &mut problems);
        assert_eq!(settings.is_some(), is_on);
        assert!(settings.is_none_or(|settings| settings.instance == "pod-1"));
        match problems.none() {
            Ok(()) => assert!(is_right),
            Err(lines) => assert!(!is_right && !lines.concat().contains("secret"), "{lines:?}"),
        }
    }
}
