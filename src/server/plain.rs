//! The plain listeners: health, readiness, metrics. Source: spec/deployment-and-set §1.3, spec/machine-controller §12.4.

use axum::{
    Router,
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use http::{StatusCode, header::CONTENT_TYPE};

use super::health::{Health, Readiness};
use mcm_metrics::{Metrics, TEXT_CONTENT_TYPE};

/// Whether the flag `--profiling` asks for profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profiling {
    /// `/debug/pprof` does not exist.
    Off,
    /// `/debug/pprof` exists, and answers why there are no profiles.
    On,
}

#[derive(Clone)]
struct Plain {
    metrics: Metrics,
    profiling: Profiling,
}

pub(super) fn router(health: Health, metrics: Metrics, profiling: Profiling) -> Router {
    Router::new()
        .route("/metrics", get(render))
        .route("/configz", get(async || ([(CONTENT_TYPE, "application/json")], "{}")))
        .route("/debug/pprof", any(profile))
        .route("/debug/pprof/{*what}", any(profile))
        .with_state(Plain { metrics, profiling })
        .merge(health_routes(health))
}

/// `/healthz`, `/livez` and `/readyz`; also on the TLS listener.
pub(super) fn health_routes(health: Health) -> Router {
    Router::new()
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .with_state(health)
}

async fn alive(State(health): State<Health>) -> Response {
    if health.is_alive() {
        (StatusCode::OK, "OK").into_response()
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "Unhealthy").into_response()
    }
}

async fn ready(State(health): State<Health>, RawQuery(query): RawQuery) -> Response {
    let asks =
        |name: &str| query.iter().flat_map(|query| query.split('&')).any(|pair| pair.split('=').next() == Some(name));
    match health.readiness() {
        Readiness::Ready if asks("verbose") => (StatusCode::OK, health.report()).into_response(),
        Readiness::Ready => (StatusCode::OK, "ok").into_response(),
        Readiness::NotReady => (StatusCode::INTERNAL_SERVER_ERROR, health.report()).into_response(),
    }
}

async fn render(State(plain): State<Plain>) -> Response {
    match plain.metrics.render() {
        Ok(text) => ([(CONTENT_TYPE, TEXT_CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn profile(State(plain): State<Plain>) -> Response {
    match plain.profiling {
        Profiling::Off => {
            (StatusCode::NOT_FOUND, "profiling is off; start the process with --profiling\n").into_response()
        }
        Profiling::On => {
            (StatusCode::NOT_IMPLEMENTED, "profiles are not built into this version; use perf on the process\n")
                .into_response()
        }
    }
}
