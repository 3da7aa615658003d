//! Runs the conformance probes against both servers: one table, and any difference is a failure.

use std::{collections::BTreeSet, io::Write, net::SocketAddr, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::PostParams,
    runtime::{WatchStreamExt, watcher},
};
use kube_dev_server::{AuthorizationMode, DevServer, DevServerOptions, StandIn};

use crate::{
    conformance::{self, Needs, Probe, programs},
    support::{Backend, Rig, process::Process, scratch::count_ran, wait_until},
};

/// The number of watchers whose connections are cut.
const WATCHERS: usize = 50;

/// The results of a part of the table.
#[derive(Default)]
struct Tally {
    ran: usize,
    wrong: Vec<String>,
}

impl Tally {
    async fn run(&mut self, client: &kube::Client, wanted: impl Fn(&Probe) -> bool) {
        for probe in conformance::probes().iter().filter(|probe| wanted(probe)) {
            self.ran += 1;
            self.wrong.extend(conformance::run(client, probe).await);
        }
    }

    fn end(self, server: &str) {
        let Self { ran, wrong } = self;
        // Writes to stderr directly, because the test harness hides the output of passing tests.
        let _ = writeln!(std::io::stderr(), "conformance, {server}: {ran} probes, {} failed", wrong.len());
        assert_eq!(ran, conformance::probes().len(), "every probe runs on every server");
        assert!(wrong.is_empty(), "{} of {ran} probes fail:\n{}", wrong.len(), wrong.join("\n"));
    }
}

async fn install_definition(client: &kube::Client) {
    let request = http::Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        .header("content-type", "application/json")
        .body(conformance::definition().to_string().into_bytes())
        .unwrap();
    client.request_text(request).await.expect("the definition is accepted");
    wait_until("things to be served", Duration::from_secs(30), || async {
        let request = http::Request::get("/apis/probe.example.com/v1/things").body(Vec::new()).unwrap();
        client.request_text(request).await.map(|_| ()).map_err(|error| error.to_string())
    })
    .await;
}

fn dev_server(without: BTreeSet<StandIn>) -> DevServer {
    let options = DevServerOptions { authorization: AuthorizationMode::Rbac, without, ..DevServerOptions::default() };
    DevServer::start(options).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_development_server_conforms() {
    let server = dev_server(BTreeSet::new());
    let client = server.client("prober", "default");
    // Compact first, so that old revisions exist that no watch can start from.
    install_definition(&client).await;
    server.compact();
    let mut tally = Tally::default();
    tally.run(&client, |probe| probe.needs != Needs::UncountedBudgets).await;
    programs::xa_132_a_watcher_sees_all(&client, "default").await;
    let uncounted = dev_server(BTreeSet::from([StandIn::Budgets]));
    let client = uncounted.client("prober", "default");
    tally.run(&client, |probe| probe.needs == Needs::UncountedBudgets).await;
    tally.end("development server");
}

/// The rig normally runs without this controller, because it writes into every namespace, and other tests count those writes.
fn service_accounts(rig: &Rig) -> Process {
    Process::start(
        &rig.folder,
        "service-account-controller",
        &rig.assets.join("kube-controller-manager"),
        &[
            format!("--kubeconfig={}", rig.admin_kubeconfig().display()),
            "--controllers=serviceaccount-controller".to_owned(),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ],
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_api_server_conforms() {
    let Some(rig) =
        Rig::own_real("dev::conformance::a_real_api_server_conforms", "it is the subject of this test").await
    else {
        return;
    };
    let client = rig.client_without_retries().await;
    install_definition(&client).await;
    let mut tally = Tally::default();
    // Before the disruption controller runs.
    tally.run(&client, |probe| probe.needs == Needs::UncountedBudgets).await;
    rig.with_controller_manager().await;
    let _accounts = service_accounts(&rig);
    tally.run(&client, |probe| probe.needs != Needs::UncountedBudgets).await;
    programs::xa_132_a_watcher_sees_all(&client, "default").await;
    tally.end("real API server");
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_find_no_difference() {
    let Some(rig) = Rig::own("dev::conformance::programs_find_no_difference").await else { return };
    probe_with_programs(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_find_no_difference_on_the_development_server() {
    let test = "dev::conformance::programs_find_no_difference_on_the_development_server";
    let Some(rig) = Rig::own_on(Backend::Dev, test).await else { return };
    probe_with_programs(&rig).await;
}

async fn probe_with_programs(rig: &Arc<Rig>) {
    programs::kubectl(rig).await;
    programs::xa_135_a_wrong_token(rig).await;
}

/// Fifty watchers in one process lose their connections again and again. Each watcher resumes at its last resource version.
#[tokio::test(flavor = "multi_thread")]
async fn xa_134_cut_watchers_resume_and_list_once() {
    count_ran("dev::conformance::xa_134_cut_watchers_resume");
    let server = DevServer::start(DevServerOptions::default()).unwrap();
    let (listening, credentials) = server.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let kubeconfig = credentials.kubeconfig(listening.address);
    let mut followers = Vec::new();
    for _ in 0..WATCHERS {
        followers.push(Follower::start(&kubeconfig).await);
    }
    let maps: Api<ConfigMap> = Api::namespaced(server.client("writer", "default"), "default");
    for round in 0..5 {
        let marker = format!("marker-{round}");
        let map = ConfigMap {
            metadata: kube::core::ObjectMeta { name: Some(marker.clone()), ..Default::default() },
            ..ConfigMap::default()
        };
        maps.create(&PostParams::default(), &map).await.unwrap();
        wait_until(&format!("all watchers to see {marker}"), Duration::from_secs(60), || async {
            let missing = followers.iter().filter(|follower| !follower.has_seen(&marker)).count();
            if missing == 0 { Ok(()) } else { Err(format!("{missing} watchers miss it")) }
        })
        .await;
        listening.drop_connections();
    }
    let lists: Vec<usize> = followers.iter().map(Follower::lists).collect();
    assert_eq!(lists, [1; WATCHERS], "no list but the first");
}

/// A watcher and the events that it has received.
struct Follower {
    events_so_far: tokio::sync::watch::Receiver<Received>,
    _task: tokio::task::JoinSet<()>,
}

#[derive(Default)]
struct Received {
    names: BTreeSet<String>,
    lists: usize,
}

impl Follower {
    async fn start(kubeconfig: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let file = kube::config::Kubeconfig::from_yaml(kubeconfig).unwrap();
        let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await;
        let client = kube::Client::try_from(config.unwrap()).unwrap();
        let (sender, events_so_far) = tokio::sync::watch::channel(Received::default());
        let mut events = watcher(Api::<ConfigMap>::namespaced(client, "default"), watcher::Config::default())
            .default_backoff()
            .boxed();
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move {
            while let Some(event) = events.next().await {
                sender.send_modify(|events_so_far| match event {
                    Ok(watcher::Event::Init) => events_so_far.lists += 1,
                    Ok(watcher::Event::InitApply(map) | watcher::Event::Apply(map)) => {
                        events_so_far.names.extend(map.metadata.name);
                    }
                    Ok(watcher::Event::InitDone | watcher::Event::Delete(_)) | Err(_) => {}
                });
            }
        });
        Self { events_so_far, _task: task }
    }

    fn has_seen(&self, name: &str) -> bool {
        self.events_so_far.borrow().names.contains(name)
    }

    fn lists(&self) -> usize {
        self.events_so_far.borrow().lists
    }
}
