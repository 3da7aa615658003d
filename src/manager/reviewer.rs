//! Hands reviews from the server to admission, and counts what came of them.

use crate::{
    admission::{Admission, ConversionFacts, Endpoint, Operation, ReviewAnswer, ReviewFacts, Verdict, convert},
    api::{
        field::Severity,
        kind::{ApiVersion, Kind},
    },
    metrics::{
        Allowed, ApiVersion as VersionLabel, Conversion, Metrics, Outcome, Reviewed, ReviewedKind, ReviewedOperation,
        RuleHit, RuleLevel, Webhook,
    },
    server::{Answer, LogLimit, Reviewer},
};

/// Admission behind the server's listener.
pub(super) struct AdmissionReviewer {
    admission: Admission,
    metrics: Metrics,
    complaints: LogLimit,
}

impl AdmissionReviewer {
    pub(super) fn new(admission: Admission, metrics: Metrics) -> Self {
        Self { admission, metrics, complaints: LogLimit::default() }
    }

    /// Writes a line about something that a stranger can bring about, unless there was one just now.
    fn complain(&self, write: impl FnOnce(u64)) {
        if let Some(held_back) = self.complaints.permit(tokio::time::Instant::now()) {
            write(held_back);
        }
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
            self.complain(|held_back| {
                tracing::warn!(?endpoint, why = facts.failure, held_back, "a review could not be judged");
            });
        }
    }

    fn count_conversion(&self, facts: &ConversionFacts) {
        let metrics = &self.metrics.conversion;
        let result = if facts.failure.is_empty() { Outcome::Success } else { Outcome::Failure };
        let (from, to) = (version_label(facts.from), version_label(facts.to));
        metrics.requests.inc(&Conversion { from, to, result });
        metrics.objects.add(&(), facts.objects);
        if !facts.losses.is_empty() {
            metrics.residue_dropped.add(&(), facts.losses.len() as u64);
            self.complain(|held_back| {
                tracing::warn!(
                    losses = ?facts.losses,
                    held_back,
                    "data that only the other version can express got lost in a conversion: an annotation below \
                     conversion.machine.sapcloud.io/ was edited or would have been too large"
                );
            });
        }
        if result == Outcome::Failure {
            self.complain(|held_back| {
                tracing::warn!(why = facts.failure, held_back, "objects could not be converted");
            });
        }
    }
}

/// A version as the metrics know it.
fn version_label(version: Option<ApiVersion>) -> VersionLabel {
    match version {
        Some(ApiVersion::V1alpha1) => VersionLabel::V1alpha1,
        Some(ApiVersion::V1beta1) => VersionLabel::V1beta1,
        None => VersionLabel::Other,
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
        let answer = convert(body);
        self.count_conversion(&answer.facts);
        Answer { status: answer.status, body: answer.body }
    }
}

fn plain(answer: ReviewAnswer) -> Answer {
    Answer { status: answer.status, body: answer.body }
}
