//! The interface that counts the calls and requests of drivers.

use std::time::Duration;

use super::Code;

/// A method of [`super::Driver`] that may reach a cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `create_machine`.
    CreateMachine,
    /// `initialize_machine`.
    InitializeMachine,
    /// `delete_machine`.
    DeleteMachine,
    /// `get_machine_status`.
    GetMachineStatus,
    /// `list_machines`.
    ListMachines,
    /// `get_volume_ids`.
    GetVolumeIds,
}

/// Counts what drivers do. `provider` is the name of the driver.
pub trait Meter: Send + Sync + 'static {
    /// A call of the machine controller has ended: its duration, or the code of its failure.
    fn called(&self, provider: &'static str, operation: Operation, outcome: Result<Duration, Code>);

    /// A request to the cloud has ended. `service` is the provider's name of the request. `answered` is the time until the answer,
    /// or `None` if the request failed.
    fn requested(&self, provider: &'static str, service: &'static str, answered: Option<Duration>);
}

impl<M: Meter + ?Sized> Meter for std::sync::Arc<M> {
    fn called(&self, provider: &'static str, operation: Operation, outcome: Result<Duration, Code>) {
        (**self).called(provider, operation, outcome);
    }

    fn requested(&self, provider: &'static str, service: &'static str, answered: Option<Duration>) {
        (**self).requested(provider, service, answered);
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! A meter that records all calls and requests.

    use std::sync::Mutex;

    use super::*;

    type Call = (&'static str, Operation, Result<Duration, Code>);

    /// All calls and requests, in order.
    #[derive(Default)]
    pub(crate) struct RecordingMeter {
        pub(crate) calls: Mutex<Vec<Call>>,
        pub(crate) requests: Mutex<Vec<(&'static str, &'static str, Option<Duration>)>>,
    }

    impl Meter for RecordingMeter {
        fn called(&self, provider: &'static str, operation: Operation, outcome: Result<Duration, Code>) {
            self.calls.lock().unwrap().push((provider, operation, outcome));
        }

        fn requested(&self, provider: &'static str, service: &'static str, answered: Option<Duration>) {
            self.requests.lock().unwrap().push((provider, service, answered));
        }
    }
}
