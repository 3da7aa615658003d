//! An API server with aggregation, clients with certificates, and the registration of a manager's views.

use std::{fs, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use machine_controller_manager::cli::documents::{parse_documents, to_yaml};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use serde_json::{Value, json};
use tls_client::{Identity, Trust, certificates, private_key};
use tokio::net::TcpStream;

use super::{
    manager::{TestManager, mcm},
    rig::{Namespace, Rig},
    wait_until,
};

/// The registration of the views.
pub const API_SERVICE: &str = "v1alpha1.views.machine.sapcloud.io";
/// The `ConfigMap` with the authorities that the API server publishes.
pub const TRUST: &str = "extension-apiserver-authentication";

/// A certificate authority for callers.
pub struct CallerAuthority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
pub struct Holder {
    certificate: String,
    key: String,
}

impl CallerAuthority {
    pub fn new(name: &str) -> Self {
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, name);
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Self(CertifiedIssuer::self_signed(ca, KeyPair::generate().expect("a key pair")).expect("an authority"))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    fn key_pem(&self) -> String {
        self.0.key().serialize_pem()
    }

    /// A certificate for clients.
    pub fn client(&self, name: &str, groups: &[&str]) -> Holder {
        self.holder(name, groups, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A certificate for servers.
    pub fn server(&self, name: &str) -> Holder {
        self.holder(name, &[], ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn holder(&self, name: &str, groups: &[&str], usage: ExtendedKeyUsagePurpose) -> Holder {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().expect("a key pair");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Holder { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

/// The certificate authorities of an API server with aggregation.
pub struct Aggregation {
    /// The authority of its clients.
    pub clients: CallerAuthority,
    /// The authority of its own certificate for extension API servers.
    pub proxies: CallerAuthority,
}

/// The API server's common name in that certificate.
pub const PROXY: &str = "front-proxy-client";

impl Aggregation {
    /// Makes both authorities.
    pub fn new() -> Self {
        Self { clients: CallerAuthority::new("rig clients"), proxies: CallerAuthority::new("rig proxies") }
    }

    /// Writes both to the files of the development server's authorities.
    pub fn write_for_dev(&self, data: &Path) {
        for (name, authority) in [("ca", &self.clients), ("front-proxy-ca", &self.proxies)] {
            let write = |ending: &str, text: String| fs::write(data.join(format!("{name}.{ending}")), text);
            write("crt", authority.pem()).and(write("key", authority.key_pem())).expect("the data folder is writable");
        }
    }

    /// Writes the files for the API server's flags, and returns these flags.
    pub fn flags(&self, folder: &Path) -> Vec<String> {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).expect("the scratch folder is writable");
            path.display().to_string()
        };
        let proxy = self.proxies.client(PROXY, &[]);
        vec![
            format!("--client-ca-file={}", write("client-ca.crt", &self.clients.pem())),
            format!("--requestheader-client-ca-file={}", write("proxy-ca.crt", &self.proxies.pem())),
            format!("--requestheader-allowed-names={PROXY}"),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            format!("--proxy-client-cert-file={}", write("proxy.crt", &proxy.certificate)),
            format!("--proxy-client-key-file={}", write("proxy.key", &proxy.key)),
        ]
    }
}

/// Registers the views of a manager on loopback, and waits until the API server forwards requests to it.
pub async fn register_views(rig: &Arc<Rig>, namespace: &Namespace, manager: &TestManager) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "machine-controller-manager", "namespace": namespace.name},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    });
    let printed = mcm(&["manifests", "apiservice", "--namespace", &namespace.name]);
    let mut objects: Vec<Value> =
        parse_documents("apiservice", &printed).expect("mcm prints YAML").into_iter().map(|one| one.value).collect();
    // The rig has created these bindings for a user, because the tests use no service account.
    objects.retain(|object| !object["kind"].as_str().is_some_and(|kind| kind.ends_with("Binding")));
    for object in &mut objects {
        if object["kind"] == "APIService" {
            object["spec"]["service"]["port"] = json!(manager.secure_port);
        }
    }
    objects.insert(0, service);
    rig.apply(&to_yaml(&objects).expect("JSON has a YAML form")).await.succeed();
    wait_until("the views to be available", Duration::from_secs(30), || async {
        let condition = available(rig).await;
        if condition["status"] == "True" { Ok(()) } else { Err(condition.to_string()) }
    })
    .await;
}

/// The condition `Available` of the registration.
pub async fn available(rig: &Rig) -> Value {
    let object = rig.get("apiservice", API_SERVICE).await;
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == "Available").unwrap_or_default()
}

/// One connection to the TLS port of a manager.
pub struct Caller(SendRequest<Full<Bytes>>);

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

impl Caller {
    /// Connects, with a certificate or without. The client verifies the certificate of the server.
    pub async fn open(rig: &Rig, namespace: &Namespace, port: u16, holder: Option<&Holder>) -> Self {
        let secret = rig
            .kubectl(&["get", "secret", "machine-controller-manager-certs", "-n", &namespace.name, "-o", "json"])
            .await
            .json();
        let bundle = decoded(&secret["data"]["ca.crt"]);
        let identity = holder.map(|holder| Identity {
            chain: certificates(holder.certificate.as_bytes()).expect("a certificate"),
            key: private_key(holder.key.as_bytes()).expect("a key"),
        });
        let trust = Trust::authorities(bundle.as_bytes()).expect("authorities");
        let config = tls_client::config(trust, identity).expect("they belong together");
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connections are accepted");
        let name = format!("machine-controller-manager.{}.svc", namespace.name);
        let stream = tls_client::handshake(stream, &name, Arc::new(config)).await.expect("a handshake");
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        Self(sender)
    }

    /// Sends a GET request.
    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send("GET", path, headers, "").await
    }

    /// Sends a request.
    pub async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = Request::builder().method(method).uri(path).header("host", "mcm");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).expect("a request");
        let answered = async {
            self.0.ready().await.expect("the connection lives");
            let response = self.0.send_request(request).await.expect("an answer");
            let (head, body) = response.into_parts();
            let text = String::from_utf8_lossy(&body.collect().await.expect("a body").to_bytes()).into_owned();
            Answer { code: head.status.as_u16(), headers: head.headers, text }
        };
        tokio::time::timeout(Duration::from_secs(60), answered).await.expect("an answer in time")
    }
}

/// The text of a key of a Secret.
pub fn decoded(value: &Value) -> String {
    use base64::Engine;
    let bytes = base64::prelude::BASE64_STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}
