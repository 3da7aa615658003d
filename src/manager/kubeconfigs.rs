//! The files of the kubeconfigs, for `--kubeconfig-reload=exit`: when one has new content, the process ends and is started with it.
//!
//! Clients keep the kubeconfig that they were made with, except for token files, which they read again themselves.
//! Source: spec/packaging §3.6, PK-031.

use std::{
    future::pending,
    path::{Path, PathBuf},
    time::Duration,
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
}

impl File {
    /// Judges what a look has seen. A file that is being written or replaced is missing or half there for a moment, so that only content
    /// that two looks have seen is new.
    fn is_changed(&mut self, seen: Option<Digest>) -> bool {
        let candidate = seen.filter(|seen| self.first.as_ref() != Some(seen));
        let is_changed = candidate.is_some() && candidate == self.candidate;
        self.candidate = candidate;
        is_changed
    }
}

impl Kubeconfigs {
    /// The files of the settings, with their content now. None if a change has no consequence.
    pub(super) async fn of(settings: &Settings) -> Self {
        let mut files = Vec::new();
        if settings.kubeconfig_reload == KubeconfigReload::Exit {
            for path in settings.kubeconfigs() {
                files.push(File { path: path.to_owned(), first: read(path).await, candidate: None });
            }
        }
        Self { files }
    }

    /// Waits until a file has new content.
    pub(super) async fn changed(mut self) {
        if self.files.is_empty() {
            return pending().await;
        }
        loop {
            tokio::time::sleep(LOOK).await;
            for file in &mut self.files {
                let seen = read(&file.path).await;
                if file.is_changed(seen) {
                    tracing::info!(path = %file.path.display(), "the kubeconfig has new content: the process ends, to be started with it");
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
        let mut file = File { path: PathBuf::new(), first, candidate: None };
        assert_eq!(looks.iter().position(|seen| file.is_changed(*seen)), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn pk_031_a_changed_file_is_noticed_within_30_s_also_behind_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (first, second, link) = ["1", "2", "kubeconfig"].map(|name| folder.path().join(name)).into();
        std::fs::write(&first, "old").expect("the folder is writable");
        std::fs::write(&second, "new").expect("the folder is writable");
        std::os::unix::fs::symlink(&first, &link).expect("a link");
        let file = File { path: link.clone(), first: read(&link).await, candidate: None };
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
