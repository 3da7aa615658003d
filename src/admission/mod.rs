//! Admission and conversion reviews: bytes in, a status code and bytes out.
//!
//! Nothing here knows HTTP, TLS or a client; the server calls [`Admission::review`] and [`convert`] with a
//! request's body and sends back what it gets. What is right or wrong is decided in [`crate::api::validation`] and
//! [`crate::api::defaulting`]; this room reads the question, asks, and writes the answer as the API server wants it.
//! [`manifests`] makes the webhook configurations that bring the questions here, [`policies`] what stands in while nobody
//! answers.
//! Source: spec/api-and-admission §4, §8.5, §9.

mod answer;
mod conversion_review;
mod drivers;
pub mod manifests;
pub mod policies;
mod refusal;
mod review;
#[cfg(test)]
mod tests;
mod weight;

use std::sync::Arc;

pub use self::{
    answer::{ReviewAnswer, ReviewFacts, Verdict},
    conversion_review::{ConversionAnswer, ConversionFacts},
    drivers::RegisteredDrivers,
    review::Operation,
};
use self::{
    refusal::Refusal,
    review::{Question, Request, Target},
};
use crate::api::{
    defaulting::{DefaultingRequest, FinalizerDefault, default_patch},
    validation::{
        Change, NoProviders, NoReferences, Policy, Providers, References, User, ValidationRequest, status_findings,
        validate,
    },
};

/// Which webhook is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// Defaults.
    Mutate,
    /// Rules over the four kinds.
    Validate,
    /// Warnings about status writes; not installed by default.
    ValidateStatus,
}

impl Endpoint {
    /// All endpoints.
    pub const ALL: [Self; 3] = [Self::Mutate, Self::Validate, Self::ValidateStatus];

    /// The path that the webhook configurations name.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Mutate => "/mutate",
            Self::Validate => "/validate",
            Self::ValidateStatus => "/validate-status",
        }
    }

    /// The endpoint at a path.
    pub fn at(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.path() == path)
    }
}

/// The path of conversion reviews.
pub const CONVERSION_PATH: &str = "/convert";

/// Answers a `ConversionReview` of `apiextensions.k8s.io/v1`. Any bytes are answered. One object that cannot be converted
/// fails the whole review, as the API server wants it.
pub fn convert(body: &[u8]) -> ConversionAnswer {
    conversion_review::answer(body)
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

    /// Answers an `AdmissionReview` of `admission.k8s.io/v1`. Any bytes are answered. A panic (a defect in a rule, or in a
    /// driver's) is the caller's to catch.
    pub fn review(&self, endpoint: Endpoint, body: &[u8]) -> ReviewAnswer {
        if weight::is_too_heavy(body) {
            return answer::too_large(&Refusal::plain(weight::too_heavy("the AdmissionReview")));
        }
        match review::read(body) {
            Ok(request) => self.answer(endpoint, &request),
            Err(refusal) => answer::bad_request(&refusal),
        }
    }

    fn answer(&self, endpoint: Endpoint, request: &Request<'_>) -> ReviewAnswer {
        match (endpoint, request.target(), request.change()) {
            (Endpoint::Mutate, Target::Object(question), Ok(change)) => self.mutate(request, question, change),
            (Endpoint::Validate, Target::Object(question), Ok(change)) => self.validate(request, question, change),
            (Endpoint::Validate, Target::Object(_), Err(refusal)) => answer::bad_request(&refusal),
            (Endpoint::Validate | Endpoint::ValidateStatus, Target::Status(question), Ok(change)) => {
                self.warn_about_status(request, question, change)
            }
            // Neither defaults nor warnings may stand in the way; what is wrong will be said by validation.
            (Endpoint::Mutate | Endpoint::ValidateStatus, _, _)
            | (Endpoint::Validate, Target::Status(_) | Target::Foreign, _) => answer::allow(request, endpoint),
        }
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

    fn validate(&self, request: &Request<'_>, question: Question, change: Change<'_>) -> ReviewAnswer {
        let found = validate(&self.validation_request(request, question, change));
        answer::judged(request, Endpoint::Validate, question, &found)
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
