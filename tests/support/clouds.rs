//! Shared by the tests of the whole program with a cloud: counts of requests, and a manager that is killed at random moments.

use std::{collections::BTreeMap, env, process::Output, time::Duration};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::TestManager;

/// The configuration of a virtual cloud that serves no other provider.
pub const NO_SIMULATION: &str = "seed: 1\nimpersonate: []\n";

/// The number of requests of each kind, as text.
pub fn counted(requests: &[String]) -> String {
    let mut counts = BTreeMap::<_, usize>::new();
    for one in requests {
        *counts.entry(one).or_default() += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(one, count)| format!("{one} {count}")).collect();
    format!("{} in all, {}", requests.len(), counts.join(", "))
}

/// The number in an environment variable.
pub fn number(variable: &str) -> Option<usize> {
    env::var(variable).ok()?.parse().ok()
}

/// A random generator. The same `MCM_TEST_SEED` gives the same numbers.
pub fn chance() -> ChaCha8Rng {
    let seed = env::var("MCM_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    println!("MCM_TEST_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

/// Kills and restarts the manager `kills` times, at random moments. At the end it runs.
pub async fn killed(manager: &mut TestManager, kills: usize, chance: &mut ChaCha8Rng) {
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(chance.random_range(1000..6000))).await;
        manager.kill();
        manager.restart();
    }
    manager.wait_until_ready().await;
}

/// The output of a program that must succeed.
pub fn succeeded(program: &str, run: std::io::Result<Output>) -> Output {
    let run = run.expect("the program runs");
    let [output, error] = [&run.stdout, &run.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(run.status.success(), "{program}: {output}{error}");
    run
}
