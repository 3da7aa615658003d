//! Hands reviews from the server to admission, and counts what came of them.

use crate::{
    admission::{Admission, Endpoint, Operation, ReviewAnswer, ReviewFacts, Verdict},
    api::{field::Severity, kind::Kind},
    metrics::{Allowed, Metrics, Reviewed, ReviewedKind, ReviewedOperation, RuleHit, RuleLevel, Webhook},
    server::{Answer, Reviewer},
};

/// Admission behind the server's listener.
pub(super) struct AdmissionReviewer {
    admission: Admission,
    metrics: Metrics,
}

impl AdmissionReviewer {
    pub(super) fn new(admission: Admission, metrics: Metrics) -> Self {
        Self { admission, metrics }
    }

    fn review(&self, endpoint: Endpoint, body: &[u8]) -> Answer {
        let answer = self.admission.review(endpoint, body);
        self.count(endpoint, &answer.facts);
        plain(answer)
    }

    fn count(&self, endpoint: Endpoint, facts: &ReviewFacts) {
        let webhook = match endpoint {
            Endpoint::Mutate => Webhook::Mutate,
            Endpoint::Validate => Webhook::Validate,
            Endpoint::ValidateStatus => Webhook::ValidateStatus,
        };
        let kind = match facts.kind {
            Some(Kind::Machine) => ReviewedKind::Machine,
            Some(Kind::MachineSet) => ReviewedKind::MachineSet,
            Some(Kind::MachineDeployment) => ReviewedKind::MachineDeployment,
            Some(Kind::MachineClass) => ReviewedKind::MachineClass,
            None => ReviewedKind::Other,
        };
        let operation = match facts.operation {
            Some(Operation::Create) => ReviewedOperation::Create,
            Some(Operation::Update) => ReviewedOperation::Update,
            Some(Operation::Delete) => ReviewedOperation::Delete,
            Some(Operation::Other) | None => ReviewedOperation::Other,
        };
        let allowed = match facts.verdict {
            Verdict::Allowed => Allowed::Yes,
            Verdict::Denied | Verdict::Failed => Allowed::No,
        };
        self.metrics.admission.requests.inc(&Reviewed { webhook, kind, operation, allowed });
        for (rule, severity) in &facts.rules {
            let level = match severity {
                Severity::Deny => RuleLevel::Deny,
                Severity::Warn => RuleLevel::Warn,
                Severity::Existing => RuleLevel::Ratcheted,
                Severity::Skipped => RuleLevel::Skipped,
            };
            self.metrics.admission.rules.inc(&RuleHit { rule, level, kind, operation });
        }
        if facts.verdict == Verdict::Failed {
            tracing::warn!(?endpoint, why = facts.failure, "a review could not be judged");
        }
    }
}

impl Reviewer for AdmissionReviewer {
    fn mutate(&self, body: &[u8]) -> Answer {
        self.review(Endpoint::Mutate, body)
    }

    fn validate(&self, body: &[u8]) -> Answer {
        self.review(Endpoint::Validate, body)
    }

    fn convert(&self, body: &[u8]) -> Answer {
        let answer = self.admission.convert(body);
        if answer.facts.verdict == Verdict::Failed {
            tracing::warn!(why = answer.facts.failure, "objects could not be converted");
        }
        plain(answer)
    }
}

fn plain(answer: ReviewAnswer) -> Answer {
    Answer { status: answer.status, body: answer.body }
}
