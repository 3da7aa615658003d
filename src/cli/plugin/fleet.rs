//! The machine objects of a namespace, and which object belongs to which.
//!
//! [`Fleet::read`] lists them; everything else is pure. Outlooks are kept by the names of their machines.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use serde::{Serialize, de::DeserializeOwned};
use tokio_util::sync::CancellationToken;

use super::{
    follow::{Selection, Which},
    state::MachineState,
    views::Outlook,
};
use crate::cli::Failure;
use controller_runtime::{
    error::ApiError,
    gate::Gate,
    key::ObjectKey,
    objects::{ListQuery, Objects},
    snapshot::Snapshot,
};
use machine_api::{kind::Kind, names::annotation};
use machine_controllers::{
    deployment::{revision::revision_of, template_equality::is_equal},
    snapshots::{DeploymentSnapshot, MachineSnapshot, SetSnapshot},
};

/// Objects per page of a list.
const PAGE: u32 = 500;

/// The machine objects of a namespace, or of all namespaces.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// The machines, by name.
    pub machines: Vec<MachineSnapshot>,
    /// The sets, by name.
    pub sets: Vec<SetSnapshot>,
    /// The deployments, by name.
    pub deployments: Vec<DeploymentSnapshot>,
    /// The outlooks; `None` without the views.
    pub outlooks: Option<BTreeMap<ObjectKey, Outlook>>,
}

impl Fleet {
    /// Lists the objects of a namespace, or of all.
    ///
    /// # Errors
    /// When a list fails; the text names it, and for a missing right what grants it.
    pub async fn read(client: &Client, namespace: Option<&str>) -> Result<Self, Failure> {
        Ok(Self::selected(client, namespace.unwrap_or_default(), &Selection::WHOLE).await?)
    }

    /// Lists selected objects of a namespace. An empty namespace means all.
    ///
    /// # Errors
    /// When a list fails.
    pub async fn selected(client: &Client, namespace: &str, selection: &Selection) -> Result<Self, Unread> {
        Ok(Self {
            machines: listed(client, Kind::Machine, namespace, &selection.machines).await?,
            sets: listed(client, Kind::MachineSet, namespace, &selection.sets).await?,
            deployments: listed(client, Kind::MachineDeployment, namespace, &selection.deployments).await?,
            outlooks: None,
        })
    }

    /// The fleet with these outlooks.
    #[must_use]
    pub fn with_outlooks(mut self, outlooks: Option<Vec<Outlook>>) -> Self {
        let key = |outlook: &Outlook| ObjectKey::new(outlook.metadata.namespace.clone(), outlook.metadata.name.clone());
        self.outlooks = outlooks.map(|all| all.into_iter().map(|outlook| (key(&outlook), outlook)).collect());
        self
    }

    /// The state of a machine.
    pub fn state_of(&self, machine: &MachineSnapshot) -> MachineState {
        let outlook = self.outlooks.as_ref().and_then(|all| all.get(&machine.key()));
        MachineState::of(machine, outlook)
    }

    /// The deployment of this name.
    pub fn deployment(&self, namespace: &str, name: &str) -> Option<&DeploymentSnapshot> {
        self.deployments.iter().find(|known| known.namespace() == namespace && known.name() == name)
    }

    /// The set of a machine.
    pub fn set_of(&self, machine: &MachineSnapshot) -> Option<&SetSnapshot> {
        owner(&self.sets, machine.controller())
    }

    /// The deployment of a set.
    pub fn deployment_of(&self, set: &SetSnapshot) -> Option<&DeploymentSnapshot> {
        owner(&self.deployments, set.controller())
    }

    /// The sets of a deployment, the newest revision first.
    pub fn sets_of(&self, deployment: &DeploymentSnapshot) -> Vec<&SetSnapshot> {
        let mut own: Vec<&SetSnapshot> =
            self.sets.iter().filter(|set| set.controller().is_some_and(|of| of.uid == deployment.uid())).collect();
        own.sort_by_key(|set| (std::cmp::Reverse(revision(set)), set.name().to_owned()));
        own
    }

    /// The machines of a set.
    pub fn machines_of(&self, set: &SetSnapshot) -> Vec<&MachineSnapshot> {
        self.machines.iter().filter(|machine| machine.controller().is_some_and(|of| of.uid == set.uid())).collect()
    }

    /// The machines of a deployment, those of the newest revision first.
    pub fn machines_of_deployment(&self, deployment: &DeploymentSnapshot) -> Vec<&MachineSnapshot> {
        self.sets_of(deployment).into_iter().flat_map(|set| self.machines_of(set)).collect()
    }
}

/// The revision of a set; 0 if it has none.
pub fn revision(set: &SetSnapshot) -> i64 {
    revision_of(set.metadata()).unwrap_or_default()
}

/// The revision of a deployment; 0 if it has none.
pub fn revision_of_deployment(deployment: &DeploymentSnapshot) -> i64 {
    deployment.annotation(annotation::REVISION).and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Whether the set has the deployment's present template.
pub fn is_current(set: &SetSnapshot, deployment: &DeploymentSnapshot) -> bool {
    is_equal(set.template(), deployment.template())
}

fn owner<'a, S: Snapshot>(all: &'a [S], reference: Option<&OwnerReference>) -> Option<&'a S> {
    let reference = reference?;
    all.iter().find(|known| known.uid() == reference.uid)
}

/// Reads and writes objects of a kind.
pub fn objects<S: Snapshot>(client: &Client) -> Objects<S>
where
    S::Object: Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    Objects::new(client.clone(), Gate::open_until(CancellationToken::new()), None, |_| {})
}

async fn listed<S: Snapshot>(client: &Client, kind: Kind, namespace: &str, which: &Which) -> Result<Vec<S>, Unread>
where
    S::Object: Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    let Some(query) = which.query(namespace) else { return Ok(Vec::new()) };
    let all = objects::<S>(client).list(ListQuery { limit: Some(PAGE), ..query }).await;
    let mut all = all.map_err(|error| Unread { what: format!("list {}", kind.plural()), error })?;
    all.sort_by_key(Snapshot::key);
    Ok(all)
}

/// A request that failed.
#[derive(Clone, Debug)]
pub struct Unread {
    /// What was asked for, as a verb with its object.
    pub what: String,
    /// The error.
    pub error: ApiError,
}

impl From<Unread> for Failure {
    fn from(unread: Unread) -> Self {
        self::unread(&unread.what, &unread.error)
    }
}

/// The failure of a request, with what helps.
pub fn unread(what: &str, error: &ApiError) -> Failure {
    let advice = match error {
        ApiError::Forbidden(text) if text.contains("Unauthorized") => {
            "; the API server does not accept the credentials of the kubeconfig, which may have expired"
        }
        ApiError::Forbidden(_) => "; a Role for machine.sapcloud.io with that verb and resource grants it",
        ApiError::NotFound(_) | ApiError::NotServed(_) => "; kubectl api-resources shows what the cluster serves",
        _ => "",
    };
    Failure::run(anyhow::anyhow!("cannot {what}: {error}{advice}"))
}
