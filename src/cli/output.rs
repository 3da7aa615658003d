//! Output for programs: `-o json` and `-o yaml`.

use std::io::Write;

use clap::ValueEnum;
use serde::Serialize;

use super::{Failure, documents};

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// One JSON value, indented.
    Json,
    /// One YAML document.
    Yaml,
}

impl OutputFormat {
    /// Writes a value in this format.
    ///
    /// # Errors
    /// When the value can't be serialised or the stream is closed.
    pub fn write(self, value: &impl Serialize, out: &mut dyn Write) -> Result<(), Failure> {
        let value = serde_json::to_value(value).map_err(Failure::run)?;
        let text = match self {
            Self::Json => format!("{}\n", serde_json::to_string_pretty(&value).map_err(Failure::run)?),
            Self::Yaml => documents::to_yaml([&value]).map_err(Failure::run)?,
        };
        Ok(out.write_all(text.as_bytes())?)
    }
}
