//! Asks Azure whether the resources that a class names exist. Nothing is created: Azure has no request that only checks a VM.

use cloud_client::Failure;
use kube_values::field::{FieldPath, Findings, RuleId};
use machine_api::validation::CLS_6;
use machine_driver::{Code, Status};

use crate::{
    api::{self, Group},
    arm::{Found, Sent, Session},
    body,
    names::{id_segments, id_type},
    resources::text,
    spec::Spec,
    subject::Home,
};

/// The rule id of all findings: the provider refuses the class.
const RULE: RuleId = CLS_6.id;
/// The types of resources that Compute answers for by their id.
const OF_COMPUTE: [&str; 4] = ["availabilitySets", "capacityReservationGroups", "images", "virtualMachineScaleSets"];
/// The only orchestration mode of scale sets that VMs of machines can join.
const FLEXIBLE: &str = "Flexible";

/// A resource that a class names.
struct Named<'a> {
    path: FieldPath,
    value: &'a str,
    /// The path of the request.
    request: String,
    /// Its name in messages.
    shown: String,
}

/// The problems that Azure has with a class.
///
/// # Errors
/// When Azure can't be asked.
pub async fn about(azure: &Session<'_>, spec: &Spec) -> Result<Findings, Status> {
    let mut found = Findings::new();
    for Named { path, value, request, shown } in named(&azure.login.subscription, spec) {
        match azure.look(Sent::get("resource_get", "get", &request)).await {
            Ok(Found::Resource(resource)) => {
                let mode = text(&resource.0["properties"]["orchestrationMode"]);
                if !mode.is_empty() && !mode.eq_ignore_ascii_case(FLEXIBLE) {
                    found.invalid(
                        RULE,
                        path,
                        value,
                        format!("{shown} has the orchestration mode {mode}, not {FLEXIBLE}"),
                    );
                }
            }
            Ok(Found::Nothing | Found::NoGroup) => found.invalid(RULE, path, value, format!("there is no {shown}")),
            Err(failure) => record(failure, path, value, &mut found)?,
        }
    }
    Ok(found)
}

/// A refusal of one resource says nothing about the others. The credentials may lack the right to read it, although they may use it.
fn record(failure: Failure, path: FieldPath, value: &str, found: &mut Findings) -> Result<(), Status> {
    match failure.status.code {
        Code::PermissionDenied | Code::FailedPrecondition => {
            found.warn(RULE, path, value, format!("could not be looked up: {}", failure.status.message));
            Ok(())
        }
        Code::InvalidArgument | Code::Internal if failure.kind == cloud_client::FailureKind::Permanent => {
            found.invalid(RULE, path, value, failure.status.message);
            Ok(())
        }
        _ => Err(failure.status),
    }
}

/// All resources of a class that Azure can be asked for.
fn named<'s>(subscription: &str, spec: &'s Spec) -> Vec<Named<'s>> {
    let root = FieldPath::new("providerSpec");
    let group = Group { subscription: subscription.to_owned(), name: spec.resource_group.clone() };
    let home = Home { group: group.clone(), cloud: api::Cloud::default(), location: spec.location.clone() };
    let (subnet_group, network, subnet) = body::subnet(spec, &home);
    let mut all = vec![
        Named {
            path: root.child("resourceGroup"),
            value: &spec.resource_group,
            request: api::resource_group(&group),
            shown: format!("resource group {} in subscription {subscription}", group.name),
        },
        Named {
            path: root.child("subnetInfo").child("subnetName"),
            value: &spec.subnet_info.subnet_name,
            request: api::subnet(&subnet_group, network, subnet),
            shown: format!("subnet {subnet} of network {network} in resource group {}", subnet_group.name),
        },
    ];
    let properties = &spec.properties;
    let (at, storage) = (root.child("properties"), root.child("properties").child("storageProfile"));
    let image = &properties.storage_profile.image_reference;
    if let Some(marketplace) = image.marketplace() {
        let location = spec.location.replace(' ', "").to_ascii_lowercase();
        all.push(Named {
            path: storage.child("imageReference").child("urn"),
            value: &image.urn,
            request: api::marketplace_image(subscription, &location, marketplace),
            shown: format!("image {} in {}", image.urn, spec.location),
        });
    }
    let sets = [
        ("availabilitySet", &properties.availability_set),
        ("virtualMachineScaleSet", &properties.virtual_machine_scale_set),
    ];
    let ids = sets.into_iter().filter_map(|(name, set)| Some((at.child(name).child("id"), set.as_ref()?.id.as_str())));
    let reservation = at.child("capacityReservation").child("capacityReservationGroupID");
    let more = [
        (storage.child("imageReference").child("id"), image.id.as_str()),
        (reservation, properties.capacity_reservation.capacity_reservation_group_id.as_str()),
    ];
    for (path, id) in ids.chain(more) {
        let is_known = id_type(id).is_some_and(|kind| OF_COMPUTE.iter().any(|known| known.eq_ignore_ascii_case(kind)));
        // A version of a gallery's image has a longer id, which another version of the API answers for.
        if is_known && id_segments(id).is_some_and(|segments| segments.len() == 8) {
            all.push(Named { path, value: id, request: api::compute_resource(id), shown: format!("resource {id}") });
        }
    }
    all
}

#[cfg(test)]
#[path = "ask_tests.rs"]
mod tests;
