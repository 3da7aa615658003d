//! `rollout status`: follows a rollout until it ends, and names the machines that it waits for.
//!
//! It watches the deployment, its sets and its machines, and reads the outlooks of the machines that the rollout waits for.
//! Source: spec/packaging §5.2, PK-073.

use std::{io::Write, time::Duration};

use clap::{ArgAction, Args};
use tokio::time::Instant;

use super::{
    DeploymentArgs, deployment_named,
    progress::{Progress, Verdict},
};
use crate::cli::{
    Failure,
    go_flags::go_bool,
    plugin::{
        follow::{Following, Selection},
        output::{self, Answer, Format, Source, Style},
        session::{Session, now},
    },
};
use controller_runtime::snapshot::Snapshot;
use kube_values::duration::GoDuration;

/// The least time between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// Flags of `rollout status`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Examples:\n  kubectl mcm rollout status web --timeout 10m\n  kubectl mcm rollout status web --watch=false"
)]
pub struct StatusArgs {
    /// The deployment
    #[command(flatten)]
    pub of: DeploymentArgs,
    /// Follow the rollout until it ends
    #[arg(short, long, action = ArgAction::Set, default_value = "true", default_missing_value = "true", num_args = 0..=1,
          require_equals = true, value_parser = go_bool, value_name = "BOOL")]
    pub watch: bool,
    /// Give up after this time; 0 means never
    #[arg(long, default_value = "0s", value_name = "DURATION")]
    pub timeout: GoDuration,
}

impl Answer for Progress {
    const KIND: &'static str = "RolloutStatus";

    fn text(&self, _source: Source, style: &Style) -> String {
        self.text(style)
    }

    fn names(&self) -> Vec<String> {
        vec![format!("deployment/{}", self.name)]
    }
}

/// What follows from a look at the rollout. Pure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Look again.
    On,
    /// The rollout is complete, or nobody wants to wait.
    Done,
    /// It will not become complete by itself, or not in time. The text says why.
    Failed(String),
}

/// Whether the command waits for the end of the rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It looks once.
    Once,
    /// It waits, and there is time left.
    Waits,
    /// The time is over.
    Over(GoDuration),
}

/// What follows from a look.
pub fn follow_up(progress: &Progress, patience: Patience) -> Follow {
    let name = &progress.name;
    match (progress.verdict, patience) {
        (Verdict::Complete, _) | (Verdict::Progressing | Verdict::Paused, Patience::Once) => Follow::Done,
        (Verdict::Failed, _) => {
            let reported = progress.waits.iter().map(|wait| wait.message.as_str()).collect::<Vec<_>>().join("; ");
            Follow::Failed(format!("the rollout of {name} is stuck: {reported}{}", progress.awaited()))
        }
        (Verdict::Deleting, _) => Follow::Failed(format!("deployment {name} is being deleted")),
        (Verdict::Paused, _) => {
            Follow::Failed(format!("deployment {name} is paused; kubectl mcm rollout resume {name} goes on"))
        }
        (Verdict::Progressing, Patience::Waits) => Follow::On,
        (Verdict::Progressing, Patience::Over(limit)) => {
            Follow::Failed(format!("{name} is not rolled out after {limit}{}", progress.awaited()))
        }
    }
}

/// Follows the rollout.
///
/// # Errors
/// When the deployment does not exist or is deleted, when it will not become complete by itself, or when the time is over.
pub async fn follow(args: &StatusArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let session = Session::open(&args.of.session).await?;
    let (name, began) = (args.of.deployment.as_str(), Instant::now());
    let limit = Some(args.timeout).filter(|limit| *limit > GoDuration::ZERO);
    let first = deployment_named(&session, name).await?;
    let selection = Selection::of_deployment(&first);
    let mut watched = Following::begin(&session.client, &session.namespace, selection, &session.notices);
    let is_text = matches!(args.of.output.output, None | Some(Format::Wide));
    let mut shown: Option<Progress> = None;
    loop {
        let patience = match limit {
            _ if !args.watch => Patience::Once,
            Some(limit) if began.elapsed() >= limit.to_std() => Patience::Over(limit),
            _ => Patience::Waits,
        };
        let left = limit.map_or(Duration::MAX, |limit| limit.to_std().saturating_sub(began.elapsed()));
        let Some(fleet) = watched.look().await? else {
            if patience != Patience::Waits {
                return Err(Failure::Input(format!("how far {name} is can't be told: the API server does not answer")));
            }
            watched.changed(PAUSE, left).await;
            continue;
        };
        let Some(deployment) = fleet.deployment(&session.namespace, name).filter(|now| now.uid() == first.uid()) else {
            return Err(Failure::Input(format!("deployment {name} was deleted")));
        };
        let awaited = Progress::of(deployment, &fleet).waits_for;
        let awaited: Vec<&str> = awaited.iter().map(|machine| machine.name.as_str()).collect();
        let outlooks = session.views.outlooks_of(&session.namespace, &awaited).await;
        let progress = Progress::of(deployment, &fleet.clone().with_outlooks(outlooks));
        let follow = follow_up(&progress, patience);
        let is_news = shown.as_ref() != Some(&progress);
        if if is_text { is_news } else { follow != Follow::On } {
            output::write(&progress, session.views.source(), &args.of.output, now(), out)?;
            out.flush()?;
        }
        match follow {
            Follow::Done => return Ok(()),
            Follow::Failed(why) => return Err(Failure::Input(why)),
            Follow::On => {}
        }
        shown = Some(progress);
        watched.changed(PAUSE, left).await;
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::cli::plugin::testing::{ago, deployment, fleet};

    fn progress(verdict: Verdict) -> Progress {
        let fleet = fleet();
        Progress { verdict, ..Progress::of(&fleet.deployments[0], &fleet) }
    }

    #[rstest]
    #[case::complete(Verdict::Complete, Patience::Waits, Follow::Done)]
    #[case::complete_in_the_last_moment(Verdict::Complete, Patience::Over(GoDuration::from_secs(1)), Follow::Done)]
    #[case::it_goes_on(Verdict::Progressing, Patience::Waits, Follow::On)]
    #[case::a_single_look(Verdict::Progressing, Patience::Once, Follow::Done)]
    #[case::stuck(Verdict::Progressing, Patience::Over(GoDuration::from_secs(1)),
        Follow::Failed("web is not rolled out after 1s; it waits for web-1-a".to_owned()))]
    #[case::paused(Verdict::Paused, Patience::Waits,
        Follow::Failed("deployment web is paused; kubectl mcm rollout resume web goes on".to_owned()))]
    #[case::paused_and_a_single_look(Verdict::Paused, Patience::Once, Follow::Done)]
    #[case::deleted(Verdict::Deleting, Patience::Waits, Follow::Failed("deployment web is being deleted".to_owned()))]
    #[case::failed(Verdict::Failed, Patience::Once, Follow::Failed(
        "the rollout of web is stuck: MachineSet \"web-2\" is progressing.; it waits for web-1-a".to_owned()))]
    fn pk_073_a_look_decides(#[case] verdict: Verdict, #[case] patience: Patience, #[case] expected: Follow) {
        assert_eq!(follow_up(&progress(verdict), patience), expected);
    }

    #[test]
    fn pk_073_a_change_that_the_manager_has_not_seen_is_waited_for() {
        let fleet = fleet();
        let changed = deployment(
            "web",
            2,
            &json!({ "metadata": { "generation": 5 }, "status": { "conditions": [{
            "type": "Progressing", "status": "True", "reason": "NewMachineSetAvailable", "message": "…",
            "lastTransitionTime": ago(60) }] } }),
        );
        assert_eq!(follow_up(&Progress::of(&changed, &fleet), Patience::Waits), Follow::On);
    }
}
