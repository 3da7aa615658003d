//! Where the random numbers of a manager come from.

use std::sync::{Mutex, PoisonError};

use rand::{CryptoRng, Rng, SeedableRng, rand_core::UnwrapErr, rngs::SysRng};
use rand_chacha::ChaCha8Rng;

/// Where all randomness comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Randomness {
    /// The operating system: names that everybody sees tell nothing about tokens and serial numbers.
    OperatingSystem,
    /// A seed: the same one draws the same numbers. For tests and simulations only.
    Seeded(u64),
}

/// A source that may make secrets, unless it was seeded.
pub(super) type Random = Box<dyn CryptoRng + Send>;

impl Randomness {
    /// A generator for a part of the process; parts do not disturb each other.
    pub(super) fn of_part(self, part: u64) -> Random {
        match self {
            // It fails only where the system has no such source; then nothing secret may be made.
            Self::OperatingSystem => Box::new(UnwrapErr(SysRng)),
            Self::Seeded(seed) => {
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                random.set_stream(part);
                Box::new(random)
            }
        }
    }

    /// A source of random numbers that may be called from anywhere.
    pub(super) fn source_of_part(self, part: u64) -> impl Fn() -> u64 + Send + Sync + 'static {
        let random = Mutex::new(self.of_part(part));
        move || random.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_numbers_again_and_other_ones_for_each_part() {
        let draw = |part| Randomness::Seeded(7).source_of_part(part)();
        assert_eq!((draw(1), draw(2)), (draw(1), draw(2)));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn the_operating_system_repeats_nothing() {
        let draw = || Randomness::OperatingSystem.source_of_part(1)();
        assert_ne!(draw(), draw());
    }
}
