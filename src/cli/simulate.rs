//! `mcm simulate`: runs histories of a simulated control plane, and prints one of them line by line.
//!
//! It is for developers who change the rules. A seed gives the same history on every computer.

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
    TraceMode,
    checks::Violation,
    every_call::{Broken, Story},
    guards::Guard,
    history::History,
    run as happen, shortened,
};

/// The number of failures that are printed in full.
const PRINTED: usize = 3;

/// Flags of `mcm simulate`.
#[derive(Clone, Debug, clap::Args)]
pub struct SimulateArgs {
    /// Seed of the history to print, or of the first one with --histories
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Run this number of histories, one per seed, and print only those that break a rule
    #[arg(long)]
    pub histories: Option<u64>,
    /// Run short stories once for each call in them, with the process ending at that call
    #[arg(long, conflicts_with_all = ["histories", "seed"])]
    pub every_call: bool,
    /// Run lives of single machines instead of histories of a whole control plane
    #[arg(long, conflicts_with = "every_call")]
    pub lives: bool,
    /// Number of histories at the same time [default: the number of processors]
    #[arg(long)]
    pub threads: Option<NonZeroUsize>,
    /// Print a failing history unchanged, without a search for a shorter one
    #[arg(long)]
    pub whole: bool,
    /// Remove this guard from the controllers, to see what it prevents
    #[arg(long, value_name = "GUARD")]
    pub without: Option<Guard>,
}

impl SimulateArgs {
    fn history(&self, seed: u64) -> History {
        let drawn = if self.lives { History::life_of_seed(seed) } else { History::of_seed(seed) };
        History { without: self.without, ..drawn }
    }
}

/// The sum over many histories.
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
/// [`Failure::Reported`] when a history breaks a rule.
pub fn run(args: &SimulateArgs, out: &mut dyn Write) -> Result<(), Failure> {
    match args.histories {
        None if args.every_call => every_call(args, out),
        None => one(args, out),
        Some(count) => many(args, count, out),
    }
}

fn one(args: &SimulateArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let history = args.history(args.seed);
    let outcome = happen(&history, TraceMode::Full);
    let Some(violation) = &outcome.violation else {
        show(args.seed, &history, &outcome.lines, out)?;
        writeln!(out, "nothing happened that must not: {} passes, {} writes", outcome.passes, outcome.changes)?;
        return Ok(());
    };
    fail(args, args.seed, violation, out)?;
    Err(Failure::Reported)
}

fn every_call(args: &SimulateArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failed = 0;
    for story in Story::all() {
        let (times, broken) = story.played(args.without);
        for Broken { planned_fault, violation, lines } in broken.iter().take(PRINTED) {
            writeln!(out, "{}\n{planned_fault}: {}: {}\n", lines.join("\n"), violation.rule, violation.text)?;
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
    for (seed, violation) in failed.iter().take(PRINTED) {
        fail(args, *seed, violation, out)?;
    }
    for (seed, violation) in failed.iter().skip(PRINTED) {
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
        let outcome = happen(history, TraceMode::Off);
        self.passes.fetch_add(outcome.passes, Ordering::Relaxed);
        self.changes.fetch_add(outcome.changes, Ordering::Relaxed);
        self.seconds.fetch_add(u64::try_from(outcome.seconds).unwrap_or(0), Ordering::Relaxed);
        if let (Some(violation), Ok(mut failed)) = (outcome.violation, self.failed.lock()) {
            failed.push((history.seed, violation));
        }
    }
}

/// Prints a failing history, shortened unless `--whole` is given.
fn fail(args: &SimulateArgs, seed: u64, violation: &Violation, out: &mut dyn Write) -> Result<(), Failure> {
    let whole = args.history(seed);
    let history = if args.whole { whole.clone() } else { shortened(&whole, violation) };
    let outcome = happen(&history, TraceMode::Full);
    show(seed, &history, &outcome.lines, out)?;
    let violation = outcome.violation.as_ref().unwrap_or(violation);
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
    fn one_history_is_printed_and_many_are_summed_up() {
        let mut out = Vec::new();
        run(&args(1, None), &mut out).unwrap();
        let text = String::from_utf8(std::mem::take(&mut out)).unwrap();
        assert!(text.starts_with("seed 1 begins with ") && text.contains("nothing happened that must not"), "{text}");
        run(&args(1, Some(3)), &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("3 histories from seed 1 in "));
    }
}
