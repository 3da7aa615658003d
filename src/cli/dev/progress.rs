//! Shows machines as they become Running: redrawn on a terminal, as lines elsewhere.

use std::{collections::BTreeMap, io::Write, time::Instant};

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};

use crate::api::v1alpha1::Machine;

/// How progress is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// One line that changes.
    Redrawn,
    /// A line per change.
    Lines,
}

/// Follows the machines until nobody reads any more. The hints come once, after the first machine runs, or at once if there
/// is none to wait for.
pub(super) async fn show(
    client: &kube::Client,
    out: &mut (dyn Write + Send),
    style: Style,
    began: Instant,
    hints: &str,
) -> anyhow::Result<()> {
    let machines: Api<Machine> = Api::namespaced(client.clone(), super::NAMESPACE);
    let mut changes = watcher(machines, watcher::Config::default()).default_backoff().boxed();
    let mut phases: BTreeMap<String, String> = BTreeMap::new();
    let mut hints = Some(hints);
    while let Some(change) = changes.try_next().await? {
        let told = match change {
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
        if let Some(line) = told {
            let seconds = began.elapsed().as_secs_f64();
            match style {
                Style::Lines => writeln!(out, "{seconds:7.1} s  {line}")?,
                Style::Redrawn => write!(out, "\r\x1b[2K{seconds:7.1} s  {}  ({line})", summary(&phases))?,
            }
        }
        if (runs || phases.is_empty())
            && let Some(text) = hints.take_if(|text| runs || !text.contains("scale"))
        {
            let newline = if style == Style::Redrawn { "\n" } else { "" };
            write!(out, "{newline}{text}")?;
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
    format!("{} machines: {}", phases.len(), counts.join(", "))
}
