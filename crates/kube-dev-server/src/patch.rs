//! The four kinds of patches, and the `scale` subresource.
//!
//! Source: spec/extension-apiserver §2.10.

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    apply,
    fields::Manager,
    json_patches::{self, PatchError},
    kinds::{set_at, value_at},
    object::{self, metadata},
    schema::prune,
    server::{Answer, BODY_LIMIT, Call, Server},
    strategic,
    write::{Outcome, Owners, Proposal},
    write_body::agree_with_url,
};
use kube_protocol::{
    depth, duplicates, negotiate,
    options::{FieldValidation, WriteOptions},
    request::Verb,
    status::{ApiStatus, Cause},
};

/// The maximum number of operations of a JSON patch.
const MAX_OPERATIONS: usize = 10_000;

enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
    Apply(Value),
}

fn undecodable(error: impl std::fmt::Display) -> ApiStatus {
    ApiStatus::bad_request(format!("error decoding patch: {error}"))
}

impl Patch {
    fn read(call: &Call<'_>) -> Result<Self, ApiStatus> {
        if call.body.len() > BODY_LIMIT {
            return Err(ApiStatus::too_large(BODY_LIMIT));
        }
        let object = || -> Result<Value, ApiStatus> {
            depth::check_text(call.body).map_err(undecodable)?;
            let value: Value = serde_json::from_slice(call.body).map_err(undecodable)?;
            if value.is_object() { Ok(value) } else { Err(undecodable("a merge patch must be an object")) }
        };
        let essence = call.content_type().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_owned();
        match essence.as_str() {
            "application/json-patch+json" => {
                depth::check_text(call.body).map_err(undecodable)?;
                let patch: json_patch::Patch = serde_json::from_slice(call.body).map_err(undecodable)?;
                if patch.0.len() > MAX_OPERATIONS {
                    let message = format!(
                        "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                        patch.0.len()
                    );
                    return Err(ApiStatus::new(413, "RequestEntityTooLarge", message));
                }
                Ok(Self::Json(patch))
            }
            "application/merge-patch+json" => object().map(Self::Merge),
            "application/strategic-merge-patch+json" if !call.served.is_custom() => object().map(Self::Strategic),
            "application/apply-patch+yaml" => {
                let value = negotiate::yaml(call.body)?;
                if value.is_object() { Ok(Self::Apply(value)) } else { Err(undecodable("it must be an object")) }
            }
            _ => {
                let strategic = if call.served.is_custom() { "" } else { "application/strategic-merge-patch+json, " };
                Err(ApiStatus::unsupported_media_type(format!(
                    "the body of the request was in an unknown format - accepted media types include: \
                     application/json-patch+json, application/merge-patch+json, {strategic}application/apply-patch+yaml"
                )))
            }
        }
    }

    /// Messages about duplicate fields in the text of the patch.
    fn duplicates(&self, text: &[u8]) -> Vec<String> {
        let of = if let Self::Json(_) = self { "json patch " } else { "" };
        duplicates::find(text).iter().map(|field| format!("{of}duplicate field {field:?}")).collect()
    }

    /// The object after the patch. An apply is handled by [`apply`].
    fn applied_to(&self, old: &Value, call: &Call<'_>) -> Result<Value, ApiStatus> {
        match self {
            Self::Json(patch) => {
                let mut patched = old.clone();
                json_patches::apply(&mut patched, patch).map_err(|error| match error {
                    PatchError::Operation(_) => {
                        let message = "the server rejected our request due to an error in our request";
                        ApiStatus::new(422, "Invalid", message).with_details(json!({}))
                    }
                    PatchError::TooDeep(_) | PatchError::TooMuch => {
                        ApiStatus::new(422, "Invalid", error.to_string()).with_details(json!({}))
                    }
                })?;
                Ok(patched)
            }
            Self::Merge(patch) => {
                let mut patched = old.clone();
                json_patch::merge(&mut patched, patch);
                Ok(patched)
            }
            Self::Strategic(patch) => strategic::merge(old, patch, &call.served.schema).map_err(ApiStatus::bad_request),
            Self::Apply(wanted) => Ok(wanted.clone()),
        }
    }
}

impl Server {
    pub(super) async fn patch(&self, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        let options = WriteOptions::parse(call.query, "PatchOptions")?;
        let patch = Patch::read(call)?;
        if let Patch::Apply(wanted) = patch {
            return self.apply(call, &options, wanted).await;
        }
        if options.force.is_some() {
            let cause = Cause::forbidden("force", "may not be specified for non-apply patch");
            return Err(ApiStatus::invalid("meta.k8s.io", "PatchOptions", "", vec![cause]));
        }
        let duplicates = match options.field_validation {
            FieldValidation::Ignore => Vec::new(),
            FieldValidation::Warn | FieldValidation::Strict => patch.duplicates(call.body),
        };
        let propose = |old: &Value| {
            let object = patch.applied_to(old, call)?;
            if options.field_validation == FieldValidation::Strict {
                check_strictly(call, &object, &duplicates)?;
            }
            for field in ["kind", "apiVersion"] {
                if object[field] != old[field] {
                    return Err(ApiStatus::bad_request(format!("a patch may not change {field}")));
                }
            }
            Ok(Proposal { object, owners: Owners::Writer })
        };
        let outcome = self.change(call, &options, duplicates.clone(), propose).await?;
        let body = self.shaped(call, outcome.object)?;
        Ok(Answer::ok(body).with_warnings(outcome.warnings))
    }

    async fn apply(&self, call: &Call<'_>, options: &WriteOptions, mut wanted: Value) -> Result<Answer, ApiStatus> {
        let Some(name) = options.field_manager.clone() else {
            let cause = Cause::required("fieldManager", "is required for apply patch");
            return Err(ApiStatus::invalid("meta.k8s.io", "PatchOptions", "", vec![cause]));
        };
        apply::check(&wanted)?;
        if object::text(&wanted, "/apiVersion").is_empty() || object::text(&wanted, "/kind").is_empty() {
            return Err(ApiStatus::bad_request("apiVersion and kind must be set in an apply"));
        }
        agree_with_url(call, &mut wanted)?;
        if object::name(&wanted).is_empty() {
            metadata(&mut wanted).insert("name".to_owned(), json!(call.name()));
        } else if object::name(&wanted) != call.name() {
            return Err(ApiStatus::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                object::name(&wanted),
                call.name()
            )));
        }
        let uid = object::uid(&wanted).to_owned();
        apply::check_type(&mut wanted, call)?;
        let wanted = apply::without_head(wanted);
        let force = options.force == Some(true);
        let manager = Manager::update(name, call.served.api_version(), call.request.subresource.clone());
        let absent = self.store.get(&call.served.collection, &call.key()).is_none();
        let schema = &call.served.schema;
        let mut created = None;
        if absent && call.request.subresource.is_none() {
            if !uid.is_empty() {
                let why =
                    format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
                return Err(ApiStatus::conflict(call.served.group(), call.served.plural(), call.name(), &why));
            }
            self.authorize_create(call)?;
            let object = apply::apply(None, &wanted, &manager, schema, force, self.now())?;
            match self.insert(call, object, options, Vec::new(), Owners::Decided).await {
                Ok(outcome) => created = Some(outcome),
                // Another client has created the object in between, so that object is changed.
                Err(status) if status.reason == "AlreadyExists" => {}
                Err(status) => return Err(status),
            }
        }
        let (status, outcome): (_, Outcome) = if let Some(outcome) = created {
            (StatusCode::CREATED, outcome)
        } else {
            let propose = |old: &Value| {
                if !uid.is_empty() && uid != object::uid(old) {
                    let cause = Cause::invalid("metadata.uid", &json!(uid), "field is immutable");
                    return Err(ApiStatus::invalid(call.served.group(), call.served.kind(), call.name(), vec![cause]));
                }
                let object = apply::apply(Some(old), &wanted, &manager, schema, force, self.now())?;
                Ok(Proposal { object, owners: Owners::Decided })
            };
            (StatusCode::OK, self.change(call, options, Vec::new(), propose).await?)
        };
        let body = self.shaped(call, outcome.object)?;
        Ok(Answer::of(status, body).with_warnings(outcome.warnings))
    }

    pub(super) async fn get_scale(&self, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        let stored = self.store.get(&call.served.collection, &call.key()).ok_or_else(|| call.not_found())?;
        let object = self.present(&call.served, vec![stored]).await?.swap_remove(0);
        Ok(Answer::ok(scale_of(call, &object)))
    }

    pub(super) async fn write_scale(&self, call: &Call<'_>, verb: Verb) -> Result<Answer, ApiStatus> {
        let kind = if verb == Verb::Patch { "PatchOptions" } else { "UpdateOptions" };
        let options = WriteOptions::parse(call.query, kind)?;
        let patch = match verb {
            Verb::Patch => Some(Patch::read(call)?),
            _ => None,
        };
        let replacement = match patch {
            Some(_) => Value::Null,
            None => negotiate::decode(call.content_type(), call.body)?,
        };
        let Some(paths) = &call.served.scale else { return Err(ApiStatus::page_not_found()) };
        if matches!(patch, Some(Patch::Apply(_))) && options.field_manager.is_none() {
            let cause = Cause::required("fieldManager", "is required for apply patch");
            return Err(ApiStatus::invalid("meta.k8s.io", "PatchOptions", "", vec![cause]));
        }
        let propose = |old: &Value| {
            let before = scale_of(call, old);
            let scale = match &patch {
                Some(Patch::Strategic(patch) | Patch::Merge(patch)) => {
                    let mut scale = before.clone();
                    json_patch::merge(&mut scale, patch);
                    scale
                }
                Some(Patch::Apply(wanted)) => {
                    let mut scale = before.clone();
                    json_patch::merge(&mut scale, wanted);
                    scale
                }
                Some(patch) => patch.applied_to(&before, call)?,
                None => replacement.clone(),
            };
            check_scale(call, &scale)?;
            let mut object = old.clone();
            let replicas = &scale["spec"]["replicas"];
            let replicas = if replicas.is_null() { json!(0) } else { replicas.clone() };
            if replicas.as_i64().is_none_or(|replicas| replicas < 0) {
                let cause = Cause::invalid("spec.replicas", &replicas, "must be greater than or equal to 0");
                return Err(ApiStatus::invalid("autoscaling", "Scale", call.name(), vec![cause]));
            }
            set_at(&mut object, &paths.spec_replicas, replicas);
            let version = &scale["metadata"]["resourceVersion"];
            if version.is_string() {
                object["metadata"]["resourceVersion"] = version.clone();
            }
            Ok(Proposal { object, owners: Owners::Writer })
        };
        let outcome = self.change(call, &options, Vec::new(), propose).await?;
        Ok(Answer::ok(scale_of(call, &outcome.object)).with_warnings(outcome.warnings))
    }
}

/// Checks that a patched object has no unknown fields and its patch has no duplicate fields (`fieldValidation=Strict`).
fn check_strictly(call: &Call<'_>, object: &Value, duplicates: &[String]) -> Result<(), ApiStatus> {
    let unknown = prune::object(&mut object.clone(), &call.served.schema);
    let unknown = unknown.iter().map(|field| format!("unknown field {field:?}"));
    let lines: Vec<String> = duplicates.iter().cloned().chain(unknown).collect();
    if lines.is_empty() {
        return Ok(());
    }
    let why = format!("strict decoding error: {}", lines.join(", "));
    Err(ApiStatus::invalid("", "", "", vec![Cause::invalid("patch", &json!(object.to_string()), &why)]))
}

/// Checks that a written scale is for the object in the URL.
fn check_scale(call: &Call<'_>, scale: &Value) -> Result<(), ApiStatus> {
    let (kind, name) = (object::text(scale, "/kind"), object::name(scale));
    if !kind.is_empty() && kind != "Scale" {
        let why = format!("{kind} in version \"v1\" cannot be handled as a Scale");
        return Err(ApiStatus::bad_request(why));
    }
    if !name.is_empty() && name != call.name() {
        return Err(ApiStatus::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.name()
        )));
    }
    Ok(())
}

fn scale_of(call: &Call<'_>, object: &Value) -> Value {
    let Some(paths) = &call.served.scale else { return Value::Null };
    let number = |path: &[String]| value_at(object, path).as_i64().unwrap_or(0);
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata[field] = value.clone();
        }
    }
    let replicas = if paths.status_replicas.is_empty() { 0 } else { number(&paths.status_replicas) };
    let mut status = json!({"replicas": replicas});
    if let Some(selector) = paths.selector.as_ref().map(|path| value_at(object, path)).filter(|text| text.is_string()) {
        status["selector"] = selector.clone();
    }
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": number(&paths.spec_replicas)}, "status": status,
    })
}
