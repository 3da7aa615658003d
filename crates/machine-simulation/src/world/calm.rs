//! The calm phase after random steps, and hours in which something is refused without other faults: everything due is
//! done, and the time advances to the next event.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    super::{
        api::KINDS,
        calls::PlannedFault,
        classes, edits,
        history::Luck,
        nodes, pods,
        process::{Process, Work, later},
        refusals::Refused,
        rest, tampering,
    },
    World,
};
use machine_controllers::loops::Controller;

/// How long a driver call takes in the calm phase.
const CALL_TIME: Duration = Duration::from_secs(2);
/// Maximum time from the end of the random steps until everything is at rest.
const CALM: Duration = Duration::from_secs(6 * 3600);
/// Maximum pause before a refused write is repeated.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// More passes than needed to come to rest: drains check their pods every few seconds, and budgets may refuse for
/// hours.
const MOST_PASSES: u32 = 40_000;

impl World {
    /// Ends all faults, heals everything that can heal, and waits until everything is at rest.
    pub fn calm(&mut self) {
        self.say(|| "the weather clears".to_owned());
        while let Some((job, pass)) = self.leader.take_open(0) {
            self.pass(job, Work::GoOn(pass), None);
        }
        self.thaws();
        edits::resume(&mut self.api, &mut self.checks);
        self.stale = None;
        self.end_dropped(Timestamp::MAX);
        nodes::heal(&mut self.api, &self.cloud, self.now);
        tampering::mend_labels(&mut self.api);
        let deadline = later(self.now, CALM);
        let mut passes = 0;
        while !self.is_violated() {
            self.do_what_is_due(&mut passes);
            let Some(next) = self.next_event() else {
                if self.is_all_done() {
                    break;
                }
                continue;
            };
            if next > deadline {
                return self.never_rests(passes);
            }
            self.now = next.max(self.now);
        }
        if !self.is_violated() {
            self.check_rest();
        }
    }

    fn never_rests(&mut self, passes: u32) {
        let text = rest::differences(&self.api, &self.cloud).join("; ");
        self.checks.violated("nothing comes to rest", || format!("{passes} passes since the storm; {text}"));
    }

    /// Refuses something for hours. Everything else continues without faults, and the cost is counted.
    pub(super) fn refuse(&mut self, refused: Refused, hours: u8) {
        // No pass takes hours.
        while let Some((job, pass)) = self.leader.take_open(0) {
            self.pass(job, Work::GoOn(pass), None);
        }
        self.thaws();
        self.say(|| format!("for {hours} hours the API server refuses {refused:?}"));
        self.refused = Some(refused);
        let mut passes = 0;
        let end = later(self.now, Duration::from_secs(3600) * u32::from(hours));
        while !self.is_violated() {
            self.do_what_is_due(&mut passes);
            match self.next_event().filter(|next| *next < end) {
                Some(next) => self.now = next.max(self.now),
                None => break,
            }
        }
        self.now = end.max(self.now);
        self.refused = None;
        self.checks.costs.count(None);
    }

    /// Delivers all events, and does everything that is due now.
    fn do_what_is_due(&mut self, passes: &mut u32) {
        loop {
            for kind in 0..KINDS {
                self.leader.watch(&self.api, kind, usize::MAX, self.now);
            }
            if *passes > MOST_PASSES {
                return self.never_rests(*passes);
            }
            if self.is_violated() || !self.calm_step(passes) {
                return;
            }
            self.the_other_replica_goes_on();
            self.checks.after_step(&self.api);
        }
    }

    /// A process that has lost the lease during a pass continues that pass, and then runs a pass over everything.
    fn the_other_replica_goes_on(&mut self) {
        let jobs = self.stale.as_ref().map_or(0, |process| process.all_jobs().len() + process.held_up());
        for pick in 0..jobs {
            self.stale_pass(u16::try_from(pick).unwrap_or(u16::MAX));
        }
        self.stale = None;
    }

    /// Runs everything that is due now. Returns whether anything was due.
    fn calm_step(&mut self, passes: &mut u32) -> bool {
        let mut moved = false;
        let began: Vec<Timestamp> = self.leader.calls_began().collect();
        for (place, began) in began.into_iter().enumerate().rev() {
            if later(began, CALL_TIME) <= self.now {
                self.calls.driver += 1;
                moved = true;
                if let Some(PlannedFault::DriverCall(number, dropped)) = self.planned_fault
                    && number + 1 == self.calls.driver
                {
                    self.say(|| format!("the process dies before a driver call ends ({dropped:?})"));
                    self.drop_calls(dropped);
                    self.restart();
                    break;
                }
                self.end_some_call(u16::try_from(place).unwrap_or(0), Luck::Good);
            }
        }
        let joining: Vec<String> =
            self.cloud.vms.iter().filter(|(_, vm)| vm.joins_at <= self.now).map(|(id, _)| id.clone()).collect();
        for id in joining {
            if let Some(name) = nodes::join(&mut self.api, &self.cloud, &id, self.now) {
                self.say(|| format!("node {name} joins"));
                self.deliver_pods();
                moved = true;
            }
        }
        self.end_dropped(self.now);
        moved |= self.collect();
        moved |= pods::end(&mut self.api, self.config.pods_end_in, self.now);
        moved |= self.move_volumes();
        if classes::make_missing(&mut self.api, self.now) {
            self.say(|| "a user makes the classes and Secrets that are missing".to_owned());
            self.deliver_classes();
            moved = true;
        }
        if nodes::go_on_updating(&mut self.api) {
            self.say(|| "nodes are updated".to_owned());
            moved = true;
        }
        // One loop after the other: deployments and sets have a pause between passes while machines change.
        let due = self.leader.due(self.now);
        let is_due = |of: &Controller| due.iter().any(|job| job.0 == *of);
        if let Some(of) =
            [Controller::Machine, Controller::MachineSet, Controller::MachineDeployment].into_iter().find(is_due)
        {
            for job in due.into_iter().filter(|job| job.0 == of) {
                self.pass(job, Work::Pass, None);
                *passes += 1;
            }
            moved = true;
        }
        for job in self.finalizers_due() {
            self.pass(job, Work::Pass, None);
            *passes += 1;
            moved = true;
        }
        moved
    }

    /// Whether everything is at rest: neither the overshoot guard nor a user has anything to do.
    fn is_all_done(&mut self) -> bool {
        let changes = self.api.changes;
        let vms = self.cloud.vms.len();
        // By then every refused write of the guard is due again.
        self.now = later(self.now, LONGEST_PAUSE);
        self.collect();
        self.pass(Process::guard_job(), Work::Pass, None);
        if tampering::go_on_picking(&mut self.api, &mut self.checks) {
            self.say(|| "a user picks the next node".to_owned());
        }
        if tampering::sweep(&mut self.api, self.now) {
            self.say(|| "machines without owner are deleted".to_owned());
        }
        self.api.changes == changes && self.cloud.vms.len() == vms && self.leader.next_collection().is_none()
    }

    fn next_event(&self) -> Option<Timestamp> {
        let calls = self.leader.calls_began().map(|began| later(began, CALL_TIME)).min();
        let joins = self
            .cloud
            .vms
            .iter()
            .filter(|(_, vm)| vm.joins_at != Timestamp::MAX && !self.api.nodes.contains_key(&vm.node))
            .map(|(_, vm)| vm.joins_at)
            .min();
        let shown = self.cloud.vms.values().map(|vm| vm.shown).filter(|shown| *shown > self.now).min();
        let pods = pods::next_end(&self.api, self.config.pods_end_in);
        let dropped = self.cloud.next_dropped_end();
        let volumes = self.volumes.next(&self.api);
        let finalizers = self.leader.finalizers().map(|(_, at)| at).min().filter(|_| self.classes_change);
        [calls, joins, shown, pods, volumes, finalizers, dropped, self.leader.next_collection(), self.leader.next_due()]
            .into_iter()
            .flatten()
            .min()
    }

    fn check_rest(&mut self) {
        let unlike = rest::differences(&self.api, &self.cloud);
        if !unlike.is_empty() {
            self.checks.violated("the rest is not what the specification wants", || unlike.join("; "));
            return;
        }
        self.say(|| "everything is at rest".to_owned());
        let changes = self.api.changes;
        let finalizers = if self.classes_change { self.leader.all_finalizers() } else { Vec::new() };
        for job in self.leader.all_jobs().into_iter().chain(finalizers) {
            self.pass(job, Work::Pass, None);
        }
        if self.api.changes != changes {
            self.checks.violated("something is written although everything is at rest", String::new);
        }
        self.checks.at_rest(&self.api);
    }
}
