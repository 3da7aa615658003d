//! Measures requests to a server in this process.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::StreamExt;
use http::Request;
use http_body_util::BodyExt;
use kube_dev_server::Storage;
use serde_json::json;

use super::load::{Cluster, MACHINES, config_map, create, fill, folder, machine, share};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WRITERS: usize = 64;

fn per_second(count: usize, took: Duration) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / took.as_secs_f64()
}

pub async fn creates() -> anyhow::Result<()> {
    let cluster = Cluster::start(Storage::Memory).await?;
    let took = fill(&cluster.inside(), MAPS, 20_000, WRITERS, config_map).await?;
    println!("creates in memory, no sockets, config maps: {:.0}/s", per_second(20_000, took));
    let took = fill(&cluster.inside(), MACHINES, 10_000, WRITERS, machine).await?;
    println!("creates in memory, no sockets, machines: {:.0}/s", per_second(10_000, took));
    let cluster = Cluster::start(Storage::Memory).await?;
    let took = fill(&cluster.outside().await?, MAPS, 20_000, WRITERS, config_map).await?;
    println!("creates in memory over TLS, config maps: {:.0}/s", per_second(20_000, took));
    let took = fill(&cluster.outside().await?, MACHINES, 10_000, WRITERS, machine).await?;
    println!("creates in memory over TLS, machines: {:.0}/s", per_second(10_000, took));
    Ok(())
}

pub async fn durable() -> anyhow::Result<()> {
    let folder = folder()?;
    let cluster = Cluster::start(Storage::Folder(folder.path().join("data"))).await?;
    for writers in [1, 64, 256] {
        let client = cluster.inside();
        let began = Instant::now();
        let count = 40 * writers.max(50);
        let tasks: Vec<_> = (0..writers)
            .map(|worker| {
                let client = client.clone();
                tokio::spawn(async move {
                    for number in (worker..count).step_by(writers) {
                        let mut map = config_map(number);
                        map["metadata"]["name"] = json!(format!("map-{writers}-{number}"));
                        create(&client, MAPS, &map).await?;
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        let rate = per_second(count, began.elapsed());
        println!("durable creates, no sockets, config maps, {writers} writers: {rate:.0}/s");
    }
    Ok(())
}

/// Makes a request every `period` for `length`. Returns the duration of each request.
async fn paced<F: Future<Output = anyhow::Result<()>>>(
    period: Duration,
    length: Duration,
    request: impl Fn(usize) -> F,
) -> anyhow::Result<Vec<Duration>> {
    let (began, mut took) = (Instant::now(), Vec::new());
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for number in 0.. {
        ticks.tick().await;
        if began.elapsed() >= length {
            break;
        }
        let sent = Instant::now();
        request(number).await?;
        took.push(sent.elapsed());
    }
    Ok(took)
}

pub async fn get() -> anyhow::Result<()> {
    const LENGTH: Duration = Duration::from_secs(8);
    let cluster = Cluster::start(Storage::Memory).await?;
    fill(&cluster.inside(), MACHINES, 10_000, WRITERS, machine).await?;
    let mut tasks = Vec::new();
    for reader in 0..8 {
        let client = cluster.outside().await?;
        tasks.push(tokio::spawn(async move {
            let read = |number: usize| {
                let number = (reader * 1_117 + number * 13) % 10_000;
                let (client, path) = (client.clone(), format!("{MACHINES}/set-{}-{number:05}", number / 100));
                async move {
                    client.request_text(Request::get(path).body(Vec::new())?).await?;
                    anyhow::Ok(())
                }
            };
            paced(Duration::from_millis(16), LENGTH, read).await
        }));
    }
    let writer = cluster.outside().await?;
    let writes = tokio::spawn(async move {
        let write = |number: usize| {
            let writer = writer.clone();
            async move { create(&writer, MAPS, &config_map(number)).await }
        };
        paced(Duration::from_millis(10), LENGTH, write).await
    });
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await??);
    }
    took.sort();
    let writes = writes.await??.len();
    println!(
        "get over TLS, {:.0}/s beside {:.0} writes/s: p50 {:.2?}, p99 {:.2?}, longest {:.2?}",
        per_second(took.len(), LENGTH),
        per_second(writes, LENGTH),
        share(&took, 50),
        share(&took, 99),
        share(&took, 100)
    );
    Ok(())
}

pub async fn list() -> anyhow::Result<()> {
    let cluster = Cluster::start(Storage::Memory).await?;
    fill(&cluster.inside(), MACHINES, 10_000, WRITERS, machine).await?;
    for (how, client) in [("no sockets", cluster.inside()), ("over TLS", cluster.outside().await?)] {
        for round in 0..3 {
            let began = Instant::now();
            let answer = client.send(Request::get(MACHINES).body(kube::client::Body::empty())?).await?;
            let mut body = answer.into_body().into_data_stream();
            let first = match body.next().await {
                Some(part) => part?.len(),
                None => 0,
            };
            let begun = began.elapsed();
            let length = first + super::load::drain(body).await;
            println!(
                "list of 10,000 machines, {how}, round {round}: first bytes after {begun:.0?}, all {:.1} MB after {:.0?}",
                f64::from(u32::try_from(length).unwrap_or(u32::MAX)) / 1e6,
                began.elapsed()
            );
        }
    }
    Ok(())
}

pub async fn watch() -> anyhow::Result<()> {
    for (watchers, rate) in [(1_000, 50), (1_000, 200), (1_000, 500)] {
        let cluster = Cluster::start(Storage::Memory).await?;
        watched(&cluster.inside(), &cluster, "no sockets", watchers, rate).await?;
    }
    for (watchers, rate) in [(1_000, 10), (1_000, 50), (100, 500)] {
        let cluster = Cluster::start(Storage::Memory).await?;
        watched(&cluster.outside().await?, &cluster, "over TLS", watchers, rate).await?;
    }
    Ok(())
}

/// One watcher in this number measures the delay of its events.
const MEASURED: usize = 20;

/// The delays of events at one watcher. Dropping it adds them to the delays of all watchers.
struct Delays {
    own: Vec<Duration>,
    all: Arc<Mutex<Vec<Duration>>>,
}

impl Drop for Delays {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(std::sync::PoisonError::into_inner).append(&mut self.own);
    }
}

/// Creates machines at a rate while watchers read their events; prints the delay of the events after the writes.
async fn watched(
    client: &kube::Client,
    cluster: &Cluster,
    how: &str,
    watchers: usize,
    rate: u32,
) -> anyhow::Result<()> {
    const LENGTH: Duration = Duration::from_secs(6);
    let began = Instant::now();
    // The time of each machine's write by its number, in microseconds since the beginning.
    let written: Arc<Vec<std::sync::atomic::AtomicU64>> = Arc::new((0..100_000).map(|_| 0.into()).collect());
    let lags: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let mut tasks = tokio::task::JoinSet::new();
    let read = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    for watcher in 0..watchers {
        let read = Arc::clone(&read);
        let (client, written, lags) = (client.clone(), Arc::clone(&written), Arc::clone(&lags));
        let path = format!("{MACHINES}?watch=1&timeoutSeconds=3600");
        let request = Request::get(path).body(kube::client::Body::empty())?;
        tasks.spawn(async move {
            let Ok(answer) = client.send(request).await else { return };
            let mut body = answer.into_body().into_data_stream();
            let (mut line, mut delays) = (Vec::new(), Delays { own: Vec::new(), all: lags });
            while let Some(Ok(part)) = body.next().await {
                read.fetch_add(part.len(), std::sync::atomic::Ordering::Relaxed);
                // The other watchers only read, so that they take little time from the server.
                if watcher % MEASURED != 0 {
                    continue;
                }
                for piece in part.split_inclusive(|byte| *byte == b'\n') {
                    line.extend_from_slice(piece);
                    if piece.last() == Some(&b'\n') {
                        if let Some(number) = number_of(&line) {
                            let at = written[number].load(std::sync::atomic::Ordering::Relaxed);
                            let now = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                            delays.own.push(Duration::from_micros(now.saturating_sub(at)));
                        }
                        line.clear();
                    }
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let writer = cluster.inside();
    let write = |number: usize| {
        // The time is stored before the write, because a watcher may read the event before the writer reads the answer.
        let now = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        written[number].store(now, std::sync::atomic::Ordering::Relaxed);
        let writer = writer.clone();
        async move { create(&writer, MACHINES, &machine(number)).await }
    };
    let took = paced(Duration::from_secs(1) / rate, LENGTH, write).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    tasks.shutdown().await;
    let mut lags = std::mem::take(&mut *lags.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    lags.sort();
    println!(
        "{watchers} watchers {how}, {:.0} of {rate} events/s: {} MB received, lag p50 {:.1?}, p99 {:.1?}, longest {:.1?}",
        per_second(took.len(), LENGTH),
        read.load(std::sync::atomic::Ordering::Relaxed) / 1_000_000,
        share(&lags, 50),
        share(&lags, 99),
        share(&lags, 100)
    );
    Ok(())
}

/// The number of the machine in an event.
fn number_of(line: &[u8]) -> Option<usize> {
    let name = b"\"name\":\"set-";
    let at = line.windows(name.len()).position(|window| window == name)? + name.len();
    let text = std::str::from_utf8(line.get(at..)?).ok()?;
    text.split('"').next()?.rsplit('-').next()?.parse().ok()
}
