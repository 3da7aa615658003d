//! Creations and updates, from the body to the stored object: decoding, defaults, admission, validation, storage.
//!
//! [`super::write_body`] decodes bodies. [`super::write_rules`] decides which fields a write may change.
//! Source: spec/extension-apiserver §2.9, §6.3.

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    admission::{Admitted, Operation},
    authorization::Attributes,
    builtin_rules, crd,
    fields::{self, Manager},
    kinds::Served,
    object::{self, metadata},
    server::{Answer, Call, Server},
    store::{Conflict, Expect, key},
    write_body::{agree_with_url, normalise, read_body},
    write_rules::{
        bump_generation, check, check_preconditions, counts_generations, finalizer_warnings, remove, restore_fixed,
        same,
    },
};
use kube_protocol::{
    options::{DryRun, FieldValidation, WriteOptions},
    status::{ApiStatus, Cause},
};

/// The maximum number of attempts of a write without a precondition, when other writes change the object in between.
const TRIES: usize = 8;
/// The maximum number of generated names that are tried when names are in use.
const NAME_TRIES: usize = 8;

/// The proposed new state of an object.
pub(super) struct Proposal {
    pub(super) object: Value,
    /// The owners of its fields.
    pub(super) owners: Owners,
}

pub(super) enum Owners {
    /// The writer owns the fields that it changes.
    Writer,
    /// The managed fields of the object are complete already.
    Decided,
}

/// The result of a write.
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
            // The request is for the URL of the object, not of its collection.
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
            self.authorize_create(call)?;
            let outcome = self.insert(call, body, &options, warnings, Owners::Writer).await?;
            let body = self.shaped(call, outcome.object)?;
            return Ok(Answer::of(StatusCode::CREATED, body).with_warnings(outcome.warnings));
        }
        let propose = |_: &Value| Ok(Proposal { object: body.clone(), owners: Owners::Writer });
        let outcome = self.change(call, &options, warnings, propose).await?;
        let body = self.shaped(call, outcome.object)?;
        Ok(Answer::ok(body).with_warnings(outcome.warnings))
    }

    /// Checks whether the user of an update or an apply is allowed to create the missing object.
    pub(super) fn authorize_create(&self, call: &Call<'_>) -> Result<(), ApiStatus> {
        self.authorize(call.user, &Attributes::to_create(call.request))
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
        self.check_namespace(call)?;
        self.check_definition(call)?;
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
        self.set_server_fields(call, &mut object);
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
        builtin_rules::default_admitted(served, &mut object);
        if let Owners::Writer = owners {
            fields::record(None, &mut object, &manager(call, options), &served.schema, self.now());
        }
        check(served, &object, None)?;
        self.definitions_fit(served, &object)?;
        warnings.extend(self.validate(call, Operation::Create, &object, None, options.dry_run).await?);
        warnings.extend(finalizer_warnings(&object, None));
        self.complete_definition(served, &mut object);
        if options.dry_run == DryRun::All {
            metadata(&mut object).remove("resourceVersion");
            let is_used = self.store.get(&served.collection, &key(call.namespace(), object::name(&object))).is_some();
            return if is_used { Err(exists(served, &object)) } else { Ok(Outcome { object, warnings }) };
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
                Err(Conflict) if generates => {
                    let name = object::generated_name(&base, &mut *self.random());
                    metadata(&mut object).insert("name".to_owned(), json!(name));
                }
                Err(Conflict) => break,
            }
        }
        Err(exists(served, &object))
    }

    /// Changes a stored object. `propose` makes the new state from the current state. It is called again if another write changes the object in
    /// between.
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
            let is_for_this_version = check_preconditions(call, &old, &proposal.object)?;
            let mut warnings = warnings.clone();
            let mut object = self.prepared(call, &old, proposal, options, &mut warnings).await?;
            if same(&object, &old) && self.has_storage_version(served, &stored.value) {
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
                Err(Conflict) if is_for_this_version => return Err(call.modified()),
                Err(Conflict) => {}
            }
        }
        Err(call.modified())
    }

    /// The object to be stored: fields that the write may not change are restored, and the object is admitted and validated.
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
        restore_fixed(served, call.request.subresource.as_deref(), old, &mut object);
        normalise(served, &mut object, options, warnings)?;
        bump_generation(served, old, &mut object);
        let Admitted { object: admitted, warnings: more } =
            self.mutate(call, Operation::Update, object, Some(old), options.dry_run).await?;
        let mut object = admitted;
        warnings.extend(more);
        restore_fixed(served, call.request.subresource.as_deref(), old, &mut object);
        normalise(served, &mut object, &ignoring(options), warnings)?;
        bump_generation(served, old, &mut object);
        if let Owners::Writer = owners {
            fields::record(Some(old), &mut object, &manager(call, options), &served.schema, self.now());
        }
        check(served, &object, Some(old))?;
        self.definitions_fit(served, &object)?;
        warnings.extend(self.validate(call, Operation::Update, &object, Some(old), options.dry_run).await?);
        warnings.extend(finalizer_warnings(&object, Some(old)));
        self.complete_definition(served, &mut object);
        Ok(object)
    }

    /// Sets the fields that only the server sets.
    fn set_server_fields(&self, call: &Call<'_>, object: &mut Value) {
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

    /// Checks that the namespace of a new object exists and is not being deleted.
    fn check_namespace(&self, call: &Call<'_>) -> Result<(), ApiStatus> {
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

    /// Checks that the definition of a custom kind is not being deleted. Its objects can't be created then.
    fn check_definition(&self, call: &Call<'_>) -> Result<(), ApiStatus> {
        if !call.served.is_custom() {
            return Ok(());
        }
        let (group, plural) = (call.served.group(), call.served.plural());
        let definitions = super::store::Collection::new("apiextensions.k8s.io", "customresourcedefinitions");
        match self.store.get(&definitions, &format!("{plural}.{group}")) {
            Some(definition) if crd::is_terminating(&definition.value) => {
                let why = "create not allowed while custom resource definition is terminating";
                Err(ApiStatus::forbidden(group, plural, call.name(), why))
            }
            _ => Ok(()),
        }
    }

    /// Checks that all definitions together are within the limits.
    fn definitions_fit(&self, served: &Served, object: &Value) -> Result<(), ApiStatus> {
        if !served.is("apiextensions.k8s.io", "customresourcedefinitions") {
            return Ok(());
        }
        let stored = self.store.list(&served.collection, "").objects;
        crd::fits(object, stored.iter().map(|(_, stored)| &stored.value))
    }

    /// Sets the status of a definition, which follows from its spec and the other definitions.
    fn complete_definition(&self, served: &Served, object: &mut Value) {
        if served.is("apiextensions.k8s.io", "customresourcedefinitions") {
            let stored = self.store.list(&served.collection, "").objects;
            let status = crd::status(object, stored.iter().map(|(_, stored)| &stored.value), self.now());
            object["status"] = status;
        }
    }

    /// Whether an object is stored in the current storage version. If not, a write without a change converts it.
    fn has_storage_version(&self, served: &Served, stored: &Value) -> bool {
        let registry = self.registry();
        let storage = registry.storage_of(&served.collection).filter(|_| served.is_custom());
        storage.is_none_or(|storage| stored["apiVersion"] == storage.api_version())
    }

    /// Converts an object to the storage version of its kind.
    pub(super) async fn to_storage(&self, served: &Served, object: Value) -> Result<Value, ApiStatus> {
        let registry = self.registry();
        match registry.storage_of(&served.collection) {
            Some(storage) if storage.resource.kind != served.resource.kind => {
                let mut converted = self.converted(storage, vec![object]).await?.swap_remove(0);
                // Without a conversion the fields that only the written version has are lost.
                super::schema::prune::object(&mut converted, &storage.schema);
                Ok(converted)
            }
            _ => Ok(object),
        }
    }

    /// Reloads the served kinds after a write of a custom resource definition.
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

fn exists(served: &Served, object: &Value) -> ApiStatus {
    ApiStatus::already_exists(served.group(), served.plural(), object::name(object))
}

/// Whether an update creates missing objects of a kind. A few built-in kinds allow it.
fn creates_on_update(served: &Served) -> bool {
    matches!(
        (served.is_custom(), served.group(), served.plural()),
        (false, "coordination.k8s.io", "leases")
            | (false, "policy", "poddisruptionbudgets")
            | (false, "rbac.authorization.k8s.io", _)
            | (false, "", "events" | "endpoints" | "limitranges")
    )
}

fn ignoring(options: &WriteOptions) -> WriteOptions {
    WriteOptions { field_validation: FieldValidation::Ignore, ..options.clone() }
}
