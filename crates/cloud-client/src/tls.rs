//! The TLS settings of a client: trusted authorities and client certificate.

use std::{fs, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};

use crate::{
    http_transport::{ClientIdentity, HttpOptions, ServerCheck},
    secret::Secret,
};

/// The TLS settings of a client.
pub fn config(options: &HttpOptions) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match options.server {
        ServerCheck::Full => builder.with_root_certificates(roots(options)?),
        ServerCheck::None => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(Arc::clone(&provider))))
        }
    };
    match &options.identity {
        None => Ok(builder.with_no_client_auth()),
        Some(identity) => {
            let (chain, key) = parts(identity)?;
            builder.with_client_auth_cert(chain, key).map_err(|error| format!("client certificate: {error}"))
        }
    }
}

fn roots(options: &HttpOptions) -> Result<RootCertStore, String> {
    let (origin, pem) = match (&options.ca, &options.ca_file) {
        (Some(pem), _) => ("the authorities' certificates".to_owned(), pem.clone().into_bytes()),
        (None, Some(file)) => {
            let origin = format!("certificates of {}", file.display());
            let pem = fs::read(file).map_err(|error| format!("{origin}: {error}"))?;
            (origin, pem)
        }
        (None, None) => {
            let mut roots = RootCertStore::empty();
            // Errors are ignored: an image without certificates can still use plain HTTP with a configured endpoint.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            return Ok(roots);
        }
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| format!("{origin}: {error}"))?;
        roots.add(certificate).map_err(|error| format!("{origin}: {error}"))?;
    }
    if roots.is_empty() { Err(format!("{origin}: there is none in it")) } else { Ok(roots) }
}

fn parts(identity: &ClientIdentity) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect();
    let chain = chain.map_err(|error| format!("client certificate: {error}"))?;
    // The error of the parser is dropped, because it could contain parts of the key.
    let key = PrivateKeyDer::from_pem_slice(Secret::reveal(&identity.key).as_bytes())
        .map_err(|_| "the key of the client certificate can't be read".to_owned())?;
    if chain.is_empty() { Err("client certificate: there is none in it".to_owned()) } else { Ok((chain, key)) }
}

/// Accepts the certificate of every server, if the user asks for that. The server must still prove that it has the key of its
/// certificate.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
