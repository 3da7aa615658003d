//! Authorities in a file that a flag names. The file is read again at fixed intervals, like certificates.
//!
//! Only a change of the content counts ([`super::files`] says why). A file that can't be read or contains no certificate is
//! reported once, and the earlier authorities stay in use.

use std::{path::PathBuf, time::Duration};

use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::Authorities;

/// A file of authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The flag that names it.
    pub flag: &'static str,
}

impl AuthorityFile {
    /// Reads the file.
    ///
    /// # Errors
    /// The path, the flag and the problem.
    pub async fn read(&self) -> Result<Authorities, String> {
        let pem = self.bytes().await?;
        self.parsed(&pem)
    }

    /// Reads the file repeatedly until `stop`, and passes changed authorities to `take`.
    pub async fn follow(self, interval: Duration, take: impl Fn(Authorities), stop: CancellationToken) {
        let mut last = self.bytes().await;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
            }
            let found = self.bytes().await;
            if found == last {
                continue;
            }
            match found.as_ref().map_err(String::clone).and_then(|pem| self.parsed(pem)) {
                Ok(authorities) => {
                    info!(
                        path = %self.path.display(), operation = self.flag,
                        "the authorities in the file have changed"
                    );
                    take(authorities);
                }
                Err(why) => {
                    error!(error = %why, "the authorities that were read before stay until the file is put right");
                }
            }
            last = found;
        }
    }

    async fn bytes(&self) -> Result<Vec<u8>, String> {
        let Self { path, flag } = self;
        tokio::fs::read(path).await.map_err(|error| format!("cannot read {} ({flag}): {error}", path.display()))
    }

    fn parsed(&self, pem: &[u8]) -> Result<Authorities, String> {
        let Self { path, flag } = self;
        Authorities::from_pem(pem).map_err(|why| format!("cannot use {} ({flag}): {why}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    fn authority(name: &str) -> String {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[tokio::test]
    async fn what_changes_is_handed_over_and_garbage_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = AuthorityFile { path: folder.path().join("ca.crt"), flag: "--client-ca-file" };
        assert!(file.read().await.unwrap_err().contains("(--client-ca-file)"));
        let (old, new) = (authority("old"), authority("new"));
        std::fs::write(&file.path, &old).unwrap();
        assert!(file.read().await.is_ok());

        let (sender, mut receiver) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let follows = file.clone().follow(
            Duration::from_millis(1),
            move |authorities| sender.send(authorities).unwrap(),
            stop.clone(),
        );
        let follows = tokio::spawn(follows);
        tokio::time::sleep(Duration::from_millis(20)).await;
        std::fs::write(&file.path, "no certificate").unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        std::fs::write(&file.path, &new).unwrap();
        let found = tokio::time::timeout(Duration::from_secs(20), receiver.recv()).await.unwrap().unwrap();
        assert_eq!(found, Authorities::from_pem(new.as_bytes()).unwrap());
        stop.cancel();
        follows.await.unwrap();
        assert!(receiver.recv().await.is_none(), "nothing else was handed over");
    }
}
