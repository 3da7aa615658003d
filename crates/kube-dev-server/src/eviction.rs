//! Evictions and bindings of pods.
//!
//! Source: spec/extension-apiserver §6.3 no. 5.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    object::{self, text, time},
    server::{Answer, Call, Server},
    store::{Collection, Stored},
};
use kube_protocol::{
    options::{DeleteOptions, DryRun, WriteOptions},
    request::Query,
    status::ApiStatus,
};
use kube_values::selector;

/// The request of an eviction.
struct Eviction {
    /// The options of the deletion of the pod.
    options: Value,
    /// Whether the query or the options ask for a dry run.
    dry_run: DryRun,
}

impl Eviction {
    fn read(call: &Call<'_>) -> Result<Self, ApiStatus> {
        let body = call.decoded()?;
        let (kind, name) = (text(&body, "/kind"), text(&body, "/metadata/name"));
        // Some clients send no kind. The URL is sufficient.
        if !kind.is_empty() && kind != "Eviction" {
            let why = format!("an eviction wants a body of kind Eviction, here {kind:?}");
            return Err(ApiStatus::bad_request(why));
        }
        if name != call.name() {
            return Err(ApiStatus::bad_request("name in URL does not match name in Eviction object"));
        }
        let options = match &body["deleteOptions"] {
            Value::Null => json!({}),
            options @ Value::Object(_) => options.clone(),
            _ => return Err(ApiStatus::bad_request("deleteOptions of an eviction must be an object")),
        };
        // Invalid options are refused before the eviction has an effect.
        let deletion = DeleteOptions::parse(&Query::default(), Some(&options))?;
        let write = WriteOptions::parse(call.query, "CreateOptions")?;
        let dry_run = if deletion.dry_run == DryRun::All { DryRun::All } else { write.dry_run };
        Ok(Self { options, dry_run })
    }

    /// Checks the preconditions.
    fn check_preconditions(&self, call: &Call<'_>, pod: &Value) -> Result<(), ApiStatus> {
        for (field, is) in [("uid", object::uid(pod)), ("resourceVersion", text(pod, "/metadata/resourceVersion"))] {
            let wanted = self.options["preconditions"][field].as_str().unwrap_or_default();
            if !wanted.is_empty() && wanted != is {
                let word = if field == "uid" { "UID" } else { "ResourceVersion" };
                let why = format!(
                    "the {word} in the precondition ({wanted}) does not match the {word} in record ({is}). The object \
                     might have been modified, or deleted and then recreated"
                );
                return Err(ApiStatus::conflict("", "pods", call.name(), &why));
            }
        }
        Ok(())
    }
}

impl Server {
    pub(super) async fn evict(&self, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        let eviction = Eviction::read(call)?;
        let pod = self.store.get(&call.served.collection, &call.key()).ok_or_else(|| call.not_found())?;
        eviction.check_preconditions(call, &pod.value)?;
        let terminal = matches!(text(&pod.value, "/status/phase"), "Succeeded" | "Failed" | "Pending");
        if !terminal && !object::is_deleting(&pod.value) {
            self.take_from_budget(call, &pod.value, eviction.dry_run)?;
        }
        let mut options = eviction.options;
        if eviction.dry_run == DryRun::All {
            options["dryRun"] = json!(["All"]);
        } else if let Some(revision) = self.mark_disrupted(call, &pod)
            && options["preconditions"]["resourceVersion"].is_string()
        {
            // The server itself has just changed the version that the client knows, so the precondition moves to the new version.
            options["preconditions"]["resourceVersion"] = json!(revision);
        }
        let bytes = bytes::Bytes::from(options.to_string());
        let deletion =
            Call { body: &bytes, headers: &http::HeaderMap::new(), served: Arc::clone(&call.served), ..*call };
        self.delete(&deletion).await?;
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(Answer::of(StatusCode::CREATED, status))
    }

    /// Writes the condition `DisruptionTarget` of the pod. Returns the new resource version.
    fn mark_disrupted(&self, call: &Call<'_>, pod: &Arc<Stored>) -> Option<String> {
        let mut value = pod.whole();
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastTransitionTime": time(self.now()),
        });
        let conditions = &mut value["status"]["conditions"];
        match conditions.as_array_mut() {
            Some(conditions) => {
                conditions.retain(|known| known["type"] != "DisruptionTarget");
                conditions.push(condition);
            }
            None => *conditions = json!([condition]),
        }
        // After a conflict the pod has no condition, and the deletion uses the changed pod.
        let written = self.overwrite(&call.served, pod, Some(value)).ok()?;
        Some(written.revision.to_string())
    }

    fn take_from_budget(&self, call: &Call<'_>, pod: &Value, dry_run: DryRun) -> Result<(), ApiStatus> {
        let namespace = call.namespace().unwrap_or_default();
        let budgets = Collection::new("policy", "poddisruptionbudgets");
        for _ in 0..8 {
            let snapshot = self.store.list(&budgets, &format!("{namespace}/"));
            let mut covering = snapshot.objects.into_iter().filter(|(_, budget)| covers(&budget.value, pod));
            let Some((_, budget)) = covering.next() else { return Ok(()) };
            if covering.next().is_some() {
                let why =
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
                return Err(ApiStatus::new(500, "InternalError", why));
            }
            let mut value = budget.whole();
            let (name, status) = (object::name(&budget.value), &budget.value["status"]);
            let refused = ApiStatus::new(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
            );
            // A pod that is not ready may be evicted even if the budget is not counted yet.
            let unready = !is_ready(pod);
            let always = text(&budget.value, "/spec/unhealthyPodEvictionPolicy") == "AlwaysAllow";
            let healthy = status["currentHealthy"].as_i64().unwrap_or(0);
            let desired = status["desiredHealthy"].as_i64().unwrap_or(0);
            if unready && (always || healthy >= desired && desired > 0) {
                return Ok(());
            }
            if status["observedGeneration"].as_i64().unwrap_or(0)
                < budget.value["metadata"]["generation"].as_i64().unwrap_or(0)
            {
                let why = format!("The disruption budget {name} is still being processed by the server.");
                return Err(refused.with_cause("DisruptionBudget", why).retry_after(10));
            }
            let allowed = status["disruptionsAllowed"].as_i64().unwrap_or(0);
            if allowed <= 0 {
                let why =
                    format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently");
                return Err(refused.with_cause("DisruptionBudget", why));
            }
            if dry_run == DryRun::All {
                return Ok(());
            }
            value["status"]["disruptionsAllowed"] = json!(allowed - 1);
            value["status"]["conditions"] = with_allowance(&value, self.now());
            value["status"]["disruptedPods"][call.name()] = time(self.now());
            let registry = self.registry();
            let Some(served) = registry.find("policy", "v1", "poddisruptionbudgets") else { return Ok(()) };
            if self.overwrite(&served, &budget, Some(value)).is_ok() {
                return Ok(());
            }
        }
        Err(call.modified())
    }

    pub(super) fn bind(&self, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        let body = call.decoded()?;
        let pod = self.store.get(&call.served.collection, &call.key()).ok_or_else(|| call.not_found())?;
        if !text(&pod.value, "/spec/nodeName").is_empty() {
            let why =
                format!("pod {} is already assigned to node {:?}", call.name(), text(&pod.value, "/spec/nodeName"));
            return Err(ApiStatus::conflict("", "pods/binding", call.name(), &why));
        }
        let mut value = pod.whole();
        value["spec"]["nodeName"] = body["target"]["name"].clone();
        self.overwrite(&call.served, &pod, Some(value)).map_err(|_| call.modified())?;
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(Answer::of(StatusCode::CREATED, status))
    }
}

/// The conditions of a budget, with the condition whether the budget allows disruptions.
pub(super) fn with_allowance(budget: &Value, now: jiff::Timestamp) -> Value {
    const TYPE: &str = "DisruptionAllowed";
    let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0) > 0;
    let (status, reason) = if allowed { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let mut conditions = budget["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let known = conditions.iter().find(|known| known["type"] == TYPE && known["status"] == status);
    let since = known.map_or_else(|| time(now), |known| known["lastTransitionTime"].clone());
    conditions.retain(|known| known["type"] != TYPE);
    conditions.push(json!({
        "type": TYPE, "status": status, "reason": reason, "message": "", "lastTransitionTime": since,
        "observedGeneration": budget["status"]["observedGeneration"],
    }));
    json!(conditions)
}

/// Whether a budget selects a pod. An empty selector selects every pod of the namespace.
pub(super) fn covers(budget: &Value, pod: &Value) -> bool {
    let Ok(wanted) = serde_json::from_value(budget["spec"]["selector"].clone()) else { return false };
    let labels = serde_json::from_value(pod["metadata"]["labels"].clone()).unwrap_or_default();
    selector::matches(&wanted, &labels)
}

/// Whether a pod is ready.
pub(super) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
