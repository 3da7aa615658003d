//! Admission and conversion by webhooks.
//!
//! The stored configurations decide which webhooks are called. Objects of `admissionregistration.k8s.io` are never reviewed, so that the
//! configuration of a broken webhook can be deleted.
//! Source: spec/extension-apiserver §6.5, spec/api-and-admission §9.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::{
    kinds::Served,
    object::{self, text},
    schema::{Schema, rules},
    server::{Call, Server},
    store::Collection,
};
use kube_protocol::{options::DryRun, status::ApiStatus};
use kube_values::selector;

/// The timeout of a conversion.
const CONVERSION: Duration = Duration::from_secs(30);

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    const fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// An object after mutation.
pub(super) struct Admitted {
    pub(super) object: Value,
    pub(super) warnings: Vec<String>,
}

/// The data of a review.
struct Review<'a> {
    call: &'a Call<'a>,
    operation: Operation,
    object: &'a Value,
    old: Option<&'a Value>,
    dry_run: DryRun,
}

/// The answer of a webhook.
struct ReviewAnswer {
    patch: Option<json_patch::Patch>,
    warnings: Vec<String>,
}

impl Server {
    /// Calls the mutating webhooks, sorted by the names of their configurations. A webhook with `reinvocationPolicy: IfNeeded` is called again if a
    /// later webhook has changed the object.
    pub(super) async fn mutate(
        &self,
        call: &Call<'_>,
        operation: Operation,
        mut object: Value,
        old: Option<&Value>,
        dry_run: DryRun,
    ) -> Result<Admitted, ApiStatus> {
        let mut warnings = Vec::new();
        let webhooks = self.webhooks_of("mutatingwebhookconfigurations", call);
        let mut called_at = vec![None; webhooks.len()];
        let mut changes = 0;
        for round in 0..2 {
            for (at, webhook) in webhooks.iter().enumerate() {
                let again =
                    webhook["reinvocationPolicy"] == "IfNeeded" && called_at[at].is_some_and(|called| called < changes);
                if round > 0 && !again {
                    continue;
                }
                let review = Review { call, operation, object: &object, old, dry_run };
                let Some((served, answer)) = self.review_by(webhook, &review).await? else { continue };
                warnings.extend(answer.warnings);
                called_at[at] = Some(changes);
                if let Some(patch) = answer.patch.filter(|patch| !patch.0.is_empty()) {
                    let mut patched = self.converted(&served, vec![object]).await?.swap_remove(0);
                    super::json_patches::apply(&mut patched, &patch).map_err(|error| {
                        ApiStatus::internal(format!(
                            "webhook {:?}: cannot apply its patch: {error}",
                            text(webhook, "/name")
                        ))
                    })?;
                    object = self.converted(&call.served, vec![patched]).await?.swap_remove(0);
                    changes += 1;
                    called_at[at] = Some(changes);
                }
            }
        }
        Ok(Admitted { object, warnings })
    }

    /// Calls the validating webhooks. Returns their warnings.
    pub(super) async fn validate(
        &self,
        call: &Call<'_>,
        operation: Operation,
        object: &Value,
        old: Option<&Value>,
        dry_run: DryRun,
    ) -> Result<Vec<String>, ApiStatus> {
        let mut warnings = Vec::new();
        for webhook in self.webhooks_of("validatingwebhookconfigurations", call) {
            let review = Review { call, operation, object, old, dry_run };
            if let Some((_, answer)) = self.review_by(&webhook, &review).await? {
                warnings.extend(answer.warnings);
            }
        }
        Ok(warnings)
    }

    fn webhooks_of(&self, plural: &str, call: &Call<'_>) -> Vec<Value> {
        if call.served.group() == "admissionregistration.k8s.io" {
            return Vec::new();
        }
        let configurations = self.store.list(&Collection::new("admissionregistration.k8s.io", plural), "");
        let webhooks = configurations.objects.iter().filter_map(|(_, stored)| stored.value["webhooks"].as_array());
        webhooks.flatten().cloned().collect()
    }

    /// Calls a webhook, if its rules, selectors and conditions match. Returns its answer and the kind that was sent to it.
    async fn review_by(
        &self,
        webhook: &Value,
        review: &Review<'_>,
    ) -> Result<Option<(Arc<Served>, ReviewAnswer)>, ApiStatus> {
        let call = review.call;
        let Some(served) = self.kind_for(webhook, review) else { return Ok(None) };
        if !self.selects(webhook, review) {
            return Ok(None);
        }
        let translated = async |object: Option<&Value>| -> Result<Value, ApiStatus> {
            match object {
                None | Some(Value::Null) => Ok(Value::Null),
                Some(object) => Ok(self.converted(&served, vec![object.clone()]).await?.swap_remove(0)),
            }
        };
        let object = translated(Some(review.object)).await?;
        let old = translated(review.old).await?;
        let uid = object::new_uid(&mut *self.random());
        let request = review_request(&uid, call, &served, review, &object, &old);
        let name = text(webhook, "/name");
        match conditions_hold(webhook, &request) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(why) => {
                return Self::failed(webhook, &format!("failed to evaluate its match conditions: {why}"))
                    .map(|()| None);
            }
        }
        let side_effects = text(webhook, "/sideEffects");
        if review.dry_run == DryRun::All && !matches!(side_effects, "None" | "NoneOnDryRun") {
            let message = format!("admission webhook {name:?} does not support dry run");
            return Err(ApiStatus::bad_request(message));
        }
        let body = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request});
        let timeout = Duration::from_secs(webhook["timeoutSeconds"].as_u64().unwrap_or(10));
        let answer = match self.webhooks.call(&webhook["clientConfig"], &body, timeout).await {
            Ok(answer) => answer,
            Err(why) => return Self::failed(webhook, &format!("failed to call webhook: {why}")).map(|()| None),
        };
        let response = &answer["response"];
        if response["uid"] != json!(uid) {
            return Self::failed(webhook, "expected response.uid to be that of the request").map(|()| None);
        }
        let warnings: Vec<String> = response["warnings"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect();
        if response["allowed"] != json!(true) {
            return Err(ApiStatus { warnings, ..denied(name, &response["status"]) });
        }
        let patch = match response["patch"].as_str() {
            None => None,
            Some(encoded) => {
                let read = BASE64_STANDARD
                    .decode(encoded)
                    .map_err(|error| error.to_string())
                    .and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
                match read {
                    Ok(patch) => Some(patch),
                    Err(why) => return Self::failed(webhook, &format!("cannot read its patch: {why}")).map(|()| None),
                }
            }
        };
        Ok(Some((served, ReviewAnswer { patch, warnings })))
    }

    /// Handles the failure of a webhook by its `failurePolicy`.
    fn failed(webhook: &Value, why: &str) -> Result<(), ApiStatus> {
        if webhook["failurePolicy"] == "Ignore" {
            tracing::warn!(name = text(webhook, "/name"), error = why, "a webhook failed and is ignored, as it says");
            return Ok(());
        }
        Err(ApiStatus::internal(format!("failed calling webhook {:?}: {why}", text(webhook, "/name"))))
    }

    /// The version of the kind that the rules of a webhook match. `None` if they do not match.
    fn kind_for(&self, webhook: &Value, review: &Review<'_>) -> Option<Arc<Served>> {
        let call = review.call;
        let wants = |served: &Served| {
            webhook["rules"].as_array().into_iter().flatten().any(|rule| rule_matches(rule, served, review))
        };
        if wants(&call.served) {
            return Some(Arc::clone(&call.served));
        }
        if webhook["matchPolicy"] == "Exact" {
            return None;
        }
        let registry = self.registry();
        let mut others = registry.all().iter().filter(|other| other.collection == call.served.collection);
        others.find(|other| wants(other)).cloned()
    }

    fn selects(&self, webhook: &Value, review: &Review<'_>) -> bool {
        let call = review.call;
        let of_object = |object: &Value| !object.is_null() && matches_selector(&webhook["objectSelector"], object);
        if !of_object(review.object) && !review.old.is_some_and(of_object) {
            return false;
        }
        let namespace = if call.served.is("", "namespaces") { Some(call.name()) } else { call.namespace() };
        let Some(namespace) = namespace else { return true };
        match self.store.get(&Collection::new("", "namespaces"), namespace) {
            Some(stored) => matches_selector(&webhook["namespaceSelector"], &stored.value),
            None => matches_selector(&webhook["namespaceSelector"], review.object),
        }
    }

    /// Converts objects by a webhook.
    pub(super) async fn convert(
        &self,
        client: &Value,
        wanted: &str,
        objects: Vec<Value>,
    ) -> Result<Vec<Value>, String> {
        let uid = object::new_uid(&mut *self.random());
        let count = objects.len();
        let review = json!({
            "kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
            "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": objects},
        });
        let answer = self.webhooks.call(client, &review, CONVERSION).await?;
        let response = &answer["response"];
        if response["uid"] != json!(uid) {
            return Err("expected response.uid to be that of the request".to_owned());
        }
        if response["result"]["status"] != "Success" {
            return Err(text(response, "/result/message").to_owned());
        }
        let mut converted = response["convertedObjects"].as_array().cloned().unwrap_or_default();
        if converted.len() != count {
            return Err(format!("it answered {} objects to {count}", converted.len()));
        }
        for (object, original) in
            converted.iter_mut().zip(&review["request"]["objects"].as_array().cloned().unwrap_or_default())
        {
            if object["apiVersion"] != wanted {
                return Err(format!("it answered {} instead of {wanted}", object["apiVersion"]));
            }
            // A conversion may change only labels and annotations of the metadata.
            let (labels, annotations) = (object["metadata"]["labels"].take(), object["metadata"]["annotations"].take());
            object["metadata"] = original["metadata"].clone();
            for (field, value) in [("labels", labels), ("annotations", annotations)] {
                match value {
                    Value::Null => super::write_rules::remove(&mut object["metadata"], field),
                    value => object["metadata"][field] = value,
                }
            }
        }
        Ok(converted)
    }
}

fn rule_matches(rule: &Value, served: &Served, review: &Review<'_>) -> bool {
    let lists = |field: &str, wanted: &str| {
        rule[field].as_array().into_iter().flatten().any(|value| value == "*" || value == wanted)
    };
    let scope = match text(rule, "/scope") {
        "Cluster" => !served.is_namespaced(),
        "Namespaced" => served.is_namespaced(),
        _ => true,
    };
    scope
        && lists("operations", review.operation.name())
        && lists("apiGroups", served.group())
        && lists("apiVersions", &served.resource.kind.version)
        && rule["resources"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .any(|resource| resource_matches(resource, served.plural(), review.call.request.subresource.as_deref()))
}

/// `pods`, `pods/status`, `pods/*`, `*/status`, `*`, `*/*`.
fn resource_matches(rule: &str, plural: &str, subresource: Option<&str>) -> bool {
    let (resource, sub) = rule.split_once('/').map_or((rule, None), |(resource, sub)| (resource, Some(sub)));
    let subresource_fits = match (sub, subresource) {
        (None, None) | (Some("*"), _) => true,
        (Some(sub), Some(subresource)) => sub == subresource,
        (None, Some(_)) | (Some(_), None) => false,
    };
    (resource == "*" || resource == plural) && subresource_fits
}

fn matches_selector(wanted: &Value, object: &Value) -> bool {
    if wanted.is_null() {
        return true;
    }
    let Ok(wanted) = serde_json::from_value(wanted.clone()) else { return false };
    let labels = serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default();
    selector::matches(&wanted, &labels)
}

fn review_request(
    uid: &str,
    call: &Call<'_>,
    served: &Served,
    review: &Review<'_>,
    object: &Value,
    old: &Value,
) -> Value {
    let kind = |served: &Served| {
        let kind = &served.resource.kind;
        json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
    };
    let resource = |served: &Served| json!({"group": served.group(), "version": served.resource.kind.version, "resource": served.plural()});
    let name = if call.name().is_empty() { object::name(review.object) } else { call.name() };
    let mut request = json!({
        "uid": uid,
        "kind": kind(served), "resource": resource(served),
        "requestKind": kind(&call.served), "requestResource": resource(&call.served),
        "name": name, "operation": review.operation.name(), "userInfo": call.user.to_json(),
        "object": object, "oldObject": old,
        "dryRun": review.dry_run == DryRun::All,
        "options": {"kind": format!("{}Options", capitalised(review.operation)), "apiVersion": "meta.k8s.io/v1"},
    });
    if let Some(namespace) = call.namespace() {
        request["namespace"] = json!(namespace);
    }
    if let Some(subresource) = &call.request.subresource {
        request["subResource"] = json!(subresource);
        request["requestSubResource"] = json!(subresource);
    }
    request
}

const fn capitalised(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "Create",
        Operation::Update => "Update",
        Operation::Delete => "Delete",
    }
}

/// Whether all CEL conditions of a webhook hold. If one condition does not hold, the webhook does not match, even if the evaluation of another
/// condition fails.
fn conditions_hold(webhook: &Value, request: &Value) -> Result<bool, String> {
    let mut failed = None;
    for condition in webhook["matchConditions"].as_array().into_iter().flatten() {
        let anything = Schema::default();
        let mut scope = rules::context();
        for (name, value) in
            [("object", &request["object"]), ("oldObject", &request["oldObject"]), ("request", request)]
        {
            scope.add_variable_from_value(name, rules::to_cel(value, &anything));
        }
        let held = rules::program(text(condition, "/expression"))
            .and_then(|program| program.execute(&scope).map_err(|error| error.to_string()));
        match held {
            Ok(kube_cel::cel::Value::Bool(false)) => return Ok(false),
            Ok(kube_cel::cel::Value::Bool(true)) => {}
            Ok(_) => failed = Some(format!("{} is no condition", condition["name"])),
            Err(why) => failed = Some(format!("{}: {why}", condition["name"])),
        }
    }
    failed.map_or(Ok(true), Err)
}

fn denied(name: &str, status: &Value) -> ApiStatus {
    let code =
        status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).filter(|code| *code >= 400).unwrap_or(403);
    let reason = match text(status, "/reason") {
        "Invalid" => "Invalid",
        "BadRequest" => "BadRequest",
        "Conflict" => "Conflict",
        "NotFound" => "NotFound",
        "TooManyRequests" => "TooManyRequests",
        _ => match code {
            422 => "Invalid",
            400 => "BadRequest",
            409 => "Conflict",
            _ => "Forbidden",
        },
    };
    let message = match (text(status, "/message"), text(status, "/reason")) {
        ("", "") => format!("admission webhook {name:?} denied the request without explanation"),
        ("", reason) => format!("admission webhook {name:?} denied the request: {reason}"),
        (message, _) => format!("admission webhook {name:?} denied the request: {message}"),
    };
    let mut refused = ApiStatus::new(code, reason, message);
    if status["details"].is_object() {
        refused.details = Some(Box::new(status["details"].clone()));
    }
    refused
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// A webhook with conditions that match only changes.
    fn webhook() -> Value {
        let changed = "request.operation == 'CREATE' || object.?spec != oldObject.?spec || \
                       object.metadata.?labels != oldObject.metadata.?labels || \
                       ['provider', 'extra'].exists(f, object[?f] != oldObject[?f])";
        json!({"matchConditions": [
            {"name": "not-deleting", "expression": "!has(object.metadata.deletionTimestamp)"},
            {"name": "changed", "expression": changed},
        ]})
    }

    #[rstest]
    #[case::creation("CREATE", json!({"metadata": {"name": "a"}}), Value::Null, true)]
    #[case::nothing_changed("UPDATE", json!({"metadata": {}, "spec": {"a": 1}}), json!({"metadata": {}, "spec": {"a": 1}}), false)]
    #[case::finalizers_only("UPDATE", json!({"metadata": {"finalizers": ["f"]}}), json!({"metadata": {}}), false)]
    #[case::another_spec("UPDATE", json!({"metadata": {}, "spec": {"a": 1}}), json!({"metadata": {}, "spec": {"a": 2}}), true)]
    #[case::a_new_spec("UPDATE", json!({"metadata": {}, "spec": {}}), json!({"metadata": {}}), true)]
    #[case::a_label("UPDATE", json!({"metadata": {"labels": {"a": "b"}}}), json!({"metadata": {}}), true)]
    #[case::a_field_by_its_name("UPDATE", json!({"metadata": {}, "provider": "p"}), json!({"metadata": {}}), true)]
    #[case::being_deleted("UPDATE", json!({"metadata": {"deletionTimestamp": "x"}, "spec": {}}), json!({"metadata": {}}), false)]
    fn match_conditions(#[case] operation: &str, #[case] object: Value, #[case] old: Value, #[case] holds: bool) {
        let request = json!({"operation": operation, "object": object, "oldObject": old});
        assert_eq!(conditions_hold(&webhook(), &request), Ok(holds));
    }

    #[test]
    fn the_error_names_a_condition_that_cannot_be_evaluated() {
        let webhook = json!({"matchConditions": [{"name": "c", "expression": "object.absent == 1"}]});
        assert!(conditions_hold(&webhook, &json!({"object": {}, "oldObject": null})).unwrap_err().contains("\"c\""));
    }
}
