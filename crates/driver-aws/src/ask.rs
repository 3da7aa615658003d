//! Asks EC2 whether a class can be launched. Sends the launch request of the class as `DryRun`, and looks up what `DryRun` does not check.
//! Nothing is created.

use std::collections::BTreeMap;

use cloud_client::Failure;
use kube_values::field::{FieldPath, Findings, RuleId};
use machine_api::validation::CLS_6;
use machine_driver::{Code, Machine, Status};

use crate::{
    actions::{DRY_RUN, Network},
    ec2::Session,
    launch::{Launch, run_instances},
    spec::Spec,
};

/// The rule id of all findings: the provider refuses the class.
const RULE: RuleId = CLS_6.id;
/// The name of the machine in the launch request.
const NAME: &str = "mcm-validate";
/// The shortest value of a field that is searched in messages. Shorter values occur in messages by chance.
const SHORTEST_VALUE: usize = 4;

/// The problems that EC2 has with a class.
///
/// # Errors
/// When EC2 can't be asked.
pub async fn about(ec2: &Session<'_>, spec: &Spec, user_data: &[u8]) -> Result<Findings, Status> {
    ClassCheck { spec, found: Findings::new() }.run(ec2, user_data).await
}

struct ClassCheck<'a> {
    spec: &'a Spec,
    found: Findings,
}

impl ClassCheck<'_> {
    async fn run(mut self, ec2: &Session<'_>, user_data: &[u8]) -> Result<Findings, Status> {
        let spec = self.spec;
        let path = FieldPath::new("providerSpec");
        let root_device = match ec2.image(&spec.ami).await {
            Ok(Some(image)) => image.root_device,
            Ok(None) => {
                self.found.invalid(
                    RULE,
                    path.child("ami"),
                    spec.ami.as_str(),
                    "there is no such image for this account in the region",
                );
                None
            }
            Err(failure) => {
                self.record(failure, path.child("ami"), &spec.ami)?;
                None
            }
        };
        // Without an image the launch request would fail. In this case, only the look-ups are made.
        let mut without_field = None;
        if let Some(root_device) = &root_device {
            let mut machine = Machine::default();
            machine.metadata.name = Some(NAME.to_owned());
            let launch = Launch { spec, machine: &machine, root_device, user_data, token: NAME };
            let mut query = run_instances(launch)?;
            query.set("DryRun", true);
            match ec2.launch(&query).await {
                Ok(made) => {
                    let ended = match ec2.terminate(&made.id).await {
                        Ok(()) => "which has been ended again".to_owned(),
                        Err(failure) => {
                            format!("which could not be ended; end it yourself: {}", failure.status.message)
                        }
                    };
                    let message = format!("the service knows no DryRun: it made instance {}, {ended}", made.id);
                    return Err(Status::new(Code::FailedPrecondition, message));
                }
                Err(failure) if failure.reason == DRY_RUN => {}
                Err(failure) => match field_of(&failure, spec) {
                    Some((at, value)) => self.record(failure, at, value)?,
                    None => without_field = Some(failure),
                },
            }
        }
        self.look_up(ec2).await?;
        if let Some(failure) = without_field.filter(|_| !self.found.denies()) {
            self.record(failure, path, "")?;
        }
        Ok(self.found)
    }

    /// Checks that the subnets, the security groups and the key exist, and that the subnets and groups fit together.
    async fn look_up(&mut self, ec2: &Session<'_>) -> Result<(), Status> {
        let spec = self.spec;
        let interfaces = FieldPath::new("providerSpec").child("networkInterfaces");
        let subnets = spec.network_interfaces.iter().map(|interface| interface.subnet_id.as_str()).collect();
        let subnets = self.looked_up(ec2.subnets(subnets).await, &interfaces)?;
        let groups = spec.network_interfaces.iter().flat_map(|interface| &interface.security_group_ids);
        let groups = self.looked_up(ec2.security_groups(groups.map(String::as_str).collect()).await, &interfaces)?;
        let zone = spec.network_interfaces.first().and_then(|first| subnets.get(&first.subnet_id));
        for (index, interface) in spec.network_interfaces.iter().enumerate() {
            let at = interfaces.index(index);
            let Some(subnet) = subnets.get(&interface.subnet_id) else { continue };
            if let Some(first) = zone.filter(|first| first.zone != subnet.zone) {
                let detail = format!("is in zone {}, the first interface in {}", subnet.zone, first.zone);
                self.found.invalid(RULE, at.child("subnetID"), interface.subnet_id.as_str(), detail);
            }
            for (number, group) in interface.security_group_ids.iter().enumerate() {
                if let Some(network) = groups.get(group).filter(|network| network.vpc != subnet.vpc) {
                    let detail =
                        format!("is of network {}, the subnet {} of {}", network.vpc, interface.subnet_id, subnet.vpc);
                    let at = at.child("securityGroupIDs").index(number);
                    self.found.invalid(RULE, at, group.as_str(), detail);
                }
            }
        }
        if let Some(key) = spec.key_name.as_deref().filter(|key| !key.is_empty())
            && let Err(failure) = ec2.key_pair(key).await
        {
            self.record_look_up(failure, FieldPath::new("providerSpec").child("keyName"))?;
        }
        Ok(())
    }

    fn looked_up(
        &mut self,
        answer: Result<BTreeMap<String, Network>, Failure>,
        path: &FieldPath,
    ) -> Result<BTreeMap<String, Network>, Status> {
        answer.or_else(|failure| self.record_look_up(failure, path.clone()).map(|()| BTreeMap::new()))
    }

    /// Records the failure of a look-up. The driver itself needs no permission for look-ups, so a missing permission is only a warning.
    fn record_look_up(&mut self, failure: Failure, at: FieldPath) -> Result<(), Status> {
        if failure.status.code == Code::PermissionDenied {
            self.found.warn(RULE, at, "", format!("could not be looked up: {}", failure.status.message));
            return Ok(());
        }
        let (at, value) = field_of(&failure, self.spec).unwrap_or((at, ""));
        self.record(failure, at, value)
    }

    /// Records a failure of EC2 as a finding of the class.
    ///
    /// # Errors
    /// The failure itself, if it says nothing about the class.
    fn record(&mut self, failure: Failure, at: FieldPath, value: &str) -> Result<(), Status> {
        let Failure { status, .. } = failure;
        match status.code {
            Code::Unauthenticated | Code::PermissionDenied => {
                self.found.invalid(RULE, FieldPath::new("secretRef"), "", status.message);
            }
            // There may be capacity again when a machine is created.
            Code::ResourceExhausted => self.found.warn(RULE, at, value, status.message),
            Code::InvalidArgument | Code::Internal | Code::NotFound => {
                self.found.invalid(RULE, at, value, status.message);
            }
            _ => return Err(status),
        }
        Ok(())
    }
}

/// The field that a failure is about, with its value: the field whose value is in the message, or else the field for the error code.
fn field_of<'s>(failure: &Failure, spec: &'s Spec) -> Option<(FieldPath, &'s str)> {
    let path = FieldPath::new("providerSpec");
    let message = &failure.status.message;
    let repeated = named(spec).into_iter().find(|(_, value)| value.len() >= SHORTEST_VALUE && message.contains(value));
    if repeated.is_some() {
        return repeated;
    }
    let field = [
        ("InvalidAMIID", "ami"),
        ("InvalidSubnet", "networkInterfaces"),
        ("InsufficientFreeAddressesInSubnet", "networkInterfaces"),
        ("InvalidGroup", "networkInterfaces"),
        ("InvalidSecurityGroup", "networkInterfaces"),
        ("InvalidKeyPair", "keyName"),
        ("NoSuchEntity", "iam"),
        ("InvalidInstanceType", "machineType"),
        ("Unsupported", "machineType"),
        ("InstanceLimitExceeded", "machineType"),
        ("VcpuLimitExceeded", "machineType"),
        ("InsufficientInstanceCapacity", "machineType"),
        ("InvalidSnapshot", "blockDevices"),
        ("InvalidBlockDevice", "blockDevices"),
        ("VolumeLimitExceeded", "blockDevices"),
        ("InvalidPlacementGroup", "placement"),
        ("InvalidHost", "placement"),
        ("InvalidCapacityReservation", "capacityReservation"),
        ("ReservationCapacityExceeded", "capacityReservation"),
        ("SpotMaxPriceTooLow", "spotPrice"),
        ("MaxSpotInstanceCountExceeded", "spotPrice"),
    ];
    let found = field.into_iter().find(|(begin, _)| failure.reason.starts_with(begin));
    found.map(|(_, field)| (path.child(field), ""))
}

/// The fields of a class that name something in EC2, with their values.
fn named(spec: &Spec) -> Vec<(FieldPath, &str)> {
    let path = FieldPath::new("providerSpec");
    let mut named = Vec::new();
    for (index, interface) in spec.network_interfaces.iter().enumerate() {
        let at = path.child("networkInterfaces").index(index);
        for (number, group) in interface.security_group_ids.iter().enumerate() {
            named.push((at.child("securityGroupIDs").index(number), group.as_str()));
        }
        named.push((at.child("subnetID"), &interface.subnet_id));
    }
    for (index, device) in spec.block_devices.iter().enumerate() {
        let at = path.child("blockDevices").index(index).child("ebs");
        named.push((at.child("snapshotID"), device.ebs.snapshot_id.as_deref().unwrap_or_default()));
        named.push((at.child("kmsKeyID"), device.ebs.kms_key_id.as_deref().unwrap_or_default()));
    }
    let iam = path.child("iam");
    named.push((iam.child("arn"), &spec.iam.arn));
    named.push((iam.child("name"), &spec.iam.name));
    named.push((path.child("ami"), &spec.ami));
    named.push((path.child("machineType"), &spec.machine_type));
    named.push((path.child("keyName"), spec.key_name.as_deref().unwrap_or_default()));
    named
}

#[cfg(test)]
#[path = "ask_tests.rs"]
mod tests;
