//! What the account has before a test begins: regions, zones, instance types, images, networks. It never changes.

/// The region of the account's network.
pub const REGION: &str = "eu-central-1";
/// Another region. It has no network.
pub const OTHER_REGION: &str = "cn-hangzhou";
/// A zone of the region, which has all instance types.
pub const ZONE: &str = "eu-central-1a";
/// Another zone of the region. It lacks [`OTHER_INSTANCE_TYPE`].
pub const OTHER_ZONE: &str = "eu-central-1b";
/// An instance type of both zones.
pub const INSTANCE_TYPE: &str = "ecs.g6.large";
/// An instance type of [`ZONE`] only.
pub const OTHER_INSTANCE_TYPE: &str = "ecs.g7.xlarge";
/// An image for system disks of at least [`IMAGE_GB`].
pub const IMAGE: &str = "m-gw8gardenlinux1592";
/// The smallest size of a system disk with [`IMAGE`], in GiB.
pub const IMAGE_GB: i64 = 20;
/// The network.
pub const VPC: &str = "vpc-gw8shoot";
/// A part of the network, in [`ZONE`].
pub const V_SWITCH: &str = "vsw-gw8nodesa";
/// A part of the network, in [`OTHER_ZONE`].
pub const OTHER_V_SWITCH: &str = "vsw-gw8nodesb";
/// A security group of the network.
pub const SECURITY_GROUP: &str = "sg-gw8nodes";
/// A key pair.
pub const KEY_PAIR: &str = "shoot-ssh-publickey";
/// A role of instances.
pub const RAM_ROLE: &str = "shoot-node";
/// The id of the account.
pub const ACCOUNT_ID: &str = "1234567890123456";

const CATEGORIES: [&str; 6] =
    ["cloud", "cloud_auto", "cloud_efficiency", "cloud_essd", "cloud_essd_entry", "cloud_ssd"];

/// Whether there is this region.
pub fn has_region(region: &str) -> bool {
    [REGION, OTHER_REGION].contains(&region)
}

/// Whether there is this instance type in any zone.
pub fn has_type(instance_type: &str) -> bool {
    [INSTANCE_TYPE, OTHER_INSTANCE_TYPE].contains(&instance_type)
}

/// Whether a zone offers an instance type.
pub fn offers(zone: &str, instance_type: &str) -> bool {
    instance_type == INSTANCE_TYPE || (instance_type == OTHER_INSTANCE_TYPE && zone == ZONE)
}

/// Whether there is this category of disks.
pub fn has_category(category: &str) -> bool {
    CATEGORIES.contains(&category)
}

/// The zone of a part of the network.
pub fn zone_of(v_switch: &str) -> Option<&'static str> {
    match v_switch {
        V_SWITCH => Some(ZONE),
        OTHER_V_SWITCH => Some(OTHER_ZONE),
        _ => None,
    }
}
