//! The address of a driver: a Unix socket, a host with mutual TLS or, if the configuration allows it, a plain TCP port of this host.

use std::{fmt, net::SocketAddr, path::PathBuf};

/// The address of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A host that is reached with mutual TLS. The certificate of the driver must contain the name of the host.
    Tls {
        /// DNS name or IP address.
        host: String,
        /// Port.
        port: u16,
    },
    /// A port of this host without TLS.
    Plain(SocketAddr),
}

/// Whether connections without TLS are allowed. Connections to other hosts always use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainText {
    /// No connection without TLS.
    Refused,
    /// Connections without TLS to the loopback interface only.
    ToThisHost,
}

/// Why a text is not a valid address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text has no known form.
    #[error("must be unix:///PATH or https://HOST:PORT")]
    Form,
    /// The address asks for a connection without TLS, which is not allowed.
    #[error(
        "secrets would go over a plain connection; use unix:///PATH or https://HOST:PORT, or --insecure-driver for a port of this host"
    )]
    Insecure,
    /// The address asks for a connection without TLS to another host.
    #[error("a plain connection is made to a loopback address only, such as http://127.0.0.1:PORT")]
    NotThisHost,
}

impl Address {
    /// Parses an address.
    ///
    /// # Errors
    /// Why the text is not a valid address.
    pub fn parse(text: &str, plain: PlainText) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.starts_with('/') && path.len() > 1 {
                Ok(Self::Unix(path.into()))
            } else {
                Err(AddressError::Form)
            };
        }
        if let Some(place) = text.strip_prefix("https://") {
            let (host, port) = place.trim_end_matches('/').rsplit_once(':').ok_or(AddressError::Form)?;
            let port = port.parse().map_err(|_| AddressError::Form)?;
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            let is_host = rustls_pki_types::ServerName::try_from(host).is_ok();
            return if is_host { Ok(Self::Tls { host: host.to_owned(), port }) } else { Err(AddressError::Form) };
        }
        let place = text.strip_prefix("http://").ok_or(AddressError::Form)?;
        if plain == PlainText::Refused {
            return Err(AddressError::Insecure);
        }
        let address: SocketAddr = place.trim_end_matches('/').parse().map_err(|_| AddressError::NotThisHost)?;
        if address.ip().is_loopback() { Ok(Self::Plain(address)) } else { Err(AddressError::NotThisHost) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tls { host, port } if host.contains(':') => write!(f, "https://[{host}]:{port}"),
            Self::Tls { host, port } => write!(f, "https://{host}:{port}"),
            Self::Plain(address) => write!(f, "http://{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_socket("unix:///run/mcm/driver.sock", Ok("unix:///run/mcm/driver.sock"))]
    #[case::no_path("unix://", Err(AddressError::Form))]
    #[case::a_relative_path("unix://run/x", Err(AddressError::Form))]
    #[case::a_host("https://driver.example:8443", Ok("https://driver.example:8443"))]
    #[case::an_ipv6_address("https://[::1]:8443", Ok("https://[::1]:8443"))]
    #[case::no_port("https://driver.example", Err(AddressError::Form))]
    #[case::a_path_behind_a_host("https://driver.example/x:1", Err(AddressError::Form))]
    #[case::plain_to_this_host("http://127.0.0.1:80", Ok("http://127.0.0.1:80"))]
    #[case::plain_to_another_host("http://10.0.0.1:80", Err(AddressError::NotThisHost))]
    #[case::plain_by_name("http://localhost:80", Err(AddressError::NotThisHost))]
    #[case::no_scheme("127.0.0.1:80", Err(AddressError::Form))]
    fn an_address(#[case] text: &str, #[case] expected: Result<&str, AddressError>) {
        let read = Address::parse(text, PlainText::ToThisHost).map(|address| address.to_string());
        assert_eq!(read, expected.map(str::to_owned));
    }

    #[test]
    fn plain_connections_need_a_flag_of_their_own() {
        assert_eq!(Address::parse("http://127.0.0.1:80", PlainText::Refused), Err(AddressError::Insecure));
    }
}
