//! What the subscription has before a test begins: resource groups, networks, images, availability sets. Tests can't change it, but for agreements.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    accounts::{SUBSCRIPTION, TENANT},
    errors::Refusal,
    model::Method,
};

macro_rules! id {
    ($path:literal) => {
        concat!(
            "/subscriptions/5a8b1c2d-0000-4000-8000-00000000a001/resourceGroups/shoot--project--name/providers/",
            $path
        )
    };
}

/// The region.
pub const LOCATION: &str = "westeurope";
/// Its zones.
pub const ZONES: [&str; 3] = ["1", "2", "3"];
/// The resource group of the machines.
pub const RESOURCE_GROUP: &str = "shoot--project--name";
/// Another resource group, with a network.
pub const VNET_RESOURCE_GROUP: &str = "shared-network";
/// A network in both resource groups.
pub const VNET: &str = "shoot-vnet";
/// A subnet of [`VNET`].
pub const SUBNET: &str = "nodes";
/// A size of the region.
pub const VM_SIZE: &str = "Standard_D2s_v3";
/// Another size of the region.
pub const OTHER_VM_SIZE: &str = "Standard_D4s_v5";
/// An image of the marketplace without a plan.
pub const URN: &str = "sap:gardenlinux:greatest:1592.1.0";
/// An image of the marketplace with the plan `nodes`, whose terms are not accepted yet.
pub const URN_WITH_PLAN: &str = "example:hardened-linux:nodes:2.0.1";
/// An image of the subscription.
pub const IMAGE_ID: &str = id!("Microsoft.Compute/images/gardenlinux-1592");
/// A version of an image in a gallery of the subscription.
pub const GALLERY_IMAGE_ID: &str = id!("Microsoft.Compute/galleries/nodes/images/gardenlinux/versions/1592.1.0");
/// An image of a community gallery.
pub const COMMUNITY_IMAGE: &str =
    "/CommunityGalleries/gardenlinux-13e998fe-534d-4b0a-8a27-f16a73aef620/Images/gardenlinux/Versions/1592.1.0";
/// An image of a gallery that is shared with the subscription.
pub const SHARED_IMAGE: &str =
    "/SharedGalleries/sap-13e998fe-534d-4b0a-8a27-f16a73aef620/Images/gardenlinux/Versions/1592.1.0";
/// An availability set.
pub const AVAILABILITY_SET: &str = id!("Microsoft.Compute/availabilitySets/nodes");
/// A scale set with orchestration mode `Flexible`.
pub const SCALE_SET: &str = id!("Microsoft.Compute/virtualMachineScaleSets/nodes");
/// A scale set with orchestration mode `Uniform`, which takes no VM of ours.
pub const UNIFORM_SCALE_SET: &str = id!("Microsoft.Compute/virtualMachineScaleSets/uniform");
/// A group of capacity reservations.
pub const CAPACITY_RESERVATION_GROUP: &str = id!("Microsoft.Compute/capacityReservationGroups/nodes");
/// An identity that VMs can have.
pub const IDENTITY: &str = id!("Microsoft.ManagedIdentity/userAssignedIdentities/nodes");

/// The sizes of the region.
pub const SIZES: [&str; 2] = [VM_SIZE, OTHER_VM_SIZE];

/// The id of a resource.
pub fn id(group: &str, kind: &str, name: &str) -> String {
    format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{group}/providers/{kind}/{name}")
}

/// Whether two ids name the same resource.
pub fn same(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

/// Whether a location is the region. Azure ignores case and spaces.
pub fn is_here(location: &str) -> bool {
    same(&location.replace(' ', ""), LOCATION)
}

/// Group and name of a resource of this type, if an id names one in this subscription. Both are in lower case.
pub fn parse(id: &str, kind: &str) -> Option<(String, String)> {
    let id = id.to_ascii_lowercase();
    let rest = id.strip_prefix(&format!("/subscriptions/{SUBSCRIPTION}/resourcegroups/"))?;
    let (group, rest) = rest.split_once("/providers/")?;
    let name = rest.strip_prefix(&format!("{}/", kind.to_ascii_lowercase()))?;
    (!name.contains('/')).then(|| (group.to_owned(), name.to_owned()))
}

/// Whether an id names a subnet.
pub fn is_subnet(id: &str) -> bool {
    let networks = [RESOURCE_GROUP, VNET_RESOURCE_GROUP]
        .map(|group| format!("{}/subnets/{SUBNET}", self::id(group, "Microsoft.Network/virtualNetworks", VNET)));
    networks.iter().any(|network| same(network, id))
}

/// An image of the marketplace: publisher, offer, SKU and version.
pub fn is_urn(parts: [&str; 4]) -> Option<&'static str> {
    [URN, URN_WITH_PLAN].into_iter().find(|urn| {
        let known: Vec<_> = urn.split(':').collect();
        (0..3).all(|part| known[part].eq_ignore_ascii_case(parts[part]))
            && (known[3] == parts[3] || parts[3].eq_ignore_ascii_case("latest"))
    })
}

/// The path of an image of the marketplace, as disks refer to it.
pub fn marketplace_path(urn: &str) -> String {
    let parts: Vec<_> = urn.split(':').collect();
    format!(
        "/Subscriptions/{SUBSCRIPTION}/Providers/Microsoft.Compute/Locations/{LOCATION}/Publishers/{}/ArtifactTypes/VMImage/Offers/{}/Skus/{}/Versions/{}",
        parts[0], parts[1], parts[2], parts[3]
    )
}

/// Whether an image reference of a VM names an image, and whether the image needs a plan. `None` without an image.
pub fn image_needs_plan(reference: &Value) -> Option<bool> {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    for (field, known) in [
        ("id", &[IMAGE_ID, GALLERY_IMAGE_ID][..]),
        ("communityGalleryImageId", &[COMMUNITY_IMAGE]),
        ("sharedGalleryImageId", &[SHARED_IMAGE]),
    ] {
        if !text(field).is_empty() {
            return known.iter().any(|known| same(known, text(field))).then_some(false);
        }
    }
    let urn = is_urn([text("publisher"), text("offer"), text("sku"), text("version")])?;
    Some(urn == URN_WITH_PLAN)
}

/// Whether the data of a disk comes from an image that exists.
pub fn is_disk_source(creation: &Value) -> bool {
    let text = |part: &str, field: &str| creation[part][field].as_str().unwrap_or_default().to_owned();
    let gallery = [
        ("id", GALLERY_IMAGE_ID),
        ("communityGalleryImageId", COMMUNITY_IMAGE),
        ("sharedGalleryImageId", SHARED_IMAGE),
    ];
    let image = text("imageReference", "id");
    [IMAGE_ID.to_owned(), marketplace_path(URN), marketplace_path(URN_WITH_PLAN)]
        .iter()
        .any(|known| same(known, &image))
        || gallery.iter().any(|(field, known)| same(known, &text("galleryImageReference", field)))
}

/// The purchase plan of an image with a plan.
pub fn plan() -> Value {
    let parts: Vec<_> = URN_WITH_PLAN.split(':').collect();
    json!({"name": parts[2], "product": parts[1], "publisher": parts[0]})
}

/// The terms of the plan, before they are accepted.
pub fn terms() -> Value {
    let plan = plan();
    let text = |field: &str| plan[field].as_str().unwrap_or_default();
    let link = format!("https://storelegalterms.example/{}", text("product"));
    json!({
        "id": format!(
            "/subscriptions/{SUBSCRIPTION}/providers/Microsoft.MarketplaceOrdering/offertypes/VirtualMachine/publishers/{}/offers/{}/plans/{}/agreements/current",
            text("publisher"), text("product"), text("name")
        ),
        "name": text("name"), "type": "Microsoft.MarketplaceOrdering/offertypes",
        "properties": {
            "publisher": text("publisher"), "product": text("product"), "plan": text("name"), "licenseTextLink": link, "privacyPolicyLink": link,
            "marketplaceTermsLink": link, "retrieveDatetime": "2026-01-07T03:14:15.926Z", "signature": "MEDWQ4YZ2X7ILK5V", "accepted": false,
        },
    })
}

/// A resource that never changes. The group exists.
pub fn read(method: Method, parameters: &BTreeMap<String, String>) -> Result<Value, Refusal> {
    let parameter = |name: &str| parameters.get(name).map(String::as_str).unwrap_or_default();
    let group = parameter("resourceGroupName");
    // A resource of the machines' group with this name.
    let one = |kind: &str, name: &str, known: &str, body: Value| {
        if !group.eq_ignore_ascii_case(RESOURCE_GROUP) || !same(known, name) {
            return Err(Refusal::not_found(kind, name, group));
        }
        let mut found = json!({"id": id(group, kind, known), "name": known, "type": kind, "location": LOCATION});
        json_patch::merge(&mut found, &body);
        Ok(found)
    };
    match method {
        Method::GetSubscription => Ok(json!({
            "id": format!("/subscriptions/{SUBSCRIPTION}"), "subscriptionId": SUBSCRIPTION, "tenantId": TENANT, "displayName": "tests",
            "state": "Enabled", "authorizationSource": "RoleBased", "subscriptionPolicies": {"spendingLimit": "Off"},
        })),
        Method::GetResourceGroup => Ok(json!({
            "id": format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{group}"), "name": group, "type": "Microsoft.Resources/resourceGroups",
            "location": LOCATION, "properties": {"provisioningState": "Succeeded"},
        })),
        Method::GetVnet | Method::GetSubnet => {
            network(method, group, parameter("virtualNetworkName"), parameter("subnetName"))
        }
        Method::GetAvailabilitySet => {
            let body = json!({"sku": {"name": "Aligned"}, "properties": {"platformFaultDomainCount": 2, "platformUpdateDomainCount": 5}});
            one("Microsoft.Compute/availabilitySets", parameter("availabilitySetName"), "nodes", body)
        }
        Method::GetScaleSet => {
            let name = parameter("vmScaleSetName");
            let (known, mode) = if same(name, "uniform") { ("uniform", "Uniform") } else { ("nodes", "Flexible") };
            let body = json!({"properties": {"orchestrationMode": mode, "platformFaultDomainCount": 1, "provisioningState": "Succeeded"}});
            one("Microsoft.Compute/virtualMachineScaleSets", name, known, body)
        }
        Method::GetCapacityReservationGroup => {
            let name = parameter("capacityReservationGroupName");
            one("Microsoft.Compute/capacityReservationGroups", name, "nodes", json!({"zones": ZONES}))
        }
        Method::GetImage => {
            let properties = json!({"hyperVGeneration": "V2", "provisioningState": "Succeeded"});
            one(
                "Microsoft.Compute/images",
                parameter("imageName"),
                "gardenlinux-1592",
                json!({ "properties": properties }),
            )
        }
        _ => marketplace_image(parameters),
    }
}

fn network(method: Method, group: &str, vnet: &str, subnet: &str) -> Result<Value, Refusal> {
    let kind = "Microsoft.Network/virtualNetworks";
    if !same(vnet, VNET) {
        return Err(Refusal::not_found(kind, vnet, group));
    }
    let vnet_id = id(group, kind, VNET);
    let subnet_id = format!("{vnet_id}/subnets/{SUBNET}");
    let properties = json!({
        "addressPrefix": "10.250.0.0/16", "provisioningState": "Succeeded", "privateEndpointNetworkPolicies": "Disabled",
        "privateLinkServiceNetworkPolicies": "Enabled", "delegations": [],
    });
    let found = json!({"id": subnet_id, "name": SUBNET, "etag": ETAG, "type": format!("{kind}/subnets"), "properties": properties});
    if method == Method::GetVnet {
        let properties = json!({"addressSpace": {"addressPrefixes": ["10.250.0.0/16"]}, "subnets": [found], "provisioningState": "Succeeded"});
        return Ok(
            json!({"id": vnet_id, "name": VNET, "etag": ETAG, "type": kind, "location": LOCATION, "properties": properties}),
        );
    }
    if same(subnet, SUBNET) {
        Ok(found)
    } else {
        let message = format!("Resource {vnet_id}/subnets/{subnet} not found.");
        Err(Refusal::new(404, "NotFound", &message))
    }
}

fn marketplace_image(parameters: &BTreeMap<String, String>) -> Result<Value, Refusal> {
    let parameter = |name: &str| parameters.get(name).map(String::as_str).unwrap_or_default();
    let location = parameter("location");
    if !is_here(location) {
        let message =
            format!("The provided location '{location}' is not available for resource type 'locations/publishers'.");
        return Err(Refusal::new(400, "NoRegisteredProviderFound", &message));
    }
    let parts = ["publisherName", "offer", "skus", "version"].map(parameter);
    // Only the creation of a VM understands the version `latest`.
    let Some(urn) = is_urn(parts).filter(|urn| urn.ends_with(&format!(":{}", parts[3]))) else {
        let message = format!("Artifact: VMImage was not found. ({})", parts.join(":"));
        return Err(Refusal::new(404, "NotFound", &message));
    };
    let mut properties = json!({
        "hyperVGeneration": "V2", "architecture": "x64", "osDiskImage": {"operatingSystem": "Linux"}, "dataDiskImages": [],
        "automaticOSUpgradeProperties": {"automaticOSUpgradeSupported": false},
    });
    if urn == URN_WITH_PLAN {
        properties["plan"] = plan();
    }
    Ok(json!({"id": marketplace_path(urn), "name": parts[3], "location": LOCATION, "properties": properties}))
}

/// The mark of a state of a resource of Network.
pub const ETAG: &str = "W/\"5f3a1c2d-0000-4000-8000-0000000000e1\"";
