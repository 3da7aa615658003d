//! Reads the objects of a migration, writes its steps, and keeps managers at rest meanwhile.

use std::{io::Write, sync::Arc, time::Duration};

use controller_runtime::{
    clock::{SharedClock, SystemClock},
    error::ApiError,
    gate::Gate,
    key::Target,
    lease::{ElectionSettings, Ended, LeaderElection, Times, identity_of},
    objects::{ListQuery, ObjectApi, Part},
};
use kube::{Client, api::DynamicObject};
use machine_api::{kind::Kind, names};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{
    plan::{Judge, Observed, Plan, Stage, Step, USERS, plan},
    table::OldKind,
};
use crate::cli::{
    Failure,
    cluster_objects::Resource,
    lease_watch::{self, LeaseState},
};

/// Both Leases, in the order in which managers take them.
const LEASES: [&str; 2] = [names::LEASE_CONTROLLER_MANAGER, names::LEASE_MACHINE_CONTROLLER];
/// How long both Leases may take. An expired one is taken after its duration.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);
/// The host name in the identity of the holder.
const HOLDER: &str = "mcm-migrate-classes";
/// How often the objects are read again because others change them too.
const ROUNDS: usize = 10;

/// A namespace whose classes are migrated.
pub struct Namespace {
    client: Client,
    name: String,
    clock: SharedClock,
}

impl Namespace {
    /// This namespace of the cluster.
    pub fn new(client: Client, name: String) -> Self {
        Self { client, name, clock: Arc::new(SystemClock::new()) }
    }

    /// Reads all objects that matter.
    ///
    /// # Errors
    /// When they can't be listed; the text names the list.
    pub async fn observe(&self) -> Result<Observed, Failure> {
        let mut observed = Observed::default();
        for kind in OldKind::ALL {
            let classes = kind.resource().list(&self.client, ListQuery::within(&self.name)).await?;
            observed.old.extend(values(classes)?.into_iter().map(|class| (kind, class)));
        }
        observed.classes = self.list(Kind::MachineClass).await?;
        for kind in USERS {
            observed.users.extend(self.list(kind).await?.into_iter().map(|user| (kind, user)));
        }
        Ok(observed)
    }

    /// The objects of a kind of today. A cluster may lack old kinds, but a 404 to this list must not count as "nothing names a class".
    async fn list(&self, kind: Kind) -> Result<Vec<Value>, Failure> {
        values(Resource::of_kind(kind).list_served(&self.client, ListQuery::within(&self.name)).await?)
    }

    /// Carries out the plan of the objects, stage by stage, and reads the objects again after each stage. Returns the last plan, which has no
    /// steps.
    ///
    /// # Errors
    /// When a manager is running, or a call fails. Finished writes stay, and the next run does the rest.
    pub async fn migrate(&self, judge: Judge<'_>, out: &mut dyn Write) -> Result<Plan, Failure> {
        let mut leases = None;
        let done = self.carry_out(judge, &mut leases, out).await;
        if let Some(leases) = leases {
            leases.give_back().await;
        }
        done
    }

    async fn carry_out(
        &self,
        judge: Judge<'_>,
        leases: &mut Option<HeldLeases>,
        out: &mut dyn Write,
    ) -> Result<Plan, Failure> {
        let mut refused = None;
        for _ in 0..ROUNDS {
            let plan = plan(&self.observe().await?, judge);
            if !plan.obstacles.is_empty() {
                return Err(Failure::Input(plan.obstacles.join("\n")));
            }
            let steps = match plan.next_stage() {
                None => return Ok(plan),
                Some(Stage::AtRest(_)) if leases.is_none() => {
                    *leases = Some(HeldLeases::take(&self.client, &self.name, Arc::clone(&self.clock)).await?);
                    // A manager may have changed objects until now.
                    continue;
                }
                Some(Stage::AnyTime(steps) | Stage::AtRest(steps)) => steps,
            };
            for step in steps {
                match self.write(step, leases.as_ref()).await {
                    Ok(()) => writeln!(out, "done: {step}")?,
                    Err(error) if is_changed(&error) && refused.as_ref() != Some(step) => {
                        // The object has changed since it was read. A step that is refused twice in a row is refused for another reason.
                        refused = Some(step.clone());
                        break;
                    }
                    Err(error) => {
                        let why = format!("cannot {step}: {error}; run the same command again to go on");
                        return Err(Failure::run(anyhow::anyhow!(why)));
                    }
                }
            }
        }
        Err(Failure::run(anyhow::anyhow!(
            "the objects of namespace {} keep changing; stop what changes them and run the same command again",
            self.name
        )))
    }

    async fn write(&self, step: &Step, leases: Option<&HeldLeases>) -> Result<(), ApiError> {
        if let Some(leases) = leases {
            leases.gate.may_act()?;
        }
        let (resource, target) = match step {
            Step::Create { class, .. } => {
                let class: DynamicObject =
                    serde_json::from_value(class.clone()).map_err(|error| ApiError::Other(error.to_string()))?;
                return Resource::of_kind(Kind::MachineClass).api(&self.client).create(&class).await.map(drop);
            }
            Step::Refer { kind, target, .. } => (Resource::of_kind(*kind), target),
            Step::Release { kind, target, .. } => (kind.resource(), target),
        };
        let Target { key, .. } = target;
        match step.patch() {
            Some(patch) => resource.api(&self.client).patch(key, Part::Main, &patch).await.map(drop),
            None => Ok(()),
        }
    }
}

fn values(objects: Vec<DynamicObject>) -> Result<Vec<Value>, Failure> {
    objects.into_iter().map(|object| serde_json::to_value(object).map_err(Failure::run)).collect()
}

/// Whether the refusal may be a consequence of a change of the object since it was read.
const fn is_changed(error: &ApiError) -> bool {
    matches!(error, ApiError::NotFound(_) | ApiError::Conflict(_) | ApiError::AlreadyExists(_) | ApiError::Invalid(_))
}

/// Both Leases, held. While they are held, no manager leads.
struct HeldLeases {
    gate: Gate,
    stop: CancellationToken,
    election: JoinHandle<Ended>,
}

impl HeldLeases {
    /// Takes both Leases.
    ///
    /// # Errors
    /// When a manager renews one of them, or when they can't be taken.
    async fn take(client: &Client, namespace: &str, clock: SharedClock) -> Result<Self, Failure> {
        eprintln!("taking the Leases of namespace {namespace}, so that no manager acts");
        for name in LEASES {
            let state = lease_watch::watch(client, namespace, name).await;
            let state = state.map_err(|error| Failure::run(anyhow::anyhow!("cannot read Lease {name}: {error}")))?;
            if let LeaseState::Renewed { holder } = state {
                return Err(running(&format!("{holder} renews Lease {name}")));
            }
        }
        let election = LeaderElection::over(
            ElectionSettings {
                namespace: namespace.to_owned(),
                leases: LEASES.map(str::to_owned).to_vec(),
                identity: identity_of(HOLDER, rand::random),
                times: Times::default(),
            },
            client.clone(),
            clock,
            rand::random,
            None,
        );
        let (leadership, stop) = (election.leadership(), CancellationToken::new());
        let election = tokio::spawn(election.run(stop.clone()));
        let leases = Self { gate: Gate::open_while(leadership.clone()), stop, election };
        if tokio::time::timeout(TAKEN_WITHIN, leadership.won()).await.is_err() {
            leases.give_back().await;
            return Err(running(&format!("the Leases could not be taken within {} s", TAKEN_WITHIN.as_secs())));
        }
        Ok(leases)
    }

    /// Gives the Leases back.
    async fn give_back(self) {
        self.stop.cancel();
        // An election that failed holds no Lease any more.
        let _ = self.election.await;
    }
}

fn running(why: &str) -> Failure {
    Failure::Input(format!(
        "a manager is running ({why}). Stop it, for example by `kubectl scale deployment machine-controller-manager --replicas=0`, then run the \
         same command again to go on"
    ))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// A server that lacks one resource: it answers 404 with the page of a proxy.
    fn without(plural: &'static str) -> Namespace {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let path = request.uri().path().to_owned();
            let (code, text) = if path.ends_with(&format!("/{plural}")) {
                (404, "<html>404 Not Found</html>".to_owned())
            } else {
                (200, json!({"metadata": {"resourceVersion": "1"}, "items": []}).to_string())
            };
            Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(text.into_bytes())).unwrap())
        });
        Namespace::new(Client::new(service, "ns"), "ns".to_owned())
    }

    #[tokio::test]
    async fn only_old_kinds_may_be_absent() {
        for kind in OldKind::ALL {
            without(kind.table().plural).observe().await.expect("a cluster may lack an old kind");
        }
        for kind in USERS.into_iter().chain([Kind::MachineClass]) {
            let failure = without(kind.plural()).observe().await.expect_err("nothing is known about its objects");
            let text = failure.to_string();
            assert!(text.contains(kind.plural()) && text.contains("mcm manifests crds"), "{text}");
        }
    }
}
