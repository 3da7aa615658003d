//! Keeps our finalizer on Secrets while machine classes refer to them.
//!
//! A class refers to a Secret by namespace and name, in either of its two references (M-36). Before the finalizer is
//! removed, the API server is asked for classes that refer to the Secret: a class can be missing in the store, and
//! without its Secret the VMs of a class can't be deleted any more. Source: spec/machine-controller §10.2.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use controller_runtime::{
    key::{ObjectKey, Target},
    objects::{Objects, Part},
    queue::Outcome,
    store::Change,
};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use machine_api::{
    names::finalizer,
    v1alpha1::{MachineClass, SecretReference},
};
use serde::Serialize;
use serde_json::Value;

use crate::{
    class::settle,
    finalizer_patches,
    views::{BY_SECRET, ControlViews, qualified},
};

/// Time until a Secret is checked again if a class that is not in the store refers to it. No event arrives when that
/// class goes.
const UNSEEN_CLASS: Duration = Duration::from_secs(60);

/// The decision about the finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum FinalizerVerdict {
    /// Add it.
    Add,
    /// Remove it.
    Remove,
    /// Nothing: it is correct, or can't be changed.
    Keep,
}

/// Decides about the finalizer of this Secret, to which this number of classes refers.
pub fn secret_finalizer(secret: &Secret, references: usize) -> FinalizerVerdict {
    let has = secret.finalizers().iter().any(|name| name == finalizer::SECRET);
    let deleting = secret.metadata.deletion_timestamp.is_some();
    match (references > 0, has, deleting) {
        (true, false, false) => FinalizerVerdict::Add,
        (false, true, _) => FinalizerVerdict::Remove,
        (true, true, _) | (false, false, _) | (true, false, true) => FinalizerVerdict::Keep,
    }
}

/// Whether a class in JSON, of any served version, refers to this Secret. The fields have other names in v1beta1.
fn refers_to(class: &Value, secret: &ObjectKey) -> bool {
    let own = class.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default();
    ["/secretRef", "/credentialsSecretRef", "/spec/userDataSecretRef", "/spec/credentialsSecretRef"]
        .into_iter()
        .filter_map(|field| class.pointer(field))
        .any(|reference| {
            let namespace = reference["namespace"].as_str().filter(|namespace| !namespace.is_empty()).unwrap_or(own);
            reference["name"] == secret.name && namespace == secret.namespace
        })
}

/// The dependencies of the Secret controller.
pub struct SecretDeps {
    /// The stores of the control cluster.
    pub views: ControlViews,
    /// Secrets of the control namespace, read and written.
    pub secrets: Objects<Arc<Secret>>,
    /// Classes, read.
    pub classes: Objects<Arc<MachineClass>>,
}

/// Adds and removes the finalizers of Secrets.
pub struct SecretController(SecretDeps);

impl SecretController {
    /// A controller; it does nothing until its queue runs [`Self::reconcile`].
    pub fn new(deps: SecretDeps) -> Self {
        Self(deps)
    }

    /// One pass over a Secret.
    pub async fn reconcile(&self, key: ObjectKey) -> Outcome {
        let SecretDeps { views, secrets, classes } = &self.0;
        let Some(secret) = views.secrets.get(&key) else { return Outcome::Settled };
        let references = views.classes.by_index(BY_SECRET, &qualified(&key.namespace, &key.name)).len();
        let patch = match secret_finalizer(&secret, references) {
            FinalizerVerdict::Keep => return Outcome::Settled,
            FinalizerVerdict::Add => finalizer_patches::with(&*secret, finalizer::SECRET),
            FinalizerVerdict::Remove => match classes.find_live(&key.namespace, |class| refers_to(class, &key)).await {
                Ok(None) => match finalizer_patches::without(secret.finalizers(), finalizer::SECRET) {
                    Some(patch) => patch,
                    None => return Outcome::Settled,
                },
                Ok(Some(class)) => {
                    tracing::warn!(
                        kind = "Secret",
                        namespace = key.namespace,
                        name = key.name,
                        class,
                        "the Secret keeps its finalizer for a class that the view does not show"
                    );
                    return Outcome::LookAgain(UNSEEN_CLASS, "a class with the Secret that the view does not show");
                }
                Err(error) => return Outcome::Retry(format!("classes with Secret {key}: {error}")),
            },
        };
        settle(secrets.patch(&Target::of(&*secret), Part::Main, patch).await.map(drop), &key, || async {
            secrets.get(&key).await.map(drop)
        })
        .await
    }
}

/// The Secret to check after a change of a Secret. Changes of its data do not matter.
pub fn after_secret(change: &Change<Arc<Secret>>) -> BTreeSet<ObjectKey> {
    let matters = match (&change.old, &change.new) {
        (Some(old), Some(new)) => old.metadata.finalizers != new.metadata.finalizers,
        (None, Some(_)) => true,
        (_, None) => false,
    };
    change.new.iter().filter(|_| matters).map(|secret| ObjectKey::of(&**secret)).collect()
}

/// The Secrets to check after a change of a class: its former and its present Secrets, if they differ.
pub fn after_class(change: &Change<Arc<MachineClass>>) -> BTreeSet<ObjectKey> {
    let of = |class: Option<&Arc<MachineClass>>| class.map(|class| references(class)).unwrap_or_default();
    let (before, now) = (of(change.old.as_ref()), of(change.new.as_ref()));
    before.symmetric_difference(&now).cloned().collect()
}

fn references(class: &MachineClass) -> BTreeSet<ObjectKey> {
    let own = class.namespace().unwrap_or_default();
    let key = |reference: &SecretReference| {
        let namespace = if reference.namespace.is_empty() { own.clone() } else { reference.namespace.clone() };
        ObjectKey::new(namespace, reference.name.clone())
    };
    [&class.secret_ref, &class.credentials_secret_ref].into_iter().flatten().map(key).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn secret(has: bool, deleting: bool) -> Secret {
        let mut secret = Secret::default();
        if has {
            secret.finalizers_mut().push(finalizer::SECRET.to_owned());
        }
        secret.metadata.deletion_timestamp = deleting.then_some(Time(Timestamp::UNIX_EPOCH));
        secret
    }

    #[rstest]
    #[case::mc_266_referenced(false, false, 1, FinalizerVerdict::Add)]
    #[case::mc_266_no_longer_referenced(true, false, 0, FinalizerVerdict::Remove)]
    #[case::mc_269_never_added_while_deleting(false, true, 1, FinalizerVerdict::Keep)]
    #[case::mc_270_deleted_while_referenced(true, true, 1, FinalizerVerdict::Keep)]
    #[case::somebody_elses(false, false, 0, FinalizerVerdict::Keep)]
    fn the_finalizer_of_a_secret(
        #[case] has: bool,
        #[case] deleting: bool,
        #[case] references: usize,
        #[case] verdict: FinalizerVerdict,
    ) {
        assert_eq!(secret_finalizer(&secret(has, deleting), references), verdict);
    }

    /// Runs a pass over Secret `ns/s` while the API server has this class, which is not in the store. Returns the
    /// outcome and the number of patches.
    async fn patches_with(class: Value) -> (Outcome, usize) {
        use http::{Method, Request, Response};
        use kube::client::Body;
        let patches = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = Arc::clone(&patches);
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = if request.method() == Method::PATCH {
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                json!({"metadata": {"name": "s", "namespace": "ns", "uid": "1", "resourceVersion": "9"}})
            } else {
                json!({"items": [class]})
            };
            let answer = Response::new(Body::from(answer.to_string().into_bytes()));
            async move { Ok::<_, kube::Error>(answer) }
        });
        let client = kube::Client::new(service, "ns");
        let gate = controller_runtime::gate::Gate::open_until(tokio_util::sync::CancellationToken::new());
        let views = ControlViews::default();
        let mut secret = secret(true, true);
        secret.metadata.name = Some("s".to_owned());
        secret.metadata.namespace = Some("ns".to_owned());
        secret.metadata.uid = Some("1".to_owned());
        views.secrets.apply(secret);
        let controller = SecretController::new(SecretDeps {
            secrets: Objects::new(client.clone(), gate.clone(), Some(Arc::clone(&views.secrets)), |_| {}),
            classes: Objects::new(client, gate, None, |_| {}),
            views,
        });
        let outcome = controller.reconcile(ObjectKey::new("ns", "s")).await;
        (outcome, patches.load(std::sync::atomic::Ordering::Relaxed))
    }

    #[rstest]
    #[case::its_own_namespace(json!({"metadata": {"name": "c", "namespace": "ns"}, "secretRef": {"name": "s"}}), 0)]
    #[case::for_credentials(json!({"metadata": {"name": "c"}, "credentialsSecretRef": {"name": "s", "namespace": "ns"}}), 0)]
    #[case::undecodable(json!({"metadata": {"name": "c"}, "secretRef": {"name": "s", "namespace": "ns"}, "nodeTemplate": 7}), 0)]
    #[case::in_v1beta1(json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"userDataSecretRef": {"name": "s"}}}), 0)]
    #[case::to_another_secret(json!({"metadata": {"name": "c", "namespace": "ns"}, "secretRef": {"name": "t"}}), 1)]
    #[case::mc_267_to_a_namesake_elsewhere(json!({"metadata": {"name": "c"}, "secretRef": {"name": "s", "namespace": "other"}}), 1)]
    #[tokio::test]
    async fn the_api_server_is_asked_for_a_class_before_a_secret_loses_its_finalizer(
        #[case] class: Value,
        #[case] patches: usize,
    ) {
        let (outcome, written) = patches_with(class).await;
        assert_eq!(written, patches, "{outcome:?}");
        assert_eq!(matches!(outcome, Outcome::LookAgain(..)), patches == 0, "{outcome:?}");
    }

    #[test]
    fn mc_267_a_namesake_in_another_namespace_is_not_referred_to() {
        let views = ControlViews::default();
        let mut class = MachineClass {
            secret_ref: Some(SecretReference { name: "s".to_owned(), namespace: "other".to_owned() }),
            ..MachineClass::default()
        };
        class.metadata.name = Some("c".to_owned());
        class.metadata.namespace = Some("ns".to_owned());
        views.classes.apply(class);
        let references = |namespace| views.classes.by_index(BY_SECRET, &qualified(namespace, "s")).len();
        assert_eq!((references("ns"), references("other")), (0, 1));
    }

    fn class(secret: Option<&str>, credentials: Option<&str>) -> Arc<MachineClass> {
        let reference = |name: &str| SecretReference { name: name.to_owned(), namespace: String::new() };
        let mut class = MachineClass {
            secret_ref: secret.map(reference),
            credentials_secret_ref: credentials.map(reference),
            ..MachineClass::default()
        };
        class.metadata.namespace = Some("ns".to_owned());
        Arc::new(class)
    }

    #[rstest]
    #[case::mc_268_only_credentials(None, Some(class(None, Some("c"))), &["c"])]
    #[case::a_changed_reference(Some(class(Some("a"), None)), Some(class(Some("b"), None)), &["a", "b"])]
    #[case::nothing_changed(Some(class(Some("a"), None)), Some(class(Some("a"), None)), &[])]
    #[case::the_class_is_gone(Some(class(Some("a"), None)), None, &["a"])]
    fn a_class_wakes_secrets(
        #[case] old: Option<Arc<MachineClass>>,
        #[case] new: Option<Arc<MachineClass>>,
        #[case] woken: &[&str],
    ) {
        let keys = after_class(&Change { old, new });
        assert_eq!(keys.iter().map(|key| key.name.as_str()).collect::<Vec<_>>(), woken);
    }
}
