//! Mode `files`: a pair that another program mounts and renews, such as cert-manager.
//!
//! The files are read at fixed intervals, and only their content decides: kubelet swaps a symbolic link above them, which
//! neither inotify on the file nor its modification time shows reliably. A pair that can't be read or does not match is
//! refused, and the old pair stays in use.

use std::{path::PathBuf, time::Duration};

use tracing::{error, info};

use super::{material::KeyPair, shared::Shared};

/// How often the files are read.
pub const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// The files of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairFiles {
    /// PEM: the serving certificate, then those that lead to its authority.
    pub certificate: PathBuf,
    /// PEM: its private key.
    pub key: PathBuf,
    /// The flags that name them.
    pub named_by: NamedBy,
}

/// The flags that name the files of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// `--tls-cert-file` and `--tls-private-key-file`.
    FileFlags,
    /// `--tls-sni-cert-key`.
    SniFlag,
}

/// The content of the files, or why they can't be read. The same finding is reported once.
type Finding = Result<(Vec<u8>, Vec<u8>), String>;

impl PairFiles {
    async fn read(&self) -> Finding {
        let read = async |path: &PathBuf, flag: &str| {
            tokio::fs::read(path).await.map_err(|error| format!("cannot read {} ({flag}): {error}", path.display()))
        };
        let (certificate, key) = match self.named_by {
            NamedBy::FileFlags => ("--tls-cert-file", "--tls-private-key-file"),
            NamedBy::SniFlag => ("--tls-sni-cert-key", "--tls-sni-cert-key"),
        };
        Ok((read(&self.certificate, certificate).await?, read(&self.key, key).await?))
    }

    /// Reads the files periodically, and passes on each change: a pair, or why there is none.
    pub(super) async fn follow(&self, interval: Duration, mut take: impl FnMut(Result<KeyPair, String>)) {
        let mut last: Option<Finding> = None;
        loop {
            let found = self.read().await;
            if last.as_ref() != Some(&found) {
                take(found.clone().and_then(|(certificate, key)| {
                    KeyPair::read(&certificate, &key)
                        .map_err(|error| format!("{} and {}: {error}", self.certificate.display(), self.key.display()))
                }));
                last = Some(found);
            }
            tokio::time::sleep(interval).await;
        }
    }
}

/// Serves the pair in the files.
pub(super) async fn follow(files: &PairFiles, interval: Duration, shared: &Shared) {
    let take = |found: Result<KeyPair, String>| match found
        .and_then(|pair| shared.load(&pair).map_err(|error| error.to_string()))
    {
        Ok(expires) => info!(%expires, "loaded the serving certificate from files"),
        Err(why) => {
            shared.count_refusal("serving");
            error!(error = %why, "the previous certificate, if any, stays in use until the files are put right");
            shared.certificate_is_missing(&why);
        }
    };
    files.follow(interval, take).await;
}
