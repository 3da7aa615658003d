//! Aggregated roles: their rules are those of the roles that they select.
//!
//! Source: spec/extension-apiserver §6.2.

use serde_json::json;

use super::Helpers;
use crate::{authorization, stand_ins::StandIn, store::Collection};

impl Helpers {
    /// Gives aggregated roles the rules of those they select.
    pub(super) fn aggregate_roles(&self) {
        if !self.stands_in_for(StandIn::AggregatedRoles) {
            return;
        }
        let Some(served) = self.served(&Collection::new(authorization::GROUP, "clusterroles")) else { return };
        let all = self.server.store.list(&served.collection, "").objects;
        for (_, role) in &all {
            let Some(rules) = authorization::aggregated(&role.value, &all) else { continue };
            if role.value["rules"].as_array() != Some(&rules) {
                let mut value = role.whole();
                value["rules"] = json!(rules);
                // The change wakes us again, for roles that select this one.
                let _ = self.server.overwrite(&served, role, Some(value));
            }
        }
    }
}
