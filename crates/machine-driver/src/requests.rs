//! The context of driver calls, and the requests of drivers to their clouds, counted and timed (`mcm_cloud_api_requests_*`,
//! spec/providers §2.1).
//!
//! One driver call may need many requests. A driver sends each through [`OpContext::request`]. [`super::Measured`] decides in which metrics
//! they are counted.

use std::{sync::Arc, time::Duration};

use mcm_traces::TraceParent;
use tokio::time::Instant;

use super::{Code, Meter, Owner, Status};

/// The context of a driver call.
#[derive(Clone)]
pub struct OpContext {
    /// The deadline of the call. At the deadline, the caller drops the future. A driver that sends several requests gives each request the
    /// remaining time.
    pub deadline: Instant,
    owner: Option<Owner>,
    counted: Option<Counted>,
    trace: Option<TraceParent>,
}

/// The counter of requests.
#[derive(Clone)]
struct Counted {
    meter: Arc<dyn Meter>,
    provider: &'static str,
}

impl OpContext {
    /// The context of a call that begins now, with this time limit. Its requests are not counted yet.
    pub fn within(limit: Duration) -> Self {
        Self { deadline: Instant::now() + limit, owner: None, counted: None, trace: None }
    }

    /// The time until the deadline; zero after it.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The owner of the VMs of the call's class. VMs of another owner are neither found nor deleted by name, and a new VM is marked with it.
    /// `None` when the owner is unknown. In this case, no call finds VMs by name.
    pub const fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// The same context, about VMs of this owner.
    #[must_use]
    pub fn about(mut self, owner: Option<Owner>) -> Self {
        self.owner = owner;
        self
    }

    /// The span of this call, for drivers in other processes. `None` if the call is not traced.
    pub const fn trace(&self) -> Option<TraceParent> {
        self.trace
    }

    /// The same context, as a part of this trace.
    #[must_use]
    pub const fn traced(mut self, trace: Option<TraceParent>) -> Self {
        self.trace = trace;
        self
    }

    /// The same context, with requests that are counted under this driver's name.
    #[must_use]
    pub fn counted_by(&self, meter: &Arc<dyn Meter>, provider: &'static str) -> Self {
        Self { counted: Some(Counted { meter: Arc::clone(meter), provider }), ..self.clone() }
    }

    /// Sends one request to the cloud and counts it. `service` is the provider's name of the request.
    ///
    /// # Errors
    /// The errors of the request. `NotFound` and `Uninitialized` count as answers, not as failed requests. A request that is dropped counts as
    /// failed.
    pub async fn request<T>(
        &self,
        service: &'static str,
        request: impl Future<Output = Result<T, Status>> + Send,
    ) -> Result<T, Status> {
        let mut sent = Sent { counted: self.counted.as_ref(), service, began: Instant::now(), is_answered: false };
        let outcome = request.await;
        sent.is_answered = match &outcome {
            Ok(_) => true,
            Err(status) => matches!(status.code, Code::NotFound | Code::Uninitialized),
        };
        outcome
    }
}

/// A request in flight. It is counted when it is dropped.
struct Sent<'a> {
    counted: Option<&'a Counted>,
    service: &'static str,
    began: Instant,
    is_answered: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let Some(Counted { meter, provider }) = self.counted else { return };
        let answered = self.is_answered.then(|| self.began.elapsed());
        meter.requested(provider, self.service, answered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::testing::RecordingMeter;

    async fn answers(code: Code) -> Result<(), Status> {
        tokio::time::sleep(Duration::from_secs(2)).await;
        if code == Code::OK { Ok(()) } else { Err(Status::new(code, "no")) }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_counted_by_their_result() {
        let meter = Arc::new(RecordingMeter::default());
        let counting: Arc<dyn Meter> = Arc::<RecordingMeter>::clone(&meter);
        let cx = OpContext::within(Duration::from_secs(7)).counted_by(&counting, "aws");
        for code in [Code::OK, Code::NotFound, Code::ResourceExhausted] {
            let _ = cx.request("instance_terminate", answers(code)).await;
        }
        assert_eq!(cx.left(), Duration::from_secs(1));
        tokio::time::timeout_at(cx.deadline, cx.request("instance_terminate", answers(Code::OK))).await.unwrap_err();
        assert_eq!(cx.left(), Duration::ZERO);
        let answered = Some(Duration::from_secs(2));
        let expected = [answered, answered, None, None].map(|answered| ("aws", "instance_terminate", answered));
        assert_eq!(*meter.requests.lock().unwrap(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_not_counted_is_sent_too() {
        let cx = OpContext::within(Duration::from_secs(9));
        assert_eq!(cx.request("nova", answers(Code::OK)).await, Ok(()));
    }
}
