//! The one gate that effects pass: are we the leader, and may this be destroyed now?
//!
//! Every write asks [`Gate::may_act`]; whatever destroys something also asks [`Gate::permit`] (decisions.md 18). Losing
//! the lease closes the gate at once, before another replica can begin to act.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio_util::sync::CancellationToken;

use super::{error::ApiError, lease::Leadership};

/// What a destructive effect destroys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destruction {
    /// A VM at the provider.
    Vm,
    /// A Node of the target cluster.
    Node,
    /// A Pod, by eviction or deletion.
    Pod,
    /// A volume attachment.
    VolumeAttachment,
    /// A Machine object.
    Machine,
    /// A `MachineSet` object.
    MachineSet,
}

/// The gate. Cheap to clone; all clones are the same gate.
#[derive(Clone)]
pub struct Gate {
    leadership: Leadership,
    passed: Arc<Mutex<BTreeMap<(Destruction, &'static str), u64>>>,
}

impl Gate {
    /// A gate that is open until `leadership_lost` is cancelled, for processes without an election and for tests.
    pub fn open_until(leadership_lost: CancellationToken) -> Self {
        Self::open_while(Leadership::without_election(leadership_lost))
    }

    /// A gate that is open while all leases are held, by the time of their last renewal too: a process that was stopped
    /// for a while finds it closed before its election has noticed.
    pub fn open_while(leadership: Leadership) -> Self {
        Self { leadership, passed: Arc::default() }
    }

    /// A gate that nothing passes, for processes that only look.
    pub fn closed() -> Self {
        let lost = CancellationToken::new();
        lost.cancel();
        Self::open_until(lost)
    }

    /// Whether effects may happen at all.
    ///
    /// # Errors
    /// [`ApiError::NotLeading`] once the lease is lost.
    pub fn may_act(&self) -> Result<(), ApiError> {
        if !self.leadership.is_leading() {
            return Err(ApiError::NotLeading("the lease is not held (any more) or the process is stopping".to_owned()));
        }
        Ok(())
    }

    /// Asks to destroy something by a rule of a decision; audited by kind and rule.
    ///
    /// # Errors
    /// [`ApiError::NotLeading`] once the lease is lost.
    pub fn permit(
        &self,
        what: Destruction,
        rule: &'static str,
        object: &(dyn std::fmt::Display + Sync),
    ) -> Result<(), ApiError> {
        self.may_act()?;
        tracing::info!(target: "audit", ?what, rule, %object, "destroy");
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner).entry((what, rule)).or_insert(0) += 1;
        Ok(())
    }

    /// How many destructions passed, by kind and rule.
    pub fn passed(&self) -> BTreeMap<(Destruction, &'static str), u64> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_passes_once_the_lease_is_lost() {
        let lost = CancellationToken::new();
        let gate = Gate::open_until(lost.clone());
        assert_eq!(gate.permit(Destruction::Vm, "deletion", &"m-1"), Ok(()));
        lost.cancel();
        assert!(matches!(gate.permit(Destruction::Vm, "deletion", &"m-2"), Err(ApiError::NotLeading(_))));
        assert_eq!(gate.passed(), BTreeMap::from([((Destruction::Vm, "deletion"), 1)]));
    }
}
