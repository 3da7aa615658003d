//! When the self-managed certificates are made, renewed and retired.
//!
//! Pure rules. An authority is rotated in three steps, always in this order: (i) the new authority is added to the bundle and
//! to every `caBundle`; (ii) when every `caBundle` has contained it for a while, it signs a new serving certificate; (iii)
//! when no replica can serve a certificate of the old authority any more, the old authority is removed from the bundle. Each
//! call of [`plan`] returns one step, and [`due`] the moment for it. Source: spec/api-and-admission §11.4.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::{
    authority::{Authority, CLOCK_SKEW, CertSecret, MAX_AUTHORITIES},
    material::{Certificate, MaterialError},
};

/// A step that can wait does so for a random part of this, so that replicas rarely race.
const SPREAD: Duration = Duration::from_secs(15);
/// The same for a step that should not wait.
const SHORT_SPREAD: Duration = Duration::from_millis(300);

/// The names and the times that the rules use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanSettings {
    /// DNS names and IP addresses for which the serving certificate must be valid.
    pub names: BTreeSet<String>,
    /// Life of an authority; 10 years.
    pub authority_lifetime: SignedDuration,
    /// Life of a serving certificate; 1 year.
    pub serving_lifetime: SignedDuration,
    /// How long every `caBundle` must have contained a new authority before the authority signs; 10 minutes.
    pub publication_wait: SignedDuration,
    /// How long an old authority stays trusted after the serving certificate was replaced; 1 day. Every replica that can reach
    /// its API server loads the new certificate long before that, and connections last 10 minutes.
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

/// Whether every `caBundle` that this process manages contains the whole bundle of the Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publication {
    /// Some don't contain it, or this is not known.
    Incomplete,
    /// All have contained it since this moment.
    CompleteSince(Timestamp),
}

/// The bundle that every `caBundle` contains, and since when. The report names the bundle, because a report about an older
/// bundle says nothing about an authority that was just added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The bundle, as PEM.
    pub bundle: Arc<str>,
    /// The moment since which all contain it.
    pub since: Timestamp,
}

impl Publication {
    /// The meaning of a report for the present content of the Secret.
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
    /// Less than a third of the newest authority's life is left.
    Ageing,
    /// The key of the newest authority is missing.
    KeyMissing,
    /// The newest authority is not valid yet, because it was made by a process whose clock was ahead.
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
    /// Make a new authority and a new serving certificate, because there is no usable authority.
    Create,
    /// Step (i): put a new authority in front of the bundle.
    AddAuthority(AuthorityReason),
    /// Make a serving certificate. With a new signer, this is step (ii) of a rotation.
    RenewServing {
        /// The index of the authority that signs.
        signer: usize,
        /// Names of the new certificate.
        names: BTreeSet<String>,
        /// Why.
        reason: RenewReason,
    },
    /// Step (iii): remove the authorities with these indexes, because they are not needed any more.
    DropAuthorities(Vec<usize>),
}

impl fmt::Display for CertPlan {
    /// For log lines, without the names of a certificate.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep { .. } => f.write_str("keep"),
            Self::Create => f.write_str("create"),
            Self::AddAuthority(reason) => write!(f, "add authority ({reason:?})"),
            Self::RenewServing { reason, .. } => write!(f, "renew serving certificate ({reason:?})"),
            Self::DropAuthorities(places) => write!(f, "drop {} old authorities", places.len()),
        }
    }
}

/// A step, and the moment at which it is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// The step.
    pub step: CertPlan,
    /// The moment.
    pub at: Instant,
}

/// What a pass over the Secret decides from.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// The content of the Secret. If the Secret is lost or unusable, its last usable content.
    pub content: Option<&'a CertSecret>,
    /// Whether the Secret is lost or unusable.
    pub is_lost: bool,
    /// Whether every `caBundle` contains the bundle of the content.
    pub published: Publication,
    /// Whether this host's clock differs too much from the API server's clock.
    pub clocks_differ: bool,
    /// The step that the previous pass scheduled.
    pub scheduled: Option<&'a Scheduled>,
    /// The wall clock.
    pub now: Timestamp,
    /// The monotonic clock.
    pub instant: Instant,
}

/// What a pass over the Secret does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing before this moment, unless something changes.
    Nothing {
        /// When to look again.
        until: Timestamp,
    },
    /// Write the last usable content back, so that callers go on to trust it.
    Restore,
    /// Nothing while the clocks differ: callers judge a certificate by the API server's clock.
    AfterClocksAgree(CertPlan),
    /// Take the step at its moment.
    Take(Scheduled),
}

/// Decides what a pass does. `draw` returns 128 random bits.
pub fn due(seen: &Observation<'_>, settings: &PlanSettings, draw: impl FnOnce() -> [u8; 16]) -> Due {
    let step = plan(seen.content, seen.published, seen.now, settings);
    // The Secret is restored before any other step, because a replica that finds nothing usable makes a new authority. Content that
    // is not valid any more is not restored.
    if seen.is_lost && step != CertPlan::Create {
        return Due::Restore;
    }
    if let CertPlan::Keep { until } = step {
        return Due::Nothing { until };
    }
    if seen.clocks_differ {
        return Due::AfterClocksAgree(step);
    }
    let within = |spread: Duration| seen.instant + spread.mul_f64(f64::from(draw()[1]) / 256.0);
    let at = match (&step, seen.scheduled) {
        (CertPlan::Create, _) => seen.instant,
        // The next pass does not begin the wait again.
        (step, Some(scheduled)) if scheduled.step == *step => scheduled.at,
        // A caller can't connect until the step is done.
        (CertPlan::RenewServing { reason: RenewReason::NameMissing | RenewReason::Unusable, .. }, _) => {
            within(SHORT_SPREAD)
        }
        _ => within(SPREAD),
    };
    Due::Take(Scheduled { step, at })
}

/// Decides the next step. `secret` is the content of the Secret, or `None` if there is no content that can be read.
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
    // An unusable certificate is replaced before an authority is renewed, because callers wait for it. It is replaced even
    // without a trusted signer, because the result can't be worse.
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

/// Whether a certificate is valid at this moment, for callers with the right time. A certificate begins [`CLOCK_SKEW`] before
/// it is made. So a certificate that has not begun yet was made by a process whose clock was ahead.
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

/// The moment at which a third of a certificate's life is left. The life counts from the moment when it was made, and not from
/// `not_before`, which is earlier for clocks that are behind.
fn renewal_time(certificate: &Certificate) -> Timestamp {
    let made = certificate.not_before + CLOCK_SKEW;
    certificate.not_after - certificate.not_after.duration_since(made).max(SignedDuration::ZERO) / 3
}

/// The index of the newest authority that can sign and that every caller trusts. The newest authority of all is trusted if it
/// is the only one, or if it has been published for long enough. All others were published before it.
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

/// A renewal for a missing name keeps the other names. Otherwise replicas with different names would replace each other's
/// certificate for ever. Any other renewal uses only our names, so that old names disappear in time.
fn names_of_renewal(secret: &CertSecret, reason: RenewReason, settings: &PlanSettings) -> BTreeSet<String> {
    match reason {
        RenewReason::NameMissing => settings.names.union(&secret.serving.leaf().names).cloned().collect(),
        RenewReason::Unusable | RenewReason::Ageing | RenewReason::NewAuthority => settings.names.clone(),
    }
}

/// The authorities that are older than the signer and that are either expired or can have no certificate in use any more.
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

/// The content of the Secret after a step. `None` if the step changes nothing. Each call of `serial` returns 128 random bits.
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
