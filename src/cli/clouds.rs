//! The flags of every command that may call a cloud.

use std::{collections::BTreeMap, path::PathBuf};

use clap::Args;
#[cfg(feature = "local")]
use driver_local::PodTemplate;
use machine_driver::ErrorCodes;

use crate::{drivers::CLOUDS, settings::CloudSettings};

/// Flags of every command that may call a cloud.
#[derive(Clone, Debug, Args)]
pub struct CloudArgs {
    /// URL that replaces the endpoints of a cloud, such as AWS=http://127.0.0.1:5000; may be repeated
    #[arg(long, value_name = "PROVIDER=URL")]
    pub provider_endpoint: Vec<String>,
    /// Directories for token files of workload identities, comma separated; Secrets may name files below them only
    #[arg(long, value_delimiter = ',', default_value = CloudSettings::IDENTITY_DIRECTORY, value_name = "DIRS")]
    pub workload_identity_dirs: Vec<PathBuf>,
    /// File with the template of pods that are machines of provider "local", in YAML; unset means the template of Gardener's
    /// provider-local without the socket of Docker
    #[cfg(feature = "local")]
    #[arg(long, value_name = "FILE")]
    pub local_pod_template: Option<PathBuf>,
}

impl CloudArgs {
    /// The settings of the flags.
    ///
    /// # Errors
    /// All mistakes in them.
    pub fn settings(&self) -> Result<CloudSettings, Vec<String>> {
        let (mut endpoints, mut problems) = (BTreeMap::new(), Vec::new());
        for text in &self.provider_endpoint {
            let (provider, url) = text.split_once('=').unwrap_or((text, ""));
            if !CLOUDS.iter().any(|cloud| cloud.provider == provider) {
                let known: Vec<_> = CLOUDS.iter().map(|cloud| cloud.provider).collect();
                problems.push(format!(
                    "--provider-endpoint: {provider:?} is no cloud of this program; there are {known:?}"
                ));
            }
            if !is_endpoint(url) {
                // The value may contain a password.
                let shown = if url.contains('@') { "the value" } else { url };
                problems.push(format!("--provider-endpoint: {shown:?} is no URL such as https://ec2.example.com"));
            }
            if endpoints.insert(provider.to_owned(), url.to_owned()).is_some() {
                problems.push(format!("--provider-endpoint: {provider} is named twice"));
            }
        }
        if self.workload_identity_dirs.iter().any(|directory| !directory.is_absolute()) {
            problems.push("--workload-identity-dirs: the directories must begin with /".to_owned());
        }
        let identity_directories = self.workload_identity_dirs.clone();
        let settings = CloudSettings {
            endpoints,
            identity_directories,
            codes: ErrorCodes::Fine,
            #[cfg(feature = "local")]
            pod_template: self.pod_template().unwrap_or_else(|problem| {
                problems.push(problem);
                PodTemplate::default()
            }),
        };
        if problems.is_empty() { Ok(settings) } else { Err(problems) }
    }
}

#[cfg(feature = "local")]
impl CloudArgs {
    /// The template of pods that are machines.
    ///
    /// # Errors
    /// The mistake in the file.
    fn pod_template(&self) -> Result<PodTemplate, String> {
        let Some(path) = &self.local_pod_template else { return Ok(PodTemplate::default()) };
        let problem = |cause: &dyn std::fmt::Display| format!("--local-pod-template: {}: {cause}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| problem(&error))?;
        PodTemplate::read(&text).map_err(|error| problem(&error))
    }
}

/// Whether requests can be sent to this URL. It must have no user or password, because messages contain it.
fn is_endpoint(url: &str) -> bool {
    url.parse::<http::Uri>().is_ok_and(|url| {
        matches!(url.scheme_str(), Some("http" | "https"))
            && url.authority().is_some_and(|authority| !authority.as_str().contains('@'))
            && url.query().is_none()
    })
}
