//! Creations and updates, from body to stored object.
//!
//! Source: spec/extension-apiserver §2.9, §6.3.

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    admission::{Admitted, Operation},
    builtin_rules, crd,
    fields::{self, Manager},
    kinds::Served,
    object::{self, metadata},
    schema::{defaults, prune, rules, validate},
    server::{Answer, BODY_LIMIT, Call, Server},
    store::{Expect, Raced, key, revision_of},
};
use crate::protocol::{
    bodies::{self, Origin},
    duplicates,
    options::{DryRun, FieldValidation, WriteOptions},
    status::{ApiStatus, Cause},
};

/// How often a write that expects no certain state is tried again when others write in between.
const TRIES: usize = 8;
/// What no writer can set.
const SERVER_ONLY: [&str; 6] =
    ["uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"];
/// How often a generated name may be taken.
const NAME_TRIES: usize = 8;

/// What is to be stored.
pub(super) struct Proposal {
    pub(super) object: Value,
    /// Whether the fields' owners have been worked out already.
    pub(super) owners: Owners,
}

pub(super) enum Owners {
    /// Whoever writes owns what it changes.
    Writer,
    /// They are in the object.
    Decided,
}

/// What a write came to.
pub(super) struct Outcome {
    pub(super) object: Value,
    pub(super) warnings: Vec<String>,
}

impl Server {
    pub(super) async fn create(&self, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        let options = WriteOptions::parse(call.query, "CreateOptions")?;
        let mut warnings = Vec::new();
        let mut body = read_body(call, &options, &mut warnings)?;
        agree_with_url(call, &mut body)?;
        if let Some(name) = &call.request.name {
            // An object's own URL.
            if object::name(&body).is_empty() {
                metadata(&mut body).insert("name".to_owned(), json!(name));
            } else if object::name(&body) != name {
                return Err(ApiStatus::bad_request("the name of the object does not match the name on the URL"));
            }
        }
        let outcome = self.insert(call, body, &options, warnings, Owners::Writer).await?;
        let body = self.shaped(call, outcome.object)?;
        Ok(Answer::of(StatusCode::CREATED, body).with_warnings(outcome.warnings))
    }

    pub(super) async fn update(&self, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        let options = WriteOptions::parse(call.query, "UpdateOptions")?;
        let mut warnings = Vec::new();
        let mut body = read_body(call, &options, &mut warnings)?;
        agree_with_url(call, &mut body)?;
        if object::name(&body) != call.name() {
            let message = format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                object::name(&body),
                call.name()
            );
            return Err(ApiStatus::bad_request(message));
        }
        let absent = self.store.get(&call.served.collection, &call.key()).is_none();
        if absent && creates_on_update(&call.served) && call.request.subresource.is_none() {
            let outcome = self.insert(call, body, &options, warnings, Owners::Writer).await?;
            let body = self.shaped(call, outcome.object)?;
            return Ok(Answer::of(StatusCode::CREATED, body).with_warnings(outcome.warnings));
        }
        if call.served.is_custom() && object::text(&body, "/metadata/resourceVersion").is_empty() && !absent {
            let cause = Cause::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
            if object::uid(&body).is_empty() {
                return Err(ApiStatus::invalid(call.served.group(), call.served.kind(), call.name(), vec![cause]));
            }
        }
        let propose = |_: &Value| Ok(Proposal { object: body.clone(), owners: Owners::Writer });
        let outcome = self.change(call, &options, warnings, propose).await?;
        let body = self.shaped(call, outcome.object)?;
        Ok(Answer::ok(body).with_warnings(outcome.warnings))
    }

    /// Stores a new object.
    pub(super) async fn insert(
        &self,
        call: &Call<'_>,
        mut object: Value,
        options: &WriteOptions,
        mut warnings: Vec<String>,
        owners: Owners,
    ) -> Result<Outcome, ApiStatus> {
        let served = &*call.served;
        let given = object::text(&object, "/metadata/resourceVersion");
        if !given.is_empty() && given != "0" {
            return Err(ApiStatus::bad_request("resourceVersion should not be set on objects to be created"));
        }
        self.namespace_takes(call)?;
        let base = object::text(&object, "/metadata/generateName").to_owned();
        let generates = object::name(&object).is_empty() && !base.is_empty();
        if object::name(&object).is_empty() && base.is_empty() {
            let cause = Cause::required("metadata.name", "name or generateName is required");
            return Err(ApiStatus::invalid(served.group(), served.kind(), "", vec![cause]));
        }
        if generates {
            let name = object::generated_name(&base, &mut *self.random());
            metadata(&mut object).insert("name".to_owned(), json!(name));
        }
        self.stamp_new(call, &mut object);
        if served.has_status() && served.is_custom() {
            remove(&mut object, "status");
        }
        normalise(served, &mut object, options, &mut warnings)?;
        builtin_rules::default_new(served, &mut object, call.user);
        let Admitted { object: admitted, warnings: more } =
            self.mutate(call, Operation::Create, object, None, options.dry_run).await?;
        let mut object = admitted;
        warnings.extend(more);
        normalise(served, &mut object, &ignoring(options), &mut warnings)?;
        if let Owners::Writer = owners {
            fields::record(None, &mut object, &manager(call, options), &served.schema, self.now());
        }
        check(served, &object, None)?;
        warnings.extend(self.validate(call, Operation::Create, &object, None, options.dry_run).await?);
        warnings.extend(finalizer_warnings(&object, None));
        self.complete_definition(served, &mut object);
        if options.dry_run == DryRun::All {
            metadata(&mut object).remove("resourceVersion");
            let taken = self.store.get(&served.collection, &key(call.namespace(), object::name(&object))).is_some();
            return if taken { Err(exists(served, &object)) } else { Ok(Outcome { object, warnings }) };
        }
        for _ in 0..NAME_TRIES {
            let stored = self.to_storage(served, object.clone()).await?;
            let place = key(call.namespace(), object::name(&object));
            match self.store.write(&served.collection, &place, Expect::Absent, Some(stored)) {
                Ok(stored) => {
                    object["metadata"]["resourceVersion"] = json!(stored.revision.to_string());
                    self.after_write(served);
                    return Ok(Outcome { object, warnings });
                }
                Err(Raced) if generates => {
                    let name = object::generated_name(&base, &mut *self.random());
                    metadata(&mut object).insert("name".to_owned(), json!(name));
                }
                Err(Raced) => break,
            }
        }
        Err(exists(served, &object))
    }

    /// Changes a stored object: `propose` makes the new one from that of the moment, as often as others write in between.
    pub(super) async fn change(
        &self,
        call: &Call<'_>,
        options: &WriteOptions,
        warnings: Vec<String>,
        propose: impl Fn(&Value) -> Result<Proposal, ApiStatus>,
    ) -> Result<Outcome, ApiStatus> {
        let served = &*call.served;
        for _ in 0..TRIES {
            let stored = self.store.get(&served.collection, &call.key()).ok_or_else(|| call.not_found())?;
            let old = self.present(served, vec![std::sync::Arc::clone(&stored)]).await?.swap_remove(0);
            let proposal = propose(&old)?;
            let demands_revision = demands(call, &old, &proposal.object)?;
            let mut warnings = warnings.clone();
            let mut object = self.prepared(call, &old, proposal, options, &mut warnings).await?;
            if same(&object, &old) {
                return Ok(Outcome { object: old, warnings });
            }
            let removes = object::is_deleting(&object)
                && object::finalizers(&object).is_empty()
                && object["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or(0) == 0
                && (!served.is("", "namespaces") || builtin_rules::namespace_finalizers(&object).is_empty());
            if options.dry_run == DryRun::All {
                return Ok(Outcome { object, warnings });
            }
            let value = if removes { None } else { Some(self.to_storage(served, object.clone()).await?) };
            match self.store.write(&served.collection, &call.key(), Expect::Revision(stored.revision), value) {
                Ok(written) => {
                    object["metadata"]["resourceVersion"] = json!(written.revision.to_string());
                    self.after_write(served);
                    return Ok(Outcome { object, warnings });
                }
                Err(Raced) if demands_revision == Demands::Revision => return Err(call.modified()),
                Err(Raced) => {}
            }
        }
        Err(call.modified())
    }

    /// The object as it would be stored: what may not be changed kept, everything checked and admitted.
    async fn prepared(
        &self,
        call: &Call<'_>,
        old: &Value,
        proposal: Proposal,
        options: &WriteOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Value, ApiStatus> {
        let served = &*call.served;
        let Proposal { mut object, owners } = proposal;
        keep_what_is_kept(served, call.request.subresource.as_deref(), old, &mut object);
        normalise(served, &mut object, options, warnings)?;
        bump_generation(served, old, &mut object);
        let Admitted { object: admitted, warnings: more } =
            self.mutate(call, Operation::Update, object, Some(old), options.dry_run).await?;
        let mut object = admitted;
        warnings.extend(more);
        keep_what_is_kept(served, call.request.subresource.as_deref(), old, &mut object);
        normalise(served, &mut object, &ignoring(options), warnings)?;
        bump_generation(served, old, &mut object);
        if let Owners::Writer = owners {
            fields::record(Some(old), &mut object, &manager(call, options), &served.schema, self.now());
        }
        check(served, &object, Some(old))?;
        warnings.extend(self.validate(call, Operation::Update, &object, Some(old), options.dry_run).await?);
        warnings.extend(finalizer_warnings(&object, Some(old)));
        self.complete_definition(served, &mut object);
        Ok(object)
    }

    /// What only the server sets.
    fn stamp_new(&self, call: &Call<'_>, object: &mut Value) {
        let uid = object::new_uid(&mut *self.random());
        let now = object::time(self.now());
        let served = &*call.served;
        object["kind"] = json!(served.kind());
        object["apiVersion"] = json!(served.api_version());
        let fields = metadata(object);
        for server_only in ["resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            fields.remove(server_only);
        }
        fields.insert("uid".to_owned(), json!(uid));
        fields.insert("creationTimestamp".to_owned(), now);
        match call.namespace() {
            Some(namespace) => fields.insert("namespace".to_owned(), json!(namespace)),
            None => fields.remove("namespace"),
        };
        fields.remove("generation");
        if counts_generations(served) {
            fields.insert("generation".to_owned(), json!(1));
        }
    }

    /// Whether the namespace of a creation is there and stays.
    fn namespace_takes(&self, call: &Call<'_>) -> Result<(), ApiStatus> {
        let Some(namespace) = call.namespace() else { return Ok(()) };
        let namespaces = super::store::Collection::new("", "namespaces");
        let stored =
            self.store.get(&namespaces, namespace).ok_or_else(|| ApiStatus::not_found("", "namespaces", namespace))?;
        if object::is_deleting(&stored.value) {
            let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
            let mut refused = ApiStatus::forbidden(call.served.group(), call.served.plural(), call.name(), &why);
            refused.causes.push(Cause {
                reason: "NamespaceTerminating",
                message: format!("namespace {namespace} is being terminated"),
                field: "metadata.namespace".to_owned(),
            });
            return Err(refused);
        }
        Ok(())
    }

    /// The status of a definition is a consequence of what it says.
    fn complete_definition(&self, served: &Served, object: &mut Value) {
        if served.is("apiextensions.k8s.io", "customresourcedefinitions") {
            object["status"] = crd::status(object, self.now());
        }
    }

    /// In the version that is stored.
    pub(super) async fn to_storage(&self, served: &Served, object: Value) -> Result<Value, ApiStatus> {
        let registry = self.registry();
        match registry.storage_of(&served.collection) {
            Some(storage) if storage.resource.kind != served.resource.kind => {
                Ok(self.converted(storage, vec![object]).await?.swap_remove(0))
            }
            _ => Ok(object),
        }
    }

    /// What a write of this kind means for the server itself.
    pub(super) fn after_write(&self, served: &Served) {
        if served.is("apiextensions.k8s.io", "customresourcedefinitions") {
            self.reload_definitions();
        }
    }
}

fn manager(call: &Call<'_>, options: &WriteOptions) -> Manager {
    let name = options.field_manager.clone().unwrap_or_else(|| {
        let agent = call.user_agent().split('/').next().unwrap_or_default();
        if agent.is_empty() { "unknown".to_owned() } else { agent.chars().take(128).collect() }
    });
    Manager::update(name, call.served.api_version(), call.request.subresource.clone())
}

/// Everything that is wrong with an object.
fn check(served: &Served, object: &Value, old: Option<&Value>) -> Result<(), ApiStatus> {
    let mut found = Vec::new();
    if old.is_none() {
        found.extend(object::check_name(object::name(object), served.name_rule()));
    }
    found.extend(object::check_metadata(object));
    if let Some(old) = old.filter(|old| object::is_deleting(old)) {
        let known = object::finalizers(old);
        let new: Vec<&str> = object::finalizers(object).into_iter().filter(|name| !known.contains(name)).collect();
        if !new.is_empty() {
            let why =
                format!("no new finalizers can be added if the object is being deleted, found new finalizers {new:?}");
            found.push(Cause::forbidden("metadata.finalizers", &why));
        }
    }
    if served.is_custom() {
        let before = found.len();
        validate::check(object, old, &served.schema, "", &mut found);
        if found.len() == before {
            found.extend(rules::check(object, old, &served.schema));
        } else if has_rules(&served.schema) {
            let why = "some validation rules were not checked because the object was invalid; correct the existing errors \
                       to complete validation";
            found.push(Cause::invalid("<nil>", &Value::Null, why));
        }
    } else {
        found.extend(builtin_rules::check(served, object, old));
        if served.is("apiextensions.k8s.io", "customresourcedefinitions") {
            found.extend(crd::check(object, old));
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(ApiStatus::invalid(served.group(), served.kind(), object::name(object), found))
}

fn has_rules(schema: &super::schema::Schema) -> bool {
    !schema.rules.is_empty()
        || schema.properties.values().any(|schema| has_rules(schema))
        || schema.items.as_ref().is_some_and(|items| has_rules(items))
}

fn exists(served: &Served, object: &Value) -> ApiStatus {
    ApiStatus::already_exists(served.group(), served.plural(), object::name(object))
}

/// Some built-in kinds are created by an update.
fn creates_on_update(served: &Served) -> bool {
    matches!(
        (served.is_custom(), served.group(), served.plural()),
        (false, "coordination.k8s.io", "leases")
            | (false, "policy", "poddisruptionbudgets")
            | (false, "rbac.authorization.k8s.io", _)
            | (false, "", "events" | "endpoints" | "limitranges")
    )
}

/// Reads the body of a write: an object with a kind.
pub(super) fn read_body(
    call: &Call<'_>,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> Result<Value, ApiStatus> {
    if call.body.len() > BODY_LIMIT {
        return Err(ApiStatus::too_large(BODY_LIMIT));
    }
    let object = call.decoded()?;
    if !object.is_object() {
        return Err(ApiStatus::bad_request("the object provided is unrecognized: it must be an object"));
    }
    if options.field_validation != FieldValidation::Ignore {
        let duplicates = duplicates::find(call.body);
        let lines = duplicates.iter().map(|field| format!("duplicate field {field:?}"));
        match options.field_validation {
            FieldValidation::Strict if !duplicates.is_empty() => {
                let mut dropped = object.clone();
                let unknown = prune::object(&mut dropped, &call.served.schema);
                let lines = lines.chain(unknown.iter().map(|field| format!("unknown field {field:?}")));
                return Err(bodies::strict(&call.served.resource.kind, &lines.collect::<Vec<_>>()));
            }
            _ => warnings.extend(lines),
        }
    }
    Ok(object)
}

/// Kind, version and namespace of the body must be those of the URL.
pub(super) fn agree_with_url(call: &Call<'_>, body: &mut Value) -> Result<(), ApiStatus> {
    let origin = if call.served.is_custom() { Origin::Custom } else { Origin::BuiltIn };
    bodies::agree_with_url(body, &call.served.resource, call.namespace(), origin)
}

fn ignoring(options: &WriteOptions) -> WriteOptions {
    WriteOptions { field_validation: FieldValidation::Ignore, ..options.clone() }
}

/// Drops what the kind does not know, fills in defaults, and refuses what has the wrong type.
fn normalise(
    served: &Served,
    object: &mut Value,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> Result<(), ApiStatus> {
    let dropped = prune::object(object, &served.schema);
    if !dropped.is_empty() {
        let lines: Vec<String> = dropped.iter().map(|field| format!("unknown field {field:?}")).collect();
        match options.field_validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => warnings.extend(lines),
            FieldValidation::Strict => return Err(bodies::strict(&served.resource.kind, &lines)),
        }
    }
    if served.is_custom() {
        defaults::fill(object, &served.schema);
        prune::nulls(object, &served.schema);
    } else {
        prune::nulls(object, &served.schema);
        builtin_rules::decode(served, object)?;
    }
    Ok(())
}

/// Whether a write insists on the state that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demands {
    Nothing,
    Revision,
}

/// Name, kind and UID must stay; a resource version that is named must be the stored one.
fn demands(call: &Call<'_>, old: &Value, new: &Value) -> Result<Demands, ApiStatus> {
    if object::name(new) != object::name(old) || object::namespace(new) != object::namespace(old) {
        return Err(ApiStatus::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            object::name(new),
            object::name(old)
        )));
    }
    let uid = object::uid(new);
    if !uid.is_empty() && uid != object::uid(old) {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", object::uid(old));
        return Err(ApiStatus::conflict(call.served.group(), call.served.plural(), call.name(), &why));
    }
    let revision = object::text(new, "/metadata/resourceVersion");
    if revision.is_empty() || revision == "0" {
        return Ok(Demands::Nothing);
    }
    if crate::protocol::options::resource_version(revision)? != revision_of(old) {
        return Err(call.modified());
    }
    // A patch leaves the version as it was found: only a caller who named one insists on it.
    let named_by_patch = call.body.windows(15).any(|window| window == b"resourceVersion");
    Ok(if named_by_patch { Demands::Revision } else { Demands::Nothing })
}

/// What a writer can't change is as before.
fn keep_what_is_kept(served: &Served, subresource: Option<&str>, old: &Value, object: &mut Value) {
    object["kind"] = old["kind"].clone();
    object["apiVersion"] = json!(served.api_version());
    match subresource {
        Some("status") => {
            let status = object["status"].take();
            let mut kept = old.clone();
            set_or_remove(&mut kept, "status", status);
            if !served.is_custom() {
                for field in ["labels", "annotations", "finalizers"] {
                    let value = object["metadata"][field].take();
                    set_or_remove(&mut kept["metadata"], field, value);
                }
            }
            let managed = object["metadata"]["managedFields"].take();
            set_or_remove(&mut kept["metadata"], "managedFields", managed);
            *object = kept;
        }
        Some("finalize") => {
            let spec = object["spec"].take();
            let mut kept = old.clone();
            set_or_remove(&mut kept, "spec", spec);
            *object = kept;
        }
        _ => {
            if served.has_status() {
                set_or_remove(object, "status", old["status"].clone());
            }
        }
    }
    let fields = metadata(object);
    for field in SERVER_ONLY {
        match old["metadata"].get(field) {
            Some(value) => fields.insert(field.to_owned(), value.clone()),
            None => fields.remove(field),
        };
    }
    if !old["metadata"]["generateName"].is_null() && !fields.contains_key("generateName") {
        fields.insert("generateName".to_owned(), old["metadata"]["generateName"].clone());
    }
    if !fields.contains_key("managedFields")
        && let Some(managed) = old["metadata"].get("managedFields")
    {
        fields.insert("managedFields".to_owned(), managed.clone());
    }
}

fn set_or_remove(object: &mut Value, field: &str, value: Value) {
    if value.is_null() {
        remove(object, field);
    } else {
        object[field] = value;
    }
}

pub(super) fn remove(object: &mut Value, field: &str) {
    if let Value::Object(fields) = object {
        fields.remove(field);
    }
}

/// Whether objects of a kind say how often their wanted state has changed.
pub(super) fn counts_generations(served: &Served) -> bool {
    served.is_custom()
        || matches!(
            (served.group(), served.plural()),
            ("", "pods" | "replicationcontrollers")
                | ("apps" | "policy" | "batch" | "apiextensions.k8s.io" | "admissionregistration.k8s.io", _)
        )
}

fn bump_generation(served: &Served, old: &Value, object: &mut Value) {
    if !counts_generations(served) {
        return;
    }
    let wanted = |value: &Value| {
        let mut wanted = value.clone();
        remove(&mut wanted, "metadata");
        if served.has_status() || !served.is_custom() {
            remove(&mut wanted, "status");
        }
        wanted
    };
    let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
    let changed = wanted(old) != wanted(object);
    metadata(object).insert("generation".to_owned(), json!(if changed { generation + 1 } else { generation }));
}

/// Whether two states differ in nothing that matters; times of field owners don't.
fn same(one: &Value, other: &Value) -> bool {
    let timeless = |value: &Value| {
        let mut value = value.clone();
        for entry in value["metadata"]["managedFields"].as_array_mut().into_iter().flatten() {
            remove(entry, "time");
        }
        value
    };
    one == other || timeless(one) == timeless(other)
}

fn finalizer_warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    let known = old.map(object::finalizers).unwrap_or_default();
    object::finalizers(object)
        .into_iter()
        .filter(|name| !name.contains('/') && !known.contains(name) && !matches!(*name, "orphan" | "foregroundDeletion"))
        .map(|name| {
            format!("metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers")
        })
        .collect()
}
