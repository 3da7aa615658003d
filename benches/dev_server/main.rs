//! Measures the development server. This is a program, not a test: it prints figures, and no figure is a failure.
//!
//! `cargo bench --bench dev_server -- SCENARIO…` with
//! - `start`: time from the start of the process until it prints that it is ready, in memory and with a data folder;
//! - `memory`: memory of a process, idle and with 10,000 machines, 10,000 Nodes and 30,000 pods;
//! - `creates`, `durable`: creations per second, without sockets and over TLS;
//! - `get`: time of reads under a moderate load;
//! - `list`: time of a list of 10,000 machines;
//! - `watch`: 1,000 watchers, and the delay of each event after its write;
//! - `fleet`: time until 10,000 virtual machines in 100 deployments run.
//!
//! Without an argument all scenarios run in this order. The figures are only valid on an otherwise idle computer.

mod load;
mod process;
mod traffic;

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SCENARIOS: [&str; 8] = ["start", "memory", "creates", "durable", "get", "list", "watch", "fleet"];

fn main() -> anyhow::Result<()> {
    // cargo passes --bench.
    let selected: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if let Some(unknown) = selected.iter().find(|name| !SCENARIOS.contains(&name.as_str())) {
        anyhow::bail!("{unknown} is none of {}", SCENARIOS.join(", "));
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    for scenario in SCENARIOS.iter().filter(|name| selected.is_empty() || selected.iter().any(|chosen| chosen == *name))
    {
        // Each scenario has its own runtime, so that it does not share tasks with another one.
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
