//! Objects that a command follows until something is the case: watches keep them equal to the API server.
//!
//! Only the objects that the command needs are watched, by name or by labels. Where a user may list and not watch, and while an API server
//! does not answer, the same objects are read again after pauses. The decisions are those of the commands. Source: spec/packaging §5.2.

use std::{fmt::Debug, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{Client, core::Selector};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    fleet::{Fleet, Unread},
    notices::Notices,
    subject::{Named, Subject, Wanted},
};
use crate::cli::Failure;
use controller_runtime::{
    objects::ListQuery,
    snapshot::Snapshot,
    store::Store,
    watch::{Scope, UndecodableObject, Watches, Watching, prune},
};
use machine_api::{kind::Kind, names::label};
use machine_controllers::snapshots::{DeploymentSnapshot, MachineSnapshot, SetSnapshot};

/// How long the first look waits for the watches. A look without them reads the objects itself.
const WATCHES_BEGIN_WITHIN: Duration = Duration::from_secs(5);
/// The longest pause while the watches work: the views and the clock change without a change of the objects.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The pause before the objects are read again because a watch does not work.
const READ_AGAIN: Duration = Duration::from_secs(2);

/// The followed objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// None.
    None,
    /// All of the namespace.
    All,
    /// The object of this name.
    Name(String),
    /// The objects that match this label selector.
    Labels(String),
}

impl Which {
    /// The objects that a selector of a set or a deployment matches.
    fn selected(selector: Option<&LabelSelector>) -> Self {
        let selector = selector.cloned().and_then(|selector| Selector::try_from(selector).ok());
        match selector.map(|selector| selector.to_string()) {
            Some(text) if !text.is_empty() => Self::Labels(text),
            Some(_) | None => Self::All,
        }
    }

    /// The query of a list; `None` if nothing is followed.
    pub fn query(&self, namespace: &str) -> Option<ListQuery> {
        let all = ListQuery::within(namespace);
        match self {
            Self::None => None,
            Self::All => Some(all),
            Self::Name(name) => Some(ListQuery { fields: Some(field_selector(name)), ..all }),
            Self::Labels(labels) => Some(ListQuery { selector: Some(labels.clone()), ..all }),
        }
    }
}

/// Every kind can be selected by its name.
fn field_selector(name: &str) -> String {
    format!("metadata.name={name}")
}

/// The objects that a command follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The machines.
    pub machines: Which,
    /// The sets.
    pub sets: Which,
    /// The deployments.
    pub deployments: Which,
}

impl Selection {
    /// All objects of the namespace.
    pub const WHOLE: Self = Self { machines: Which::All, sets: Which::All, deployments: Which::All };

    /// What decides about an object that was found.
    pub fn of_subject(subject: &Subject) -> Self {
        match subject {
            Subject::Machine { machine, by: Named::Node } => {
                Self::of_node(machine.label(label::NODE).unwrap_or_default())
            }
            Subject::Machine { by: Named::Vm, .. } | Subject::Vm(_) => Self::MACHINES,
            Subject::Machine { machine, .. } => Self::of_machine(machine.name()),
            Subject::Set(set) => Self {
                machines: Which::selected(set.selector()),
                sets: Which::Name(set.name().to_owned()),
                deployments: Which::None,
            },
            Subject::Deployment(deployment) => Self::of_deployment(deployment),
        }
    }

    /// What decides about an object that does not exist yet, or no longer.
    pub fn of_absent(wanted: &Wanted) -> Self {
        let name = || Which::Name(wanted.name.clone());
        match wanted.kind {
            None => Self::WHOLE,
            Some(Named::Machine) => Self::of_machine(&wanted.name),
            Some(Named::Node) => Self::of_node(&wanted.name),
            Some(Named::Vm) => Self::MACHINES,
            Some(Named::Set) => Self { machines: Which::All, sets: name(), deployments: Which::None },
            Some(Named::Deployment) => Self { machines: Which::All, sets: Which::All, deployments: name() },
        }
    }

    /// A deployment with its sets and machines.
    pub fn of_deployment(deployment: &DeploymentSnapshot) -> Self {
        let owned = Which::selected(deployment.selector());
        Self { machines: owned.clone(), sets: owned, deployments: Which::Name(deployment.name().to_owned()) }
    }

    /// Sets with their machines.
    pub fn of_sets(sets: &[SetSnapshot]) -> Self {
        match sets {
            [one] => Self::of_subject(&Subject::Set(one.clone())),
            _ => Self { deployments: Which::None, ..Self::WHOLE },
        }
    }

    const MACHINES: Self = Self { machines: Which::All, sets: Which::None, deployments: Which::None };

    fn of_machine(name: &str) -> Self {
        Self { machines: Which::Name(name.to_owned()), ..Self::MACHINES }
    }

    fn of_node(node: &str) -> Self {
        Self { machines: Which::Labels(format!("{}={node}", label::NODE)), ..Self::MACHINES }
    }
}

/// The objects of a selection, while they are followed.
pub struct Following {
    client: Client,
    namespace: String,
    selection: Selection,
    machines: Arc<Store<MachineSnapshot>>,
    sets: Arc<Store<SetSnapshot>>,
    deployments: Arc<Store<DeploymentSnapshot>>,
    news: Arc<Notify>,
    /// Whether the watches had their time to begin.
    has_begun: bool,
    /// The failure that was reported last.
    reported: Option<String>,
    notices: Notices,
    /// Ends the watches.
    _stop: DropGuard,
}

impl Following {
    /// Follows objects of a namespace. An empty namespace means all.
    pub fn begin(client: &Client, namespace: &str, selection: Selection, notices: &Notices) -> Self {
        let notices = notices.clone();
        let said = notices.clone();
        let report = move |found: &UndecodableObject| {
            let name = found.object.name.as_deref().unwrap_or_default();
            said.say(&format!("{name} can't be read and is left out: {}", found.error));
        };
        let watches = Watches::new(Arc::new(report), rand::random::<u64>);
        let stop = CancellationToken::new();
        let follow = Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            machines: Arc::new(Store::new(Vec::new())),
            sets: Arc::new(Store::new(Vec::new())),
            deployments: Arc::new(Store::new(Vec::new())),
            news: Arc::default(),
            has_begun: false,
            reported: None,
            notices,
            _stop: stop.clone().drop_guard(),
            selection,
        };
        follow.keep(&watches, Kind::Machine, &follow.selection.machines, &follow.machines, &stop);
        follow.keep(&watches, Kind::MachineSet, &follow.selection.sets, &follow.sets, &stop);
        follow.keep(&watches, Kind::MachineDeployment, &follow.selection.deployments, &follow.deployments, &stop);
        follow
    }

    fn keep<S>(&self, watches: &Watches, kind: Kind, which: &Which, store: &Arc<Store<S>>, stop: &CancellationToken)
    where
        S: Snapshot,
        S::Object: Serialize + DeserializeOwned + Clone + Debug,
    {
        let scope = match self.namespace.as_str() {
            "" => Scope::Cluster,
            one => Scope::Namespace(one.to_owned()),
        };
        let everything = Watching::objects(scope, prune::common::<S::Object>);
        let watching = match which {
            Which::None => return,
            Which::All => everything,
            Which::Name(name) => everything.with_fields(field_selector(name)),
            Which::Labels(labels) => everything.labelled(labels.clone()),
        };
        let news = Arc::clone(&self.news);
        store.set_listeners(vec![Box::new(move |_| news.notify_one())]);
        let (watches, client, store, stop) = (watches.clone(), self.client.clone(), Arc::clone(store), stop.clone());
        tokio::spawn(watches.keep(kind.plural(), client, watching, store, stop));
    }

    /// The objects now. `None`: the API server does not answer for the moment, which is reported once.
    ///
    /// # Errors
    /// When the objects can't be read and a later try would not help.
    pub async fn look(&mut self) -> Result<Option<Fleet>, Failure> {
        if !self.has_begun {
            self.has_begun = true;
            // A look without the watches reads the objects itself.
            let _ = tokio::time::timeout(WATCHES_BEGIN_WITHIN, self.wait_synced()).await;
        }
        if self.is_kept() {
            self.reported = None;
            return Ok(Some(Fleet {
                machines: self.machines.snapshot(),
                sets: self.sets.snapshot(),
                deployments: self.deployments.snapshot(),
                outlooks: None,
            }));
        }
        match Fleet::selected(&self.client, &self.namespace, &self.selection).await {
            Ok(fleet) => {
                self.reported = None;
                Ok(Some(fleet))
            }
            Err(Unread { error, .. }) if error.is_temporary() => {
                let text = error.to_string();
                if self.reported.as_ref() != Some(&text) {
                    self.notices.say(&format!("the API server does not answer, and is asked again: {text}"));
                }
                self.reported = Some(text);
                Ok(None)
            }
            Err(unread) => Err(unread.into()),
        }
    }

    /// Waits for a change, or until it is time to look again, at most for `left`. Changes come in groups: `pause` is the least time between
    /// two looks.
    pub async fn changed(&self, pause: Duration, left: Duration) {
        let longest = if self.is_kept() { LOOK_AGAIN } else { READ_AGAIN };
        let began = tokio::time::Instant::now();
        let _ = tokio::time::timeout(longest.min(left), self.news.notified()).await;
        tokio::time::sleep(pause.min(left).saturating_sub(began.elapsed())).await;
    }

    async fn wait_synced(&self) {
        if self.selection.machines != Which::None {
            self.machines.wait_synced().await;
        }
        if self.selection.sets != Which::None {
            self.sets.wait_synced().await;
        }
        if self.selection.deployments != Which::None {
            self.deployments.wait_synced().await;
        }
    }

    /// Whether all watches work.
    fn is_kept(&self) -> bool {
        is_kept(&self.selection.machines, &self.machines)
            && is_kept(&self.selection.sets, &self.sets)
            && is_kept(&self.selection.deployments, &self.deployments)
    }
}

fn is_kept<S: Snapshot>(which: &Which, store: &Store<S>) -> bool {
    *which == Which::None || store.is_synced() && store.is_current() && store.is_whole()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;
    use futures::{StreamExt, stream};
    use http_body_util::{BodyExt, StreamBody};
    use hyper::body::Frame;
    use kube::client::Body;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::{
        subject::find,
        testing::{deployment, fleet},
    };
    use super::*;

    fn selection(object: &str) -> Selection {
        let fleet = fleet();
        let wanted: Wanted = object.parse().unwrap();
        match find(&wanted, "ns", &fleet, &[]) {
            Ok(subject) => Selection::of_subject(&subject),
            Err(_) => Selection::of_absent(&wanted),
        }
    }

    #[rstest]
    #[case::a_machine("web-2-b", Which::Name("web-2-b".into()), Which::None, Which::None)]
    #[case::a_machine_to_come("machine/new", Which::Name("new".into()), Which::None, Which::None)]
    #[case::a_node("node/node-a", Which::Labels("node=node-a".into()), Which::None, Which::None)]
    #[case::a_node_to_come("node/new", Which::Labels("node=new".into()), Which::None, Which::None)]
    #[case::a_vm("vm/virtual:///a", Which::All, Which::None, Which::None)]
    #[case::a_set("set/web-1", Which::All, Which::Name("web-1".into()), Which::None)]
    #[case::a_deployment("web", Which::All, Which::All, Which::Name("web".into()))]
    #[case::any_kind("new", Which::All, Which::All, Which::All)]
    fn only_what_decides_is_followed(
        #[case] object: &str,
        #[case] machines: Which,
        #[case] sets: Which,
        #[case] deployments: Which,
    ) {
        assert_eq!(selection(object), Selection { machines, sets, deployments });
    }

    #[test]
    fn a_deployment_is_followed_by_its_labels() {
        let labelled = deployment("web", 2, &json!({ "spec": { "selector": { "matchLabels": { "app": "web" } } } }));
        let owned = Which::Labels("app=web".to_owned());
        let expected = Selection { machines: owned.clone(), sets: owned, deployments: Which::Name("web".to_owned()) };
        assert_eq!(Selection::of_deployment(&labelled), expected);
    }

    /// How the API server of a test answers.
    #[derive(Clone, Copy, PartialEq)]
    enum Server {
        /// It lists one machine, and its watches stay open without an event.
        Watches,
        /// It lists one machine, and refuses watches.
        ListsOnly,
        /// It refuses everything.
        Forbids,
        /// It answers nothing.
        Down,
    }

    /// A client of a server, and the requests so far.
    fn client(server: Server) -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let uri = request.uri().to_string();
            let is_watch = uri.contains("watch=true");
            log.lock().unwrap().push(uri);
            let machine = json!({ "metadata": { "name": "m", "namespace": "ns", "uid": "u", "resourceVersion": "3" }, "spec": {} });
            let list = json!({ "kind": "MachineList", "apiVersion": "machine.sapcloud.io/v1alpha1",
                "metadata": { "resourceVersion": "5" }, "items": [machine] });
            let refusal = |code: u16, reason: &str| {
                let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": reason });
                (code, status)
            };
            let (code, body): (u16, Value) = match server {
                Server::Down => refusal(503, "ServiceUnavailable"),
                Server::Forbids => refusal(403, "Forbidden"),
                Server::ListsOnly if is_watch => refusal(403, "Forbidden"),
                Server::Watches | Server::ListsOnly => (200, list),
            };
            let text = if is_watch && code == 200 { String::new() } else { body.to_string() };
            let first = stream::iter([Ok::<_, std::io::Error>(Frame::data(Bytes::from(text)))]);
            let body = if is_watch && code == 200 {
                StreamBody::new(first.chain(stream::pending())).boxed_unsync()
            } else {
                StreamBody::new(first).boxed_unsync()
            };
            let answer = http::Response::builder().status(code).body(body).expect("a response");
            async move { Ok::<_, tower::BoxError>(answer) }
        });
        (Client::new(service, "ns"), asked)
    }

    /// The looks of a minute: whether each had the machine.
    async fn a_minute(server: Server) -> (Vec<Result<Option<usize>, String>>, Vec<String>) {
        let (client, asked) = client(server);
        let mut follow = Following::begin(&client, "ns", Selection::of_machine("m"), &Notices::default());
        let began = tokio::time::Instant::now();
        let mut looks = Vec::new();
        while began.elapsed() < Duration::from_secs(60) {
            let look = follow.look().await.map(|fleet| fleet.map(|fleet| fleet.machines.len()));
            looks.push(look.map_err(|error| error.to_string()));
            follow.changed(Duration::from_millis(200), Duration::from_secs(60)).await;
        }
        drop(follow);
        let asked = asked.lock().unwrap().clone();
        (looks, asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_watched_object_is_read_once_and_by_its_name() {
        let (looks, asked) = a_minute(Server::Watches).await;
        assert!(looks.iter().all(|look| *look == Ok(Some(1))), "{looks:?}");
        assert!(asked.len() <= 3, "a list and a watch: {asked:?}");
        assert!(asked.iter().all(|uri| uri.contains("fieldSelector=metadata.name%3Dm")), "{asked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_right_to_watch_the_object_is_read_again_after_pauses() {
        let (looks, asked) = a_minute(Server::ListsOnly).await;
        assert!(looks.iter().all(|look| *look == Ok(Some(1))), "{looks:?}");
        assert!((20..=70).contains(&asked.len()), "about every two seconds: {}", asked.len());
        assert!(asked.iter().all(|uri| uri.contains("metadata.name%3Dm")), "{asked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_right_ends_the_command_and_an_api_server_that_is_down_does_not() {
        let (looks, _) = a_minute(Server::Forbids).await;
        let refused = looks[0].clone().unwrap_err();
        assert!(refused.contains("cannot list machines") && refused.contains("Role"), "{refused}");
        let (looks, _) = a_minute(Server::Down).await;
        assert!(looks.iter().all(|look| *look == Ok(None)), "{looks:?}");
    }
}
