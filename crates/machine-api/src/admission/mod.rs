//! Admission and conversion reviews: bytes in, a status code and bytes out.
//!
//! Nothing here knows HTTP, TLS or a client; the server calls [`Admission::review`] and [`convert`] with a
//! request's body and sends back what it gets. What is right or wrong is decided in [`crate::validation`] and
//! [`crate::defaulting`]; this room reads the question, asks, and writes the answer as the API server wants it.
//! [`manifests`] makes the webhook configurations that bring the questions here, [`policies`] what stands in while nobody
//! answers.
//! Source: spec/api-and-admission §4, §8.5, §9.

mod answer;
mod conversion_review;
pub mod manifests;
pub mod policies;
mod refusal;
mod review;
#[cfg(test)]
mod step_tests;
#[cfg(test)]
mod tests;
mod weight;

use std::sync::Arc;

use serde_json::Value;

pub use self::{
    answer::{ANSWER_MAX, ReviewAnswer, ReviewFacts, Verdict},
    conversion_review::{ConversionAnswer, ConversionFacts},
    review::Operation,
};
use self::{
    refusal::Refusal,
    review::{Question, Request, Target},
};
pub use crate::webhooks::Endpoint;
use crate::{
    defaulting::{DefaultingRequest, FinalizerDefault, default_patch},
    validation::{
        Change, NoProviders, NoReferences, OwnerKey, Policy, Providers, References, User, ValidationRequest,
        controlling_owner, status_findings, validate, validate_child,
    },
};
use kube_values::json::Json;

/// How far an answer has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is there.
    Answered(ReviewAnswer),
    /// It depends on this owner of the object as it is stored now, which what is known here does not show, or not as the
    /// object has it. [`Admission::conclude`] answers.
    NeedsOwner(OwnerKey),
}

/// What is known of the owner of an object.
#[derive(Clone, Copy)]
enum OwnerSeen<'a> {
    /// What the watches show.
    Remembered,
    /// What was just read; nothing if there is none, or none could be read.
    Read(Option<&'a Value>),
}

/// Answers a `ConversionReview` of `apiextensions.k8s.io/v1`. Any bytes are answered. One object that cannot be converted
/// fails the whole review, as the API server wants it.
pub fn convert(body: &[u8]) -> ConversionAnswer {
    convert_unless(&|| false, body)
}

/// As [`convert`], and ends before the next object once `given_up` says that nobody waits for the answer any more.
pub fn convert_unless(given_up: &dyn Fn() -> bool, body: &[u8]) -> ConversionAnswer {
    conversion_review::answer(body, given_up)
}

/// Answers reviews. Cheap to clone parts of, shared by all connections.
pub struct Admission {
    policy: Policy,
    finalizers: FinalizerDefault,
    providers: Arc<dyn Providers>,
    references: Arc<dyn References>,
}

impl Admission {
    /// Admission under these settings. Nothing is known of drivers and other objects yet.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            finalizers: FinalizerDefault::Add,
            providers: Arc::new(NoProviders),
            references: Arc::new(NoReferences),
        }
    }

    /// Whether our finalizer is among the defaults.
    #[must_use]
    pub fn with_finalizers(mut self, finalizers: FinalizerDefault) -> Self {
        self.finalizers = finalizers;
        self
    }

    /// With the drivers' own rules.
    #[must_use]
    pub fn with_providers(mut self, providers: Arc<dyn Providers>) -> Self {
        self.providers = providers;
        self
    }

    /// With knowledge of other objects.
    #[must_use]
    pub fn with_references(mut self, references: Arc<dyn References>) -> Self {
        self.references = references;
        self
    }

    /// Answers an `AdmissionReview` of `admission.k8s.io/v1` by what is known here. Any bytes are answered. A panic (a defect
    /// in a rule, or in a driver's) is the caller's to catch.
    pub fn review(&self, endpoint: Endpoint, body: &[u8]) -> ReviewAnswer {
        match self.begin(endpoint, body) {
            Progress::Answered(answer) => answer,
            Progress::NeedsOwner(_) => self.conclude(endpoint, body, None),
        }
    }

    /// The same, but stops where another object must be read first.
    pub fn begin(&self, endpoint: Endpoint, body: &[u8]) -> Progress {
        self.proceed(endpoint, body, OwnerSeen::Remembered)
    }

    /// The same for a review that [`Self::begin`] could not answer, with the owner that was read since.
    pub fn conclude(&self, endpoint: Endpoint, body: &[u8], owner: Option<&Value>) -> ReviewAnswer {
        match self.proceed(endpoint, body, OwnerSeen::Read(owner)) {
            Progress::Answered(answer) => answer,
            Progress::NeedsOwner(_) => answer::internal_error(&Refusal::plain("an owner was asked for twice")),
        }
    }

    fn proceed(&self, endpoint: Endpoint, body: &[u8], owner: OwnerSeen<'_>) -> Progress {
        if weight::is_too_heavy(body) {
            let refusal = Refusal::plain(weight::too_heavy("the AdmissionReview"));
            return Progress::Answered(answer::too_large(&refusal));
        }
        match review::read(body) {
            Ok(request) => self.answer(endpoint, &request, owner),
            Err(refusal) => Progress::Answered(answer::bad_request(&refusal)),
        }
    }

    fn answer(&self, endpoint: Endpoint, request: &Request<'_>, owner: OwnerSeen<'_>) -> Progress {
        let answer = match (endpoint, request.target(), request.change()) {
            (Endpoint::Mutate, Target::Object(question), Ok(change)) => self.mutate(request, question, change),
            (Endpoint::Validate, Target::Object(question), Ok(change)) => {
                return self.validate(request, question, change, owner);
            }
            (Endpoint::Validate, Target::Object(_), Err(refusal)) => answer::bad_request(&refusal),
            (Endpoint::ValidateStatus, Target::Status(question), Ok(change)) => {
                self.warn_about_status(request, question, change)
            }
            // Neither defaults nor warnings may stand in the way; what is wrong will be said by validation.
            (Endpoint::Mutate | Endpoint::ValidateStatus, _, _)
            | (Endpoint::Validate, Target::Status(_) | Target::Foreign, _) => answer::allow(request, endpoint),
        };
        Progress::Answered(answer)
    }

    fn mutate(&self, request: &Request<'_>, question: Question, change: Change<'_>) -> ReviewAnswer {
        let patch = default_patch(&DefaultingRequest {
            kind: question.kind,
            version: question.version,
            change,
            namespace: &request.namespace,
            finalizers: self.finalizers,
        });
        answer::patched(request, question, &patch)
    }

    /// A refused child is judged once more beside its owner, first as it is known here, then as it is stored now.
    fn validate(
        &self,
        request: &Request<'_>,
        question: Question,
        change: Change<'_>,
        owner: OwnerSeen<'_>,
    ) -> Progress {
        let asked = self.validation_request(request, question, change);
        let mut found = validate(&asked);
        if found.denies()
            && let Some(key) = controlling_owner(&asked)
        {
            let remembered = match owner {
                OwnerSeen::Remembered => self.references.owner(&key),
                OwnerSeen::Read(_) => None,
            };
            let known = if let OwnerSeen::Read(read) = owner { read } else { remembered.as_ref() };
            if let Some(known) = known {
                found = validate_child(&asked, &Json::from(known));
            }
            if found.denies() && matches!(owner, OwnerSeen::Remembered) {
                return Progress::NeedsOwner(key);
            }
        }
        Progress::Answered(answer::judged(request, Endpoint::Validate, question, &found))
    }

    fn warn_about_status(&self, request: &Request<'_>, question: Question, change: Change<'_>) -> ReviewAnswer {
        let found = status_findings(&self.validation_request(request, question, change));
        answer::judged(request, Endpoint::ValidateStatus, question, &found)
    }

    fn validation_request<'a>(
        &'a self,
        request: &'a Request<'a>,
        question: Question,
        change: Change<'a>,
    ) -> ValidationRequest<'a> {
        ValidationRequest {
            kind: question.kind,
            version: question.version,
            change,
            namespace: &request.namespace,
            user: User { name: &request.user_info.username, groups: &request.user_info.groups },
            policy: &self.policy,
            providers: &*self.providers,
            references: &*self.references,
        }
    }
}
