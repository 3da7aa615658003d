//! Who runs which half of the control loops, by what watching both Leases has shown. Pure.
//!
//! The halves may run in one program or in two, one of which may be a Go program; a Lease names the program that runs its half.

use super::checks::{Finding, Health, Read};
use crate::{cli::lease_watch::Pulse, settings::Half};

/// The program that runs a half, as far as its Lease tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Runner {
    /// The holder of the Lease renews it.
    Holder(String),
    /// The Lease is there, and no program renews it.
    Nobody,
    /// There has never been a Lease.
    Never,
    /// The API server does not tell, or the Lease lasts longer than it was watched.
    Unknown,
}

impl Runner {
    /// What a Lease and its watch tell.
    pub fn of(read: &Read, pulse: &Pulse) -> Self {
        match (read, pulse) {
            (Read::Refused(_), _) | (_, Pulse::Unproven { .. }) => Self::Unknown,
            (_, Pulse::Beats { holder }) => Self::Holder(holder.clone()),
            (Read::Missing, _) => Self::Never,
            (Read::There(_), Pulse::Nobody | Pulse::Silent { .. }) => Self::Nobody,
        }
    }

    const fn health(&self) -> Health {
        match self {
            Self::Holder(_) => Health::Fine,
            Self::Nobody => Health::Bad,
            Self::Never => Health::Off,
            Self::Unknown => Health::Unknown,
        }
    }

    fn says(&self, half: Half) -> String {
        let (loops, idle) = match half {
            Half::ControllerManager => ("deployments and sets", "no machine is made, replaced or rolled"),
            Half::MachineController => ("machines", "no VM is made or deleted, and no node is drained"),
        };
        match self {
            Self::Holder(holder) => format!("{holder} runs {loops}"),
            Self::Nobody => format!("nobody runs {loops}: {idle}"),
            Self::Never => format!("nobody has ever run {loops} here, unless without --leader-elect: {idle}"),
            Self::Unknown => format!("it is not known who runs {loops}"),
        }
    }
}

/// Both halves together.
pub fn halves(namespace: &str, manager: &Runner, machines: &Runner) -> Finding {
    let message = match (manager, machines) {
        (Runner::Holder(one), Runner::Holder(other)) if one == other => {
            format!("{one} runs both halves{}", if is_of_one_process(one) { "" } else { OF_A_POD })
        }
        (Runner::Holder(_), Runner::Holder(_)) => format!("{}{WAITING}", told(manager, machines)),
        _ => told(manager, machines),
    };
    let healths = [manager.health(), machines.health()];
    let worst = [Health::Bad, Health::Unknown, Health::Off].into_iter().find(|health| healths.contains(health));
    Finding { subject: format!("Halves of {namespace}"), health: worst.unwrap_or(Health::Fine), message }
}

/// Our own programs, unlike the Go ones, have names that differ within a pod, too.
const OF_A_POD: &str = ": one program, or the two Go programs of a pod, which have one name";
/// Two holders may be two programs with a half each, or one with its half beside a program that is to run both.
const WAITING: &str =
    ": two programs. If one of them is to run both halves, it does nothing until it has the other Lease, too";

fn told(manager: &Runner, machines: &Runner) -> String {
    format!("{}; {}", manager.says(Half::ControllerManager), machines.says(Half::MachineController))
}

/// Whether the name has a suffix behind that of the host, which differs for each process.
fn is_of_one_process(holder: &str) -> bool {
    holder.contains('_')
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::cli::lease_watch::Held;

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
    #[case::nobody_runs_machines(
        holder("pod-1_a"), Runner::Nobody, Health::Bad,
        &["pod-1_a runs deployments and sets", "nobody runs machines: no VM is made or deleted"])]
    #[case::nobody_runs_deployments(
        Runner::Nobody, holder("pod-2"), Health::Bad, &["nobody runs deployments and sets: no machine is made", "pod-2 runs machines"])]
    #[case::machines_have_never_run(
        holder("pod-1_a"), Runner::Never, Health::Off, &["nobody has ever run machines here, unless without --leader-elect"])]
    #[case::nothing_runs(Runner::Nobody, Runner::Nobody, Health::Bad, &["nobody runs deployments", "nobody runs machines"])]
    #[case::nothing_has_ever_run(Runner::Never, Runner::Never, Health::Off, &["nobody has ever run deployments"])]
    #[case::one_is_not_known(
        holder("pod-1_a"), Runner::Unknown, Health::Unknown, &["pod-1_a runs", "it is not known who runs machines"])]
    #[case::what_is_wrong_goes_before_what_is_not_known(Runner::Unknown, Runner::Nobody, Health::Bad, &["nobody runs machines"])]
    fn the_halves_are_judged(
        #[case] manager: Runner,
        #[case] machines: Runner,
        #[case] health: Health,
        #[case] words: &[&str],
    ) {
        let found = halves("ns", &manager, &machines);
        assert_eq!((found.health, found.subject.as_str()), (health, "Halves of ns"), "{}", found.message);
        for word in words {
            assert!(found.message.contains(word), "{word:?} in {}", found.message);
        }
    }

    fn silent() -> Pulse {
        let held = Held::read(&json!({"holderIdentity": "a"})).unwrap();
        Pulse::Silent { held, watched: Duration::from_secs(18) }
    }

    fn unproven() -> Pulse {
        let held = Held::read(&json!({"holderIdentity": "a"})).unwrap();
        Pulse::Unproven { held, watched: Duration::from_secs(60) }
    }

    #[rstest]
    #[case::renewed(Read::There(json!({})), Pulse::Beats { holder: "a".to_owned() }, holder("a"))]
    #[case::released(Read::There(json!({})), Pulse::Nobody, Runner::Nobody)]
    #[case::not_renewed(Read::There(json!({})), silent(), Runner::Nobody)]
    #[case::watched_too_shortly(Read::There(json!({})), unproven(), Runner::Unknown)]
    #[case::it_is_missing(Read::Missing, Pulse::Nobody, Runner::Never)]
    #[case::it_can_not_be_read(Read::Refused("no".to_owned()), Pulse::Nobody, Runner::Unknown)]
    fn a_lease_names_the_runner(#[case] read: Read, #[case] pulse: Pulse, #[case] expected: Runner) {
        assert_eq!(Runner::of(&read, &pulse), expected);
    }
}
