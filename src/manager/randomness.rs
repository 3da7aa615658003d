//! The source of a manager's random numbers.

use std::sync::Mutex;

use controller_runtime::lock;
use rand::{CryptoRng, Rng, SeedableRng, rand_core::UnwrapErr, rngs::SysRng};
use rand_chacha::ChaCha8Rng;

/// The source of all random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Randomness {
    /// The operating system. Public names then reveal nothing about tokens and serial numbers.
    OperatingSystem,
    /// A seed. The same seed gives the same numbers. For tests and simulations only.
    Seeded(u64),
}

/// A generator. It may make secrets unless it has a seed.
pub(super) type Random = Box<dyn CryptoRng + Send>;

impl Randomness {
    /// The generator of one part of the process. The draws of one part do not change the draws of another.
    pub(super) fn of_part(self, part: u64) -> Random {
        match self {
            // It fails only on a system without random source. Then the process must not make secrets.
            Self::OperatingSystem => Box::new(UnwrapErr(SysRng)),
            Self::Seeded(seed) => {
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                random.set_stream(part);
                Box::new(random)
            }
        }
    }

    /// The generator of one part, as a function that any thread can call.
    pub(super) fn source_of_part(self, part: u64) -> impl Fn() -> u64 + Send + Sync + 'static {
        let random = Mutex::new(self.of_part(part));
        move || lock(&random).next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers_and_each_part_has_its_own() {
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
