//! Prints the progress of machines: one line that is redrawn on a terminal, else a line per change.
//!
//! The changes come from kube's own watch, because each is printed once and nothing reads a store.

use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write},
    time::Instant,
};

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use machine_api::v1alpha1::Machine;

/// Clears the line and switches wrapping off, because a wrapped line can't be cleared.
const REDRAW: &str = "\r\x1b[2K\x1b[?7l";
/// Switches wrapping on again.
const WRAP: &str = "\x1b[?7h";

/// How progress is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// One line that changes.
    Redrawn,
    /// A line per change.
    Lines,
}

impl Style {
    /// Redrawn on a terminal that supports it, else lines.
    pub(super) fn of_stdout() -> Self {
        let can_move = std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb");
        if std::io::stdout().is_terminal() && can_move { Self::Redrawn } else { Self::Lines }
    }
}

/// Commands to try next.
pub(super) struct Hints {
    pub(super) text: String,
    /// Whether the hints come only after the first machine is Running.
    pub(super) wait_for_machine: bool,
    /// What follows the hints.
    pub(super) then: Then,
}

/// What follows the hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// More progress.
    GoOn,
    /// Nothing.
    End,
}

/// Follows the machines until the output is closed, or until the hints were the end. The hints are printed once.
pub(super) async fn show(
    client: &kube::Client,
    out: &mut (dyn Write + Send),
    style: Style,
    began: Instant,
    hints: Hints,
) -> anyhow::Result<()> {
    let machines: Api<Machine> = Api::namespaced(client.clone(), super::NAMESPACE);
    let mut changes = watcher(machines, watcher::Config::default()).default_backoff().boxed();
    let mut phases: BTreeMap<String, String> = BTreeMap::new();
    let mut hints = Some(hints);
    let mut drawn = false;
    while let Some(change) = changes.try_next().await? {
        let news = match change {
            watcher::Event::Apply(machine) | watcher::Event::InitApply(machine) => {
                let phase = phase(&machine);
                let name = machine.name_any();
                let before = phases.insert(name.clone(), phase.clone());
                (before.as_ref() != Some(&phase)).then(|| format!("machine {name}: {phase}"))
            }
            watcher::Event::Delete(machine) => {
                let name = machine.name_any();
                phases.remove(&name);
                Some(format!("machine {name}: gone"))
            }
            watcher::Event::Init | watcher::Event::InitDone => None,
        };
        let runs = phases.values().any(|phase| phase == "Running");
        if let Some(line) = news {
            let seconds = began.elapsed().as_secs_f64();
            match style {
                Style::Lines => writeln!(out, "{seconds:7.1} s  {line}")?,
                Style::Redrawn => write!(out, "{REDRAW}{seconds:7.1} s  {}  ({line}){WRAP}", summary(&phases))?,
            }
            drawn = true;
        }
        if let Some(hints) = hints.take_if(|hints| runs || !hints.wait_for_machine) {
            let newline = if style == Style::Redrawn && drawn { "\n" } else { "" };
            write!(out, "{newline}{}", hints.text)?;
            if hints.then == Then::End {
                break;
            }
        }
        out.flush()?;
    }
    Ok(())
}

fn phase(machine: &Machine) -> String {
    let phase = machine.status.current_status.phase.as_str();
    if phase.is_empty() { "New".to_owned() } else { phase.to_owned() }
}

fn summary(phases: &BTreeMap<String, String>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for phase in phases.values() {
        *counts.entry(phase).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
    let noun = if phases.len() == 1 { "machine" } else { "machines" };
    format!("{} {noun}: {}", phases.len(), counts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_counts_by_phase() {
        let phases = |all: &[(&str, &str)]| {
            summary(&all.iter().map(|(name, phase)| ((*name).to_owned(), (*phase).to_owned())).collect())
        };
        assert_eq!(phases(&[("a", "Running")]), "1 machine: 1 Running");
        let three = [("a", "Running"), ("b", "Pending"), ("c", "Running")];
        assert_eq!(phases(&three), "3 machines: 1 Pending, 2 Running");
    }
}
