//! Accepts hooks over a Unix socket: HTTP, one JSON document per request.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::StatusCode,
    routing::post,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use super::Hook;
use crate::server::Server;

/// The maximum number of bytes of a request. A hook is short.
const BODY_LIMIT: usize = 4096;

/// The socket for hooks. It is closed and removed when this value is dropped.
#[derive(Debug)]
pub struct HookSocket {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl Drop for HookSocket {
    fn drop(&mut self) {
        self.task.abort();
        drop(fs::remove_file(&self.path));
    }
}

/// Accepts hooks for a server on a socket that only the user of this process can use.
///
/// # Errors
/// If the socket can't be created, or another process listens there.
pub(crate) async fn serve(server: Arc<Server>, path: &Path) -> io::Result<HookSocket> {
    // A socket without a listener is left from a killed process and is removed. Any other file stays.
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && UnixStream::connect(path).await.is_err() {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    let router = Router::new().route("/", post(accept)).layer(DefaultBodyLimit::max(BODY_LIMIT)).with_state(server);
    let task = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the socket of the hooks for tests has ended");
        }
    });
    Ok(HookSocket { path: path.to_owned(), task })
}

async fn accept(State(server): State<Arc<Server>>, body: Bytes) -> (StatusCode, String) {
    let hook: Result<Hook, _> = serde_json::from_slice(&body);
    let hook = hook.map_err(|error| error.to_string());
    match hook.and_then(|hook| server.apply_hook(hook).map_err(|error| error.to_string())) {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(error) => (StatusCode::BAD_REQUEST, format!("the hook is not taken: {error}\n")),
    }
}
