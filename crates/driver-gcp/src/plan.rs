//! Decides where the instance of a machine is created and looked for, and whose instance a found one is (spec/providers §5.3). Pure functions.
//!
//! A machine with a provider id has its instance there. Without one, the state of its creation says in which zone the instance may be. Without that
//! state, the instance is in the zone of the class, or in any zone if a user may have edited the class since.

use machine_driver::{Code, Machine, MachineClass, OwnerTags, Status, VmIdentity};

use crate::{
    lookup::{self, State},
    resources::Instance,
    spec::ClassTags,
    state::Pending,
    zone::Zone,
};

/// An instance of a machine's name, of any owner.
pub type Found = (Zone, Instance);

/// Whether the class may have named another zone since its machine exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassHistory {
    /// It is older than the machine and was never edited.
    Unchanged,
    /// It was edited, or nothing is known about it.
    MayHaveChanged,
}

impl ClassHistory {
    /// The history of the class of a machine. The API server counts the edits of a class in its generation.
    pub fn of(class: &MachineClass, machine: &Machine) -> Self {
        let made = (&class.metadata.creation_timestamp, &machine.metadata.creation_timestamp);
        let is_older = matches!(made, (Some(class), Some(machine)) if class.0 <= machine.0);
        if is_older && class.metadata.generation == Some(1) { Self::Unchanged } else { Self::MayHaveChanged }
    }
}

/// What is known of the instance of a machine without a provider id.
#[derive(Clone, Debug)]
pub struct Known<'a> {
    /// The zone of the class, which a user may have edited since the creation.
    pub class: Zone,
    /// Whether a user may have edited it.
    pub history: ClassHistory,
    /// The tags of the class.
    pub tags: &'a ClassTags,
    /// The state of the creation.
    pub pending: Option<&'a Pending>,
    /// Whether the machine is being deleted.
    pub is_deleting: bool,
}

/// A step of a creation: in this zone, with this attempt, and with the operation of it that may still run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub zone: Zone,
    pub number: u32,
    pub operation: Option<String>,
}

/// How a creation begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// With this attempt.
    At(Attempt),
    /// With a look into the zone of the earlier attempt, because the class names another zone now. The answer to that attempt may have been lost.
    Look {
        /// The zone of the earlier attempt.
        zone: Zone,
        /// The number of the earlier attempt.
        number: u32,
    },
    /// With a search in all zones: an earlier process may have ended before it wrote where it creates the instance.
    Search {
        /// The number of the next attempt.
        number: u32,
    },
}

/// Whose an instance with the name of a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The machine's.
    Machine,
    /// The machine's, or one of another class: the tags of the class may have been edited.
    Unclear,
    /// Another program's.
    Foreign,
}

/// What a deletion does after its search.
#[derive(Debug, PartialEq)]
pub enum Removal<'f> {
    /// It deletes these instances.
    Delete(Vec<&'f Found>),
    /// It fails, because an instance may be the machine's.
    Refuse(Status),
    /// There is no instance of the machine.
    Nothing,
}

impl Known<'_> {
    /// The zone of a creation that has not ended.
    fn zone_of_creation(&self) -> Option<Zone> {
        self.pending.filter(|pending| !pending.ended).and_then(Pending::zone)
    }

    /// The zone and the name of the operation that creates the instance, and may still run.
    pub fn operation(&self) -> Option<(Zone, &str)> {
        Some((self.zone_of_creation()?, self.pending?.operation.as_deref()?))
    }

    /// How the creation begins.
    pub fn beginning(&self) -> Beginning {
        let number = self.pending.map_or(0, |pending| pending.attempt);
        let Some(zone) = self.zone_of_creation() else {
            return match self.history {
                ClassHistory::Unchanged => Beginning::At(Attempt { zone: self.class.clone(), number, operation: None }),
                ClassHistory::MayHaveChanged => Beginning::Search { number },
            };
        };
        let operation = self.pending.and_then(|pending| pending.operation.clone());
        if zone == self.class || operation.is_some() {
            return Beginning::At(Attempt { zone, number, operation });
        }
        Beginning::Look { zone, number }
    }

    /// The attempt after a look into the zone of the earlier one. No instance of the earlier attempt is left behind.
    pub fn after_look(&self, earlier: Zone, number: u32, found: Option<&Instance>) -> Attempt {
        if found.is_some_and(|instance| self.tags.own(instance)) {
            return Attempt { zone: earlier, number, operation: None };
        }
        Attempt { zone: self.class.clone(), number: number.saturating_add(1), operation: None }
    }

    /// The zone of a creation after a search: where the machine has an instance already, or else the zone of the class, for which GCE itself says
    /// whether there is an instance.
    ///
    /// # Errors
    /// `AlreadyExists` if an instance in another zone may be the machine's.
    pub fn after_search(&self, owner: &OwnerTags, found: &[Found]) -> Result<Zone, Status> {
        if found.iter().any(|(zone, instance)| *zone == self.class && lookup::is_owned(instance, owner)) {
            return Ok(self.class.clone());
        }
        let elsewhere = || found.iter().filter(|(zone, _)| *zone != self.class);
        if let Some((zone, _)) = elsewhere().find(|(_, instance)| lookup::is_owned(instance, owner)) {
            return Ok(zone.clone());
        }
        if let Some((zone, instance)) = elsewhere().find(|(_, instance)| self.tags.may_share_a_cluster_with(instance)) {
            let status = lookup::of_another_class(zone, instance, self.tags);
            return Err(Status { code: Code::AlreadyExists, ..status });
        }
        Ok(self.class.clone())
    }

    /// The zones in which the instance is expected: the zone of its creation, and the zone of the class.
    pub fn zones(&self) -> Vec<Zone> {
        let mut zones: Vec<Zone> = self.zone_of_creation().into_iter().collect();
        if !zones.contains(&self.class) {
            zones.push(self.class.clone());
        }
        zones
    }

    /// Whether the instance is also searched in the zones in which it is not expected. `found` is what there is in the others. For a question about
    /// the machine's instance one is enough; a deletion needs all.
    pub fn is_searched_everywhere(&self, found: &[Found], reach: Reach) -> bool {
        let suffices = reach == Reach::First && found.iter().any(|one| self.whose(one) == Whose::Machine);
        !suffices && self.zone_of_creation().is_none() && self.history == ClassHistory::MayHaveChanged
    }

    /// Whose a found instance is.
    pub fn whose(&self, (zone, instance): &Found) -> Whose {
        let may_be_ours = self.tags.may_share_a_cluster_with(instance);
        // Names are unique in a zone, and GCE has named the operation that creates the machine's instance there.
        let is_created = self.operation().is_some_and(|(created_in, _)| created_in == *zone);
        if self.tags.own(instance) || (may_be_ours && is_created) {
            Whose::Machine
        } else if may_be_ours {
            Whose::Unclear
        } else {
            Whose::Foreign
        }
    }

    /// The identity of the machine's instance among the found ones. `Ok(None)` if there is none.
    ///
    /// # Errors
    /// `Unimplemented` while it is being created, so that the next call is a creation, which waits for the end. `FailedPrecondition` in a deletion,
    /// which must not end while an instance may be the machine's. A creation is refused by the name.
    pub fn identity(&self, found: &[Found]) -> Result<Option<VmIdentity>, Status> {
        if let Some((zone, instance)) = found.iter().find(|one| self.whose(one) == Whose::Machine) {
            if State::of(instance) == State::BeingCreated && !self.is_deleting {
                let message = format!("instance {} is {}", zone.provider_id(&instance.name), instance.status);
                return Err(Status::new(Code::Unimplemented, message));
            }
            return Ok(Some(lookup::identity(zone, instance)));
        }
        match found.iter().find(|one| self.is_deleting && self.whose(one) == Whose::Unclear) {
            Some((zone, other)) => Err(lookup::of_another_class(zone, other, self.tags)),
            None => Ok(None),
        }
    }

    /// What a deletion does with the found instances.
    pub fn removal<'f>(&self, found: &'f [Found]) -> Removal<'f> {
        let ours: Vec<&Found> = found.iter().filter(|one| self.whose(one) == Whose::Machine).collect();
        if !ours.is_empty() {
            return Removal::Delete(ours);
        }
        match found.iter().find(|one| self.whose(one) == Whose::Unclear) {
            Some((zone, other)) => Removal::Refuse(lookup::of_another_class(zone, other, self.tags)),
            None => Removal::Nothing,
        }
    }
}

/// How many instances a search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The machine's instance. Other zones are searched only if it is not where it is expected. Zones that do not answer are left out: a creation
    /// does not wait for the end of an outage elsewhere.
    First,
    /// All instances.
    All,
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
