//! The requests of Azure that the driver sends: paths, API versions, headers and the endpoints of the three clouds. Nothing else of the crate names
//! one of them.
//!
//! Source: the public REST reference of Azure Resource Manager (ARM), Compute, Network, Marketplace Ordering and Resource Graph, and the paths in the
//! official Python clients `azure-mgmt-*`. The versions are older than the newest ones, because the clouds for China and the US government get new
//! versions late.
//!
//! What the driver sends:
//! * token: `POST <login>/<tenant>/oauth2/v2.0/token`, a form ([`token`])
//! * resource group: `GET`, only for `mcm validate --ask-provider` ([`resource_group`]). That a group is gone is known from the code
//!   `ResourceGroupNotFound` of a `GET` for a VM
//! * VM: `GET` (also with its instance view), `PUT` (a new one with `If-None-Match: *`), `PATCH`, `DELETE` ([`virtual_machine`])
//! * NIC: `GET`, `PUT`, `DELETE` ([`network_interface`])
//! * disk: `GET`, `PUT`, `DELETE` ([`disk`])
//! * subnet: `GET` ([`subnet`])
//! * image of the marketplace: `GET` ([`marketplace_image`])
//! * agreement: `GET`, `PUT` ([`agreement`])
//! * Resource Graph: `POST` ([`RESOURCE_GRAPH`])
//!
//! Long-running operations are followed by their headers: [`ASYNC_OPERATION`], `Location` and `Retry-After`.

use std::fmt;

/// The version of Compute's API for VMs and images. It is the first with `If-None-Match` for VMs in all clouds.
const COMPUTE_VERSION: &str = "2024-07-01";
/// The version of Compute's API for disks.
const DISK_VERSION: &str = "2024-03-02";
/// The version of Network's API.
const NETWORK_VERSION: &str = "2024-05-01";
/// The version of the API of resource groups.
const RESOURCES_VERSION: &str = "2021-04-01";
/// The version of the API of agreements.
const ORDERING_VERSION: &str = "2021-01-01";

/// The path of a query of Resource Graph, with its version.
pub const RESOURCE_GRAPH: &str = "/providers/Microsoft.ResourceGraph/resources?api-version=2022-10-01";

/// The header with the URL that tells the state of a long-running operation: `{"status": …, "error": {…}}`. It is `Succeeded`, `Failed` or
/// `Canceled` at the end.
pub const ASYNC_OPERATION: &str = "azure-asyncoperation";
/// The header with the id of a request, for the support of Azure.
pub const REQUEST_ID: &str = "x-ms-request-id";

/// One of Azure's separate clouds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cloud {
    /// The public cloud.
    #[default]
    Public,
    /// The cloud in China, operated by 21Vianet.
    China,
    /// The cloud for the government of the United States.
    Government,
}

impl Cloud {
    /// Its name in a `providerSpec`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Public => "AzurePublic",
            Self::China => "AzureChina",
            Self::Government => "AzureGovernment",
        }
    }

    /// The cloud with this name in a `providerSpec`. No name means the public cloud.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Public, Self::China, Self::Government];
        if name.is_empty() { Some(Self::Public) } else { all.into_iter().find(|cloud| cloud.name() == name) }
    }

    /// The endpoint of Azure Resource Manager, without a slash at its end.
    pub const fn resource_manager(self) -> &'static str {
        match self {
            Self::Public => "https://management.azure.com",
            Self::China => "https://management.chinacloudapi.cn",
            Self::Government => "https://management.usgovcloudapi.net",
        }
    }

    /// The endpoint of Microsoft Entra, which issues tokens.
    pub const fn login(self) -> &'static str {
        match self {
            Self::Public => "https://login.microsoftonline.com",
            Self::China => "https://login.partner.microsoftonline.cn",
            Self::Government => "https://login.microsoftonline.us",
        }
    }

    /// What a token is valid for. It does not depend on the endpoint in the configuration.
    pub fn scope(self) -> String {
        format!("{}/.default", self.resource_manager())
    }
}

/// The path of the token service of a tenant.
pub fn token(tenant: &str) -> String {
    format!("/{tenant}/oauth2/v2.0/token")
}

/// A resource group of a subscription. Both have been checked, so that they can be parts of URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The subscription.
    pub subscription: String,
    /// The resource group.
    pub name: String,
}

impl Group {
    /// Whether both are the same group. Azure ignores letter case.
    pub fn is_same(&self, other: &Self) -> bool {
        self.subscription.eq_ignore_ascii_case(&other.subscription) && self.name.eq_ignore_ascii_case(&other.name)
    }
}

impl fmt::Display for Group {
    /// The resource id of the group.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/subscriptions/{}/resourceGroups/{}", self.subscription, self.name)
    }
}

/// The resource id of a VM.
pub fn virtual_machine_id(group: &Group, name: &str) -> String {
    format!("{group}/providers/Microsoft.Compute/virtualMachines/{name}")
}

/// The resource id of a network interface.
pub fn network_interface_id(group: &Group, name: &str) -> String {
    format!("{group}/providers/Microsoft.Network/networkInterfaces/{name}")
}

/// The resource id of a disk.
pub fn disk_id(group: &Group, name: &str) -> String {
    format!("{group}/providers/Microsoft.Compute/disks/{name}")
}

/// The path of a resource group.
pub fn resource_group(group: &Group) -> String {
    format!("{group}?api-version={RESOURCES_VERSION}")
}

/// The path of a VM.
pub fn virtual_machine(group: &Group, name: &str) -> String {
    format!("{}?api-version={COMPUTE_VERSION}", virtual_machine_id(group, name))
}

/// The path of a VM with its instance view, which tells why its creation has failed.
pub fn virtual_machine_view(group: &Group, name: &str) -> String {
    format!("{}?api-version={COMPUTE_VERSION}&$expand=instanceView", virtual_machine_id(group, name))
}

/// The path of a network interface.
pub fn network_interface(group: &Group, name: &str) -> String {
    format!("{}?api-version={NETWORK_VERSION}", network_interface_id(group, name))
}

/// The path of a disk.
pub fn disk(group: &Group, name: &str) -> String {
    format!("{}?api-version={DISK_VERSION}", disk_id(group, name))
}

/// The path of a subnet.
pub fn subnet(group: &Group, network: &str, name: &str) -> String {
    format!(
        "{group}/providers/Microsoft.Network/virtualNetworks/{network}/subnets/{name}?api-version={NETWORK_VERSION}"
    )
}

/// The path of any resource of the Compute service by its id.
pub fn compute_resource(id: &str) -> String {
    format!("{id}?api-version={COMPUTE_VERSION}")
}

/// An image of the marketplace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarketplaceImage<'a> {
    pub publisher: &'a str,
    pub offer: &'a str,
    pub sku: &'a str,
    pub version: &'a str,
}

/// The path of an image of the marketplace.
pub fn marketplace_image(subscription: &str, location: &str, image: MarketplaceImage<'_>) -> String {
    let MarketplaceImage { publisher, offer, sku, version } = image;
    format!(
        "/subscriptions/{subscription}/providers/Microsoft.Compute/locations/{location}/publishers/{publisher}/artifacttypes/vmimage/offers/\
         {offer}/skus/{sku}/versions/{version}?api-version={COMPUTE_VERSION}"
    )
}

/// The purchase plan of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Plan {
    /// The plan itself.
    #[serde(default)]
    pub name: String,
    /// The offer.
    #[serde(default)]
    pub product: String,
    #[serde(default)]
    pub publisher: String,
}

/// The path of the agreement for a plan. The terms are accepted with a `PUT` of what `GET` answers, with `properties.accepted` set.
pub fn agreement(subscription: &str, plan: &Plan) -> String {
    let Plan { name, product, publisher } = plan;
    format!(
        "/subscriptions/{subscription}/providers/Microsoft.MarketplaceOrdering/offerTypes/virtualmachine/publishers/{publisher}/offers/{product}/plans/\
         {name}/agreements/current?api-version={ORDERING_VERSION}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_official_clients() {
        let group = Group { subscription: "s".to_owned(), name: "g".to_owned() };
        assert_eq!(
            virtual_machine(&group, "m"),
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/m?api-version=2024-07-01"
        );
        assert_eq!(
            subnet(&group, "n", "w"),
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/n/subnets/w?api-version=2024-05-01"
        );
        let image = MarketplaceImage { publisher: "p", offer: "o", sku: "k", version: "1" };
        assert_eq!(
            marketplace_image("s", "westeurope", image),
            "/subscriptions/s/providers/Microsoft.Compute/locations/westeurope/publishers/p/artifacttypes/vmimage/offers/o/skus/k/versions/1\
             ?api-version=2024-07-01"
        );
        let plan = Plan { name: "n".to_owned(), product: "o".to_owned(), publisher: "p".to_owned() };
        assert_eq!(
            agreement("s", &plan),
            "/subscriptions/s/providers/Microsoft.MarketplaceOrdering/offerTypes/virtualmachine/publishers/p/offers/o/plans/n/agreements/current\
             ?api-version=2021-01-01"
        );
    }

    #[test]
    fn each_cloud_has_its_name() {
        assert!(crate::rules::CLOUDS.iter().all(|name| Cloud::named(name).unwrap().name() == *name));
        assert_eq!((Cloud::named(""), Cloud::named("azurepublic")), (Some(Cloud::Public), None));
        assert_eq!(Cloud::China.scope(), "https://management.chinacloudapi.cn/.default");
    }
}
