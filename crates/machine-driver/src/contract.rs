//! What every driver owes the core (spec/providers §1.5), as one story that a driver's tests let happen on it.
//!
//! Call [`holds_for`] against whatever stands for the provider in a test: a simulator, a recorded endpoint, an account for
//! tests. What a provider can do beyond this is for the driver's own tests.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::{
    Code, CreatedVm, Driver, ListRequest, ListedVm, MachineRequest, OpContext, Owner, SameInstance, SecretData, Status,
};
use kube_values::field::Findings;
use machine_api::v1alpha1::{Machine, MachineClass};

/// Lets the whole story happen; panics with the rule that is broken. Machines of the class that are there before stay.
pub async fn holds_for(driver: &dyn Driver, class: MachineClass, secret: SecretData) {
    let story = Story { driver, class: Arc::new(class), secret };
    story.it_says_who_it_is();
    story.foreign_and_nameless_requests_are_refused().await;
    story.a_vm_comes_once_and_is_found().await;
    story.a_creation_that_was_given_up_leaves_nothing_unknown().await;
    story.it_tells_its_instances_apart().await;
    story.a_deletion_leaves_nothing_and_touches_nobody_else().await;
}

struct Story<'a> {
    driver: &'a dyn Driver,
    class: Arc<MachineClass>,
    secret: SecretData,
}

impl Story<'_> {
    /// A call as the core makes it: it knows whose the VMs are.
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
        let all = self.driver.list_machines(&self.cx(), request).await.expect("the list is whole or an error");
        all.into_iter().filter(|vm| vm.machine_name == name).collect()
    }

    fn it_says_who_it_is(&self) {
        let info = self.driver.info();
        assert!(!info.name.is_empty(), "a driver has a name");
        assert!(info.providers.contains(&self.class.provider), "it serves the classes that it is given");
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
            "whose VMs these are hangs on fields that it knows"
        );
        self.driver.validate(&class, &mut found);
        assert!(!found.denies(), "rule 8: what it does not know it ignores: {}", found.aggregate());
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

    async fn a_vm_comes_once_and_is_found(&self) {
        assert!(matches!(self.status("contract-a").await, Code::NotFound | Code::Unimplemented));
        assert_eq!(self.listed("contract-a").await, [], "it is not there before");
        let (one, other) = tokio::join!(self.create("contract-a"), self.create("contract-a"));
        // Of two calls at once one may be refused for now; the VM is made once all the same.
        let made = one.or(other).expect("one of two creations succeeds").vm;
        assert!(!made.provider_id.is_empty() && !made.node_name.is_empty(), "an identity is whole: {made:?}");
        let again = self.create("contract-a").await.expect("rule 2: a repeated creation succeeds").vm;
        assert_eq!((&again.provider_id, &again.node_name), (&made.provider_id, &made.node_name), "rules 1 and 2");
        assert!(matches!(self.status("contract-a").await, Code::OK | Code::Unimplemented));
        let rows = self.listed("contract-a").await;
        assert_eq!(rows.len(), 1, "rule 1: one VM per machine");
        assert_eq!(rows[0].provider_id, made.provider_id, "the list and the creation name the same VM");
        if self.driver.info().capabilities.lists_creation_time {
            assert!(rows[0].created.is_some(), "it says that it tells the time of creation");
        }
    }

    async fn a_creation_that_was_given_up_leaves_nothing_unknown(&self) {
        let given_up = tokio::time::timeout(Duration::from_millis(1), self.create("contract-b")).await;
        drop(given_up);
        let made = self.create("contract-b").await.expect("rule 2: after a creation that was given up").vm;
        let rows = self.listed("contract-b").await;
        assert_eq!(rows.iter().map(|row| &row.provider_id).collect::<Vec<_>>(), [&made.provider_id], "rule 2");
    }

    async fn it_tells_its_instances_apart(&self) {
        let (a, b) = tokio::join!(self.create("contract-a"), self.create("contract-b"));
        let (a, b) = (a.expect("rule 2").vm.provider_id, b.expect("rule 2").vm.provider_id);
        let same = |machine: &str, node: &str| self.driver.same_instance(machine, node);
        assert_eq!(same(&a, &a), SameInstance::Same, "one id names one instance: {a}");
        assert_eq!(same(&a, &a.to_ascii_uppercase()), SameInstance::Same, "some clouds change the case of ids");
        assert_ne!(same(&a, &b), SameInstance::Same, "two VMs are two instances: {a} and {b}");
        for (machine, node) in [("", b.as_str()), (a.as_str(), ""), ("", "")] {
            assert_eq!(same(machine, node), SameInstance::Unknown, "who has no id says nothing");
        }
        for (machine, node) in [("?", "//"), ("a://b", "\u{0}/\u{1F41F}"), (&a, "no id at all")] {
            assert_ne!(same(machine, node), SameInstance::Same, "whatever stands in a Node is no reason to panic");
        }
    }

    async fn a_deletion_leaves_nothing_and_touches_nobody_else(&self) {
        assert_eq!(self.delete("contract-a").await, Code::OK);
        assert_eq!(self.listed("contract-a").await, [], "rule 3: nothing is left");
        assert!(matches!(self.status("contract-a").await, Code::NotFound | Code::Unimplemented));
        assert!(matches!(self.delete("contract-a").await, Code::OK | Code::NotFound), "rule 3: a repeated deletion");
        assert_eq!(self.listed("contract-b").await.len(), 1, "rule 1: the other machine keeps its VM");
        assert!(matches!(self.delete("contract-b").await, Code::OK));
        assert!(matches!(self.delete("contract-never").await, Code::OK | Code::NotFound), "rule 3: what never was");
    }
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code, |_| Code::OK)
}
