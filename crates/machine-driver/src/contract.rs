//! The contract of every driver with the machine controller (spec/providers §1.5), as one scenario for the tests of a driver.
//!
//! Call [`holds_for`] against a simulator, a recorded endpoint or a test account of the provider. The driver's own tests cover what
//! the provider can do beyond this.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::{
    Code, CreatedVm, Driver, ListRequest, ListedVm, MachineRequest, OpContext, Owner, SameInstance, SecretData, Status,
};
use kube_values::field::Findings;
use machine_api::v1alpha1::{Machine, MachineClass};

/// Runs the whole scenario; panics with the broken rule. Machines of the class that existed before are not touched.
pub async fn holds_for(driver: &dyn Driver, class: MachineClass, secret: SecretData) {
    let scenario = Scenario { driver, class: Arc::new(class), secret };
    scenario.its_name_and_providers_are_set();
    scenario.foreign_and_nameless_requests_are_refused().await;
    scenario.a_vm_is_created_once_and_found().await;
    scenario.a_dropped_creation_leaves_nothing_unknown().await;
    scenario.it_distinguishes_its_instances().await;
    scenario.a_deletion_leaves_nothing_and_touches_no_other_vm().await;
}

struct Scenario<'a> {
    driver: &'a dyn Driver,
    class: Arc<MachineClass>,
    secret: SecretData,
}

impl Scenario<'_> {
    /// A call as the machine controller makes it, with the owner of the VMs.
    fn cx(&self) -> OpContext {
        let owner = self.driver.owner(&self.class).unwrap_or_else(|| Owner::new("contract", "worker"));
        OpContext::within(Duration::from_secs(600)).about(Some(owner))
    }

    fn request(&self, name: &str) -> MachineRequest {
        let mut machine = Machine::default();
        machine.metadata.name = Some(name.to_owned());
        machine.metadata.namespace.clone_from(&self.class.metadata.namespace);
        machine.metadata.uid = Some(format!("uid-of-{name}"));
        MachineRequest { machine: Arc::new(machine), class: Arc::clone(&self.class), secret: self.secret.clone() }
    }

    async fn create(&self, name: &str) -> Result<CreatedVm, Status> {
        self.driver.create_machine(&self.cx(), self.request(name)).await
    }

    async fn delete(&self, name: &str) -> Code {
        code(self.driver.delete_machine(&self.cx(), self.request(name)).await)
    }

    async fn status(&self, name: &str) -> Code {
        code(self.driver.get_machine_status(&self.cx(), self.request(name)).await)
    }

    async fn listed(&self, name: &str) -> Vec<ListedVm> {
        let request = ListRequest { class: Arc::clone(&self.class), secret: self.secret.clone() };
        let all = self.driver.list_machines(&self.cx(), request).await.expect("the list is complete or an error");
        all.into_iter().filter(|vm| vm.machine_name == name).collect()
    }

    fn its_name_and_providers_are_set(&self) {
        let info = self.driver.info();
        assert!(!info.name.is_empty(), "a driver has a name");
        assert!(info.providers.contains(&self.class.provider), "it serves the given class");
        let mut class = MachineClass::clone(&self.class);
        let mut found = Findings::new();
        self.driver.validate(&class, &mut found);
        assert!(!found.denies(), "rule 8: {}", found.aggregate());
        if let Some(spec) = class.provider_spec.as_object_mut() {
            spec.insert("fieldOfALaterVersion".to_owned(), json!("x"));
        }
        assert_eq!(
            self.driver.owner(&class),
            self.driver.owner(&self.class),
            "the owner of the VMs depends only on known fields"
        );
        self.driver.validate(&class, &mut found);
        assert!(!found.denies(), "rule 8: unknown fields are ignored: {}", found.aggregate());
    }

    async fn foreign_and_nameless_requests_are_refused(&self) {
        let mut class = MachineClass::clone(&self.class);
        "somebody-else".clone_into(&mut class.provider);
        let foreign = MachineRequest { class: Arc::new(class), ..self.request("contract-foreign") };
        let refused = self.driver.create_machine(&self.cx(), foreign).await.expect_err("rule 11");
        assert_eq!(refused.code, Code::InvalidArgument, "rule 11");
        assert!(refused.message.contains("somebody-else"), "rule 11: {}", refused.message);
        assert!(self.create("").await.is_err(), "rule 10: no VM without a machine's name");
        assert_eq!(self.listed("").await, [], "rule 10");
    }

    async fn a_vm_is_created_once_and_found(&self) {
        assert!(matches!(self.status("contract-a").await, Code::NotFound | Code::Unimplemented));
        assert_eq!(self.listed("contract-a").await, [], "it is not there before");
        let (one, other) = tokio::join!(self.create("contract-a"), self.create("contract-a"));
        // One of two simultaneous calls may be refused. In any case, only one VM is created.
        let made = one.or(other).expect("one of two creations succeeds").vm;
        assert!(!made.provider_id.is_empty() && !made.node_name.is_empty(), "an identity is complete: {made:?}");
        let again = self.create("contract-a").await.expect("rule 2: a repeated creation succeeds").vm;
        assert_eq!((&again.provider_id, &again.node_name), (&made.provider_id, &made.node_name), "rules 1 and 2");
        assert!(matches!(self.status("contract-a").await, Code::OK | Code::Unimplemented));
        let rows = self.listed("contract-a").await;
        assert_eq!(rows.len(), 1, "rule 1: one VM per machine");
        assert_eq!(rows[0].provider_id, made.provider_id, "the list and the creation name the same VM");
        if self.driver.info().capabilities.lists_creation_time {
            assert!(rows[0].created.is_some(), "it declares that it lists the time of creation");
        }
    }

    async fn a_dropped_creation_leaves_nothing_unknown(&self) {
        let dropped = tokio::time::timeout(Duration::from_millis(1), self.create("contract-b")).await;
        drop(dropped);
        let made = self.create("contract-b").await.expect("rule 2: after a dropped creation").vm;
        let rows = self.listed("contract-b").await;
        assert_eq!(rows.iter().map(|row| &row.provider_id).collect::<Vec<_>>(), [&made.provider_id], "rule 2");
    }

    async fn it_distinguishes_its_instances(&self) {
        let (a, b) = tokio::join!(self.create("contract-a"), self.create("contract-b"));
        let (a, b) = (a.expect("rule 2").vm.provider_id, b.expect("rule 2").vm.provider_id);
        let same = |machine: &str, node: &str| self.driver.same_instance(machine, node);
        assert_eq!(same(&a, &a), SameInstance::Same, "an id names its own instance: {a}");
        assert_eq!(same(&a, &a.to_ascii_uppercase()), SameInstance::Same, "some clouds change the case of ids");
        assert_ne!(same(&a, &b), SameInstance::Same, "two VMs are two instances: {a} and {b}");
        for (machine, node) in [("", b.as_str()), (a.as_str(), ""), ("", "")] {
            assert_eq!(same(machine, node), SameInstance::Unknown, "an empty id shows nothing");
        }
        for (machine, node) in [("?", "//"), ("a://b", "\u{0}/\u{1F41F}"), (&a, "no id at all")] {
            assert_ne!(same(machine, node), SameInstance::Same, "any id of a Node is accepted without a panic");
        }
    }

    async fn a_deletion_leaves_nothing_and_touches_no_other_vm(&self) {
        assert_eq!(self.delete("contract-a").await, Code::OK);
        assert_eq!(self.listed("contract-a").await, [], "rule 3: nothing is left");
        assert!(matches!(self.status("contract-a").await, Code::NotFound | Code::Unimplemented));
        assert!(matches!(self.delete("contract-a").await, Code::OK | Code::NotFound), "rule 3: a repeated deletion");
        assert_eq!(self.listed("contract-b").await.len(), 1, "rule 1: the other machine keeps its VM");
        assert!(matches!(self.delete("contract-b").await, Code::OK));
        assert!(
            matches!(self.delete("contract-never").await, Code::OK | Code::NotFound),
            "rule 3: a deletion of a VM that never existed"
        );
    }
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code, |_| Code::OK)
}
