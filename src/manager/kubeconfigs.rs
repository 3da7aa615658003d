//! The files of the kubeconfigs, for `--kubeconfig-reload=exit`: when one has new content, the process ends and is started with it.
//!
//! Clients keep the kubeconfig that they were made with, except for token files, which they read again themselves.
//! Content that no client can be made with ends no process, because none could start with it.
//! Source: spec/packaging §3.6, PK-031.

use std::{
    future::pending,
    path::{Path, PathBuf},
    time::Duration,
};

use controller_runtime::clients::{
    ClientSettings, Cluster, Rate, Source,
    config::{self, ConfigError},
};
use ring::digest::{SHA256, digest};

use crate::settings::{KubeconfigReload, Settings};

/// The pause between two looks. Two looks must agree, so that a change is acted on after at most 15 s.
const LOOK: Duration = Duration::from_secs(5);

/// The digest of a file's content. The content itself is a credential.
type Digest = [u8; 32];

/// The kubeconfigs of a process.
#[derive(Debug)]
pub(super) struct Kubeconfigs {
    files: Vec<File>,
}

/// A file, and what is known about its content.
#[derive(Debug)]
struct File {
    path: PathBuf,
    /// The content at the start; `None` if it could not be read.
    first: Option<Digest>,
    /// Another content, as the last look saw it.
    candidate: Option<Digest>,
    /// The new content whose refusal was logged.
    refused: Option<Digest>,
}

impl File {
    fn new(path: &Path, first: Option<Digest>) -> Self {
        Self { path: path.to_owned(), first, candidate: None, refused: None }
    }

    /// Judges what a look has seen. A file that is being written or replaced is missing or half there for a moment, so that only content
    /// that two looks have seen is new.
    fn is_changed(&mut self, seen: Option<Digest>) -> bool {
        let candidate = seen.filter(|seen| self.first.as_ref() != Some(seen));
        let is_changed = candidate.is_some() && candidate == self.candidate;
        self.candidate = candidate;
        is_changed
    }

    /// Whether the new content is refused for the first time. It is tried again at each look, because files that it names may follow.
    fn is_refused_anew(&mut self) -> bool {
        let is_new = self.refused != self.candidate;
        self.refused = self.candidate;
        is_new
    }

    /// Looks at the file once. True if the process must end.
    async fn look(&mut self) -> bool {
        let seen = read(&self.path).await;
        if !self.is_changed(seen) {
            return false;
        }
        match usable(&self.path).await {
            Ok(()) => {
                let path = self.path.display();
                tracing::info!(%path, "the kubeconfig has new content: the process ends, to be started with it");
                true
            }
            Err(error) => {
                if self.is_refused_anew() {
                    let path = self.path.display();
                    tracing::warn!(%path, %error, "the kubeconfig has new content that can't be used: the process goes on with the old one");
                }
                false
            }
        }
    }
}

impl Kubeconfigs {
    /// The files of the settings, with their content now. None if a change has no consequence.
    pub(super) async fn of(settings: &Settings) -> Self {
        let mut files = Vec::new();
        if settings.kubeconfig_reload == KubeconfigReload::Exit {
            for path in settings.kubeconfigs() {
                files.push(File::new(path, read(path).await));
            }
        }
        Self { files }
    }

    /// Waits until a file has new content that clients can be made with.
    pub(super) async fn changed(mut self) {
        if self.files.is_empty() {
            return pending().await;
        }
        loop {
            tokio::time::sleep(LOOK).await;
            for file in &mut self.files {
                if file.look().await {
                    return;
                }
            }
        }
    }
}

async fn read(path: &Path) -> Option<Digest> {
    let content = tokio::fs::read(path).await.ok()?;
    digest(&SHA256, &content).as_ref().try_into().ok()
}

/// Makes clients as the start does. They send nothing.
async fn usable(path: &Path) -> Result<(), ConfigError> {
    let config = config::load(&Source::File(path.to_owned())).await?;
    Cluster::connect(&config, &ClientSettings { rate: Rate::default(), observer: None }).map(drop)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tokio::time::Instant;

    use super::*;

    const OLD: Option<Digest> = Some([0; 32]);
    const NEW: Option<Digest> = Some([1; 32]);
    const OTHER: Option<Digest> = Some([2; 32]);

    #[rstest]
    #[case::unchanged(OLD, &[OLD, OLD, OLD], None)]
    #[case::seen_twice(OLD, &[OLD, NEW, NEW], Some(2))]
    #[case::seen_once(OLD, &[NEW, OLD, OLD], None)]
    #[case::half_written(OLD, &[NEW, OTHER, OTHER], Some(2))]
    #[case::missing_for_a_moment(OLD, &[None, None, OLD, NEW, None, NEW, NEW], Some(6))]
    #[case::unreadable_at_the_start(None, &[None, NEW, NEW], Some(2))]
    fn pk_031_content_that_two_looks_have_seen_is_new(
        #[case] first: Option<Digest>,
        #[case] looks: &[Option<Digest>],
        #[case] expected: Option<usize>,
    ) {
        let mut file = File::new(Path::new(""), first);
        assert_eq!(looks.iter().position(|seen| file.is_changed(*seen)), expected);
    }

    /// A kubeconfig with this token.
    fn kubeconfig(token: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1'}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {{token: {token}}}}}]\n"
        )
    }

    fn install_cryptography() {
        // Only the first call in a process succeeds.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }

    #[rstest]
    #[case::half("apiVersion: v1\nkind: Conf".to_owned())]
    #[case::empty(String::new())]
    #[case::without_its_context(kubeconfig("new").replace("current-context: c", "current-context: other"))]
    #[case::with_a_missing_file(kubeconfig("new").replace("token: new", "client-certificate: /nowhere, client-key: /nowhere"))]
    #[case::with_a_broken_certificate(kubeconfig("new").replace("token: new", "client-certificate-data: AAAA, client-key-data: AAAA"))]
    #[tokio::test]
    async fn pk_031_content_that_cannot_be_used_ends_no_process(#[case] unusable: String) {
        install_cryptography();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kubeconfig");
        std::fs::write(&path, kubeconfig("old")).expect("the folder is writable");
        let mut file = File::new(&path, read(&path).await);
        std::fs::write(&path, &unusable).expect("the folder is writable");
        for _ in 0..3 {
            assert!(!file.look().await);
        }
        assert!(file.refused.is_some(), "it is logged");
        assert!(!file.is_refused_anew(), "it is logged once");
        // The content that follows counts.
        std::fs::write(&path, kubeconfig("new")).expect("the folder is writable");
        assert_eq!((file.look().await, file.look().await), (false, true));
    }

    #[tokio::test(start_paused = true)]
    async fn pk_031_a_changed_file_is_noticed_within_30_s_also_behind_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (first, second, link) = ["1", "2", "kubeconfig"].map(|name| folder.path().join(name)).into();
        install_cryptography();
        std::fs::write(&first, kubeconfig("old")).expect("the folder is writable");
        std::fs::write(&second, kubeconfig("new")).expect("the folder is writable");
        std::os::unix::fs::symlink(&first, &link).expect("a link");
        let file = File::new(&link, read(&link).await);
        let mut changed = std::pin::pin!(Kubeconfigs { files: vec![file] }.changed());
        let patience = Duration::from_secs(120);
        assert!(tokio::time::timeout(patience, &mut changed).await.is_err(), "nothing has changed");
        // The kubelet replaces a Secret's content by another link.
        std::fs::remove_file(&link).and_then(|()| std::os::unix::fs::symlink(&second, &link)).expect("another link");
        let began = Instant::now();
        tokio::time::timeout(patience, changed).await.expect("it is noticed");
        assert!(began.elapsed() <= Duration::from_secs(30), "{:?}", began.elapsed());
    }
}
