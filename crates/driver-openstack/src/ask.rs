//! Checks that the names and ids in a class exist in the cloud. Nothing is made.

use cloud_client::Failure;
use kube_values::field::{FieldPath, Findings, RuleId};
use machine_api::validation::CLS_6;
use machine_driver::{Code, Status};
use serde::Deserialize;

use crate::{
    cloud::{Operation, Session},
    create::networks_of_subnets,
    keystone::Service,
    lookup::{is_id, unique},
    neutron::NamedThing,
    nova::query,
    spec::{RootDisk, Spec},
};

/// The rule id of all findings: the provider refuses the class.
const RULE: RuleId = CLS_6.id;

#[derive(Deserialize)]
struct KeyPair {
    keypair: Named,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Zone {
    zone_name: String,
}

#[derive(Deserialize)]
struct Identified {
    id: String,
}

/// The problems that the cloud has with a class.
///
/// # Errors
/// Errors of the services, because the class can't be checked then.
pub async fn about(cloud: &Session<'_>, spec: &Spec) -> Result<Findings, Status> {
    let mut check =
        ClassCheck { cloud, spec, path: FieldPath::new("providerSpec").child("spec"), found: Findings::new() };
    check.flavor().await?;
    check.image().await?;
    check.key().await?;
    check.zone().await?;
    check.networks().await?;
    check.security_groups().await?;
    check.server_group().await?;
    check.volume_type().await?;
    Ok(check.found)
}

struct ClassCheck<'a> {
    cloud: &'a Session<'a>,
    spec: &'a Spec,
    path: FieldPath,
    found: Findings,
}

impl ClassCheck<'_> {
    /// The answer of a look-up. `None` and a warning without permission, because the driver itself does not need it.
    fn answer<T>(&mut self, at: &str, answer: Result<T, Failure>) -> Result<Option<T>, Status> {
        match answer {
            Ok(found) => Ok(Some(found)),
            Err(Failure { status, .. }) if status.code == Code::PermissionDenied => {
                let detail = format!("could not be looked up: {}", status.message);
                self.found.warn(RULE, self.path.child(at), "", detail);
                Ok(None)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    fn refuse(&mut self, at: FieldPath, value: &str, status: Status) {
        self.found.invalid(RULE, at, value, status.message);
    }

    async fn flavor(&mut self) -> Result<(), Status> {
        let name = self.spec.flavor_name.as_str();
        let flavors = self.cloud.flavors().await;
        let Some(flavors) = self.answer("flavorName", flavors)? else { return Ok(()) };
        if let Err(status) = unique("flavor", name, &flavors, |flavor| flavor.name == name) {
            self.refuse(self.path.child("flavorName"), name, status);
        }
        Ok(())
    }

    async fn image(&mut self) -> Result<(), Status> {
        let Spec { image_id, image_name, .. } = self.spec;
        if image_id.is_empty() {
            let images = self.cloud.images_named(image_name).await;
            let Some(images) = self.answer("imageName", images)? else { return Ok(()) };
            if let Err(status) = unique("image", image_name, &images, |_| true) {
                self.refuse(self.path.child("imageName"), image_name, status);
            }
            return Ok(());
        }
        // The list with a filter is used, because Glance answers a request for a missing image with text instead of JSON.
        let path = format!("/images?{}", query(&[("id", &format!("in:{image_id}"))]));
        let images = self.cloud.list(Operation::get(Service::Image, "looking for the image", &path), "images").await;
        let images: Option<Vec<Identified>> = self.answer("imageID", images)?;
        self.require("imageID", image_id, images);
        Ok(())
    }

    /// Checks that a list has this id. `None` is a list without permission.
    fn require(&mut self, at: &str, id: &str, found: Option<Vec<Identified>>) {
        if found.is_some_and(|found| !found.iter().any(|one| one.id == id)) {
            self.found.invalid(
                RULE,
                self.path.child(at),
                id,
                "there is none with this id in the region that the project can see",
            );
        }
    }

    async fn key(&mut self) -> Result<(), Status> {
        let name = self.spec.key_name.as_str();
        let operation = Operation::get(Service::Compute, "looking for the key", "/os-keypairs");
        let keys = self.cloud.list::<KeyPair>(operation, "keypairs").await;
        let Some(keys) = self.answer("keyName", keys)? else { return Ok(()) };
        if !keys.iter().any(|key| key.keypair.name == name) {
            let detail = "the user of the credentials has no key pair of this name";
            self.found.invalid(RULE, self.path.child("keyName"), name, detail);
        }
        Ok(())
    }

    async fn zone(&mut self) -> Result<(), Status> {
        let name = self.spec.availability_zone.as_str();
        let operation = Operation::get(Service::Compute, "looking for the availability zone", "/os-availability-zone");
        let zones = self.cloud.call::<Vec<Zone>>(operation, "availabilityZoneInfo").await;
        let Some(zones) = self.answer("availabilityZone", zones)? else { return Ok(()) };
        if !zones.iter().any(|zone| zone.zone_name == name) {
            let names: Vec<&str> = zones.iter().map(|zone| zone.zone_name.as_str()).collect();
            self.found.not_supported(RULE, self.path.child("availabilityZone"), name, &names);
        }
        Ok(())
    }

    async fn networks(&mut self) -> Result<(), Status> {
        let spec = self.spec;
        if !spec.network_id.is_empty() {
            self.network("networkID", self.path.child("networkID"), &spec.network_id).await?;
            if let Err(status) = networks_of_subnets(self.cloud, spec).await {
                match status.code {
                    Code::NotFound | Code::InvalidArgument => self.refuse(self.path.child("subnetIDs"), "", status),
                    _ => return Err(status),
                }
            }
        }
        for (index, network) in spec.networks.iter().enumerate() {
            let at = self.path.child("networks").index(index);
            if !network.id.is_empty() {
                self.network("networks", at.child("id"), &network.id).await?;
                continue;
            }
            let found = self.cloud.networks_named(&[&network.name]).await;
            let Some(found) = self.answer("networks", found)? else { continue };
            if let Err(status) = unique("network", &network.name, &found, |one: &NamedThing| one.name == network.name) {
                self.refuse(at.child("name"), &network.name, status);
            }
        }
        Ok(())
    }

    async fn network(&mut self, field: &str, at: FieldPath, id: &str) -> Result<(), Status> {
        let path = format!("/networks?{}", query(&[("id", id), ("fields", "id")]));
        let found =
            self.cloud.list(Operation::get(Service::Network, "looking for the network", &path), "networks").await;
        let found: Option<Vec<Identified>> = self.answer(field, found)?;
        if found.is_some_and(|found| found.is_empty()) {
            self.found.invalid(RULE, at, id, "there is no such network in the region that the project can see");
        }
        Ok(())
    }

    async fn security_groups(&mut self) -> Result<(), Status> {
        let names: Vec<&str> = self.spec.security_groups.iter().map(String::as_str).collect();
        if names.is_empty() {
            return Ok(());
        }
        let found = self.cloud.security_groups_named(&names).await;
        let Some(found) = self.answer("securityGroups", found)? else { return Ok(()) };
        for (index, name) in names.into_iter().enumerate() {
            if let Err(status) = unique("security group", name, &found, |group| group.name == name) {
                self.refuse(self.path.child("securityGroups").index(index), name, status);
            }
        }
        Ok(())
    }

    async fn server_group(&mut self) -> Result<(), Status> {
        let id = self.spec.server_group_id.as_str();
        if id.is_empty() {
            return Ok(());
        }
        let missing = Status::new(Code::NotFound, "there is no such server group in the project");
        if !is_id(id) {
            self.refuse(self.path.child("serverGroupID"), id, missing);
            return Ok(());
        }
        let path = format!("/os-server-groups/{id}");
        let operation = Operation::get(Service::Compute, "looking for the server group", &path);
        match self.cloud.call::<Identified>(operation, "server_group").await {
            Err(failure) if failure.status.code == Code::NotFound => {
                self.refuse(self.path.child("serverGroupID"), id, missing);
                Ok(())
            }
            answer => self.answer("serverGroupID", answer).map(drop),
        }
    }

    async fn volume_type(&mut self) -> Result<(), Status> {
        let RootDisk::Own { kind, .. } = self.spec.root_disk() else { return Ok(()) };
        let operation = Operation::get(Service::Volume, "looking for the volume type", "/types");
        let types = self.cloud.list::<Named>(operation, "volume_types").await;
        let Some(types) = self.answer("rootDiskType", types)? else { return Ok(()) };
        if !types.iter().any(|one| one.name == kind) {
            let names: Vec<&str> = types.iter().map(|one| one.name.as_str()).collect();
            self.found.not_supported(RULE, self.path.child("rootDiskType"), kind, &names);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "ask_tests.rs"]
mod tests;
