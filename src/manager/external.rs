//! The drivers in other processes: each is connected to from the start, on every replica, since admission needs its schema.

use std::sync::Arc;

use super::Common;
use controller_runtime::supervisor::{Stage, Supervisor};
use driver_external::{ExternalDriver, Options};
use machine_driver::Driver;
use mcm_metrics::OfDriver;

/// The drivers of the settings whose providers are wanted; their connections are kept from now on.
pub(super) fn kept(common: &Common, is_wanted: impl Fn(&str) -> bool, tasks: &mut Supervisor) -> Vec<Arc<dyn Driver>> {
    let mut all: Vec<Arc<dyn Driver>> = Vec::new();
    for settings in common.settings.external.iter().filter(|settings| is_wanted(&settings.provider)) {
        let metrics = common.metrics.clone();
        // The metric keeps its labels for as long as it lives.
        let name: &'static str = String::leak(settings.provider.clone());
        let tell_up =
            move |is_up| metrics.cloud.driver_up.set(&OfDriver { driver: name }, if is_up { 1.0 } else { 0.0 });
        tell_up(false);
        let driver = Arc::new(ExternalDriver::new(Options {
            tls: settings.tls.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tell_up: Box::new(tell_up),
            ..Options::new(&settings.provider, settings.place.clone())
        }));
        if let Some(keeping) = driver.keep(tasks.stop_of(Stage::Support)) {
            tasks.spawn(Stage::Support, format!("external-driver-{}", settings.provider), keeping);
        }
        all.push(driver);
    }
    all
}
