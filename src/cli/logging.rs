//! Logs of the process: where they go, how much, in which shape.
//!
//! Like klog, everything goes to standard error and `-v` says how much. Our own crate speaks earlier than the libraries
//! below it: their chatter at a level is rarely what was asked for.

use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// How much is logged, and in which shape.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logs")]
pub struct LoggingArgs {
    /// Verbosity: 0 to 3 tell what happens, 4 and 5 also why, 6 and more everything
    #[arg(short = 'v', long = "v", default_value = "0", value_name = "LEVEL", allow_negative_numbers = true)]
    pub verbosity: i32,
    /// Shape of the lines
    #[arg(long, default_value = "text", value_name = "FORMAT")]
    pub logging_format: LogFormat,
}

/// Shape of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts to log. Called once, by the command that owns the process.
///
/// # Errors
/// When something else in the process logs already.
pub fn start(args: &LoggingArgs) -> Result<(), tracing_subscriber::util::TryInitError> {
    let registry = tracing_subscriber::registry().with(filter(args.verbosity));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match args.logging_format {
        LogFormat::Text => registry.with(lines.with_ansi(false)).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    }
}

/// Starts to log for a command that people watch: at verbosity 0 only what is wrong is told.
///
/// # Errors
/// When something else in the process logs already.
pub fn start_quietly(verbosity: i32) -> Result<(), tracing_subscriber::util::TryInitError> {
    let filter = if verbosity == 0 {
        filter(0).with_target("machine_controller_manager", LevelFilter::WARN).with_target("mcm", LevelFilter::WARN)
    } else {
        filter(verbosity)
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(filter).with(lines).try_init()
}

/// What is logged at a verbosity.
fn filter(verbosity: i32) -> Targets {
    let (ours, theirs) = match verbosity {
        ..=3 => (LevelFilter::INFO, LevelFilter::WARN),
        4..=5 => (LevelFilter::DEBUG, LevelFilter::INFO),
        6..=9 => (LevelFilter::TRACE, LevelFilter::INFO),
        10.. => (LevelFilter::TRACE, LevelFilter::DEBUG),
    };
    Targets::new()
        .with_target("machine_controller_manager", ours)
        .with_target("mcm", ours)
        .with_default(theirs)
        // It logs whole objects that it can't decode, Secrets among them. Who called tells what went wrong.
        .with_target("kube_client::client", LevelFilter::ERROR)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tracing::Level;

    use super::*;

    #[rstest]
    #[case::quiet(0)]
    #[case::everything(10)]
    fn objects_that_cannot_be_decoded_are_never_logged(#[case] v: i32) {
        assert!(!filter(v).would_enable("kube_client::client", &Level::WARN));
    }

    #[rstest]
    #[case::quiet(0, Level::INFO, Level::WARN)]
    #[case::the_reasons(4, Level::DEBUG, Level::INFO)]
    #[case::everything_of_ours(6, Level::TRACE, Level::INFO)]
    #[case::and_of_the_libraries(10, Level::TRACE, Level::DEBUG)]
    fn verbosity_opens_our_levels_before_the_libraries(#[case] v: i32, #[case] ours: Level, #[case] theirs: Level) {
        let filter = filter(v);
        assert!(filter.would_enable("machine_controller_manager::api", &ours));
        assert!(filter.would_enable("hyper", &theirs));
        assert!(!filter.would_enable("hyper", &Level::TRACE));
    }
}
