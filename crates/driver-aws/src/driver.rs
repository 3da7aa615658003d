//! The driver: observes what EC2 shows, lets [`crate::lookup`] and [`crate::launch`] decide, and acts.

use std::time::Duration;

use cloud_client::{Client, Failure, FailureKind};
use jiff::Timestamp;
use kube_values::field::Findings;
use machine_driver::{
    Capabilities, ClassRules, Code, CreatedVm, DeletedVm, Driver, DriverInfo, Instant, ListRequest, ListedVm, Machine,
    MachineClass, MachineRequest, OpContext, Owner, OwnerTags, PersistentVolumeSpec, SameInstance, SecretData, Status,
    VmIdentity, VolumeIdsRequest, async_trait, same_instance,
};

use crate::{
    AWS, AwsClasses, SCHEMA,
    actions::{Instance, Look, States},
    ask,
    credentials::Source,
    ec2::{Ec2, Session},
    errors,
    launch::{Launch, run_instances},
    lookup::{self, Lacks, Place, VISIBLE_WITHIN},
    options::AwsOptions,
    sign,
    spec::Spec,
    unseen::Unseen,
};

/// So many tokens one creation tries.
const MOST_ATTEMPTS: usize = 8;
/// The pauses between looks for a new instance.
const FIRST_LOOK: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A client token of EC2 is no longer.
const LONGEST_TOKEN: usize = 60;

/// Makes, finds and ends instances of EC2.
pub struct AwsDriver {
    info: DriverInfo,
    ec2: Ec2,
    unseen: Unseen,
}

impl AwsDriver {
    /// A driver that reaches EC2 as the options say.
    pub fn new(options: AwsOptions) -> Self {
        Self::over(Ec2::new(options))
    }

    /// A driver that sends its requests through this client.
    pub fn through(client: Client, options: AwsOptions) -> Self {
        Self::over(Ec2::through(client, options))
    }

    fn over(ec2: Ec2) -> Self {
        let capabilities = Capabilities { create_is_idempotent: true, lists_creation_time: true };
        let info =
            DriverInfo { name: "aws", providers: vec![AWS.to_owned()], schema: Some(SCHEMA.clone()), capabilities };
        Self { info, ec2, unseen: Unseen::default() }
    }
}

/// A machine and its class, read.
struct Subject<'a> {
    spec: Spec,
    owner: OwnerTags,
    source: Source,
    machine: &'a Machine,
    secret: &'a SecretData,
}

impl<'a> Subject<'a> {
    fn of(ec2: &Ec2, spec: Spec, request: &'a MachineRequest) -> Result<Self, Status> {
        let owner = owner_tags(&spec)?;
        let source = ec2.source(&request.secret)?;
        Ok(Self { spec, owner, source, machine: &request.machine, secret: &request.secret })
    }

    /// The machine's name.
    ///
    /// # Errors
    /// `InvalidArgument` without one: nothing is looked for by an empty name.
    fn name(&self) -> Result<&'a str, Status> {
        let name = self.machine.metadata.name.as_deref().filter(|name| !name.is_empty());
        name.ok_or_else(|| Status::new(Code::InvalidArgument, "the machine has no name"))
    }

    /// Where the machine's instance is, if the machine says so; else `None`.
    fn place(&self) -> Result<Option<Place<'_>>, Status> {
        let id = self.machine.spec.provider_id.as_str();
        if id.is_empty() {
            return Ok(None);
        }
        let place = Place::of(id).map(|place| place.unless_a_zone_of(&self.spec.region));
        place.map(Some).ok_or_else(|| Status::new(Code::InvalidArgument, format!("{id:?} is no provider id of AWS")))
    }

    /// EC2 in the region of the machine's instance. The class's own region counts for a machine without one.
    fn session<'s>(&'s self, ec2: &'s Ec2, cx: &'s OpContext) -> Result<Session<'s>, Status> {
        let region = self.place()?.map_or(self.spec.region.as_str(), |place| place.region);
        Ok(ec2.session(cx, region, &self.source))
    }

    fn look(&self, states: States) -> Result<Look<'_>, Status> {
        Ok(Look::Tags { owner: &self.owner, machine: Some(self.name()?), states })
    }

    /// The instances that back the machine; there is at least one.
    async fn backing(&self, ec2: &Session<'_>) -> Result<Vec<Instance>, Status> {
        let tagged = ec2.instances(self.look(States::Live)?).await?;
        if !tagged.is_empty() {
            return Ok(tagged);
        }
        let Some(place) = self.place()? else {
            return Err(Status::new(Code::NotFound, "No ProviderID found on the machine"));
        };
        let by_id = ec2.instance(place.id).await?;
        if by_id.is_none() && self.may_be_shown_later() {
            return Err(lookup::not_shown_yet(place.id));
        }
        let ours: Vec<_> = by_id.into_iter().filter(|instance| self.is_its(instance)).collect();
        if ours.is_empty() { Err(lookup::not_found()) } else { Ok(ours) }
    }

    /// Whether EC2 may not show the machine's instance yet. The machine is as old as its instance, or older.
    fn may_be_shown_later(&self) -> bool {
        let made = self.machine.metadata.creation_timestamp.as_ref();
        made.is_some_and(|made| lookup::may_be_shown_later(made.0, Timestamp::now()))
    }

    /// Whether an instance that is found by its id is the machine's: its tags say so, or, where somebody has taken them away, the
    /// token that made it.
    fn is_its(&self, instance: &Instance) -> bool {
        let is_tagged = || lookup::backs(instance, &self.owner, self.name().unwrap_or_default());
        !instance.has_ended() && (is_tagged() || self.has_made(instance))
    }

    /// Whether a request of this machine has made an instance.
    fn has_made(&self, instance: &Instance) -> bool {
        self.token().is_ok_and(|base| lookup::is_token_of(&base, &instance.client_token))
    }

    /// What all tokens of the machine's creations begin with: no other machine has it.
    fn token(&self) -> Result<String, Status> {
        let metadata = &self.machine.metadata;
        if let Some(uid) = metadata.uid.as_ref().filter(|uid| !uid.is_empty() && uid.len() <= LONGEST_TOKEN) {
            return Ok(uid.clone());
        }
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let mut hash = sign::hash(format!("{namespace}/{}/{}", self.name()?, self.machine.spec.class.name).as_bytes());
        hash.truncate(LONGEST_TOKEN);
        Ok(hash)
    }

    /// The instance that is launched, or that an earlier request launched. `attempt` is the first one whose token is free.
    async fn launched(
        &self,
        ec2: &Session<'_>,
        unseen: &Unseen,
        root_device: &str,
        attempt: usize,
    ) -> Result<Instance, Status> {
        let base = self.token()?;
        let user_data = self.secret.get(SecretData::USER_DATA).unwrap_or_default();
        for attempt in attempt..attempt + MOST_ATTEMPTS {
            let token = lookup::token(&base, attempt);
            let query = run_instances(Launch {
                spec: &self.spec,
                machine: self.machine,
                root_device,
                user_data,
                token: &token,
            })?;
            match ec2.launch(&query).await {
                Ok(instance) if !instance.has_ended() => return Ok(instance),
                // The token is of an earlier creation, whose instance has ended meanwhile.
                Ok(_) => {}
                Err(failure) if failure.reason == errors::TOKEN_TERMINATED => {}
                Err(failure) if failure.reason == errors::TOKEN_MISMATCH => {
                    // The class has changed since an earlier request with this token was sent.
                    let mut found = ec2.instances(self.look(States::Live)?).await?;
                    match found.len() {
                        // EC2 forgets an instance that has ended, and shows a new one late.
                        0 if unseen.known_for(&token, Instant::now()) < VISIBLE_WITHIN => {
                            return Err(lookup::hidden_by_a_change(&token));
                        }
                        0 => {}
                        1 => return Ok(found.remove(0)),
                        _ => return Err(lookup::too_many(&found)),
                    }
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(Status::new(Code::Internal, "the instances of all earlier creations of this machine have ended"))
    }

    /// Waits until EC2 describes an instance that it has just made.
    async fn visible(&self, ec2: &Session<'_>, launched: Instance) -> Result<Instance, Status> {
        let (began, mut pause) = (Instant::now(), FIRST_LOOK);
        loop {
            match ec2.instances(Look::Id(&launched.id)).await {
                Ok(mut found) if !found.is_empty() => {
                    let mut instance = found.swap_remove(0);
                    if instance.private_dns_name.is_empty() {
                        instance.private_dns_name = launched.private_dns_name;
                    }
                    return Ok(instance);
                }
                // What passes may pass while the wait lasts; what lasts is told.
                Err(Failure { status, kind: FailureKind::Permanent, .. }) if status.code != Code::NotFound => {
                    return Err(status);
                }
                Ok(_) | Err(_) => {}
            }
            let drawn = pause.mul_f64(0.5 + cloud_client::draw());
            if began.elapsed() + drawn > VISIBLE_WITHIN {
                let id = lookup::provider_id(ec2.region, &launched.id);
                let message = format!(
                    "creation of VM {id:?} failed, timed out waiting for eventual consistency. Multiple VMs backing machine obj might \
                     spawn, they will be orphan collected"
                );
                return Err(Status::new(Code::Internal, message));
            }
            tokio::time::sleep(drawn).await;
            pause = pause.mul_f64(1.5).min(LONGEST_PAUSE);
        }
    }

    /// Who an instance is that a creation answers.
    fn created(&self, region: &str, instance: &Instance) -> Result<VmIdentity, Status> {
        let identity = lookup::identity(region, instance);
        if instance.has_ended() {
            let (code, text) = instance.state_reason.clone().unwrap_or_default();
            let message = format!("the new instance {} is {}: {code} {text}", instance.id, instance.state);
            return Err(Status::new(errors::code_of_end(&code), message.trim_end()));
        }
        if identity.node_name.is_empty() {
            let message = format!(
                "VM with Provider-ID {}, for machine {} does not yet have a nodeName (instance.PrivateDnsName)",
                identity.provider_id,
                self.name()?
            );
            return Err(Status::new(Code::Internal, message));
        }
        Ok(identity)
    }
}

fn owner_tags(spec: &Spec) -> Result<OwnerTags, Status> {
    spec.owner_tags().ok_or_else(|| {
        let message =
            "providerSpec.tags: tags of the form kubernetes.io/cluster/**** and kubernetes.io/role/**** are required";
        Status::new(Code::InvalidArgument, message)
    })
}

fn uninitialized(message: impl Into<String>, identity: VmIdentity) -> Status {
    Status::new(Code::Uninitialized, message).with_partial(identity)
}

#[async_trait]
impl Driver for AwsDriver {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn owner(&self, class: &MachineClass) -> Option<Owner> {
        Some(Spec::read(class).ok()?.owner_tags()?.owner().clone())
    }

    fn validate(&self, class: &MachineClass, found: &mut Findings) {
        AwsClasses.validate(class, found);
    }

    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        let subject = Subject::of(&self.ec2, Spec::checked(&request.class)?, &request)?;
        if subject.secret.get(SecretData::USER_DATA).is_none_or(<[u8]>::is_empty) {
            return Err(Status::new(Code::InvalidArgument, "Mention userData"));
        }
        let ec2 = self.ec2.session(cx, &subject.spec.region, &subject.source);
        // Ended ones, too: their tokens are used up.
        let (live, ended): (Vec<_>, Vec<_>) =
            ec2.instances(subject.look(States::Any)?).await?.into_iter().partition(|instance| !instance.has_ended());
        let instance = match live.len() {
            0 => {
                let ami = &subject.spec.ami;
                let Some(image) = ec2.image(ami).await? else {
                    return Err(Status::new(Code::NotFound, format!("Image {ami} not found")));
                };
                let Some(root_device) = image.root_device else {
                    return Err(Status::new(Code::InvalidArgument, "rootDeviceName cannot be nil"));
                };
                let attempt = lookup::next_attempt(&subject.token()?, &ended);
                let launched = subject.launched(&ec2, &self.unseen, &root_device, attempt).await?;
                subject.visible(&ec2, launched).await?
            }
            1 => live.into_iter().next().unwrap_or_default(),
            _ => return Err(lookup::too_many(&live)),
        };
        Ok(CreatedVm { vm: subject.created(ec2.region, &instance)?, last_known_state: None })
    }

    async fn initialize_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let subject = Subject::of(&self.ec2, Spec::read(&request.class)?, &request)?;
        let ec2 = subject.session(&self.ec2, cx)?;
        let backing = subject.backing(&ec2).await.map_err(|status| match status.code {
            Code::NotFound => Status { code: Code::Uninitialized, ..status },
            _ => status,
        })?;
        let instance = backing.into_iter().next().ok_or_else(lookup::not_found)?;
        let identity = lookup::identity(ec2.region, &instance);
        let lacks = Lacks::of(&instance, &subject.spec);
        if lacks.interfaces {
            return Err(uninitialized(format!("instance {} has no network interface", instance.id), identity));
        }
        let mut failed: Option<Failure> = None;
        for interface in &lacks.checking {
            // The others are tried all the same.
            failed = ec2.disable_source_dest_check(interface).await.err().or(failed);
        }
        for (interface, count) in &lacks.prefixes {
            failed = ec2.assign_ipv6_prefixes(interface, *count).await.err().or(failed);
        }
        match failed {
            Some(failure) => Err(uninitialized(failure.status.message, identity)),
            None => Ok(identity),
        }
    }

    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        let subject = Subject::of(&self.ec2, Spec::read(&request.class)?, &request)?;
        let ec2 = subject.session(&self.ec2, cx)?;
        let place = subject.place()?;
        // An orphan is one of several instances of a name: only its id is meant, and it comes without a UID.
        let by_name = place.is_none() || subject.machine.metadata.uid.is_some();
        let mut ending = if by_name { ec2.instances(subject.look(States::Live)?).await? } else { Vec::new() };
        // Beside the instance that the machine names only what it has made itself goes along: a name may be written on another
        // machine's instance by mistake. What is left is the collector's, which knows all machines.
        if let Some(place) = place {
            ending.retain(|instance| instance.id == place.id || subject.has_made(instance));
        }
        let mut unended = None;
        if let Some(place) = place.filter(|place| ending.iter().all(|instance| instance.id != place.id)) {
            match ec2.instance(place.id).await? {
                Some(instance) if instance.has_ended() => {}
                Some(instance) if subject.is_its(&instance) => ending.push(instance),
                Some(instance) => unended = Some(lookup::not_ours(&instance.id)),
                None => unended = subject.may_be_shown_later().then(|| lookup::not_shown_yet(place.id)),
            }
        }
        for instance in &ending {
            ec2.terminate(&instance.id).await?;
        }
        unended.map_or(Ok(DeletedVm::default()), Err)
    }

    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let subject = Subject::of(&self.ec2, Spec::read(&request.class)?, &request)?;
        let ec2 = subject.session(&self.ec2, cx)?;
        let backing = subject.backing(&ec2).await?;
        let [instance] = backing.as_slice() else { return Err(lookup::too_many(&backing)) };
        let identity = lookup::identity(ec2.region, instance);
        let lacks = Lacks::of(instance, &subject.spec);
        if lacks.nothing() {
            return Ok(identity);
        }
        let message = format!(
            "VM {} associated with machine is not initialized: {} network interfaces still check source and destination, {} lack IPv6 \
             prefixes",
            instance.id,
            lacks.checking.len(),
            lacks.prefixes.len()
        );
        Err(uninitialized(message, identity))
    }

    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        let spec = Spec::read(&request.class)?;
        let (owner, source) = (owner_tags(&spec)?, self.ec2.source(&request.secret)?);
        let ec2 = self.ec2.session(cx, &spec.region, &source);
        let all = ec2.instances(Look::Tags { owner: &owner, machine: None, states: States::Live }).await?;
        let listed = all.iter().map(|instance| ListedVm {
            provider_id: lookup::provider_id(&spec.region, &instance.id),
            machine_name: instance.name().to_owned(),
            created: instance.launched,
        });
        Ok(listed.collect())
    }

    async fn ask_about_class(&self, cx: &OpContext, request: ListRequest) -> Result<Findings, Status> {
        let spec = Spec::checked(&request.class)?;
        let source = self.ec2.source(&request.secret)?;
        let user_data = request.secret.get(SecretData::USER_DATA).unwrap_or_default();
        ask::about(&self.ec2.session(cx, &spec.region, &source), &spec, user_data).await
    }

    fn inventory_key(&self, class: &MachineClass) -> String {
        let of_owner = |spec: Spec| Some((spec.owner_tags()?, spec.region));
        match Spec::read(class).ok().and_then(of_owner) {
            Some((owner, region)) => format!("{region} {owner}"),
            None => class.provider_spec.to_string(),
        }
    }

    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        same_instance::by_last_segment(machine, node)
    }

    async fn get_volume_ids(&self, _cx: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        Ok(request.volumes.iter().filter_map(volume_id).collect())
    }
}

/// The driver of volumes that EBS gives.
const EBS: &str = "ebs.csi.aws.com";

/// The id of a volume of EBS; `None` for another kind of volume.
fn volume_id(volume: &PersistentVolumeSpec) -> Option<String> {
    if let Some(ebs) = &volume.aws_elastic_block_store {
        // `aws://zone/vol-…`, `aws:///vol-…` or the id alone.
        return ebs.volume_id.rsplit('/').next().filter(|id| !id.is_empty()).map(str::to_owned);
    }
    volume.csi.as_ref().filter(|csi| csi.driver == EBS).map(|csi| csi.volume_handle.clone())
}

#[cfg(test)]
#[path = "driver_tests.rs"]
pub(crate) mod tests;
#[cfg(test)]
#[path = "wire_tests.rs"]
mod wire_tests;
