//! The TLS settings of a client: trusted authorities and client certificate.

use std::fs;

use rustls::ClientConfig;
use tls_client::{Identity, Trust, certificates, private_key};

use crate::{
    http_transport::{ClientIdentity, HttpOptions, ServerCheck},
    secret::Secret,
};

/// The TLS settings of a client.
pub fn config(options: &HttpOptions) -> Result<ClientConfig, String> {
    let trust = match options.server {
        ServerCheck::Full => trust(options)?,
        ServerCheck::None => Trust::AnyServer,
    };
    let identity = options.identity.as_ref().map(identity).transpose()?;
    tls_client::config(trust, identity).map_err(|error| format!("client certificate: {error}"))
}

fn trust(options: &HttpOptions) -> Result<Trust, String> {
    let (origin, pem) = match (&options.ca, &options.ca_file) {
        (Some(pem), _) => ("the authorities' certificates".to_owned(), pem.clone().into_bytes()),
        (None, Some(file)) => {
            let origin = format!("certificates of {}", file.display());
            let pem = fs::read(file).map_err(|error| format!("{origin}: {error}"))?;
            (origin, pem)
        }
        (None, None) => return Ok(Trust::authorities_of_system()),
    };
    Trust::authorities(&pem).map_err(|error| format!("{origin}: {error}"))
}

fn identity(identity: &ClientIdentity) -> Result<Identity, String> {
    let chain =
        certificates(identity.certificate.as_bytes()).map_err(|error| format!("client certificate: {error}"))?;
    let key = private_key(Secret::reveal(&identity.key).as_bytes())
        .map_err(|error| format!("the key of the client certificate: {error}"))?;
    Ok(Identity { chain, key })
}
