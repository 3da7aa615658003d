//! Aggregated roles: they have the rules of the roles that they select.
//!
//! Source: spec/extension-apiserver §6.2.

use serde_json::json;

use super::Helpers;
use crate::{authorization, stand_ins::StandIn, store::Collection};

impl Helpers {
    /// Updates the rules of aggregated roles.
    pub(super) fn aggregate_roles(&self) {
        if !self.runs(StandIn::AggregatedRoles) {
            return;
        }
        let Some(served) = self.served(&Collection::new(authorization::GROUP, "clusterroles")) else { return };
        let all = self.server.store.list(&served.collection, "").objects;
        for (_, role) in &all {
            let Some(rules) = authorization::aggregated(&role.value, &all) else { continue };
            if role.value["rules"].as_array() != Some(&rules) {
                let mut value = role.whole();
                value["rules"] = json!(rules);
                // The change leads here again, for roles that select this one.
                let _ = self.server.overwrite(&served, role, Some(value));
            }
        }
    }
}
