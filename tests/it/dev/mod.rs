//! Runs `mcm dev` as a user does: it is ready soon, machines run, and no acknowledged write is ever lost.

mod conformance;
mod limits;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use kube_dev_server::{DevServer, DevServerOptions};
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::support::{
    aggregation::decoded,
    process::Process,
    scratch::{count_ran, subfolder},
    wait_until,
};

const MCM: &str = env!("CARGO_BIN_EXE_mcm");
/// The number of kills.
const KILLS: usize = 50;

pub fn start(folder: &Path, flags: &[&str]) -> (Process, PathBuf) {
    let kubeconfig = folder.join("kubeconfig");
    let _ = std::fs::remove_file(&kubeconfig);
    let mut arguments = vec!["dev".to_owned(), format!("--kubeconfig={}", kubeconfig.display())];
    arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
    (Process::start(folder, "mcm-dev", Path::new(MCM), &arguments), kubeconfig)
}

pub async fn client(kubeconfig: &Path) -> Result<kube::Client, String> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let file = Kubeconfig::read_from(kubeconfig).map_err(|error| error.to_string())?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| error.to_string())?;
    config.default_retry = false;
    kube::Client::try_from(config).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_has_running_machines() {
    count_ran("dev::the_example_has_running_machines");
    let folder = subfolder("dev-example");
    let (process, kubeconfig) = start(&folder, &["--example"]);
    wait_until("a running machine and the hints", Duration::from_secs(60), || async {
        let log = process.log();
        let ready = log.contains(": Running") && log.contains("try in a second terminal");
        if ready { Ok(()) } else { Err(log) }
    })
    .await;
    let client = client(&kubeconfig).await.expect("the kubeconfig works");
    let nodes: Api<Node> = Api::all(client.clone());
    let node = wait_until("three nodes", Duration::from_secs(30), || async {
        let found = nodes.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        if found.items.len() == 3 { Ok(found.items[0].name_any()) } else { Err(format!("{} nodes", found.items.len())) }
    })
    .await;
    // README: there is no scheduler. A pod that names its node runs.
    let pods: Api<Pod> = Api::namespaced(client, "default");
    for (name, node) in [("placed", Some(node)), ("elsewhere", None)] {
        let spec = json!({"nodeName": node, "containers": [{"name": "c", "image": "i"}]});
        let pod = json!({"metadata": {"name": name}, "spec": spec});
        pods.create(&PostParams::default(), &serde_json::from_value(pod).expect("a pod")).await.expect("it is taken");
    }
    let phase = async |name: &str| {
        let pod = pods.get(name).await.map_err(|error| error.to_string())?;
        Ok::<_, String>(pod.status.and_then(|status| status.phase).unwrap_or_default())
    };
    wait_until("a running pod", Duration::from_secs(30), || async {
        let phase = phase("placed").await?;
        if phase == "Running" { Ok(()) } else { Err(phase) }
    })
    .await;
    assert_eq!(phase("elsewhere").await.as_deref(), Ok("Pending"));
}

/// Reads a path as text.
async fn raw(client: &kube::Client, path: &str, accept: &str) -> Result<String, kube::Error> {
    let request = http::Request::get(path).header("accept", accept).body(Vec::new()).expect("a request");
    client.request_text(request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_138_xa_140_views_are_served_behind_it_and_can_be_switched_off() {
    const GROUP: &str = "views.machine.sapcloud.io";
    const REGISTRATION: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.views.machine.sapcloud.io";
    const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    count_ran("dev::views_are_served_behind_it");
    let folder = subfolder("dev-views");
    let data = format!("--data-dir={}", folder.join("data").display());
    let outlooks = "/apis/views.machine.sapcloud.io/v1alpha1/namespaces/default/machineoutlooks";
    let (mut process, kubeconfig) = start(&folder, &["--example", &data]);
    let asked = wait_until("an outlook of a running machine", Duration::from_secs(60), || async {
        let client = client(&kubeconfig).await?;
        let list = raw(&client, outlooks, "application/json").await.map_err(|error| error.to_string())?;
        if list.contains("\"phase\":\"Running\"") { Ok(client) } else { Err(list) }
    })
    .await;
    let table = raw(&asked, outlooks, "application/json;as=Table;v=v1;g=meta.k8s.io").await.expect("a table");
    assert!(table.contains("\"kind\":\"Table\"") && table.contains("Blocked by"), "{table}");
    let registration = raw(&asked, REGISTRATION, "application/json").await.expect("the registration");
    assert!(registration.contains("\"reason\":\"Passed\""), "{registration}");
    let own = REGISTRATION.replace("v1alpha1.views.machine.sapcloud.io", "v1.apps");
    let own = raw(&asked, &own, "application/json").await.expect("a registration of its own");
    assert!(own.contains("\"reason\":\"Local\""), "{own}");
    let discovered = raw(&asked, "/apis", AGGREGATED).await.expect("discovery");
    assert!(discovered.contains("machineoutlooks") && !discovered.contains("Stale"), "{discovered}");
    let index = raw(&asked, "/openapi/v3", "application/json").await.expect("the index");
    let index: serde_json::Value = serde_json::from_str(&index).expect("JSON");
    let place = index["paths"]["apis/views.machine.sapcloud.io/v1alpha1"]["serverRelativeURL"].as_str();
    let document = raw(&asked, place.expect("a document of the views"), "application/json").await.expect("a document");
    assert!(document.contains("MachineOutlook"), "{document}");
    let swagger = raw(&asked, "/openapi/v2", "application/json").await.expect("a document of everything");
    assert!(swagger.contains("views.v1alpha1.MachineOutlook") && swagger.contains("io.k8s.api.core.v1.Pod"));
    // Views are computed: they cannot be deleted, and identity headers of clients are ignored.
    let refused = asked.request_text(http::Request::delete(outlooks).body(Vec::new()).expect("a request")).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("does not allow this method")));
    process.kill();

    let (process, kubeconfig) = start(&folder, &["--extension-apiserver=false", &data]);
    wait_until("the views to be gone", Duration::from_secs(30), || async {
        let client = client(&kubeconfig).await?;
        let machines = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machines";
        let kept = raw(&client, machines, "application/json").await.map_err(|error| error.to_string())?;
        assert!(kept.contains("example-deployment"), "machines outlive the process: {kept}");
        match raw(&client, outlooks, "application/json").await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Err(format!("{other:?}: {}", process.log_tail())),
        }
    })
    .await;
    let groups = raw(&client(&kubeconfig).await.expect("a client"), "/apis", "application/json").await;
    assert!(!groups.expect("the groups").contains(GROUP));
}

#[tokio::test(flavor = "multi_thread")]
async fn service_account_token_secrets_are_filled_with_a_valid_token() {
    count_ran("dev::secrets_for_tokens_of_accounts_are_filled");
    let server = DevServer::start(DevServerOptions::default()).expect("memory is there");
    let client = server.client("tester", "default");
    let post = async |path: &str, object: serde_json::Value| -> serde_json::Value {
        let request = http::Request::post(path).header("content-type", "application/json");
        let request = request.body(object.to_string().into_bytes()).expect("a request");
        client.request(request).await.unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let secrets = "/api/v1/namespaces/default/secrets";
    // The Secret exists first and waits for its service account.
    let annotations = json!({"kubernetes.io/service-account.name": "robot"});
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "robot-token", "annotations": annotations},
    });
    post(secrets, secret).await;
    post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "robot"}})).await;
    let token = wait_until("the Secret to be filled", Duration::from_secs(10), || async {
        let read = raw(&client, &format!("{secrets}/robot-token"), "application/json").await;
        let secret: serde_json::Value = serde_json::from_str(&read.map_err(|error| error.to_string())?).expect("JSON");
        let token = decoded(&secret["data"]["token"]);
        if token.is_empty() { Err(secret.to_string()) } else { Ok(token) }
    })
    .await;
    let review = post("/apis/authentication.k8s.io/v1/tokenreviews", json!({"spec": {"token": token}})).await;
    assert_eq!(review["status"]["user"]["username"], "system:serviceaccount:default:robot", "{review}");
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_133_no_acknowledged_write_is_lost_by_a_kill() {
    count_ran("dev::xa_133_no_acknowledged_write_is_lost_by_a_kill");
    let folder = subfolder("dev-kills");
    let data = folder.join("data");
    let data_flag = format!("--data-dir={}", data.display());
    let seed: u64 = std::env::var("MCM_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    println!("MCM_TEST_SEED={seed}");
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut acknowledged: Vec<String> = Vec::new();
    let mut newest = 0;
    for round in 0..KILLS {
        let (mut process, kubeconfig) = start(&folder, &[&data_flag]);
        let maps = wait_until("the API server", Duration::from_secs(30), || async {
            let maps: Api<ConfigMap> = Api::namespaced(client(&kubeconfig).await?, "default");
            maps.list(&ListParams::default().limit(1))
                .await
                .map_err(|error| format!("{error}: {}", process.log_tail()))?;
            Ok(maps)
        })
        .await;
        let stored = maps.list(&ListParams::default()).await.expect("the list is answered");
        let names: Vec<String> = stored.items.iter().filter_map(|map| map.metadata.name.clone()).collect();
        let lost: Vec<&String> = acknowledged.iter().filter(|name| !names.contains(name)).collect();
        assert!(lost.is_empty(), "round {round}: lost {lost:?}");
        let until = tokio::time::Instant::now() + Duration::from_millis(random.random_range(5..150));
        let writer = async {
            let mut written = Vec::new();
            for at in 0.. {
                let name = format!("m-{round}-{at}");
                let map = ConfigMap {
                    metadata: kube::core::ObjectMeta { name: Some(name.clone()), ..Default::default() },
                    ..ConfigMap::default()
                };
                let Ok(made) = maps.create(&PostParams::default(), &map).await else { break };
                let revision: u64 = made.metadata.resource_version.and_then(|text| text.parse().ok()).unwrap_or(0);
                written.push((name, revision));
            }
            written
        };
        let killer = async {
            tokio::time::sleep_until(until).await;
            process.kill();
        };
        let (written, ()) = tokio::join!(writer, killer);
        for (name, revision) in written {
            assert!(revision > newest, "round {round}: revision {revision} after {newest}");
            newest = revision;
            acknowledged.push(name);
        }
    }
    assert!(acknowledged.len() > KILLS / 2, "only {} writes were acknowledged", acknowledged.len());
    println!("{KILLS} kills, {} acknowledged writes, none lost", acknowledged.len());
}

/// TH-38: requests that a page in a browser could send.
#[tokio::test(flavor = "multi_thread")]
async fn th_38_web_pages_get_no_access() {
    count_ran("dev::th_38_web_pages_get_no_access");
    let folder = subfolder("dev-web");
    let (process, kubeconfig) = start(&folder, &["--api-server-only"]);
    wait_until("the API server", Duration::from_secs(30), || async {
        let maps: Api<ConfigMap> = Api::namespaced(client(&kubeconfig).await?, "default");
        maps.list(&ListParams::default()).await.map(|_| ()).map_err(|error| format!("{error}: {}", process.log_tail()))
    })
    .await;
    let file = Kubeconfig::read_from(&kubeconfig).expect("the kubeconfig is there");
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    let mut config = config.expect("the kubeconfig is complete");
    config.default_retry = false;
    let admin = kube::Client::try_from(config.clone()).expect("a client");
    config.auth_info = kube::config::AuthInfo::default();
    let stranger = kube::Client::try_from(config).expect("a client");
    let path = "/api/v1/namespaces/default/configmaps";
    let map = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"evil"}}"#;
    let post = |headers: &[(&str, &str)]| {
        let mut request = http::Request::post(path).header("content-type", "text/plain");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(kube::client::Body::from(map.as_bytes().to_vec())).expect("a request")
    };
    let origin = ("origin", "https://evil.example.com");
    let answer = stranger.send(post(&[origin])).await.expect("an answer");
    assert_eq!(answer.status(), 401, "a caller without credentials");
    let foreign = admin.send(post(&[origin, ("host", "evil.example.com")])).await.expect("an answer");
    assert_eq!(foreign.status(), 403, "a name that is not the server's, as by DNS rebinding");
    let mut preflight = post(&[origin, ("access-control-request-method", "POST")]);
    *preflight.method_mut() = http::Method::OPTIONS;
    let preflight = stranger.send(preflight).await.expect("an answer");
    assert!(!preflight.status().is_success(), "{}", preflight.status());
    for answer in [&answer, &foreign, &preflight] {
        let shared = answer.headers().keys().any(|name| name.as_str().starts_with("access-control-"));
        assert!(!shared, "{:?}", answer.headers());
    }
}

/// Sends a command to the test hooks of the server, as curl does.
pub fn send_hook(socket: &Path, hook: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(socket).expect("the socket of the hooks");
    let head =
        format!("POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", hook.len());
    stream.write_all(format!("{head}{hook}").as_bytes()).expect("the order is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn test_hooks_execute_their_commands() {
    count_ran("dev::test_hooks_execute_their_commands");
    let folder = subfolder("dev-hooks");
    let socket = folder.join("hooks.sock");
    let flag = format!("--test-hooks={}", socket.display());
    let (process, kubeconfig) = start(&folder, &["--api-server-only", &flag]);
    let maps: Api<ConfigMap> = wait_until("the API server", Duration::from_secs(30), || async {
        let maps: Api<ConfigMap> = Api::namespaced(client(&kubeconfig).await?, "default");
        let list = maps.list(&ListParams::default()).await;
        list.map(|_| maps.clone()).map_err(|error| format!("{error}: {}", process.log_tail()))
    })
    .await;
    let named = |name: &str| ConfigMap {
        metadata: kube::core::ObjectMeta { name: Some(name.to_owned()), ..Default::default() },
        ..ConfigMap::default()
    };
    let taken = send_hook(
        &socket,
        r#"{"hook": "fail-next", "verb": "create", "resource": "configmaps", "status": 409, "times": 2}"#,
    );
    assert!(taken.starts_with("HTTP/1.1 200"), "{taken}");
    for _ in 0..2 {
        let refused = maps.create(&PostParams::default(), &named("m")).await.expect_err("it is refused");
        let kube::Error::Api(status) = refused else { panic!("{refused}") };
        assert!(
            status.code == 409 && status.message.contains("a hook for tests refuses to create configmaps"),
            "{status:?}"
        );
    }
    maps.create(&PostParams::default(), &named("m")).await.expect("the third one is let through");

    // A watch lasts until its connection is cut.
    let events = maps.watch(&kube::api::WatchParams::default(), "0").await.expect("a watch");
    let mut events = Box::pin(events);
    futures::StreamExt::next(&mut events).await.expect("what is there").expect("an event");
    assert!(send_hook(&socket, r#"{"hook": "drop-connections"}"#).contains("200 OK"));
    let end = tokio::time::timeout(Duration::from_secs(30), async {
        while let Some(Ok(_)) = futures::StreamExt::next(&mut events).await {}
    });
    end.await.expect("the watch ends");
    maps.get("m").await.expect("new connections are taken");
    let refused = send_hook(&socket, r#"{"hook": "rain"}"#);
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("unknown variant `rain`"), "{refused}");
}
