//! The client of a registered server. It uses TLS with the client certificate of this server, checks the name of the Service in the certificate of
//! the other server, and keeps its connections.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use tls_client::TlsError;

use super::{
    identity::Identity,
    registration::{ServiceReference, Unavailable},
};
use crate::tls_pool::{Pool, Remote, innermost, pool};

/// The timeout of a connection attempt, with the TLS handshake.
const CONNECT: Duration = Duration::from_secs(5);

/// The client of a registered server.
#[derive(Clone)]
pub(super) struct ExtensionClient {
    pool: Pool,
    /// `<service>.<namespace>.svc:<port>`.
    authority: String,
    endpoint: Arc<Endpoint>,
}

/// The address of the server, and whether the client has a certificate.
struct Endpoint {
    address: String,
    has_identity: bool,
}

impl ExtensionClient {
    /// A client of the server at `address`, which is behind a Service.
    ///
    /// # Errors
    /// If the certificate authorities of the server can't be used.
    pub(super) fn new(
        address: String,
        service: &ServiceReference,
        bundle: &str,
        identity: Option<&Identity>,
    ) -> Result<Self, Unavailable> {
        let (has_identity, host) = (identity.is_some(), service.host());
        let remote = Remote { address: &address, name: &host, bundle, within: CONNECT };
        // Without a listener this server has no identity. An extension API server could not reach it either.
        let pool = pool(&remote, identity.map(Identity::shown)).map_err(|error| {
            Unavailable::failed_check(match error {
                TlsError::Empty => {
                    "spec.caBundle is empty; the development server calls no server whose certificate it can't check"
                        .to_owned()
                }
                TlsError::Unusable(why) => format!("spec.caBundle: {why}"),
            })
        })?;
        let endpoint = Arc::new(Endpoint { address, has_identity });
        Ok(Self { pool, authority: format!("{host}:{}", service.port), endpoint })
    }

    /// Whether the client is for an address and uses the current identity of this server.
    pub(super) fn is_for(&self, address: &str, identity: Option<&Identity>) -> bool {
        self.endpoint.address == address && self.endpoint.has_identity == identity.is_some()
    }

    /// Whether both are the same client, with the same connections.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.endpoint, &other.endpoint)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The reason why there is no answer, as text for people.
    pub(super) async fn send(
        &self,
        method: Method,
        path_and_query: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, String> {
        let uri = format!("https://{}{path_and_query}", self.authority);
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .body(Full::new(body))
            .map_err(|error| format!("{path_and_query:?}: {error}"))?;
        *request.headers_mut() = headers;
        self.pool.request(request).await.map_err(|error| innermost(&error))
    }
}
