//! The conformance probes against both servers: one table, any difference is a failure.

use machine_controller_manager::dev_server::{DevServer, DevServerOptions};

use crate::{
    conformance::{self, Needs},
    support::{rig::Rig, wait_until},
};

async fn run_all(client: &kube::Client) -> (usize, Vec<String>) {
    let probes = conformance::probes();
    let mut wrong = Vec::new();
    let mut ran = 0;
    for probe in &probes {
        ran += 1;
        wrong.extend(conformance::run(client, probe).await);
    }
    (ran, wrong)
}

async fn install_definition(client: &kube::Client) {
    let request = http::Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        .header("content-type", "application/json")
        .body(conformance::definition().to_string().into_bytes())
        .unwrap();
    client.request_text(request).await.expect("the definition is accepted");
    wait_until("things to be served", std::time::Duration::from_secs(30), || async {
        let request = http::Request::get("/apis/probe.example.com/v1/things").body(Vec::new()).unwrap();
        client.request_text(request).await.map(|_| ()).map_err(|error| error.to_string())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_development_server_conforms() {
    let server = DevServer::start(DevServerOptions::default()).unwrap();
    let client = server.client("prober", "default");
    // So that there is something before the window of every watch.
    install_definition(&client).await;
    server.compact();
    let (ran, wrong) = run_all(&client).await;
    println!("conformance, development server: {ran} probes, {} failed", wrong.len());
    assert!(wrong.is_empty(), "{} of {ran} probes fail:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_api_server_conforms() {
    let Some(rig) = Rig::own("dev_conformance::a_real_api_server_conforms").await else { return };
    rig.with_controller_manager().await;
    let client = rig.client_without_retries().await;
    install_definition(&client).await;
    let needing: Vec<&str> =
        conformance::probes().iter().filter(|probe| probe.needs == Needs::Controllers).map(|probe| probe.id).collect();
    let (ran, wrong) = run_all(&client).await;
    println!("conformance, real API server: {ran} probes ({} with controllers), {} failed", needing.len(), wrong.len());
    assert!(wrong.is_empty(), "{} of {ran} probes fail:\n{}", wrong.len(), wrong.join("\n"));
}
