//! The disruption controller: the status of `PodDisruptionBudgets`.
//!
//! Source: spec/extension-apiserver §6.1, §6.3 no. 5.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use super::Helpers;
use crate::{
    eviction::{covers, is_ready, with_allowance},
    object,
    stand_ins::StandIn,
    store::Collection,
    write_rules::remove,
};

/// The time within which the deletion of an evicted pod must begin, as in the disruption controller of a cluster.
const GRANTED: SignedDuration = SignedDuration::from_secs(120);

impl Helpers {
    /// Updates the status of each budget of a namespace.
    pub(super) fn count_budgets(&self, namespace: &str) {
        if !self.runs(StandIn::Budgets) {
            return;
        }
        let prefix = format!("{namespace}/");
        let Some(served) = self.served(&Collection::new("policy", "poddisruptionbudgets")) else { return };
        let budgets = self.server.store.list(&served.collection, &prefix);
        if budgets.objects.is_empty() {
            return;
        }
        let pods = self.server.store.list(&Collection::new("", "pods"), &prefix);
        for (_, budget) in budgets.objects {
            let covered: Vec<_> = pods.objects.iter().filter(|(_, pod)| covers(&budget.value, &pod.value)).collect();
            let expected = i64::try_from(covered.len()).unwrap_or(i64::MAX);
            let pods: Vec<&Value> = covered.iter().map(|(_, pod)| &pod.value).collect();
            let granted = granted(&budget.value["status"], &pods, self.server.now());
            let is_healthy =
                |pod: &&&Value| is_ready(pod) && !object::is_deleting(pod) && !granted.contains_key(object::name(pod));
            let healthy = pods.iter().filter(is_healthy).count();
            let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
            let desired = desired_healthy(&budget.value["spec"], expected);
            let mut value = budget.whole();
            let mut status = json!({
                "currentHealthy": healthy, "desiredHealthy": desired, "expectedPods": expected,
                "disruptionsAllowed": (healthy - desired).max(0),
                "observedGeneration": budget.value["metadata"]["generation"],
            });
            if !granted.is_empty() {
                status["disruptedPods"] = Value::Object(granted);
            }
            let mut old = budget.value["status"].clone();
            remove(&mut old, "conditions");
            if old != status {
                let known = value["status"]["conditions"].take();
                value["status"] = status;
                value["status"]["conditions"] = known;
                value["status"]["conditions"] = with_allowance(&value, self.server.now());
                let _ = self.server.overwrite(&served, &budget, Some(value));
            }
        }
    }
}

/// The evicted pods in the status of a budget whose deletion has not begun yet. They count as gone, so that no other pod is evicted in their place.
/// An eviction without a deletion within [`GRANTED`] does not count.
fn granted(status: &Value, pods: &[&Value], now: Timestamp) -> Map<String, Value> {
    let waits = |name: &str, since: &Value| {
        let since = since.as_str().and_then(|since| since.parse::<Timestamp>().ok());
        let is_new = since.is_some_and(|since| now.duration_since(since) < GRANTED);
        is_new && pods.iter().any(|pod| object::name(pod) == name && !object::is_deleting(pod))
    };
    let known = status["disruptedPods"].as_object().into_iter().flatten();
    known.filter(|(name, since)| waits(name, since)).map(|(name, since)| (name.clone(), since.clone())).collect()
}

/// The number of pods that must stay healthy.
fn desired_healthy(spec: &Value, expected: i64) -> i64 {
    let share = |value: &Value| -> Option<i64> {
        match value {
            Value::Number(count) => count.as_i64(),
            Value::String(text) => {
                let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
                Some((expected * percent + 99) / 100)
            }
            _ => None,
        }
    };
    if let Some(least) = share(&spec["minAvailable"]) {
        return least;
    }
    share(&spec["maxUnavailable"]).map_or(0, |most| (expected - most).max(0))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::just_now(json!({ "metadata": { "name": "web-1" } }), 1, true)]
    #[case::being_deleted(json!({ "metadata": { "name": "web-1", "deletionTimestamp": "2027-01-15T08:00:01Z" } }), 1, false)]
    #[case::long_ago(json!({ "metadata": { "name": "web-1" } }), 121, false)]
    #[case::deleted(json!({ "metadata": { "name": "web-2" } }), 1, false)]
    fn evictions_whose_pods_are_not_deleted_yet_count(#[case] pod: Value, #[case] seconds: i64, #[case] counts: bool) {
        let since: Timestamp = "2027-01-15T08:00:00Z".parse().unwrap();
        let status = json!({ "disruptedPods": { "web-1": since.to_string() } });
        let now = since + SignedDuration::from_secs(seconds);
        assert_eq!(granted(&status, &[&pod], now).contains_key("web-1"), counts);
    }
}
