//! Zones and provider ids: where an instance is. Their parts have the form of names, so that they can be parts of URLs.

use crate::names::{is_name, is_project};

/// A zone of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    project: String,
    name: String,
}

impl Zone {
    /// The zone of this name in a project. `None` if project or zone can't be names.
    pub fn of(project: &str, name: &str) -> Option<Self> {
        let are_names = is_project(project) && is_name(name);
        are_names.then(|| Self { project: project.to_owned(), name: name.to_owned() })
    }

    /// The project.
    pub fn project(&self) -> &str {
        &self.project
    }

    /// The name of the zone in its project.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of the zone in URLs.
    pub fn path(&self) -> String {
        format!("/projects/{}/zones/{}", self.project, self.name)
    }

    /// The provider id of an instance in this zone.
    pub fn provider_id(&self, instance: &str) -> String {
        format!("gce:///{}/{}/{instance}", self.project, self.name)
    }
}

/// A provider id: the zone and the name of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderId {
    pub zone: Zone,
    pub instance: String,
}

impl ProviderId {
    /// Parses an id of the form `gce:///<project>/<zone>/<instance>`. Cloud controllers write two slashes. `None` for any other text.
    pub fn of(id: &str) -> Option<Self> {
        let path = id.strip_prefix("gce://")?;
        let mut parts = path.strip_prefix('/').unwrap_or(path).split('/');
        let (project, zone, instance) = (parts.next()?, parts.next()?, parts.next()?);
        let is_complete = parts.next().is_none() && is_name(instance);
        let zone = Zone::of(project, zone).filter(|_| is_complete)?;
        Some(Self { zone, instance: instance.to_owned() })
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
    fn a_provider_id_names_a_zone(#[case] id: &str, #[case] expected: Option<(&str, &str, &str)>) {
        let id = ProviderId::of(id);
        let parts = id.as_ref().map(|id| (id.zone.project(), id.zone.name(), id.instance.as_str()));
        assert_eq!(parts, expected);
        if let Some(id) = id {
            assert_eq!(ProviderId::of(&id.zone.provider_id(&id.instance)), Some(id));
        }
    }
}
