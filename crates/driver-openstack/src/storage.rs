//! What Glance and Cinder are asked for, and what they answer.

use std::collections::BTreeMap;

use cloud_client::{Failure, Repeat, http::Method};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    cloud::{Ask, Session},
    keystone::Service,
    neutron::NamedThing,
    nova::{about, optional, query},
};

/// A volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Volume {
    pub id: String,
    pub name: Option<String>,
    pub status: String,
    pub metadata: BTreeMap<String, String>,
    pub attachments: Vec<Attachment>,
}

/// That a volume is attached to a server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Attachment {
    pub server_id: String,
}

impl Session<'_> {
    /// The images of this name that the project can see.
    pub async fn images_named(&self, name: &str) -> Result<Vec<NamedThing>, Failure> {
        let path = format!("/images?{}", query(&[("name", name)]));
        let found: Vec<NamedThing> =
            self.list(Ask::get(Service::Image, "looking for the image", &path), "images").await?;
        Ok(found.into_iter().filter(|image| image.name == name).collect())
    }

    /// The volumes of this name in the project, whoever they belong to.
    pub async fn volumes_named(&self, name: &str) -> Result<Vec<Volume>, Failure> {
        let path = format!("/volumes/detail?{}", query(&[("name", name)]));
        let found: Vec<Volume> =
            self.list(Ask::get(Service::Volume, "looking for the server's volume", &path), "volumes").await?;
        Ok(found.into_iter().filter(|volume| volume.name.as_deref() == Some(name)).collect())
    }

    /// A volume; `None` when there is none.
    pub async fn volume(&self, id: &str) -> Result<Option<Volume>, Failure> {
        let path = format!("/volumes/{id}");
        let found: Option<Volume> =
            optional(self.ask(Ask::get(Service::Volume, "looking at the server's volume", &path), "volume").await)?;
        about(found, id, |volume| &volume.id)
    }

    /// Makes a volume.
    pub async fn make_volume(&self, body: &Value) -> Result<Volume, Failure> {
        let ask = Ask {
            method: &Method::POST,
            body: Some(body),
            repeat: Repeat::Unsafe,
            ..Ask::get(Service::Volume, "making the server's volume", "/volumes")
        };
        self.ask(ask, "volume").await
    }

    /// Deletes a volume, which goes on after the answer.
    pub async fn delete_volume(&self, id: &str) -> Result<(), Failure> {
        self.delete(Service::Volume, "deleting the server's volume", &format!("/volumes/{id}")).await
    }
}
