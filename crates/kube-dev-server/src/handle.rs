//! The start of a development server, its clients, listeners and kubeconfigs.

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
    listener::{ListenError, ListenerLimits, Listening, Reach, acceptor, listen},
    persistence::{DataError, Durable, open},
    server::{Server, Source},
    stand_ins::StandIn,
    store::{Collection, Store},
    webhook_client::InProcess,
};

/// The name of context and cluster in kubeconfigs.
pub const CONTEXT: &str = "mcm-dev";
/// The user of the kubeconfig.
const ADMIN: &str = "mcm-dev-admin";

/// The storage of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In memory. The objects end with the process.
    Memory,
    /// In a folder that no other server uses.
    Folder(PathBuf),
}

/// The options of a development server.
#[derive(Clone)]
pub struct DevServerOptions {
    /// The storage of objects.
    pub storage: Storage,
    /// The seed of UIDs, generated names and the lifetimes of watches.
    pub seed: u64,
    /// The clock for time stamps of objects.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// The time between two bookmarks of a watch without changes.
    pub bookmark_period: Duration,
    /// The authorization of authenticated users.
    pub authorization: AuthorizationMode,
    /// The built-in controllers that do not run.
    pub without: BTreeSet<StandIn>,
    /// The limits of requests and connections.
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

/// A running development server. A process can run any number of them.
pub struct DevServer {
    server: Arc<Server>,
    folder: Option<PathBuf>,
    limits: ListenerLimits,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Drop for DevServer {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// The credentials of the administrator.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The certificate authority of the serving certificate, as PEM.
    pub authority: String,
    /// The client certificate of the administrator, as PEM.
    pub certificate: String,
    /// The key of the client certificate, as PEM.
    pub key: String,
}

impl DevServer {
    /// Starts a server. Clients in this process can use it at once.
    ///
    /// # Errors
    /// If the data folder can't be used.
    pub fn start(options: DevServerOptions) -> Result<Self, DataError> {
        let (revision, records, durable) = match &options.storage {
            Storage::Memory => (1, Vec::new(), Durable::memory()),
            Storage::Folder(folder) => open(folder)?,
        };
        let store = Store::new(revision, records, durable);
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
        Ok(Self { server, folder, limits: ListenerLimits::of(&options.limits), tasks: [helpers, registrations] })
    }

    /// A client in this process, without sockets. Its user is in the group of administrators.
    pub fn client(&self, user: &str, namespace: &str) -> kube::Client {
        let (server, user) = (Arc::clone(&self.server), user.to_owned());
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            answered(Arc::clone(&server), user.clone(), request).map(Ok::<_, Infallible>)
        });
        kube::Client::new(service, namespace)
    }

    /// Answers one request of a user in the group of administrators. Unlike [`DevServer::client`] it needs no task of its own. A request that calls
    /// no webhook is answered when the future is first polled.
    pub fn answer(
        &self,
        user: &str,
        request: Request<kube::client::Body>,
    ) -> impl Future<Output = Response<Body>> + Send + use<> {
        answered(Arc::clone(&self.server), user.to_owned(), request)
    }

    /// Calls a webhook in this process instead of over a connection. `authority` is the `host:port` of its URL or the `namespace/name` of its
    /// Service.
    pub fn answer_webhooks(&self, authority: &str, handler: InProcess) {
        self.server.webhooks.register(authority, handler);
    }

    /// Accepts a token for a user in the group of administrators.
    pub fn add_token(&self, token: &str, user: &str) {
        self.server.tokens.add(token.to_owned(), User::known(user, [MASTERS.to_owned()]));
    }

    /// Accepts the tokens of a token file in the format of kube-apiserver: a line `token,user,uid,"group,group"` for each token.
    ///
    /// # Errors
    /// The first line with another format.
    pub fn add_tokens(&self, file: &str) -> Result<(), TokenFileError> {
        self.server.tokens.add_file(file)
    }

    /// A line for every write in the history of the store: revision, group, resource, key, and the stored object.
    pub fn writes(&self) -> Vec<String> {
        self.writes_after(0)
    }

    /// The lines of [`DevServer::writes`] after a revision.
    pub fn writes_after(&self, revision: u64) -> Vec<String> {
        let journal = self.server.store.journal(revision);
        let line = |(collection, change): &(Collection, Arc<super::store::Change>)| {
            let object =
                change.after.as_ref().map_or_else(|| "deleted".to_owned(), |stored| stored.whole().to_string());
            format!("{} {}/{}/{} {object}", change.revision, collection.group, collection.resource, change.key)
        };
        journal.iter().map(line).collect()
    }

    /// Drops the history of all objects, like a compaction. Watches of an older revision must list again.
    pub fn compact(&self) {
        self.server.store.compact();
    }

    /// Injects a fault into requests or watches.
    ///
    /// # Errors
    /// If a value of the hook is out of range.
    pub fn apply_hook(&self, hook: Hook) -> Result<(), HookError> {
        self.server.apply_hook(hook)
    }

    /// Accepts hooks over a Unix socket that only the user of this process can use.
    ///
    /// # Errors
    /// If the socket can't be created, or another process listens there.
    pub async fn listen_for_hooks(&self, path: &Path) -> io::Result<HookSocket> {
        hooks::socket::serve(Arc::clone(&self.server), path).await
    }

    /// Listens for other processes of this host. The certificate authority is stored in the data folder, so that a kubeconfig is valid after a
    /// restart.
    ///
    /// # Errors
    /// If other hosts can reach the address, or it is in use.
    pub async fn listen(&self, address: SocketAddr) -> Result<(Listening, Credentials), ListenError> {
        self.listen_for(Reach::ThisHost, address).await
    }

    /// Listens for clients within a reach.
    ///
    /// # Errors
    /// If clients outside the reach can reach the address, or it is in use.
    pub async fn listen_for(&self, reach: Reach, address: SocketAddr) -> Result<(Listening, Credentials), ListenError> {
        self.listen_within(reach, address, &self.limits).await
    }

    /// Listens with other limits.
    pub(super) async fn listen_within(
        &self,
        reach: Reach,
        address: SocketAddr,
        limits: &ListenerLimits,
    ) -> Result<(Listening, Credentials), ListenError> {
        let folder = self.folder.as_deref();
        let authority = Authority::of_folder(folder, certificates::SERVER).map_err(ListenError::Tls)?;
        let serving = authority.issue("mcm-dev", Holder::Server(address.ip())).map_err(ListenError::Tls)?;
        let admin = authority.issue(ADMIN, Holder::Client(Some(MASTERS))).map_err(ListenError::Tls)?;
        let (certificate, key) = serving.decoded().map_err(ListenError::Tls)?;
        let clients = certificates::certificate(&authority.pem).map_err(ListenError::Tls)?;
        let tls = acceptor(vec![certificate], key, &clients)?;
        self.server.publish_identity(folder, &authority.pem).map_err(ListenError::Tls)?;
        let listening = listen(Arc::clone(&self.server), address, reach, tls, limits).await?;
        self.server.webhooks.block_port(listening.address.port());
        // All listeners of a server have the same authority.
        let _ = self.server.authority.set(authority.pem.clone());
        Ok((listening, Credentials { authority: authority.pem, certificate: admin.certificate, key: admin.key }))
    }
}

/// Answers a request of a client in this process.
async fn answered(server: Arc<Server>, user: String, request: Request<kube::client::Body>) -> Response<Body> {
    let user = User::known(&user, [MASTERS.to_owned()]);
    server.answer(request.map(Body::new), Source::InProcess(user)).await
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

    /// A kubeconfig for the user of a token.
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
