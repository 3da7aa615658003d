//! Keeps our finalizer on machine classes while machines use them.
//!
//! The finalizer is added when a machine refers to the class. It is removed only when the class is being deleted and no
//! machine refers to it (decisions.md 7). Before that, the API server is asked for such machines: without its class,
//! the VM of a machine can't be deleted any more. Source: spec/machine-controller §10.1.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use controller_runtime::{
    error::ApiError,
    events::{EventNote, Recorder},
    key::{ObjectKey, Target},
    objects::{Objects, Part},
    queue::Outcome,
    snapshot::Snapshot,
    store::Change,
};
use kube::ResourceExt;
use machine_api::{
    names::{MACHINE_CLASS_KIND, finalizer, machine_reason},
    v1alpha1::MachineClass,
};
use serde::Serialize;
use serde_json::Value;

use crate::{
    finalizer_patches,
    snapshots::MachineSnapshot,
    views::{BY_CLASS, ControlViews, qualified},
};

/// Time until a class is checked again if it is used by a machine that is not in the store. No event arrives when that
/// machine goes.
const UNSEEN_USER: Duration = Duration::from_secs(60);

/// The decision about the finalizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum FinalizerVerdict {
    /// Add it.
    Add,
    /// Remove it.
    Remove,
    /// Nothing.
    Keep,
    /// Keep it until these machines are gone.
    WaitFor(Vec<String>),
}

/// Decides what to do with the finalizer of this class, which these machines use.
pub fn class_finalizer(class: &MachineClass, users: &[MachineSnapshot]) -> FinalizerVerdict {
    let mut users = users.iter().filter(|user| user.class_ref().kind == MACHINE_CLASS_KIND).peekable();
    let has = class.finalizers().iter().any(|name| name == finalizer::MACHINE);
    let deleting = class.metadata.deletion_timestamp.is_some();
    match (deleting, users.peek().is_none(), has) {
        (false, false, false) => FinalizerVerdict::Add,
        (true, true, true) => FinalizerVerdict::Remove,
        (true, false, true) => FinalizerVerdict::WaitFor(users.map(|user| user.name().to_owned()).collect()),
        // The API server refuses new finalizers on an object that is being deleted.
        (true, _, false) | (false, true, _) | (false, false, true) => FinalizerVerdict::Keep,
    }
}

/// Whether a machine in JSON, of any served version, uses the class of this name. The field has another name in
/// v1beta1.
fn uses(machine: &Value, class: &str) -> bool {
    ["/spec/class", "/spec/classRef"]
        .into_iter()
        .filter_map(|field| machine.pointer(field))
        .any(|named| named["name"] == class && named["kind"] == MACHINE_CLASS_KIND)
}

/// The dependencies of the class controller.
pub struct ClassDeps {
    /// The stores of the control cluster.
    pub views: ControlViews,
    /// Classes, read and written.
    pub classes: Objects<Arc<MachineClass>>,
    /// Machines, read.
    pub machines: Objects<MachineSnapshot>,
    /// Writes events.
    pub recorder: Recorder,
}

/// Adds and removes the finalizers of classes.
pub struct ClassController(ClassDeps);

impl ClassController {
    /// A controller; it does nothing until its queue runs [`Self::reconcile`].
    pub fn new(deps: ClassDeps) -> Self {
        Self(deps)
    }

    /// One pass over a class.
    pub async fn reconcile(&self, key: ObjectKey) -> Outcome {
        let ClassDeps { views, classes, machines, recorder } = &self.0;
        let Some(class) = views.classes.get(&key) else { return Outcome::Settled };
        let users = views.machines.by_index(BY_CLASS, &qualified(&key.namespace, &key.name));
        let patch = match class_finalizer(&class, &users) {
            FinalizerVerdict::Keep => return Outcome::Settled,
            FinalizerVerdict::WaitFor(users) => {
                let message = format!(
                    "the class is being deleted but {} machine(s) still use it, such as {}",
                    users.len(),
                    users.first().map(String::as_str).unwrap_or_default()
                );
                recorder.note(&class, EventNote::warning(machine_reason::STILL_REFERENCED, message));
                return Outcome::Settled;
            }
            // A machine can be missing in the store: it can't be decoded, or it has not arrived yet.
            FinalizerVerdict::Remove => match machines.find_live(&key.namespace, |user| uses(user, &key.name)).await {
                Ok(None) => match finalizer_patches::without(class.finalizers(), finalizer::MACHINE) {
                    Some(patch) => patch,
                    None => return Outcome::Settled,
                },
                Ok(Some(user)) => {
                    let message = format!(
                        "the class is being deleted but machine {user} still uses it, which this process does not see; the \
                         log and the event Undecodable tell of objects that can't be read"
                    );
                    recorder.note(&class, EventNote::warning(machine_reason::STILL_REFERENCED, message));
                    return Outcome::LookAgain(UNSEEN_USER, "a machine of the class that the view does not show");
                }
                Err(error) => return Outcome::Retry(format!("machines of class {key}: {error}")),
            },
            FinalizerVerdict::Add => finalizer_patches::with(&*class, finalizer::MACHINE),
        };
        settle(classes.patch(&Target::of(&*class), Part::Main, patch).await.map(drop), &key, || async {
            classes.get(&key).await.map(drop)
        })
        .await
    }
}

/// The outcome of a finalizer write. After a conflict the object is read again, so that the retry decides on its
/// current version.
pub(crate) async fn settle<F, Fut>(written: Result<(), ApiError>, key: &ObjectKey, reread: F) -> Outcome
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<(), ApiError>>,
{
    match written {
        Ok(()) | Err(ApiError::NotFound(_) | ApiError::NotLeading(_)) => Outcome::Settled,
        Err(error) => {
            if let Err(error) = reread().await {
                return Outcome::Retry(format!("{key} can't be read again: {error}"));
            }
            Outcome::after(&error, format!("finalizer of {key}: {error}"))
        }
    }
}

/// The class to check after a change of a class.
pub fn after_class(change: &Change<Arc<MachineClass>>) -> BTreeSet<ObjectKey> {
    change.new.iter().map(|class| ObjectKey::of(&**class)).collect()
}

/// The classes to check after a change of a machine: classes that gained or lost a user.
pub fn after_machine(change: &Change<MachineSnapshot>) -> BTreeSet<ObjectKey> {
    let class = |machine: &MachineSnapshot| {
        let named = machine.class_ref();
        (named.kind == MACHINE_CLASS_KIND && !named.name.is_empty())
            .then(|| ObjectKey::new(machine.namespace(), named.name.clone()))
    };
    let before = change.old.as_ref().and_then(class);
    let now = change.new.as_ref().and_then(class);
    if before == now { BTreeSet::new() } else { before.into_iter().chain(now).collect() }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use machine_api::v1alpha1::Machine;

    fn class(has: bool, deleting: bool) -> MachineClass {
        let mut class = MachineClass::default();
        class.metadata.finalizers = Some(vec!["other".to_owned()]);
        if has {
            class.finalizers_mut().push(finalizer::MACHINE.to_owned());
        }
        class.metadata.deletion_timestamp = deleting.then_some(Time(Timestamp::UNIX_EPOCH));
        class
    }

    fn user(kind: &str) -> MachineSnapshot {
        let mut machine = Machine::default();
        machine.metadata.name = Some("m".to_owned());
        machine.spec.class.kind = kind.to_owned();
        machine.into()
    }

    #[rstest]
    #[case::mc_039_a_used_class_gets_it(false, false, vec![user("MachineClass")], FinalizerVerdict::Add)]
    #[case::mc_261_an_unused_class_keeps_what_the_webhook_put_on(true, false, vec![], FinalizerVerdict::Keep)]
    #[case::mc_261_an_unused_class_gets_none(false, false, vec![], FinalizerVerdict::Keep)]
    #[case::mc_261_a_deleted_unused_class_is_released(true, true, vec![], FinalizerVerdict::Remove)]
    #[case::mc_262_a_deleted_used_class_stays(
        true, true, vec![user("MachineClass")], FinalizerVerdict::WaitFor(vec!["m".to_owned()])
    )]
    #[case::mc_263_another_kind_does_not_count(false, false, vec![user("AWSMachineClass")], FinalizerVerdict::Keep)]
    #[case::never_added_while_deleting(false, true, vec![user("MachineClass")], FinalizerVerdict::Keep)]
    fn the_finalizer_of_a_class(
        #[case] has: bool,
        #[case] deleting: bool,
        #[case] users: Vec<MachineSnapshot>,
        #[case] verdict: FinalizerVerdict,
    ) {
        assert_eq!(class_finalizer(&class(has, deleting), &users), verdict);
    }

    /// Runs a pass while the API server has this machine of class `c`, which is not in the store. Returns the outcome
    /// and the number of patches.
    async fn patches_with(machine: Value) -> (Outcome, usize) {
        use http::{Method, Request, Response};
        use kube::client::Body;
        let patches = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = Arc::clone(&patches);
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = if request.method() == Method::PATCH {
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                json!({"metadata": {"name": "c", "namespace": "ns", "uid": "1", "resourceVersion": "9"}})
            } else {
                json!({"items": [machine]})
            };
            let answer = Response::new(Body::from(answer.to_string().into_bytes()));
            async move { Ok::<_, kube::Error>(answer) }
        });
        let client = kube::Client::new(service, "ns");
        let gate = controller_runtime::gate::Gate::open_until(tokio_util::sync::CancellationToken::new());
        let views = ControlViews::default();
        let mut class = class(true, true);
        class.metadata.name = Some("c".to_owned());
        class.metadata.namespace = Some("ns".to_owned());
        class.metadata.uid = Some("1".to_owned());
        views.classes.apply(class);
        let controller = ClassController::new(ClassDeps {
            classes: Objects::new(client.clone(), gate.clone(), Some(Arc::clone(&views.classes)), |_| {}),
            machines: Objects::new(client, gate, None, |_| {}),
            recorder: Recorder::new("test", tokio::sync::mpsc::channel(8).0),
            views,
        });
        let outcome = controller.reconcile(ObjectKey::new("ns", "c")).await;
        (outcome, patches.load(std::sync::atomic::Ordering::Relaxed))
    }

    #[rstest]
    #[case::undecodable(json!({"metadata": {"name": "m"}, "spec": {"class": {"kind": "MachineClass", "name": "c"}, "nodeTemplate": 7}}), 0)]
    #[case::in_v1beta1(json!({"metadata": {"name": "m"}, "spec": {"classRef": {"kind": "MachineClass", "name": "c"}}}), 0)]
    #[case::of_another_class(json!({"metadata": {"name": "m"}, "spec": {"class": {"kind": "MachineClass", "name": "d"}}}), 1)]
    #[tokio::test]
    async fn the_api_server_is_asked_before_a_class_loses_its_finalizer(
        #[case] machine: Value,
        #[case] patches: usize,
    ) {
        let (outcome, written) = patches_with(machine).await;
        assert_eq!(written, patches, "{outcome:?}");
        assert_eq!(matches!(outcome, Outcome::LookAgain(..)), patches == 0, "{outcome:?}");
    }
}
