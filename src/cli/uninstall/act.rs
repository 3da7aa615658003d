//! Carries out a plan, and checks between its actions whether a manager has started.

use std::{io::Write, sync::Arc};

use k8s_openapi::api::authorization::v1::ResourceAttributes;
use kube::{Client, api::DynamicObject};
use serde_json::json;
use tokio::time::Instant;

use super::{
    inventory::{Found, LEASE_NAMES, Place, definition_of},
    plan::{Action, is_in_target},
};
use crate::cli::{
    Failure,
    lease_watch::{self, Held, LeaseState, READ_PERIOD},
    migrate_storage::definition::place as place_of,
};
use controller_runtime::{
    error::ApiError,
    key::Target,
    objects::{ApiServer, DeleteHow, ObjectApi, Part, Patch},
    preflight::is_allowed,
};
use machine_api::{kind::ApiVersion, names};

/// How often the removal of a finalizer is tried when the object changes meanwhile.
const TRIES: usize = 5;

/// The clusters of a plan.
pub(super) struct Clusters {
    pub(super) control: Client,
    /// The cluster with the Nodes, if they may be changed.
    pub(super) target: Option<Client>,
}

impl Clusters {
    fn of(&self, action: &Action) -> &Client {
        if is_in_target(action) { self.target.as_ref().unwrap_or(&self.control) } else { &self.control }
    }

    /// The missing rights of the user of the kubeconfigs, as text.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub(super) async fn missing_rights(&self, needed: &[&Action]) -> Result<Vec<String>, Failure> {
        let mut missing = Vec::new();
        for action in needed {
            let found = action.found();
            let attributes = ResourceAttributes {
                group: Some(found.resource.group.to_owned()),
                resource: Some(found.resource.plural.to_owned()),
                verb: Some(action.verb().to_owned()),
                namespace: found.namespace().map(str::to_owned),
                name: Some(found.name().to_owned()),
                ..ResourceAttributes::default()
            };
            let answer = is_allowed(self.of(action), attributes).await;
            if !answer.map_err(|error| Failure::run(anyhow::anyhow!("cannot ask for my rights: {error}")))? {
                let place =
                    found.namespace().map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
                missing.push(format!("{} {}{place}", action.verb(), found.resource.plural));
            }
        }
        Ok(missing)
    }

    /// Carries out the actions in order. `sentinel` is checked before each.
    ///
    /// # Errors
    /// At the first action that fails. Finished actions are not undone.
    pub(super) async fn carry_out(
        &self,
        actions: Vec<Action>,
        sentinel: &mut Option<Sentinel>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        for action in actions {
            if let Some(sentinel) = sentinel {
                sentinel.is_alone().await?;
            }
            let (what, api) = (action.text(), action.found().resource.api(self.of(&action)));
            let done = match action {
                Action::Delete(found) => api.delete(&Target::of(&found.object), DeleteHow::default()).await.map(drop),
                Action::Unserve(found) => unserve(&api, &found).await,
                Action::Release(found, finalizer) => remove_finalizer(&api, found.object, finalizer).await,
            };
            match done {
                Ok(()) => writeln!(out, "done: {what}")?,
                // Another client has removed it.
                Err(ApiError::NotFound(_)) => writeln!(out, "gone: {what}")?,
                Err(error) => {
                    return Err(Failure::run(anyhow::anyhow!("cannot {what}: {error}; run the command again")));
                }
            }
        }
        Ok(())
    }
}

/// Detects a manager that starts during the uninstallation.
pub(super) struct Sentinel {
    client: Client,
    namespace: String,
    /// The Leases while no manager was running.
    known: Vec<Option<Held>>,
    checked: Instant,
}

impl Sentinel {
    /// Watches both Leases, and returns the results.
    ///
    /// # Errors
    /// When a Lease can't be read.
    pub(super) async fn watch(client: &Client, place: &Place) -> Result<(Self, Vec<LeaseState>), Failure> {
        let (client, namespace) = (client.clone(), place.namespace.clone());
        let watches = LEASE_NAMES.map(|name| lease_watch::watch(&client, &namespace, name));
        let watched = futures::future::try_join_all(watches).await;
        let states = watched.map_err(|error| unreadable(&error))?;
        let known = states.iter().map(|state| match state {
            LeaseState::NotRenewed { held, .. } | LeaseState::Unproven { held, .. } => Some(held.clone()),
            LeaseState::Free | LeaseState::Renewed { .. } => None,
        });
        let known = known.collect();
        Ok((Self { client, namespace, known, checked: Instant::now() }, states))
    }

    /// Checks the Leases again, at most once a second. A manager that acquires a Lease makes its first write later than that.
    async fn is_alone(&mut self) -> Result<(), Failure> {
        if self.checked.elapsed() < READ_PERIOD {
            return Ok(());
        }
        for (name, known) in LEASE_NAMES.iter().zip(&self.known) {
            let now = lease_watch::read_held(&self.client, &self.namespace, name).await;
            let now = now.map_err(|error| unreadable(&error))?;
            if let Some(held) = now.filter(|now| Some(now) != known.as_ref()) {
                return Err(Failure::Input(format!(
                    "a manager has begun to run meanwhile: {} holds Lease {name}; stop it, then run this command again for \
                     the rest",
                    held.holder
                )));
            }
        }
        self.checked = Instant::now();
        Ok(())
    }
}

fn unreadable(error: &ApiError) -> Failure {
    Failure::run(anyhow::anyhow!("cannot read the Leases, so that a running manager could not be detected: {error}"))
}

/// The definition may have changed since it was read, while the command waited for the confirmation. If a migration has ended meanwhile,
/// the patch must fail, since nothing could read its objects any more.
async fn unserve(api: &ApiServer<DynamicObject>, found: &Found) -> Result<(), ApiError> {
    let definition = definition_of(&found.object);
    let place = place_of(&definition, ApiVersion::V1beta1).unwrap_or_default();
    let stored_as_planned = "/status/storedVersions";
    let patch = Patch::Json(vec![
        json!({"op": "test", "path": stored_as_planned, "value": definition.pointer(stored_as_planned)}),
        json!({"op": "test", "path": "/spec/conversion", "value": definition["spec"]["conversion"]}),
        json!({"op": "test", "path": format!("/spec/versions/{place}/name"), "value": names::V1BETA1}),
        json!({"op": "replace", "path": format!("/spec/versions/{place}/served"), "value": false}),
        json!({"op": "replace", "path": "/spec/conversion", "value": {"strategy": "None"}}),
    ]);
    let Target { key, uid } = Target::of(&found.object);
    match api.patch(&key, Part::Main, &patch.bound_to(&uid)).await {
        Ok(_) => Ok(()),
        Err(ApiError::Invalid(why)) => Err(ApiError::Conflict(format!(
            "it may have changed since this command read it, and was left as it is: {why}"
        ))),
        Err(error) => Err(error),
    }
}

/// Removes our finalizer. After a conflict it tries again with the current version, if it is still the same object.
async fn remove_finalizer(api: &ApiServer<DynamicObject>, object: DynamicObject, ours: &str) -> Result<(), ApiError> {
    let Target { key, uid } = Target::of(&object);
    let mut object = Arc::new(object);
    for _ in 0..TRIES {
        let metadata = &object.metadata;
        let remaining: Vec<&String> = metadata.finalizers.iter().flatten().filter(|other| *other != ours).collect();
        let patch = Patch::Merge(json!({"metadata": {"finalizers": remaining}}));
        let patch = patch.guarded_by(metadata.resource_version.as_deref()).bound_to(&uid);
        match api.patch(&key, Part::Main, &patch).await {
            Ok(_) => return Ok(()),
            Err(ApiError::Conflict(_)) => {
                object = api.read(&key).await?;
                if Target::of(&*object).uid != uid {
                    return Err(ApiError::NotFound(format!("{key} is another object now")));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(ApiError::Conflict(format!("{key} is being changed all the time; stop the client that does it")))
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Mutex};

    use axum::body::Body;
    use http::{Method, Request, Response};
    use http_body_util::BodyExt;
    use rstest::rstest;
    use serde_json::Value;

    use super::*;
    use crate::cli::cluster_objects::{DEFINITIONS, Resource};
    use machine_api::names::finalizer;

    /// An API server with a machine in its second version, and the patches that it received.
    fn server(uid: &'static str) -> (Client, Arc<Mutex<Vec<Value>>>) {
        let patches: Arc<Mutex<Vec<Value>>> = Arc::default();
        let noted = Arc::clone(&patches);
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let noted = Arc::clone(&noted);
            async move {
                let stored = machine(uid, "2");
                let (head, body) = request.into_parts();
                let (code, answer) = if head.method == Method::PATCH {
                    let patch: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
                    let metadata = &patch["metadata"];
                    let fits = metadata["uid"] == uid && metadata["resourceVersion"] == "2";
                    noted.lock().unwrap().push(patch);
                    let conflict = json!({"kind": "Status", "apiVersion": "v1", "code": 409, "reason": "Conflict", "message": "changed"});
                    if fits { (200, stored) } else { (409, conflict) }
                } else {
                    (200, stored)
                };
                Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(answer.to_string())).unwrap())
            }
        });
        (Client::new(service, "mcm"), patches)
    }

    fn definition(stored: &[&str], bundle: &str) -> Value {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "machines.machine.sapcloud.io", "uid": "u"},
            "spec": {
                "versions": [{"name": "v1alpha1", "served": true}, {"name": "v1beta1", "served": true}],
                "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"caBundle": bundle}}},
            },
            "status": {"storedVersions": stored},
        })
    }

    /// An API server that applies JSON patches to one definition.
    fn patching(stored: Value) -> (Client, Arc<Mutex<Value>>) {
        let stored = Arc::new(Mutex::new(stored));
        let kept = Arc::clone(&stored);
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let kept = Arc::clone(&kept);
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let patch: json_patch::Patch = serde_json::from_slice(&body).unwrap();
                let mut kept = kept.lock().unwrap();
                let (code, answer) = match json_patch::patch(&mut kept, &patch) {
                    Ok(()) => (200, kept.clone()),
                    Err(why) => {
                        (422, json!({"kind": "Status", "apiVersion": "v1", "code": 422, "message": why.to_string()}))
                    }
                };
                Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(answer.to_string())).unwrap())
            }
        });
        (Client::new(service, "mcm"), stored)
    }

    #[rstest]
    #[case::as_it_was_read(definition(&["v1alpha1"], "YQ=="), true)]
    #[case::migrated_meanwhile(definition(&["v1beta1"], "YQ=="), false)]
    #[case::half_way_there(definition(&["v1alpha1", "v1beta1"], "YQ=="), false)]
    #[case::another_converter(definition(&["v1alpha1"], "Yg=="), false)]
    #[tokio::test]
    async fn only_an_unchanged_definition_loses_its_converter(#[case] now: Value, #[case] goes: bool) {
        let (client, stored) = patching(now.clone());
        let api = DEFINITIONS.api(&client);
        let read = serde_json::from_value(definition(&["v1alpha1"], "YQ==")).unwrap();
        let found = Found { resource: DEFINITIONS, object: read };
        let done = unserve(&api, &found).await;
        assert_eq!(done.is_ok(), goes, "{done:?}");
        let stored = stored.lock().unwrap();
        if goes {
            assert_eq!(
                (&stored["spec"]["conversion"]["strategy"], &stored["spec"]["versions"][1]["served"]),
                (&json!("None"), &json!(false))
            );
        } else {
            assert_eq!(*stored, now);
        }
    }

    fn machine(uid: &str, version: &str) -> Value {
        let finalizers = [finalizer::MACHINE, "example.com/other"];
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "m", "namespace": "mcm", "uid": uid, "resourceVersion": version, "finalizers": finalizers},
        })
    }

    #[rstest]
    #[case::the_same_object_in_a_newer_version("u1", true)]
    #[case::another_object_of_the_name("u2", false)]
    #[tokio::test]
    async fn only_the_planned_object_loses_its_finalizer(#[case] uid: &'static str, #[case] goes: bool) {
        let (client, patches) = server(uid);
        let api = Resource::of_kind(machine_api::kind::Kind::Machine).api(&client);
        let planned: DynamicObject = serde_json::from_value(machine("u1", "1")).unwrap();
        let done = remove_finalizer(&api, planned, finalizer::MACHINE).await;
        assert_eq!((done.is_ok(), done.is_err_and(|error| error.is_not_found())), (goes, !goes));
        let patches = patches.lock().unwrap();
        assert!(patches.iter().all(|patch| patch["metadata"]["uid"] == "u1"), "{patches:?}");
        assert_eq!(patches.len(), if goes { 2 } else { 1 });
    }
}
