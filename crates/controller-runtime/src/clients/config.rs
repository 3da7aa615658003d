//! Loads the configuration of a cluster, with errors that name the remedy. `cli/serve` decides which flag selects which source.

use std::{fmt, path::PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::error::chain;

/// The source of one cluster's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The service account of the pod.
    InCluster,
    /// A kubeconfig file; its current context is used.
    File(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InCluster => f.write_str("the pod's service account"),
            Self::File(path) => write!(f, "kubeconfig {}", path.display()),
        }
    }
}

/// Why a cluster's configuration can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("cannot read kubeconfig {path}: {cause}; check the path in the flag and the permissions of the file", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        cause: String,
    },
    /// The file is no kubeconfig, or its context can't be used.
    #[error(
        "cannot use kubeconfig {path}, context {context}: {cause}; try `kubectl --kubeconfig {path} version` and correct \
         the file",
        path = path.display()
    )]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Its current context, in text form.
        context: String,
        /// The error.
        cause: String,
    },
    /// This process does not run in a pod, or its service account is not mounted.
    #[error(
        "no kubeconfig is given and this is no pod with a service account: {0}; give --control-kubeconfig and \
         --target-kubeconfig, or mount the service account"
    )]
    NotInCluster(String),
    /// Certificates, keys or credentials can't be used.
    #[error("cannot use the credentials for {server}: {cause}; correct certificate, key or token in the kubeconfig")]
    Credentials {
        /// The API server.
        server: String,
        /// The error.
        cause: String,
    },
    /// The kubeconfig asks for a proxy.
    #[error("the kubeconfig asks for proxy {proxy}, which is not supported; remove proxy-url and connect directly")]
    Proxy {
        /// Host and port of the proxy.
        proxy: String,
    },
}

/// Reads the configuration of one cluster and disables the retries of clients.
///
/// # Errors
/// [`ConfigError`] names the file, the context and the remedy.
pub async fn load(source: &Source) -> Result<kube::Config, ConfigError> {
    let mut config = match source {
        Source::InCluster => kube::Config::incluster().map_err(|error| ConfigError::NotInCluster(chain(&error)))?,
        Source::File(path) => {
            let text = tokio::fs::read_to_string(path)
                .await
                .map_err(|error| ConfigError::Unreadable { path: path.clone(), cause: error.to_string() })?;
            let invalid = |context: &str, cause: String| ConfigError::Invalid {
                path: path.clone(),
                context: context.to_owned(),
                cause,
            };
            if text.trim().is_empty() {
                return Err(invalid("(none)", "the file is empty".to_owned()));
            }
            // Read again by path, because paths inside the file are relative to its folder.
            // Only the first line of an error is used; the others quote the file, which may hold credentials.
            let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
            let kubeconfig =
                Kubeconfig::read_from(path).map_err(|error| invalid("(unknown)", first_line(chain(&error))))?;
            let context =
                kubeconfig.current_context.as_ref().map_or_else(|| "(none)".to_owned(), |name| format!("{name:?}"));
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .map_err(|error| invalid(&context, chain(&error)))?
        }
    };
    config.default_retry = false;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NO_SUCH_CONTEXT: &str = "apiVersion: v1\nkind: Config\ncurrent-context: shoot\nclusters: []\ncontexts: []\n";
    const NO_SUCH_CA: &str = r"
apiVersion: v1
kind: Config
current-context: shoot
clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1', certificate-authority: missing.pem}}]
contexts: [{name: shoot, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
";

    #[rstest]
    #[case::empty("", &["context (none)", "empty"])]
    #[case::no_yaml("a: [", &["cannot use kubeconfig", "parse"])]
    #[case::no_kubeconfig("- 1\n- 2\n", &["cannot use kubeconfig", "kubectl --kubeconfig"])]
    #[case::unknown_context(NO_SUCH_CONTEXT, &["context \"shoot\"", "kubectl --kubeconfig"])]
    #[case::missing_certificate(NO_SUCH_CA, &["context \"shoot\"", "missing.pem"])]
    #[tokio::test]
    async fn an_unusable_kubeconfig_is_named_with_context_and_remedy(#[case] text: &str, #[case] words: &[&str]) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        std::fs::write(&path, text).unwrap();
        let error = load(&Source::File(path.clone())).await.unwrap_err().to_string();
        for word in words.iter().copied().chain([path.to_str().unwrap()]) {
            assert!(error.contains(word), "{word:?} missing in {error:?}");
        }
    }

    #[tokio::test]
    async fn a_broken_kubeconfig_is_not_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        std::fs::write(&path, "users: [{name: u, user: {token: secret\n").unwrap();
        let error = load(&Source::File(path)).await.unwrap_err().to_string();
        assert!(!error.contains("secret") && !error.contains('\n'), "{error}");
    }

    #[tokio::test]
    async fn a_missing_file_is_named() {
        let error = load(&Source::File("/nowhere/config".into())).await.unwrap_err();
        assert!(matches!(error, ConfigError::Unreadable { .. }), "{error}");
        assert!(error.to_string().contains("/nowhere/config"), "{error}");
    }

    #[tokio::test]
    async fn a_proxy_is_refused_clearly() {
        let mut config = kube::Config::new("https://127.0.0.1:1".parse().unwrap());
        config.proxy_url = Some("http://user:secret@proxy:3128".parse().unwrap());
        let error = super::super::transport::open(&config).err().unwrap().to_string();
        assert!(error.contains("proxy:3128"), "{error}");
    }
}
