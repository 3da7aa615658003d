//! Budgets of disruptions, counted as their controller counts them.
//!
//! Source: spec/extension-apiserver §6.1, §6.3 no. 5.

use serde_json::{Value, json};

use super::Helpers;
use crate::{
    eviction::{covers, is_ready, with_allowance},
    object,
    stand_ins::StandIn,
    store::Collection,
    write_rules::remove,
};

impl Helpers {
    /// How many pods each budget of a namespace can lose.
    pub(super) fn count_budgets(&self, namespace: &str) {
        if !self.stands_in_for(StandIn::Budgets) {
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
            let healthy =
                covered.iter().filter(|(_, pod)| is_ready(&pod.value) && !object::is_deleting(&pod.value)).count();
            let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
            let desired = desired_healthy(&budget.value["spec"], expected);
            let mut value = budget.whole();
            let status = json!({
                "currentHealthy": healthy, "desiredHealthy": desired, "expectedPods": expected,
                "disruptionsAllowed": (healthy - desired).max(0),
                "observedGeneration": budget.value["metadata"]["generation"],
            });
            let mut old = budget.value["status"].clone();
            remove(&mut old, "disruptedPods");
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

/// The pods that must stay healthy.
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
