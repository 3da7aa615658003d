//! The flags of the virtual cloud.

use std::{net::SocketAddr, path::PathBuf};

use super::{args::DriverArgs, problems::Problems};
use crate::settings::{Impersonation, SimulationAdmin, SimulationSettings, SimulationState};

/// The settings of the virtual cloud.
pub(super) fn simulation(args: &DriverArgs, problems: &mut Problems) -> SimulationSettings {
    let state = match args.simulation_state.split_once(':') {
        None if args.simulation_state == "none" => SimulationState::None,
        Some(("file", path)) if !path.is_empty() => SimulationState::File(PathBuf::from(path)),
        Some(("json", path)) if !path.is_empty() => SimulationState::Json(PathBuf::from(path)),
        Some(("configmap", name)) if !name.is_empty() => {
            problems.unless(
                is_state_name(name),
                "--simulation-state: configmap:NAME: NAME must be at most 60 of a-z, 0-9, '-' and '.', and begin and end \
                 with a letter or digit",
            );
            SimulationState::ConfigMap(name.to_owned())
        }
        _ => {
            problems.add(format!(
                "--simulation-state: cannot read {:?}: must be none, file:PATH, json:PATH or configmap:NAME",
                args.simulation_state
            ));
            SimulationState::None
        }
    };
    SimulationSettings {
        impersonation: if args.enable_simulation { Impersonation::Allowed } else { Impersonation::Refused },
        config: args.simulation_config.clone(),
        state,
        admin: args.simulation_admin.as_deref().and_then(|text| {
            let read = simulation_admin(text);
            if read.is_none() {
                problems.add(format!(
                    "--simulation-admin: cannot read {text:?}: must be a loopback address such as 127.0.0.1:9999, or unix:PATH"
                ));
            }
            read
        }),
    }
}

/// Whether the name is valid for `ConfigMaps` with a number appended, and valid as a label value.
fn is_state_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let outer = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    name.len() <= 60
        && name.bytes().all(inner)
        && outer(name.bytes().next())
        && outer(name.bytes().last())
        && !name.contains("..")
}

fn simulation_admin(text: &str) -> Option<SimulationAdmin> {
    if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
        return Some(SimulationAdmin::Unix(PathBuf::from(path)));
    }
    let address: SocketAddr = text.parse().ok()?;
    address.ip().is_loopback().then_some(SimulationAdmin::Loopback(address))
}
