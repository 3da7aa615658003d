//! The flags of drivers in other processes.

use std::{collections::BTreeSet, path::PathBuf};

use clap::{ArgAction, Args};
use driver_external::{Address, Place, PlainText, TlsFiles};

use super::problems::Problems;
use crate::{cli::go_flags::go_bool, settings::ExternalDriverSettings};

/// Drivers in other processes.
#[derive(Clone, Debug, Default, Args)]
pub struct ExternalArgs {
    /// Driver in another process for a provider, even if a driver for it is compiled in; may be repeated
    #[arg(long, value_name = "PROVIDER=unix:///PATH|https://HOST:PORT")]
    pub external_driver: Vec<String>,
    /// Certificate authorities in PEM for drivers behind https; the driver's certificate must name its host
    #[arg(long, value_name = "FILE")]
    pub external_driver_ca_file: Option<PathBuf>,
    /// Certificate chain in PEM that this process presents to these drivers
    #[arg(long, value_name = "FILE")]
    pub external_driver_cert_file: Option<PathBuf>,
    /// Private key of that certificate, in PEM
    #[arg(long, value_name = "FILE")]
    pub external_driver_key_file: Option<PathBuf>,
    /// Program that serves a provider on the socket in its environment; only the leader runs it; may be repeated
    #[arg(
        long,
        help = "Program that serves a provider on the socket in MCM_DRIVER_SOCKET; only the leader runs it; may be repeated",
        value_name = "PROVIDER=/PATH"
    )]
    pub driver_exec: Vec<String>,
    /// Allow http://127.0.0.1:PORT in --external-driver, although every user of this host could read the secrets on it
    #[arg(long, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub insecure_driver: bool,
}

impl ExternalArgs {
    /// The drivers that the flags name.
    pub(super) fn settings(&self, problems: &mut Problems) -> Vec<ExternalDriverSettings> {
        let tls = self.tls(problems);
        let plain = if self.insecure_driver { PlainText::ToThisHost } else { PlainText::Refused };
        let mut read = Vec::new();
        for (flag, texts) in [("--external-driver", &self.external_driver), ("--driver-exec", &self.driver_exec)] {
            for text in texts {
                let named =
                    text.split_once('=').filter(|(provider, place)| !provider.trim().is_empty() && !place.is_empty());
                let Some((provider, place)) = named else {
                    problems.add(format!("{flag}: cannot read {text:?}: must be PROVIDER=PLACE"));
                    continue;
                };
                let place = if flag == "--driver-exec" {
                    program(place)
                } else {
                    Address::parse(place, plain).map(Place::At).map_err(|error| error.to_string())
                };
                match place {
                    Ok(place) => read.push(ExternalDriverSettings {
                        provider: provider.trim().to_owned(),
                        place,
                        tls: tls.clone(),
                    }),
                    Err(why) => problems.add(format!("{flag}: {text:?}: {why}")),
                }
            }
        }
        let mut providers = BTreeSet::new();
        for settings in &read {
            if !providers.insert(&settings.provider) {
                problems
                    .add(format!("--external-driver, --driver-exec: provider {:?} is named twice", settings.provider));
            }
            if matches!(settings.place, Place::At(Address::Tls { .. })) && settings.tls.is_none() {
                problems.add(format!(
                    "--external-driver: provider {:?} is behind https, which needs --external-driver-ca-file, \
                     --external-driver-cert-file and --external-driver-key-file",
                    settings.provider
                ));
            }
        }
        read
    }

    fn tls(&self, problems: &mut Problems) -> Option<TlsFiles> {
        match (&self.external_driver_ca_file, &self.external_driver_cert_file, &self.external_driver_key_file) {
            (None, None, None) => None,
            (Some(ca), Some(certificate), Some(key)) => {
                Some(TlsFiles { ca: ca.clone(), certificate: certificate.clone(), key: key.clone() })
            }
            _ => {
                problems.add(
                    "--external-driver-ca-file, --external-driver-cert-file and --external-driver-key-file are given together",
                );
                None
            }
        }
    }
}

/// A program by its absolute path. A relative path would depend on the directory in which this process was started.
fn program(path: &str) -> Result<Place, String> {
    if path.starts_with('/') { Ok(Place::Program(path.into())) } else { Err("must be an absolute path".to_owned()) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn read(args: &ExternalArgs) -> Result<Vec<String>, Vec<String>> {
        let mut problems = Problems::default();
        let settings = args.settings(&mut problems);
        let words = |settings: &ExternalDriverSettings| match &settings.place {
            Place::At(address) => format!("{} at {address}", settings.provider),
            Place::Program(path) => format!("{} by {}", settings.provider, path.display()),
        };
        problems.none().map(|()| settings.iter().map(words).collect())
    }

    fn args(external: &[&str], exec: &[&str]) -> ExternalArgs {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        ExternalArgs { external_driver: owned(external), driver_exec: owned(exec), ..ExternalArgs::default() }
    }

    #[test]
    fn drivers_are_named_by_socket_and_by_program() {
        let named = read(&args(&["metal=unix:///run/mcm/metal.sock"], &["tape=/usr/bin/tape"]));
        assert_eq!(
            named,
            Ok(vec!["metal at unix:///run/mcm/metal.sock".to_owned(), "tape by /usr/bin/tape".to_owned()])
        );
    }

    #[rstest]
    #[case::no_provider(&["=unix:///a"], &[], "must be PROVIDER=PLACE")]
    #[case::no_place(&["metal"], &[], "must be PROVIDER=PLACE")]
    #[case::no_address(&["metal=tape"], &[], "must be unix:///PATH or https://HOST:PORT")]
    #[case::a_plain_port(&["metal=http://127.0.0.1:80"], &[], "--insecure-driver")]
    #[case::https_without_files(&["metal=https://driver:443"], &[], "needs --external-driver-ca-file")]
    #[case::one_provider_twice(&["metal=unix:///a"], &["metal=/b"], "named twice")]
    #[case::a_relative_program(&[], &["metal=b"], "must be an absolute path")]
    fn a_wrong_flag_is_reported(#[case] external: &[&str], #[case] exec: &[&str], #[case] expected: &str) {
        let problems = read(&args(external, exec)).unwrap_err().join("\n");
        assert!(problems.contains(expected), "{problems}");
    }

    #[test]
    fn files_for_tls_are_given_together() {
        let mut args = args(&["metal=https://driver:443"], &[]);
        args.external_driver_ca_file = Some("/ca".into());
        assert!(read(&args).unwrap_err().join("").contains("are given together"));
        (args.external_driver_cert_file, args.external_driver_key_file) = (Some("/cert".into()), Some("/key".into()));
        assert_eq!(read(&args), Ok(vec!["metal at https://driver:443".to_owned()]));
    }

    #[test]
    fn a_plain_port_of_this_host_needs_its_flag() {
        let mut args = args(&["metal=http://127.0.0.1:80"], &[]);
        args.insecure_driver = true;
        assert_eq!(read(&args), Ok(vec!["metal at http://127.0.0.1:80".to_owned()]));
    }
}
