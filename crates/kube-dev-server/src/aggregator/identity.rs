//! The identity of the server for extension API servers, and the `ConfigMap` with the certificate authorities that they must trust.
//!
//! Source: spec/extension-apiserver §3.2, §5.2.

use std::path::Path;

use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

use crate::{
    certificates::{Authority, FRONT_PROXY, Holder},
    object,
    server::Server,
    store::{Collection, Expect, key},
};

/// The common name in the client certificate for extension API servers.
const PROXY: &str = "front-proxy-client";
const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// The client certificate for extension API servers.
pub(super) struct Identity {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) key: PrivateKeyDer<'static>,
}

impl Identity {
    /// As a client shows it.
    pub(super) fn shown(&self) -> tls_client::Identity {
        tls_client::Identity { chain: vec![self.certificate.clone()], key: self.key.clone_key() }
    }
}

impl Server {
    /// Creates the client certificate for extension API servers, and publishes the certificate authorities that they must trust. Does nothing after
    /// the first call of the process.
    ///
    /// # Errors
    /// If no certificate can be created.
    pub(crate) fn publish_identity(&self, folder: Option<&Path>, clients: &str) -> Result<(), String> {
        if self.aggregator.identity.get().is_some() {
            return Ok(());
        }
        let authority = Authority::of_folder(folder, FRONT_PROXY)?;
        let (certificate, key) = authority.issue(PROXY, Holder::Client(None))?.decoded()?;
        // The result is ignored: a concurrent start of another listener sets an equal identity.
        let _ = self.aggregator.identity.set(Identity { certificate, key });
        self.publish(trust(clients, &authority.pem));
        self.aggregator.check_again();
        Ok(())
    }

    fn publish(&self, data: Value) {
        let (maps, place) = (Collection::new("", "configmaps"), key(Some(NAMESPACE), CONFIG_MAP));
        let (expect, object) = match self.store.get(&maps, &place) {
            Some(stored) if stored.value["data"] == data => return,
            Some(stored) => {
                let mut object = stored.whole();
                object["data"] = data;
                (Expect::Revision(stored.revision), object)
            }
            None => {
                let uid = object::new_uid(&mut *self.random());
                let object = json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {
                        "name": CONFIG_MAP, "namespace": NAMESPACE, "uid": uid,
                        "creationTimestamp": object::time(self.now()),
                    },
                    "data": data,
                });
                (Expect::Absent, object)
            }
        };
        // A conflict is impossible, because this write is before the first request.
        let _ = self.store.write(&maps, &place, expect, Some(object));
    }
}

/// The certificate authorities and headers that extension API servers must trust, in the format of kube-apiserver.
fn trust(clients: &str, proxies: &str) -> Value {
    let list = |entries: &[&str]| json!(entries).to_string();
    json!({
        "client-ca-file": clients,
        "requestheader-client-ca-file": proxies,
        "requestheader-allowed-names": list(&[PROXY]),
        "requestheader-username-headers": list(&["X-Remote-User"]),
        "requestheader-uid-headers": list(&[]),
        "requestheader-group-headers": list(&["X-Remote-Group"]),
        "requestheader-extra-headers-prefix": list(&["X-Remote-Extra-"]),
    })
}
