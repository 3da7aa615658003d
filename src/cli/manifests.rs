//! `mcm manifests`: everything a cluster must know before the manager runs, generated from the code.
//!
//! Only chosen and printed here; each part comes from the room that knows it.

use std::io::Write;

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::{Failure, documents, rbac};

/// Flags of `mcm manifests`.
#[derive(Clone, Debug, Args)]
pub struct ManifestsArgs {
    /// Which part
    pub part: Part,
    /// Namespace of the machine objects and of the Deployment
    #[arg(long, default_value = "default")]
    pub namespace: String,
    /// With the rights that the virtual cloud needs (rbac only)
    #[arg(long)]
    pub simulation: bool,
}

/// A part of the manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// What the process may do, and its service account.
    Rbac,
}

/// Prints the part as YAML documents.
///
/// # Errors
/// When the part can't be made with these flags, or the stream is closed.
pub fn run(args: &ManifestsArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let objects: Vec<Value> = match args.part {
        Part::Rbac => {
            let mut objects = rbac::manifests(&args.namespace);
            if args.simulation {
                objects.extend(rbac::simulation_manifests(&args.namespace));
            }
            objects
        }
    };
    let text = documents::to_yaml(&objects).map_err(Failure::run)?;
    Ok(out.write_all(text.as_bytes())?)
}
