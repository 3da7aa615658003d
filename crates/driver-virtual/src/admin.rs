//! The admin API of a simulation, for tests: only on loopback or a Unix socket (spec/providers §7.8).

use std::{
    collections::BTreeMap, fmt, io, net::SocketAddr, os::unix::fs::FileTypeExt, path::PathBuf, str::FromStr, sync::Arc,
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use super::{
    cloud::{Cloud, MachineCall, Vm, VmRef},
    config::SimulationConfig,
    reader::{object, objects},
    rules::FailureRule,
    shared::Shared,
    template::VmTemplate,
};
use kube_values::field::{FieldPath, Findings};
use machine_api::v1alpha1::MachineClass;

/// The address of the admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// A port of the loopback interface.
    Loopback(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// The error for a text that is no address of the admin API.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be 127.0.0.1:PORT or unix:PATH")]
pub struct InvalidAdminAddress;

impl FromStr for AdminAddress {
    type Err = InvalidAdminAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let address: SocketAddr = text.parse().map_err(|_| InvalidAdminAddress)?;
        if address.ip().is_loopback() { Ok(Self::Loopback(address)) } else { Err(InvalidAdminAddress) }
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Binds the address. The returned future serves requests until the shutdown.
///
/// # Errors
/// If the address can't be bound.
pub async fn serve(
    address: &AdminAddress,
    shared: Arc<Shared>,
    shutdown: CancellationToken,
) -> io::Result<BoxFuture<'static, ()>> {
    let router = router(shared);
    Ok(match address {
        AdminAddress::Loopback(address) => {
            let listener = TcpListener::bind(address).await?;
            tracing::info!(address = %listener.local_addr()?, "simulation admin API");
            Box::pin(run(listener, router, shutdown))
        }
        AdminAddress::Unix(path) => {
            // A socket that a killed process left behind is removed. Any other file is kept, because it may be in use.
            let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
            if is_socket && tokio::net::UnixStream::connect(path).await.is_err() {
                std::fs::remove_file(path)?;
            }
            let listener = UnixListener::bind(path)?;
            let path = path.clone();
            Box::pin(async move {
                run(listener, router, shutdown).await;
                drop(std::fs::remove_file(path));
            })
        }
    })
}

async fn run<L>(listener: L, router: Router, shutdown: CancellationToken)
where
    L: axum::serve::Listener,
    L::Addr: fmt::Debug,
{
    if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned()).await {
        tracing::error!(%error, "the simulation's admin API has ended");
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/vms", get(list_vms))
        // Ids of VMs contain slashes, so the rest of the path is matched as a whole and split in the handler.
        .route("/vms/{*rest}", post(act_on_vm))
        .route("/orphans", post(make_orphan))
        .route("/failures", put(replace_failures))
        .route("/events", get(list_events))
        .route("/metrics", get(show_metrics))
        .route("/clock/advance", post(advance_clock))
        .with_state(shared)
}

/// The status code and the message of a failed request.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(json!({"error": self.1}))).into_response()
    }
}

fn vm_of(cloud: &Cloud, reference: VmRef) -> Option<Value> {
    let (_, vm, template) = cloud.vms().find(|(found, ..)| *found == reference)?;
    Some(shown(vm, &template))
}

fn shown(vm: &Vm, template: &VmTemplate) -> Value {
    json!({
        "providerID": vm.provider_id,
        "namespace": vm.namespace(),
        "machine": vm.machine(),
        "nodeName": vm.node_name(),
        "class": template.class,
        "region": template.region,
        "zone": template.zone,
        "machineType": template.machine_type,
        "created": vm.created,
        "life": vm.life,
        "node": vm.node,
        "heartbeat": vm.heartbeat,
        "initialisation": vm.initialisation,
        "joining": vm.joining,
    })
}

async fn list_vms(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let vms = shared.with(|cloud, now| {
        cloud.advance(now);
        cloud.vms().map(|(_, vm, template)| shown(vm, &template)).collect::<Vec<_>>()
    });
    Json(json!({"vms": vms}))
}

async fn list_events(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(json!({"events": shared.with(|cloud, _| cloud.events())}))
}

/// The size of the simulation in the Prometheus text format.
async fn show_metrics(State(shared): State<Arc<Shared>>) -> Response {
    let text = shared.with(|cloud, now| {
        cloud.advance(now);
        let mut lives = BTreeMap::from([("creating", 0), ("running", 0), ("stopping", 0), ("gone", 0)]);
        for (_, vm, _) in cloud.vms() {
            *lives.entry(vm.life.word()).or_insert(0) += 1;
        }
        let mut text = "# HELP virtual_cloud_vms VMs of the simulation.\n# TYPE virtual_cloud_vms gauge\n".to_owned();
        text.extend(lives.iter().map(|(life, vms)| format!("virtual_cloud_vms{{life=\"{life}\"}} {vms}\n")));
        text.push_str("# HELP virtual_cloud_calls_total Calls of the simulated cloud.\n");
        text.push_str("# TYPE virtual_cloud_calls_total counter\n");
        let calls = cloud.calls();
        text.extend(calls.iter().map(|(op, calls)| format!("virtual_cloud_calls_total{{op=\"{op}\"}} {calls}\n")));
        text
    });
    ([(http::header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// `POST /vms/{id}/interrupt|vanish|notready|ready|freeze-heartbeat`; the id is a provider id, its last part, or a machine name.
async fn act_on_vm(State(shared): State<Arc<Shared>>, Path(rest): Path<String>) -> Result<Json<Value>, Refusal> {
    let (id, action) = rest.rsplit_once('/').unwrap_or((&rest, ""));
    let done = shared.with(|cloud, now| {
        cloud.advance(now);
        let Some(vm) = find(cloud, id) else {
            return Err(Refusal(StatusCode::NOT_FOUND, format!("there is no VM {id:?}")));
        };
        match action {
            "interrupt" => cloud.is_interrupted(vm, now),
            "vanish" => cloud.vanishes(vm, now),
            "notready" => cloud.breaks(vm, now),
            "ready" => cloud.recovers(vm, now),
            "freeze-heartbeat" => cloud.freeze(vm, now),
            other => {
                let message =
                    format!("unknown action {other:?}: must be interrupt, vanish, notready, ready or freeze-heartbeat");
                return Err(Refusal(StatusCode::NOT_FOUND, message));
            }
        }
        cloud.advance(now);
        Ok(vm_of(cloud, vm).unwrap_or(Value::Null))
    })?;
    keep(&shared).await?;
    Ok(Json(done))
}

fn find(cloud: &Cloud, id: &str) -> Option<VmRef> {
    cloud.find(id).or_else(|| {
        let mut named =
            cloud.vms().filter(|(_, vm, _)| vm.provider_id.rsplit('/').next() == Some(id) || vm.machine() == id);
        named.next().map(|(vm, ..)| vm)
    })
}

async fn keep(shared: &Shared) -> Result<(), Refusal> {
    shared.commit().await.map_err(|error| Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

/// The refusal of a body with these mistakes.
fn invalid_body(found: &Findings) -> Refusal {
    Refusal(StatusCode::UNPROCESSABLE_ENTITY, found.aggregate())
}

/// Makes a VM without a machine. The body needs `name` and `class`, and may have `namespace`, `provider`, `providerSpec` and `age`.
async fn make_orphan(
    State(shared): State<Arc<Shared>>,
    Json(body): Json<Value>,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    let mut found = Findings::new();
    let order = object(&body, &FieldPath::default(), &mut found, |body| {
        let mut needed = |key| {
            let text = body.text(key).filter(|text| !text.is_empty());
            if text.is_none() {
                body.required(key, "name of a machine that never was, and name of its class");
            }
            text
        };
        let (machine, class) = (needed("name").unwrap_or_default(), needed("class"));
        let namespace = body.text("namespace").unwrap_or_else(|| "default".to_owned());
        let class = MachineClass {
            metadata: ObjectMeta { name: class, namespace: Some(namespace.clone()), ..ObjectMeta::default() },
            provider: body.text("provider").unwrap_or_else(|| super::template::VIRTUAL.to_owned()),
            provider_spec: body.value("providerSpec", "", Some).cloned().unwrap_or_else(|| json!({})),
            ..MachineClass::default()
        };
        let template = VmTemplate::of_class(&class);
        let call = MachineCall { namespace, machine, template, ..MachineCall::default() };
        (call, body.duration("age").unwrap_or_default())
    });
    let (call, age) = order.filter(|_| !found.denies()).ok_or_else(|| invalid_body(&found))?;
    let age = jiff::SignedDuration::try_from(age).unwrap_or_default();
    let made = shared.with(|cloud, now| {
        let vm = cloud.make_orphan(&call, now.checked_sub(age).unwrap_or(now));
        cloud.advance(now);
        vm_of(cloud, vm).unwrap_or(Value::Null)
    });
    keep(&shared).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Replaces the failure rules. The body is the list of the configuration, in JSON.
async fn replace_failures(
    State(shared): State<Arc<Shared>>,
    Json(rules): Json<Vec<Value>>,
) -> Result<Json<Value>, Refusal> {
    let mut found = Findings::new();
    let rules = objects(&rules, &FieldPath::new("failures"), &mut found, FailureRule::read);
    if found.denies() {
        return Err(invalid_body(&found));
    }
    let count = rules.len();
    shared.with(|cloud, _| {
        let config = SimulationConfig { failures: rules, ..(**cloud.config()).clone() };
        cloud.forget_hits();
        cloud.reconfigure(Arc::new(config));
    });
    Ok(Json(json!({"failures": count})))
}

/// Advances a virtual clock. The body is `{"by": "2m"}`.
async fn advance_clock(State(shared): State<Arc<Shared>>, Json(body): Json<Value>) -> Result<Json<Value>, Refusal> {
    let mut found = Findings::new();
    let by = object(&body, &FieldPath::default(), &mut found, |body| body.required_duration("by"));
    let by = by.flatten().ok_or_else(|| invalid_body(&found))?;
    let now = shared.clock.advance(by).map_err(|error| Refusal(StatusCode::CONFLICT, error.to_string()))?;
    shared.with(Cloud::advance);
    Ok(Json(json!({"now": now})))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::loopback("127.0.0.1:8080", true)]
    #[case::a_socket("unix:/run/sim.sock", true)]
    #[case::the_world("0.0.0.0:8080", false)]
    #[case::another_host("10.0.0.1:8080", false)]
    #[case::no_port("127.0.0.1", false)]
    #[case::no_path("unix:", false)]
    fn only_addresses_of_this_host_are_accepted(#[case] text: &str, #[case] accepted: bool) {
        assert_eq!(text.parse::<AdminAddress>().is_ok(), accepted);
    }
}
