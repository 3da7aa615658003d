//! Who the server is towards extensions, and where it tells them whom to believe.
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

/// The name on the certificate that extensions see.
const PROXY: &str = "front-proxy-client";
const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// The certificate that the server shows extensions.
pub(super) struct Identity {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) key: PrivateKeyDer<'static>,
}

impl Server {
    /// Gives the server a certificate for extensions, and tells them whom to believe: it, and its own clients. Once per
    /// process; what is there already stays.
    ///
    /// # Errors
    /// When no certificate can be made.
    pub(crate) fn introduce_to_extensions(&self, folder: Option<&Path>, clients: &str) -> Result<(), String> {
        if self.aggregator.identity.get().is_some() {
            return Ok(());
        }
        let authority = Authority::of_folder(folder, FRONT_PROXY)?;
        let (certificate, key) = authority.issue(PROXY, Holder::Client(None))?.decoded()?;
        // A second listener that was quicker has done the same.
        let _ = self.aggregator.identity.set(Identity { certificate, key });
        self.publish(trust(clients, &authority.pem));
        self.aggregator.look_again();
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
        // Nobody else is there yet: this comes before the first request.
        let _ = self.store.write(&maps, &place, expect, Some(object));
    }
}

/// Whom to believe, as kube-apiserver writes it.
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
