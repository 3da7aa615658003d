//! Random decisions that don't depend on the order of events.
//!
//! There is no shared random generator. Every decision has its own generator with a seed from the simulation's seed, the operation, the machine, the
//! attempt and the purpose. So neither the order of tasks nor the number of threads changes a result (spec/providers §7.2 "Determinism").

use rand::Rng;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

/// The source of all random decisions of one simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draws {
    seed: u64,
}

/// A random decision.
#[derive(Clone, Copy, Debug)]
pub struct Decision<'a> {
    /// The operation, such as `create`.
    pub operation: &'a str,
    /// `namespace/name` of the machine. For a list, of the class.
    pub subject: &'a str,
    /// The number of the call of this operation for the subject, from 1.
    pub attempt: u32,
    /// The purpose of the decision within the operation.
    pub purpose: &'a str,
}

impl Draws {
    /// Creates a source with this seed.
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The generator for one decision.
    pub fn generator(self, decision: Decision<'_>) -> ChaCha8Rng {
        let mut hash = Fingerprint::new();
        hash.add(&self.seed.to_le_bytes());
        hash.add(decision.operation.as_bytes());
        hash.add(decision.subject.as_bytes());
        hash.add(&decision.attempt.to_le_bytes());
        hash.add(decision.purpose.as_bytes());
        let mut state = hash.value();
        let mut seed = [0; 32];
        for chunk in seed.chunks_exact_mut(8) {
            chunk.copy_from_slice(&split_mix(&mut state).to_le_bytes());
        }
        ChaCha8Rng::from_seed(seed)
    }

    /// Decides with this probability (0 never, 1 always).
    pub fn happens(self, decision: Decision<'_>, rate: f64) -> bool {
        rate >= 1.0 || (rate > 0.0 && unit(&mut self.generator(decision)) < rate)
    }
}

/// A number from 0 (included) to 1 (excluded).
pub fn unit(generator: &mut impl Rng) -> f64 {
    #[allow(clippy::cast_precision_loss)] // the mantissa has exactly 53 bits
    let high = (generator.next_u64() >> 11) as f64;
    high / 9_007_199_254_740_992.0
}

/// A stable 64-bit hash (FNV-1a with the lengths of the parts). The same on every platform and in every release.
#[derive(Clone, Copy, Debug)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The hash without any part.
    pub const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds a part.
    pub fn add(&mut self, part: &[u8]) {
        for byte in (part.len() as u64).to_le_bytes().iter().chain(part) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The hash of the parts.
    pub fn value(self) -> u64 {
        let mut state = self.0;
        split_mix(&mut state)
    }

    /// The hash of a text.
    pub fn of(text: &str) -> u64 {
        let mut hash = Self::new();
        hash.add(text.as_bytes());
        hash.value()
    }
}

impl Default for Fingerprint {
    fn default() -> Self {
        Self::new()
    }
}

/// `SplitMix64`: distributes a counter over all 64 bits.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(subject: &str, attempt: u32) -> Decision<'_> {
        Decision { operation: "create", subject, attempt, purpose: "test" }
    }

    #[test]
    fn equal_decisions_have_equal_results_and_others_differ() {
        let draws = Draws::new(7);
        let answer = |subject: &str, attempt| draws.generator(decision(subject, attempt)).next_u64();
        assert_eq!(answer("ns/a", 1), answer("ns/a", 1));
        assert_ne!(answer("ns/a", 1), answer("ns/a", 2));
        assert_ne!(answer("ns/a", 1), answer("ns/b", 1));
        assert_ne!(answer("ns/a", 1), Draws::new(8).generator(decision("ns/a", 1)).next_u64());
    }

    #[test]
    fn a_rate_is_kept_over_many_machines() {
        let draws = Draws::new(1);
        let hits = (0..20_000).filter(|n| draws.happens(decision(&format!("ns/m-{n}"), 1), 0.05)).count();
        assert!((850..1150).contains(&hits), "{hits} hits instead of about 1000");
    }

    #[test]
    fn rates_of_zero_and_one_are_certain() {
        let draws = Draws::new(1);
        assert!(!draws.happens(decision("ns/a", 1), 0.0));
        assert!(draws.happens(decision("ns/a", 1), 1.0));
    }
}
