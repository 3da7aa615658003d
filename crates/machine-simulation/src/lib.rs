//! Histories of a whole control plane on virtual time: deployments, sets, machines and the overshoot guard decide together
//! over a simulated cluster and cloud, while views lag, calls get lost, processes die, providers fail and users change
//! their minds.
//!
//! The controllers are those of production, and so are stores, indexes, wake-ups, the gate, the memory of refusals and the rules of
//! the queue. What is played begins behind the ports ([`played`]): the API servers ([`api`]), the time, the provider ([`cloud`]),
//! kubelets and pods ([`nodes`], [`pods`]), volumes ([`volumes`]), classes and their
//! Secrets ([`classes`]). Which changes wake which loop is [`machine_controllers::loops`]. That an API server is silent a process is told. The queue's debouncing is real time elsewhere and a wake-up a little later here.
//!
//! What must hold is in [`checks`] and [`rest`]. A history is a function of its seed; one that fails is shortened and can be
//! replayed (`mcm simulate --seed N`).

#![forbid(unsafe_code)]

mod api;
mod calls;
pub mod checks;
mod classes;
mod cloud;
mod contents;
pub mod drain;
mod draw;
mod edits;
mod ends;
pub mod every_call;
mod facts;
pub mod forecast;
pub mod guards;
pub mod history;
mod margins;
pub mod mirror;
mod nodes;
mod played;
mod pods;
mod process;
mod refusals;
mod rest;
mod tampering;
mod trace;
mod volumes;
mod world;

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use self::{
    calls::{Calls, Doom},
    checks::Violation,
    history::{History, Setup},
    trace::Trace,
    world::{Start, World},
};

/// What became of a history.
#[derive(Clone, Debug)]
pub struct Told {
    /// What happened that must not.
    pub violation: Option<Violation>,
    /// What happened, line by line; empty unless asked for.
    pub lines: Vec<String>,
    /// Passes of the loops.
    pub passes: u64,
    /// Objects written.
    pub changes: u64,
    /// Virtual time, in seconds.
    pub seconds: i64,
}

/// Whether a run tells what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// Nothing is told; fast.
    Silent,
    /// Everything is.
    Aloud,
}

thread_local! {
    /// Worlds at rest, by what they begin with.
    static STARTS: RefCell<BTreeMap<Setup, Rc<Start>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A world at rest.
///
/// # Errors
/// When not even the first rollout comes to rest.
fn start(setup: Setup) -> Result<Rc<Start>, Violation> {
    if let Some(known) = STARTS.with_borrow(|starts| starts.get(&setup).cloned()) {
        return Ok(known);
    }
    let (start, checks) = Start::of(setup);
    if let Some(violation) = checks.violation {
        return Err(violation);
    }
    let start = Rc::new(start);
    STARTS.with_borrow_mut(|starts| starts.insert(setup, Rc::clone(&start)));
    Ok(start)
}

/// Lets a history happen.
pub fn run(history: &History, telling: Telling) -> Told {
    run_doomed(history, telling, None).0
}

/// Lets a history happen in which this call goes wrong, and tells how many there were.
fn run_doomed(history: &History, telling: Telling, doom: Option<Doom>) -> (Told, Calls) {
    let trace = if telling == Telling::Aloud { Trace::kept() } else { Trace::default() };
    let start = match start(history.setup) {
        Ok(start) => start,
        Err(violation) => {
            return (
                Told { violation: Some(violation), lines: Vec::new(), passes: 0, changes: 0, seconds: 0 },
                Calls::default(),
            );
        }
    };
    let mut world = World::new(&start, history, trace);
    world.doom = doom;
    let (began, before) = (world.now, world.api.changes);
    'rounds: for round in &history.rounds {
        for step in round {
            world.step(*step);
            if world.is_violated() {
                break 'rounds;
            }
        }
        world.calm();
        if world.is_violated() {
            break;
        }
    }
    let told = Told {
        violation: world.checks.violation,
        lines: world.trace.into_lines(),
        passes: world.passes,
        changes: world.api.changes - before,
        seconds: world.now.duration_since(began).as_secs(),
    };
    (told, world.calls)
}

/// The shortest history found that still breaks the same rule: steps are taken out in ever smaller pieces.
pub fn shortened(history: &History, violation: &Violation) -> History {
    let mut best = history.clone();
    let mut piece = best.len().max(1);
    while piece > 0 {
        let mut place = 0;
        while place < best.len() {
            let shorter = best.without_steps(place..place + piece);
            let found = run(&shorter, Telling::Silent).violation;
            if found.is_some_and(|found| found.rule == violation.rule) {
                best = shorter;
            } else {
                place += piece;
            }
        }
        piece /= 2;
    }
    best
}

#[cfg(test)]
mod both_ways;
#[cfg(test)]
mod crafted_tests;
#[cfg(test)]
mod lives_tests;
#[cfg(test)]
mod tests;
