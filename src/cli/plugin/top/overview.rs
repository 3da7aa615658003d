//! The rows of `top`: counts, deployments, machines, warnings. Pure; the text and the live view show the same rows.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::Serialize;

use super::super::{
    events::ObjectWarning,
    fleet::{Fleet, revision_of_deployment},
    output::{Answer, Health, Paint, Source, Style, counted, length, table},
    rollout::progress::{Verdict, verdict},
    state::{MachineState, Wait, parts},
    tree::shown_phase,
};
use controller_runtime::snapshot::Snapshot;
use machine_controllers::snapshots::DeploymentSnapshot;

/// Which namespaces the rows are from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Within {
    /// This one, which the rows do not repeat.
    One(String),
    /// All. Each row has its own.
    #[default]
    All,
}

impl Within {
    /// The namespace; `None` for all.
    pub fn namespace(&self) -> Option<&str> {
        match self {
            Self::One(name) => Some(name),
            Self::All => None,
        }
    }
}

/// Counts of machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Counts {
    /// All machines.
    pub all: usize,
    /// Machines that run and wait for nothing.
    pub well: usize,
    /// Machines that change, or wait.
    pub busy: usize,
    /// Machines that have failed, or do not get on.
    pub bad: usize,
}

/// A deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeploymentRow {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// How well it is.
    pub health: Health,
    /// The state of its rollout.
    pub verdict: Verdict,
    /// The revision of its template.
    pub revision: i64,
    /// Wanted machines.
    pub wanted: i32,
    /// Machines with the present template.
    pub updated: i32,
    /// Available machines.
    pub available: i32,
    /// All machines.
    pub total: i32,
}

impl DeploymentRow {
    fn of(deployment: &DeploymentSnapshot) -> Self {
        let (verdict, status) = (verdict(deployment), deployment.status());
        Self {
            namespace: deployment.namespace().to_owned(),
            name: deployment.name().to_owned(),
            health: verdict.health(),
            verdict,
            revision: revision_of_deployment(deployment),
            wanted: deployment.replicas(),
            updated: status.updated_replicas,
            available: status.available_replicas,
            total: status.replicas,
        }
    }
}

/// The answer of `top`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Overview {
    /// Counts of the machines.
    pub counts: Counts,
    /// The deployments, by namespace and name.
    pub deployments: Vec<DeploymentRow>,
    /// The machines: first the bad, then the busy. The text leaves out machines that are well.
    pub machines: Vec<MachineState>,
    /// The last warnings of events about machine objects, the newest first.
    pub warnings: Vec<ObjectWarning>,
    #[serde(skip)]
    pub(super) within: Within,
}

impl Overview {
    /// The rows of a fleet.
    pub fn of(fleet: &Fleet, warnings: Vec<ObjectWarning>, within: Within) -> Self {
        let mut machines: Vec<MachineState> = fleet.machines.iter().map(|machine| fleet.state_of(machine)).collect();
        machines.sort_by(|one, other| {
            let place = |state: &MachineState| Reverse(state.health);
            let name = |state: &MachineState, other: &MachineState| {
                state.namespace.cmp(&other.namespace).then_with(|| state.name.cmp(&other.name))
            };
            place(one).cmp(&place(other)).then_with(|| name(one, other))
        });
        let mut deployments: Vec<DeploymentRow> = fleet.deployments.iter().map(DeploymentRow::of).collect();
        deployments.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
        let of = |health| machines.iter().filter(|state| state.health == health).count();
        let counts =
            Counts { all: machines.len(), well: of(Health::Well), busy: of(Health::Busy), bad: of(Health::Bad) };
        Self { counts, deployments, machines, warnings, within }
    }

    /// The first line: the counts.
    pub fn summary(&self) -> String {
        let Counts { all, well, busy, bad } = self.counts;
        let deployments = counted(self.deployments.len(), "deployment");
        format!("{}: {well} well, {busy} busy, {bad} bad; {deployments}", counted(all, "machine"))
    }

    /// The machines that are not well.
    pub fn not_well(&self) -> impl Iterator<Item = &MachineState> {
        self.machines.iter().take_while(|state| state.health != Health::Well)
    }
}

/// What a machine waits for, in a few words.
pub fn awaited(state: &MachineState) -> String {
    let wait = state.waits.first().map(|wait| parts(wait).0).unwrap_or_default();
    match wait.strip_prefix("waiting for ") {
        Some(rest) => rest.to_owned(),
        None => wait,
    }
}

/// How long a machine has been waiting, or has been deleted for.
pub fn duration(state: &MachineState, style: &Style) -> String {
    let since = state.waits.first().and_then(|wait: &Wait| wait.since).or(state.deleting_since);
    since.map(|since| length(style.now, since).to_string()).unwrap_or_default()
}

impl Answer for Overview {
    const KIND: &'static str = "Top";

    fn text(&self, source: Source, style: &Style) -> String {
        // A colour would count as columns of the table.
        let marks = Style { paint: Paint::Plain, ..*style };
        let named = |namespace: &str, health: Health, name: &str| {
            let mut cells = vec![format!("{} {name}", marks.mark(health))];
            if self.within == Within::All {
                cells.insert(0, namespace.to_owned());
            }
            cells
        };
        let head = |columns: &[&'static str]| {
            let first = if self.within == Within::All { &["NAMESPACE"][..] } else { &[] };
            first.iter().chain(columns).copied().collect::<Vec<&str>>()
        };
        let mut text = format!("{}\n", self.summary());
        let rows = self.deployments.iter().map(|row| {
            let mut cells = named(&row.namespace, row.health, &row.name);
            cells.extend([row.revision.to_string(), format!("{} of {}", row.updated, row.wanted)]);
            cells.extend([row.available.to_string(), row.total.to_string(), row.verdict.words().to_owned()]);
            cells
        });
        let rows: Vec<Vec<String>> = rows.collect();
        if !rows.is_empty() {
            let columns = ["DEPLOYMENT", "REVISION", "UPDATED", "AVAILABLE", "MACHINES", "STATE"];
            text.push('\n');
            text.push_str(&table(&head(&columns), &rows));
        }
        let rows = self.not_well().map(|state| {
            let mut cells = named(&state.namespace, state.health, &state.name);
            cells.extend([shown_phase(state), state.node.clone().unwrap_or_default()]);
            cells.extend([duration(state, style), awaited(state)]);
            cells
        });
        let rows: Vec<Vec<String>> = rows.collect();
        if !rows.is_empty() {
            text.push('\n');
            text.push_str(&table(&head(&["MACHINE", "PHASE", "NODE", "FOR", "WAITS FOR"]), &rows));
        }
        if !self.warnings.is_empty() {
            text.push('\n');
        }
        for ObjectWarning { kind, name, warning, .. } in &self.warnings {
            let object = format!("{kind}/{name} ");
            text.push_str(&warning.line("", style).replacen("warning     ", &format!("warning     {object}"), 1));
        }
        text + &format!("\nsource: {}\n", source.words())
    }

    fn names(&self) -> Vec<String> {
        let deployments = self.deployments.iter().map(|row| format!("deployment/{}", row.name));
        deployments.chain(self.machines.iter().map(|state| format!("machine/{}", state.name))).collect()
    }
}

#[cfg(test)]
pub mod testing {
    //! Overviews for tests.

    use super::*;
    use crate::cli::plugin::testing::fleet;

    /// The overview of the fleet of the tests, with a warning.
    pub fn overview() -> Overview {
        let warning = crate::cli::plugin::events::Warning {
            reason: "DrainBlocked".to_owned(),
            message: "no eviction".to_owned(),
            last: Some(crate::cli::plugin::testing::now()),
            count: 2,
        };
        let about = ObjectWarning {
            kind: "machine".to_owned(),
            namespace: "ns".to_owned(),
            name: "web-1-a".to_owned(),
            warning,
        };
        Overview::of(&fleet(), vec![about], Within::One("ns".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::{
            output::testing::plain,
            testing::{fleet, now},
        },
        testing::overview,
        *,
    };

    #[test]
    fn pk_082_without_a_terminal_top_is_lines() {
        assert_eq!(
            overview().text(Source::Stored, &plain(now())),
            "\
3 machines: 2 well, 0 busy, 1 bad; 1 deployment

DEPLOYMENT   REVISION   UPDATED   AVAILABLE   MACHINES   STATE
! web        2          2 of 3    2           3          is being rolled out

MACHINE     PHASE                NODE     FOR     WAITS FOR
✗ web-1-a   Terminating, Drain   node-a   38m0s   Pod shop/db-0: PodDisruptionBudget shop/db allows 0 disruptions

warning     machine/web-1-a DrainBlocked: no eviction (2 times)   2027-01-15T08:00:00Z (0s ago)

source: stored objects (the views were not used)
"
        );
    }

    #[test]
    fn rows_of_all_namespaces_have_their_own() {
        let rows = Overview::of(&fleet(), Vec::new(), Within::All);
        let text = rows.text(Source::Views, &plain(now()));
        assert!(text.contains("\nNAMESPACE   MACHINE "), "{text}");
        assert!(text.contains("\nns          ✗ web-1-a "), "{text}");
        assert!(!text.contains("web-2-b"), "machines that are well are counted: {text}");
        assert_eq!(rows.names()[1..], ["machine/web-1-a", "machine/web-2-b", "machine/web-2-c"]);
    }
}
