//! Creates the instance of a machine, or goes on with an earlier creation.
//!
//! Names are not unique in ECS, and its answers do not show client tokens. So a creation first looks for an instance with the machine's name and tags.
//! The client token prevents a second instance while ECS does not show the first one, and the state of the machine says since when one may exist.

use std::time::Duration;

use cloud_client::FailureKind;
use jiff::Timestamp;
use machine_driver::{Code, CreatedVm, Instant, SecretData, Status};

use crate::{
    actions::{Instance, InstanceQuery},
    ecs::{Ecs, Session},
    errors,
    launch::{Launch, run_instances},
    lookup::{self, VISIBILITY_TIMEOUT},
    state::Kept,
    subject::Subject,
};

/// The most client tokens that one call tries.
const MOST_ATTEMPTS: u32 = 4;
/// The shortest and the longest pause between two requests for a new instance.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A call ends this long before its deadline, so that its answer is not lost.
const MARGIN: Duration = Duration::from_secs(5);

/// The creation of an instance.
pub struct Creation<'a> {
    pub subject: &'a Subject<'a>,
    pub ecs: &'a Ecs,
    /// The session in the region of the class.
    pub session: Session<'a>,
    pub name: &'a str,
}

/// A request for an instance.
struct Asking {
    /// When an instance was asked for with the same client token before. It is unknown what that request has done.
    earlier: Option<Timestamp>,
    /// The state of the machine if it is unknown what the request has done.
    pending: Kept,
}

impl Asking {
    /// The state after a request that has done nothing.
    fn not_sent(&self) -> Kept {
        let account = self.pending.account.clone().filter(|_| self.earlier.is_some());
        Kept { asked: self.earlier, account, ..self.pending.clone() }
    }

    /// The state after a refusal: the next request has another token, because ECS may repeat the refusal for this one. While an earlier request with
    /// this token may have launched an instance, the token stays, so that there is no second instance.
    fn refused(&self) -> Kept {
        if self.earlier.is_some_and(|asked| lookup::is_recent(asked, Timestamp::now())) {
            return self.not_sent();
        }
        let attempt = self.pending.attempt.saturating_add(1);
        Kept { asked: None, account: None, attempt, ..self.pending.clone() }
    }
}

/// The end of one attempt.
enum Attempt {
    /// The machine has this instance.
    Created(Instance),
    /// The client token belongs to an earlier instance, which is gone.
    Outdated,
}

impl Creation<'_> {
    /// Creates the instance.
    ///
    /// # Errors
    /// The failure, with the state for the next call if there may be an instance later.
    pub async fn run(self) -> Result<CreatedVm, Status> {
        if let Some(created) = self.elsewhere().await? {
            return Ok(created);
        }
        if let Some(instance) = self.existing(&self.session).await? {
            return Ok(self.adopted(&self.session, &instance).await);
        }
        let kept = self.subject.kept.as_ref().filter(|kept| kept.region == self.session.region);
        let account = self.session.account().await;
        if let Some(made_in) = kept.filter(|kept| kept.asked.is_some()).and_then(|kept| kept.account.as_deref()) {
            // The credentials of another account would launch a second instance with the same token.
            lookup::check_account(made_in, account.as_deref())?;
        }
        let first = kept.map_or(0, |kept| kept.attempt);
        for attempt in first..first.saturating_add(MOST_ATTEMPTS) {
            let earlier = kept.filter(|kept| kept.attempt == attempt).and_then(|kept| kept.asked);
            let pending = self.kept(&self.session, Some(Timestamp::now()), account.clone(), attempt);
            let asking = Asking { earlier, pending };
            if let Attempt::Created(instance) = self.attempt(&asking).await? {
                let vm = lookup::identity(self.session.region, &instance);
                return Ok(CreatedVm { vm, last_known_state: Some(asking.pending.state()) });
            }
        }
        let status = Status::new(Code::Internal, "the instances of all earlier creations of this machine are gone");
        let next = first.saturating_add(MOST_ATTEMPTS);
        Err(keeping(status, &self.kept(&self.session, None, None, next)))
    }

    /// The machine's instance in the region of an earlier creation, if the class names another region now.
    ///
    /// # Errors
    /// `Unavailable` while that instance may still be shown.
    async fn elsewhere(&self) -> Result<Option<CreatedVm>, Status> {
        let Some(kept) = self.subject.kept.as_ref().filter(|kept| kept.asked_outside(self.session.region)) else {
            return Ok(None);
        };
        let there = self.ecs.session(self.session.cx, &kept.region, &self.subject.credentials);
        if let Some(instance) = self.existing(&there).await? {
            return Ok(Some(self.adopted(&there, &instance).await));
        }
        let may_be_shown = kept.asked.is_some_and(|asked| lookup::is_recent(asked, Timestamp::now()));
        if may_be_shown { Err(keeping(lookup::not_shown_yet(self.name), kept)) } else { Ok(None) }
    }

    /// The instance that the machine has already in a region.
    ///
    /// # Errors
    /// `OutOfRange` for several instances, `AlreadyExists` for an instance that may be the machine's and lacks its tags.
    async fn existing(&self, ecs: &Session<'_>) -> Result<Option<Instance>, Status> {
        let found = self.subject.by_name(ecs).await?;
        match (found.ours.as_slice(), &found.doubtful) {
            ([], None) => Ok(None),
            ([], Some(other)) => Err(lookup::doubtful(other, &self.subject.owners, Code::AlreadyExists)),
            ([instance], _) => Ok(Some(instance.clone())),
            (several, _) => Err(lookup::too_many(several)),
        }
    }

    /// The answer for an instance of an earlier creation.
    async fn adopted(&self, ecs: &Session<'_>, instance: &Instance) -> CreatedVm {
        let kept = self.subject.kept.as_ref().filter(|kept| kept.region == ecs.region);
        let account = ecs.account().await;
        let kept = self.kept(ecs, kept.and_then(|kept| kept.asked), account, kept.map_or(0, |kept| kept.attempt));
        CreatedVm { vm: lookup::identity(ecs.region, instance), last_known_state: Some(kept.state()) }
    }

    fn kept(&self, ecs: &Session<'_>, asked: Option<Timestamp>, account: Option<String>, attempt: u32) -> Kept {
        let owner = self.subject.spec.owner_tags();
        let tags = owner.iter().flat_map(|owner| owner.keys().map(str::to_owned)).collect();
        Kept { asked, region: ecs.region.to_owned(), account, attempt, tags }
    }

    async fn attempt(&self, asking: &Asking) -> Result<Attempt, Status> {
        let Subject { spec, secret, .. } = self.subject;
        let pending = &asking.pending;
        let user_data = secret.get(SecretData::USER_DATA).unwrap_or_default();
        let token = lookup::token(&self.subject.token(), pending.attempt);
        let query = run_instances(Launch { spec, name: self.name, user_data, token: &token });
        match self.session.launch(&query).await {
            Ok(id) => self.shown(&id, asking).await,
            Err(failure) if failure.reason == errors::TOKEN_MISMATCH => self.after_mismatch(asking, &token).await,
            Err(failure) if errors::is_refusal(&failure) => Err(keeping(failure.into(), &asking.refused())),
            Err(failure) if errors::has_done_nothing(&failure) => Err(keeping(failure.into(), &asking.not_sent())),
            Err(failure) => Err(keeping(failure.into(), pending)),
        }
    }

    /// Waits until ECS shows an instance that a request with this token has launched. If an earlier request has launched it, and it is not shown for a
    /// while, it is gone: ECS does not show what was released. A new instance is asked for again, with the same token.
    async fn shown(&self, id: &str, asking: &Asking) -> Result<Attempt, Status> {
        let pending = &asking.pending;
        let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
        let limit = VISIBILITY_TIMEOUT.min(self.session.cx.left().saturating_sub(MARGIN));
        loop {
            match self.session.instance(id).await {
                Ok(Some(instance)) => return Ok(Attempt::Created(instance)),
                // A passing failure may be over before the wait ends. A lasting one ends the wait.
                Err(failure) if failure.kind == FailureKind::Permanent => {
                    return Err(keeping(failure.into(), pending));
                }
                Ok(None) | Err(_) => {}
            }
            let drawn = pause.mul_f64(0.5 + cloud_client::draw());
            if began.elapsed() + drawn > limit {
                break;
            }
            tokio::time::sleep(drawn).await;
            pause = pause.mul_f64(1.5).min(LONGEST_PAUSE);
        }
        let selection = InstanceQuery::Id(id);
        let hidden = self.session.check_right_to_look(selection).await;
        hidden.map_err(|failure| keeping(failure.into(), pending))?;
        if limit < VISIBILITY_TIMEOUT || asking.earlier.is_none() {
            return Err(keeping(lookup::not_shown_yet(self.name), pending));
        }
        Ok(Attempt::Outdated)
    }

    /// Decides about a client token that an earlier request with other parameters has used: the class or its Secret has changed since.
    ///
    /// # Errors
    /// `Unavailable` while the instance of the earlier request may still be shown.
    async fn after_mismatch(&self, asking: &Asking, token: &str) -> Result<Attempt, Status> {
        // This request has done nothing, so the state keeps the time of the earlier one.
        let asked = asking.earlier.or(asking.pending.asked);
        let pending = Kept { asked, ..asking.pending.clone() };
        let existing = self.existing(&self.session).await.map_err(|status| keeping(status, &pending))?;
        if let Some(instance) = existing {
            return Ok(Attempt::Created(instance));
        }
        if !asked.is_some_and(|asked| lookup::is_recent(asked, Timestamp::now())) {
            return Ok(Attempt::Outdated);
        }
        let message = format!(
            "an earlier request with client token {token} may have made an instance that ECS does not show yet, and the class, its Secret \
             or the user data has changed since; no other instance is made meanwhile"
        );
        Err(keeping(Status::new(Code::Unavailable, message), &pending))
    }
}

/// The failure with the state of a creation that the next call goes on with.
fn keeping(status: Status, kept: &Kept) -> Status {
    Status { last_known_state: Some(kept.state()), ..status }
}
