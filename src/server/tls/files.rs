//! Mode `files`: a pair that somebody else mounts and renews, such as cert-manager.
//!
//! The files are read again at fixed intervals. Their content alone decides: kubelet swaps a symbolic link above them,
//! which neither inotify on the file nor its modification time shows reliably, and two small files cost nothing.
//! A pair that cannot be read or does not match is refused, and the old one stays in use.

use std::{path::PathBuf, time::Duration};

use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::{Shared, material::KeyPair};

/// How often the files are read.
pub const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// The files of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairFiles {
    /// PEM: the serving certificate, then those that lead to its authority. `--tls-cert-file`.
    pub certificate: PathBuf,
    /// PEM: its private key. `--tls-private-key-file`.
    pub key: PathBuf,
}

impl PairFiles {
    async fn read(&self) -> Result<(Vec<u8>, Vec<u8>), String> {
        let read = async |path: &PathBuf, flag: &str| {
            tokio::fs::read(path).await.map_err(|error| format!("cannot read {} ({flag}): {error}", path.display()))
        };
        Ok((read(&self.certificate, "--tls-cert-file").await?, read(&self.key, "--tls-private-key-file").await?))
    }
}

/// What was last found in the files: the same finding is neither judged nor reported twice.
type Finding = Result<(Vec<u8>, Vec<u8>), String>;

/// Reads the files again and again until `shutdown`.
pub(super) async fn run(files: PairFiles, interval: Duration, shared: Shared, shutdown: CancellationToken) {
    let mut last: Option<Finding> = None;
    loop {
        let found = files.read().await;
        if last.as_ref() != Some(&found) {
            let judged = found.clone().and_then(|(certificate, key)| {
                KeyPair::read(&certificate, &key)
                    .map_err(|error| format!("{} and {}: {error}", files.certificate.display(), files.key.display()))
            });
            match judged.and_then(|pair| shared.load(&pair).map_err(|error| error.to_string())) {
                Ok(loaded) => info!(expires = %loaded, "loaded the serving certificate from files"),
                Err(why) => {
                    shared.count_refusal();
                    error!("{why}; the previous certificate, if any, stays in use until the files are put right");
                    shared.certificate_is_missing(&why);
                }
            }
            last = Some(found);
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = shutdown.cancelled() => return,
        }
    }
}
