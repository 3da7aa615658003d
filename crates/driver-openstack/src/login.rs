//! The login in the Secrets of a class, and the body of its request (Keystone v3).

use cloud_client::{ClientIdentity, CredentialsKey, HttpOptions, Secret, ServerCheck};
use machine_driver::{Code, SecretData, Status};
use serde_json::{Value, json};

/// A login: the URL of Keystone, the credentials and the TLS settings.
#[derive(Clone, Debug)]
pub struct Login {
    /// The URL of Keystone with its version.
    pub url: String,
    credentials: Credentials,
    /// The TLS settings.
    pub tls: HttpOptions,
    /// The key of this login in caches and request budgets.
    pub account: CredentialsKey,
    /// The key of the TLS settings in the cache of clients.
    pub tls_key: CredentialsKey,
}

/// A reference to an object of Keystone, by id or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Named {
    Id(String),
    Name(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Credentials {
    Password {
        user: String,
        domain: Named,
        password: Secret,
        project: Named,
        project_domain: Option<Named>,
    },
    /// An application credential belongs to a project. Keystone refuses an additional scope.
    CredentialById {
        id: String,
        secret: Secret,
    },
    CredentialByName {
        name: String,
        user: String,
        domain: Named,
        secret: Secret,
    },
}

impl Named {
    fn of(id: Option<&str>, name: Option<&str>) -> Option<Self> {
        id.map(|id| Self::Id(id.to_owned())).or_else(|| name.map(|name| Self::Name(name.to_owned())))
    }

    fn json(&self) -> Value {
        match self {
            Self::Id(id) => json!({"id": id}),
            Self::Name(name) => json!({"name": name}),
        }
    }
}

impl Login {
    /// Reads the login in the Secrets of a class. `endpoint` replaces their `authURL`.
    ///
    /// # Errors
    /// `InvalidArgument` with the name of a missing or invalid key.
    pub fn of(secret: &SecretData, endpoint: Option<&str>) -> Result<Self, Status> {
        let text = |key: &str| {
            let value = std::str::from_utf8(secret.get(key)?).ok()?.trim();
            (!value.is_empty()).then_some(value)
        };
        let needed = |key: &str| text(key).ok_or_else(|| missing(key));
        let url = identity_url(endpoint.map_or_else(|| needed("authURL"), Ok)?)?;
        let domain = Named::of(text("domainID"), text("domainName"));
        let user_domain = || {
            Named::of(text("userDomainID"), text("userDomainName"))
                .or_else(|| domain.clone())
                .ok_or_else(|| missing("domainName"))
        };
        let credentials = match (text("applicationCredentialSecret"), text("password")) {
            (Some(_), Some(_)) => {
                let message = "data[password]: Forbidden: must not be given beside applicationCredentialSecret";
                return Err(Status::new(Code::InvalidArgument, message));
            }
            (Some(secret), None) => match text("applicationCredentialID") {
                Some(id) => Credentials::CredentialById { id: id.to_owned(), secret: Secret::new(secret) },
                None => Credentials::CredentialByName {
                    name: needed("applicationCredentialName")?.to_owned(),
                    user: needed("username")?.to_owned(),
                    domain: user_domain()?,
                    secret: Secret::new(secret),
                },
            },
            (None, _) => Credentials::Password {
                user: needed("username")?.to_owned(),
                domain: user_domain()?,
                password: Secret::new(needed("password")?),
                project: Named::of(text("tenantID"), text("tenantName")).ok_or_else(|| missing("tenantName"))?,
                project_domain: domain.clone(),
            },
        };
        if let Credentials::Password { project: Named::Name(_), project_domain: None, .. } = credentials {
            return Err(missing("domainName"));
        }
        let tls = tls(&text)?;
        let tls_key = CredentialsKey::of(&[
            tls.ca.as_deref().unwrap_or_default(),
            tls.identity.as_ref().map_or("", |identity| &identity.certificate),
            tls.identity.as_ref().map_or("", |identity| identity.key.reveal()),
            if tls.server == ServerCheck::None { "insecure" } else { "" },
        ]);
        let mut login = Self { url, credentials, tls, tls_key, account: tls_key };
        // The TLS settings are part of the key, so that a token is never sent over a connection with other settings.
        login.account = CredentialsKey::of(&[&login.url, &login.body().to_string(), &format!("{:?}", login.tls)]);
        Ok(login)
    }

    /// The body of the login request.
    pub fn body(&self) -> Value {
        match &self.credentials {
            Credentials::Password { user, domain, password, project, project_domain } => {
                let project = match (project, project_domain) {
                    (Named::Name(name), Some(domain)) => json!({"name": name, "domain": domain.json()}),
                    (project, _) => project.json(),
                };
                let user = json!({"name": user, "domain": domain.json(), "password": password.reveal()});
                json!({"auth": {
                    "identity": {"methods": ["password"], "password": {"user": user}},
                    "scope": {"project": project},
                }})
            }
            Credentials::CredentialById { id, secret } => credential(&json!({"id": id, "secret": secret.reveal()})),
            Credentials::CredentialByName { name, user, domain, secret } => {
                let user = json!({"name": user, "domain": domain.json()});
                credential(&json!({"name": name, "user": user, "secret": secret.reveal()}))
            }
        }
    }
}

fn credential(credential: &Value) -> Value {
    json!({"auth": {"identity": {"methods": ["application_credential"], "application_credential": credential}}})
}

fn missing(key: &str) -> Status {
    Status::new(Code::InvalidArgument, format!("data[{key}]: Required value: {key} is required"))
}

/// The URL of Keystone with its version. Users may leave the version out.
fn identity_url(url: &str) -> Result<String, Status> {
    let trimmed = url.trim_end_matches('/');
    let is_url = trimmed.starts_with("https://") || trimmed.starts_with("http://");
    if !is_url || trimmed.contains(['?', '#', '@']) || trimmed.chars().any(char::is_whitespace) {
        return Err(Status::new(Code::InvalidArgument, "data[authURL]: Invalid value: must be the URL of Keystone"));
    }
    match trimmed.rsplit_once('/') {
        Some((_, "v3")) => Ok(trimmed.to_owned()),
        Some((_, "v2.0" | "v2")) => {
            let message = "data[authURL]: Invalid value: must be the URL of version 3 of Keystone";
            Err(Status::new(Code::InvalidArgument, message))
        }
        _ => Ok(format!("{trimmed}/v3")),
    }
}

fn tls<'s>(text: &impl Fn(&str) -> Option<&'s str>) -> Result<HttpOptions, Status> {
    let identity = match (text("clientCert"), text("clientKey")) {
        (Some(certificate), Some(key)) => {
            Some(ClientIdentity { certificate: certificate.to_owned(), key: Secret::new(key) })
        }
        (Some(_), None) => return Err(missing("clientKey")),
        (None, _) => None,
    };
    let server = match text("insecure") {
        Some("true") => ServerCheck::None,
        Some("false") | None => ServerCheck::Full,
        Some(_) => {
            let message = "data[insecure]: Invalid value: must be true or false";
            return Err(Status::new(Code::InvalidArgument, message));
        }
    };
    Ok(HttpOptions { ca: text("caCert").map(str::to_owned), identity, server, ..HttpOptions::default() })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn secret(pairs: &[(&str, &str)]) -> SecretData {
        let mut secret = SecretData::default();
        for (key, value) in pairs {
            secret.set(*key, value.as_bytes().to_vec());
        }
        secret
    }

    fn login(change: &[(&str, &str)]) -> Result<Login, Status> {
        let mut pairs = vec![
            ("authURL", "https://keystone:5000/"),
            ("domainName", "Default"),
            ("tenantName", "machines"),
            ("username", "mcm"),
            ("password", "hunter2"),
        ];
        pairs.retain(|(key, _)| !change.iter().any(|(changed, _)| changed == key));
        pairs.extend(change);
        Login::of(&secret(&pairs), None)
    }

    const BY_ID: &[(&str, &str)] = &[
        ("password", ""),
        ("username", ""),
        ("domainName", ""),
        ("tenantName", ""),
        ("applicationCredentialID", "a"),
        ("applicationCredentialSecret", "s"),
    ];

    #[rstest]
    #[case::names(&[], json!({
        "identity": {"methods": ["password"], "password": {"user": {"name": "mcm", "domain": {"name": "Default"}, "password": "hunter2"}}},
        "scope": {"project": {"name": "machines", "domain": {"name": "Default"}}},
    }))]
    #[case::o4_ids_and_a_domain_of_the_user(&[("tenantID", " p "), ("domainID", "default"), ("userDomainName", "people")], json!({
        "identity": {"methods": ["password"], "password": {"user": {"name": "mcm", "domain": {"name": "people"}, "password": "hunter2"}}},
        "scope": {"project": {"id": "p"}},
    }))]
    #[case::an_application_credential_has_no_scope(BY_ID, json!({
        "identity": {"methods": ["application_credential"], "application_credential": {"id": "a", "secret": "s"}},
    }))]
    #[case::o4_an_application_credential_by_name(&[("password", ""), ("applicationCredentialName", "n"), ("applicationCredentialSecret", "s")], json!({
        "identity": {"methods": ["application_credential"], "application_credential": {"name": "n", "user": {"name": "mcm", "domain": {"name": "Default"}}, "secret": "s"}},
    }))]
    fn a_login_has_its_body(#[case] change: &[(&str, &str)], #[case] auth: Value) {
        assert_eq!(login(change).unwrap().body(), json!({ "auth": auth }));
    }

    #[rstest]
    #[case::no_url(&[("authURL", " ")], "data[authURL]: Required value: authURL is required")]
    #[case::no_web_address(&[("authURL", "keystone:5000")], "data[authURL]: Invalid value: must be the URL of Keystone")]
    #[case::an_old_version(&[("authURL", "https://k/v2.0")], "data[authURL]: Invalid value: must be the URL of version 3 of Keystone")]
    #[case::no_project(&[("tenantName", "")], "data[tenantName]: Required value: tenantName is required")]
    #[case::a_project_of_no_domain(&[("domainName", ""), ("userDomainID", "d")], "data[domainName]: Required value: domainName is required")]
    #[case::two_proofs(&[("applicationCredentialSecret", "s")], "data[password]: Forbidden: must not be given beside applicationCredentialSecret")]
    #[case::half_a_certificate(&[("clientCert", "c")], "data[clientKey]: Required value: clientKey is required")]
    #[case::a_word(&[("insecure", "yes")], "data[insecure]: Invalid value: must be true or false")]
    fn a_secret_is_refused(#[case] change: &[(&str, &str)], #[case] message: &str) {
        let refused = login(change).unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (Code::InvalidArgument, message));
    }

    #[test]
    fn other_credentials_or_tls_settings_are_another_account() {
        let one = login(&[]).unwrap();
        assert_eq!(one.url, "https://keystone:5000/v3");
        assert_eq!(one.account, login(&[("authURL", "https://keystone:5000/v3")]).unwrap().account);
        for change in
            [[("password", "other")], [("caCert", "x")], [("insecure", "true")], [("authURL", "https://other")]]
        {
            assert_ne!(one.account, login(&change).unwrap().account, "{change:?}");
        }
        assert!(!format!("{one:?}").contains("hunter2"));
    }
}
