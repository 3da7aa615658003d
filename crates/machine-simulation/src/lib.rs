//! Histories of a whole control plane on virtual time: the controllers for deployments, sets and machines and the
//! overshoot guard run together with a simulated cluster and cloud, while watches are late, calls get lost, processes
//! die, providers fail and users change objects.
//!
//! The controllers are the same as in production, and so are stores, indexes, wake-ups, the gate, the memory of
//! refusals and the rules of the queue. The simulation begins behind the ports ([`played`]): API servers ([`api`]),
//! time, provider ([`cloud`]), kubelets and pods ([`nodes`], [`pods`]), volumes ([`volumes`]), classes and their
//! Secrets ([`classes`]). Which changes wake which loop is in [`machine_controllers::loops`]. Two parts differ from
//! production: the history tells a process when an API server does not answer, and the debouncing of the queue is a
//! short delay.
//!
//! The properties that must hold are in [`checks`] and [`rest`]. A history is a function of its seed. A history that
//! fails is shortened and can be replayed (`mcm simulate --seed N`).

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
    calls::{Calls, PlannedFault},
    checks::Violation,
    history::{History, Setup},
    trace::Trace,
    world::{Start, World},
};

/// The result of a history.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The violated property, if any.
    pub violation: Option<Violation>,
    /// The trace; empty unless requested.
    pub lines: Vec<String>,
    /// Number of passes.
    pub passes: u64,
    /// Number of object writes.
    pub changes: u64,
    /// Virtual time, in seconds.
    pub seconds: i64,
}

/// Whether a run keeps a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceMode {
    /// No trace; fast.
    Off,
    /// A trace of everything.
    Full,
}

thread_local! {
    /// Worlds at rest, by their deployment.
    static STARTS: RefCell<BTreeMap<Setup, Rc<Start>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A world at rest with this deployment.
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

/// Plays a history.
pub fn run(history: &History, trace_mode: TraceMode) -> RunReport {
    run_with_fault(history, trace_mode, None).0
}

/// Plays a history with this planned fault; also returns the number of calls.
fn run_with_fault(history: &History, trace_mode: TraceMode, planned_fault: Option<PlannedFault>) -> (RunReport, Calls) {
    let trace = if trace_mode == TraceMode::Full { Trace::kept() } else { Trace::default() };
    let start = match start(history.setup) {
        Ok(start) => start,
        Err(violation) => {
            return (
                RunReport { violation: Some(violation), lines: Vec::new(), passes: 0, changes: 0, seconds: 0 },
                Calls::default(),
            );
        }
    };
    let mut world = World::new(&start, history, trace);
    world.planned_fault = planned_fault;
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
    let report = RunReport {
        violation: world.checks.violation,
        lines: world.trace.into_lines(),
        passes: world.passes,
        changes: world.api.changes - before,
        seconds: world.now.duration_since(began).as_secs(),
    };
    (report, world.calls)
}

/// A shorter history that violates the same property: steps are removed in ever smaller ranges.
pub fn shortened(history: &History, violation: &Violation) -> History {
    let mut best = history.clone();
    let mut piece = best.len().max(1);
    while piece > 0 {
        let mut place = 0;
        while place < best.len() {
            let shorter = best.without_steps(place..place + piece);
            let found = run(&shorter, TraceMode::Off).violation;
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
