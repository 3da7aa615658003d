//! Checks that VMs are created and deleted with the class and the Secrets that exist and on which the decision was
//! based; and that our finalizer is removed only from unused classes and Secrets.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;

use super::{
    api::{Api, Kind},
    checks::{Checks, makes_vm},
    classes::{USER_DATA, WITHOUT_TOKEN, is_class_used, is_secret_used, secrets_of},
};
use machine_api::v1alpha1::MachineClass;
use machine_controllers::machine::{
    creation::bootstrap_token::{Found, judge},
    observation::{Inputs, Observation},
    plan::Plan,
};
use machine_driver::{MachineRequest, SecretData};

/// The inputs of the last decided creations, by the UIDs of their machines.
pub type Decided = BTreeMap<String, Inputs>;

impl Checks {
    /// Records the inputs if a decision about a machine creates a VM.
    pub(super) fn creation_is_decided(&mut self, seen: &Observation, plan: &Plan) {
        if makes_vm(plan) {
            self.decided.insert(seen.machine.metadata().uid.to_owned(), seen.inputs.clone());
        }
    }

    /// Checks before a driver is called to create a VM.
    pub fn vm_is_ordered(&mut self, api: &Api, request: &MachineRequest, now: Timestamp) {
        self.life_begins(api, request);
        let name = request.machine.name_any();
        let class = &request.class;
        if api.classes.get(&class.name_any()).is_none_or(|there| there.uid() != class.uid()) {
            self.violated("a VM is made of a class that is gone", || format!("{name} of {}", class.name_any()));
        }
        let of = Some((class.uid().unwrap_or_default(), class.metadata.generation));
        let decided = request.machine.uid().and_then(|uid| self.decided.get(&uid));
        if decided.is_some_and(|decided| decided.class != of) {
            self.violated("a VM is made of a class that nobody has decided on", || format!("{name} of {of:?}"));
        }
        let brings = request.secret.get(SecretData::USER_DATA).unwrap_or_default();
        if brings == USER_DATA.as_bytes() {
            self.violated("a VM is made with user data that nobody has filled in", || name);
            return;
        }
        if brings == WITHOUT_TOKEN.as_bytes() {
            return;
        }
        let is_its_own = |secret: &Arc<Secret>| matches!(judge(secret, &name, now), Found::Reuse(token) if token.value().as_bytes() == brings);
        if !api.secrets.values().any(is_its_own) {
            self.violated("a VM is made with a token that is not its machine's", || {
                format!("{name} brings {}", String::from_utf8_lossy(brings))
            });
        }
    }

    /// Checks before a driver is called to delete the VM of a machine. While the class or a Secret is missing, the
    /// process may use the versions that it remembers (decisions.md 15).
    pub fn vm_is_given_up(&mut self, api: &Api, request: &MachineRequest) {
        let class = &request.class;
        let Some(there) = api.classes.get(&class.name_any()) else { return };
        let has_all = secrets_of(there).all(|secret| api.secrets.contains_key(secret));
        if has_all && there.uid() != class.uid() {
            self.violated("a VM is deleted with the content of a class that is gone", || request.machine.name_any());
        }
    }

    /// Checks after our finalizer was removed from a class or a Secret.
    pub fn is_let_go<K: Kind>(&mut self, api: &Api, name: &str) {
        let is_used = match K::PLACE {
            MachineClass::PLACE => is_class_used(api, name),
            _ => is_secret_used(api, name),
        };
        if is_used {
            self.violated("what is in use loses our finalizer", || format!("{} {name}", K::NAME));
        }
    }
}
