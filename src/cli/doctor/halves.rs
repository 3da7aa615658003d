//! Finds the program that runs each half of the control loops, from the results of watching both Leases. Pure functions.
//!
//! The halves may run in one program or in two, and one of them may be a Go program. A Lease names the program that runs its half.

use super::{
    checks::{Finding, Health, Read},
    commands::Installed,
};
use crate::{cli::lease_watch::LeaseState, settings::Half};

/// The program that runs a half, according to its Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Runner {
    /// The holder of the Lease renews it.
    Holder(String),
    /// The Lease exists, and no program renews it.
    Stopped,
    /// There has never been a Lease.
    Never,
    /// The Lease could not be read, or its duration is longer than the watch.
    Unknown,
}

impl Runner {
    /// The runner, from a Lease and the result of watching it.
    pub fn of(read: &Read, state: &LeaseState) -> Self {
        match (read, state) {
            (Read::Refused(_), _) | (_, LeaseState::Unproven { .. }) => Self::Unknown,
            (_, LeaseState::Renewed { holder }) => Self::Holder(holder.clone()),
            (Read::Missing, _) => Self::Never,
            (Read::There(_), LeaseState::Free | LeaseState::NotRenewed { .. }) => Self::Stopped,
        }
    }

    const fn health(&self) -> Health {
        match self {
            Self::Holder(_) => Health::Fine,
            Self::Stopped => Health::Bad,
            Self::Never => Health::Off,
            Self::Unknown => Health::Unknown,
        }
    }

    fn text(&self, half: Half) -> String {
        let (loops, idle) = match half {
            Half::ControllerManager => ("deployments and sets", "no machine is made, replaced or rolled"),
            Half::MachineController => ("machines", "no VM is made or deleted, and no node is drained"),
        };
        match self {
            Self::Holder(holder) => format!("{holder} runs {loops}"),
            Self::Stopped => format!("no program runs {loops}: {idle}"),
            Self::Never => {
                format!("no program has ever run {loops} here, unless one runs without --leader-elect: {idle}")
            }
            Self::Unknown => format!("it is not known which program runs {loops}"),
        }
    }
}

/// The finding about both halves.
pub fn halves(manager: &Runner, machines: &Runner, installed: &Installed) -> Finding {
    let message = match (manager, machines) {
        (Runner::Holder(one), Runner::Holder(other)) if one == other => {
            format!("{one} runs both halves{}", if is_of_one_process(one) { "" } else { OF_A_POD })
        }
        (Runner::Holder(_), Runner::Holder(_)) => format!("{}{WAITING}", both(manager, machines)),
        _ => both(manager, machines),
    };
    let healths = [manager.health(), machines.health()];
    let worst = [Health::Bad, Health::Unknown, Health::Off].into_iter().find(|health| healths.contains(health));
    let finding = Finding::new(format!("Halves of {}", installed.namespace), worst.unwrap_or(Health::Fine), message);
    match finding.health {
        Health::Bad | Health::Off => finding.mended_by(installed.run_replicas()),
        Health::Fine | Health::Unknown => finding,
    }
}

/// The names of our programs differ even within a pod. The names of the Go programs do not.
const OF_A_POD: &str = ": one program, or the two Go programs of a pod, which have one name";
/// Two holders are two programs with one half each, or a program with one half beside a program that should run both.
const WAITING: &str =
    ": two programs. If one of them is to run both halves, it does nothing until it has the other Lease, too";

fn both(manager: &Runner, machines: &Runner) -> String {
    format!("{}; {}", manager.text(Half::ControllerManager), machines.text(Half::MachineController))
}

/// Whether the name has a suffix after the host's name. The suffix is different for each process.
fn is_of_one_process(holder: &str) -> bool {
    holder.contains('_')
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::cli::{lease_watch::Held, webhook_scope::WebhookScope};

    fn holder(name: &str) -> Runner {
        Runner::Holder(name.to_owned())
    }

    #[rstest]
    #[case::one_process(holder("pod-1_a"), holder("pod-1_a"), Health::Fine, &["pod-1_a runs both halves"])]
    #[case::both_go_programs_of_a_pod(holder("pod-1"), holder("pod-1"), Health::Fine, &["or the two Go programs of a pod"])]
    #[case::two_programs(
        holder("pod-1_a"), holder("pod-2"), Health::Fine,
        &["pod-1_a runs deployments and sets", "pod-2 runs machines", "two programs", "is to run both halves"])]
    #[case::two_processes_of_one_pod(holder("pod-1_a"), holder("pod-1"), Health::Fine, &["two programs"])]
    #[case::machines_are_not_running(
        holder("pod-1_a"), Runner::Stopped, Health::Bad,
        &["pod-1_a runs deployments and sets", "no program runs machines: no VM is made or deleted"])]
    #[case::deployments_are_not_running(
        Runner::Stopped, holder("pod-2"), Health::Bad, &["no program runs deployments and sets: no machine is made", "pod-2 runs machines"])]
    #[case::machines_have_never_run(
        holder("pod-1_a"), Runner::Never, Health::Off, &["no program has ever run machines here, unless one runs without --leader-elect"])]
    #[case::nothing_runs(Runner::Stopped, Runner::Stopped, Health::Bad, &["no program runs deployments", "no program runs machines"])]
    #[case::nothing_has_ever_run(Runner::Never, Runner::Never, Health::Off, &["no program has ever run deployments"])]
    #[case::one_is_not_known(
        holder("pod-1_a"), Runner::Unknown, Health::Unknown, &["pod-1_a runs", "it is not known which program runs machines"])]
    #[case::bad_goes_before_unknown(Runner::Unknown, Runner::Stopped, Health::Bad, &["no program runs machines"])]
    fn the_halves_are_checked(
        #[case] manager: Runner,
        #[case] machines: Runner,
        #[case] health: Health,
        #[case] words: &[&str],
    ) {
        let found = halves(&manager, &machines, &Installed::of("ns", WebhookScope::Cluster, &[]));
        assert_eq!((found.health, found.subject.as_str()), (health, "Halves of ns"), "{}", found.message);
        for word in words {
            assert!(found.message.contains(word), "{word:?} in {}", found.message);
        }
    }

    fn not_renewed() -> LeaseState {
        let held = Held::read(&json!({"holderIdentity": "a"})).unwrap();
        LeaseState::NotRenewed { held, watched: Duration::from_secs(18) }
    }

    fn unproven() -> LeaseState {
        let held = Held::read(&json!({"holderIdentity": "a"})).unwrap();
        LeaseState::Unproven { held, watched: Duration::from_secs(60) }
    }

    #[rstest]
    #[case::renewed(Read::There(json!({})), LeaseState::Renewed { holder: "a".to_owned() }, holder("a"))]
    #[case::released(Read::There(json!({})), LeaseState::Free, Runner::Stopped)]
    #[case::not_renewed(Read::There(json!({})), not_renewed(), Runner::Stopped)]
    #[case::watched_too_shortly(Read::There(json!({})), unproven(), Runner::Unknown)]
    #[case::it_is_missing(Read::Missing, LeaseState::Free, Runner::Never)]
    #[case::it_can_not_be_read(Read::Refused("no".to_owned()), LeaseState::Free, Runner::Unknown)]
    fn a_lease_names_the_runner(#[case] read: Read, #[case] state: LeaseState, #[case] expected: Runner) {
        assert_eq!(Runner::of(&read, &state), expected);
    }
}
