//! The machine of a request, with its class and its credentials.

use machine_driver::{Code, Machine, MachineRequest, OwnerTags, SecretData, Status};

use crate::{
    login::Login,
    names::is_name,
    plan::{ClassHistory, Known},
    spec::{ClassTags, Spec},
    state::Pending,
    zone::{ProviderId, Zone},
};

/// The machine of a request.
pub struct Subject<'a> {
    pub spec: Spec,
    pub tags: ClassTags,
    pub login: Login,
    pub machine: &'a Machine,
    pub secret: &'a SecretData,
    pub history: ClassHistory,
    /// The creation of the instance, if it has not ended.
    pub pending: Option<Pending>,
}

impl<'a> Subject<'a> {
    /// The subject of a request.
    ///
    /// # Errors
    /// `InvalidArgument` for invalid credentials.
    pub fn of(spec: Spec, request: &'a MachineRequest) -> Result<Self, Status> {
        let login = Login::of(&request.secret)?;
        // The parts of the state become parts of URLs, and users can write it.
        let pending = Pending::of(&request.machine.status.last_known_state)
            .filter(|pending| pending.zone().is_some())
            .map(|pending| Pending { operation: pending.operation.filter(|name| is_name(name)), ..pending });
        let tags = spec.class_tags();
        let history = ClassHistory::of(&request.class, &request.machine);
        Ok(Self { spec, tags, login, machine: &request.machine, secret: &request.secret, history, pending })
    }

    /// The machine's name. `None` for a name that no instance can have.
    pub fn name(&self) -> Option<&'a str> {
        self.machine.metadata.name.as_deref().filter(|name| is_name(name))
    }

    /// The name for messages.
    pub fn shown_name(&self) -> &'a str {
        self.machine.metadata.name.as_deref().unwrap_or_default()
    }

    /// The provider id of the machine. `None` if it has none yet.
    ///
    /// # Errors
    /// `InvalidArgument` for an id of another form.
    pub fn provider_id(&self) -> Result<Option<ProviderId>, Status> {
        let id = self.machine.spec.provider_id.as_str();
        if id.is_empty() {
            return Ok(None);
        }
        let invalid = || Status::new(Code::InvalidArgument, format!("{id:?} is no provider id of GCP"));
        ProviderId::of(id).map(Some).ok_or_else(invalid)
    }

    /// The tags that a new instance gets, and that prove its owner.
    ///
    /// # Errors
    /// `InvalidArgument` for a class without tags for the owner.
    pub fn owner(&self) -> Result<&OwnerTags, Status> {
        self.tags.owner().ok_or_else(|| {
            let message =
                "providerSpec.tags: tags must contain entries starting with kubernetes-io-cluster- and kubernetes-io-role-";
            Status::new(Code::InvalidArgument, message)
        })
    }

    /// The zone of new instances: the zone of the class, in the project of the credentials.
    ///
    /// # Errors
    /// `InvalidArgument` if they can't be names. The reading of class and credentials has checked them.
    pub fn zone_of_class(&self) -> Result<Zone, Status> {
        let invalid = || Status::new(Code::InvalidArgument, "zone or project can't be names");
        Zone::of(&self.login.project, &self.spec.zone).ok_or_else(invalid)
    }

    /// What is known of an instance without a provider id.
    ///
    /// # Errors
    /// As [`Self::zone_of_class`].
    pub fn known(&self) -> Result<Known<'_>, Status> {
        let is_deleting = self.machine.metadata.deletion_timestamp.is_some();
        let (class, history, pending) = (self.zone_of_class()?, self.history, self.pending.as_ref());
        Ok(Known { class, history, tags: &self.tags, pending, is_deleting })
    }
}
