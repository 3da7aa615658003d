//! `mcm version`.

use std::io::Write;

use clap::Args;
use serde::Serialize;

use super::{Failure, output::OutputFormat};
use crate::settings::Build;
use machine_api::names;

/// Flags of `mcm version`.
#[derive(Clone, Copy, Debug, Args)]
pub struct VersionArgs {
    /// Output for programs
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<OutputFormat>,
}

/// The output of `mcm version -o json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    version: &'static str,
    /// The commit of the sources, if the build knew it.
    #[serde(skip_serializing_if = "Option::is_none")]
    git_commit: Option<&'static str>,
    platform: String,
    /// The version of the stored objects.
    storage_version: &'static str,
}

/// Prints the version.
///
/// # Errors
/// When the stream is closed.
pub fn run(args: VersionArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let answer = Answer {
        version: Build::THIS.version,
        git_commit: Build::THIS.commit,
        platform: format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
        storage_version: names::API_VERSION_V1ALPHA1,
    };
    match args.output {
        Some(format) => format.write(&answer, out),
        None => Ok(writeln!(out, "mcm {} ({})", answer.version, answer.platform)?),
    }
}
