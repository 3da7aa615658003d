//! Logs of the process.
//!
//! As with klog, all logs go to standard error, and `-v` sets the verbosity. At the same verbosity the libraries log less than our
//! own crates, because their details are rarely wanted. [`fields`] lists the fields of lines, [`json`] writes lines in JSON, and [`panics`] logs panics.

pub mod fields;
mod json;
mod panics;
#[cfg(test)]
mod scan;

use std::{
    fmt::{self, Write},
    path::Path,
};

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use tracing::{Event, Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    filter::Targets,
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::{JsonFields, Writer},
    },
    layer::SubscriberExt,
    registry::{LookupSpan, Scope},
    util::SubscriberInitExt,
};

/// Verbosity and format of logs.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logs")]
pub struct LoggingArgs {
    /// Verbosity: 0 to 3 log what happens, 4 and 5 also why, 6 and more log everything
    #[arg(short = 'v', long = "v", default_value = "0", value_name = "LEVEL", allow_negative_numbers = true)]
    pub verbosity: i32,
    /// Format of the lines
    #[arg(long, default_value = "text", value_name = "FORMAT")]
    pub logging_format: LogFormat,
}

/// Format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
    /// The format of Go programs (klog), for log collectors that parse it.
    Klog,
}

/// Lines as klog writes them: `I1122 13:39:25.531806   4711 act.rs:42] message key=value`.
struct Klog {
    pid: u32,
}

impl<S, N> FormatEvent<S, N> for Klog
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let source = match (metadata.file(), metadata.line()) {
            (Some(file), Some(line)) => {
                let file = Path::new(file).file_name().and_then(|name| name.to_str()).unwrap_or(file);
                format!("{file}:{line}")
            }
            _ => metadata.target().to_owned(),
        };
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        for span in context.event_scope().into_iter().flat_map(Scope::from_root) {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>().filter(|known| !known.fields.is_empty())
            {
                write!(text, " {}", fields.fields)?;
            }
        }
        writeln!(writer, "{}", klog_line(*metadata.level(), Timestamp::now(), self.pid, &source, &text))
    }
}

/// One line, even if the text has several. A log collector treats every line as one entry.
fn klog_line(level: Level, now: Timestamp, pid: u32, source: &str, text: &str) -> String {
    let severity = match level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    let mut line = String::new();
    // Writing to a string cannot fail.
    let _ = write!(line, "{severity}{} {pid:>7} {source}] ", now.strftime("%m%d %H:%M:%S%.6f"));
    line.push_str(&text.replace('\r', "\\r").replace('\n', "\\n"));
    line
}

/// Starts logging. The command calls it once.
///
/// # Errors
/// When the process has a logger already.
pub fn start(args: &LoggingArgs) -> Result<(), tracing_subscriber::util::TryInitError> {
    let registry = tracing_subscriber::registry().with(filter(args.verbosity));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let started = match args.logging_format {
        LogFormat::Text => registry.with(lines.with_ansi(false)).try_init(),
        LogFormat::Json => registry.with(lines.fmt_fields(JsonFields::new()).event_format(json::JsonLine)).try_init(),
        LogFormat::Klog => {
            registry.with(lines.with_ansi(false).event_format(Klog { pid: std::process::id() })).try_init()
        }
    };
    if started.is_ok() {
        panics::log_panics();
    }
    started
}

/// Starts logging for an interactive command: at verbosity 0 it logs only warnings and errors.
///
/// # Errors
/// When the process has a logger already.
pub fn start_quietly(verbosity: i32) -> Result<(), tracing_subscriber::util::TryInitError> {
    let filter = if verbosity == 0 {
        filter(0).with_targets(OURS.map(|name| (name, LevelFilter::WARN)))
    } else {
        filter(verbosity)
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(filter).with(lines).try_init()
}

/// The crates of this program, by their names in log lines.
const OURS: [&str; 24] = [
    "cloud_client",
    "controller_runtime",
    "driver_alicloud",
    "driver_aws",
    "driver_azure",
    "driver_external",
    "driver_gcp",
    "driver_local",
    "driver_openstack",
    "driver_virtual",
    "fault_proxy",
    "kube_dev_server",
    "kube_listener",
    "kube_protocol",
    "kube_values",
    "machine_api",
    "machine_controller_manager",
    "machine_controllers",
    "machine_driver",
    "machine_simulation",
    "mcm",
    "mcm_metrics",
    "mcm_traces",
    "tls_client",
];

/// The target of lines about destructive effects (`controller_runtime::gate`).
const AUDIT: &str = "audit";

/// The log levels at a verbosity.
fn filter(verbosity: i32) -> Targets {
    let (ours, theirs) = match verbosity {
        ..=3 => (LevelFilter::INFO, LevelFilter::WARN),
        4..=5 => (LevelFilter::DEBUG, LevelFilter::INFO),
        6..=9 => (LevelFilter::TRACE, LevelFilter::INFO),
        10.. => (LevelFilter::TRACE, LevelFilter::DEBUG),
    };
    Targets::new()
        .with_targets(OURS.map(|name| (name, ours)))
        // What was destroyed, and by which rule.
        .with_target(AUDIT, LevelFilter::INFO)
        .with_default(theirs)
        // At WARN it logs whole objects that it can't decode, even Secrets. Our callers log the error themselves.
        .with_target("kube_client::client", LevelFilter::ERROR)
        // At WARN it logs each failed attempt with the whole answer. Our watches log the error themselves.
        .with_target("kube_runtime::watcher", LevelFilter::ERROR)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::information(
        Level::INFO,
        "starting version=\"0.1\"",
        "I1122 13:39:25.531806    4711 mod.rs:42] starting version=\"0.1\""
    )]
    #[case::a_reason(Level::DEBUG, "why", "I1122 13:39:25.531806    4711 mod.rs:42] why")]
    #[case::a_warning_of_two_lines(Level::WARN, "a\nb", "W1122 13:39:25.531806    4711 mod.rs:42] a\\nb")]
    #[case::an_error(Level::ERROR, "", "E1122 13:39:25.531806    4711 mod.rs:42] ")]
    fn a_line_is_as_klog_writes_it(#[case] level: Level, #[case] text: &str, #[case] expected: &str) {
        let now: Timestamp = "2026-11-22T13:39:25.531806Z".parse().unwrap();
        assert_eq!(klog_line(level, now, 4711, "mod.rs:42", text), expected);
    }

    #[rstest]
    #[case::quiet(0)]
    #[case::everything(10)]
    fn libraries_log_no_objects_and_no_answers(#[case] v: i32) {
        assert!(!filter(v).would_enable("kube_client::client", &Level::WARN));
        assert!(!filter(v).would_enable("kube_runtime::watcher", &Level::WARN));
    }

    #[test]
    fn every_crate_of_the_program_is_known() {
        let crates = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/crates")).unwrap();
        for entry in crates {
            let name = entry.unwrap().file_name().into_string().unwrap().replace('-', "_");
            assert!(OURS.contains(&name.as_str()), "{name}");
        }
    }

    #[rstest]
    #[case::quiet(0, Level::INFO, Level::WARN)]
    #[case::reasons(4, Level::DEBUG, Level::INFO)]
    #[case::everything_of_ours(6, Level::TRACE, Level::INFO)]
    #[case::everything_of_the_libraries(10, Level::TRACE, Level::DEBUG)]
    fn our_crates_log_more_than_the_libraries_at_the_same_verbosity(
        #[case] v: i32,
        #[case] ours: Level,
        #[case] theirs: Level,
    ) {
        let filter = filter(v);
        assert!(filter.would_enable("machine_api", &ours));
        assert!(filter.would_enable("hyper", &theirs));
        assert!(!filter.would_enable("hyper", &Level::TRACE));
    }
}
