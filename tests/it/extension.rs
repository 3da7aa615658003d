//! The extension API server on its own port: which callers are authenticated, and which paths they may use. The ids come from the specification.
//! Behaviour that needs an aggregating API server is tested in `aggregation`.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{
    ManagerOptions, Rig, Rights, TestManager,
    aggregation::{Caller, CallerAuthority, Holder, PROXY, TRUST},
    rig::Namespace,
    wait_until,
};

const GROUP_VERSION: &str = "/apis/views.machine.sapcloud.io/v1alpha1";

struct World {
    rig: std::sync::Arc<Rig>,
    namespace: Namespace,
    manager: TestManager,
}

impl World {
    async fn begin(test: &str, rights: Rights) -> Option<Self> {
        let rig = Rig::aggregating(test).await?;
        rig.install_crds().await;
        let namespace = rig.namespace("views").await;
        let options = ManagerOptions { rights, ..ManagerOptions::default() };
        let manager = TestManager::start(&rig, &namespace, &options).await;
        let world = Self { rig, namespace, manager };
        wait_until("the server to load its trusted authorities", Duration::from_secs(30), || async {
            let response = world.caller(None).await.get("/readyz?verbose", &[]).await;
            if response.code == 200 { Ok(()) } else { Err(response.text) }
        })
        .await;
        Some(world)
    }

    async fn caller(&self, holder: Option<&Holder>) -> Caller {
        Caller::open(&self.rig, &self.namespace, self.manager.secure_port, holder).await
    }

    fn clients(&self) -> &CallerAuthority {
        &self.rig.aggregation.as_ref().expect("the rig aggregates").clients
    }

    fn proxies(&self) -> &CallerAuthority {
        &self.rig.aggregation.as_ref().expect("the rig aggregates").proxies
    }

    /// Changes a key of the `ConfigMap` with the API server's trusted authorities.
    async fn trust(&self, key: &str, value: &str) {
        let patch = json!({"data": {key: value}}).to_string();
        self.rig
            .kubectl(&["-n", "kube-system", "patch", "configmap", TRUST, "--type=merge", "-p", &patch])
            .await
            .succeed();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_155_xa_163_which_callers_are_authenticated() {
    let Some(world) = World::begin("extension::authenticated_callers", Rights::Generated).await else { return };
    let foreign = CallerAuthority::new("rig proxies");
    let proxy = world.proxies().client(PROXY, &[]);
    let misnamed = world.proxies().client("somebody-else", &[]);
    let serving = world.proxies().server(PROXY);
    let stranger = foreign.client(PROXY, &[]);
    let admin = world.clients().client("admin", &["system:masters"]);
    let namesake = world.clients().client(PROXY, &["dev"]);
    let [admin_token, alice_token] = Rig::TOKENS.map(|token| format!("Bearer {token}"));
    let alice = [("x-remote-user", "alice")];
    let root = [("x-remote-user", "root"), ("x-remote-group", "system:masters")];
    let comma = [("x-remote-user", "alice"), ("x-remote-group", "a, system:masters")];
    let underscore = [("x_remote_user", "root"), ("x_remote_group", "system:masters")];
    let impersonating = [("authorization", admin_token.as_str()), ("impersonate-user", "system:admin")];
    #[allow(clippy::type_complexity)]
    let cases: &[(&str, Option<&Holder>, &str, &[(&str, &str)], u16, &str)] = &[
        ("XA-155", None, "/apis", &[], 403, "system:anonymous"),
        ("XA-155", None, "/healthz", &[], 200, "ok"),
        ("XA-155", None, "/version", &[], 200, "gitVersion"),
        ("XA-156", Some(&proxy), "/metrics", &alice, 403, "User \\\"alice\\\" cannot get path"),
        ("XA-157", Some(&proxy), "/metrics", &root, 200, "mcm_"),
        ("XA-158", Some(&proxy), "/apis", &[], 401, "Unauthorized"),
        ("XA-159", Some(&misnamed), "/apis", &alice, 401, "Unauthorized"),
        ("XA-160", Some(&stranger), "/apis", &alice, 401, "Unauthorized"),
        ("XA-161", None, "/apis", &root, 403, "system:anonymous"),
        ("XA-162", Some(&admin), "/metrics", &alice, 200, "mcm_"),
        ("XA-163", None, "/metrics", &[("authorization", &admin_token)], 200, "mcm_"),
        ("XA-163", None, "/metrics", &[("authorization", "Bearer wrong")], 401, "Unauthorized"),
        ("XA-163", None, "/metrics", &[("authorization", &alice_token)], 403, "User \\\"alice\\\""),
        ("XA-163", None, "/metrics", &[("authorization", "Basic YTpi")], 403, "system:anonymous"),
        ("XA-166", Some(&proxy), "/openapi/v3", &[("x-remote-user", "system:aggregator")], 200, "serverRelativeURL"),
        ("XA-166", Some(&proxy), "/openapi/v2", &[("x-remote-user", "system:aggregator")], 200, "swagger"),
        ("XA-166", Some(&proxy), GROUP_VERSION, &[("x-remote-user", "system:aggregator")], 200, "APIResourceList"),
        ("TH-13", None, "/metrics", &root, 403, "system:anonymous"),
        ("TH-14", Some(&namesake), "/metrics", &root, 403, "User \\\"front-proxy-client\\\""),
        ("TH-16", Some(&serving), "/metrics", &root, 401, "Unauthorized"),
        ("TH-17", Some(&proxy), "/metrics", &comma, 403, "User \\\"alice\\\""),
        ("TH-18", Some(&proxy), "/metrics", &underscore, 401, "Unauthorized"),
        ("TH-20", None, "/healthz/..%2fmetrics", &[], 404, "404"),
        ("TH-20", None, "/apis/../metrics", &[], 404, "404"),
        ("TH-26", None, "/metrics", &impersonating, 403, "impersonation is not supported"),
        ("TH-27", None, "/metrics", &[], 403, "cannot get path"),
        ("TH-27", None, "/debug/pprof", &[], 403, "cannot get path"),
        ("TH-27", None, "/configz", &[], 403, "cannot get path"),
        ("TH-27", None, "/", &[], 403, "cannot get path"),
    ];
    for (id, holder, path, headers, code, text) in cases {
        let response = world.caller(*holder).await.get(path, headers).await;
        assert!(
            response.code == *code && response.text.contains(text),
            "{id} {path}: {} {}",
            response.code,
            response.text
        );
        assert!(!response.header("audit-id").is_empty(), "{id}");
    }
    // TH-35: the path of a webhook accepts webhook requests only.
    let response = world.caller(Some(&proxy)).await.get("/mutate", &root).await;
    assert_eq!(response.code, 405, "{}", response.text);
    let review = r#"{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}"#;
    let path = format!("{GROUP_VERSION}/namespaces/x/nothings");
    assert_eq!(world.caller(Some(&proxy)).await.send("POST", &path, &root, review).await.code, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_164_xa_165_changed_authorities_apply_to_open_connections() {
    const KEY: &str = "requestheader-client-ca-file";
    let Some(world) = World::begin("extension::changed_authorities", Rights::Everything).await else { return };
    let (old, new) = (CallerAuthority::new("old proxies"), CallerAuthority::new("new proxies"));
    let root = [("x-remote-user", "root"), ("x-remote-group", "system:masters")];
    let own = world.proxies().pem();
    // The API server keeps its own authority in the list. Therefore the rotation uses a second authority beside it.
    world.trust(KEY, &format!("{own}{}", old.pem())).await;
    let holder = old.client(PROXY, &[]);
    wait_until("the added authority to be trusted", Duration::from_secs(20), || async {
        let response = world.caller(Some(&holder)).await.get("/metrics", &root).await;
        if response.code == 200 { Ok(()) } else { Err(response.text) }
    })
    .await;
    let mut open = world.caller(Some(&holder)).await;
    assert_eq!(open.get("/metrics", &root).await.code, 200);

    // Empty or malformed values leave the last valid configuration in place, and are counted.
    world.trust(KEY, "no certificate").await;
    wait_until("the malformed value to be counted", Duration::from_secs(20), || async {
        let metrics = world.manager.http_get("/metrics").await;
        let counted = metrics.contains(r#"mcm_extension_auth_config_errors_total{key="requestheader-client-ca-file"}"#);
        if counted { Ok(()) } else { Err("no such line".to_owned()) }
    })
    .await;
    let response = world.caller(Some(&world.proxies().client(PROXY, &[]))).await.get("/metrics", &root).await;
    assert_eq!(response.code, 200, "{}", response.text);

    world.trust(KEY, &format!("{own}{}", new.pem())).await;
    let refused = Instant::now();
    loop {
        // The connection of a refused caller is closed. Until then all requests use the same connection.
        let response = open.get("/metrics", &root).await;
        if response.code == 401 {
            break;
        }
        assert!(refused.elapsed() < Duration::from_secs(10), "the old certificate is still trusted: {}", response.code);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let response = world.caller(Some(&new.client(PROXY, &[]))).await.get("/metrics", &root).await;
    assert_eq!(response.code, 200, "{}", response.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_client_ca_file_applies_without_a_restart() {
    let Some(rig) = Rig::aggregating("extension::a_changed_file_of_authorities").await else { return };
    let (old, new) = (CallerAuthority::new("old clients"), CallerAuthority::new("new clients"));
    let file = rig.folder.join("clients.crt");
    std::fs::write(&file, old.pem()).expect("the rig's folder is writable");
    let flags = vec![format!("--client-ca-file={}", file.display())];
    rig.install_crds().await;
    let namespace = rig.namespace("views").await;
    let options = ManagerOptions { rights: Rights::Generated, flags, ..ManagerOptions::default() };
    let manager = TestManager::start(&rig, &namespace, &options).await;
    let world = World { rig, namespace, manager };
    let admin_of = async |authority: &CallerAuthority| {
        let holder = authority.client("admin", &["system:masters"]);
        world.caller(Some(&holder)).await.get("/metrics", &[]).await.code
    };
    let wait_until_trusted = async |authority: &CallerAuthority| {
        wait_until("the authority to be trusted", Duration::from_secs(30), || async {
            let code = admin_of(authority).await;
            if code == 200 { Ok(()) } else { Err(code.to_string()) }
        })
        .await;
    };
    wait_until_trusted(&old).await;
    assert_eq!(admin_of(&new).await, 401);
    std::fs::write(&file, new.pem()).expect("the rig's folder is writable");
    wait_until_trusted(&new).await;
    assert_eq!(admin_of(&old).await, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_168_discovery_needs_no_api_server() {
    let Some(world) = World::begin("extension::discovery_needs_no_api_server", Rights::Everything).await else {
        return;
    };
    let proxy = world.proxies().client(PROXY, &[]);
    let aggregator = [("x-remote-user", "system:kube-aggregator"), ("x-remote-group", "system:masters")];
    let mut callers = Vec::new();
    for _ in 0..5 {
        callers.push(world.caller(Some(&proxy)).await);
    }
    world.rig.suspend_api_server();
    let asked = callers.iter_mut().map(async |caller| {
        let began = Instant::now();
        (caller.get(GROUP_VERSION, &aggregator).await.code, began.elapsed())
    });
    let answers = futures::future::join_all(asked).await;
    world.rig.resume_api_server();
    for (code, took) in answers {
        // The specification says 50 ms. A debug build on a busy machine needs more.
        assert!(code == 200 && took < Duration::from_millis(500), "{code} after {took:?}");
    }
}
