//! `preserve MACHINE`: asks the manager to keep a machine, or not to keep it any longer.
//!
//! The command writes the annotation that the machine controller reads. Source: spec/packaging §5.2.

use std::io::Write;

use clap::Args;
use serde_json::json;

use super::{
    machine_named,
    output::OutputArgs,
    session::{Session, SessionArgs},
    subject::Wanted,
    write::{Change, Decision, What, WriteArgs, carry_out},
};
use crate::cli::{Failure, kubeconfig::run_interruptibly};
use controller_runtime::{objects::Patch, snapshot::Snapshot};
use machine_api::{
    kind::Kind,
    names::{annotation, preserve_value},
};
use machine_controllers::snapshots::MachineSnapshot;

/// Flags of `preserve`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  kubectl mcm preserve web-1-x7qzt --when-failed --yes\n  kubectl mcm preserve \
                        node/ip-10-0-3-17 --yes\n  kubectl mcm preserve web-1-x7qzt --stop --yes")]
pub struct PreserveArgs {
    /// machine/NAME, node/NAME, vm/PROVIDER-ID, or a name alone
    #[arg(value_name = "MACHINE")]
    pub object: Wanted,
    /// Keep the machine only if it fails
    #[arg(long, conflicts_with = "stop")]
    pub when_failed: bool,
    /// Do not keep the machine any longer
    #[arg(long)]
    pub stop: bool,
    /// The cluster
    #[command(flatten)]
    pub session: SessionArgs,
    /// The write
    #[command(flatten)]
    pub write: WriteArgs,
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What the user wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Keep the machine from now on.
    Now,
    /// Keep it if it fails.
    WhenFailed,
    /// Keep it no longer.
    Stop,
}

impl Wish {
    /// The value of the annotation, and what it means.
    const fn meaning(self) -> (&'static str, &'static str) {
        match self {
            Self::Now => (
                preserve_value::NOW,
                "the manager keeps it with its VM and its Node, until --machine-preserve-timeout is over",
            ),
            Self::WhenFailed => (
                preserve_value::WHEN_FAILED,
                "if it fails, the manager keeps it with its VM and its Node, until --machine-preserve-timeout is over",
            ),
            Self::Stop => (preserve_value::FALSE, "the manager keeps it no longer"),
        }
    }
}

/// Writes the wish.
///
/// # Errors
/// When no machine has the name, without confirmation, or when the write fails.
pub fn run(args: &PreserveArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let wish = match (args.when_failed, args.stop) {
        (true, _) => Wish::WhenFailed,
        (_, true) => Wish::Stop,
        (false, false) => Wish::Now,
    };
    run_interruptibly(
        async {
            let session = Session::open(&args.session).await?;
            let (machine, _) = machine_named(&session, &args.object).await?;
            let decision = preserve(&machine, wish).map_err(|refused| Failure::Input(refused.to_string()))?;
            carry_out(&session, decision, args.write, &args.output, out).await
        },
        "interrupted; kubectl get shows whether the annotation was written",
    )
}

/// Why a wish is refused: the machine is being deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("machine {0} is being deleted, so that it can't be preserved any more")]
pub struct Leaving(String);

/// The change that expresses a wish. Pure.
///
/// # Errors
/// [`Leaving`] for a machine that is being deleted.
pub fn preserve(machine: &MachineSnapshot, wish: Wish) -> Result<Decision, Leaving> {
    let (value, meaning) = wish.meaning();
    let name = machine.name();
    if machine.is_deleting() && wish != Wish::Stop {
        return Err(Leaving(name.to_owned()));
    }
    if machine.annotation(annotation::PRESERVE) == Some(value) {
        let already = format!("machine {name} has the annotation {}={value} already", annotation::PRESERVE);
        return Ok(Decision::Nothing(already));
    }
    // The machine controller remembers the Node's annotation, which counts as long as there is one.
    let by_node = machine.annotation(annotation::LAST_APPLIED_NODE_PRESERVE_VALUE).filter(|value| !value.is_empty());
    let caution = by_node.map(|value| {
        format!(". The annotation {}={value} of its Node counts until it is removed", annotation::PRESERVE)
    });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { annotation::PRESERVE: value } } }));
    Ok(Decision::Change(Change {
        kind: Kind::Machine,
        target: machine.target(),
        text: format!("preserve machine {name} ({value}): {meaning}{}", caution.unwrap_or_default()),
        what: What::Patch(patch.bound_to(machine.uid()).guarded_by(machine.resource_version())),
    }))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::testing::{blocked, machine};
    use super::*;

    #[rstest]
    #[case::now(Wish::Now, "now")]
    #[case::when_failed(Wish::WhenFailed, "when-failed")]
    #[case::stop(Wish::Stop, "false")]
    fn the_annotation_has_a_value_that_the_manager_knows(#[case] wish: Wish, #[case] value: &str) {
        let stored = machine("m", &json!({ "metadata": { "resourceVersion": "3" } }));
        let Decision::Change(Change { what: What::Patch(Patch::Merge(patch)), .. }) = preserve(&stored, wish).unwrap()
        else {
            panic!("a patch");
        };
        let annotations = json!({ "node.machine.sapcloud.io/preserve": value });
        assert_eq!(patch, json!({ "metadata": { "annotations": annotations, "uid": "u-m", "resourceVersion": "3" } }));
        assert!(machine_controllers::machine::preservation::Wish::of(value).is_some());
        let again = machine("m", &json!({ "metadata": { "annotations": annotations } }));
        assert!(matches!(preserve(&again, wish), Ok(Decision::Nothing(_))));
    }

    #[test]
    fn an_annotation_of_the_node_is_mentioned() {
        let annotations = json!({ "node.machine.sapcloud.io/last-applied-node-preserve-value": "now" });
        let stored = machine("m", &json!({ "metadata": { "annotations": annotations } }));
        let Ok(Decision::Change(change)) = preserve(&stored, Wish::Stop) else {
            panic!("a change");
        };
        assert!(change.text.contains("preserve=now of its Node counts until it is removed"), "{}", change.text);
    }

    #[test]
    fn a_machine_that_is_being_deleted_is_not_preserved() {
        let leaving = machine("m", &blocked());
        for wish in [Wish::Now, Wish::WhenFailed] {
            assert_eq!(preserve(&leaving, wish), Err(Leaving("m".to_owned())));
        }
        assert!(preserve(&leaving, Wish::Stop).is_ok(), "an annotation can still be taken back");
    }
}
