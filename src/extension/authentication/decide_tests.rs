//! The caller of a request, by table. The names begin with the ids of the specification.

use http::{HeaderName, HeaderValue};
use rstest::rstest;

use super::*;
use crate::{
    extension::{
        authentication::{
            config::{Fixed, FrontProxy},
            headers::ProxyHeaders,
        },
        testing::{Pki, Usage},
    },
    settings::SharedAuthority,
};
use kube_protocol::status::ApiStatus;

/// The certificate that a caller presents in the handshake.
#[derive(Clone, Copy)]
enum Shows {
    Nothing,
    /// A certificate of the front proxies' authority with this name.
    Proxy(&'static str),
    /// The same, but for serving.
    ProxyServing(&'static str),
    /// The same, but expired since the end of 2024.
    ProxyExpired(&'static str),
    /// A certificate of the clients' authority: name and group.
    Client(&'static str, &'static str),
    /// A certificate of an unknown authority.
    Foreign(&'static str),
}

const NOW: &str = "2026-01-01T00:00:00Z";

struct World {
    clients: Pki,
    proxies: Pki,
    foreign: Pki,
    config: AuthConfig,
}

impl World {
    fn new() -> Self {
        let (clients, proxies, foreign) = (Pki::new("clients"), Pki::new("proxies"), Pki::new("foreign"));
        let front_proxy = FrontProxy {
            authorities: proxies.authorities(),
            allowed_names: vec!["front-proxy".to_owned()],
            headers: ProxyHeaders::default(),
        };
        let config = AuthConfig::fixed(Fixed {
            clients: Some(clients.authorities()),
            front_proxy: Some(front_proxy),
            shared: SharedAuthority::Refused,
        });
        Self { clients, proxies, foreign, config }
    }

    fn chain(&self, shows: Shows) -> PeerCertificates {
        let (certificate, _) = match shows {
            Shows::Nothing => return PeerCertificates::default(),
            Shows::Proxy(name) => self.proxies.certify(name, &[], Usage::Client, 2030),
            Shows::ProxyServing(name) => self.proxies.certify(name, &[], Usage::Server, 2030),
            Shows::ProxyExpired(name) => self.proxies.certify(name, &[], Usage::Client, 2025),
            Shows::Client(name, group) => self.clients.certify(name, &[group], Usage::Client, 2030),
            Shows::Foreign(name) => self.foreign.certify(name, &[], Usage::Client, 2030),
        };
        vec![certificate].into()
    }
}

fn headers(text: &str) -> HeaderMap {
    let mut all = HeaderMap::new();
    for line in text.split('|').filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap();
        all.append(
            HeaderName::from_bytes(name.to_lowercase().as_bytes()).unwrap(),
            HeaderValue::from_str(value).unwrap(),
        );
    }
    all
}

/// The caller as `user [groups] method`, or the HTTP status of the refusal. The only known token belongs to alice.
fn decided(config: &AuthConfig, chain: &PeerCertificates, text: &str) -> String {
    let Ok(step) = without_asking(config, chain, &headers(text), NOW.parse().unwrap()) else { return "400".to_owned() };
    let caller: Result<Caller, ApiStatus> = match step {
        Step::Decided(caller) => Ok(caller),
        Step::Undecided(undecided) => {
            let known = || AuthResult::Known(Identity { user: "alice".to_owned(), ..Identity::default() });
            undecided.conclude(match &undecided.token {
                None => AuthResult::NoIdentity,
                Some(token) if token.expose() == "alices" => known(),
                Some(_) => AuthResult::Rejected,
            })
        }
    };
    match caller {
        Ok(caller) => format!("{} {:?} {:?}", caller.identity.user, caller.identity.groups, caller.auth_method),
        Err(status) => status.code.to_string(),
    }
}

#[rstest]
#[case::xa_155_nothing_shown(Shows::Nothing, "", r#"system:anonymous ["system:unauthenticated"] Anonymous"#)]
#[case::xa_156_front_proxy(Shows::Proxy("front-proxy"), "X-Remote-User: alice", "alice [] FrontProxy")]
#[case::xa_157_front_proxy_with_groups(
    Shows::Proxy("front-proxy"),
    "X-Remote-User: root|X-Remote-Group: system:masters",
    r#"root ["system:masters"] FrontProxy"#
)]
#[case::xa_158_front_proxy_without_headers(Shows::Proxy("front-proxy"), "", "401")]
#[case::xa_159_name_that_is_not_allowed(Shows::Proxy("other"), "X-Remote-User: alice", "401")]
#[case::xa_160_foreign_authority(Shows::Foreign("front-proxy"), "X-Remote-User: alice", "401")]
#[case::xa_161_headers_alone(
    Shows::Nothing,
    "X-Remote-User: alice|X-Remote-Group: system:masters",
    r#"system:anonymous ["system:unauthenticated"] Anonymous"#
)]
#[case::th_13_headers_alone(
    Shows::Nothing,
    "X-Remote-User: x|X-Remote-Group: system:masters",
    r#"system:anonymous ["system:unauthenticated"] Anonymous"#
)]
#[case::xa_162_a_clients_certificate_wins_over_headers(
    Shows::Client("admin", "system:masters"),
    "X-Remote-User: alice",
    r#"admin ["system:masters"] Certificate"#
)]
#[case::th_14_a_client_named_like_the_proxy(
    Shows::Client("front-proxy", "dev"),
    "X-Remote-User: root|X-Remote-Group: system:masters",
    r#"front-proxy ["dev"] Certificate"#
)]
#[case::th_15_expired(Shows::ProxyExpired("front-proxy"), "X-Remote-User: alice", "401")]
#[case::th_16_a_certificate_for_serving(Shows::ProxyServing("front-proxy"), "X-Remote-User: alice", "401")]
#[case::th_17_commas_split_nothing(
    Shows::Proxy("front-proxy"),
    "X-Remote-User: a|X-Remote-Group: a, system:masters",
    r#"a ["a, system:masters"] FrontProxy"#
)]
#[case::th_18_underscores(Shows::Proxy("front-proxy"), "X_Remote_User: root", "401")]
#[case::th_18_conflicting_users(Shows::Proxy("front-proxy"), "X-Remote-User: a|X-Remote-User: b", "400")]
#[case::xa_163_token(Shows::Nothing, "Authorization: Bearer alices", "alice [] Token")]
#[case::xa_163_wrong_token(Shows::Nothing, "Authorization: Bearer nobodys", "401")]
#[case::xa_163_basic(
    Shows::Nothing,
    "Authorization: Basic YTpi",
    r#"system:anonymous ["system:unauthenticated"] Anonymous"#
)]
#[case::a_token_helps_beside_a_strange_certificate(
    Shows::Foreign("x"),
    "Authorization: Bearer alices",
    "alice [] Token"
)]
#[case::a_client_without_a_name(Shows::Client("", "dev"), "", "401")]
fn who_it_is(#[case] shows: Shows, #[case] headers: &str, #[case] expected: &str) {
    let world = World::new();
    assert_eq!(decided(&world.config, &world.chain(shows), headers), expected);
}

#[test]
fn without_authorities_no_certificate_identifies_a_caller() {
    let world = World::new();
    let chain = world.chain(Shows::Proxy("front-proxy"));
    let found = decided(&AuthConfig::default(), &chain, "X-Remote-User: root|X-Remote-Group: system:masters");
    assert_eq!(found, r#"system:anonymous ["system:unauthenticated"] Anonymous"#);
}

#[test]
fn a_client_certificate_adds_its_fingerprint() {
    let world = World::new();
    let chain = world.chain(Shows::Client("admin", "dev"));
    let AuthResult::Known(identity) = client_certificate(&world.config, &chain, NOW.parse().unwrap()) else { panic!() };
    let id = &identity.extra["authentication.kubernetes.io/credential-id"][0];
    assert!(id.starts_with("X509SHA256=") && id.len() == 11 + 64, "{id}");
}

#[rstest]
#[case::th_26_directly(AuthMethod::Certificate, "Impersonate-User: system:admin", Some(403))]
#[case::anonymous(AuthMethod::Anonymous, "Impersonate-Group: x", Some(403))]
#[case::through_the_proxy(AuthMethod::FrontProxy, "Impersonate-Extra-reason: x", Some(400))]
#[case::not_asked(AuthMethod::FrontProxy, "X-Remote-User: x", None)]
fn no_caller_becomes_another_user(#[case] auth_method: AuthMethod, #[case] text: &str, #[case] refused: Option<u16>) {
    assert_eq!(refuse_impersonation(auth_method, &headers(text)).err().map(|status| status.code), refused);
}
