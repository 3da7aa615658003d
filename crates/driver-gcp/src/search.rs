//! Searches the instance of a machine without a provider id, where [`crate::plan`] says.

use cloud_client::Failure;

use crate::{
    compute::{Session, SilentZones},
    plan::{Found, Known, Reach},
};

/// The instances of a name: in the zones in which it is expected, and in all zones of the class's project if the machine does not say where its
/// creation was and the class may have been edited.
///
/// # Errors
/// If GCE can't be asked. With [`Reach::All`] also if a zone is missing in its answer.
pub async fn by_name(known: &Known<'_>, gce: &Session<'_>, name: &str, reach: Reach) -> Result<Vec<Found>, Failure> {
    let mut all: Vec<Found> = Vec::new();
    for zone in known.zones() {
        if let Some(instance) = gce.instance_if_zone_exists(&zone, name).await? {
            all.push((zone, instance));
        }
    }
    if !known.is_searched_everywhere(&all, reach) {
        return Ok(all);
    }
    let silent = match reach {
        Reach::First => SilentZones::Pass,
        Reach::All => SilentZones::Fail,
    };
    for (zone, instance) in gce.named(known.class.project(), name, silent).await? {
        if all.iter().all(|(known, _)| *known != zone) {
            all.push((zone, instance));
        }
    }
    Ok(all)
}
