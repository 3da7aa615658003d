//! The commands that work on files only: `mcm validate` and `mcm convert`, with their flags, input and output.

use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, ValueEnum};

use super::{
    Failure,
    clouds::CloudArgs,
    convert::{ConvertError, convert_documents},
    documents::Format,
    output::OutputFormat,
    validate::{self, ValidateOptions},
};
use crate::{
    DriverSet, drivers::ControlCluster, manager::registered_drivers::RegisteredDrivers, settings::CloudSettings,
};
use driver_virtual::{SimulationOptions, VirtualCloud};
use machine_api::validation::{ControllerUsers, Coverage, Policy, Profile};
use machine_driver::{Driver, Registry};

/// The value of `-f` for the standard input.
const STDIN: &str = "-";

/// Flags of `mcm validate`.
#[derive(Clone, Debug, Args)]
pub struct ValidateArgs {
    /// File or folder with manifests, or - for the standard input; may be repeated
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE|DIR|-")]
    pub files: Vec<PathBuf>,
    /// File or folder with the stored objects; objects that are found there are checked as updates
    #[arg(long, value_name = "FILE|DIR")]
    pub old: Vec<PathBuf>,
    /// User of the request
    #[arg(long = "as", default_value = "", value_name = "USER")]
    pub user: String,
    /// Namespace of objects without namespace
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// Level of the rules that have two levels: compat (warn) or strict (deny)
    #[arg(long, default_value = "compat", value_name = "PROFILE")]
    pub admission_profile: Profile,
    /// Users that count as controllers, comma separated
    #[arg(long, value_delimiter = ',', value_name = "USERS")]
    pub controller_users: Vec<String>,
    /// Providers that this process serves, comma separated; unset means all known providers
    #[arg(long, value_delimiter = ',', value_name = "PROVIDERS")]
    pub drivers: Option<Vec<String>>,
    /// Refuse classes of all other providers, because no other process serves them
    #[arg(long)]
    pub drivers_exclusive: bool,
    /// Check classes that pass the rules also with their providers, with the Secrets of the input or the credentials of this
    /// process; this creates nothing at the providers
    #[arg(long)]
    pub ask_provider: bool,
    /// Endpoints of clouds.
    #[command(flatten)]
    pub clouds: CloudArgs,
    /// Output for programs
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<OutputFormat>,
}

/// Flags of `mcm convert`.
#[derive(Clone, Debug, Args)]
pub struct ConvertArgs {
    /// File with manifests, or - for the standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE|-")]
    pub file: PathBuf,
    /// The target version
    #[arg(long, value_name = "VERSION")]
    pub to: TargetVersion,
    /// Format of the result
    #[arg(short, long, default_value = "yaml", value_name = "FORMAT")]
    pub output: OutputFormat,
}

/// A version of our kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TargetVersion {
    /// The stored version
    V1alpha1,
    /// Its successor
    V1beta1,
}

impl ValidateArgs {
    /// Checks the manifests and writes the report.
    ///
    /// # Errors
    /// [`Failure::Input`] when an object would not be admitted or something could not be read; the report says what.
    pub fn run(&self, drivers: &DriverSet, out: &mut dyn Write) -> Result<(), Failure> {
        let options = ValidateOptions {
            files: self.files.clone(),
            old: self.old.clone(),
            user: self.user.clone(),
            namespace: self.namespace.clone(),
            policy: Policy {
                profile: self.admission_profile,
                controllers: ControllerUsers::named(self.controller_users.iter().cloned()),
            },
            output: match self.output {
                None => validate::OutputFormat::Text,
                Some(OutputFormat::Json) => validate::OutputFormat::Json,
                Some(OutputFormat::Yaml) => validate::OutputFormat::Yaml,
            },
        };
        let coverage = if self.drivers_exclusive { Coverage::All } else { Coverage::Some };
        let clouds = self.clouds.settings().map_err(|problems| Failure::Usage(problems.join("\n")))?;
        let registry = registry(drivers, &clouds, self.drivers.as_deref())?;
        let asked = self.ask_provider.then_some(&registry);
        let drivers = RegisteredDrivers::new(registry.clone(), coverage);
        match validate::run(&options, &drivers, asked, &mut io::stdin().lock(), out)? {
            0 => Ok(()),
            _ => Err(Failure::Reported),
        }
    }
}

/// The drivers and class rules of this program, for commands that call no provider.
///
/// # Errors
/// When the virtual cloud can't be made.
pub fn known_drivers(drivers: &DriverSet) -> Result<Registry, Failure> {
    registry(drivers, &CloudSettings::default(), None)
}

/// The class rules that `mcm serve` has with the same `--drivers`.
fn registry(all: &DriverSet, clouds: &CloudSettings, selection: Option<&[String]>) -> Result<Registry, Failure> {
    let simulation: Arc<dyn Driver> =
        Arc::new(VirtualCloud::new(&SimulationOptions::new(jiff::Timestamp::now())).map_err(Failure::run)?);
    let is_wanted = |provider: &str| selection.is_none_or(|wanted| wanted.iter().any(|wanted| wanted == provider));
    Ok(all.registry(clouds, &ControlCluster::default(), simulation, is_wanted, |driver| driver))
}

impl ConvertArgs {
    /// Converts the manifests and writes them. If one can't be converted, nothing is written.
    ///
    /// # Errors
    /// [`Failure::Input`] with every object that could not be converted.
    pub fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let (name, text) = read(&self.file)?;
        let to = self.to.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let format = match self.output {
            OutputFormat::Yaml => Format::Yaml,
            OutputFormat::Json => Format::Json,
        };
        let converted = convert_documents(&name, &text, &to, format).map_err(|error| match error {
            ConvertError::Unwritable(cause) => Failure::run(cause),
            error => Failure::Input(error.to_string()),
        })?;
        Ok(out.write_all(converted.as_bytes())?)
    }
}

/// The text of a file or of the standard input, and its name in messages.
fn read(file: &Path) -> Result<(String, String), Failure> {
    if file.as_os_str() == STDIN {
        let mut text = String::new();
        io::stdin().lock().read_to_string(&mut text)?;
        return Ok(("stdin".to_owned(), text));
    }
    let name = file.display().to_string();
    let text = fs::read_to_string(file).map_err(|cause| Failure::Input(format!("{name}: {cause}")))?;
    Ok((name, text))
}
