//! The limits of the API server of `mcm dev`, set with its flags.

use std::time::{Duration, Instant};

use http::Request;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};

use crate::{
    dev::{client, send_hook, start},
    support::{
        scratch::{count_ran, subfolder},
        wait_until,
    },
};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// Status and headers of an answer; the body may still arrive.
async fn ask(client: &kube::Client, path: &str) -> http::Response<kube::client::Body> {
    let request = Request::get(path).body(kube::client::Body::empty()).expect("a request");
    client.send(request).await.expect("an answer")
}

/// A client of a user without administrator rights.
async fn with_token(kubeconfig: &std::path::Path, token: &str) -> kube::Client {
    let file = Kubeconfig::read_from(kubeconfig).expect("the kubeconfig is there");
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    let mut config = config.expect("the kubeconfig is complete");
    config.default_retry = false;
    config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
    kube::Client::try_from(config).expect("a client")
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_watches_are_limited_by_flags() {
    count_ran("dev::limits::requests_and_watches_are_limited_by_flags");
    let folder = subfolder("dev-limits");
    let (socket, tokens) = (folder.join("hooks.sock"), folder.join("tokens"));
    std::fs::write(&tokens, "secret-of-alice,alice,1\n").expect("a file");
    let flags = [
        "--api-server-only".to_owned(),
        "--max-requests-inflight=1".to_owned(),
        "--max-watches=1".to_owned(),
        "--request-timeout=5s".to_owned(),
        format!("--test-hooks={}", socket.display()),
        format!("--token-auth-file={}", tokens.display()),
    ];
    let (process, kubeconfig) = start(&folder, &flags.each_ref().map(String::as_str));
    let admin = wait_until("the API server", Duration::from_secs(30), || async {
        let admin = client(&kubeconfig).await?;
        let answered = admin.request_text(Request::get(SECRETS).body(Vec::new()).expect("a request")).await;
        answered.map(|_| admin).map_err(|error| format!("{error}: {}", process.log_tail()))
    })
    .await;
    let alice = with_token(&kubeconfig, "secret-of-alice").await;
    let slow = send_hook(&socket, r#"{"hook": "delay", "resource": "configmaps", "milliseconds": 30000}"#);
    assert!(slow.starts_with("HTTP/1.1 200"), "{slow}");

    let began = Instant::now();
    // The request that checks the limit may hold the only slot itself for a moment. Therefore the slow request is repeated.
    let slow = async {
        loop {
            let answer = ask(&alice, MAPS).await;
            if answer.status() != 429 {
                return answer;
            }
        }
    };
    let meanwhile = async {
        // Until the slow request holds the slot.
        wait_until("the only slot to be in use", Duration::from_secs(4), || async {
            let refused = ask(&alice, SECRETS).await;
            let retry = refused.headers().get("retry-after").cloned();
            if refused.status() == 429 && retry.is_some_and(|retry| retry == "1") {
                Ok(())
            } else {
                Err(refused.status().to_string())
            }
        })
        .await;
        assert_eq!(ask(&admin, SECRETS).await.status(), 200, "administrators are answered");
        assert_eq!(ask(&alice, "/readyz").await.status(), 200, "health endpoints are answered");
        let first = ask(&alice, &format!("{SECRETS}?watch=1")).await;
        assert_eq!(
            (first.status().as_u16(), ask(&admin, &format!("{SECRETS}?watch=1")).await.status().as_u16()),
            (200, 429)
        );
    };
    let (slow, ()) = tokio::join!(slow, meanwhile);
    assert_eq!(slow.status(), 504);
    let took = began.elapsed();
    assert!((Duration::from_secs(4)..Duration::from_secs(25)).contains(&took), "{took:?}");
    assert_eq!(ask(&alice, SECRETS).await.status(), 200, "the slot is free again");
}
