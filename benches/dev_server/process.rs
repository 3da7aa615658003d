//! Measures the program as a separate process: the time of its start, and its memory.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use http::Request;
use kube_dev_server::Storage;
use serde_json::{Value, json};

use super::load::{
    Cluster, MACHINES, NODES, PODS, client_of, config_map, create, fill, folder, install, machine, node, pod,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_mcm");
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Deployments of a hundred machines.
const DEPLOYMENTS: usize = 100;

/// A running `mcm dev`. Dropping it ends the process.
struct Dev {
    child: Child,
    kubeconfig: PathBuf,
    ready: Duration,
}

impl Drop for Dev {
    fn drop(&mut self) {
        // SIGTERM lets the process remove its folder.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

impl Dev {
    /// Starts a process, and waits for a line of its output that contains `word`.
    fn start(folder: &Path, flags: &[&str], word: &str) -> anyhow::Result<Self> {
        let kubeconfig = folder.join("kubeconfig");
        let began = Instant::now();
        let mut child = Command::new(PROGRAM)
            .arg("dev")
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().ok_or_else(|| anyhow::anyhow!("it has no output"))?;
        let mut lines = BufReader::new(out).lines();
        while let Some(line) = lines.next() {
            if line?.contains(word) {
                // The output must be read, so that the process never waits for a reader.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(Self { child, kubeconfig, ready: began.elapsed() });
            }
        }
        anyhow::bail!("mcm dev ended before it said {word:?}")
    }

    async fn client(&self) -> anyhow::Result<kube::Client> {
        client_of(&fs::read_to_string(&self.kubeconfig)?).await
    }

    /// A line of `/proc/PID/status`, in MiB.
    fn mebibytes(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default() / 1024
    }
}

pub async fn start() -> anyhow::Result<()> {
    let (alone, whole) = (["--api-server-only"].as_slice(), [].as_slice());
    for (what, flags, word) in [("API server alone", alone, "Kubernetes API at"), ("mcm dev", whole, "ready after")] {
        let folder = folder()?;
        let data = format!("--data-dir={}", folder.path().join("data").display());
        for (storage, more) in
            [("in memory", None), ("empty data folder", Some(&data)), ("used data folder", Some(&data))]
        {
            let flags: Vec<&str> = flags.iter().copied().chain(more.map(String::as_str)).collect();
            let dev = Dev::start(folder.path(), &flags, word)?;
            println!("start of {what}, {storage}: {:.0?}", dev.ready);
        }
    }
    let folder = folder()?;
    let data = folder.path().join("data");
    let cluster = Cluster::start(Storage::Folder(data.clone())).await?;
    fill(&cluster.inside(), MACHINES, 10_000, 256, machine).await?;
    fill(&cluster.inside(), MAPS, 10_000, 256, config_map).await?;
    drop(cluster);
    let size = fs::metadata(data.join("objects.redb"))?.len() / 1024 / 1024;
    let data = format!("--data-dir={}", data.display());
    // The thread that writes the file needs a moment to end.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..3 {
        let dev = Dev::start(folder.path(), &["--api-server-only", &data], "Kubernetes API at")?;
        println!(
            "start of API server alone, data folder with 20,000 objects ({size} MiB): {:.0?}, {} MiB resident",
            dev.ready,
            dev.mebibytes("VmRSS")
        );
    }
    Ok(())
}

pub async fn memory() -> anyhow::Result<()> {
    let folder = folder()?;
    let whole = Dev::start(folder.path(), &[], "ready after")?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    println!("memory of mcm dev, idle: {} MiB (peak {})", whole.mebibytes("VmRSS"), whole.mebibytes("VmHWM"));
    drop(whole);
    let dev = Dev::start(folder.path(), &["--api-server-only"], "Kubernetes API at")?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    println!("memory of API server alone, idle: {} MiB (peak {})", dev.mebibytes("VmRSS"), dev.mebibytes("VmHWM"));
    let client = dev.client().await?;
    install(&client).await?;
    fill(&client, NODES, 10_000, 32, node).await?;
    fill(&client, MACHINES, 10_000, 32, machine).await?;
    fill(&client, PODS, 30_000, 32, pod).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    println!(
        "memory of API server alone, 10,000 machines, 10,000 Nodes, 30,000 pods: {} MiB (peak {})",
        dev.mebibytes("VmRSS"),
        dev.mebibytes("VmHWM")
    );
    Ok(())
}

fn deployment(number: usize) -> Value {
    let name = format!("fleet-{number}");
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": 100, "selector": {"matchLabels": {"fleet": name}},
            "template": {"metadata": {"labels": {"fleet": name}},
                "spec": {"class": {"kind": "MachineClass", "name": "fleet"}}}},
    })
}

pub async fn fleet() -> anyhow::Result<()> {
    const BASE: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default";
    let folder = folder()?;
    let simulation = folder.path().join("simulation.yaml");
    fs::write(
        &simulation,
        "latency: {create: {constant: 0s}, boot: {constant: 0s}, ready: {constant: 0s}, delete: {constant: 0s}, api: {constant: 0s}}\nnodes: {leaseInterval: 0}\n",
    )?;
    let flag = format!("--simulation-config={}", simulation.display());
    let dev = Dev::start(folder.path(), &[&flag], "ready after")?;
    let client = dev.client().await?;
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "fleet"}, "stringData": {"userData": "x"}});
    create(&client, "/api/v1/namespaces/default/secrets", &secret).await?;
    let class = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": "fleet", "namespace": "default"},
        "provider": "virtual", "providerSpec": {}, "secretRef": {"name": "fleet", "namespace": "default"},
    });
    create(&client, &format!("{BASE}/machineclasses"), &class).await?;
    let began = Instant::now();
    for number in 0..DEPLOYMENTS {
        create(&client, &format!("{BASE}/machinedeployments"), &deployment(number)).await?;
    }
    loop {
        // The deployments count their machines, so that this loop does not list ten thousand machines.
        let request = Request::get(format!("{BASE}/machinedeployments")).body(Vec::new())?;
        let list: Value = client.request(request).await?;
        let available = list["items"].as_array().into_iter().flatten();
        let available: i64 = available.filter_map(|one| one["status"]["availableReplicas"].as_i64()).sum();
        if available == 10_000 {
            break;
        }
        anyhow::ensure!(began.elapsed() < Duration::from_secs(600), "only {available} run after 600 s");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    println!(
        "10,000 virtual machines in 100 deployments to Running: {:.1?}, {} MiB resident (peak {})",
        began.elapsed(),
        dev.mebibytes("VmRSS"),
        dev.mebibytes("VmHWM")
    );
    Ok(())
}
