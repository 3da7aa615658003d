//! Searches the instance of a machine without a provider id.
//!
//! The state of a creation says where its instance may be. Without it, only a list of all zones finds an instance whose class was edited since.

use cloud_client::Failure;

use crate::{
    compute::Session,
    lookup,
    resources::Instance,
    subject::{Place, Subject},
};

/// An instance of a machine's name, whoever owns it.
pub type Found = (Place, Instance);

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Other zones are searched only if there is no instance of the owner where it is expected.
    FirstOwned,
    /// All instances are found.
    All,
}

/// The instances of a name: in the place of the creation, and in the zone of the class. If the machine does not say where its creation was, they are
/// also searched in the other zones.
///
/// # Errors
/// If GCE can't be asked, or a zone is missing in its answer.
pub async fn by_name(
    subject: &Subject<'_>,
    gce: &Session<'_>,
    name: &str,
    reach: Reach,
) -> Result<Vec<Found>, Failure> {
    let mut all: Vec<Found> = Vec::new();
    for place in subject.places()? {
        if let Some(instance) = gce.instance_if_zone_exists(&place, name).await? {
            all.push((place, instance));
        }
    }
    let is_owned = |(_, instance): &Found| lookup::is_owned(instance, &subject.owner);
    let suffices = reach == Reach::FirstOwned && all.iter().any(is_owned);
    if suffices || subject.place_of_creation().is_some() {
        return Ok(all);
    }
    for (place, instance) in gce.named(&subject.login.project, name).await? {
        if all.iter().all(|(known, _)| *known != place) {
            all.push((place, instance));
        }
    }
    Ok(all)
}
