//! Lets the addresses of pods pass the ports of a server, by means of allowed address pairs.

use std::collections::BTreeSet;

use cloud_client::FailureKind;
use machine_driver::{Code, Status};

use crate::{
    cloud::Session,
    create::ids,
    lookup::{PodTraffic, pairs},
    neutron::Port,
    spec::Network,
    subject::Subject,
};

/// The maximum number of attempts to update a port that other clients change at the same time.
const MAX_ATTEMPTS: usize = 5;

/// The ids of networks that are named by id or by name.
pub async fn network_ids(cloud: &Session<'_>, networks: &[Network]) -> Result<Vec<String>, Status> {
    let names: Vec<&str> =
        networks.iter().filter(|network| network.id.is_empty()).map(|network| network.name.as_str()).collect();
    let found = if names.is_empty() { Vec::new() } else { cloud.networks_named(&names).await? };
    let mut named = ids("network", &names, &found)?.into_iter();
    // `named` has an id for each name, because `ids` fails for an unknown name.
    Ok(networks
        .iter()
        .filter_map(|network| if network.id.is_empty() { named.next() } else { Some(network.id.clone()) })
        .collect())
}

/// The ports of a server that are in networks of pods.
async fn pod_ports(subject: &Subject<'_>, cloud: &Session<'_>, server: &str) -> Result<Vec<Port>, Status> {
    let spec = &subject.spec;
    let networks: BTreeSet<String> = if spec.network_id.is_empty() {
        let of_pods: Vec<Network> = spec.networks.iter().filter(|network| network.pod_network).cloned().collect();
        network_ids(cloud, &of_pods).await?.into_iter().collect()
    } else {
        [spec.network_id.clone()].into()
    };
    if networks.is_empty() || spec.pod_networks().is_empty() {
        return Ok(Vec::new());
    }
    let ports = cloud.ports_of(server).await?;
    if ports.is_empty() {
        return Err(Status::new(Code::Internal, format!("got an empty port list for server {server:?}")));
    }
    Ok(ports.into_iter().filter(|port| networks.contains(&port.network_id)).collect())
}

/// Whether the ports of a server already let the addresses of pods pass.
pub async fn pod_traffic(subject: &Subject<'_>, cloud: &Session<'_>, server: &str) -> Result<PodTraffic, Status> {
    let ports = pod_ports(subject, cloud, server).await?;
    let passes = ports.iter().all(|port| pairs(port, subject.spec.pod_networks()).is_none());
    Ok(if passes { PodTraffic::Passes } else { PodTraffic::Blocked })
}

/// Lets the addresses of pods pass the ports of a server. Existing address pairs are kept.
pub async fn let_pods_pass(subject: &Subject<'_>, cloud: &Session<'_>, server: &str) -> Result<(), Status> {
    for mut port in pod_ports(subject, cloud, server).await? {
        for attempt in 1.. {
            let Some(pairs) = pairs(&port, subject.spec.pod_networks()) else { break };
            match cloud.allow_addresses(&port, &pairs).await {
                Ok(()) => break,
                // Another client has changed the port. The pairs are added to its present ones.
                Err(failure)
                    if failure.status.code == Code::Aborted
                        && failure.kind == FailureKind::Permanent
                        && attempt < MAX_ATTEMPTS =>
                {
                    port = cloud.port(&port.id).await?;
                }
                Err(failure) => return Err(failure.into()),
            }
        }
    }
    Ok(())
}
