//! What a drain has done so far: in memory, per machine, rebuilt by looking again after a restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde::Serialize;

use super::{calls::VolumeAnswer, observe::VolumeIds, step::How, waiting::Waiting};
use crate::times::{after, since};
use controller_runtime::key::ObjectKey;

/// The pods are listed without the driver's word about their volumes after this time.
const FIRST_WORD: Duration = Duration::from_secs(30);
/// Pause before a driver is asked again what a volume is called; it doubles with each failure.
const NAME_AGAIN: Duration = Duration::from_secs(1);
/// Longest such pause.
const NAME_AGAIN_AT_LEAST: Duration = Duration::from_secs(30);

/// What a drain has done so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    /// Pods of this attempt by UID. Pods that come later are not part of it (MC-226).
    pub pods: BTreeMap<String, PodProgress>,
    /// Whether the attempt's pods have been listed.
    pub listed: Listed,
    /// What the attempt before left behind.
    pub before: Option<Leftover>,
    /// Volumes that did not detach in time; they stay tracked until they do (M-43).
    pub lingering: BTreeSet<String>,
    /// Claims by PV, remembered because the pod is gone when its volume is looked for.
    #[serde(skip)]
    pub claims: BTreeMap<String, Vec<ObjectKey>>,
    /// The provider's ids by PV, as far as the driver has told; none when the volume is not the provider's.
    pub volume_ids: VolumeIds,
    /// PVs of which the driver has not told whose they are.
    pub unnamed: BTreeMap<String, Unnamed>,
}

/// A PV of which the driver has not told yet whose it is. Until then it may be the provider's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unnamed {
    /// When the driver was asked for the first time.
    pub since: Timestamp,
    /// What the volume is probably called: its own handle, or the name of the PV.
    pub handle: String,
    /// Calls that failed.
    pub failures: u32,
    /// When to ask again; absent while a call is under way.
    pub next_try: Option<Timestamp>,
}

/// How an attempt stands against the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Attempt {
    /// It is the first one, has got further, or waits for somebody else.
    #[default]
    New,
    /// It only tries again what the one before has failed with: no pod has gone since, and it waits for nobody else.
    Again,
}

/// Why an attempt failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// In words.
    pub text: String,
    /// Pods, budgets and volumes that it failed on.
    pub on: BTreeSet<String>,
}

impl From<&str> for Failure {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), on: BTreeSet::new() }
    }
}

/// So many names are told.
const NAMED: usize = 5;

impl Failure {
    /// What the node has still to be rid of, behind these words.
    pub fn named_behind(&self, words: &str) -> String {
        let names: Vec<&str> = self.on.iter().take(NAMED).map(String::as_str).collect();
        match (names.is_empty(), self.on.len().saturating_sub(NAMED)) {
            (true, _) => words.to_owned(),
            (false, 0) => format!("{words} ({})", names.join(", ")),
            (false, more) => format!("{words} ({} and {more} more)", names.join(", ")),
        }
    }
}

/// What an attempt left behind that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leftover {
    /// Pods that had not gone.
    pub pods: usize,
    /// Pods, budgets and volumes that it failed on.
    pub failed_on: BTreeSet<String>,
}

/// Whether the pods of an attempt have been listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Listed {
    /// No.
    #[default]
    No,
    /// Yes.
    Yes,
}

/// What has been done about a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PodProgress {
    /// Name for messages.
    pub name: String,
    /// Its PVs that are tracked.
    pub volumes: Vec<String>,
    /// What was asked for and is not answered yet.
    pub asked: Option<How>,
    /// Evictions that were refused, by a budget or with an error.
    pub refusals: u32,
    /// When a budget refused for the first time.
    pub refused_since: Option<Timestamp>,
    /// When to try again.
    pub next_try: Option<Timestamp>,
    /// The budgets that refused last.
    pub refused_by: Option<String>,
    /// When eviction or deletion was accepted.
    pub accepted: Option<Timestamp>,
    /// When its volumes were found detached.
    pub detached: Option<Timestamp>,
    /// How it ended.
    pub end: Option<End>,
}

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum End {
    /// It is gone, its volumes too as far as they are waited for.
    Done,
    /// It can't be moved in this attempt.
    Failed(String),
}

/// What the API server said to an eviction or deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodAnswer {
    /// Accepted.
    Accepted,
    /// The pod is gone, or another one has its name.
    Gone,
    /// A budget refuses.
    Refused,
    /// The server is busy; again after this time.
    Busy(std::time::Duration),
    /// Something else.
    Failed(String),
}

impl Progress {
    /// A new attempt that still remembers volumes which lingered.
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

    /// Pods that have not gone.
    fn left(&self) -> usize {
        self.pods.values().filter(|pod| pod.end != Some(End::Done)).count()
    }

    /// Whether an eviction of this attempt was refused, by a budget or with an error.
    pub fn was_refused(&self) -> bool {
        self.pods.values().any(|pod| pod.refusals > 0)
    }

    /// How the attempt stands against the one before, now that it waits for this.
    pub fn attempt(&self, waiting: Option<&Waiting>) -> Attempt {
        let Some(before) = &self.before else { return Attempt::New };
        let has_headway = self.listed == Listed::Yes && self.left() < before.pods;
        // Names of volumes are asked for by every attempt and tell nothing by themselves.
        let names = waiting.map(Waiting::names).unwrap_or_default();
        let is_known = names.is_empty() || names.iter().any(|name| before.failed_on.contains(*name));
        if has_headway || !is_known { Attempt::New } else { Attempt::Again }
    }

    /// The names that the attempt fails on: of pods that can't be moved; if there are none, of those that have not gone in time.
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

    /// Whether the first word of the driver about a volume is still waited for: before, nobody knows which pods go one after
    /// the other.
    pub fn awaits_names(&self, now: Timestamp) -> bool {
        self.unnamed.values().any(|volume| volume.failures == 0 && since(now, volume.since) < FIRST_WORD)
    }

    /// Takes in what the driver said of a volume.
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
                    let pause = NAME_AGAIN.saturating_mul(2_u32.saturating_pow(unnamed.failures.min(8)));
                    unnamed.failures = unnamed.failures.saturating_add(1);
                    unnamed.next_try = Some(after(now, pause.min(NAME_AGAIN_AT_LEAST) + spread(volume)));
                }
            }
        }
    }

    /// Volumes that the driver is to be asked about again, now.
    pub fn due_for_naming(&self, now: Timestamp) -> Vec<String> {
        let due = |unnamed: &Unnamed| unnamed.next_try.is_some_and(|at| at <= now);
        self.unnamed.iter().filter(|(_, unnamed)| due(unnamed)).map(|(name, _)| name.clone()).collect()
    }

    /// When the driver is to be asked again about some volume.
    pub fn next_naming(&self) -> Option<Timestamp> {
        self.unnamed.values().filter_map(|unnamed| unnamed.next_try).min()
    }

    /// The ids of volumes by PV, with what those are probably called of which the driver has not told: they are waited for
    /// until it does.
    pub fn ids(&self) -> VolumeIds {
        let mut ids = self.volume_ids.clone();
        ids.extend(self.unnamed.iter().map(|(name, unnamed)| (name.clone(), vec![unnamed.handle.clone()])));
        ids
    }

    /// The volume turned out not to be the provider's: nobody waits for it any more.
    fn untrack(&mut self, volume: &str) {
        self.lingering.remove(volume);
        for pod in self.pods.values_mut() {
            pod.volumes.retain(|name| name != volume);
        }
    }

    /// PVs whose place matters beyond the pods that are still there.
    pub fn tracked_volumes(&self) -> impl Iterator<Item = String> + '_ {
        let of_pods = self.pods.values().filter(|pod| pod.end.is_none()).flat_map(|pod| pod.volumes.iter().cloned());
        of_pods.chain(self.lingering.iter().cloned())
    }

    /// The claims that a PV was used through.
    pub fn claims_of(&self, pv: &str) -> Vec<ObjectKey> {
        self.claims.get(pv).cloned().unwrap_or_default()
    }
}

/// A part of a second that differs from volume to volume, so that the volumes of a node are not asked about in one moment.
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

    /// A pod with a volume that the driver was asked about.
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
    fn a_volume_that_nobody_has_named_is_waited_for_by_its_own_handle() {
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
        Progress { pods, listed: Listed::Yes, ..Progress::default() }
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
        let next = Progress { pods: left(pods).pods, listed: Listed::Yes, ..left(pods).next_attempt() };
        assert_eq!(next.attempt(waiting.as_ref()), expected);
        let further = Progress { pods: left(&pods[..1]).pods, ..next };
        assert_eq!(further.attempt(waiting.as_ref()), Attempt::New, "a pod has gone");
        assert_eq!(left(pods).attempt(waiting.as_ref()), Attempt::New, "the first one");
    }

    #[test]
    fn an_attempt_whose_time_ran_out_failed_on_all_that_is_left() {
        let pods: &[(&str, Option<End>)] = &[("gone", Some(End::Done)), ("slow", None)];
        let next = Progress { listed: Listed::Yes, pods: left(&pods[1..]).pods, ..left(pods).next_attempt() };
        assert_eq!(next.attempt(Some(&terminating("slow"))), Attempt::Again);
        assert_eq!(next.attempt(Some(&terminating("gone"))), Attempt::New);
    }
}
