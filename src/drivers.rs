//! The drivers of a program: the built-in drivers, and the drivers that its `main` adds.

use std::sync::Arc;

use machine_driver::{ClassRules, Driver, Registry};

use crate::settings::CloudSettings;

/// The drivers of a program. Clones share the drivers that `main` adds.
#[derive(Clone, Default)]
pub struct DriverSet {
    clouds: &'static [Cloud],
    pods: PodsAsMachines,
    added: Vec<Arc<dyn Driver>>,
}

/// Whether machines can be pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PodsAsMachines {
    /// They can't.
    #[default]
    Refused,
    /// They can, if the driver is compiled in.
    Allowed,
}

/// A cloud whose driver is compiled in.
#[derive(Clone, Copy)]
pub(crate) struct Cloud {
    /// Its `provider` string.
    pub(crate) provider: &'static str,
    /// Makes its driver, which sends no request before the first call.
    driver: fn(&CloudSettings) -> Arc<dyn Driver>,
}

impl DriverSet {
    /// The built-in drivers only.
    pub fn built_in() -> Self {
        Self { clouds: CLOUDS, pods: PodsAsMachines::Allowed, added: Vec::new() }
    }

    /// The same set without the drivers of clouds and of other clusters, so that no request leaves this host.
    #[must_use]
    pub(crate) fn without_clouds(self) -> Self {
        Self { clouds: &[], pods: PodsAsMachines::Refused, ..self }
    }

    /// Adds a driver. It serves its `provider` strings, also strings that the virtual cloud would impersonate. When two
    /// drivers have the same string, the later one serves it.
    #[must_use]
    pub fn with(mut self, driver: impl Driver) -> Self {
        self.added.push(Arc::new(driver));
        self
    }

    /// Adds drivers that are shared with other parts of the process.
    #[cfg(feature = "external")]
    pub(crate) fn with_shared(mut self, drivers: impl IntoIterator<Item = Arc<dyn Driver>>) -> Self {
        self.added.extend(drivers);
        self
    }

    /// The drivers that this program can serve to another process: those of clouds, and those that `main` has added.
    #[cfg(feature = "external")]
    pub(crate) fn to_serve(&self, settings: &CloudSettings) -> Vec<Arc<dyn Driver>> {
        let clouds = self.clouds.iter().map(|cloud| (cloud.driver)(settings));
        let pods = self.pods_as_machines(settings, &ControlCluster::default());
        clouds.chain(pods).chain(self.added.iter().cloned()).collect()
    }

    /// The drivers of the wanted providers, and the rules for their classes. `simulation` is the virtual cloud. It serves the
    /// providers that it impersonates, even when their own driver is compiled in. `control` is the cluster with the pods of classes that name no
    /// other. `wrap` is applied to each driver.
    pub(crate) fn registry(
        &self,
        settings: &CloudSettings,
        control: &ControlCluster,
        simulation: Arc<dyn Driver>,
        is_wanted: impl Fn(&str) -> bool,
        wrap: impl Fn(Arc<dyn Driver>) -> Arc<dyn Driver>,
    ) -> Registry {
        let mut registry = Registry::new();
        let clouds = self.clouds.iter().map(|cloud| (cloud.driver)(settings));
        let pods = self.pods_as_machines(settings, control);
        for driver in clouds.chain(pods).chain([simulation]).chain(self.added.iter().cloned()).map(wrap) {
            for provider in driver.info().providers.iter().filter(|provider| is_wanted(provider)) {
                registry.register_as(provider, &driver);
            }
        }
        for rules in KNOWN_RULES.into_iter().filter(|rules| is_wanted(rules.provider())) {
            registry.register_rules(rules);
        }
        registry
    }

    /// The driver that makes pods, if there is one.
    #[cfg(feature = "local")]
    fn pods_as_machines(&self, settings: &CloudSettings, control: &ControlCluster) -> Option<Arc<dyn Driver>> {
        use driver_local::{LocalDriver, LocalOptions};

        if self.pods == PodsAsMachines::Refused {
            return None;
        }
        let template = settings.pod_template.clone();
        Some(Arc::new(LocalDriver::new(LocalOptions { control: control.0.clone(), template, codes: settings.codes })))
    }

    #[cfg(not(feature = "local"))]
    fn pods_as_machines(&self, _: &CloudSettings, _: &ControlCluster) -> Option<Arc<dyn Driver>> {
        let _ = self.pods;
        None
    }
}

/// The control cluster of a manager, for the driver that makes pods. Drivers are made before the manager has its clients.
#[derive(Clone, Default)]
pub(crate) struct ControlCluster(#[cfg(feature = "local")] driver_local::ControlCluster);

impl ControlCluster {
    /// Sets the client of the control cluster.
    #[cfg(feature = "local")]
    pub(crate) fn set(&self, client: kube::Client) {
        self.0.set(client);
    }

    /// No driver makes pods.
    #[cfg(not(feature = "local"))]
    pub(crate) fn set(&self, client: kube::Client) {
        let Self() = self;
        drop(client);
    }
}

/// The clouds whose drivers are compiled in.
pub(crate) const CLOUDS: &[Cloud] = &[
    #[cfg(feature = "alicloud")]
    Cloud { provider: driver_alicloud::ALICLOUD, driver: alicloud },
    #[cfg(feature = "aws")]
    Cloud { provider: driver_aws::AWS, driver: aws },
    #[cfg(feature = "azure")]
    Cloud { provider: driver_azure::AZURE, driver: azure },
    #[cfg(feature = "gcp")]
    Cloud { provider: driver_gcp::GCP, driver: gcp },
    #[cfg(feature = "openstack")]
    Cloud { provider: driver_openstack::OPENSTACK, driver: openstack },
];

#[cfg(feature = "alicloud")]
fn alicloud(settings: &CloudSettings) -> Arc<dyn Driver> {
    use driver_alicloud::{AlicloudDriver, AlicloudOptions};

    let endpoint = settings.endpoints.get(driver_alicloud::ALICLOUD).cloned();
    Arc::new(AlicloudDriver::new(AlicloudOptions { endpoint, codes: settings.codes }))
}

#[cfg(feature = "aws")]
fn aws(settings: &CloudSettings) -> Arc<dyn Driver> {
    use driver_aws::{AwsDriver, AwsOptions};

    let mut options = AwsOptions::from_environment(|name| std::env::var(name).ok());
    if let Some(endpoint) = settings.endpoints.get(driver_aws::AWS) {
        options.ec2_endpoint = Some(endpoint.clone());
        options.sts_endpoint.get_or_insert_with(|| endpoint.clone());
    }
    options.identity_directories.clone_from(&settings.identity_directories);
    options.error_codes = settings.codes;
    Arc::new(AwsDriver::new(options))
}

#[cfg(feature = "azure")]
fn azure(settings: &CloudSettings) -> Arc<dyn Driver> {
    use driver_azure::{AzureDriver, AzureOptions};

    let endpoint = settings.endpoints.get(driver_azure::AZURE).cloned();
    let identity_directories = settings.identity_directories.clone();
    Arc::new(AzureDriver::new(AzureOptions { endpoint, identity_directories, codes: settings.codes }))
}

#[cfg(feature = "gcp")]
fn gcp(settings: &CloudSettings) -> Arc<dyn Driver> {
    use driver_gcp::{GcpDriver, GcpOptions};

    let endpoint = settings.endpoints.get(driver_gcp::GCP).cloned();
    let identity_directories = settings.identity_directories.clone();
    Arc::new(GcpDriver::new(GcpOptions { endpoint, identity_directories, codes: settings.codes }))
}

#[cfg(feature = "openstack")]
fn openstack(settings: &CloudSettings) -> Arc<dyn Driver> {
    use driver_openstack::{MachineStatus, OpenStackDriver, OpenStackOptions};

    let endpoint = settings.endpoints.get(driver_openstack::OPENSTACK).cloned();
    Arc::new(OpenStackDriver::new(OpenStackOptions { endpoint, status: MachineStatus::Asked, codes: settings.codes }))
}

/// The rules for classes that apply even without a driver for the provider.
static KNOWN_RULES: [&ClassRules; 6] = [
    &driver_alicloud::CLASSES,
    &driver_aws::CLASSES,
    &driver_azure::CLASSES,
    &driver_gcp::CLASSES,
    &driver_local::CLASSES,
    &driver_openstack::CLASSES,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use async_trait::async_trait;
    use driver_aws::AWS;
    use driver_virtual::{SimulationOptions, VirtualCloud};
    use kube_values::field::Findings;
    use machine_api::v1alpha1::MachineClass;
    use machine_driver::{
        Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, ListRequest, ListedVm, MachineRequest, Measured,
        OpContext, Registry, Status, VmIdentity, VolumeIdsRequest,
    };
    use mcm_metrics::Metrics;

    use super::*;

    /// A driver for a provider whose class rules are known.
    struct Served(DriverInfo);

    #[async_trait]
    impl Driver for Served {
        fn info(&self) -> &DriverInfo {
            &self.0
        }
        fn validate(&self, _: &MachineClass, _: &mut Findings) {}
        async fn create_machine(&self, _: &OpContext, _: MachineRequest) -> Result<CreatedVm, Status> {
            Err(Status::new(Code::Unimplemented, "no"))
        }
        async fn delete_machine(&self, _: &OpContext, _: MachineRequest) -> Result<DeletedVm, Status> {
            Err(Status::new(Code::Unimplemented, "no"))
        }
        async fn get_machine_status(&self, _: &OpContext, _: MachineRequest) -> Result<VmIdentity, Status> {
            Err(Status::new(Code::Unimplemented, "no"))
        }
        async fn list_machines(&self, _: &OpContext, _: ListRequest) -> Result<Vec<ListedVm>, Status> {
            Err(Status::new(Code::Unimplemented, "no"))
        }
        async fn get_volume_ids(&self, _: &OpContext, _: VolumeIdsRequest) -> Result<Vec<String>, Status> {
            Err(Status::new(Code::Unimplemented, "no"))
        }
    }

    fn missing(driver: Option<&Arc<dyn Driver>>) -> usize {
        let mut registry = Registry::new();
        for rules in KNOWN_RULES {
            registry.register_rules(rules);
        }
        if let Some(driver) = driver {
            registry.register_as(AWS, driver);
        }
        registry.missing_in_secret(AWS, &BTreeSet::new()).len()
    }

    #[test]
    fn cls_9_missing_keys_of_a_secret_are_found_also_when_a_driver_serves_the_provider() {
        let info = DriverInfo {
            name: "aws",
            providers: vec![AWS.to_owned()],
            schema: None,
            capabilities: Capabilities::default(),
        };
        let metrics = Metrics::new(Arc::new(|| std::time::Duration::ZERO)).unwrap();
        let served: Arc<dyn Driver> = Arc::new(Measured::new(Arc::new(Served(info)), metrics));
        assert_eq!(missing(None), 3);
        assert_eq!(missing(Some(&served)), 3);
        let options = SimulationOptions::new(jiff::Timestamp::UNIX_EPOCH);
        let played: Arc<dyn Driver> = Arc::new(VirtualCloud::new(&options).unwrap());
        assert_eq!(missing(Some(&played)), 0, "a simulated cloud asks for no credentials");
    }
}
