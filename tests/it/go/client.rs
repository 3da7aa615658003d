//! A Go program with the informers and clients of client-go (`tests/go-client`) on both API servers.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use crate::{
    conformance,
    support::{Backend, Rig, assets, scratch, wait_until},
};

static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();

#[tokio::test(flavor = "multi_thread")]
async fn client_go_works_with_the_development_server() {
    works_with(Backend::Dev, "go::client::client_go_works_with_the_development_server").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_go_works_with_a_real_api_server() {
    works_with(Backend::Real, "go::client::client_go_works_with_a_real_api_server").await;
}

async fn works_with(backend: Backend, test: &str) {
    let built = tokio::task::spawn_blocking(|| PROGRAM.get_or_init(build).clone()).await.expect("the build ends");
    let program = match built {
        Ok(program) => program,
        Err(why) => {
            scratch::count_skipped(test, &why);
            return;
        }
    };
    let Some(rig) = Rig::own_on(backend, test).await else { return };
    things_are_served(&rig).await;
    let run = tokio::process::Command::new(program)
        .arg("--kubeconfig")
        .arg(rig.admin_kubeconfig())
        // Requests streaming lists, independent of the default of this client-go version.
        .env("KUBE_FEATURE_WatchListClient", "true")
        .kill_on_drop(true)
        .output()
        .await
        .expect("the program starts");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{backend:?}:\n{text}{}", String::from_utf8_lossy(&run.stderr));
    println!("{backend:?}: {}", text.lines().last().unwrap_or_default());
}

async fn things_are_served(rig: &Arc<Rig>) {
    rig.apply(&conformance::definition().to_string()).await.succeed();
    wait_until("things to be served", Duration::from_secs(30), || async {
        let answer = rig.kubectl(&["get", "things", "--all-namespaces"]).await;
        if answer.succeeded() { Ok(()) } else { Err(answer.stderr) }
    })
    .await;
}

/// The built program, or the reason why there is none.
fn build() -> Result<PathBuf, String> {
    assets::printed_by("go-client", "there is no Go client to test with: install Go and run scripts/go-client")
}
