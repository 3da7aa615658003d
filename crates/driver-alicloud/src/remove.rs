//! Deletes the instance of a machine. Its disks go with it, unless the class keeps them.

use std::time::Duration;

use jiff::Timestamp;
use machine_driver::{Code, Instant, Status};

use crate::{
    actions::{Instance, InstanceQuery},
    ecs::{Ecs, Session},
    lookup,
    subject::Subject,
};

/// How long a call waits until an instance is gone. The next call goes on waiting.
const LONGEST: Duration = Duration::from_secs(300);
/// A call ends this long before its deadline, so that its answer is not lost.
const MARGIN: Duration = Duration::from_secs(5);
/// The shortest and the longest pause between two looks at an instance that is being deleted.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The deletion of a machine's instance.
pub struct Removal<'a> {
    pub subject: &'a Subject<'a>,
    pub ecs: &'a Ecs,
    pub cx: &'a machine_driver::OpContext,
}

impl Removal<'_> {
    /// Deletes the instance. Returns the ids of the deleted instances.
    ///
    /// # Errors
    /// `NotFound` if the instance of the provider id is gone, `FailedPrecondition` if it must not be deleted, `Unavailable` while it can't be deleted
    /// or may still appear.
    pub async fn run(self) -> Result<Vec<String>, Status> {
        let subject = self.subject;
        if let Some(location) = subject.location()? {
            let ecs = self.session(location.region);
            let instance = subject.by_id(&ecs, location.id).await.map_err(|status| match status.code {
                Code::NotFound => Status {
                    message: format!(
                        "ECS instance not found backing this machine object with Provider ID: {}",
                        subject.machine.spec.provider_id
                    ),
                    ..status
                },
                _ => status,
            })?;
            return self.delete(&ecs, &[instance]).await;
        }
        let (mut deleted, mut failed) = (Vec::new(), None);
        for region in subject.regions()? {
            // A failure in one region does not stop the others.
            match self.in_region(&self.session(region)).await {
                Ok(ids) => deleted.extend(ids),
                Err(status) => failed = failed.or(Some(status)),
            }
        }
        failed.map_or(Ok(deleted), Err)
    }

    fn session<'s>(&'s self, region: &'s str) -> Session<'s> {
        self.ecs.session(self.cx, region, &self.subject.credentials)
    }

    /// Deletes the instances of the machine in a region.
    async fn in_region(&self, ecs: &Session<'_>) -> Result<Vec<String>, Status> {
        let found = self.subject.by_name(ecs).await?;
        if !found.ours.is_empty() {
            return self.delete(ecs, &found.ours).await;
        }
        nothing_is_left(self.subject, ecs, found.doubtful.as_ref()).await?;
        Ok(Vec::new())
    }

    /// Deletes instances, and waits until they are gone. A failure does not stop the others.
    async fn delete(&self, ecs: &Session<'_>, instances: &[Instance]) -> Result<Vec<String>, Status> {
        let (mut deleted, mut failed) = (Vec::new(), None);
        for instance in instances {
            match begun(ecs, instance).await {
                Ok(()) => deleted.push(instance.id.clone()),
                Err(status) => failed = failed.or(Some(status)),
            }
        }
        for id in &deleted {
            if let Err(status) = gone(ecs, id).await {
                failed = failed.or(Some(status));
            }
        }
        failed.map_or(Ok(deleted), Err)
    }
}

/// Checks for a machine without a provider id and without instances in a region that it really has none. `doubtful` is an instance with its name.
///
/// # Errors
/// `FailedPrecondition` for a doubtful instance and for credentials of another account, `PermissionDenied` without the right to look, `Unavailable`
/// while an instance may still appear.
pub async fn nothing_is_left(
    subject: &Subject<'_>,
    ecs: &Session<'_>,
    doubtful: Option<&Instance>,
) -> Result<(), Status> {
    if let Some(other) = doubtful {
        return Err(lookup::doubtful(other, &subject.owners, Code::FailedPrecondition));
    }
    let asked = subject.kept.as_ref().filter(|kept| kept.region == ecs.region).and_then(|kept| kept.asked);
    if asked.is_some_and(|asked| lookup::is_recent(asked, Timestamp::now())) {
        return Err(lookup::not_shown_yet(subject.shown_name()));
    }
    subject.check_nothing_is_hidden(ecs, InstanceQuery::Named(subject.name()?)).await
}

/// Begins the deletion of an instance.
async fn begun(ecs: &Session<'_>, instance: &Instance) -> Result<(), Status> {
    lookup::check_deletable(instance)?;
    match ecs.delete(&instance.id).await {
        // ECS has shown the instance before. Whether it is gone is found out by looking again.
        Err(failure) if failure.status.code == Code::NotFound => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// Waits until ECS does not show an instance any more, at most [`LONGEST`] and until shortly before the deadline of the call.
async fn gone(ecs: &Session<'_>, id: &str) -> Result<(), Status> {
    let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
    let limit = ecs.cx.left().saturating_sub(MARGIN).min(LONGEST);
    while let Some(instance) = ecs.instance(id).await? {
        if began.elapsed() + pause > limit {
            let message = format!("instance {id} is still {}; the next attempt looks again", instance.status);
            return Err(Status::new(Code::DeadlineExceeded, message));
        }
        tokio::time::sleep(pause).await;
        pause = pause.mul_f64(1.5).min(LONGEST_PAUSE);
    }
    Ok(())
}
