//! The drivers in other processes. Every replica connects to each of them at the start, because admission needs their schemas.

use std::{collections::BTreeMap, sync::Arc};

use super::{Common, control::Parts};
use controller_runtime::{
    events::EventNote,
    supervisor::{Stage, Supervisor},
};
use driver_external::{DriverState, ExternalDriver, Options};
use machine_api::names::class_reason;
use machine_driver::Driver;
use mcm_metrics::OfDriver;
use tokio::sync::watch;

const COMPONENT: &str = "external-driver";

/// The reasons why drivers are down, by provider.
pub(super) type Down = BTreeMap<String, String>;

/// Makes the drivers of the wanted providers and starts to keep their connections. `down` receives the drivers that are down.
pub(super) fn connect_all(
    common: &Common,
    is_wanted: impl Fn(&str) -> bool,
    down: &watch::Sender<Down>,
    tasks: &mut Supervisor,
) -> Vec<Arc<dyn Driver>> {
    let mut all: Vec<Arc<dyn Driver>> = Vec::new();
    for settings in common.settings.external.iter().filter(|settings| is_wanted(&settings.provider)) {
        // The metric needs a label that lives as long as the process.
        let name: &'static str = String::leak(settings.provider.clone());
        let (metrics, down) = (common.metrics.clone(), down.clone());
        let show = move |is_up| metrics.cloud.driver_up.set(&OfDriver { driver: name }, if is_up { 1.0 } else { 0.0 });
        show(false);
        let on_change = move |state: &DriverState| {
            show(*state == DriverState::Up);
            down.send_modify(|down| match state {
                DriverState::Down { why } => drop(down.insert(name.to_owned(), why.clone())),
                DriverState::Up | DriverState::Ended => drop(down.remove(name)),
            });
        };
        let driver = Arc::new(ExternalDriver::new(Options {
            tls: settings.tls.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            on_change: Box::new(on_change),
            ..Options::new(&settings.provider, settings.place.clone())
        }));
        if let Some(keeping) = driver.keep(tasks.stop_of(Stage::Support)) {
            tasks.spawn(Stage::Support, format!("external-driver-{}", settings.provider), keeping);
        }
        all.push(driver);
    }
    all
}

/// Writes events about classes while this process leads: their driver is down, or up again.
pub(super) fn report_on_classes(parts: &Arc<Parts>, tasks: &mut Supervisor) {
    if parts.common.settings.external.is_empty() {
        return;
    }
    let (parts, mut down, stop) = (Arc::clone(parts), parts.drivers.down(), tasks.stop_of(Stage::Work));
    let reporting = async move {
        parts.ready_to_work().await;
        let (recorder, mut before) = (parts.recorder(COMPONENT), Down::new());
        loop {
            let now = down.borrow_and_update().clone();
            for (provider, note) in notes(&before, &now) {
                let classes = parts.views.classes.snapshot();
                for class in classes.iter().filter(|class| class.provider == provider) {
                    recorder.note(class, note.clone());
                }
            }
            before = now;
            if down.changed().await.is_err() {
                // All drivers are gone: there are no more events to write.
                return std::future::pending().await;
            }
        }
    };
    tasks.spawn(Stage::Work, COMPONENT, async move {
        let _ = stop.run_until_cancelled(reporting).await;
    });
}

/// The events for the classes of providers whose drivers have gone down or come up.
fn notes(before: &Down, now: &Down) -> Vec<(String, EventNote)> {
    let gone = now.iter().filter(|(provider, _)| !before.contains_key(*provider)).map(|(provider, why)| {
        let text = format!("the driver of provider {provider} is down, and its machines wait: {why}");
        (provider.clone(), EventNote::warning(class_reason::DRIVER_DOWN, text))
    });
    let back = before.keys().filter(|provider| !now.contains_key(*provider)).map(|provider| {
        let text = format!("the driver of provider {provider} is up again");
        (provider.clone(), EventNote::normal(class_reason::DRIVER_UP, text))
    });
    gone.chain(back).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn down(providers: &[&str]) -> Down {
        providers.iter().map(|provider| ((*provider).to_owned(), "connection refused".to_owned())).collect()
    }

    #[test]
    fn each_change_is_reported_once() {
        let reported = |before: &[&str], now: &[&str]| {
            let notes = notes(&down(before), &down(now));
            notes.iter().map(|(provider, note)| format!("{provider} {}", note.reason)).collect::<Vec<_>>()
        };
        assert_eq!(reported(&[], &["files"]), ["files DriverDown"]);
        assert_eq!(reported(&["files"], &["files"]), [""; 0]);
        assert_eq!(reported(&["files", "tape"], &["metal", "tape"]), ["metal DriverDown", "files DriverUp"]);
    }
}
