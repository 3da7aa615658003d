//! Figures of the development server. A scenario program, not a test: it prints, nothing passes or fails by time.
//!
//! `cargo bench --bench dev_server -- SCENARIO…` with
//! - `start`: from the start of the process to its word that it is ready, with memory and with a data folder;
//! - `memory`: what a process takes, idle and with 10,000 machines, 10,000 Nodes and 30,000 pods;
//! - `creates`, `durable`: creations per second, without sockets and over TLS;
//! - `get`: how long reads take beside a moderate load;
//! - `list`: a list of 10,000 machines;
//! - `watch`: 1,000 watchers, and how long after its write each event reaches them;
//! - `fleet`: 10,000 virtual machines in 100 deployments, until all run.
//!
//! Without a scenario: all of them, in this order. Figures of a machine that does something else are of no use.

mod load;
mod process;
mod traffic;

/// As in the program itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SCENARIOS: [&str; 8] = ["start", "memory", "creates", "durable", "get", "list", "watch", "fleet"];

fn main() -> anyhow::Result<()> {
    // cargo passes --bench.
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if let Some(unknown) = asked.iter().find(|name| !SCENARIOS.contains(&name.as_str())) {
        anyhow::bail!("{unknown} is none of {}", SCENARIOS.join(", "));
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    for scenario in SCENARIOS.iter().filter(|name| asked.is_empty() || asked.iter().any(|asked| asked == *name)) {
        // Each has a runtime of its own, so that none inherits the tasks of another.
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            match *scenario {
                "start" => process::start().await,
                "memory" => process::memory().await,
                "creates" => traffic::creates().await,
                "durable" => traffic::durable().await,
                "get" => traffic::get().await,
                "list" => traffic::list().await,
                "watch" => traffic::watch().await,
                _ => process::fleet().await,
            }
        })?;
        runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    }
    Ok(())
}
