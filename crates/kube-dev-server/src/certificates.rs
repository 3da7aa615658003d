//! The certificate authorities of the server, and the certificates that they sign: the serving certificate, the client certificate of the
//! administrator, and the client certificate for extension API servers.
//!
//! The authorities are stored in the data folder, so that their certificates are valid after a restart. To use other authorities, put their files
//! into the data folder before the first start.

use std::{fs, net::IpAddr, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use super::files;

/// The name of an authority and its files.
#[derive(Clone, Copy, Debug)]
pub(super) struct AuthorityName {
    common_name: &'static str,
    certificate: &'static str,
    key: &'static str,
}

/// Signs the serving certificate and the certificates of clients.
pub(super) const SERVER: AuthorityName =
    AuthorityName { common_name: "mcm-dev-ca", certificate: "ca.crt", key: "ca.key" };
/// Signs the client certificate of the server for extension API servers. It signs no certificates of other clients.
pub(super) const FRONT_PROXY: AuthorityName = AuthorityName {
    common_name: "mcm-dev-front-proxy-ca",
    certificate: "front-proxy-ca.crt",
    key: "front-proxy-ca.key",
};

/// A certificate authority.
pub(super) struct Authority {
    /// The certificate as PEM.
    pub(super) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// The holder of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder<'a> {
    /// The server at an address.
    Server(IpAddr),
    /// A client, with or without a group.
    Client(Option<&'a str>),
}

impl Authority {
    /// The authority of a data folder. Creates an authority if the folder has none. Without a folder the authority ends with the process.
    ///
    /// # Errors
    /// If the files are not a certificate and a key, or can't be written.
    pub(super) fn of_folder(folder: Option<&Path>, name: AuthorityName) -> Result<Self, String> {
        if let Some(folder) = folder {
            let read = |file: &str| fs::read_to_string(folder.join(file));
            if let (Ok(pem), Ok(key)) = (read(name.certificate), read(name.key)) {
                let unusable = |error: rcgen::Error| {
                    format!("{} and {} in {}: {error}", name.certificate, name.key, folder.display())
                };
                let pair = KeyPair::from_pem(&key).map_err(unusable)?;
                let issuer = Issuer::from_ca_cert_pem(&pem, pair).map_err(unusable)?;
                return Ok(Self { pem, issuer });
            }
        }
        let text = |error: rcgen::Error| error.to_string();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name.common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().map_err(text)?;
        let pem = params.self_signed(&key).map_err(text)?.pem();
        if let Some(folder) = folder {
            for (file, content) in [(name.key, &key.serialize_pem()), (name.certificate, &pem)] {
                let path = folder.join(file);
                files::write_private(&path, content).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        Ok(Self { pem, issuer: Issuer::new(params, key) })
    }

    /// Signs a new certificate.
    ///
    /// # Errors
    /// The error of the library.
    pub(super) fn issue(&self, name: &str, holder: Holder<'_>) -> Result<Pair, String> {
        let text = |error: rcgen::Error| error.to_string();
        let names = match holder {
            Holder::Server(address) => {
                vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), address.to_string()]
            }
            Holder::Client(_) => Vec::new(),
        };
        let mut params = CertificateParams::new(names).map_err(text)?;
        params.distinguished_name.push(DnType::CommonName, name);
        if let Holder::Client(Some(group)) = holder {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match holder {
            Holder::Server(_) => ExtendedKeyUsagePurpose::ServerAuth,
            Holder::Client(_) => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(text)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(text)?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

impl Pair {
    /// Decodes certificate and key.
    ///
    /// # Errors
    /// If they are not PEM.
    pub(super) fn decoded(&self) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), String> {
        let certificate = certificate(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|error| error.to_string())?;
        Ok((certificate, key))
    }
}

/// The first certificate of a PEM text.
///
/// # Errors
/// If there is none.
pub(super) fn certificate(pem: &str) -> Result<CertificateDer<'static>, String> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_stores_two_different_authorities() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name| Authority::of_folder(Some(folder.path()), name).unwrap();
        let (server, proxy) = (open(SERVER), open(FRONT_PROXY));
        assert_ne!(server.pem, proxy.pem);
        assert_eq!((open(SERVER).pem, open(FRONT_PROXY).pem), (server.pem, proxy.pem));
    }

    #[test]
    fn the_error_names_unreadable_files() {
        let folder = tempfile::tempdir().unwrap();
        for file in [SERVER.certificate, SERVER.key] {
            fs::write(folder.path().join(file), "nothing").unwrap();
        }
        let Err(why) = Authority::of_folder(Some(folder.path()), SERVER) else { panic!("the files were accepted") };
        assert!(why.starts_with("ca.crt and ca.key in "), "{why}");
    }
}
