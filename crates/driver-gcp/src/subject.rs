//! The machine of a request, with its class, its credentials and the places where its instance may be.

use machine_driver::{Code, Machine, MachineRequest, OwnerTags, SecretData, Status};

use crate::{
    login::Login,
    names::{is_name, is_project},
    spec::Spec,
    state::Pending,
};

/// A zone of a project. Both have the form of names, so that they can be parts of URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    project: String,
    zone: String,
}

impl Place {
    /// A place. `None` if project or zone can't be names.
    pub fn of(project: &str, zone: &str) -> Option<Self> {
        let are_names = is_project(project) && is_name(zone);
        are_names.then(|| Self { project: project.to_owned(), zone: zone.to_owned() })
    }

    /// The project.
    pub fn project(&self) -> &str {
        &self.project
    }

    /// The zone.
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// The path of the place in URLs.
    pub fn path(&self) -> String {
        format!("/projects/{}/zones/{}", self.project, self.zone)
    }

    /// The provider id of an instance in this place.
    pub fn provider_id(&self, name: &str) -> String {
        format!("gce:///{}/{}/{name}", self.project, self.zone)
    }
}

/// The place and the name of an instance, from a provider id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceLocation {
    pub place: Place,
    pub name: String,
}

impl InstanceLocation {
    /// Parses a provider id of the form `gce:///<project>/<zone>/<name>`. Cloud controllers write two slashes. `None` for any other text.
    pub fn of(provider_id: &str) -> Option<Self> {
        let path = provider_id.strip_prefix("gce://")?;
        let mut parts = path.strip_prefix('/').unwrap_or(path).split('/');
        let (project, zone, name) = (parts.next()?, parts.next()?, parts.next()?);
        let is_complete = parts.next().is_none() && is_name(name);
        let place = Place::of(project, zone).filter(|_| is_complete)?;
        Some(Self { place, name: name.to_owned() })
    }
}

/// The machine of a request.
pub struct Subject<'a> {
    pub spec: Spec,
    pub owner: OwnerTags,
    pub login: Login,
    pub machine: &'a Machine,
    pub secret: &'a SecretData,
    /// The creation of the instance, if it has not ended.
    pub pending: Option<Pending>,
}

impl<'a> Subject<'a> {
    /// The subject of a request.
    ///
    /// # Errors
    /// `InvalidArgument` for a class without tags for the owner, and for invalid credentials.
    pub fn of(spec: Spec, request: &'a MachineRequest) -> Result<Self, Status> {
        let owner = spec.owner_tags().ok_or_else(|| {
            let message =
                "providerSpec.tags: tags must contain entries starting with kubernetes-io-cluster- and kubernetes-io-role-";
            Status::new(Code::InvalidArgument, message)
        })?;
        let login = Login::of(&request.secret)?;
        // The parts of the state become parts of URLs, and users can write it.
        let pending = Pending::of(&request.machine.status.last_known_state)
            .filter(|pending| Place::of(&pending.project, &pending.zone).is_some())
            .map(|pending| Pending { operation: pending.operation.filter(|name| is_name(name)), ..pending });
        Ok(Self { spec, owner, login, machine: &request.machine, secret: &request.secret, pending })
    }

    /// The machine's name. `None` for a name that no instance can have.
    pub fn name(&self) -> Option<&'a str> {
        self.machine.metadata.name.as_deref().filter(|name| is_name(name))
    }

    /// The name for messages.
    pub fn shown_name(&self) -> &'a str {
        self.machine.metadata.name.as_deref().unwrap_or_default()
    }

    /// The location in the provider id of the machine. `None` without a provider id.
    ///
    /// # Errors
    /// `InvalidArgument` for an id of another form.
    pub fn location(&self) -> Result<Option<InstanceLocation>, Status> {
        let id = self.machine.spec.provider_id.as_str();
        if id.is_empty() {
            return Ok(None);
        }
        let invalid = || Status::new(Code::InvalidArgument, format!("{id:?} is no provider id of GCP"));
        InstanceLocation::of(id).map(Some).ok_or_else(invalid)
    }

    /// The place of new instances: the zone of the class, in the project of the credentials.
    ///
    /// # Errors
    /// `InvalidArgument` if they can't be names. The reading of class and credentials has checked them.
    pub fn place_of_class(&self) -> Result<Place, Status> {
        let invalid = || Status::new(Code::InvalidArgument, "zone or project can't be names");
        Place::of(&self.login.project, &self.spec.zone).ok_or_else(invalid)
    }

    /// The place of a creation that has not ended.
    pub fn place_of_creation(&self) -> Option<Place> {
        self.pending
            .as_ref()
            .filter(|pending| !pending.ended)
            .and_then(|pending| Place::of(&pending.project, &pending.zone))
    }

    /// The places of an instance without a provider id: the place of its creation, and the place in the class, which a user may have edited since.
    pub fn places(&self) -> Result<Vec<Place>, Status> {
        let mut places: Vec<Place> = self.place_of_creation().into_iter().collect();
        let of_class = self.place_of_class()?;
        if !places.contains(&of_class) {
            places.push(of_class);
        }
        Ok(places)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::ours("gce:///p/z/m", Some(("p", "z", "m")))]
    #[case::of_a_cloud_controller("gce://p/z/m", Some(("p", "z", "m")))]
    #[case::of_an_organisation("gce:///example.com:p/z/m", Some(("example.com:p", "z", "m")))]
    #[case::no_zone("gce:///p/m", None)]
    #[case::too_long("gce:///p/z/m/x", None)]
    #[case::a_path("gce:///p/../m", None)]
    #[case::a_query("gce:///p/z/m?x=y", None)]
    #[case::another_cloud("aws:///eu-west-1/i-1", None)]
    #[case::nothing("", None)]
    fn a_provider_id_names_a_place(#[case] id: &str, #[case] expected: Option<(&str, &str, &str)>) {
        let location = InstanceLocation::of(id);
        let parts = location
            .as_ref()
            .map(|location| (location.place.project.as_str(), location.place.zone.as_str(), location.name.as_str()));
        assert_eq!(parts, expected);
        if let Some(location) = location {
            assert_eq!(InstanceLocation::of(&location.place.provider_id(&location.name)), Some(location));
        }
    }
}
