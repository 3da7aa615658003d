//! Counts driver calls in the families of the original (spec/providers §2.1).

use std::time::Duration;

use machine_driver::{Code, Meter, Operation};

use super::{CloudCall, DriverCall, FailedDriverCall, Metrics};

impl Meter for Metrics {
    fn called(&self, provider: &'static str, operation: Operation, outcome: Result<Duration, Code>) {
        match outcome {
            Ok(took) => self.cloud.driver_request_duration.observe(&DriverCall { provider, operation }, took),
            Err(error_code) => {
                self.cloud.driver_requests_failed.inc(&FailedDriverCall { provider, operation, error_code });
            }
        }
    }

    fn requested(&self, provider: &'static str, service: &'static str, answered: Option<Duration>) {
        let call = CloudCall { provider, service };
        match answered {
            Some(took) => {
                self.cloud.requests.inc(&call);
                self.cloud.request_duration.observe(&call, took);
            }
            None => self.cloud.requests_failed.inc(&call),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn c09_calls_are_scraped_with_provider_operation_and_code() {
        let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
        metrics.called("moody", Operation::ListMachines, Ok(Duration::from_secs(1)));
        metrics.called("moody", Operation::CreateMachine, Err(Code::ResourceExhausted));
        for answered in [Some(Duration::from_secs(2)), Some(Duration::from_secs(2)), None] {
            metrics.requested("aws", "instance_terminate", answered);
        }
        let text = metrics.render().unwrap();
        for line in [
            r#"mcm_cloud_api_driver_request_duration_seconds_count{operation="list_machine",provider="moody"} 1"#,
            r#"mcm_cloud_api_driver_requests_failed_total{error_code="8",operation="create_machine",provider="moody"} 1"#,
            r#"mcm_cloud_api_requests_total{provider="aws",service="instance_terminate"} 2"#,
            r#"mcm_cloud_api_requests_failed_total{provider="aws",service="instance_terminate"} 1"#,
            r#"mcm_cloud_api_api_request_duration_seconds_sum{provider="aws",service="instance_terminate"} 4"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
