//! Who answers what on a listener, also while it is ending.

use std::sync::Arc;

use axum::{Router, body::Body};
use http::{Request, Response};
use kube_listener::{Handler, Peer, is_health};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use super::{
    Guest,
    status::Refusal,
    webhooks::{self, Webhooks},
};

/// What is served on a listener.
pub(super) struct Routes {
    /// The webhooks, if this is their port.
    pub(super) webhooks: Option<Arc<Webhooks>>,
    /// Who answers what is not for the webhooks, if anybody does.
    pub(super) guest: Option<Arc<dyn Guest>>,
    /// Everything else.
    pub(super) other: Router,
    /// Who comes too late.
    pub(super) late: Late,
}

/// Requests that come while the listener is ending but still open (`--shutdown-send-retry-after`). Clones share it.
#[derive(Clone, Default)]
pub(super) struct Late {
    /// From here on requests are late.
    pub(super) begins: CancellationToken,
    /// Requests that were not.
    pub(super) in_time: TaskTracker,
}

impl Handler for Routes {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path();
        let _in_time = if is_health(path) {
            None
        } else {
            let in_time = self.late.in_time.token();
            if self.late.begins.is_cancelled() {
                return ended(&request, Refusal::Late);
            }
            Some(in_time)
        };
        match (&self.webhooks, webhooks::asked(&request), &self.guest) {
            (Some(webhooks), Some(webhook), _) => webhooks::review(Arc::clone(webhooks), webhook, request).await,
            // While the connection is ending, reviews are still answered: the API server would refuse a user's write for want of
            // one. Whoever reads views is asked to come again, which leads to another replica.
            (_, None, Some(_)) if is_left(&request) && !is_health(path) => ended(&request, Refusal::Leaving),
            (_, None, Some(guest)) if !webhooks::is_path(path) => guest.answer(request).await,
            _ => match self.other.clone().oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
        }
    }
}

fn is_left(request: &Request<Body>) -> bool {
    request.extensions().get::<Peer>().is_some_and(Peer::is_left)
}

/// A refusal after which the caller is to come over another connection.
fn ended(request: &Request<Body>, refusal: Refusal) -> Response<Body> {
    if let Some(peer) = request.extensions().get::<Peer>() {
        peer.end_connection();
    }
    refusal.response(request.version())
}
