//! The requests to Glance and Cinder and their answers.

use std::{collections::BTreeMap, time::Duration};

use cloud_client::{Failure, Repeat, http::Method};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    cloud::{Operation, Session},
    keystone::Service,
    memory::Volumes,
    neutron::NamedThing,
    nova::{about, optional, query},
    plan,
};

/// The longest time for a search for volumes of a machine that probably has none.
const LONGEST_SEARCH: Duration = Duration::from_secs(10);

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Volume {
    pub id: String,
    pub name: Option<String>,
    pub status: String,
    pub metadata: BTreeMap<String, String>,
    pub attachments: Vec<Attachment>,
    pub created_at: Option<String>,
}

/// The attachment of a volume to a server or a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Attachment {
    /// `None` for a host.
    pub server_id: Option<String>,
}

impl Session<'_> {
    /// The images with this name that the project can use.
    pub async fn images_named(&self, name: &str) -> Result<Vec<NamedThing>, Failure> {
        let path = format!("/images?{}", query(&[("name", name)]));
        let found: Vec<NamedThing> =
            self.list(Operation::get(Service::Image, "looking for the image", &path), "images").await?;
        Ok(found.into_iter().filter(|image| image.name == name).collect())
    }

    /// The volumes with this name in the project, of any owner.
    pub async fn volumes_named(&self, name: &str) -> Result<Vec<Volume>, Failure> {
        let path = format!("/volumes/detail?{}", query(&[("name", name)]));
        let found: Vec<Volume> =
            self.list(Operation::get(Service::Volume, "looking for the server's volume", &path), "volumes").await?;
        Ok(found.into_iter().filter(|volume| volume.name.as_deref() == Some(name)).collect())
    }

    /// The volumes of the project with all of this metadata, of any name.
    pub async fn volumes_with(&self, metadata: &BTreeMap<&str, &str>) -> Result<Vec<Volume>, Failure> {
        // Cinder reads the filter as a literal of Python, which JSON of texts is, too.
        let path = format!("/volumes/detail?{}", query(&[("metadata", &json!(metadata).to_string())]));
        self.list(Operation::get(Service::Volume, "listing volumes", &path), "volumes").await
    }

    /// The result of a search for volumes. If a machine probably has no volumes, a failure and a long wait count as an empty list. The cloud may have
    /// no Cinder, and the login may have no right in Cinder. A Cinder that does not answer must not delay machines without volumes.
    ///
    /// # Errors
    /// Errors of Cinder, and `FailedPrecondition` from [`plan::kept_out_of_cinder`].
    pub async fn volumes_if_any(
        &self,
        volumes: Volumes,
        search: impl Future<Output = Result<Vec<Volume>, Failure>> + Send,
    ) -> Result<Vec<Volume>, Failure> {
        match volumes {
            Volumes::Wanted => search.await,
            Volumes::Possible | Volumes::Made => match search.await {
                Err(failure) if self.is_kept_out(&failure).await => plan::kept_out_of_cinder(volumes, failure),
                answer => answer,
            },
            Volumes::Unlikely => {
                let answer = tokio::time::timeout(LONGEST_SEARCH, search).await;
                Ok(answer.ok().and_then(Result::ok).unwrap_or_default())
            }
        }
    }

    /// The volume with this id. `None` if there is none.
    pub async fn volume(&self, id: &str) -> Result<Option<Volume>, Failure> {
        let path = format!("/volumes/{id}");
        let found: Option<Volume> = optional(
            self.call(Operation::get(Service::Volume, "looking at the server's volume", &path), "volume").await,
        )?;
        about(found, id, |volume| &volume.id)
    }

    /// Makes a volume.
    pub async fn make_volume(&self, body: &Value) -> Result<Volume, Failure> {
        let operation = Operation {
            method: &Method::POST,
            body: Some(body),
            repeat: Repeat::Unsafe,
            ..Operation::get(Service::Volume, "making the server's volume", "/volumes")
        };
        self.call(operation, "volume").await
    }

    /// Starts to delete a volume. `None` if there is none.
    pub async fn delete_volume(&self, id: &str) -> Result<Option<()>, Failure> {
        self.delete(Service::Volume, "deleting the server's volume", &format!("/volumes/{id}")).await
    }
}
