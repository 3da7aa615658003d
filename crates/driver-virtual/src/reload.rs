//! Reloads a changed configuration file. The file is polled, because a mounted `ConfigMap` is replaced by a symbolic link.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{config::SimulationConfig, shared::Shared};

const POLL: Duration = Duration::from_secs(2);

/// Watches the file until the shutdown. An invalid file changes nothing and is logged once.
pub async fn run(
    path: PathBuf,
    mut known: String,
    defaults: SimulationConfig,
    shared: Arc<Shared>,
    shutdown: CancellationToken,
) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(POLL) => {}
        }
        let text = match tokio::fs::read_to_string(&path).await {
            Ok(text) if text != known => text,
            Ok(_) => continue,
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "simulation configuration is not readable at present");
                continue;
            }
        };
        match defaults.overlaid_by_text(&text) {
            Ok(config) => {
                shared.with(|cloud, _| take_over(cloud, config));
                tracing::info!(path = %path.display(), "simulation configuration changed");
            }
            Err(problems) => {
                tracing::warn!(
                    path = %path.display(), error = problems,
                    "changed simulation configuration is wrong; the former one stays"
                );
            }
        }
        known = text;
    }
}

fn take_over(cloud: &mut super::cloud::Cloud, config: SimulationConfig) {
    let old = cloud.config();
    let same = (old.seed, old.clock, &old.persistence, &old.impersonate)
        == (config.seed, config.clock, &config.persistence, &config.impersonate);
    if !same {
        tracing::warn!("seed, clock, persistence and impersonate of the simulation change with the next start only");
    }
    cloud.reconfigure(Arc::new(config));
}
