//! The flags that select the cluster of a command. `serve` has its own flags.

use std::{ffi::OsStr, future::Future, path::PathBuf};

use clap::Args;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use super::Failure;
use controller_runtime::error::chain;

/// The cluster of a command.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterArgs {
    /// Kubeconfig of the cluster with the machine objects; unset means the kubeconfig of kubectl, or the service account of the pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; unset means the current context
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

/// The user that a command acts as, with the flags of kubectl.
#[derive(Clone, Debug, Default, Args)]
pub struct Impersonation {
    /// User to act as; the API server checks whether the user of the kubeconfig may act as this user
    #[arg(long = "as", value_name = "USER")]
    pub user: Option<String>,
    /// Group to act as, with --as; several flags name several groups
    #[arg(long = "as-group", value_name = "GROUP", requires = "user")]
    pub groups: Vec<String>,
}

impl ClusterArgs {
    /// A client of this cluster. It sends no request yet.
    ///
    /// # Errors
    /// When the configuration can't be read or used; the text says which and why.
    pub async fn connect(&self) -> Result<Client, Failure> {
        self.connect_as(&Impersonation::default()).await
    }

    /// The same for a command that acts as another user.
    ///
    /// # Errors
    /// When the configuration can't be read or used; the text says which and why.
    pub async fn connect_as(&self, other: &Impersonation) -> Result<Client, Failure> {
        // Only the first call in a process succeeds. A later call would install the same provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let unusable = |what: &str, error: &dyn std::error::Error| {
            Failure::Input(format!("cannot use {what}: {}; correct it or name another with --kubeconfig", chain(error)))
        };
        let mut config = match (&self.kubeconfig, &self.context) {
            (Some(path), _) => {
                let what = format!("kubeconfig {}", path.display());
                let read = Kubeconfig::read_from(path).map_err(|error| unusable(&what, &error))?;
                Config::from_custom_kubeconfig(read, &options).await.map_err(|error| unusable(&what, &error))?
            }
            (None, context) => match (existing(std::env::var_os(KUBECONFIG).as_deref()), context) {
                (Some(paths), _) => {
                    let what = format!("the files of {KUBECONFIG}");
                    let read = merged(&paths).map_err(|error| unusable(&what, &error))?;
                    Config::from_custom_kubeconfig(read, &options).await.map_err(|error| unusable(&what, &error))?
                }
                (None, Some(_)) => {
                    Config::from_kubeconfig(&options).await.map_err(|error| unusable("the kubeconfig", &error))?
                }
                (None, None) => {
                    Config::infer().await.map_err(|error| unusable("a kubeconfig or a service account", &error))?
                }
            },
        };
        config.default_retry = false;
        if other.user.is_some() {
            config.auth_info.impersonate.clone_from(&other.user);
            config.auth_info.impersonate_groups = Some(other.groups.clone()).filter(|groups| !groups.is_empty());
        }
        Client::try_from(config).map_err(|error| unusable("the credentials of the kubeconfig", &error))
    }
}

/// The environment variable that lists kubeconfigs, as for kubectl.
const KUBECONFIG: &str = "KUBECONFIG";

/// The existing files of a list. `None` unless some files exist and others do not. kubectl ignores missing files, but
/// `kube` refuses them.
fn existing(list: Option<&OsStr>) -> Option<Vec<PathBuf>> {
    let listed = || std::env::split_paths(list.unwrap_or_default()).filter(|path| !path.as_os_str().is_empty());
    let existing: Vec<PathBuf> = listed().filter(|path| path.exists()).collect();
    (!existing.is_empty() && existing.len() < listed().count()).then_some(existing)
}

fn merged(paths: &[PathBuf]) -> Result<Kubeconfig, KubeconfigError> {
    paths.iter().try_fold(Kubeconfig::default(), |all, path| all.merge(Kubeconfig::read_from(path)?))
}

/// Runs the work of a command until it ends, or until SIGINT or SIGTERM comes. `interrupted` is the error after a signal.
///
/// # Errors
/// The error of the work, or the interruption.
pub fn run_interruptibly<T>(
    work: impl Future<Output = Result<T, Failure>>,
    interrupted: &'static str,
) -> Result<T, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            done = work => done,
            _ = interrupt.recv() => Err(Failure::run(anyhow::anyhow!(interrupted))),
            _ = terminate.recv() => Err(Failure::run(anyhow::anyhow!(interrupted))),
        }
    })
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use serde_json::json;

    use super::*;

    /// A certificate that `openssl x509 -req` makes without extensions.
    const OF_VERSION_1: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBFzCBvwIUG8vxUHMxTanw/fIsNAJqBInL2ZUwCgYIKoZIzj0EAwIwDjEMMAoG\n\
A1UEAwwDb2xkMCAXDTI2MTEyMjE2MDkxMFoYDzIxMjYxMDI5MTYwOTEwWjAOMQww\n\
CgYDVQQDDANvbGQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQ1j70tSA8RWLAo\n\
PZ+eAfKJ/2yqLaUYOWYr6SyMlCHKHdWAN9sX8415YrppxrhezqnGfRtA5Z6gJVLt\n\
/aP5lJgwMAoGCCqGSM49BAMCA0cAMEQCIFFH135jv5kaBPzqD6ZqrlQpO3xSo0Nv\n\
Q4sc4dRQd4LnAiBXwJbKJSQn2JD55zqs3bn42m6oQYSwyV01keno3mc8BQ==\n\
-----END CERTIFICATE-----\n\
";

    #[rstest::rstest]
    #[case::one_of_two(&["there", "missing"], &["there"])]
    #[case::an_empty_name(&["", "there", "missing"], &["there"])]
    #[case::all_are_there(&["there", "too"], &[])]
    #[case::none_is_there(&["missing"], &[])]
    #[case::nothing_is_listed(&[], &[])]
    fn missing_files_of_a_list_are_ignored(#[case] listed: &[&str], #[case] expected: &[&str]) {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["there", "too"] {
            std::fs::write(folder.path().join(name), "").expect("the folder is writable");
        }
        let path = |name: &&str| if name.is_empty() { PathBuf::new() } else { folder.path().join(name) };
        let list = std::env::join_paths(listed.iter().map(path)).expect("plain names");
        assert_eq!(existing(Some(&list)).unwrap_or_default(), expected.iter().map(path).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_client_certificate_of_version_1_is_reported_as_such() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kubeconfig");
        let key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
        let user = json!({
            "client-certificate-data": STANDARD.encode(OF_VERSION_1), "client-key-data": STANDARD.encode(key),
        });
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": user}],
        });
        std::fs::write(&path, config.to_string()).expect("the folder is writable");
        let refused =
            ClusterArgs { kubeconfig: Some(path), context: None }.connect().await.err().expect("it is refused");
        let text = refused.to_string();
        assert!(text.contains("X.509 version 1") && text.contains("-extfile"), "{text}");
    }
}
