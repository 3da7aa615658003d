//! What an update is forgiven (spec/api-and-admission §4.2).

use std::collections::HashMap;

use super::findings::{Identity, RuleId};

/// What an update is forgiven: the refusals that were earned before, one for one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Forgiven(Vec<(RuleId, ForgivenOfRule)>);

/// Those of one rule. An object that is still wrong is most often wrong in the same places, which then come in the same order;
/// a map of them is made only when another comes.
#[derive(Clone, Debug, Default, PartialEq)]
struct ForgivenOfRule {
    /// The first ones, which were told.
    told: Vec<Identity>,
    /// Those after them, which were only counted.
    counted: Vec<Identity>,
    /// How many of them all have come again.
    taken: usize,
    /// How often each of the others may come again.
    others: Option<HashMap<Identity, usize>>,
}

impl Forgiven {
    /// Whether nothing is.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next refusal that was told before.
    pub(super) fn add_told(&mut self, rule: RuleId, identity: Identity) {
        self.of_rule(rule).told.push(identity);
    }

    /// The refusals of a rule that were only counted before, after those that were told.
    pub(super) fn add_counted(&mut self, rule: RuleId, identities: Vec<Identity>) {
        if !identities.is_empty() {
            self.of_rule(rule).counted = identities;
        }
    }

    fn of_rule(&mut self, rule: RuleId) -> &mut ForgivenOfRule {
        let known = self.0.iter().position(|(known, _)| *known == rule);
        let place = known.unwrap_or_else(|| {
            self.0.push((rule, ForgivenOfRule::default()));
            self.0.len() - 1
        });
        &mut self.0[place].1
    }

    /// The same, with nothing of it taken yet.
    pub(super) fn renewed(mut self) -> Self {
        for (_, of_rule) in &mut self.0 {
            of_rule.taken = 0;
            of_rule.others = None;
        }
        self
    }

    /// Whether the refusal is forgiven, which it then is once less.
    pub(super) fn take(&mut self, rule: RuleId, identity: Identity) -> bool {
        self.known(rule).is_some_and(|of_rule| of_rule.take(identity))
    }

    /// Leaves those of a rule's refusals that are not forgiven.
    pub(super) fn take_all(&mut self, rule: RuleId, identities: &mut Vec<Identity>) {
        if let Some(of_rule) = self.known(rule) {
            identities.retain(|identity| !of_rule.take(*identity));
        }
    }

    fn known(&mut self, rule: RuleId) -> Option<&mut ForgivenOfRule> {
        self.0.iter_mut().find(|(known, _)| *known == rule).map(|(_, of_rule)| of_rule)
    }
}

impl ForgivenOfRule {
    fn take(&mut self, identity: Identity) -> bool {
        let in_order = || self.told.iter().chain(&self.counted);
        let next = self.told.get(self.taken).or_else(|| self.counted.get(self.taken.checked_sub(self.told.len())?));
        if self.others.is_none() && next == Some(&identity) {
            self.taken += 1;
            return true;
        }
        if self.others.is_none() {
            let mut others = HashMap::new();
            for identity in in_order().skip(self.taken) {
                *others.entry(*identity).or_insert(0) += 1;
            }
            self.others = Some(others);
        }
        let left = self.others.as_mut().and_then(|others| others.get_mut(&identity));
        left.filter(|left| **left > 0).map(|left| *left -= 1).is_some()
    }
}
