//! The machine of a request, with its class, its credentials and the regions where its instance may be.

use jiff::Timestamp;
use machine_driver::{Code, Machine, MachineRequest, SecretData, Status};

use crate::{
    actions::{Instance, InstanceQuery},
    credentials::Credentials,
    ecs::Session,
    errors,
    lookup::{self, Claimant, Named, Owners},
    names::InstanceLocation,
    sign::hex,
    spec::Spec,
    state::Kept,
};

/// The most characters of a client token before the number of the attempt. ECS allows 64 characters in total.
const LONGEST_TOKEN: usize = 52;

/// The machine of a request.
pub struct Subject<'a> {
    pub spec: Spec,
    pub owners: Owners,
    pub credentials: Credentials,
    pub machine: &'a Machine,
    pub secret: &'a SecretData,
    /// What an earlier call has kept of the creation.
    pub kept: Option<Kept>,
}

impl<'a> Subject<'a> {
    /// The subject of a request.
    ///
    /// # Errors
    /// `InvalidArgument` for missing credentials.
    pub fn of(spec: Spec, request: &'a MachineRequest) -> Result<Self, Status> {
        let credentials = Credentials::of(&request.secret)?;
        let kept = Kept::of(&request.machine.status.last_known_state);
        let owners = Owners::of(spec.owner_tags(), kept.as_ref().and_then(Kept::owner_tags));
        Ok(Self { spec, owners, credentials, machine: &request.machine, secret: &request.secret, kept })
    }

    /// The machine's name.
    ///
    /// # Errors
    /// `InvalidArgument` without a name, because an empty name would select the instances of other machines, and for a name that ECS would read as a
    /// pattern.
    pub fn name(&self) -> Result<&'a str, Status> {
        let name = self.machine.metadata.name.as_deref().filter(|name| !name.is_empty() && !name.contains('*'));
        name.ok_or_else(|| Status::new(Code::InvalidArgument, "the machine has no name that an instance can have"))
    }

    /// The name for messages.
    pub fn shown_name(&self) -> &'a str {
        self.machine.metadata.name.as_deref().unwrap_or_default()
    }

    /// Who asks about the instance with the provider id of the machine. The collector of orphans makes up machines, which have no UID.
    pub fn claimant(&self) -> Claimant<'a> {
        if self.machine.metadata.uid.is_some() { Claimant::Machine(self.shown_name()) } else { Claimant::Collector }
    }

    /// The location in the provider id of the machine. `None` without a provider id.
    ///
    /// # Errors
    /// `InvalidArgument` for an id of another form.
    pub fn location(&self) -> Result<Option<InstanceLocation<'a>>, Status> {
        let id = self.machine.spec.provider_id.as_str();
        if id.is_empty() {
            return Ok(None);
        }
        let invalid = || Status::new(Code::InvalidArgument, format!("{id:?} is no provider id of Alicloud"));
        InstanceLocation::of(id).map(Some).ok_or_else(invalid)
    }

    /// The regions of an instance without a provider id: the region in which it was asked for, and the region of the class, which a user may have
    /// edited since.
    ///
    /// # Errors
    /// `InvalidArgument` if there is none.
    pub fn regions(&self) -> Result<Vec<&str>, Status> {
        let asked = self.kept.iter().filter(|kept| kept.asked.is_some());
        let mut all: Vec<&str> = asked.map(|kept| kept.region.as_str()).collect();
        all.extend(self.spec.valid_region().filter(|region| !all.contains(region)));
        if all.is_empty() {
            let message = format!(
                "providerSpec.region: {:?} can't be a region; without one, nothing shows whether the machine has an instance",
                self.spec.region
            );
            return Err(Status::new(Code::InvalidArgument, message));
        }
        Ok(all)
    }

    /// The first part of all client tokens of the machine's creations. It is unique to the machine.
    pub fn token(&self) -> String {
        let metadata = &self.machine.metadata;
        let is_usable =
            |uid: &&String| (1..=LONGEST_TOKEN).contains(&uid.len()) && uid.bytes().all(|byte| byte.is_ascii_graphic());
        if let Some(uid) = metadata.uid.as_ref().filter(is_usable) {
            return uid.clone();
        }
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let text = format!("{namespace}/{}/{}", self.shown_name(), self.machine.spec.class.name);
        let mut hash = hex(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref());
        hash.truncate(LONGEST_TOKEN);
        hash
    }

    /// The instance with the machine's provider id, in the region of the session.
    ///
    /// # Errors
    /// `NotFound` if it is gone, `Unavailable` if ECS may not show it yet, `FailedPrecondition` if it belongs to another machine, and what keeps these
    /// credentials from seeing it.
    pub async fn by_id(&self, ecs: &Session<'_>, id: &str) -> Result<Instance, Status> {
        if let Some(instance) = ecs.instance(id).await? {
            lookup::check_named_by_id(&instance, &self.owners, self.claimant())?;
            return Ok(instance);
        }
        let may_be_shown = lookup::may_be_shown_later(self.machine, self.kept.as_ref(), Timestamp::now());
        if may_be_shown && !ecs.has_deleted(id) {
            return Err(lookup::not_shown_yet(self.shown_name()));
        }
        self.check_nothing_is_hidden(ecs, InstanceQuery::Id(id)).await?;
        Err(lookup::not_found(self.shown_name()))
    }

    /// The instances with the machine's name, in the region of the session.
    pub async fn by_name(&self, ecs: &Session<'_>) -> Result<Named, Status> {
        match ecs.instances(InstanceQuery::Named(self.name()?)).await {
            Ok(all) => Ok(Named::of(all, &self.owners)),
            // A region that does not exist has no instances. The region comes from a class, not from an id of an instance.
            Err(failure) if failure.reason == errors::NO_REGION => Ok(Named::default()),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Checks that an instance would be shown if it existed.
    ///
    /// # Errors
    /// `PermissionDenied` for credentials without the right to look, `FailedPrecondition` for credentials of another account, `Unavailable` if STS does
    /// not tell their account.
    pub async fn check_nothing_is_hidden(&self, ecs: &Session<'_>, selection: InstanceQuery<'_>) -> Result<(), Status> {
        match ecs.check_right_to_look(selection).await {
            Err(failure) if failure.reason == errors::NO_REGION && !matches!(selection, InstanceQuery::Id(_)) => {}
            outcome => outcome?,
        }
        let Some(made_in) = self.kept.as_ref().and_then(|kept| kept.account.as_deref()) else { return Ok(()) };
        lookup::check_account(made_in, ecs.account().await.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use machine_driver::MachineClass;
    use serde_json::json;

    use super::*;
    use crate::credentials::tests::secret;

    fn request(region: &str, state: &str) -> MachineRequest {
        let mut machine = Machine::default();
        machine.metadata.name = Some("m".to_owned());
        state.clone_into(&mut machine.status.last_known_state);
        let spec = json!({"region": region});
        let class =
            MachineClass { provider: crate::ALICLOUD.to_owned(), provider_spec: spec, ..MachineClass::default() };
        let secret = secret(&[("accessKeyID", "a"), ("accessKeySecret", "b")]);
        MachineRequest { machine: Arc::new(machine), class: Arc::new(class), secret }
    }

    fn regions(region: &str, state: &str) -> Result<Vec<String>, Code> {
        let request = request(region, state);
        let subject = Subject::of(Spec::of_machines(&request.class).unwrap(), &request).unwrap();
        let regions = subject.regions().map_err(|status| status.code)?;
        Ok(regions.into_iter().map(str::to_owned).collect())
    }

    #[test]
    fn y10_an_instance_is_searched_where_it_was_asked_for_and_where_the_class_says() {
        let state = r#"{"asked":"2026-01-01T00:00:00Z","region":"cn-a"}"#;
        assert_eq!(regions("cn-b", state).unwrap(), ["cn-a", "cn-b"]);
        assert_eq!(regions("cn-a", state).unwrap(), ["cn-a"]);
        assert_eq!(regions("not a region", state).unwrap(), ["cn-a"]);
        assert_eq!(regions("cn-b", r#"{"region":"cn-a"}"#).unwrap(), ["cn-b"], "all requests were refused there");
        assert_eq!(regions("cn-b", "").unwrap(), ["cn-b"]);
        assert_eq!(regions("", ""), Err(Code::InvalidArgument));
    }

    #[test]
    fn each_machine_has_its_token() {
        let request = request("cn-a", "");
        let mut machine = Machine::clone(&request.machine);
        let mut token = |uid: Option<&str>, name: &str| {
            machine.metadata.uid = uid.map(str::to_owned);
            machine.metadata.name = Some(name.to_owned());
            let request = MachineRequest { machine: Arc::new(machine.clone()), ..request.clone() };
            Subject::of(Spec::default(), &request).unwrap().token()
        };
        assert_eq!(token(Some("uid-1"), "m"), "uid-1");
        let made = token(None, "m");
        assert_eq!(made.len(), LONGEST_TOKEN);
        assert_ne!(made, token(None, "n"));
        assert_eq!(made, token(Some(&"x".repeat(60)), "m"));
        assert_eq!(made, token(Some(""), "m"));
    }
}
