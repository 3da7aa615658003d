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
    /// The Cargo profile of the build.
    profile: &'static str,
    /// The compiler of the build, if the build knew it.
    #[serde(skip_serializing_if = "Option::is_none")]
    rustc: Option<&'static str>,
    /// Operating system and architecture.
    platform: String,
    /// The version of the stored objects.
    storage_version: &'static str,
}

impl From<Build> for Answer {
    fn from(build: Build) -> Self {
        Self {
            version: build.version,
            git_commit: build.commit,
            profile: build.profile,
            rustc: build.rustc,
            platform: format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
            storage_version: names::API_VERSION_V1ALPHA1,
        }
    }
}

/// Prints the version.
///
/// # Errors
/// When the stream is closed.
pub fn run(args: VersionArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let answer = Answer::from(Build::THIS);
    match args.output {
        Some(format) => format.write(&answer, out),
        None => Ok(writeln!(out, "mcm {} ({})", answer.version, answer.platform)?),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    fn fields(value: &Value) -> BTreeSet<&str> {
        value.as_object().unwrap().keys().map(String::as_str).collect()
    }

    #[test]
    fn pk_004_every_field_is_printed_and_unknown_ones_are_left_out() {
        let mut printed = Vec::new();
        run(VersionArgs { output: Some(OutputFormat::Json) }, &mut printed).unwrap();
        let printed: Value = serde_json::from_slice(&printed).unwrap();
        assert!(printed["rustc"].as_str().unwrap().starts_with("1."), "{printed}");
        assert_eq!(printed["profile"], Build::THIS.profile);
        assert_eq!(printed["platform"], format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH));

        let known = Build { commit: Some("0123abc"), rustc: Some("1.95.0 (59807616e 2026-04-14)"), ..Build::THIS };
        let all = ["gitCommit", "platform", "profile", "rustc", "storageVersion", "version"];
        let answer = serde_json::to_value(Answer::from(known)).unwrap();
        assert_eq!(fields(&answer), BTreeSet::from(all));
        assert!(answer.as_object().unwrap().values().all(|value| value.as_str().is_some_and(|text| !text.is_empty())));
        let unknown = serde_json::to_value(Answer::from(Build { commit: None, rustc: None, ..known })).unwrap();
        assert_eq!(fields(&unknown), BTreeSet::from(["platform", "profile", "storageVersion", "version"]));
    }
}
