//! Admission and conversion reviews: from a request body to a status code and a response body.
//!
//! This module contains no HTTP, TLS or client code. The server calls [`Admission::review`] and [`convert`] with the body of a request and sends the
//! result back. The rules are in [`crate::validation`] and the defaults in [`crate::defaulting`]. This module reads the review, calls them, and
//! writes the answer in the format of the API server. [`manifests`] makes the webhook configurations. [`policies`] makes the policies that replace
//! the webhooks while the webhooks don't answer.
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

/// The state of a review after the first step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The answer is complete.
    Answered(ReviewAnswer),
    /// The answer depends on the stored owner of the object. The owner is not in the cache, or the cached owner doesn't allow the object.
    /// [`Admission::conclude`] answers.
    NeedsOwner(OwnerKey),
}

/// The source of the owner of an object.
#[derive(Clone, Copy)]
enum OwnerSource<'a> {
    /// The caches of the watches.
    Cached,
    /// A read from the API server. `None` if there is no owner, or the read failed.
    Read(Option<&'a Value>),
}

/// Answers a `ConversionReview` of `apiextensions.k8s.io/v1`. Every body gets an answer. If one object can't be converted, the whole review fails, as
/// the protocol demands.
pub fn convert(body: &[u8]) -> ConversionAnswer {
    convert_unless(&|| false, body)
}

/// Does what [`convert`] does, and ends before the next object when `given_up` returns that the client has stopped waiting.
pub fn convert_unless(given_up: &dyn Fn() -> bool, body: &[u8]) -> ConversionAnswer {
    conversion_review::answer(body, given_up)
}

/// Answers reviews. Shared by all connections.
pub struct Admission {
    policy: Policy,
    finalizers: FinalizerDefault,
    providers: Arc<dyn Providers>,
    references: Arc<dyn References>,
}

impl Admission {
    /// Creates an admission with these settings, without drivers and without other objects.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            finalizers: FinalizerDefault::Add,
            providers: Arc::new(NoProviders),
            references: Arc::new(NoReferences),
        }
    }

    /// Sets whether the defaults include our finalizer.
    #[must_use]
    pub fn with_finalizers(mut self, finalizers: FinalizerDefault) -> Self {
        self.finalizers = finalizers;
        self
    }

    /// Adds the rules of the drivers.
    #[must_use]
    pub fn with_providers(mut self, providers: Arc<dyn Providers>) -> Self {
        self.providers = providers;
        self
    }

    /// Adds the source of other objects.
    #[must_use]
    pub fn with_references(mut self, references: Arc<dyn References>) -> Self {
        self.references = references;
        self
    }

    /// Answers an `AdmissionReview` of `admission.k8s.io/v1` from the caches. Every body gets an answer. The caller must catch panics, which are
    /// defects of a rule or a driver.
    pub fn review(&self, endpoint: Endpoint, body: &[u8]) -> ReviewAnswer {
        match self.begin(endpoint, body) {
            Progress::Answered(answer) => answer,
            Progress::NeedsOwner(_) => self.conclude(endpoint, body, None),
        }
    }

    /// Does what [`Self::review`] does, but stops when the owner must be read first.
    pub fn begin(&self, endpoint: Endpoint, body: &[u8]) -> Progress {
        self.proceed(endpoint, body, OwnerSource::Cached)
    }

    /// Answers a review that [`Self::begin`] could not answer. `owner` is the owner that was read for it.
    pub fn conclude(&self, endpoint: Endpoint, body: &[u8], owner: Option<&Value>) -> ReviewAnswer {
        match self.proceed(endpoint, body, OwnerSource::Read(owner)) {
            Progress::Answered(answer) => answer,
            Progress::NeedsOwner(_) => answer::internal_error(&Refusal::plain("an owner was asked for twice")),
        }
    }

    fn proceed(&self, endpoint: Endpoint, body: &[u8], owner: OwnerSource<'_>) -> Progress {
        if weight::is_too_heavy(body) {
            let refusal = Refusal::plain(weight::too_heavy("the AdmissionReview"));
            return Progress::Answered(answer::too_large(&refusal));
        }
        match review::read(body) {
            Ok(request) => self.answer(endpoint, &request, owner),
            Err(refusal) => Progress::Answered(answer::bad_request(&refusal)),
        }
    }

    fn answer(&self, endpoint: Endpoint, request: &Request<'_>, owner: OwnerSource<'_>) -> Progress {
        let answer = match (endpoint, request.target(), request.change()) {
            (Endpoint::Mutate, Target::Object(question), Ok(change)) => self.mutate(request, question, change),
            (Endpoint::Validate, Target::Object(question), Ok(change)) => {
                return self.validate(request, question, change, owner);
            }
            (Endpoint::Validate, Target::Object(_), Err(refusal)) => answer::bad_request(&refusal),
            (Endpoint::ValidateStatus, Target::Status(question), Ok(change)) => {
                self.warn_about_status(request, question, change)
            }
            // Defaults and warnings never refuse a request. Validation reports its problems.
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

    /// Checks an object. If it is refused and has an owner, checks it again together with the cached owner, then with the stored owner.
    fn validate(
        &self,
        request: &Request<'_>,
        question: Question,
        change: Change<'_>,
        owner: OwnerSource<'_>,
    ) -> Progress {
        let asked = self.validation_request(request, question, change);
        let mut found = validate(&asked);
        if found.denies()
            && let Some(key) = controlling_owner(&asked)
        {
            let remembered = match owner {
                OwnerSource::Cached => self.references.owner(&key),
                OwnerSource::Read(_) => None,
            };
            let known = if let OwnerSource::Read(read) = owner { read } else { remembered.as_ref() };
            if let Some(known) = known {
                found = validate_child(&asked, &Json::from(known));
            }
            if found.denies() && matches!(owner, OwnerSource::Cached) {
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
