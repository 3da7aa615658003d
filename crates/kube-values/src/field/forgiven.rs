//! The refusals that are forgiven in an update, because the stored object has them too (spec/api-and-admission §4.2).

use std::collections::HashMap;

use super::findings::{Identity, RuleId};

/// The refusals of the stored object. Each of them is forgiven once in an update.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Forgiven(Vec<(RuleId, ForgivenOfRule)>);

/// The refusals of one rule. An object with mistakes usually has the same mistakes as before, in the same order. The map `others` is made only
/// at the first refusal that differs.
#[derive(Clone, Debug, Default, PartialEq)]
struct ForgivenOfRule {
    /// The first refusals, which were kept with their texts.
    kept: Vec<Identity>,
    /// The following refusals, which were only counted.
    counted: Vec<Identity>,
    /// The number of refusals that the new object has repeated in this order.
    taken: usize,
    /// For each refusal after that: how often it may still be forgiven.
    others: Option<HashMap<Identity, usize>>,
}

impl Forgiven {
    /// Whether there are no refusals.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a refusal that was kept before.
    pub(super) fn add_kept(&mut self, rule: RuleId, identity: Identity) {
        self.of_rule(rule).kept.push(identity);
    }

    /// Adds the refusals of a rule that were only counted before. They follow the refusals that were kept.
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

    /// The same refusals, none of them used.
    pub(super) fn renewed(mut self) -> Self {
        for (_, of_rule) in &mut self.0 {
            of_rule.taken = 0;
            of_rule.others = None;
        }
        self
    }

    /// Whether the refusal is forgiven. Uses it up.
    pub(super) fn take(&mut self, rule: RuleId, identity: Identity) -> bool {
        self.known(rule).is_some_and(|of_rule| of_rule.take(identity))
    }

    /// Removes the refusals of a rule that are forgiven, and uses them up.
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
        let in_order = || self.kept.iter().chain(&self.counted);
        let next = self.kept.get(self.taken).or_else(|| self.counted.get(self.taken.checked_sub(self.kept.len())?));
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
