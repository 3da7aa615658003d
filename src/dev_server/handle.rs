//! Starting a development server, and clients of it.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::Request;
use http_body_util::BodyExt;
use jiff::Timestamp;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::json;

use super::{
    access::{MASTERS, TokenFileError, User},
    account_tokens::AccountTokens,
    authorization::AuthorizationMode,
    files,
    first_content::first_content,
    helpers::{Helpers, StandIn},
    listener::{ListenError, Listening, acceptor, listen},
    persistence::{DataError, Durable, open},
    server::Server,
    store::{Collection, Store},
    webhook_client::InProcess,
};
use crate::protocol::status::ApiStatus;

/// The user of the kubeconfig.
const ADMIN: &str = "mcm-dev-admin";
const CA_CERTIFICATE: &str = "ca.crt";
const CA_KEY: &str = "ca.key";

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
        }
    }
}

/// A running server. Any number of them can live in one process.
pub struct DevServer {
    server: Arc<Server>,
    folder: Option<PathBuf>,
    helpers: tokio::task::JoinHandle<()>,
}

impl Drop for DevServer {
    fn drop(&mut self) {
        self.helpers.abort();
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
        let server =
            Server::new(store, random, options.clock, accounts, options.bookmark_period, options.authorization);
        let server = Arc::new(server);
        server.reload_definitions();
        first_content(&server);
        let helpers = tokio::spawn(Helpers::new(Arc::clone(&server), options.without).run());
        Ok(Self { server, folder, helpers })
    }

    /// A client in this process, without sockets, as a user of the group of administrators.
    pub fn client(&self, user: &str, namespace: &str) -> kube::Client {
        let server = Arc::clone(&self.server);
        let user = User::known(user, [MASTERS.to_owned()]);
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (server, user) = (Arc::clone(&server), user.clone());
            async move {
                let (head, body) = request.into_parts();
                let (bytes, user) = match body.collect().await {
                    Ok(body) => (body.to_bytes(), Ok(user)),
                    Err(_) => {
                        (bytes::Bytes::new(), Err(ApiStatus::bad_request("the body of the request cannot be read")))
                    }
                };
                Ok::<_, Infallible>(server.answer(Request::from_parts(head, bytes), user).await)
            }
        });
        kube::Client::new(service, namespace)
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
        let journal = self.server.store.journal(0);
        let line = |(collection, change): &(Collection, Arc<super::store::Change>)| {
            let object = change.after.as_ref().map_or_else(|| "deleted".to_owned(), |stored| stored.value.to_string());
            format!("{} {}/{}/{} {object}", change.revision, collection.group, collection.resource, change.key)
        };
        journal.iter().map(line).collect()
    }

    /// Forgets the history of all objects, as a compaction does: older watches must begin anew.
    pub fn compact(&self) {
        self.server.store.compact();
    }

    /// Listens for programs outside this process. A data folder keeps the authority, so that a kubeconfig outlives a restart.
    ///
    /// # Errors
    /// When the address is not of this host, or can't be taken.
    pub async fn listen(&self, address: SocketAddr) -> Result<(Listening, Credentials), ListenError> {
        let failed = |error: String| ListenError::Tls(error);
        let (ca_certificate, ca_key) = authority(self.folder.as_deref()).map_err(failed)?;
        let made = |error: rcgen::Error| ListenError::Tls(error.to_string());
        let ca_pair = KeyPair::from_pem(&ca_key).map_err(made)?;
        let issuer = Issuer::from_ca_cert_pem(&ca_certificate, ca_pair).map_err(made)?;
        let serving = issue(&issuer, "mcm-dev", None, Some(address.ip())).map_err(made)?;
        let admin = issue(&issuer, ADMIN, Some(MASTERS), None).map_err(made)?;
        let chain = CertificateDer::from_pem_slice(serving.0.as_bytes()).map_err(|error| failed(error.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(serving.1.as_bytes()).map_err(|error| failed(error.to_string()))?;
        let clients =
            CertificateDer::from_pem_slice(ca_certificate.as_bytes()).map_err(|error| failed(error.to_string()))?;
        let tls = acceptor(vec![chain], key, &clients)?;
        let listening = listen(Arc::clone(&self.server), address, tls).await?;
        self.server.webhooks.never_call(listening.address.port());
        Ok((listening, Credentials { authority: ca_certificate, certificate: admin.0, key: admin.1 }))
    }
}

impl Credentials {
    /// A kubeconfig for the administrator.
    pub fn kubeconfig(&self, address: SocketAddr) -> String {
        let data = |pem: &str| BASE64_STANDARD.encode(pem);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "mcm-dev",
            "clusters": [{"name": "mcm-dev", "cluster": {
                "server": format!("https://{address}"), "certificate-authority-data": data(&self.authority)}}],
            "users": [{"name": ADMIN, "user": {
                "client-certificate-data": data(&self.certificate), "client-key-data": data(&self.key)}}],
            "contexts": [{"name": "mcm-dev", "context": {"cluster": "mcm-dev", "user": ADMIN, "namespace": "default"}}],
        });
        // JSON is YAML.
        format!("{config:#}\n")
    }

    /// A kubeconfig for whoever shows a token.
    pub fn kubeconfig_with_token(&self, address: SocketAddr, user: &str, token: &str) -> String {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "mcm-dev",
            "clusters": [{"name": "mcm-dev", "cluster": {
                "server": format!("https://{address}"),
                "certificate-authority-data": BASE64_STANDARD.encode(&self.authority)}}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "mcm-dev", "context": {"cluster": "mcm-dev", "user": user, "namespace": "default"}}],
        });
        format!("{config:#}\n")
    }
}

/// The authority of a data folder, made if it has none yet.
fn authority(folder: Option<&Path>) -> Result<(String, String), String> {
    if let Some(folder) = folder {
        let read = |name: &str| fs::read_to_string(folder.join(name));
        if let (Ok(certificate), Ok(key)) = (read(CA_CERTIFICATE), read(CA_KEY)) {
            return Ok((certificate, key));
        }
    }
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "mcm-dev-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let pair = KeyPair::generate().map_err(|error| error.to_string())?;
    let made = params.self_signed(&pair).map_err(|error| error.to_string())?;
    let made = (made.pem(), pair.serialize_pem());
    if let Some(folder) = folder {
        for (name, text) in [(CA_KEY, &made.1), (CA_CERTIFICATE, &made.0)] {
            files::write_private(&folder.join(name), text).map_err(|error| error.to_string())?;
        }
    }
    Ok(made)
}

fn issue(
    issuer: &Issuer<'_, KeyPair>,
    name: &str,
    group: Option<&str>,
    serves: Option<IpAddr>,
) -> Result<(String, String), rcgen::Error> {
    let names = match serves {
        Some(address) => vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), address.to_string()],
        None => Vec::new(),
    };
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![if serves.is_some() { ExtendedKeyUsagePurpose::ServerAuth } else { ExtendedKeyUsagePurpose::ClientAuth }];
    params.use_authority_key_identifier_extension = true;
    let pair = KeyPair::generate()?;
    let certificate = params.signed_by(&pair, issuer)?;
    Ok((certificate.pem(), pair.serialize_pem()))
}
