//! Chooses the handler for a request on a listener, also during the shutdown.

use std::sync::Arc;

use axum::{Router, body::Body};
use http::{Request, Response};
use kube_listener::{Handler, Peer, is_health};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use super::{
    FallbackHandler,
    status::Refusal,
    webhooks::{self, Webhooks},
};
use machine_api::webhooks::Webhook;

/// The handlers of a listener.
pub(super) struct Routes {
    /// The webhooks, if this is their port.
    pub(super) webhooks: Option<Arc<Webhooks>>,
    /// Answers requests that are not for webhooks, if there is such a handler.
    pub(super) fallback: Option<Arc<dyn FallbackHandler>>,
    /// Answers all other requests.
    pub(super) other: Router,
    /// State about requests that come during the shutdown.
    pub(super) late: Late,
}

/// Requests that come during the shutdown, while the listener is still open (`--shutdown-send-retry-after`). Clones share it.
#[derive(Clone, Default)]
pub(super) struct Late {
    /// Cancelled at the moment after which requests are late.
    pub(super) begins: CancellationToken,
    /// Tracks the requests that came before this moment.
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
                return refuse_and_close(&request, Refusal::Late);
            }
            Some(in_time)
        };
        match (&self.webhooks, webhooks::of_request(&request), &self.fallback) {
            (Some(webhooks), Some(webhook), _) => webhooks::review(Arc::clone(webhooks), webhook, request).await,
            // Reviews are answered until the end, because without them the API server would refuse writes of users. A client of views is asked to
            // retry, which leads to another replica.
            (_, None, Some(_)) if is_shutting_down(&request) && !is_health(path) => {
                refuse_and_close(&request, Refusal::Leaving)
            }
            (_, None, Some(fallback)) if Webhook::at(path).is_none() => fallback.answer(request).await,
            _ => match self.other.clone().oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
        }
    }
}

fn is_shutting_down(request: &Request<Body>) -> bool {
    request.extensions().get::<Peer>().is_some_and(Peer::is_shutting_down)
}

/// A refusal after which the client has to open another connection.
fn refuse_and_close(request: &Request<Body>, refusal: Refusal) -> Response<Body> {
    if let Some(peer) = request.extensions().get::<Peer>() {
        peer.close_connection();
    }
    refusal.response(request.version())
}
