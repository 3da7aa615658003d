//! The files of the kubeconfigs, for `--kubeconfig-reload=exit`: when one has new content, the process ends and is started with it.
//!
//! Clients keep the kubeconfig that they were made with, except for token files, which they read again themselves.
//! Content that no client can be made with, or whose user the API server does not know, ends no process: none could work with it.
//! Source: spec/packaging §3.6, PK-031.

use std::{
    future::pending,
    path::{Path, PathBuf},
    time::Duration,
};

use controller_runtime::{
    clients::{
        ClientSettings, Cluster, Purpose, Rate, Source,
        config::{self, ConfigError},
    },
    error::ApiError,
};
use futures::future::BoxFuture;
use ring::digest::{SHA256, digest};

use crate::settings::{KubeconfigReload, Settings};

/// The pause between two looks. Two looks must agree, so that a change is acted on after at most 15 s.
const LOOK: Duration = Duration::from_secs(5);

/// How long the API server may take to answer a client with the new content.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// The status for a known user without the right to ask.
const FORBIDDEN: u16 = 403;

/// Why the content of a kubeconfig can't be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    /// No client can be made with it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The API server does not answer, or does not know the user.
    #[error("its API server does not accept it: {0}")]
    Refused(ApiError),
}

/// Checks the content of a file.
type Check = fn(PathBuf) -> BoxFuture<'static, Result<(), Unusable>>;

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

    /// Looks at the file once, and checks new content. True if the process must end.
    async fn look(&mut self, check: Check) -> bool {
        let seen = read(&self.path).await;
        if !self.is_changed(seen) {
            return false;
        }
        match check(self.path.clone()).await {
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

    /// Waits until a file has new content that can be used.
    pub(super) async fn changed(self) {
        self.changed_for(usable).await;
    }

    async fn changed_for(mut self, check: Check) {
        if self.files.is_empty() {
            return pending().await;
        }
        loop {
            tokio::time::sleep(LOOK).await;
            for file in &mut self.files {
                if file.look(check).await {
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

fn usable(path: PathBuf) -> BoxFuture<'static, Result<(), Unusable>> {
    Box::pin(accepted(path))
}

/// Makes clients as the start does, and asks the API server whether it knows the user.
async fn accepted(path: PathBuf) -> Result<(), Unusable> {
    let config = config::load(&Source::File(path)).await?;
    let cluster = Cluster::connect(&config, &ClientSettings { rate: Rate::default(), observer: None })?;
    let client = cluster.client(Purpose::Leases);
    match tokio::time::timeout(ANSWERED_WITHIN, client.apiserver_version()).await {
        Ok(Ok(_)) => Ok(()),
        // A user without the right to ask is known nevertheless.
        Ok(Err(kube::Error::Api(status))) if status.code == FORBIDDEN => Ok(()),
        Ok(Err(error)) => Err(Unusable::Refused(error.into())),
        Err(_) => Err(Unusable::Refused(ApiError::TimedOut(ANSWERED_WITHIN))),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::Instant,
    };

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

    /// An API server that knows the tokens `old` and `new` only. Returns its port.
    async fn api_server() -> u16 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n")
                    && connection.read_buf(&mut request).await.is_ok_and(|read| read > 0)
                {}
                let request = String::from_utf8_lossy(&request).to_ascii_lowercase();
                let is_known = request.contains("bearer old") || request.contains("bearer new");
                let (status, body) = if is_known { ("200 OK", "{}") } else { ("401 Unauthorized", "{\"code\": 401}") };
                let length = body.len();
                let answer =
                    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
                // A client that is gone needs no answer.
                let _ = connection.write_all(answer.as_bytes()).await;
            }
        });
        port
    }

    /// A kubeconfig with this token, for an API server at this port.
    fn kubeconfig(port: u16, token: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {{token: {token}}}}}]\n"
        )
    }

    fn install_cryptography() {
        // Only the first call in a process succeeds.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }

    #[rstest]
    #[case::half("current-context: c", "current-cont")]
    #[case::without_its_context("current-context: c", "current-context: other")]
    #[case::with_a_missing_file("token: new", "client-certificate: /nowhere, client-key: /nowhere")]
    #[case::with_a_broken_certificate("token: new", "client-certificate-data: AAAA, client-key-data: AAAA")]
    #[case::with_a_token_that_the_server_does_not_know("token: new", "token: expired")]
    #[case::of_a_server_that_is_not_there("http://127.0.0.1:", "http://127.0.0.1:1/")]
    #[tokio::test]
    async fn pk_031_content_that_cannot_be_used_ends_no_process(#[case] part: &str, #[case] unusable: &str) {
        install_cryptography();
        let port = api_server().await;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kubeconfig");
        std::fs::write(&path, kubeconfig(port, "old")).expect("the folder is writable");
        let mut file = File::new(&path, read(&path).await);
        let good = kubeconfig(port, "new");
        assert!(good.contains(part));
        for content in [good.replace(part, unusable), String::new()] {
            std::fs::write(&path, content).expect("the folder is writable");
            for _ in 0..3 {
                assert!(!file.look(usable).await);
            }
        }
        assert!(file.refused.is_some(), "it is logged");
        assert!(!file.is_refused_anew(), "it is logged once");
        // The content that follows counts.
        std::fs::write(&path, good).expect("the folder is writable");
        assert_eq!((file.look(usable).await, file.look(usable).await), (false, true));
    }

    #[tokio::test(start_paused = true)]
    async fn pk_031_a_changed_file_is_noticed_within_30_s_also_behind_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (first, second, link) = ["1", "2", "kubeconfig"].map(|name| folder.path().join(name)).into();
        std::fs::write(&first, "old").expect("the folder is writable");
        std::fs::write(&second, "new").expect("the folder is writable");
        std::os::unix::fs::symlink(&first, &link).expect("a link");
        let file = File::new(&link, read(&link).await);
        let mut changed = std::pin::pin!(Kubeconfigs { files: vec![file] }.changed_for(|_| Box::pin(async { Ok(()) })));
        let patience = Duration::from_secs(120);
        assert!(tokio::time::timeout(patience, &mut changed).await.is_err(), "nothing has changed");
        // The kubelet replaces a Secret's content by another link.
        std::fs::remove_file(&link).and_then(|()| std::os::unix::fs::symlink(&second, &link)).expect("another link");
        let began = Instant::now();
        tokio::time::timeout(patience, changed).await.expect("it is noticed");
        assert!(began.elapsed() <= Duration::from_secs(30), "{:?}", began.elapsed());
    }
}
