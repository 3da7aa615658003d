//! The driver. It reads the state of EC2, lets [`crate::lookup`] and [`crate::launch`] decide, and carries out the decision.

use std::time::Duration;

use cloud_client::{Client, Failure, FailureKind};
use jiff::Timestamp;
use kube_values::field::Findings;
use machine_driver::{
    Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, Instant, ListRequest, ListedVm, Machine,
    MachineClass, MachineRequest, OpContext, Owner, OwnerTags, PersistentVolumeSpec, SameInstance, SecretData, Status,
    VmIdentity, VolumeIdsRequest, async_trait, same_instance,
};

use crate::{
    AWS, CLASSES,
    actions::{Instance, InstanceQuery, States},
    ask,
    credentials::Source,
    ec2::{Ec2, Session},
    errors,
    launch::{Launch, run_instances},
    lookup::{
        self, AfterMismatch, Assigned, EarlierLaunch, InstanceLocation, Missing, MissingPrefixes, VISIBILITY_TIMEOUT,
    },
    memory::Memory,
    options::AwsOptions,
    query::Query,
    sign,
    spec::Spec,
    state::LaunchState,
};

/// The most client tokens that one creation tries.
const MAX_ATTEMPTS: usize = 8;
/// The shortest and the longest pause between two requests for a new instance.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long STS may take to tell the account of the credentials. It may be out of reach.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(10);
/// The most characters of a client token before the number of the attempt. EC2 allows 64 characters in total.
const LONGEST_TOKEN: usize = 60;

/// Creates, finds and terminates instances of EC2.
pub struct AwsDriver {
    info: DriverInfo,
    ec2: Ec2,
    memory: Memory,
}

impl AwsDriver {
    /// A driver with these options.
    pub fn new(options: AwsOptions) -> Self {
        Self::with_ec2(Ec2::new(options))
    }

    /// A driver that sends its requests through this client.
    pub fn through(client: Client, options: AwsOptions) -> Self {
        Self::with_ec2(Ec2::through(client, options))
    }

    fn with_ec2(ec2: Ec2) -> Self {
        let capabilities = Capabilities { create_is_idempotent: true, lists_creation_time: true };
        let info = DriverInfo {
            name: "aws",
            providers: vec![AWS.to_owned()],
            schema: Some(CLASSES.schema().clone()),
            capabilities,
        };
        Self { info, ec2, memory: Memory::default() }
    }

    /// The machine of a request.
    fn subject<'a>(&'a self, spec: Spec, request: &'a MachineRequest) -> Result<Subject<'a>, Status> {
        let owner = owner_tags(&spec)?;
        let source = self.ec2.source(&request.secret)?;
        Ok(Subject { spec, owner, source, machine: &request.machine, secret: &request.secret, memory: &self.memory })
    }
}

/// The machine of a request, with the parsed class and the source of the credentials.
struct Subject<'a> {
    spec: Spec,
    owner: OwnerTags,
    source: Source,
    machine: &'a Machine,
    secret: &'a SecretData,
    memory: &'a Memory,
}

impl<'a> Subject<'a> {
    /// The machine's name.
    ///
    /// # Errors
    /// `InvalidArgument` without a name, because an empty name would select instances of other machines.
    fn name(&self) -> Result<&'a str, Status> {
        let name = self.machine.metadata.name.as_deref().filter(|name| !name.is_empty());
        name.ok_or_else(|| Status::new(Code::InvalidArgument, "the machine has no name"))
    }

    /// The location in the provider id of the machine. `None` without a provider id.
    fn location(&self) -> Result<Option<InstanceLocation<'_>>, Status> {
        let id = self.machine.spec.provider_id.as_str();
        if id.is_empty() {
            return Ok(None);
        }
        let location = InstanceLocation::of(id).map(|location| location.with_zone_as_region(&self.spec.region));
        location.map(Some).ok_or_else(|| Status::new(Code::InvalidArgument, format!("{id:?} is no provider id of AWS")))
    }

    /// EC2 in the region of the machine's instance, or in the region of the class for a machine without a provider id.
    fn session<'s>(&'s self, ec2: &'s Ec2, cx: &'s OpContext) -> Result<Session<'s>, Status> {
        let region = self.location()?.map_or(self.spec.region.as_str(), |location| location.region);
        Ok(ec2.session(cx, region, &self.source))
    }

    /// The instances with the machine's name that belong to it. Their tags show that, or their client tokens if a user has edited the class.
    async fn named(&self, ec2: &Session<'_>, states: States) -> Result<Vec<Instance>, Status> {
        let mut named = ec2.instances(InstanceQuery::Named { machine: self.name()?, states }).await?;
        named.retain(|instance| self.owner.own(|key| instance.has_tag(key)) || self.was_made_for_machine(instance));
        Ok(named)
    }

    /// The instances that belong to the machine.
    ///
    /// # Errors
    /// `NotFound` if there is none, `Unavailable` if EC2 may not show it yet, `FailedPrecondition` if the instance with the machine's provider id
    /// belongs to another machine.
    async fn backing(&self, ec2: &Session<'_>) -> Result<Vec<Instance>, Status> {
        let named = self.named(ec2, States::Live).await?;
        if !named.is_empty() {
            return Ok(named);
        }
        let Some(location) = self.location()? else {
            return Err(Status::new(Code::NotFound, "No ProviderID found on the machine"));
        };
        let instance = self.live_instance(ec2, location.id).await?;
        instance.map(|instance| vec![instance]).ok_or_else(lookup::not_found)
    }

    /// The instance with the machine's provider id. `None` if it has ended: EC2 shows ended instances for an hour.
    ///
    /// # Errors
    /// `Unavailable` if EC2 may not show it yet, `FailedPrecondition` if it belongs to another machine.
    async fn live_instance(&self, ec2: &Session<'_>, id: &str) -> Result<Option<Instance>, Status> {
        match ec2.instance(id).await? {
            None if self.may_be_shown_later(id) => Err(lookup::not_shown_yet(id)),
            None => self.check_account(ec2).await.map(|()| None),
            Some(instance) if !instance.has_ended() => {
                if !self.was_made_for_machine(&instance) {
                    lookup::named_by_id(&instance, &self.owner, self.name().unwrap_or_default())?;
                }
                Ok(Some(instance))
            }
            Some(_) => Ok(None),
        }
    }

    /// Checks that EC2 shows the instance to these credentials if it exists.
    ///
    /// # Errors
    /// `FailedPrecondition` for credentials of another account than that of the instance.
    async fn check_account(&self, ec2: &Session<'_>) -> Result<(), Status> {
        let Some(made_in) = LaunchState::of(&self.machine.status.last_known_state).and_then(|kept| kept.account) else {
            return Ok(());
        };
        let login = tokio::time::timeout(IDENTITY_TIMEOUT, ec2.account_id()).await;
        lookup::check_account(&made_in, login.ok().and_then(Result::ok).as_deref())
    }

    /// Whether EC2 may not show the machine's instance yet.
    fn may_be_shown_later(&self, id: &str) -> bool {
        let is_launched = self.memory.launches.get(id, Instant::now()).is_some();
        is_launched || lookup::may_be_shown_later(self.machine, Timestamp::now())
    }

    /// Checks for a machine without a provider id and without a live instance that EC2 shows what this process may have launched for it. What another
    /// process has launched is shown within the time that the controller waits after a call with an unknown outcome.
    ///
    /// # Errors
    /// `Unavailable` if an instance may have been launched that EC2 does not show yet.
    async fn check_launch_is_shown(&self, ec2: &Session<'_>) -> Result<(), Status> {
        let Some(token) = self.memory.asked.get(&self.token()?, Instant::now()) else { return Ok(()) };
        lookup::shown_launch(&token, &self.named(ec2, States::Any).await?, self.name()?)
    }

    /// What the instance lacks of the settings of the class.
    fn missing(&self, instance: &Instance) -> Missing {
        Missing::of(instance, &self.spec, |interface| self.memory.prefixes.get(interface, Instant::now()))
    }

    /// Assigns the missing prefixes of an interface, and remembers them until EC2 shows them.
    async fn assign(&self, ec2: &Session<'_>, missing: &MissingPrefixes) -> Result<(), Failure> {
        let MissingPrefixes { interface, count, total } = missing;
        // Without credentials no request is sent, and no prefixes have to be waited for.
        ec2.get_credentials().await?;
        let remember = |is_confirmed| {
            self.memory.prefixes.put(interface, Assigned { total: *total, is_confirmed }, Instant::now());
        };
        let before = self.memory.prefixes.get(interface, Instant::now());
        // This call may end without an answer.
        remember(false);
        let answer = ec2.assign_ipv6_prefixes(interface, *count).await;
        match &answer {
            Ok(()) => remember(true),
            Err(failure) if errors::has_done_nothing(failure) => match before {
                Some(before) => self.memory.prefixes.put(interface, before, Instant::now()),
                None => self.memory.prefixes.forget(interface),
            },
            Err(_) => {}
        }
        answer
    }

    /// Whether the instance was made by a request for this machine.
    fn was_made_for_machine(&self, instance: &Instance) -> bool {
        self.token().is_ok_and(|base| lookup::is_token_of(&base, &instance.client_token))
    }

    /// The first part of all client tokens of the machine's creations. It is unique to the machine.
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

    /// Launches an instance, or returns the instance of an earlier request. `attempt` is the first attempt whose token is unused.
    async fn launched(&self, ec2: &Session<'_>, root_device: &str, attempt: usize) -> Result<Instance, Status> {
        let base = self.token()?;
        let user_data = self.secret.get(SecretData::USER_DATA).unwrap_or_default();
        for attempt in attempt..attempt + MAX_ATTEMPTS {
            let token = lookup::token(&base, attempt);
            let query = run_instances(Launch {
                spec: &self.spec,
                machine: self.machine,
                root_device,
                user_data,
                token: &token,
            })?;
            match self.asked(ec2, &base, &token, &query).await {
                Ok(instance) if !instance.has_ended() => {
                    self.memory.launches.put(&instance.id, (), Instant::now());
                    return Ok(instance);
                }
                // The token belongs to an earlier creation whose instance has ended.
                Ok(_) => {}
                Err(failure) if failure.reason == errors::TOKEN_TERMINATED => {}
                Err(failure) if failure.reason == errors::TOKEN_MISMATCH => {
                    // The class has changed since an earlier request with this token was sent. The instance of that request has the tags of
                    // the class at that time, so it is looked for by the token.
                    let made = ec2.instances(InstanceQuery::Token(&token)).await?.pop();
                    let earlier = match &made {
                        Some(instance) => EarlierLaunch::Shown(instance),
                        None => EarlierLaunch::NotShownFor(self.memory.invisible.known_for(&token, Instant::now())),
                    };
                    match lookup::after_mismatch(earlier) {
                        AfterMismatch::Take(instance) => return Ok(instance.clone()),
                        AfterMismatch::Wait => return Err(lookup::hidden_by_a_change(&token)),
                        AfterMismatch::NextToken => {}
                    }
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(Status::new(Code::Internal, "the instances of all earlier creations of this machine have ended"))
    }

    /// Sends a launch request, and remembers that it may have launched an instance.
    async fn asked(&self, ec2: &Session<'_>, base: &str, token: &str, query: &Query) -> Result<Instance, Failure> {
        let before = self.memory.asked.get(base, Instant::now());
        // This call may end without an answer.
        self.memory.asked.put(base, token.to_owned(), Instant::now());
        let answer = ec2.launch(query).await;
        if answer.as_ref().is_err_and(errors::has_launched_nothing) {
            match before {
                Some(before) => self.memory.asked.put(base, before, Instant::now()),
                None => self.memory.asked.forget(base),
            }
        }
        answer
    }

    /// Waits until EC2 shows an instance that it has just made.
    async fn visible(&self, ec2: &Session<'_>, launched: Instance) -> Result<Instance, Status> {
        let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            match ec2.instances(InstanceQuery::Id(&launched.id)).await {
                Ok(mut found) if !found.is_empty() => {
                    let mut instance = found.swap_remove(0);
                    if instance.private_dns_name.is_empty() {
                        instance.private_dns_name = launched.private_dns_name;
                    }
                    return Ok(instance);
                }
                // A passing failure may be over before the wait ends. A lasting one ends the wait.
                Err(Failure { status, kind: FailureKind::Permanent, .. }) if status.code != Code::NotFound => {
                    return Err(status);
                }
                Ok(_) | Err(_) => {}
            }
            let drawn = pause.mul_f64(0.5 + cloud_client::draw());
            if began.elapsed() + drawn > VISIBILITY_TIMEOUT {
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

    /// The identity of the instance, as the answer of a creation.
    ///
    /// # Errors
    /// When the launch has failed, or the instance has no node name yet.
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
        CLASSES.validate(class, found);
    }

    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        let subject = self.subject(Spec::checked(&request.class)?, &request)?;
        if subject.secret.get(SecretData::USER_DATA).is_none_or(<[u8]>::is_empty) {
            return Err(Status::new(Code::InvalidArgument, "Mention userData"));
        }
        let ec2 = self.ec2.session(cx, &subject.spec.region, &subject.source);
        // Ended instances are needed, too, because their client tokens can't be used again.
        let (live, ended): (Vec<_>, Vec<_>) =
            subject.named(&ec2, States::Any).await?.into_iter().partition(|instance| !instance.has_ended());
        let (instance, launched) = match live.len() {
            0 => {
                let ami = &subject.spec.ami;
                let Some(image) = ec2.image(ami).await? else {
                    return Err(Status::new(Code::NotFound, format!("Image {ami} not found")));
                };
                let Some(root_device) = image.root_device else {
                    return Err(Status::new(Code::InvalidArgument, "rootDeviceName cannot be nil"));
                };
                let attempt = lookup::next_attempt(&subject.token()?, &ended);
                let launched = subject.launched(&ec2, &root_device, attempt).await?;
                let state = LaunchState { launched: Timestamp::now(), account: launched.account.clone() }.state();
                let remembering = |status: Status| Status { last_known_state: Some(state.clone()), ..status };
                let instance = subject.visible(&ec2, launched).await.map_err(remembering)?;
                (instance, state)
            }
            1 => {
                let instance = live.into_iter().next().unwrap_or_default();
                let launched = instance.launched.unwrap_or_else(Timestamp::now);
                let state = LaunchState { launched, account: instance.account.clone() }.state();
                (instance, state)
            }
            _ => return Err(lookup::too_many(&live)),
        };
        match subject.created(ec2.region, &instance) {
            Ok(vm) => Ok(CreatedVm { vm, last_known_state: Some(launched) }),
            Err(status) => Err(Status { last_known_state: Some(launched), ..status }),
        }
    }

    async fn initialize_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let subject = self.subject(Spec::read(&request.class)?, &request)?;
        let ec2 = subject.session(&self.ec2, cx)?;
        let backing = subject.backing(&ec2).await.map_err(|status| match status.code {
            Code::NotFound => Status { code: Code::Uninitialized, ..status },
            _ => status,
        })?;
        let instance = backing.into_iter().next().ok_or_else(lookup::not_found)?;
        let identity = lookup::identity(ec2.region, &instance);
        let missing = subject.missing(&instance);
        if missing.interfaces {
            return Err(uninitialized(format!("instance {} has no network interface", instance.id), identity));
        }
        let mut failed: Option<Failure> = None;
        for interface in &missing.checking {
            // A failure does not stop the others.
            failed = ec2.disable_source_dest_check(interface).await.err().or(failed);
        }
        for prefixes in &missing.prefixes {
            failed = subject.assign(&ec2, prefixes).await.err().or(failed);
        }
        match failed {
            Some(failure) => Err(uninitialized(failure.status.message, identity)),
            None if missing.unconfirmed.is_empty() => Ok(identity),
            None => {
                let interfaces = missing.unconfirmed.join(", ");
                let message = format!(
                    "IPv6 prefixes for {interfaces} were asked for without an answer; unless EC2 shows them before, they are asked for \
                     again {} minutes later",
                    VISIBILITY_TIMEOUT.as_secs() / 60
                );
                Err(uninitialized(message, identity))
            }
        }
    }

    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        let subject = self.subject(Spec::read(&request.class)?, &request)?;
        let ec2 = subject.session(&self.ec2, cx)?;
        let location = subject.location()?;
        // The request for an orphan has an id and no UID. Only the instance with that id may be terminated, not others with the same name.
        let by_name = location.is_none() || subject.machine.metadata.uid.is_some();
        let mut ending = if by_name { subject.named(&ec2, States::Live).await? } else { Vec::new() };
        // Other instances with the machine's name are terminated only if a request for this machine has made them, because another machine's
        // instance may have the name by mistake. The orphan collector, which knows all machines, deals with the rest.
        if let Some(location) = location {
            ending.retain(|instance| instance.id == location.id || subject.was_made_for_machine(instance));
        }
        let mut failed = None;
        if let Some(location) = location.filter(|location| ending.iter().all(|instance| instance.id != location.id)) {
            match subject.live_instance(&ec2, location.id).await {
                Ok(instance) => ending.extend(instance),
                Err(status) => failed = Some(status),
            }
        }
        if location.is_none() && ending.is_empty() {
            subject.check_launch_is_shown(&ec2).await?;
        }
        // A failure does not stop the others.
        for instance in &ending {
            let refused = ec2.terminate(&instance.id).await.err();
            failed = failed.or_else(|| Some(lookup::not_terminated(&instance.id, refused?.into())));
        }
        failed.map_or(Ok(DeletedVm::default()), Err)
    }

    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let subject = self.subject(Spec::read(&request.class)?, &request)?;
        let ec2 = subject.session(&self.ec2, cx)?;
        let backing = subject.backing(&ec2).await?;
        let [instance] = backing.as_slice() else { return Err(lookup::too_many(&backing)) };
        let identity = lookup::identity(ec2.region, instance);
        let missing = subject.missing(instance);
        if missing.nothing() {
            return Ok(identity);
        }
        let message = format!(
            "VM {} associated with machine is not initialized: {} network interfaces still check source and destination, {} lack IPv6 \
             prefixes",
            instance.id,
            missing.checking.len(),
            missing.prefixes.len() + missing.unconfirmed.len()
        );
        Err(uninitialized(message, identity))
    }

    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        let spec = Spec::read(&request.class)?;
        let (owner, source) = (owner_tags(&spec)?, self.ec2.source(&request.secret)?);
        let ec2 = self.ec2.session(cx, &spec.region, &source);
        let all = ec2.instances(InstanceQuery::Owned(&owner)).await?;
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

/// The name of the CSI driver for volumes of EBS.
const EBS: &str = "ebs.csi.aws.com";

/// The id of a volume of EBS. `None` for another kind of volume.
fn volume_id(volume: &PersistentVolumeSpec) -> Option<String> {
    if let Some(ebs) = &volume.aws_elastic_block_store {
        // `aws://zone/vol-…`, `aws:///vol-…` or the id alone.
        return ebs.volume_id.rsplit('/').next().filter(|id| !id.is_empty()).map(str::to_owned);
    }
    volume.csi.as_ref().filter(|csi| csi.driver == EBS).map(|csi| csi.volume_handle.clone())
}

#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
#[path = "wire_tests.rs"]
mod wire_tests;
