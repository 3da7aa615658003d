//! The drivers of this process. They begin when it wins leadership, and end with it.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use rand::Rng;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Common, stream};
use crate::{
    DriverSet,
    drivers::ControlCluster,
    settings::{self, DriverSelection, SimulationAdmin, SimulationState},
};
use controller_runtime::{latch::Latch, supervisor::Supervisor};
use driver_virtual::{self, AdminAddress, ConfigMapAccess, Impersonation, SimulationOptions, StatePlace, VirtualCloud};
use machine_driver::{Code, Driver, Measured, Registry, answered};

/// The drivers of this process. Admission uses their class rules on every replica; only the leader lets them begin.
#[derive(Clone)]
pub(super) struct Drivers {
    pub(super) registry: Registry,
    simulation: Arc<VirtualCloud>,
    options: SimulationOptions,
    control: ControlCluster,
    #[cfg(feature = "external")]
    down: tokio::sync::watch::Receiver<super::external::Down>,
}

impl Drivers {
    pub(super) fn new(common: &Common, all: &DriverSet, tasks: &mut Supervisor) -> anyhow::Result<Self> {
        let options = options(common);
        let simulation = Arc::new(VirtualCloud::new(&options)?);
        let is_wanted = |provider: &str| match &common.settings.drivers {
            DriverSelection::All => true,
            DriverSelection::Only(providers) => providers.contains(provider),
        };
        #[cfg(feature = "external")]
        let (report_down, down) = tokio::sync::watch::channel(super::external::Down::new());
        #[cfg(feature = "external")]
        let all = &all.clone().with_shared(super::external::connect_all(common, is_wanted, &report_down, tasks));
        #[cfg(not(feature = "external"))]
        let _ = tasks;
        let cluster = &common.settings.cluster_name;
        let measured = |driver| -> Arc<dyn Driver> {
            Arc::new(Measured::new(driver, common.metrics.clone()).of_cluster(cluster.clone()))
        };
        let control = ControlCluster::default();
        let virtual_cloud = Arc::<VirtualCloud>::clone(&simulation);
        let registry = all.registry(&common.settings.clouds, &control, virtual_cloud, is_wanted, measured);
        Ok(Self {
            registry,
            simulation,
            options,
            control,
            #[cfg(feature = "external")]
            down,
        })
    }

    /// The drivers in other processes that are down.
    #[cfg(feature = "external")]
    pub(super) fn down(&self) -> tokio::sync::watch::Receiver<super::external::Down> {
        self.down.clone()
    }

    /// Sets what the virtual cloud needs to begin once this process leads.
    pub(super) fn set_simulation_clients(&self, target: Option<kube::Client>, state: ConfigMapAccess) {
        let options = SimulationOptions { config_maps: Some(state), ..self.options.clone() };
        self.simulation.may_begin(options, target);
    }

    /// Sets the client of the control cluster for machines that are pods.
    pub(super) fn set_pod_client(&self, control: kube::Client) {
        self.control.set(control);
    }

    /// Runs the drivers until `stop` and the end of their tasks. `begun` is opened once all drivers have begun, or after
    /// [`BEGIN_WITHIN`].
    ///
    /// # Errors
    /// The error of a driver that can never begin.
    pub(super) async fn run(&self, stop: &CancellationToken, begun: &Latch) -> anyhow::Result<()> {
        run_all(self.registry.drivers(), stop, begun).await
    }
}

async fn run_all(drivers: Vec<Arc<dyn Driver>>, stop: &CancellationToken, begun: &Latch) -> anyhow::Result<()> {
    let (stop, wanted) = (stop.child_token(), drivers.len());
    let (has_begun, mut beginnings) = mpsc::channel(wanted.max(1));
    let runs = drivers.into_iter().map(|driver| {
        let (has_begun, stop) = (has_begun.clone(), stop.clone());
        async move {
            // A driver that can never begin stops the others, so that they end in order.
            run(driver, has_begun, stop.clone()).await.inspect_err(|_| stop.cancel())
        }
    });
    let runs = join_all(runs.collect::<Vec<_>>());
    drop(has_begun);
    let opening = async {
        let all = async {
            for _ in 0..wanted {
                if beginnings.recv().await.is_none() {
                    return;
                }
            }
            begun.open();
        };
        let in_time = tokio::time::timeout(BEGIN_WITHIN, all).await;
        if in_time.is_err() && !stop.is_cancelled() {
            tracing::warn!("not all drivers have begun; their machines wait, the others' do not");
            begun.open();
        }
    };
    let (ended, ()) = tokio::join!(runs, opening);
    ended.into_iter().collect::<anyhow::Result<()>>()?;
    // A process without drivers leads too.
    stop.cancelled().await;
    Ok(())
}

/// How long loops wait for drivers to begin.
const BEGIN_WITHIN: Duration = Duration::from_secs(30);
/// Deadline of one try to begin.
const TRY_WITHIN: Duration = Duration::from_secs(5 * 60);
/// Pause before a driver that could not begin is tried again. It doubles with each try.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Deadline of a driver's end.
const END_WITHIN: Duration = Duration::from_secs(3);

/// Runs a driver from its beginning to its end. Sends one message to `begun` once the driver has begun.
async fn run(driver: Arc<dyn Driver>, begun: mpsc::Sender<()>, stop: CancellationToken) -> anyhow::Result<()> {
    let name = driver.info().name;
    let mut pause = FIRST_PAUSE;
    let tasks = loop {
        let beginning = answered(TRY_WITHIN, driver.begin(stop.clone()));
        match stop.run_until_cancelled(beginning).await {
            None => return Ok(()),
            Some(Ok(tasks)) => break tasks,
            Some(Err(status)) if may_begin_later(status.code) => {
                tracing::warn!(
                    provider = name, error = %status, retry_in_ms = pause.as_millis(),
                    "the driver can't begin; it is tried again"
                );
            }
            Some(Err(status)) => anyhow::bail!("driver {name} can't begin: {}", status.message),
        }
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return Ok(());
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
    };
    // The channel has room for a message of each driver.
    let _ = begun.try_send(());
    join_all(tasks.into_iter().map(|task| task.run)).await;
    stop.cancelled().await;
    if tokio::time::timeout(END_WITHIN, driver.end()).await.is_err() {
        tracing::warn!(provider = name, "the driver did not end in time");
    }
    Ok(())
}

/// Whether a driver whose begin failed with this code can begin later.
fn may_begin_later(code: Code) -> bool {
    [Code::Unavailable, Code::DeadlineExceeded, Code::Aborted, Code::ResourceExhausted, Code::Unknown].contains(&code)
}

fn options(common: &Common) -> SimulationOptions {
    let simulation = &common.settings.simulation;
    SimulationOptions {
        entropy: common.random(stream::SIMULATION).next_u64(),
        config: simulation.config.clone(),
        impersonation: match simulation.impersonation {
            settings::Impersonation::Refused => Impersonation::Refused,
            settings::Impersonation::Allowed => Impersonation::Allowed,
        },
        state: match &simulation.state {
            SimulationState::None => None,
            SimulationState::File(path) => Some(StatePlace::File(path.clone())),
            SimulationState::ConfigMap(name) => Some(StatePlace::ConfigMap(name.clone())),
            SimulationState::Json(path) => Some(StatePlace::Json(path.clone())),
        },
        admin: simulation.admin.as_ref().map(|admin| match admin {
            SimulationAdmin::Loopback(address) => AdminAddress::Loopback(*address),
            SimulationAdmin::Unix(path) => AdminAddress::Unix(path.clone()),
        }),
        ..SimulationOptions::new(common.clock.now())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use kube_values::field::Findings;
    use machine_api::v1alpha1::MachineClass;
    use machine_driver::{
        Capabilities, CreatedVm, DeletedVm, DriverInfo, DriverTask, ListRequest, ListedVm, MachineRequest, OpContext,
        Status, VmIdentity, VolumeIdsRequest,
    };
    use tokio::time::{Instant, timeout};

    use super::*;

    /// A driver whose first tries to begin fail with given codes. It records its calls.
    struct Recording {
        info: DriverInfo,
        fails: Mutex<Vec<Code>>,
        record: Arc<Mutex<Vec<&'static str>>>,
    }

    impl Recording {
        fn failing(codes: &[Code]) -> (Arc<Self>, Arc<Mutex<Vec<&'static str>>>) {
            let record = Arc::<Mutex<Vec<&'static str>>>::default();
            let info = DriverInfo {
                name: "recording",
                providers: vec!["recording".to_owned()],
                schema: None,
                capabilities: Capabilities::default(),
            };
            let fails = Mutex::new(codes.iter().rev().copied().collect());
            (Arc::new(Self { info, fails, record: Arc::clone(&record) }), record)
        }
    }

    #[async_trait]
    impl Driver for Recording {
        fn info(&self) -> &DriverInfo {
            &self.info
        }
        async fn begin(&self, stop: CancellationToken) -> Result<Vec<DriverTask>, Status> {
            if let Some(code) = self.fails.lock().unwrap().pop() {
                return Err(Status::new(code, "no room"));
            }
            self.record.lock().unwrap().push("begins");
            let record = Arc::clone(&self.record);
            let run = Box::pin(async move {
                record.lock().unwrap().push("task runs");
                stop.cancelled().await;
                record.lock().unwrap().push("task ends");
            });
            Ok(vec![DriverTask { name: "of-a-test", run }])
        }
        async fn end(&self) {
            self.record.lock().unwrap().push("ends");
        }
        fn validate(&self, _: &MachineClass, _: &mut Findings) {}
        async fn create_machine(&self, _: &OpContext, _: MachineRequest) -> Result<CreatedVm, Status> {
            Err(Status::new(Code::Unimplemented, "no"))
        }
        async fn delete_machine(&self, _: &OpContext, _: MachineRequest) -> Result<DeletedVm, Status> {
            Err(Status::new(Code::Unimplemented, "no"))
        }
        async fn get_machine_status(&self, _: &OpContext, _: MachineRequest) -> Result<VmIdentity, Status> {
            Err(Status::new(Code::Unimplemented, "no"))
        }
        async fn list_machines(&self, _: &OpContext, _: ListRequest) -> Result<Vec<ListedVm>, Status> {
            Err(Status::new(Code::Unimplemented, "no"))
        }
        async fn get_volume_ids(&self, _: &OpContext, _: VolumeIdsRequest) -> Result<Vec<String>, Status> {
            Err(Status::new(Code::Unimplemented, "no"))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_begins_and_ends_with_its_tasks() {
        let (driver, record) = Recording::failing(&[Code::Unavailable, Code::Aborted]);
        let (stop, (begun, mut beginnings)) = (CancellationToken::new(), mpsc::channel(1));
        let started = Instant::now();
        let running = tokio::spawn(run(driver, begun, stop.clone()));
        assert_eq!(beginnings.recv().await, Some(()), "it has begun");
        assert_eq!(started.elapsed(), Duration::from_secs(3), "at the third try, after pauses of 1 and 2 s");
        tokio::task::yield_now().await;
        stop.cancel();
        running.await.unwrap().unwrap();
        assert_eq!(*record.lock().unwrap(), ["begins", "task runs", "task ends", "ends"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_can_never_begin_ends_the_process_with_the_reason() {
        let (driver, record) = Recording::failing(&[Code::FailedPrecondition]);
        let error = run(driver, mpsc::channel(1).0, CancellationToken::new()).await.unwrap_err();
        assert_eq!(error.to_string(), "driver recording can't begin: no room");
        assert!(record.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_without_drivers_runs_until_it_stops() {
        let (stop, begun) = (CancellationToken::new(), Latch::default());
        let mut running = std::pin::pin!(run_all(Vec::new(), &stop, &begun));
        assert!(timeout(Duration::from_secs(3600), &mut running).await.is_err());
        timeout(Duration::from_millis(1), begun.opened()).await.expect("loops work meanwhile");
        stop.cancel();
        running.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn where_one_driver_can_never_begin_the_others_end_and_no_loop_begins() {
        let (good, record) = Recording::failing(&[]);
        let (bad, _) = Recording::failing(&[Code::Unavailable, Code::FailedPrecondition]);
        let (stop, begun) = (CancellationToken::new(), Latch::default());
        run_all(vec![good, bad], &stop, &begun).await.unwrap_err();
        assert_eq!(*record.lock().unwrap(), ["begins", "task runs", "task ends", "ends"]);
        assert!(timeout(Duration::from_secs(60), begun.opened()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn loops_wait_half_a_minute_for_a_driver_that_is_slow_to_begin() {
        let (slow, _) = Recording::failing(&[Code::Unavailable; 10]);
        let (stop, begun) = (CancellationToken::new(), Latch::default());
        let running = async { run_all(vec![slow], &stop, &begun).await.unwrap() };
        let opened = async {
            let started = Instant::now();
            begun.opened().await;
            stop.cancel();
            started.elapsed()
        };
        assert_eq!(tokio::join!(running, opened).1, BEGIN_WITHIN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_stops_does_not_wait_for_a_driver_to_begin() {
        let (driver, record) = Recording::failing(&[Code::Unavailable; 100]);
        let stop = CancellationToken::new();
        let running = tokio::spawn(run(driver, mpsc::channel(1).0, stop.clone()));
        tokio::time::sleep(Duration::from_secs(70)).await;
        stop.cancel();
        timeout(Duration::from_millis(1), running).await.unwrap().unwrap().unwrap();
        assert!(record.lock().unwrap().is_empty(), "a driver that has not begun does not end");
    }
}
