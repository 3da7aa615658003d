//! The progress of a drain: in memory, per machine; built again from the cluster after a restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde::Serialize;

use super::{calls::VolumeAnswer, observe::VolumeIds, step::How, waiting::Waiting};
use crate::times::{after, since};
use controller_runtime::key::ObjectKey;

/// Time after which the pods are listed even without an answer of the driver about their volumes.
const FIRST_ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Pause before a driver is asked again for the names of a volume; it doubles with each failure.
const NAMING_PAUSE: Duration = Duration::from_secs(1);
/// Maximum of that pause.
const LONGEST_NAMING_PAUSE: Duration = Duration::from_secs(30);

/// The progress of a drain.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    /// Pods of this attempt by UID. Pods that arrive later are not part of it (MC-226).
    pub pods: BTreeMap<String, PodProgress>,
    /// Whether the attempt's pods have been listed.
    pub is_listed: bool,
    /// The remains of the previous attempt.
    pub before: Option<Leftover>,
    /// Volumes that did not detach in time. They stay tracked until they detach (M-43).
    pub lingering: BTreeSet<String>,
    /// Claims by PV. They are remembered because the pod is gone while its volume is still tracked.
    #[serde(skip)]
    pub claims: BTreeMap<String, Vec<ObjectKey>>,
    /// The provider's ids by PV, as far as the driver has answered. Empty if the volume does not belong to the
    /// provider.
    pub volume_ids: VolumeIds,
    /// PVs about which the driver has not answered yet.
    pub unnamed: BTreeMap<String, Unnamed>,
}

/// A PV about which the driver has not answered yet. Until then it may belong to the provider.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unnamed {
    /// When the driver was asked for the first time.
    pub since: Timestamp,
    /// The probable id of the volume: its handle, or the name of the PV.
    pub handle: String,
    /// Calls that failed.
    pub failures: u32,
    /// When to ask again; `None` during a call.
    pub next_try: Option<Timestamp>,
}

/// How an attempt compares with the previous one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Attempt {
    /// It is the first attempt, has made progress, or waits for something else.
    #[default]
    New,
    /// It only repeats what the previous attempt failed on: no further pod has gone, and it waits for nothing else.
    Again,
}

/// Why an attempt failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The message.
    pub text: String,
    /// Pods, budgets and volumes on which it failed.
    pub on: BTreeSet<String>,
}

impl From<&str> for Failure {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), on: BTreeSet::new() }
    }
}

/// Maximum number of names in a message.
const NAMED: usize = 5;

impl Failure {
    /// The message of what is left on the node: `words` followed by the names.
    pub fn named_behind(&self, words: &str) -> String {
        let names: Vec<&str> = self.on.iter().take(NAMED).map(String::as_str).collect();
        match (names.is_empty(), self.on.len().saturating_sub(NAMED)) {
            (true, _) => words.to_owned(),
            (false, 0) => format!("{words} ({})", names.join(", ")),
            (false, more) => format!("{words} ({} and {more} more)", names.join(", ")),
        }
    }
}

/// The remains of an attempt that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leftover {
    /// Number of pods that were not gone.
    pub pods: usize,
    /// Pods, budgets and volumes on which it failed.
    pub failed_on: BTreeSet<String>,
}

/// The progress of a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PodProgress {
    /// Name in messages.
    pub name: String,
    /// Its tracked PVs.
    pub volumes: Vec<String>,
    /// The request that is not answered yet.
    pub asked: Option<How>,
    /// Number of evictions refused by a budget or with an error.
    pub refusals: u32,
    /// When a budget refused for the first time.
    pub refused_since: Option<Timestamp>,
    /// When to try again.
    pub next_try: Option<Timestamp>,
    /// The budgets that refused the last eviction.
    pub refused_by: Option<String>,
    /// When eviction or deletion was accepted.
    pub accepted: Option<Timestamp>,
    /// When its volumes were first observed as detached.
    pub detached: Option<Timestamp>,
    /// How it ended, if it has ended.
    pub end: Option<End>,
}

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum End {
    /// It is gone, and so are the volumes that the drain waits for.
    Done,
    /// It can't be moved in this attempt.
    Failed(String),
}

/// The API server's answer to an eviction or deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodAnswer {
    /// Accepted.
    Accepted,
    /// The pod is gone, or another pod has its name.
    Gone,
    /// A budget refuses the eviction.
    Refused,
    /// The server is busy; try again after this time.
    Busy(std::time::Duration),
    /// Another error.
    Failed(String),
}

impl Progress {
    /// A new attempt, which keeps the volumes that did not detach in time.
    #[must_use]
    pub fn next_attempt(&self) -> Self {
        Self {
            before: Some(Leftover { pods: self.left(), failed_on: self.failed_on() }),
            lingering: self.lingering.clone(),
            claims: self.claims.clone(),
            volume_ids: self.volume_ids.clone(),
            unnamed: self.unnamed.clone(),
            ..Self::default()
        }
    }

    /// Number of pods that are not gone.
    fn left(&self) -> usize {
        self.pods.values().filter(|pod| pod.end != Some(End::Done)).count()
    }

    /// Whether a budget or an error has refused an eviction in this attempt.
    pub fn was_refused(&self) -> bool {
        self.pods.values().any(|pod| pod.refusals > 0)
    }

    /// Compares the attempt with the previous one, given what it waits for now.
    pub fn attempt(&self, waiting: Option<&Waiting>) -> Attempt {
        let Some(before) = &self.before else { return Attempt::New };
        let has_headway = self.is_listed && self.left() < before.pods;
        // Every attempt asks for the names of volumes, so waiting for them is no difference.
        let names = waiting.map(Waiting::names).unwrap_or_default();
        let is_known = names.is_empty() || names.iter().any(|name| before.failed_on.contains(*name));
        if has_headway || !is_known { Attempt::New } else { Attempt::Again }
    }

    /// The names on which the attempt fails: of pods that can't be moved; without such pods, of pods that are not gone
    /// in time.
    pub(super) fn failed_on(&self) -> BTreeSet<String> {
        let is_stuck = |pod: &&PodProgress| matches!(pod.end, Some(End::Failed(_)));
        let mut stuck: Vec<&PodProgress> = self.pods.values().filter(is_stuck).collect();
        if stuck.is_empty() {
            stuck = self.pods.values().filter(|pod| pod.end.is_none()).collect();
        }
        let of_pods = stuck
            .into_iter()
            .flat_map(|pod| std::iter::once(&pod.name).chain(&pod.refused_by).chain(&pod.volumes).cloned());
        of_pods.chain(self.lingering.iter().cloned()).collect()
    }

    /// Whether to wait for the driver's first answer about a volume. Before that it is unknown which pods must be
    /// evicted alone.
    pub fn awaits_names(&self, now: Timestamp) -> bool {
        self.unnamed.values().any(|volume| volume.failures == 0 && since(now, volume.since) < FIRST_ANSWER_WITHIN)
    }

    /// Records the driver's answer about a volume.
    pub fn named(&mut self, volume: &str, answer: VolumeAnswer, now: Timestamp) {
        match answer {
            VolumeAnswer::Ids(ids) => {
                self.unnamed.remove(volume);
                if ids.is_empty() {
                    self.untrack(volume);
                }
                self.volume_ids.insert(volume.to_owned(), ids);
            }
            VolumeAnswer::Later => {
                if let Some(unnamed) = self.unnamed.get_mut(volume) {
                    let pause = NAMING_PAUSE.saturating_mul(2_u32.saturating_pow(unnamed.failures.min(8)));
                    unnamed.failures = unnamed.failures.saturating_add(1);
                    unnamed.next_try = Some(after(now, pause.min(LONGEST_NAMING_PAUSE) + spread(volume)));
                }
            }
        }
    }

    /// Volumes about which the driver must be asked again now.
    pub fn due_for_naming(&self, now: Timestamp) -> Vec<String> {
        let due = |unnamed: &Unnamed| unnamed.next_try.is_some_and(|at| at <= now);
        self.unnamed.iter().filter(|(_, unnamed)| due(unnamed)).map(|(name, _)| name.clone()).collect()
    }

    /// The next time at which the driver must be asked about a volume.
    pub fn next_naming(&self) -> Option<Timestamp> {
        self.unnamed.values().filter_map(|unnamed| unnamed.next_try).min()
    }

    /// The ids of volumes by PV. Volumes about which the driver has not answered have their probable id, so that the
    /// drain waits for them.
    pub fn ids(&self) -> VolumeIds {
        let mut ids = self.volume_ids.clone();
        ids.extend(self.unnamed.iter().map(|(name, unnamed)| (name.clone(), vec![unnamed.handle.clone()])));
        ids
    }

    /// Stops tracking a volume that does not belong to the provider.
    fn untrack(&mut self, volume: &str) {
        self.lingering.remove(volume);
        for pod in self.pods.values_mut() {
            pod.volumes.retain(|name| name != volume);
        }
    }

    /// PVs whose place matters even when their pods are gone.
    pub fn tracked_volumes(&self) -> impl Iterator<Item = String> + '_ {
        let of_pods = self.pods.values().filter(|pod| pod.end.is_none()).flat_map(|pod| pod.volumes.iter().cloned());
        of_pods.chain(self.lingering.iter().cloned())
    }

    /// The claims through which a PV was used.
    pub fn claims_of(&self, pv: &str) -> Vec<ObjectKey> {
        self.claims.get(pv).cloned().unwrap_or_default()
    }
}

/// A fraction of a second that depends on the volume, so that the driver is not asked about all volumes of a node at
/// the same moment.
fn spread(volume: &str) -> Duration {
    Duration::from_millis(volume.bytes().fold(0_u64, |sum, byte| (sum * 31 + u64::from(byte)) % 1000))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    /// A pod with a volume about which the driver was asked.
    fn asked() -> Progress {
        let unnamed = Unnamed { since: at(0), handle: "vol-1".to_owned(), failures: 0, next_try: None };
        let pod = PodProgress { volumes: vec!["pv-1".to_owned()], ..PodProgress::default() };
        Progress {
            pods: BTreeMap::from([("a".to_owned(), pod)]),
            unnamed: BTreeMap::from([("pv-1".to_owned(), unnamed)]),
            lingering: BTreeSet::from(["pv-1".to_owned()]),
            ..Progress::default()
        }
    }

    #[test]
    fn an_unnamed_volume_is_waited_for_by_its_own_handle() {
        assert_eq!(asked().ids()["pv-1"], ["vol-1"]);
    }

    #[test]
    fn a_driver_that_is_throttled_is_asked_again_ever_more_slowly() {
        let mut progress = asked();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            progress.named("pv-1", VolumeAnswer::Later, at(0));
            let next = progress.next_naming().unwrap();
            pauses.push(since(next, at(0)).as_secs());
            assert!(progress.due_for_naming(at(0)).is_empty());
            assert_eq!(progress.due_for_naming(next), ["pv-1"]);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(progress.ids()["pv-1"], ["vol-1"], "it may be the provider's");
    }

    #[test]
    fn a_volume_that_is_not_the_providers_is_waited_for_no_longer() {
        let mut progress = asked();
        progress.named("pv-1", VolumeAnswer::Ids(Vec::new()), at(1));
        assert!(progress.ids()["pv-1"].is_empty() && progress.pods["a"].volumes.is_empty());
        assert!(progress.lingering.is_empty() && progress.next_naming().is_none());
    }

    #[test]
    fn the_pods_are_not_listed_before_the_first_word_about_their_volumes_or_half_a_minute() {
        let mut progress = asked();
        assert!(progress.awaits_names(at(29)) && !progress.awaits_names(at(30)));
        progress.named("pv-1", VolumeAnswer::Later, at(1));
        assert!(!progress.awaits_names(at(1)));
    }

    fn left(pods: &[(&str, Option<End>)]) -> Progress {
        let pod = |name: &str, end: &Option<End>| PodProgress {
            name: name.to_owned(),
            volumes: vec![format!("pv-of-{name}")],
            refused_by: Some("ns/b".to_owned()),
            end: end.clone(),
            ..PodProgress::default()
        };
        let pods = pods.iter().map(|(name, end)| ((*name).to_owned(), pod(name, end))).collect();
        Progress { pods, is_listed: true, ..Progress::default() }
    }

    fn held_by(budget: &str) -> Waiting {
        let (pod, budget) = ("stuck".to_owned(), budget.to_owned());
        Waiting::Budget { pod, budget, held: 1, since: Timestamp::UNIX_EPOCH }
    }

    fn terminating(pod: &str) -> Waiting {
        Waiting::Pod { pod: pod.to_owned(), since: Timestamp::UNIX_EPOCH, until: Timestamp::UNIX_EPOCH }
    }

    fn detaching(volume: &str) -> Waiting {
        let (since, until) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        Waiting::Detach { volume: volume.to_owned(), pod: "another".to_owned(), since, until }
    }

    #[rstest]
    #[case::its_pods_are_asked_to_go(None, Attempt::Again)]
    #[case::names_of_volumes_tell_nothing(Some(Waiting::VolumeNames), Attempt::Again)]
    #[case::for_the_pod_that_failed(Some(terminating("stuck")), Attempt::Again)]
    #[case::for_the_volume_of_that_pod(Some(detaching("pv-of-stuck")), Attempt::Again)]
    #[case::for_a_pod_that_had_not_failed(Some(terminating("slow")), Attempt::New)]
    #[case::for_the_budget_that_refused_that_pod(Some(held_by("ns/b")), Attempt::Again)]
    #[case::for_a_budget_that_holds_that_pod_now(Some(held_by("ns/other")), Attempt::New)]
    #[case::for_a_pod_with_a_longer_name(Some(terminating("stuck-1")), Attempt::New)]
    fn an_attempt_after_one_that_failed(#[case] waiting: Option<Waiting>, #[case] expected: Attempt) {
        let pods: &[(&str, Option<End>)] = &[("stuck", Some(End::Failed("no".to_owned()))), ("slow", None)];
        let next = Progress { pods: left(pods).pods, is_listed: true, ..left(pods).next_attempt() };
        assert_eq!(next.attempt(waiting.as_ref()), expected);
        let further = Progress { pods: left(&pods[..1]).pods, ..next };
        assert_eq!(further.attempt(waiting.as_ref()), Attempt::New, "a pod has gone");
        assert_eq!(left(pods).attempt(waiting.as_ref()), Attempt::New, "the first one");
    }

    #[test]
    fn an_attempt_whose_time_ran_out_failed_on_all_that_is_left() {
        let pods: &[(&str, Option<End>)] = &[("gone", Some(End::Done)), ("slow", None)];
        let next = Progress { is_listed: true, pods: left(&pods[1..]).pods, ..left(pods).next_attempt() };
        assert_eq!(next.attempt(Some(&terminating("slow"))), Attempt::Again);
        assert_eq!(next.attempt(Some(&terminating("gone"))), Attempt::New);
    }
}
