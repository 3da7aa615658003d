//! A client that keeps its connections busy, and the figures of the server process.

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use super::trusting;

/// Options of the client.
pub struct Options {
    address: SocketAddr,
    path: String,
    body: Vec<u8>,
    connections: u32,
    length: Duration,
    /// Calls per second over all connections; none means no limit.
    rate: Option<u32>,
    /// The server process, for its CPU time and memory.
    pid: u32,
}

impl Options {
    /// Reads `--name=value` arguments.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            address: ([127, 0, 0, 1], 9443).into(),
            path: "/validate".to_owned(),
            body: Vec::new(),
            connections: 16,
            length: Duration::from_secs(5),
            rate: None,
            pid: std::process::id(),
        };
        for argument in arguments {
            let (name, value) = argument.split_once('=').ok_or_else(|| format!("{argument}: want --name=value"))?;
            let number = || value.parse::<u32>().map_err(|error| format!("{argument}: {error}"));
            match name {
                "--address" => options.address = value.parse().map_err(|error| format!("{argument}: {error}"))?,
                "--path" => value.clone_into(&mut options.path),
                "--body" => options.body = fs::read(value).map_err(|error| format!("{argument}: {error}"))?,
                "--connections" => options.connections = number()?.max(1),
                "--seconds" => options.length = Duration::from_secs(number()?.into()),
                "--rate" => options.rate = Some(number()?).filter(|rate| *rate > 0),
                "--pid" => options.pid = number()?,
                _ => return Err(format!("{argument}: unknown")),
            }
        }
        Ok(options)
    }
}

/// Makes calls for a while and prints one line.
pub fn run(options: &Options) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    // Handshakes and the first calls do not count.
    runtime.block_on(call_for(options, Duration::from_secs(1)));
    let before = cpu_time(options.pid);
    let began = Instant::now();
    let mut latencies = runtime.block_on(call_for(options, options.length));
    let took = began.elapsed();
    let cpu = cpu_time(options.pid).saturating_sub(before);
    latencies.sort_unstable();
    let calls = u32::try_from(latencies.len()).unwrap_or(u32::MAX).max(1);
    let at = |share: f64| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let place = (latencies.len() as f64 * share) as usize;
        latencies.get(place).copied().unwrap_or_default()
    };
    println!(
        "{:.0} reviews/s, mean {:.2?}, p50 {:.2?}, p99 {:.2?}, {:.1?} CPU per review, {} MiB resident",
        f64::from(calls) / took.as_secs_f64(),
        latencies.iter().sum::<Duration>() / calls,
        at(0.5),
        at(0.99),
        cpu / calls,
        resident_mib(options.pid),
    );
}

async fn call_for(options: &Options, length: Duration) -> Vec<Duration> {
    let end = Instant::now() + length;
    let calls = (0..options.connections).map(|number| one_connection(options, number, end));
    futures::future::join_all(calls).await.concat()
}

/// Makes calls on one connection, one after the other, and returns the time of each. With a fixed rate the calls of all connections
/// are evenly distributed, and the time of a late call counts from when it was due.
async fn one_connection(options: &Options, number: u32, end: Instant) -> Vec<Duration> {
    let mut stream = connect(options.address).await;
    let head = format!(
        "POST {}?timeout=5s HTTP/1.1\r\nHost: mcm\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        options.path,
        options.body.len()
    );
    let request = [head.as_bytes(), &options.body].concat();
    let pause = options.rate.map(|rate| Duration::from_secs(1) * options.connections / rate);
    let mut due = Instant::now() + pause.unwrap_or_default() * number / options.connections;
    let mut latencies = Vec::new();
    let mut answer = Vec::new();
    while Instant::now() < end {
        if let Some(pause) = pause {
            // Timers have a resolution of one millisecond. With them all connections would call at the same moments.
            while Instant::now() < due {
                tokio::task::yield_now().await;
            }
            exchange(&mut stream, &request, &mut answer).await;
            latencies.push(due.elapsed());
            due += pause;
        } else {
            let began = Instant::now();
            exchange(&mut stream, &request, &mut answer).await;
            latencies.push(began.elapsed());
        }
    }
    latencies
}

async fn exchange(stream: &mut TlsStream<TcpStream>, request: &[u8], answer: &mut Vec<u8>) {
    stream.write_all(request).await.expect("the server reads");
    stream.flush().await.expect("the server reads");
    answer.clear();
    loop {
        let read = stream.read_buf(answer).await.expect("the server answers");
        assert!(read > 0, "the server closed the connection after {:?}", String::from_utf8_lossy(answer));
        let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
        assert!(text.starts_with("http/1.1 200 "), "{}", String::from_utf8_lossy(answer));
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if answer.len() >= head + 4 + length.expect("a length") {
            return;
        }
    }
}

async fn connect(address: SocketAddr) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(address).await.expect("a server listens");
    stream.set_nodelay(true).expect("a TCP option");
    trusting::connect(stream).await.expect("a handshake")
}

/// CPU time of all threads of a process, in kernel and user mode.
fn cpu_time(pid: u32) -> Duration {
    const TICKS_PER_SECOND: u64 = 100;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field is the program's name in brackets. It may contain blanks.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis((ticks(11) + ticks(12)) * 1000 / TICKS_PER_SECOND)
}

fn resident_mib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    resident.unwrap_or(0_u64) / 1024
}
