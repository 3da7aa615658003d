//! The machine of a request, with what is needed of its class, its credentials, and the places where its VM may be.

use machine_driver::{Code, Machine, MachineRequest, OwnerTags, SecretData, Status};

use crate::{
    api::{Cloud, Group},
    login::Login,
    names::{id_segments, is_account, is_location, is_vm_name},
    plan::{self, Evidence},
    spec::Essentials,
    state::Kept,
};

/// Where the resources of a machine are. All parts can be parts of URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    pub group: Group,
    pub cloud: Cloud,
    pub location: String,
}

impl Home {
    /// Whether both are the same place. Azure ignores the letter case of subscriptions and resource groups.
    pub fn is_same_place(&self, other: &Self) -> bool {
        self.cloud == other.cloud && self.group.is_same(&other.group)
    }
}

/// The parts of a provider id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderId {
    /// The name of the VM.
    pub name: String,
    /// The resource group, if the id is the id of a resource. Cloud controllers write such ids, and users copy them.
    pub group: Option<Group>,
}

impl ProviderId {
    /// Parses an id of the form `azure:///LOCATION/NAME` or `azure:///subscriptions/…/virtualMachines/NAME`. `None` for any other text.
    pub fn of(provider_id: &str) -> Option<Self> {
        let path = provider_id.strip_prefix("azure://")?;
        if let [location, name] = path.trim_start_matches('/').split('/').collect::<Vec<_>>().as_slice() {
            let is_valid = is_location(location) && is_vm_name(name);
            return is_valid.then(|| Self { name: (*name).to_owned(), group: None });
        }
        let segments = id_segments(path)?;
        let [subscriptions, subscription, groups, group, providers, _, kind, name] = segments.as_slice() else {
            return None;
        };
        let words = [
            (subscriptions, "subscriptions"),
            (groups, "resourceGroups"),
            (providers, "providers"),
            (kind, "virtualMachines"),
        ];
        let is_valid =
            words.iter().all(|(word, expected)| word.eq_ignore_ascii_case(expected)) && is_account(subscription);
        let group = Group { subscription: (*subscription).to_owned(), name: (*group).to_owned() };
        is_valid.then(|| Self { name: (*name).to_owned(), group: Some(group) })
    }
}

/// The machine of a request.
pub struct Subject<'a> {
    pub class: Essentials,
    pub login: Login,
    pub machine: &'a Machine,
    pub secret: &'a SecretData,
    /// What an earlier creation has left.
    pub kept: Option<Kept>,
    /// The provider id of the machine, if it has one.
    pub id: Option<ProviderId>,
}

impl<'a> Subject<'a> {
    /// The subject of a request.
    ///
    /// # Errors
    /// `InvalidArgument` for a class of another provider, for invalid credentials, and for a provider id of another form.
    pub fn of(request: &'a MachineRequest) -> Result<Self, Status> {
        let class = Essentials::of(&request.class)?;
        let login = Login::of(&request.secret)?;
        let machine: &Machine = &request.machine;
        let name = machine.metadata.name.as_deref().unwrap_or_default();
        let kept = Kept::of(&machine.status.last_known_state, name);
        let id =
            match machine.spec.provider_id.as_str() {
                "" => None,
                text => Some(ProviderId::of(text).ok_or_else(|| {
                    Status::new(Code::InvalidArgument, format!("{text:?} is no provider id of Azure"))
                })?),
            };
        Ok(Self { class, login, machine, secret: &request.secret, kept, id })
    }

    /// The machine's name. `None` for a name that no VM can have.
    pub fn name(&self) -> Option<&'a str> {
        self.machine.metadata.name.as_deref().filter(|name| is_vm_name(name))
    }

    /// The name for messages.
    pub fn shown_name(&self) -> &'a str {
        self.machine.metadata.name.as_deref().unwrap_or_default()
    }

    /// Checks that the provider id of the machine names its VM.
    ///
    /// # Errors
    /// `FailedPrecondition` for the id of another VM.
    pub fn check_id(&self) -> Result<(), Status> {
        let name = self.shown_name();
        match &self.id {
            Some(id) if !id.name.eq_ignore_ascii_case(name) => {
                let shown = &self.machine.spec.provider_id;
                let message = format!("the provider id {shown} names another VM than {name}; it is not touched");
                Err(Status::new(Code::FailedPrecondition, message))
            }
            _ => Ok(()),
        }
    }

    /// The place that the class names, in the subscription of the credentials. `None` if the class names none.
    pub fn home_of_class(&self) -> Option<Home> {
        let Essentials { location, resource_group, cloud, .. } = &self.class;
        let group = Group { subscription: self.login.subscription.clone(), name: resource_group.clone() };
        let cloud = (*cloud).filter(|_| !resource_group.is_empty())?;
        Some(Home { group, cloud, location: location.clone() })
    }

    /// The place that the machine itself names: in its state, or in its provider id.
    pub fn home_of_machine(&self) -> Option<Home> {
        if let Some(kept) = &self.kept {
            return Some(kept.home());
        }
        let group = self.id.as_ref()?.group.clone()?;
        let (cloud, location) = (self.class.cloud.unwrap_or_default(), self.class.location.clone());
        Some(Home { group, cloud, location })
    }

    /// The places where the VM may be, the likeliest one first.
    ///
    /// # Errors
    /// `InvalidArgument` if neither the machine nor the class names one.
    pub fn homes(&self) -> Result<Vec<Home>, Status> {
        let mut homes: Vec<Home> = self.home_of_machine().into_iter().collect();
        if let Some(home) = self.home_of_class().filter(|home| !homes.iter().any(|known| known.is_same_place(home))) {
            homes.push(home);
        }
        if homes.is_empty() {
            let message = "providerSpec.resourceGroup: Required value: must provide a resourceGroup, and a cloudConfiguration.name that exists";
            return Err(Status::new(Code::InvalidArgument, message));
        }
        Ok(homes)
    }

    /// The owner of the machine's resources. The owner in the state counts only while the class names none, because users can write the state.
    pub fn owner(&self) -> Option<OwnerTags> {
        self.class.owner.clone().or_else(|| self.kept.as_ref()?.owner())
    }

    /// What proves that a resource with the machine's name is the machine's.
    pub fn evidence(&self) -> Evidence {
        let is_recorded = self.machine.metadata.uid.is_some() && (self.id.is_some() || self.kept.is_some());
        if is_recorded { Evidence::Recorded } else { Evidence::Name }
    }

    /// The provider id of the VM in this place. An id that the machine has already stays.
    pub fn provider_id(&self, home: &Home, name: &str) -> String {
        match &self.machine.spec.provider_id {
            id if id.is_empty() => provider_id(&home.location, name),
            id => id.clone(),
        }
    }

    /// The names of the data disks that the machine may have, from the class and from its state.
    pub fn data_disks(&self, name: &str) -> Vec<String> {
        let of_class = self.class.disks.iter().map(|key| plan::data_disk(name, key));
        let of_state = self.kept.iter().flat_map(|kept| kept.disks.iter().cloned());
        let mut names: Vec<String> = of_class.chain(of_state).collect();
        names.sort_unstable();
        names.dedup_by(|one, other| one.eq_ignore_ascii_case(other));
        names
    }
}

/// The provider id of a VM. It is made from its location and its name, as in the Go driver.
pub fn provider_id(location: &str, name: &str) -> String {
    format!("azure:///{location}/{name}")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::ours("azure:///westeurope/m", Some(("m", None)))]
    #[case::a_location_with_a_space("azure:///West Europe/m", Some(("m", None)))]
    #[case::of_a_cloud_controller(
        "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/m",
        Some(("m", Some(("s", "g"))))
    )]
    #[case::in_another_case(
        "azure:///subscriptions/s/resourcegroups/G/providers/microsoft.compute/virtualmachines/M",
        Some(("M", Some(("s", "G"))))
    )]
    #[case::of_a_uniform_scale_set(
        "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/x/virtualMachines/0",
        None
    )]
    #[case::a_path("azure:///../m", None)]
    #[case::a_query("azure:///westeurope/m?x=y", None)]
    #[case::no_name("azure:///westeurope", None)]
    #[case::another_cloud("aws:///eu-west-1/i-1", None)]
    fn a_provider_id_names_a_vm(#[case] id: &str, #[case] expected: Option<(&str, Option<(&str, &str)>)>) {
        let id = ProviderId::of(id);
        let parts = id.as_ref().map(|id| {
            let group = id.group.as_ref().map(|group| (group.subscription.as_str(), group.name.as_str()));
            (id.name.as_str(), group)
        });
        assert_eq!(parts, expected);
    }
}
