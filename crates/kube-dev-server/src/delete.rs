//! Deletions: of one object and of collections, with finalizers, grace and preconditions.
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
    store::{Expect, Raced, Stored, key},
};
use kube_protocol::{
    options::{DeleteOptions, DryRun, Propagation},
    request::ResourceRequest,
    status::{ApiStatus, deleted},
};

/// Waits until what an object owns is gone.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// Waits until what an object owns is let go.
pub(super) const ORPHAN: &str = "orphan";

const TRIES: usize = 8;

/// What became of an object.
enum Fate {
    /// It is gone; this was its last state.
    Gone(Value),
    /// Something holds it.
    Held(Value),
}

impl Server {
    pub(super) async fn delete(&self, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        let options = delete_options(call)?;
        let (group, plural) = (call.served.group(), call.served.plural());
        let mut warnings = Vec::new();
        let body = match self.remove(call, &options, &mut warnings).await? {
            Fate::Held(object) => self.shaped(call, object)?,
            Fate::Gone(object) if call.served.is("", "pods") => self.shaped(call, object)?,
            Fate::Gone(object) => deleted(group, plural, call.name(), &object["metadata"]["uid"]),
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
                Ok(Fate::Gone(object) | Fate::Held(object)) => gone.push(object),
                Err(status) if status.code == 404 => {}
                Err(status) => return Err(status),
            }
        }
        let metadata = json!({"resourceVersion": self.store.revision().to_string()});
        Ok(Answer::ok(list_body(&call.served, gone, &metadata)).with_warnings(warnings))
    }

    /// Removes an object, or marks it; what the webhooks warn of is added to `warnings`.
    async fn remove(
        &self,
        call: &Call<'_>,
        options: &DeleteOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Fate, ApiStatus> {
        let served = &*call.served;
        if served.is("", "namespaces") && PERMANENT_NAMESPACES.contains(&call.name()) {
            return Err(ApiStatus::forbidden("", "namespaces", call.name(), "this namespace may not be deleted"));
        }
        let before = warnings.len();
        for _ in 0..TRIES {
            let stored = self.store.get(&served.collection, &call.key()).ok_or_else(|| call.not_found())?;
            let old = self.present(served, vec![Arc::clone(&stored)]).await?.swap_remove(0);
            preconditions(call, options, &old)?;
            // Another try is asked about anew.
            warnings.truncate(before);
            warnings.extend(self.validate(call, Operation::Delete, &Value::Null, Some(&old), options.dry_run).await?);
            let Some(held) = self.held(served, &old, options) else {
                if options.dry_run == DryRun::All {
                    return Ok(Fate::Gone(old));
                }
                match self.store.write(&served.collection, &call.key(), Expect::Revision(stored.revision), None) {
                    Ok(_) => {
                        self.after_write(served);
                        return Ok(Fate::Gone(old));
                    }
                    Err(Raced) => continue,
                }
            };
            if held == old || options.dry_run == DryRun::All {
                return Ok(Fate::Held(held));
            }
            let value = self.to_storage(served, held.clone()).await?;
            let expect = Expect::Revision(stored.revision);
            if let Ok(written) = self.store.write(&served.collection, &call.key(), expect, Some(value)) {
                self.after_write(served);
                let mut held = held;
                held["metadata"]["resourceVersion"] = json!(written.revision.to_string());
                return Ok(Fate::Held(held));
            }
        }
        Err(call.modified())
    }

    /// The object as it waits for its end; none if nothing holds it.
    fn held(&self, served: &Served, old: &Value, options: &DeleteOptions) -> Option<Value> {
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
            // It has no grace; the content goes first.
            metadata(&mut object).remove("deletionGracePeriodSeconds");
            object["status"]["phase"] = json!("Terminating");
        }
        Some(object)
    }

    /// Stores a new state of an object on the server's own account, unless somebody else was quicker.
    pub(super) fn overwrite(
        &self,
        served: &Served,
        stored: &Stored,
        value: Option<Value>,
    ) -> Result<Arc<Stored>, Raced> {
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

/// Seconds that an object has to end: pods on a node only.
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
