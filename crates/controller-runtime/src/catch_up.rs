//! Waits until a store has caught up with a list that was just read from the API server.
//!
//! The stores of a standby are filled when it begins to lead, but a watch may lag or hang. Then the last writes of the old leader
//! would be done twice: machines that a store does not show yet would be created again. So nothing is decided before each store has
//! passed a list that was read after the lease was taken. Only the writes of this process need no such care
//! ([`super::store::Store::observe_write`]).

use std::{collections::BTreeSet, fmt::Debug, sync::Arc, time::Duration};

use kube::{Resource, core::PartialObjectMeta};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    error::ApiError,
    key::{ObjectKey, Target},
    objects::{ApiServer, ListQuery, ObjectApi},
    snapshot::Snapshot,
    store::Store,
};

/// Objects per page of a list.
const PAGE: u32 = 500;
/// Pause between two checks of the store.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// How long a store may lag behind a list before a newer list is read.
const MAX_LAG: Duration = Duration::from_secs(5);
/// Pause after a failed list.
const PAUSE: Duration = Duration::from_secs(1);

/// An object of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: ObjectKey,
    /// Its UID.
    pub uid: String,
    /// Its resource version.
    pub version: u64,
}

/// The objects of an API server at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveList {
    /// The objects.
    pub objects: Vec<Listed>,
    /// The resource version of the list.
    pub version: u64,
}

/// Waits until the store shows the current state of the API server, or a newer one. An empty namespace means all. Failures are
/// logged and retried: a process that can't read must not decide.
pub async fn caught_up<S: Snapshot>(client: &kube::Client, namespace: &str, view: &Arc<Store<S>>)
where
    S::Object: Clone + DeserializeOwned + Serialize + Debug,
{
    let kind = S::Object::plural(&());
    let metadata = ApiServer::<PartialObjectMeta<S::Object>>::of_kind(client.clone(), ());
    let objects = ApiServer::<S::Object>::of_kind(client.clone(), ());
    let mut unreadable: BTreeSet<ObjectKey> = BTreeSet::new();
    loop {
        let mut list = match live_list(&metadata, namespace).await {
            Ok(list) => list,
            Err(error) => {
                tracing::warn!(%kind, %error, "the view can't be compared with the API server; trying again");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        list.objects.retain(|listed| !unreadable.contains(&listed.key));
        if tokio::time::timeout(MAX_LAG, has_passed(view, &list)).await.is_ok() {
            return;
        }
        let Some(missing) = view.behind(&list) else { return };
        if matches!(objects.read(&missing).await, Err(ApiError::Unreadable(_))) {
            // The store never shows an undecodable object. The watch has reported it.
            unreadable.insert(missing);
        } else {
            tracing::warn!(%kind, error = %missing, "the view lags behind the API server; nothing is decided yet");
        }
    }
}

async fn has_passed(view: &Store<impl Snapshot>, list: &LiveList) {
    while view.behind(list).is_some() {
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

/// Lists names and versions with a consistent read: a majority of the API server's storage has confirmed them.
async fn live_list<K: Resource>(api: &impl ObjectApi<K>, namespace: &str) -> Result<LiveList, ApiError> {
    let mut query = ListQuery { limit: Some(PAGE), ..ListQuery::within(namespace) };
    let mut list = LiveList::default();
    loop {
        // Only names and versions of the page are kept, because a fleet has many objects.
        let page = api.list(&query).await?;
        list.version = version(page.version.as_deref());
        for item in page.items {
            let object = api.decode(item)?;
            let Target { key, uid } = Target::of(&*object);
            list.objects.push(Listed { key, uid, version: version(object.meta().resource_version.as_deref()) });
        }
        if page.next.is_none() {
            return Ok(list);
        }
        query.after = page.next;
    }
}

/// A version that is no number counts as old, so that the wait does not depend on it.
fn version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use rstest::rstest;
    use serde_json::json;
    use tower::service_fn;

    use super::*;
    use machine_api::v1alpha1::Machine;

    fn machine(name: &str, uid: &str, version: u64) -> Machine {
        let mut machine = Machine::default();
        machine.metadata.name = Some(name.to_owned());
        machine.metadata.namespace = Some("ns".to_owned());
        machine.metadata.uid = Some(uid.to_owned());
        machine.metadata.resource_version = Some(version.to_string());
        machine
    }

    fn list(objects: &[(&str, &str, u64)], version: u64) -> LiveList {
        let listed = |(name, uid, version): &(&str, &str, u64)| Listed {
            key: ObjectKey::new("ns", *name),
            uid: (*uid).to_owned(),
            version: *version,
        };
        LiveList { objects: objects.iter().map(listed).collect(), version }
    }

    #[rstest]
    #[case::the_same(&[("a", "1", 5)], list(&[("a", "1", 5)], 9), true)]
    #[case::newer(&[("a", "1", 12)], list(&[("a", "1", 5)], 9), true)]
    #[case::an_older_form(&[("a", "1", 4)], list(&[("a", "1", 5)], 9), false)]
    #[case::one_is_missing(&[], list(&[("a", "1", 5)], 9), false)]
    #[case::a_namesake(&[("a", "0", 7)], list(&[("a", "1", 5)], 9), false)]
    #[case::one_was_created_since(&[("b", "2", 10)], list(&[], 9), true)]
    #[case::one_is_gone(&[("b", "2", 8)], list(&[], 9), false)]
    #[case::nothing_at_all(&[], list(&[], 9), true)]
    fn a_view_is_compared_with_a_list(
        #[case] shown: &[(&str, &str, u64)],
        #[case] live: LiveList,
        #[case] expected: bool,
    ) {
        let store: Store<Arc<Machine>> = Store::new(Vec::new());
        for (name, uid, version) in shown {
            store.apply(machine(name, uid, *version));
        }
        assert_eq!(store.behind(&live).is_none(), expected);
    }

    #[test]
    fn objects_that_cannot_be_read_are_not_waited_for_unless_they_have_changed_since() {
        let store: Store<Arc<Machine>> = Store::new(Vec::new());
        store.list_begins();
        for number in 0..200 {
            let name = number.to_string();
            store.observe_undecodable(&ObjectKey::new("ns", name.as_str()), &name, 5);
        }
        store.list_ends();
        let live = |version| {
            let objects = (0..200).map(|number: u32| Listed {
                key: ObjectKey::new("ns", number.to_string()),
                uid: number.to_string(),
                version: if number == 7 { version } else { 5 },
            });
            LiveList { objects: objects.collect(), version: 9 }
        };
        assert_eq!(store.behind(&live(5)), None);
        assert_eq!(store.behind(&live(8)), Some(ObjectKey::new("ns", "7")));
    }

    #[test]
    fn an_object_that_was_removed_after_the_list_is_not_missed() {
        let store: Store<Arc<Machine>> = Store::new(Vec::new());
        store.apply(machine("a", "1", 5));
        store.delete(&machine("a", "1", 11));
        assert_eq!(store.behind(&list(&[("a", "1", 5)], 9)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lagging_store_is_waited_for_despite_failures() {
        let asked = Arc::new(AtomicU32::new(0));
        let requests = Arc::clone(&asked);
        let client = kube::Client::new(
            service_fn(move |request: Request<Body>| {
                let number = requests.fetch_add(1, Ordering::Relaxed);
                let query = request.uri().query().unwrap_or_default().to_owned();
                async move {
                    // No resourceVersion: an answer from a cache would prove nothing.
                    assert!(!query.contains("resourceVersion"), "{query}");
                    let item = |name: &str, version: u32| {
                        json!({ "metadata": {
                        "name": name, "namespace": "ns", "uid": name, "resourceVersion": version.to_string() } })
                    };
                    let (status, body) = match number {
                        0 => (
                            503_u16,
                            json!({ "kind": "Status", "status": "Failure", "code": 503, "reason": "ServiceUnavailable", "message": "no" }),
                        ),
                        1 => (
                            200,
                            json!({ "metadata": { "resourceVersion": "9", "continue": "more" }, "items": [item("a", 5)] }),
                        ),
                        _ => (200, json!({ "metadata": { "resourceVersion": "9" }, "items": [item("b", 6)] })),
                    };
                    let response = Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
                    Ok::<_, kube::Error>(response.unwrap())
                }
            }),
            "ns",
        );
        let store = Arc::new(Store::<Arc<Machine>>::new(Vec::new()));
        store.apply(machine("a", "a", 5));
        let view = Arc::clone(&store);
        let waiting = tokio::spawn(async move { caught_up(&client, "ns", &view).await });
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!waiting.is_finished());
        store.apply(machine("b", "b", 6));
        waiting.await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }
}
