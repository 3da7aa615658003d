//! A run of the orphan collector: the real verdicts, carried out as `controllers::safety` carries them out. What the provider
//! lists is its own list, always whole; machines are asked for at the API server.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;

use super::{
    cloud::{Cloud, Moment},
    guards::Guard,
    process::{Process, later},
};
use controller_runtime::key::ObjectKey;
use machine_controllers::safety::orphans::{self, Claim, Guards, claim, claim_in_stores, to_be_confirmed};
use machine_driver::{self, same_instance::instance_key};

/// The default of the flag.
const PERIOD: Duration = Duration::from_secs(15 * 60);

impl Process {
    /// Looks for VMs that are nobody's; the identities of those that are to be deleted now.
    pub fn look_for_orphans(&mut self, cloud: &Cloud, moment: Moment<'_>, without: Option<Guard>) -> Vec<String> {
        let vms = self.with_claims(cloud, moment, without);
        let plan = orphans::decide(&orphans::Observation {
            version: orphans::OBSERVATION_VERSION,
            now: moment.now,
            vms,
            suspects: std::mem::take(&mut self.suspects),
            guards: Guards::default(),
        });
        let next = plan.next.unwrap_or(PERIOD).min(PERIOD);
        self.suspects = plan.suspects;
        self.collects_at = later(moment.now, next);
        if self.gate.may_call().is_err() {
            return Vec::new();
        }
        for deletion in &plan.deletions {
            self.suspects.remove(&deletion.provider_id);
        }
        plan.deletions.into_iter().map(|deletion| deletion.provider_id).collect()
    }

    /// When it looks again.
    pub fn collects_from(&self) -> Timestamp {
        self.collects_at
    }

    /// When it looks again, if it suspects any.
    pub fn collects_at(&self) -> Option<Timestamp> {
        (!self.suspects.is_empty()).then_some(self.collects_at)
    }

    fn with_claims(&self, cloud: &Cloud, moment: Moment<'_>, without: Option<Guard>) -> Vec<orphans::ListedVm> {
        let machines = self.views.machines.snapshot();
        let held: BTreeSet<String> = machines.iter().filter_map(|one| instance_key(&one.spec.provider_id)).collect();
        let listed = |vm: &super::cloud::Vm| {
            let known = self.views.machines.get(&ObjectKey::new("ns", vm.owner.clone()));
            let listed = machine_driver::ListedVm {
                provider_id: vm.provider_id.clone(),
                machine_name: vm.owner.clone(),
                created: Some(vm.made),
            };
            let claim = claim_in_stores(&listed, &held, known.as_deref());
            orphans::ListedVm {
                provider_id: listed.provider_id,
                machine: listed.machine_name,
                created: listed.created,
                claim,
            }
        };
        let mut vms: Vec<orphans::ListedVm> = cloud.shown(moment.now).map(listed).collect();
        let asked = to_be_confirmed(&vms, &self.suspects, &Guards::default());
        for vm in &mut vms {
            if asked.contains(&vm.provider_id) {
                vm.claim = claim(&vm.provider_id, moment.api.machines.get(&vm.machine).map(AsRef::as_ref));
            }
            if without == Some(Guard::Claims) && vm.claim == Claim::InCreation {
                vm.claim = Claim::Nobody;
            }
        }
        vms
    }
}
