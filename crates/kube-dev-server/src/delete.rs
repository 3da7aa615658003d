//! Deletions of objects and collections, with finalizers, grace periods and preconditions.
//!
//! Source: spec/extension-apiserver §2.8, §2.9, §6.3.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    admission::Operation,
    builtin_rules::{PERMANENT_NAMESPACES, namespace_finalizers},
    crd,
    kinds::Served,
    object::{self, metadata, time},
    read::{list_body, selection},
    server::{Answer, Call, Server},
    store::{Conflict, Expect, Stored, key},
};
use kube_protocol::{
    options::{DeleteOptions, DryRun, Propagation},
    request::ResourceRequest,
    status::{ApiStatus, deleted},
};

/// The finalizer of an object that waits for the deletion of its dependents.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object that waits until its dependents have no reference to it.
pub(super) const ORPHAN: &str = "orphan";

/// The maximum number of attempts of a deletion, when other writes change the object in between.
const TRIES: usize = 8;

/// The result of a deletion.
enum Deletion {
    /// The object is gone. This was its last state.
    Done(Value),
    /// The object is marked for deletion and waits for finalizers or its grace period.
    Pending(Value),
}

impl Server {
    pub(super) async fn delete(&self, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        let options = delete_options(call)?;
        let (group, plural) = (call.served.group(), call.served.plural());
        let mut warnings = Vec::new();
        let body = match self.remove(call, &options, &mut warnings).await? {
            Deletion::Pending(object) => self.shaped(call, object)?,
            Deletion::Done(object) if call.served.is("", "pods") => self.shaped(call, object)?,
            Deletion::Done(object) => deleted(group, plural, call.name(), &object["metadata"]["uid"]),
        };
        Ok(Answer::ok(body).with_warnings(warnings))
    }

    pub(super) async fn delete_collection(&self, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        let options = delete_options(call)?;
        let wanted = selection(call.query, &call.served)?;
        let prefix = call.namespace().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let snapshot = self.store.list(&call.served.collection, &prefix);
        let chosen = snapshot
            .objects
            .into_iter()
            .map(|(_, stored)| stored)
            .filter(|stored| wanted.labels.matches(&stored.value) && wanted.fields.matches(&stored.value))
            .take(wanted.limit.unwrap_or(usize::MAX));
        let (mut gone, mut warnings) = (Vec::new(), Vec::new());
        for stored in chosen {
            let request = ResourceRequest {
                name: Some(object::name(&stored.value).to_owned()),
                namespace: object::namespace(&stored.value).map(str::to_owned),
                ..call.request.clone()
            };
            let one = Call { request: &request, served: Arc::clone(&call.served), ..*call };
            match self.remove(&one, &options, &mut warnings).await {
                Ok(Deletion::Done(object) | Deletion::Pending(object)) => gone.push(object),
                Err(status) if status.code == 404 => {}
                Err(status) => return Err(status),
            }
        }
        let metadata = json!({"resourceVersion": self.store.revision().to_string()});
        Ok(Answer::ok(list_body(&call.served, gone, &metadata)).with_warnings(warnings))
    }

    /// Removes an object, or marks it for deletion. Warnings of webhooks are added to `warnings`.
    async fn remove(
        &self,
        call: &Call<'_>,
        options: &DeleteOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Deletion, ApiStatus> {
        let served = &*call.served;
        if served.is("", "namespaces") && PERMANENT_NAMESPACES.contains(&call.name()) {
            return Err(ApiStatus::forbidden("", "namespaces", call.name(), "this namespace may not be deleted"));
        }
        let before = warnings.len();
        for _ in 0..TRIES {
            let stored = self.store.get(&served.collection, &call.key()).ok_or_else(|| call.not_found())?;
            let old = self.present(served, vec![Arc::clone(&stored)]).await?.swap_remove(0);
            preconditions(call, options, &old)?;
            // Each attempt calls the webhooks again.
            warnings.truncate(before);
            warnings.extend(self.validate(call, Operation::Delete, &Value::Null, Some(&old), options.dry_run).await?);
            let Some(mut pending) = self.pending(served, &old, options) else {
                if options.dry_run == DryRun::All {
                    return Ok(Deletion::Done(old));
                }
                match self.store.write(&served.collection, &call.key(), Expect::Revision(stored.revision), None) {
                    Ok(_) => {
                        self.after_write(served);
                        return Ok(Deletion::Done(old));
                    }
                    Err(Conflict) => continue,
                }
            };
            if pending == old || options.dry_run == DryRun::All {
                return Ok(Deletion::Pending(pending));
            }
            let value = self.to_storage(served, pending.clone()).await?;
            let expect = Expect::Revision(stored.revision);
            if let Ok(written) = self.store.write(&served.collection, &call.key(), expect, Some(value)) {
                self.after_write(served);
                pending["metadata"]["resourceVersion"] = json!(written.revision.to_string());
                return Ok(Deletion::Pending(pending));
            }
        }
        Err(call.modified())
    }

    /// The object marked for deletion. `None` if it can be removed at once.
    fn pending(&self, served: &Served, old: &Value, options: &DeleteOptions) -> Option<Value> {
        let mut object = old.clone();
        let grace = grace_of(served, old, options);
        let was_deleting = object::is_deleting(old);
        if !was_deleting {
            let mut finalizers: Vec<&str> = object::finalizers(old);
            match options.propagation {
                Some(Propagation::Foreground) => finalizers.push(FOREGROUND),
                Some(Propagation::Orphan) => finalizers.push(ORPHAN),
                Some(Propagation::Background) | None => {}
            }
            if served.is("apiextensions.k8s.io", "customresourcedefinitions") && !finalizers.contains(&crd::CLEANUP) {
                finalizers.push(crd::CLEANUP);
            }
            let finalizers = json!(finalizers);
            if finalizers != json!([]) {
                metadata(&mut object).insert("finalizers".to_owned(), finalizers);
            }
        }
        let waits = grace > 0
            || !object::finalizers(&object).is_empty()
            || served.is("", "namespaces") && !namespace_finalizers(&object).is_empty();
        if !waits {
            return None;
        }
        let known = old["metadata"]["deletionGracePeriodSeconds"].as_u64();
        if was_deleting && known.is_none_or(|known| grace >= known) {
            return Some(object);
        }
        let at = self.now() + jiff::SignedDuration::from_secs(i64::try_from(grace).unwrap_or(0));
        let generation = old["metadata"]["generation"].as_i64();
        let fields = metadata(&mut object);
        fields.insert("deletionTimestamp".to_owned(), time(at));
        fields.insert("deletionGracePeriodSeconds".to_owned(), json!(grace));
        if let (Some(generation), false) = (generation, was_deleting) {
            fields.insert("generation".to_owned(), json!(generation + 1));
        }
        if served.is("", "namespaces") {
            // A namespace has no grace period. Its contents are deleted first.
            metadata(&mut object).remove("deletionGracePeriodSeconds");
            object["status"]["phase"] = json!("Terminating");
        }
        Some(object)
    }

    /// Stores a new state of an object for the server itself. Fails if the object has changed in between.
    pub(super) fn overwrite(
        &self,
        served: &Served,
        stored: &Stored,
        value: Option<Value>,
    ) -> Result<Arc<Stored>, Conflict> {
        let place = key(object::namespace(&stored.value), object::name(&stored.value));
        let written = self.store.write(&served.collection, &place, Expect::Revision(stored.revision), value)?;
        self.after_write(served);
        Ok(written)
    }
}

fn delete_options(call: &Call<'_>) -> Result<DeleteOptions, ApiStatus> {
    let body = if call.body.iter().all(u8::is_ascii_whitespace) {
        None
    } else {
        Some(call.decoded()?).filter(|body| !body.is_null())
    };
    DeleteOptions::parse(call.query, body.as_ref())
}

/// The grace period in seconds. Only pods on a node have one.
fn grace_of(served: &Served, old: &Value, options: &DeleteOptions) -> u64 {
    if !served.is("", "pods") {
        return 0;
    }
    let runs = !object::text(old, "/spec/nodeName").is_empty()
        && !matches!(object::text(old, "/status/phase"), "Succeeded" | "Failed");
    if !runs {
        return 0;
    }
    options.grace_seconds.or_else(|| old["spec"]["terminationGracePeriodSeconds"].as_u64()).unwrap_or(30)
}

fn preconditions(call: &Call<'_>, options: &DeleteOptions, old: &Value) -> Result<(), ApiStatus> {
    let (group, plural) = (call.served.group(), call.served.plural());
    if let Some(uid) = options.uid.as_ref().filter(|uid| *uid != object::uid(old)) {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and \
             then recreated",
            object::uid(old)
        );
        return Err(ApiStatus::conflict(group, plural, call.name(), &why));
    }
    let version = object::text(old, "/metadata/resourceVersion");
    if let Some(wanted) = options.resource_version.as_ref().filter(|wanted| *wanted != version) {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {version}"
        );
        return Err(ApiStatus::conflict(group, plural, call.name(), &why));
    }
    Ok(())
}
