//! Reads the clock each second, so that a step is noticed when no other part reads the clock, and reports its state.

use std::{sync::Arc, time::Duration};

use super::Common;
use crate::server::Gate;
use controller_runtime::{
    clock::ClockTrouble,
    supervisor::{Stage, Supervisor},
};

/// Name of the check in `/readyz?verbose`.
const CHECK: &str = "clock";
/// Pause between two reads.
const TICK: Duration = Duration::from_secs(1);

/// Starts the task.
pub(super) fn start(common: &Arc<Common>, tasks: &mut Supervisor) {
    let (common, stop) = (Arc::clone(common), tasks.stop_of(Stage::Support));
    let check = common.health.check(CHECK, Gate::None, "not looked at yet");
    tasks.spawn(Stage::Support, "clock", async move {
        let (mut steps, mut apart) = (0, false);
        while !stop.is_cancelled() {
            let reading = common.clock.reading();
            common.metrics.clock.offset.set(&(), reading.offset.as_secs_f64());
            common.metrics.clock.steps.add(&(), reading.steps.saturating_sub(steps));
            steps = reading.steps;
            let trouble = reading.trouble();
            match trouble {
                None => check.pass(),
                Some(trouble) => check.fail(&in_words(trouble)),
            }
            let is_apart = matches!(trouble, Some(ClockTrouble::Apart(_)));
            if let Some(trouble) = trouble.filter(|_| is_apart && !apart) {
                tracing::error!(error = in_words(trouble), "the clock can't be trusted");
            } else if apart && !is_apart {
                tracing::info!("the clocks of this host and of the API server agree again");
            }
            apart = is_apart;
            let _ = stop.run_until_cancelled(tokio::time::sleep(TICK)).await;
        }
    });
}

fn in_words(trouble: ClockTrouble) -> String {
    match trouble {
        ClockTrouble::Apart(offset) => format!(
            "this host's clock is {:#} {} the control API server's: set the wrong one right (NTP); no VM is made, no \
             verdict is given and no certificate is made until they agree within five minutes",
            offset.abs(),
            if offset.is_negative() { "ahead of" } else { "behind" },
        ),
        ClockTrouble::Stepped => "the clock was set: verdicts and creations rest for a minute".to_owned(),
    }
}
