//! `mcm simulate`: lets histories of a simulated control plane happen, and tells one of them line by line.
//!
//! For those who change the rules: what a seed shows on one machine it shows on every other.

use std::{
    io::Write,
    num::NonZeroUsize,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use super::Failure;
use machine_simulation::{
    Telling,
    checks::Violation,
    every_call::{Broken, Story},
    guards::Guard,
    history::History,
    run as happen, shortened,
};

/// So many failures are shown; further ones are only counted.
const SHOWN: usize = 3;

/// Flags of `mcm simulate`.
#[derive(Clone, Debug, clap::Args)]
pub struct SimulateArgs {
    /// The history to tell, or the first one of many
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Let so many histories happen, one per seed, and tell only those in which something happens that must not
    #[arg(long)]
    pub histories: Option<u64>,
    /// Play short stories once for each call in them, at which the process ends
    #[arg(long, conflicts_with_all = ["histories", "seed"])]
    pub every_call: bool,
    /// Play lives of single machines instead of histories of a whole control plane
    #[arg(long, conflicts_with = "every_call")]
    pub lives: bool,
    /// Histories at once [default: as many as there are processors]
    #[arg(long)]
    pub threads: Option<NonZeroUsize>,
    /// Tell a failing history as it is, without looking for a shorter one
    #[arg(long)]
    pub whole: bool,
    /// Take this guard away from the controllers, to see what it is good for
    #[arg(long, value_name = "GUARD")]
    pub without: Option<Guard>,
}

impl SimulateArgs {
    fn history(&self, seed: u64) -> History {
        let drawn = if self.lives { History::life_of_seed(seed) } else { History::of_seed(seed) };
        History { without: self.without, ..drawn }
    }
}

/// What many histories came to.
#[derive(Debug, Default)]
struct Sum {
    passes: AtomicU64,
    changes: AtomicU64,
    seconds: AtomicU64,
    failed: Mutex<Vec<(u64, Violation)>>,
}

/// Runs the command.
///
/// # Errors
/// [`Failure::Reported`] when something happened that must not.
pub fn run(args: &SimulateArgs, out: &mut dyn Write) -> Result<(), Failure> {
    match args.histories {
        None if args.every_call => every_call(args, out),
        None => tell(args, out),
        Some(count) => many(args, count, out),
    }
}

fn tell(args: &SimulateArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let history = args.history(args.seed);
    let told = happen(&history, Telling::Aloud);
    let Some(violation) = &told.violation else {
        show(args.seed, &history, &told.lines, out)?;
        writeln!(out, "nothing happened that must not: {} passes, {} writes", told.passes, told.changes)?;
        return Ok(());
    };
    fail(args, args.seed, violation, out)?;
    Err(Failure::Reported)
}

fn every_call(args: &SimulateArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failed = 0;
    for story in Story::all() {
        let (times, broken) = story.played(args.without);
        for Broken { doom, violation, lines } in broken.iter().take(SHOWN) {
            writeln!(out, "{}\n{doom}: {}: {}\n", lines.join("\n"), violation.rule, violation.text)?;
        }
        writeln!(out, "{}: played {times} times, {} failed", story.name, broken.len())?;
        failed += broken.len();
    }
    if failed == 0 { Ok(()) } else { Err(Failure::Reported) }
}

fn many(args: &SimulateArgs, count: u64, out: &mut dyn Write) -> Result<(), Failure> {
    let threads = args.threads.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let (sum, next, began) = (Sum::default(), AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    sum.add(&args.history(args.seed.wrapping_add(number)));
                }
            });
        }
    });
    let took = began.elapsed().as_secs_f64();
    let mut failed = sum.failed.into_inner().unwrap_or_default();
    failed.sort_by_key(|(seed, _)| *seed);
    for (seed, violation) in failed.iter().take(SHOWN) {
        fail(args, *seed, violation, out)?;
    }
    for (seed, violation) in failed.iter().skip(SHOWN) {
        writeln!(out, "seed {seed}: {}: {}", violation.rule, violation.text)?;
    }
    let (passes, changes) = (sum.passes.into_inner(), sum.changes.into_inner());
    writeln!(
        out,
        "{count} histories from seed {} in {took:.1} s: {passes} passes, {changes} writes, {} days of virtual time, {} failed",
        args.seed,
        sum.seconds.into_inner() / 86_400,
        failed.len()
    )?;
    if failed.is_empty() { Ok(()) } else { Err(Failure::Reported) }
}

impl Sum {
    fn add(&self, history: &History) {
        let told = happen(history, Telling::Silent);
        self.passes.fetch_add(told.passes, Ordering::Relaxed);
        self.changes.fetch_add(told.changes, Ordering::Relaxed);
        self.seconds.fetch_add(u64::try_from(told.seconds).unwrap_or(0), Ordering::Relaxed);
        if let (Some(violation), Ok(mut failed)) = (told.violation, self.failed.lock()) {
            failed.push((history.seed, violation));
        }
    }
}

/// Tells a failing history, shortened unless it is wanted whole.
fn fail(args: &SimulateArgs, seed: u64, violation: &Violation, out: &mut dyn Write) -> Result<(), Failure> {
    let whole = args.history(seed);
    let history = if args.whole { whole.clone() } else { shortened(&whole, violation) };
    let told = happen(&history, Telling::Aloud);
    show(seed, &history, &told.lines, out)?;
    let violation = told.violation.as_ref().unwrap_or(violation);
    writeln!(out, "seed {seed}: {}: {}", violation.rule, violation.text)?;
    let without = args.without.map(|guard| format!(" --without {guard}")).unwrap_or_default();
    let (left, all) = (history.len(), whole.len());
    writeln!(out, "{left} of {all} steps are left; again with: mcm simulate --seed {seed}{without}\n")?;
    Ok(())
}

fn show(seed: u64, history: &History, lines: &[String], out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "seed {seed} begins with {}", history.setup)?;
    for line in lines {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(seed: u64, histories: Option<u64>) -> SimulateArgs {
        SimulateArgs { seed, histories, every_call: false, lives: false, threads: None, whole: false, without: None }
    }

    #[test]
    fn a_history_is_told_and_many_are_summed_up() {
        let mut out = Vec::new();
        run(&args(1, None), &mut out).unwrap();
        let text = String::from_utf8(std::mem::take(&mut out)).unwrap();
        assert!(text.starts_with("seed 1 begins with ") && text.contains("nothing happened that must not"), "{text}");
        run(&args(1, Some(3)), &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("3 histories from seed 1 in "));
    }
}
