//! Requests that drivers send to their clouds, counted and timed (`mcm_cloud_api_requests_*`, spec/providers §2.1).
//!
//! One driver call may need many of them. A driver sends each through [`OpContext::request`]; whose metrics they go to is
//! not its business, [`super::Measured`] has seen to that.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Code, Meter, Owner, Status};

/// What every driver call gets along.
#[derive(Clone)]
pub struct OpContext {
    /// When the call must have ended; the caller drops the future then. A driver that sends several requests gives each of them what is
    /// left.
    pub deadline: Instant,
    owner: Option<Owner>,
    counted: Option<Counted>,
}

/// Where requests are counted.
#[derive(Clone)]
struct Counted {
    meter: Arc<dyn Meter>,
    provider: &'static str,
}

impl OpContext {
    /// A call that begins now and may take so long; nobody counts its requests yet.
    pub fn within(limit: Duration) -> Self {
        Self { deadline: Instant::now() + limit, owner: None, counted: None }
    }

    /// The time that is left until the deadline; none once it has passed.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Whose the VMs of the call's class are: VMs of another owner are neither found nor deleted by name, and a VM that is made gets
    /// it as its proof. `None` when nobody knows; such calls come only where nothing is looked for by name.
    pub const fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// The same call about VMs of this owner.
    #[must_use]
    pub fn about(mut self, owner: Option<Owner>) -> Self {
        self.owner = owner;
        self
    }

    /// The same call, whose requests are counted under this driver's name.
    #[must_use]
    pub fn counted_by(&self, meter: &Arc<dyn Meter>, provider: &'static str) -> Self {
        Self { counted: Some(Counted { meter: Arc::clone(meter), provider }), ..self.clone() }
    }

    /// Sends one request to the cloud and counts it; `service` is the provider's name of what is asked.
    ///
    /// # Errors
    /// Those of the request. That something does not exist is an answer, not a failure of the request; one that its caller
    /// drops has failed.
    pub async fn request<T>(
        &self,
        service: &'static str,
        request: impl Future<Output = Result<T, Status>> + Send,
    ) -> Result<T, Status> {
        let mut sent = Sent { counted: self.counted.as_ref(), service, began: Instant::now(), answer: Answer::Failed };
        let outcome = request.await;
        sent.answer = match &outcome {
            Ok(_) => Answer::Given,
            Err(status) if matches!(status.code, Code::NotFound | Code::Uninitialized) => Answer::Given,
            Err(_) => Answer::Failed,
        };
        outcome
    }
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Given,
    Failed,
}

/// A request under way; counted when it ends, however that is.
struct Sent<'a> {
    counted: Option<&'a Counted>,
    service: &'static str,
    began: Instant,
    answer: Answer,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let Some(Counted { meter, provider }) = self.counted else { return };
        let answered = (self.answer == Answer::Given).then(|| self.began.elapsed());
        meter.requested(provider, self.service, answered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::told::Told;

    async fn answers(code: Code) -> Result<(), Status> {
        tokio::time::sleep(Duration::from_secs(2)).await;
        if code == Code::OK { Ok(()) } else { Err(Status::new(code, "no")) }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_counted_by_what_came_of_them() {
        let told = Arc::new(Told::default());
        let meter: Arc<dyn Meter> = Arc::<Told>::clone(&told);
        let cx = OpContext::within(Duration::from_secs(7)).counted_by(&meter, "aws");
        for code in [Code::OK, Code::NotFound, Code::ResourceExhausted] {
            let _ = cx.request("instance_terminate", answers(code)).await;
        }
        assert_eq!(cx.left(), Duration::from_secs(1));
        tokio::time::timeout_at(cx.deadline, cx.request("instance_terminate", answers(Code::OK))).await.unwrap_err();
        assert_eq!(cx.left(), Duration::ZERO);
        let answered = Some(Duration::from_secs(2));
        let expected = [answered, answered, None, None].map(|answered| ("aws", "instance_terminate", answered));
        assert_eq!(*told.requests.lock().unwrap(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_counts_is_sent_all_the_same() {
        let cx = OpContext::within(Duration::from_secs(9));
        assert_eq!(cx.request("nova", answers(Code::OK)).await, Ok(()));
    }
}
