//! When the self-managed certificates are made, renewed and retired.
//!
//! Pure rules. An authority is rotated in three steps, never out of order: (i) the new one is added to the bundle and to
//! every `caBundle`; (ii) once all of them were seen to hold it for a while, the serving certificate is signed with it;
//! (iii) once no replica can serve a certificate of the old one any more, the old one leaves the bundle. Each call of
//! [`plan`] answers one step. Source: spec/api-and-admission §11.4.

use std::{collections::BTreeSet, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::{
    authority::{Authority, CLOCK_SKEW, CertSecret, MAX_AUTHORITIES},
    material::{Certificate, MaterialError},
};

/// How long things last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanSettings {
    /// DNS names and IP addresses the serving certificate must be valid for.
    pub names: BTreeSet<String>,
    /// Life of an authority; 10 years.
    pub authority_lifetime: SignedDuration,
    /// Life of a serving certificate; 1 year.
    pub serving_lifetime: SignedDuration,
    /// How long every `caBundle` must have held a new authority before it signs; 10 minutes.
    pub publication_wait: SignedDuration,
    /// How long after the serving certificate was replaced an old authority stays trusted; 1 day. Every replica that can
    /// reach its API server has loaded the new certificate long before, and connections live 10 minutes.
    pub retirement_wait: SignedDuration,
}

impl PlanSettings {
    /// The lifetimes of the specification.
    pub fn for_names(names: BTreeSet<String>) -> Self {
        Self {
            names,
            authority_lifetime: SignedDuration::from_hours(10 * 365 * 24),
            serving_lifetime: SignedDuration::from_hours(365 * 24),
            publication_wait: SignedDuration::from_mins(10),
            retirement_wait: SignedDuration::from_hours(24),
        }
    }

    /// The same with further names.
    #[must_use]
    pub fn including(&self, names: &BTreeSet<String>) -> Self {
        Self { names: self.names.union(names).cloned().collect(), ..self.clone() }
    }
}

/// Whether every `caBundle` in our care holds the Secret's whole bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publication {
    /// Some don't, or it is not known.
    Incomplete,
    /// All do, and have since this moment.
    CompleteSince(Timestamp),
}

/// Which bundle every `caBundle` in our care holds, and since when. The bundle is part of it: what is known of an older
/// bundle says nothing about the authority that was just added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The bundle, as PEM.
    pub bundle: Arc<str>,
    /// Since when all hold it.
    pub since: Timestamp,
}

impl Publication {
    /// What a report means for the Secret's present content.
    pub fn of(published: Option<&Published>, secret: Option<&CertSecret>) -> Self {
        match (published, secret) {
            (Some(published), Some(secret)) if *published.bundle == *secret.bundle_pem() => {
                Self::CompleteSince(published.since)
            }
            _ => Self::Incomplete,
        }
    }
}

/// Why a serving certificate is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewReason {
    /// It is expired or not valid yet, or no authority of the bundle that is valid now signed it.
    Unusable,
    /// It lacks a name that it must be valid for.
    NameMissing,
    /// Less than a third of its life is left.
    Ageing,
    /// A newer authority is trusted everywhere.
    NewAuthority,
}

/// Why an authority is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorityReason {
    /// Less than a third of the newest one's life is left.
    Ageing,
    /// The newest one's key is gone.
    KeyMissing,
    /// The newest one is not valid yet: it was made by a clock that was ahead.
    NotBegun,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertPlan {
    /// Nothing to do before this moment, unless something changes.
    Keep {
        /// When to look again.
        until: Timestamp,
    },
    /// Make an authority and a serving certificate from scratch: there is nothing that could be trusted.
    Create,
    /// Step (i): put a new authority in front of the bundle.
    AddAuthority(AuthorityReason),
    /// Make a serving certificate; step (ii) of a rotation when the signer is new.
    RenewServing {
        /// Place of the authority that signs.
        signer: usize,
        /// Names of the new certificate.
        names: BTreeSet<String>,
        /// Why.
        reason: RenewReason,
    },
    /// Step (iii): authorities at these places are not needed any more.
    DropAuthorities(Vec<usize>),
}

/// Decides the next step for the Secret's content; `None` when there is none that can be read.
pub fn plan(secret: Option<&CertSecret>, published: Publication, now: Timestamp, settings: &PlanSettings) -> CertPlan {
    let Some(secret) = secret else { return CertPlan::Create };
    let Some(newest) = secret.authorities.first() else { return CertPlan::Create };
    if now >= newest.certificate.not_after || !secret.authorities.iter().any(|a| is_valid(&a.certificate, now)) {
        return CertPlan::Create;
    }
    let signed_by = secret.signer();
    let trusted = newest_trusted(secret, published, now, settings);
    let due = serving_is_due(secret, signed_by, trusted, now, settings);
    let renewal = |signer, reason| {
        let names = names_of_renewal(secret, reason, settings);
        CertPlan::RenewServing { signer, names, reason }
    };
    // An unusable certificate goes before an authority that is merely due: callers wait for it. Without a trusted signer it is
    // replaced all the same: it can't get worse.
    if due == Some(RenewReason::Unusable)
        && let Some(signer) = trusted.or_else(|| secret.authorities.iter().position(|a| can_sign(a, now)))
    {
        return renewal(signer, RenewReason::Unusable);
    }
    if let Some(reason) = authority_is_due(newest, now) {
        return CertPlan::AddAuthority(reason);
    }
    if let (Some(reason), Some(signer)) = (due, trusted) {
        return renewal(signer, reason);
    }
    let dispensable = dispensable_authorities(secret, signed_by, now, settings);
    if !dispensable.is_empty() {
        return CertPlan::DropAuthorities(dispensable);
    }
    CertPlan::Keep { until: next_look(secret, published, now, settings) }
}

/// Whether a certificate is valid at this moment, for callers with the right time. It was dated back by [`CLOCK_SKEW`] when it
/// was made, so that one that begins later was made by a clock that was ahead.
fn is_valid(certificate: &Certificate, now: Timestamp) -> bool {
    certificate.not_before <= now && now < certificate.not_after
}

fn can_sign(authority: &Authority, now: Timestamp) -> bool {
    authority.key.is_some() && is_valid(&authority.certificate, now)
}

fn authority_is_due(newest: &Authority, now: Timestamp) -> Option<AuthorityReason> {
    if newest.key.is_none() {
        Some(AuthorityReason::KeyMissing)
    } else if now < newest.certificate.not_before {
        Some(AuthorityReason::NotBegun)
    } else if now >= renewal_time(&newest.certificate) {
        Some(AuthorityReason::Ageing)
    } else {
        None
    }
}

/// The moment at which a third of a certificate's life is left, which began when it was made: before that it is valid only
/// for clocks that are behind.
fn renewal_time(certificate: &Certificate) -> Timestamp {
    let made = certificate.not_before + CLOCK_SKEW;
    certificate.not_after - certificate.not_after.duration_since(made).max(SignedDuration::ZERO) / 3
}

/// Place of the newest authority that can sign and that every caller trusts. The newest one is trusted when it is the
/// only one, or when it was published long enough; those behind it were published before it.
fn newest_trusted(
    secret: &CertSecret,
    published: Publication,
    now: Timestamp,
    settings: &PlanSettings,
) -> Option<usize> {
    let newest_is_trusted = secret.authorities.len() == 1
        || matches!(published, Publication::CompleteSince(since) if now >= since + settings.publication_wait);
    let first = usize::from(!newest_is_trusted);
    let able = |authority: &Authority| can_sign(authority, now);
    secret.authorities.iter().skip(first).position(able).map(|place| place + first)
}

fn serving_is_due(
    secret: &CertSecret,
    signed_by: Option<usize>,
    trusted: Option<usize>,
    now: Timestamp,
    settings: &PlanSettings,
) -> Option<RenewReason> {
    let leaf = secret.serving.leaf();
    let signer_lives =
        signed_by.and_then(|place| secret.authorities.get(place)).is_some_and(|a| is_valid(&a.certificate, now));
    if !signer_lives || !is_valid(leaf, now) {
        Some(RenewReason::Unusable)
    } else if !settings.names.is_subset(&leaf.names) {
        Some(RenewReason::NameMissing)
    } else if trusted < signed_by && trusted.is_some() {
        Some(RenewReason::NewAuthority)
    } else if now >= renewal_time(leaf) {
        Some(RenewReason::Ageing)
    } else {
        None
    }
}

/// A renewal for a missing name keeps the other names: replicas that were given different ones would else replace each
/// other's certificate for ever. One for age keeps none but ours, so that old names go in time.
fn names_of_renewal(secret: &CertSecret, reason: RenewReason, settings: &PlanSettings) -> BTreeSet<String> {
    match reason {
        RenewReason::NameMissing => settings.names.union(&secret.serving.leaf().names).cloned().collect(),
        RenewReason::Unusable | RenewReason::Ageing | RenewReason::NewAuthority => settings.names.clone(),
    }
}

/// Older authorities than the signer's, once no certificate of theirs can be in use, and those that are expired.
fn dispensable_authorities(
    secret: &CertSecret,
    signed_by: Option<usize>,
    now: Timestamp,
    settings: &PlanSettings,
) -> Vec<usize> {
    let Some(signer) = signed_by else { return Vec::new() };
    let replaced_everywhere = now >= secret.serving.leaf().not_before + CLOCK_SKEW + settings.retirement_wait;
    let dispensable = |place: usize, authority: &Authority| {
        place > signer && (replaced_everywhere || now >= authority.certificate.not_after)
    };
    secret.authorities.iter().enumerate().filter(|(place, a)| dispensable(*place, a)).map(|(place, _)| place).collect()
}

/// The next moment at which time alone changes the plan.
fn next_look(secret: &CertSecret, published: Publication, now: Timestamp, settings: &PlanSettings) -> Timestamp {
    let leaf = secret.serving.leaf();
    let mut moments = vec![renewal_time(leaf), leaf.not_after];
    moments.extend(secret.authorities.iter().map(|authority| renewal_time(&authority.certificate)));
    moments.extend(secret.authorities.iter().map(|authority| authority.certificate.not_before));
    if secret.authorities.len() > 1 {
        moments.push(leaf.not_before + CLOCK_SKEW + settings.retirement_wait);
        if let Publication::CompleteSince(since) = published {
            moments.push(since + settings.publication_wait);
        }
    }
    let latest = now + SignedDuration::from_hours(24);
    moments.into_iter().filter(|moment| *moment > now).min().unwrap_or(latest).min(latest)
}

/// Carries a step out on values: the content that the Secret has after it. `None` when there is nothing to do.
/// `serial` answers 128 random bits at each call.
pub fn carry_out(
    plan: &CertPlan,
    secret: Option<CertSecret>,
    now: Timestamp,
    settings: &PlanSettings,
    mut serial: impl FnMut() -> [u8; 16],
) -> Result<Option<CertSecret>, MaterialError> {
    match (plan, secret) {
        (CertPlan::Keep { .. }, _) => Ok(None),
        (CertPlan::Create, _) | (_, None) => {
            let authority = Authority::generate(now, settings.authority_lifetime, serial())?;
            let serving = authority.issue(&settings.names, now, settings.serving_lifetime, serial())?;
            Ok(Some(CertSecret { authorities: vec![authority], serving }))
        }
        (CertPlan::AddAuthority(_), Some(mut secret)) => {
            let authority = Authority::generate(now, settings.authority_lifetime, serial())?;
            secret.authorities.insert(0, authority);
            secret.authorities.truncate(MAX_AUTHORITIES);
            Ok(Some(secret))
        }
        (CertPlan::RenewServing { signer, names, .. }, Some(mut secret)) => {
            let Some(authority) = secret.authorities.get(*signer) else { return Ok(None) };
            secret.serving = authority.issue(names, now, settings.serving_lifetime, serial())?;
            Ok(Some(secret))
        }
        (CertPlan::DropAuthorities(places), Some(mut secret)) => {
            let mut place = 0;
            secret.authorities.retain(|_| {
                place += 1;
                !places.contains(&(place - 1))
            });
            Ok(Some(secret))
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
