//! The API server of a test: a real kube-apiserver with etcd, or the development server of `mcm dev`.
//!
//! Both are separate processes with the same users and RBAC, so that a test runs on either. A test that needs a real one says so when
//! it requests its rig ([`super::rig::Rig::own_real`]).

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{aggregation::Aggregation, ports::free_port, process::Process};

/// The binary under test.
const MCM: &str = env!("CARGO_BIN_EXE_mcm");
/// The environment variable with the backend of tests that run on both.
const VARIABLE: &str = "MCM_TEST_BACKEND";

/// An API server to test on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// kube-apiserver over etcd.
    Real,
    /// `mcm dev --api-server-only`.
    Dev,
}

impl Backend {
    /// The backend in `MCM_TEST_BACKEND`; a real API server if the variable is unset.
    pub fn chosen() -> Self {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "real") => Self::Real,
            Ok("dev") => Self::Dev,
            Ok(other) => panic!("{VARIABLE}={other}: it is real or dev"),
        }
    }
}

/// A running API server with its store, and the command that starts it.
pub struct ApiServer {
    pub process: Process,
    pub url: String,
    /// The certificate authority, in Base64.
    pub authority: String,
    folder: PathBuf,
    name: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
    /// It ends after the API server.
    _etcd: Option<Process>,
}

/// Files that the rig has prepared.
pub struct Credentials {
    /// The authority of the serving certificate, in Base64.
    pub authority: String,
}

/// The address in the endpoints of Service `kubernetes`, to which nothing connects. From 1.37 on kube-apiserver refuses a loopback address, so that
/// versions that a test run chooses get one of the addresses for documentation.
fn advertised() -> &'static str {
    if std::env::var_os("MCM_TEST_KUBERNETES").is_some() { "192.0.2.1" } else { "127.0.0.1" }
}

impl ApiServer {
    /// Starts kube-apiserver with its own etcd and with further flags.
    pub fn start_real(assets: &Path, folder: &Path, credentials: &Credentials, further: Vec<String>) -> Self {
        let (client_port, peer_port, port) = (free_port(), free_port(), free_port());
        let data = folder.join(format!("etcd-{client_port}"));
        let etcd_url = format!("http://127.0.0.1:{client_port}");
        let peer_url = format!("http://127.0.0.1:{peer_port}");
        let etcd = Process::start(
            folder,
            "etcd",
            &assets.join("etcd"),
            &[
                format!("--data-dir={}", data.display()),
                format!("--listen-client-urls={etcd_url}"),
                format!("--advertise-client-urls={etcd_url}"),
                format!("--listen-peer-urls={peer_url}"),
                format!("--initial-advertise-peer-urls={peer_url}"),
                format!("--initial-cluster=default={peer_url}"),
                "--unsafe-no-fsync".to_owned(),
                "--log-level=error".to_owned(),
            ],
        );
        let file = |name: &str| folder.join(name).display().to_string();
        let mut arguments = [
            format!("--etcd-servers={etcd_url}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--advertise-address={}", advertised()),
            format!("--secure-port={port}"),
            format!("--cert-dir={}", folder.display()),
            format!("--tls-cert-file={}", file("serving.crt")),
            format!("--tls-private-key-file={}", file("serving.key")),
            format!("--token-auth-file={}", file("tokens.csv")),
            "--authorization-mode=RBAC".to_owned(),
            "--enable-bootstrap-token-auth".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", file("service-account.pub")),
            format!("--service-account-signing-key-file={}", file("service-account.key")),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            // As usual in clusters; machines that are pods need it.
            "--allow-privileged=true".to_owned(),
        ]
        .to_vec();
        arguments.extend(further);
        let (name, program) = ("kube-apiserver", assets.join("kube-apiserver"));
        Self {
            process: Process::start(folder, name, &program, &arguments),
            url: format!("https://127.0.0.1:{port}"),
            authority: credentials.authority.clone(),
            folder: folder.to_path_buf(),
            name,
            program,
            arguments,
            _etcd: Some(etcd),
        }
    }

    /// Starts the development server. It has a data folder, so that it can be restarted, and the authorities of the rig if a test signs
    /// certificates. None if the process ends at once.
    pub fn start_dev(folder: &Path, authorities: Option<&Aggregation>, further: Vec<String>) -> Option<Self> {
        let port = free_port();
        let kubeconfig = folder.join("dev.kubeconfig");
        let _ = fs::remove_file(&kubeconfig);
        let data = folder.join(format!("dev-{port}"));
        if let Some(authorities) = authorities {
            fs::DirBuilder::new().mode(0o700).create(&data).expect("the scratch folder is writable");
            authorities.write_for_dev(&data);
        }
        let mut arguments = [
            "dev".to_owned(),
            "--api-server-only".to_owned(),
            format!("--port={port}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--data-dir={}", data.display()),
            format!("--token-auth-file={}", folder.join("tokens.csv").display()),
            "--authorization-mode=RBAC".to_owned(),
        ]
        .to_vec();
        arguments.extend(further);
        let (name, program) = ("mcm-dev", PathBuf::from(MCM));
        let mut process = Process::start(folder, name, &program, &arguments);
        let authority = wait_for_authority(&kubeconfig, &mut process)?;
        let url = format!("https://127.0.0.1:{port}");
        Some(Self { process, url, authority, folder: folder.to_path_buf(), name, program, arguments, _etcd: None })
    }

    /// Kills the API server and starts it again with the same data.
    pub fn restart(&mut self) {
        self.process.kill();
        self.process = Process::start(&self.folder, self.name, &self.program, &self.arguments);
    }
}

/// Waits for the kubeconfig of the development server, and returns the certificate authority in it.
fn wait_for_authority(kubeconfig: &Path, process: &mut Process) -> Option<String> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let read = fs::read_to_string(kubeconfig).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let authority = read.and_then(|config| {
            config.pointer("/clusters/0/cluster/certificate-authority-data")?.as_str().map(str::to_owned)
        });
        if authority.is_some() {
            return authority;
        }
        if process.ended().is_some() {
            return None;
        }
        assert!(Instant::now() < deadline, "no kubeconfig of mcm dev after 30 s:\n{}", process.log_tail());
        thread::sleep(Duration::from_millis(20));
    }
}
