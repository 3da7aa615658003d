//! `mcm serve` as a separate process, as in production. Tests can kill, restart and terminate it.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    ports::free_port,
    process::Process,
    rig::{Namespace, Rig, Rights},
    wait_until,
};

/// The binary under test.
const MCM: &str = env!("CARGO_BIN_EXE_mcm");

/// Options of a manager, in addition to clusters, namespace and ports.
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// Text of the simulation config. The default has no latencies and serves AWS.
    pub simulation: String,
    /// Further flags. A later flag overrides an earlier one.
    pub flags: Vec<String>,
    /// Rights of the manager.
    pub rights: Rights,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self { simulation: SWIFT_CLOUD.to_owned(), flags: Vec::new(), rights: Rights::Everything }
    }
}

/// A virtual cloud without latencies that serves AWS in addition to `virtual`.
pub const SWIFT_CLOUD: &str = "\
seed: 1
impersonate: [AWS]
latency:
  create: {constant: 0s}
  boot: {constant: 0s}
  ready: {constant: 0s}
  delete: {constant: 0s}
  api: {constant: 0s}
";

/// A running `mcm serve`.
pub struct TestManager {
    process: Process,
    program: PathBuf,
    folder: PathBuf,
    name: String,
    arguments: Vec<String>,
    http_port: u16,
    pub secure_port: u16,
}

impl TestManager {
    /// Starts the manager of a namespace and waits until it answers `/readyz`.
    pub async fn start(rig: &Arc<Rig>, namespace: &Namespace, options: &ManagerOptions) -> Self {
        Self::start_as(&format!("mcm-{}", namespace.name), rig, namespace, options).await
    }

    /// The same with a given name, for a namespace with several managers.
    pub async fn start_as(name: &str, rig: &Arc<Rig>, namespace: &Namespace, options: &ManagerOptions) -> Self {
        Self::start_program(Path::new(MCM), name, rig, namespace, options).await
    }

    /// The same with another program, such as an earlier release.
    pub async fn start_program(
        program: &Path,
        name: &str,
        rig: &Arc<Rig>,
        namespace: &Namespace,
        options: &ManagerOptions,
    ) -> Self {
        let (http_port, secure_port) = (free_port(), free_port());
        let name = name.to_owned();
        let simulation = simulation_file(&rig.folder, &name);
        std::fs::write(&simulation, &options.simulation).expect("the rig's folder is writable");
        let kubeconfig = rig.manager_kubeconfig(namespace, options.rights).await.display().to_string();
        let mut arguments = [
            "serve".to_owned(),
            format!("--control-kubeconfig={kubeconfig}"),
            format!("--target-kubeconfig={kubeconfig}"),
            format!("--namespace={}", namespace.name),
            "--leader-elect=false".to_owned(),
            "--address=127.0.0.1".to_owned(),
            format!("--port={http_port}"),
            "--compat-port=0".to_owned(),
            "--secure-address=127.0.0.1".to_owned(),
            format!("--secure-port={secure_port}"),
            "--cert-mode=self-managed".to_owned(),
            "--shutdown-delay-duration=0s".to_owned(),
            "--enable-simulation".to_owned(),
            format!("--simulation-config={}", simulation.display()),
            "--kube-api-qps=150".to_owned(),
            "--kube-api-burst=200".to_owned(),
            "-v=4".to_owned(),
        ]
        .to_vec();
        arguments.extend(options.flags.iter().cloned());
        let process = Process::start(&rig.folder, &name, program, &arguments);
        let (program, folder) = (program.to_path_buf(), rig.folder.clone());
        let mut manager = Self { process, program, folder, name, arguments, http_port, secure_port };
        manager.wait_until_ready().await;
        manager
    }

    /// Waits until `/readyz` answers 200. Panics with the log if the process ends before.
    pub async fn wait_until_ready(&mut self) {
        let port = self.http_port;
        for _ in 0..600 {
            if let Some(code) = self.process.ended() {
                panic!("mcm serve ended with code {code}:\n{}", self.process.log_tail());
            }
            if get(port, "/readyz").await.is_ok_and(|(status, _)| status == 200) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("mcm serve is not ready after 60 s:\n{}", self.process.log_tail());
    }

    /// Body of a GET on the plain port.
    pub async fn http_get(&self, path: &str) -> String {
        let (status, body) = get(self.http_port, path).await.expect("the plain port answers");
        assert_eq!(status, 200, "GET {path}: {body}");
        body
    }

    /// Changes the simulation config. The manager reads it again when the file changes.
    pub fn simulate(&self, simulation: &str) {
        std::fs::write(simulation_file(&self.folder, &self.name), simulation).expect("the rig's folder is writable");
    }

    /// Ends the process with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts the process again with the same flags; one that still runs is killed first, because the ports are the same. Does not wait
    /// until the new process is ready.
    pub fn restart(&mut self) {
        self.process.kill();
        self.process = Process::start(&self.folder, &self.name, &self.program, &self.arguments);
    }

    /// Like [`Self::restart`], with further flags from now on.
    pub fn restart_with(&mut self, flags: &[&str]) {
        self.arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self.restart();
    }

    /// Sends a signal, such as `TERM`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Waits for the end of the process and returns its exit code.
    pub fn wait(&mut self, timeout: Duration) -> i32 {
        self.process.wait(timeout)
    }

    /// Status and body of a GET on the plain port.
    pub async fn http(&self, path: &str) -> (u16, String) {
        get(self.http_port, path).await.expect("the plain port answers")
    }

    /// The plain port.
    pub fn http_port(&self) -> u16 {
        self.http_port
    }

    /// Ends the process with SIGTERM, and returns its exit code.
    pub fn terminate(&mut self) -> i32 {
        self.process.signal("TERM");
        self.process.wait(Duration::from_secs(60))
    }

    /// Resident memory.
    pub fn resident_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.pid())).unwrap_or_default();
        let resident =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
        resident.unwrap_or(0_u64) / 1024
    }

    /// Suspends the process (SIGSTOP).
    pub fn suspend(&self) {
        self.process.signal("STOP");
    }

    /// Resumes a suspended process (SIGCONT).
    pub fn resume(&self) {
        self.process.signal("CONT");
    }

    /// The log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Registers the webhooks of this manager by URL, and waits until they answer.
    pub async fn register_webhooks(&self, rig: &Arc<Rig>, namespace: &Namespace) {
        self.register_webhooks_of("cluster", rig, namespace).await;
    }

    /// The same for the objects of this scope (`mcm manifests --scope`).
    pub async fn register_webhooks_of(&self, scope: &str, rig: &Arc<Rig>, namespace: &Namespace) {
        let url = format!("--webhook-url=https://127.0.0.1:{}", self.secure_port);
        let manifests = mcm(&["manifests", "webhooks", "--namespace", &namespace.name, "--scope", scope, &url]);
        rig.apply(&manifests).await.succeed();
        // Only a webhook refuses this object. The text of the error proves that certificate, URL and rules work.
        let probe = "{apiVersion: machine.sapcloud.io/v1alpha1, kind: Machine, metadata: {name: probe, annotations: \
                     {machinepriority.machine.sapcloud.io: high}}, spec: {class: {kind: MachineClass, name: c}}}";
        let file = rig.folder.join("webhook-probe.yaml");
        std::fs::write(&file, probe).expect("the rig's folder is writable");
        let file = file.display().to_string();
        wait_until("the webhooks to judge", Duration::from_secs(60), || async {
            let answer = namespace.kubectl(&["create", "--dry-run=server", "-f", &file]).await;
            if answer.stderr.contains("must be an integer") { Ok(()) } else { Err(answer.stderr + &answer.stdout) }
        })
        .await;
    }
}

fn simulation_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.simulation.yaml"))
}

/// Standard output of a run of `mcm` that must succeed.
pub fn mcm(arguments: &[&str]) -> String {
    let run = Command::new(MCM).args(arguments).output().expect("mcm runs");
    assert!(run.status.success(), "mcm {}: {}", arguments.join(" "), String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).expect("mcm prints UTF-8")
}

/// Exit code, output and errors of a run of `mcm` with this standard input.
pub async fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>, input: &str) -> (i32, String, String) {
    let mut child = tokio::process::Command::new(MCM)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mcm starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    // A command that asks no question may end without reading its input.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let ended = child.wait_with_output().await.expect("mcm ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("mcm prints UTF-8");
    (ended.status.code().unwrap_or(-1), text(ended.stdout), text(ended.stderr))
}

/// Status and body of a plain GET on loopback.
async fn get(port: u16, path: &str) -> std::io::Result<(u16, String)> {
    request(port, "GET", path, "").await
}

/// Status and body of a plain request on loopback; a body that is not empty is JSON.
pub async fn request(port: u16, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let head = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
    let mut answer = Vec::new();
    tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await??;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split_whitespace().nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    Ok((status, body.to_owned()))
}
