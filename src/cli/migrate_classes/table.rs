//! The old kinds of classes, and where each of their fields goes in a `MachineClass`. Constants only.
//!
//! Early releases of the Go original had a kind of class for each provider. Its migration copied each field of `spec` to the field of the same name
//! below `providerSpec`, and the references to Secrets to the class itself. A field that the old class lacks is left out: the migration of the
//! Go original wrote the zero value of its type, which every driver reads in the same way. `docs/reference/old-classes.md` is made from these
//! tables.
//!
//! Sources: spec/providers §1.7, §3.1, §4.1, §5.1, §6.1; the types of the old kinds in gardener/machine-controller-manager v0.3x; the function
//! `GenerateMachineClassForMigration` of its provider controllers.

use crate::cli::cluster_objects::Resource;
use machine_api::names;

/// A kind of class that only one provider has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OldKind {
    /// Alibaba Cloud.
    Alicloud,
    /// Amazon Web Services.
    Aws,
    /// Microsoft Azure.
    Azure,
    /// Google Cloud Platform.
    Gcp,
    /// `OpenStack`.
    OpenStack,
    /// Packet, later Equinix Metal. The service has ended.
    Packet,
}

/// The mapping of an old kind.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The name of the kind.
    pub kind: &'static str,
    /// Its name in paths.
    pub plural: &'static str,
    /// The `provider` of the new class.
    pub provider: &'static str,
    /// Fields of `providerSpec` that the old kind does not have, with their values.
    pub constants: &'static [(&'static str, &'static str)],
    /// Where the fields go: `providerSpec`, or a field below it.
    pub place: &'static [&'static str],
    /// The fields of `spec`.
    pub fields: &'static [Field],
}

/// A field below `spec` of an old kind. In the new class it has the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The path: `a.b`, `a[].b` in the objects of a list, `a[]` for a list of plain values, and `a.*` for a map with free keys.
    pub path: &'static str,
    /// What the driver takes if the field is absent. Empty: nothing, or the zero value of its type.
    pub default: &'static str,
    /// What is special.
    pub note: &'static str,
}

/// The references to Secrets, which all old kinds have. They go to the fields of these names in the class itself.
pub const SECRET_FIELDS: [&str; 2] = ["secretRef", "credentialsSecretRef"];

/// The `apiVersion` that the migration of the Go original writes into most kinds of `providerSpec`.
const FLAT: &[(&str, &str)] = &[("apiVersion", "mcm.gardener.cloud/v1alpha1")];

const fn plain(path: &'static str) -> Field {
    Field { path, default: "", note: "" }
}

const fn defaulted(path: &'static str, default: &'static str) -> Field {
    Field { path, default, note: "" }
}

const fn noted(path: &'static str, note: &'static str) -> Field {
    Field { path, default: "", note }
}

impl OldKind {
    /// All of them, by name.
    pub const ALL: [Self; 6] = [Self::Alicloud, Self::Aws, Self::Azure, Self::Gcp, Self::OpenStack, Self::Packet];

    /// The old kind of this name. Names are case-sensitive, as everywhere in Kubernetes.
    pub fn from_name(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.table().kind == kind)
    }

    /// Its mapping.
    pub const fn table(self) -> &'static Table {
        match self {
            Self::Alicloud => &ALICLOUD,
            Self::Aws => &AWS,
            Self::Azure => &AZURE,
            Self::Gcp => &GCP,
            Self::OpenStack => &OPENSTACK,
            Self::Packet => &PACKET,
        }
    }

    /// Its resource. A cluster may not have it.
    pub const fn resource(self) -> Resource {
        let table = self.table();
        Resource { group: names::GROUP, version: names::V1ALPHA1, kind: table.kind, plural: table.plural }
    }

    /// The value of [`names::annotation::MIGRATED`] on a class of this kind, as the Go original wrote it.
    pub fn migrated_by(self) -> String {
        format!("machine-controller-{}", self.table().kind)
    }
}

const PROVIDER_SPEC: &[&str] = &["providerSpec"];

const ALICLOUD: Table = Table {
    kind: "AlicloudMachineClass",
    plural: "alicloudmachineclasses",
    provider: "Alicloud",
    constants: FLAT,
    place: PROVIDER_SPEC,
    fields: &[
        plain("imageID"),
        plain("instanceType"),
        plain("region"),
        plain("zoneID"),
        plain("securityGroupID"),
        plain("vSwitchID"),
        plain("privateIPAddress"),
        plain("systemDisk.category"),
        plain("systemDisk.size"),
        plain("dataDisks[].name"),
        plain("dataDisks[].category"),
        plain("dataDisks[].description"),
        plain("dataDisks[].encrypted"),
        defaulted("dataDisks[].deleteWithInstance", "true"),
        plain("dataDisks[].size"),
        defaulted("instanceChargeType", "PostPaid"),
        defaulted("internetChargeType", "PayByTraffic"),
        plain("internetMaxBandwidthIn"),
        plain("internetMaxBandwidthOut"),
        defaulted("spotStrategy", "NoSpot"),
        noted("IoOptimized", "begins with a capital letter in both"),
        plain("tags.*"),
        plain("keyPairName"),
    ],
};

const AWS: Table = Table {
    kind: "AWSMachineClass",
    plural: "awsmachineclasses",
    provider: "AWS",
    constants: FLAT,
    place: PROVIDER_SPEC,
    fields: &[
        plain("ami"),
        plain("region"),
        plain("machineType"),
        plain("iam.name"),
        plain("iam.arn"),
        plain("keyName"),
        plain("ebsOptimized"),
        plain("monitoring"),
        plain("blockDevices[].deviceName"),
        plain("blockDevices[].noDevice"),
        plain("blockDevices[].virtualName"),
        plain("blockDevices[].ebs.volumeType"),
        plain("blockDevices[].ebs.volumeSize"),
        plain("blockDevices[].ebs.iops"),
        plain("blockDevices[].ebs.encrypted"),
        defaulted("blockDevices[].ebs.deleteOnTermination", "true"),
        plain("blockDevices[].ebs.kmsKeyID"),
        plain("blockDevices[].ebs.snapshotID"),
        plain("networkInterfaces[].subnetID"),
        plain("networkInterfaces[].securityGroupIDs[]"),
        plain("networkInterfaces[].associatePublicIPAddress"),
        defaulted("networkInterfaces[].deleteOnTermination", "true"),
        plain("networkInterfaces[].description"),
        plain("tags.*"),
        noted("spotPrice", "present: a spot instance; empty: without a price limit"),
        noted("capacityReservation.capacityReservationId", "the migration of the Go original loses it"),
        noted("capacityReservation.capacityReservationResourceGroupArn", "the migration of the Go original loses it"),
    ],
};

const AZURE: Table = Table {
    kind: "AzureMachineClass",
    plural: "azuremachineclasses",
    provider: "Azure",
    constants: &[],
    place: PROVIDER_SPEC,
    fields: &[
        plain("location"),
        plain("resourceGroup"),
        plain("tags.*"),
        plain("subnetInfo.vnetName"),
        defaulted("subnetInfo.vnetResourceGroup", "resourceGroup"),
        plain("subnetInfo.subnetName"),
        plain("properties.hardwareProfile.vmSize"),
        plain("properties.storageProfile.imageReference.id"),
        plain("properties.storageProfile.imageReference.urn"),
        noted("properties.storageProfile.osDisk.name", "no driver reads it"),
        plain("properties.storageProfile.osDisk.caching"),
        plain("properties.storageProfile.osDisk.createOption"),
        plain("properties.storageProfile.osDisk.diskSizeGB"),
        noted("properties.storageProfile.osDisk.managedDisk.id", "no driver reads it"),
        plain("properties.storageProfile.osDisk.managedDisk.storageAccountType"),
        plain("properties.storageProfile.dataDisks[].name"),
        plain("properties.storageProfile.dataDisks[].lun"),
        defaulted("properties.storageProfile.dataDisks[].caching", "None"),
        plain("properties.storageProfile.dataDisks[].storageAccountType"),
        plain("properties.storageProfile.dataDisks[].diskSizeGB"),
        plain("properties.osProfile.adminUsername"),
        noted("properties.osProfile.adminPassword", "no driver reads it; it is better removed"),
        noted("properties.osProfile.computerName", "no driver reads it"),
        noted("properties.osProfile.customData", "no driver reads it"),
        plain("properties.osProfile.linuxConfiguration.disablePasswordAuthentication"),
        plain("properties.osProfile.linuxConfiguration.ssh.publicKeys.path"),
        plain("properties.osProfile.linuxConfiguration.ssh.publicKeys.keyData"),
        plain("properties.networkProfile.acceleratedNetworking"),
        noted("properties.networkProfile.networkInterfaces.id", "no driver reads it"),
        noted("properties.networkProfile.networkInterfaces.properties.primary", "no driver reads it"),
        plain("properties.availabilitySet.id"),
        plain("properties.zone"),
        noted("properties.machineSet.id", "read where availabilitySet and virtualMachineScaleSet are absent"),
        noted("properties.machineSet.kind", "`availabilityset` or `vmo`"),
        plain("properties.identityID"),
    ],
};

const GCP: Table = Table {
    kind: "GCPMachineClass",
    plural: "gcpmachineclasses",
    provider: "GCP",
    constants: FLAT,
    place: PROVIDER_SPEC,
    fields: &[
        plain("region"),
        plain("zone"),
        plain("machineType"),
        plain("canIpForward"),
        plain("deletionProtection"),
        plain("description"),
        defaulted("disks[].autoDelete", "true"),
        plain("disks[].boot"),
        plain("disks[].sizeGb"),
        plain("disks[].type"),
        plain("disks[].interface"),
        plain("disks[].image"),
        plain("disks[].labels.*"),
        plain("labels.*"),
        plain("metadata[].key"),
        plain("metadata[].value"),
        plain("networkInterfaces[].disableExternalIP"),
        plain("networkInterfaces[].network"),
        plain("networkInterfaces[].subnetwork"),
        plain("scheduling.automaticRestart"),
        plain("scheduling.onHostMaintenance"),
        plain("scheduling.preemptible"),
        plain("serviceAccounts[].email"),
        plain("serviceAccounts[].scopes[]"),
        plain("tags[]"),
    ],
};

const OPENSTACK: Table = Table {
    kind: "OpenStackMachineClass",
    plural: "openstackmachineclasses",
    provider: "OpenStack",
    constants: &[("apiVersion", "openstack.machine.gardener.cloud/v1alpha1"), ("kind", "MachineProviderConfig")],
    place: &["providerSpec", "spec"],
    fields: &[
        plain("imageID"),
        plain("imageName"),
        plain("region"),
        plain("availabilityZone"),
        plain("flavorName"),
        plain("keyName"),
        plain("securityGroups[]"),
        plain("tags.*"),
        plain("networkID"),
        plain("networks[].id"),
        plain("networks[].name"),
        plain("networks[].podNetwork"),
        plain("subnetID"),
        plain("podNetworkCidr"),
        defaulted("rootDiskSize", "the disk of the flavor"),
        plain("useConfigDrive"),
        plain("serverGroupID"),
    ],
};

const PACKET: Table = Table {
    kind: "PacketMachineClass",
    plural: "packetmachineclasses",
    provider: "EquinixMetal",
    constants: FLAT,
    place: PROVIDER_SPEC,
    fields: &[
        noted("facility[]", "later releases of the Go driver read `metro` instead"),
        plain("machineType"),
        plain("billingCycle"),
        noted("OS", "in capital letters in both"),
        plain("projectID"),
        plain("tags[]"),
        plain("sshKeys[]"),
        plain("userdata"),
    ],
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_kind_is_found_by_its_exact_name() {
        for kind in OldKind::ALL {
            assert_eq!(OldKind::from_name(kind.table().kind), Some(kind));
            assert_eq!(kind.table().plural, format!("{}es", kind.table().kind.to_lowercase()));
        }
        assert_eq!([OldKind::from_name("MachineClass"), OldKind::from_name("awsmachineclass")], [None, None]);
    }

    #[test]
    fn no_field_is_listed_twice_and_none_hides_another() {
        for kind in OldKind::ALL {
            let paths: Vec<&str> = kind.table().fields.iter().map(|field| field.path).collect();
            let once: BTreeSet<&str> = paths.iter().copied().collect();
            assert_eq!(once.len(), paths.len(), "{kind:?}");
            for path in &paths {
                let beneath = |other: &&&str| other.starts_with(&format!("{path}."));
                assert_eq!(paths.iter().find(beneath), None, "{kind:?}: {path} has fields below it");
            }
        }
    }
}
