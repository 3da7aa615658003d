//! Starting a development server, and clients of it.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::body::Body;
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::FutureExt;
use http::{Request, Response};
use http_body_util::BodyExt;
use jiff::Timestamp;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::{
    access::{MASTERS, TokenFileError, User},
    account_tokens::AccountTokens,
    authorization::AuthorizationMode,
    certificates::{self, Authority, Holder},
    first_content::first_content,
    helpers::Helpers,
    hooks::{self, Hook, HookError, socket::HookSocket},
    limits::Limits,
    listener::{Bounds, ListenError, Listening, Reach, acceptor, listen},
    persistence::{DataError, Durable, open},
    server::Server,
    stand_ins::StandIn,
    store::{Collection, Store},
    webhook_client::InProcess,
};
use kube_protocol::status::ApiStatus;

/// The name of context and cluster in kubeconfigs.
pub const CONTEXT: &str = "mcm-dev";
/// The user of the kubeconfig.
const ADMIN: &str = "mcm-dev-admin";

/// Where objects are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In memory: they end with the process.
    Memory,
    /// In a folder of their own.
    Folder(PathBuf),
}

/// What a server depends on.
#[derive(Clone)]
pub struct DevServerOptions {
    /// Where objects are kept.
    pub storage: Storage,
    /// Where UIDs, generated names and lifetimes of watches come from.
    pub seed: u64,
    /// What time it is, for time stamps of objects.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// How often a quiet watch tells its resource version.
    pub bookmark_period: Duration,
    /// What a known caller may do.
    pub authorization: AuthorizationMode,
    /// Controllers that the server does not stand in for.
    pub without: BTreeSet<StandIn>,
    /// How many requests are answered at a time, and for how long.
    pub limits: Limits,
}

impl Default for DevServerOptions {
    fn default() -> Self {
        Self {
            storage: Storage::Memory,
            seed: rand::random(),
            clock: Arc::new(Timestamp::now),
            bookmark_period: Duration::from_secs(60),
            authorization: AuthorizationMode::default(),
            without: BTreeSet::new(),
            limits: Limits::default(),
        }
    }
}

/// A running server. Any number of them can live in one process.
pub struct DevServer {
    server: Arc<Server>,
    folder: Option<PathBuf>,
    bounds: Bounds,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Drop for DevServer {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// How others get in.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The authority of the serving certificate, as PEM.
    pub authority: String,
    /// Certificate of the administrator, as PEM.
    pub certificate: String,
    /// Its key, as PEM.
    pub key: String,
}

impl DevServer {
    /// Starts a server; it answers at once to clients in this process.
    ///
    /// # Errors
    /// When the data folder can't be used.
    pub fn start(options: DevServerOptions) -> Result<Self, DataError> {
        let (revision, kept, durable) = match &options.storage {
            Storage::Memory => (1, Vec::new(), Durable::memory()),
            Storage::Folder(folder) => open(folder)?,
        };
        let store = Store::new(revision, kept, durable);
        let random = ChaCha8Rng::seed_from_u64(options.seed);
        let folder = match options.storage {
            Storage::Memory => None,
            Storage::Folder(folder) => Some(folder),
        };
        let accounts = AccountTokens::in_folder(folder.clone());
        let (clock, period, limits) = (options.clock, options.bookmark_period, &options.limits);
        let server = Server::new(store, random, clock, accounts, period, options.authorization, limits);
        let server = Arc::new(server);
        server.reload_definitions();
        first_content(&server);
        let helpers = tokio::spawn(Helpers::new(Arc::clone(&server), options.without).run());
        let registrations = tokio::spawn(Arc::clone(&server).keep_registrations());
        Ok(Self { server, folder, bounds: Bounds::of(&options.limits), tasks: [helpers, registrations] })
    }

    /// A client in this process, without sockets, as a user of the group of administrators.
    pub fn client(&self, user: &str, namespace: &str) -> kube::Client {
        let (server, user) = (Arc::clone(&self.server), user.to_owned());
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            answered(Arc::clone(&server), user.clone(), request).map(Ok::<_, Infallible>)
        });
        kube::Client::new(service, namespace)
    }

    /// Answers one request as [`DevServer::client`] does. Unlike a client it needs no task of its own: reads and writes that no
    /// webhook is asked about are answered when the future is first polled.
    pub fn answer(
        &self,
        user: &str,
        request: Request<kube::client::Body>,
    ) -> impl Future<Output = Response<Body>> + Send + use<> {
        answered(Arc::clone(&self.server), user.to_owned(), request)
    }

    /// Answers calls to a webhook here instead of over a connection: `host:port` of an URL, or `namespace/name` of a Service.
    pub fn answer_webhooks(&self, authority: &str, handler: InProcess) {
        self.server.webhooks.register(authority, handler);
    }

    /// Lets a token in as a user of the group of administrators.
    pub fn add_token(&self, token: &str, user: &str) {
        self.server.tokens.add(token.to_owned(), User::known(user, [MASTERS.to_owned()]));
    }

    /// Lets in whoever a token file names, one `token,user,uid,"group,group"` per line as for kube-apiserver.
    ///
    /// # Errors
    /// The first line that is none of that.
    pub fn add_tokens(&self, file: &str) -> Result<(), TokenFileError> {
        self.server.tokens.add_file(file)
    }

    /// Every write that is still known, one line each: revision, place, and the object as stored.
    pub fn writes(&self) -> Vec<String> {
        self.writes_after(0)
    }

    /// The same of those after a revision.
    pub fn writes_after(&self, revision: u64) -> Vec<String> {
        let journal = self.server.store.journal(revision);
        let line = |(collection, change): &(Collection, Arc<super::store::Change>)| {
            let object =
                change.after.as_ref().map_or_else(|| "deleted".to_owned(), |stored| stored.whole().to_string());
            format!("{} {}/{}/{} {object}", change.revision, collection.group, collection.resource, change.key)
        };
        journal.iter().map(line).collect()
    }

    /// Forgets the history of all objects, as a compaction does: older watches must begin anew.
    pub fn compact(&self) {
        self.server.store.compact();
    }

    /// Orders weather for the callers.
    ///
    /// # Errors
    /// When the order is out of bounds.
    pub fn order(&self, hook: Hook) -> Result<(), HookError> {
        self.server.order(hook)
    }

    /// Takes orders of weather over a Unix socket, from this user only.
    ///
    /// # Errors
    /// When the socket can't be made, or somebody listens there already.
    pub async fn listen_for_hooks(&self, path: &Path) -> io::Result<HookSocket> {
        hooks::socket::serve(Arc::clone(&self.server), path).await
    }

    /// Listens for programs outside this process. A data folder keeps the authority, so that a kubeconfig outlives a restart.
    ///
    /// # Errors
    /// When the address can be reached from elsewhere, or can't be taken.
    pub async fn listen(&self, address: SocketAddr) -> Result<(Listening, Credentials), ListenError> {
        self.listen_for(Reach::ThisHost, address).await
    }

    /// The same for those who may reach the server.
    ///
    /// # Errors
    /// When others could reach it too, or the address can't be taken.
    pub async fn listen_for(&self, reach: Reach, address: SocketAddr) -> Result<(Listening, Credentials), ListenError> {
        self.listen_within(reach, address, &self.bounds).await
    }

    /// The same within other bounds.
    pub(super) async fn listen_within(
        &self,
        reach: Reach,
        address: SocketAddr,
        bounds: &Bounds,
    ) -> Result<(Listening, Credentials), ListenError> {
        let folder = self.folder.as_deref();
        let authority = Authority::of_folder(folder, certificates::SERVER).map_err(ListenError::Tls)?;
        let serving = authority.issue("mcm-dev", Holder::Server(address.ip())).map_err(ListenError::Tls)?;
        let admin = authority.issue(ADMIN, Holder::Client(Some(MASTERS))).map_err(ListenError::Tls)?;
        let (certificate, key) = serving.decoded().map_err(ListenError::Tls)?;
        let clients = certificates::certificate(&authority.pem).map_err(ListenError::Tls)?;
        let tls = acceptor(vec![certificate], key, &clients)?;
        self.server.introduce_to_extensions(folder, &authority.pem).map_err(ListenError::Tls)?;
        let listening = listen(Arc::clone(&self.server), address, reach, tls, bounds).await?;
        self.server.webhooks.never_call(listening.address.port());
        // All listeners of a server have one.
        let _ = self.server.authority.set(authority.pem.clone());
        Ok((listening, Credentials { authority: authority.pem, certificate: admin.certificate, key: admin.key }))
    }
}

/// The answer to a request of this process.
async fn answered(server: Arc<Server>, user: String, request: Request<kube::client::Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let (bytes, user) = match body.collect().await {
        Ok(body) => (body.to_bytes(), Ok(User::known(&user, [MASTERS.to_owned()]))),
        Err(_) => (bytes::Bytes::new(), Err(ApiStatus::bad_request("the body of the request cannot be read"))),
    };
    server.answer(Request::from_parts(head, bytes), user).await
}

impl Credentials {
    /// A kubeconfig for the administrator.
    pub fn kubeconfig(&self, address: SocketAddr) -> String {
        let data = |pem: &str| BASE64_STANDARD.encode(pem);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": CONTEXT,
            "clusters": [{"name": CONTEXT, "cluster": {
                "server": format!("https://{address}"), "certificate-authority-data": data(&self.authority)}}],
            "users": [{"name": ADMIN, "user": {
                "client-certificate-data": data(&self.certificate), "client-key-data": data(&self.key)}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": ADMIN, "namespace": "default"}}],
        });
        // JSON is YAML.
        format!("{config:#}\n")
    }

    /// A kubeconfig for whoever shows a token.
    pub fn kubeconfig_with_token(&self, address: SocketAddr, user: &str, token: &str) -> String {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": CONTEXT,
            "clusters": [{"name": CONTEXT, "cluster": {
                "server": format!("https://{address}"),
                "certificate-authority-data": BASE64_STANDARD.encode(&self.authority)}}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user, "namespace": "default"}}],
        });
        format!("{config:#}\n")
    }
}
