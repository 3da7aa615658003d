//! What tests of the whole program on a cloud share: counts of what was asked, and a manager that is killed at random moments.

use std::{collections::BTreeMap, env, time::Duration};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::TestManager;

/// A simulated cloud that plays no provider.
pub const NO_SIMULATION: &str = "seed: 1\nimpersonate: []\n";

/// How often each of these was asked for.
pub fn counted(asked: &[String]) -> String {
    let mut counts = BTreeMap::<_, usize>::new();
    for one in asked {
        *counts.entry(one).or_default() += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(one, count)| format!("{one} {count}")).collect();
    format!("{} in all, {}", asked.len(), counts.join(", "))
}

/// What an environment variable chooses.
pub fn number(variable: &str) -> Option<usize> {
    env::var(variable).ok()?.parse().ok()
}

/// Random numbers that `MCM_TEST_SEED` repeats.
pub fn chance() -> ChaCha8Rng {
    let seed = env::var("MCM_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    println!("MCM_TEST_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

/// Kills the manager so often, at random moments; in the end it runs.
pub async fn killed(manager: &mut TestManager, kills: usize, chance: &mut ChaCha8Rng) {
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(chance.random_range(1000..6000))).await;
        manager.kill();
        manager.restart();
    }
    manager.wait_until_ready().await;
}
