//! A control plane of its own: etcd and kube-apiserver on loopback, and on request kube-controller-manager.
//!
//! Most tests share one ([`Rig::shared`]) and keep apart by namespace. A test that needs the cluster for itself, because it
//! registers webhooks or counts requests, takes [`Rig::own`].

use std::{
    collections::BTreeSet,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
    thread,
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use machine_controller_manager::cli::documents::{parse_documents, to_yaml};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose, SanType};
use serde_json::{Value, json};

use super::{assets, kubectl::Answer, kubectl::Kubectl, process::Process, scratch};

/// A user of the API server.
struct User {
    name: &'static str,
    group: &'static str,
    token: &'static str,
}

/// Who runs kubectl.
const ADMIN: User = User { name: "admin", group: "system:masters", token: "rig-admin-token" };
/// Who runs `mcm`: users of their own, so that admission judges their requests like anybody's. This one may do everything.
const MANAGER: User = User { name: "mcm-under-test", group: "rig-managers", token: "rig-manager-token" };
/// This one may do what `mcm manifests rbac` grants in the namespaces of [`Rig::grant`], and nothing else.
const RESTRICTED: User = User { name: "mcm-restricted", group: "rig-restricted", token: "rig-restricted-token" };
const USERS: [&User; 3] = [&ADMIN, &MANAGER, &RESTRICTED];

/// What `mcm` may do in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Everything.
    Everything,
    /// What `mcm manifests rbac --simulation` grants.
    Generated,
}

/// A running control plane.
pub struct Rig {
    pub folder: PathBuf,
    pub assets: PathBuf,
    kubectl: Kubectl,
    controller_manager: OnceLock<Process>,
    /// Ends before its store does.
    api_server: Mutex<ApiServer>,
    _etcd: Process,
}

/// The API server, and how it is started.
struct ApiServer {
    process: Process,
    program: PathBuf,
    arguments: Vec<String>,
}

/// A namespace of a test.
#[derive(Clone, Debug)]
pub struct Namespace {
    pub name: String,
    kubectl: Kubectl,
}

static ASSETS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static SHARED: OnceLock<Arc<Rig>> = OnceLock::new();

impl Rig {
    /// The control plane that the tests of this binary share; `None` if there are no programs to run one, which is said and
    /// counted.
    pub async fn shared(test: &str) -> Option<Arc<Self>> {
        Self::shared_in(&SHARED, test).await
    }

    /// A control plane that some tests share, kept in their cell.
    pub async fn shared_in(cell: &'static OnceLock<Arc<Self>>, test: &str) -> Option<Arc<Self>> {
        let assets = assets_for(test).await?;
        Some(blocking(move || Arc::clone(cell.get_or_init(|| Arc::new(Self::start(&assets))))).await)
    }

    /// One more control plane, for a test that needs two.
    pub async fn another(&self) -> Arc<Self> {
        let assets = self.assets.clone();
        Arc::new(blocking(move || Self::start(&assets)).await)
    }

    /// A control plane for one test alone.
    pub async fn own(test: &str) -> Option<Arc<Self>> {
        let assets = assets_for(test).await?;
        Some(Arc::new(blocking(move || Self::start(&assets)).await))
    }

    fn start(assets: &Path) -> Self {
        let folder = scratch::subfolder("rig");
        // A port that was free a moment ago may be taken when it is needed: try again with others.
        for _ in 0..3 {
            if let Some(rig) = Self::try_start(assets, &folder) {
                return rig;
            }
        }
        panic!("the API server does not start; its log:\n{}", tail_of(&folder.join("kube-apiserver.log")));
    }

    fn try_start(assets: &Path, folder: &Path) -> Option<Self> {
        let (client_port, peer_port, api_port) = (free_port(), free_port(), free_port());
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
        let url = format!("https://127.0.0.1:{api_port}");
        let authority = write_credentials(folder);
        for user in USERS {
            fs::write(kubeconfig_path(folder, user), kubeconfig(&url, &authority, user)).expect("writable");
        }
        let file = |name: &str| folder.join(name).display().to_string();
        let program = assets.join("kube-apiserver");
        let arguments = [
            format!("--etcd-servers={etcd_url}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--secure-port={api_port}"),
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
        ]
        .to_vec();
        let mut api_server = Process::start(folder, "kube-apiserver", &program, &arguments);
        let kubectl = Kubectl {
            program: assets.join("kubectl"),
            kubeconfig: kubeconfig_path(folder, &ADMIN),
            namespace: None,
            home: folder.to_path_buf(),
        };
        let deadline = Instant::now() + Duration::from_secs(90);
        while !is_ready(&kubectl) {
            if api_server.ended().is_some() {
                return None;
            }
            assert!(Instant::now() < deadline, "no ready API server after 90 s:\n{}", api_server.log_tail());
            thread::sleep(Duration::from_millis(100));
        }
        let rig = Self {
            folder: folder.to_path_buf(),
            assets: assets.to_path_buf(),
            kubectl,
            controller_manager: OnceLock::new(),
            api_server: Mutex::new(ApiServer { process: api_server, program, arguments }),
            _etcd: etcd,
        };
        rig.let_managers_do_everything();
        Some(rig)
    }

    fn let_managers_do_everything(&self) {
        let made = std::process::Command::new(&self.kubectl.program)
            .arg("--kubeconfig")
            .arg(&self.kubectl.kubeconfig)
            .args(["create", "clusterrolebinding", "rig-managers", "--clusterrole=cluster-admin"])
            .arg(format!("--group={}", MANAGER.group))
            .env("HOME", &self.folder)
            .output()
            .expect("kubectl runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// Starts kube-controller-manager with garbage collection, namespace deletion and the arithmetic of disruption budgets.
    pub async fn with_controller_manager(self: &Arc<Self>) {
        let rig = Arc::clone(self);
        blocking(move || {
            rig.controller_manager.get_or_init(|| {
                Process::start(
                    &rig.folder,
                    "kube-controller-manager",
                    &rig.assets.join("kube-controller-manager"),
                    &[
                        format!("--kubeconfig={}", rig.kubectl.kubeconfig.display()),
                        "--controllers=garbage-collector-controller,namespace-controller,disruption-controller"
                            .to_owned(),
                        "--leader-elect=false".to_owned(),
                        "--bind-address=127.0.0.1".to_owned(),
                        format!("--secure-port={}", free_port()),
                        format!("--cert-dir={}", rig.folder.display()),
                    ],
                )
            });
        })
        .await;
    }

    /// Stops the API server where it stands (SIGSTOP): connections stay open and nothing answers.
    pub fn suspend_api_server(&self) {
        self.api_server.lock().expect("no test panics with the API server in hand").process.signal("STOP");
    }

    /// Lets a suspended API server go on.
    pub fn resume_api_server(&self) {
        self.api_server.lock().expect("no test panics with the API server in hand").process.signal("CONT");
    }

    /// Kills the API server: connections break, and nobody answers at its address.
    pub fn stop_api_server(&self) {
        self.api_server.lock().expect("no test panics with the API server in hand").process.kill();
    }

    /// Kills the API server, if it runs, and starts it anew: watches break, and what happened before its start it can't tell
    /// again.
    pub async fn restart_api_server(self: &Arc<Self>) {
        let rig = Arc::clone(self);
        blocking(move || {
            let mut server = rig.api_server.lock().expect("no test panics with the API server in hand");
            server.process.kill();
            server.process = Process::start(&rig.folder, "kube-apiserver", &server.program, &server.arguments);
            let deadline = Instant::now() + Duration::from_secs(90);
            while !is_ready(&rig.kubectl) {
                assert!(Instant::now() < deadline, "no API server after its restart:\n{}", server.process.log_tail());
                thread::sleep(Duration::from_millis(100));
            }
        })
        .await;
    }

    /// kubectl without a namespace.
    pub async fn kubectl(&self, arguments: &[&str]) -> Answer {
        self.kubectl.run(arguments, None).await
    }

    /// `kubectl apply` of a text, without a namespace.
    pub async fn apply(&self, manifest: &str) -> Answer {
        self.kubectl.run(&["apply", "--server-side", "-f", "-"], Some(manifest)).await
    }

    /// A new namespace whose name begins with `name`.
    pub async fn namespace(&self, name: &str) -> Namespace {
        let unique = {
            static TAKEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
            let mut taken = TAKEN.lock().expect("no test panics while it names a namespace");
            let number = taken.range(format!("{name}-")..).filter(|other| other.starts_with(name)).count() + 1;
            let unique = format!("{name}-{number}");
            taken.insert(unique.clone());
            unique
        };
        self.namespace_named(&unique).await
    }

    /// A new namespace of that very name; for tests with a control plane of their own.
    pub async fn namespace_named(&self, name: &str) -> Namespace {
        self.kubectl(&["create", "namespace", name]).await.succeed();
        Namespace {
            kubectl: Kubectl { namespace: Some(name.to_owned()), ..self.kubectl.clone() },
            name: name.to_owned(),
        }
    }

    /// Installs the CRDs as `mcm manifests crds` prints them, and waits until all are served.
    pub async fn install_crds(&self) {
        let crds = super::manager::mcm(&["manifests", "crds"]);
        self.apply(&crds).await.succeed();
        self.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]).await.succeed();
        for resource in ["machines", "machinesets", "machinedeployments", "machineclasses"] {
            super::wait_until(&format!("{resource} to be served"), Duration::from_secs(30), || async {
                let answer = self.kubectl(&["get", resource, "--all-namespaces"]).await;
                if answer.succeeded() { Ok(()) } else { Err(answer.stderr) }
            })
            .await;
        }
    }

    /// Kubeconfig of the user that `mcm` runs as in a namespace.
    pub async fn manager_kubeconfig(&self, namespace: &Namespace, rights: Rights) -> PathBuf {
        match rights {
            Rights::Everything => kubeconfig_path(&self.folder, &MANAGER),
            Rights::Generated => {
                self.grant(namespace).await;
                kubeconfig_path(&self.folder, &RESTRICTED)
            }
        }
    }

    /// Grants what the code says that it needs, to a user in place of the service account.
    async fn grant(&self, namespace: &Namespace) {
        let generated = super::manager::mcm(&["manifests", "rbac", "--simulation", "--namespace", &namespace.name]);
        let mut documents = parse_documents("rbac", &generated).expect("mcm prints YAML");
        for document in &mut documents {
            if let Some(subjects) = document.value.get_mut("subjects") {
                let user = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": RESTRICTED.name });
                *subjects = json!([user]);
            }
        }
        let granted = to_yaml(documents.iter().map(|document| &document.value)).expect("JSON has a YAML form");
        self.apply(&granted).await.succeed();
    }

    /// The same, without kube's retries: an answer is an answer.
    pub async fn client_without_retries(&self) -> kube::Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let file = kube::config::Kubeconfig::read_from(&self.kubectl.kubeconfig).expect("the kubeconfig is readable");
        let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await;
        let mut config = config.expect("the kubeconfig is complete");
        config.default_retry = false;
        kube::Client::try_from(config).expect("a client")
    }

    /// A client with the rights of the admin. It belongs to the runtime of the test that asks for it.
    pub async fn client(&self) -> kube::Client {
        // Several crypto providers may be linked; the first test to come chooses, the others find it chosen.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let file = kube::config::Kubeconfig::read_from(&self.kubectl.kubeconfig).expect("the kubeconfig is readable");
        let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await;
        kube::Client::try_from(config.expect("the kubeconfig is complete")).expect("a client")
    }
}

impl Namespace {
    /// kubectl in this namespace.
    pub async fn kubectl(&self, arguments: &[&str]) -> Answer {
        self.kubectl.run(arguments, None).await
    }

    /// `kubectl apply` of a text in this namespace.
    pub async fn apply(&self, manifest: &str) -> Answer {
        self.kubectl.run(&["apply", "-f", "-"], Some(manifest)).await
    }

    /// `kubectl edit` in this namespace, with a program in place of a person's editor.
    pub async fn edit(&self, object: &str, editor: &str) -> Answer {
        self.kubectl.run_with(&[("KUBE_EDITOR", editor)], &["edit", object], None).await
    }

    /// The objects of a kind, as JSON.
    pub async fn list(&self, resource: &str) -> Vec<Value> {
        super::cluster_object::items(&self.kubectl(&["get", resource, "-o", "json"]).await.json())
    }

    /// One object, as JSON.
    pub async fn get(&self, resource: &str, name: &str) -> Value {
        self.kubectl(&["get", resource, name, "-o", "json"]).await.json()
    }
}

async fn assets_for(test: &str) -> Option<PathBuf> {
    match blocking(|| ASSETS.get_or_init(assets::find).clone()).await {
        Ok(folder) => {
            scratch::count_ran(test);
            Some(folder)
        }
        Err(why) => {
            scratch::count_skipped(test, &why);
            None
        }
    }
}

/// Runs what blocks off the runtime's threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(error) => panic!("{error}"),
    })
}

/// A loopback port that is free now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound address").port()
}

fn is_ready(kubectl: &Kubectl) -> bool {
    let ask = |path: &str| {
        std::process::Command::new(&kubectl.program)
            .arg("--kubeconfig")
            .arg(&kubectl.kubeconfig)
            .args(["get", "--raw", path])
            .env("HOME", &kubectl.home)
            .output()
            .is_ok_and(|output| output.status.success())
    };
    ask("/readyz") && ask("/api/v1/namespaces/kube-system")
}

/// Writes certificates, keys and tokens of the API server; returns the CA in PEM.
fn write_credentials(folder: &Path) -> String {
    let write = |name: &str, text: String| fs::write(folder.join(name), text).expect("the scratch folder is writable");
    let key = || KeyPair::generate().expect("a key pair");

    let mut ca = CertificateParams::default();
    ca.distinguished_name.push(rcgen::DnType::CommonName, "rig CA");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let ca = CertifiedIssuer::self_signed(ca, key()).expect("a CA");

    let mut serving = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    serving.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
    let serving_key = key();
    let serving = serving.signed_by(&serving_key, &ca).expect("a certificate");
    write("serving.crt", serving.pem());
    write("serving.key", serving_key.serialize_pem());

    let service_account = key();
    write("service-account.key", service_account.serialize_pem());
    write("service-account.pub", service_account.public_key_pem());

    let token = |user: &User| format!("{},{},{},\"{}\"\n", user.token, user.name, user.name, user.group);
    write("tokens.csv", USERS.map(token).concat());
    ca.pem()
}

fn kubeconfig_path(folder: &Path, user: &User) -> PathBuf {
    folder.join(format!("{}.kubeconfig", user.name))
}

fn kubeconfig(url: &str, authority: &str, user: &User) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "rig",
        "clusters": [{
            "name": "rig",
            "cluster": { "server": url, "certificate-authority-data": BASE64_STANDARD.encode(authority) },
        }],
        "users": [{ "name": user.name, "user": { "token": user.token } }],
        "contexts": [{ "name": "rig", "context": { "cluster": "rig", "user": user.name } }],
    })
    .to_string()
}

fn tail_of(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
