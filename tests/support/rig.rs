//! The control plane of tests: an API server on loopback ([`super::backend`]), and on request kube-controller-manager.
//!
//! Most tests share one ([`Rig::shared`]) and use different namespaces. A test that needs a cluster alone, because it registers webhooks
//! or counts requests, uses [`Rig::own`].

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use machine_controller_manager::cli::documents::{parse_documents, to_yaml};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose, SanType};
use serde_json::{Value, json};

use super::{
    aggregation::Aggregation,
    assets,
    backend::{ApiServer, Backend, Credentials},
    kubectl::Answer,
    kubectl::Kubectl,
    lying::Liar,
    ports::free_port,
    process::Process,
    reader::{self, Reader},
    scratch,
};

/// A user of the API server.
struct User {
    name: &'static str,
    group: &'static str,
    token: &'static str,
}

/// The user of kubectl.
const ADMIN: User = User { name: "admin", group: "system:masters", token: "rig-admin-token" };
/// The user of `mcm` with all rights. It is a user of its own, so that admission makes no exception for it.
const MANAGER: User = User { name: "mcm-under-test", group: "rig-managers", token: "rig-manager-token" };
/// The user of `mcm` with only the rights of `mcm manifests rbac` in the namespaces of [`Rig::grant`].
const RESTRICTED: User = User { name: "mcm-restricted", group: "rig-restricted", token: "rig-restricted-token" };
/// A user without rights. Tests can give it some.
const ALICE: User = User { name: "alice", group: "rig-people", token: "rig-alice-token" };
const USERS: [&User; 4] = [&ADMIN, &MANAGER, &RESTRICTED, &ALICE];

/// The rights of `mcm` in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// All rights.
    Everything,
    /// The rights of `mcm manifests rbac --simulation`.
    Generated,
    /// The same rights, for the half with this program name.
    OfHalf(&'static str),
    /// The generated rights and those for machines that are pods in the namespace.
    WithLocalMachines,
}

/// Special properties of an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extras {
    None,
    /// It forwards requests to extension API servers, and tests sign certificates of callers.
    Aggregation,
    /// It has no garbage collection, which the development server has by default.
    NoGarbageCollection,
    /// It writes an audit log, with the bodies of requests for machine objects.
    Audit,
    /// It admits pods of the system's priority classes only where a quota names the class, as GKE does.
    LimitedPriorities,
}

/// The audit log in the folder of a rig.
const AUDIT_LOG: &str = "audit.log";

/// The flags of an API server that logs every request once.
fn audit_flags(folder: &Path) -> [String; 2] {
    let policy = folder.join("audit-policy.yaml");
    let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
                - {level: Request, resources: [{group: machine.sapcloud.io}]}\n- level: Metadata\n";
    fs::write(&policy, text).expect("the scratch folder is writable");
    [
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", folder.join(AUDIT_LOG).display()),
    ]
}

/// A running control plane.
pub struct Rig {
    pub folder: PathBuf,
    pub assets: PathBuf,
    backend: Backend,
    /// Authorities of callers, if the API server has aggregation.
    pub aggregation: Option<Aggregation>,
    kubectl: Kubectl,
    reader: Arc<Reader>,
    controller_manager: OnceLock<Process>,
    api_server: Mutex<ApiServer>,
}

/// A namespace of a test.
#[derive(Clone)]
pub struct Namespace {
    pub name: String,
    kubectl: Kubectl,
    reader: Arc<Reader>,
}

static ASSETS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static SHARED: OnceLock<Arc<Rig>> = OnceLock::new();

impl Rig {
    /// The control plane that the tests of this binary share, with the selected backend. `None` without the programs; then the test
    /// prints that it is skipped, and is counted.
    pub async fn shared(test: &str) -> Option<Arc<Self>> {
        Self::shared_in(&SHARED, test).await
    }

    /// A control plane that some tests share. It is stored in their cell.
    pub async fn shared_in(cell: &'static OnceLock<Arc<Self>>, test: &str) -> Option<Arc<Self>> {
        let assets = assets_for(test).await?;
        let start = move || Arc::new(Self::start(Backend::chosen(), Extras::None, &assets));
        Some(blocking(move || Arc::clone(cell.get_or_init(start))).await)
    }

    /// A second control plane of the same kind, for a test that needs two.
    pub async fn another(&self) -> Arc<Self> {
        let (backend, assets) = (self.backend, self.assets.clone());
        Arc::new(blocking(move || Self::start(backend, Extras::None, &assets)).await)
    }

    /// A control plane for one test only, with the selected backend.
    pub async fn own(test: &str) -> Option<Arc<Self>> {
        Self::own_on(Backend::chosen(), test).await
    }

    /// The same for a test that can't run on the development server.
    pub async fn own_real(test: &str, why: &str) -> Option<Arc<Self>> {
        if is_left_out(test, why) { None } else { Self::own(test).await }
    }

    /// A control plane for one test only, with this backend.
    pub async fn own_on(backend: Backend, test: &str) -> Option<Arc<Self>> {
        let assets = assets_for(test).await?;
        Some(Arc::new(blocking(move || Self::start(backend, Extras::None, &assets)).await))
    }

    /// A control plane for one test only whose API server writes an audit log. The development server has none.
    pub async fn audited(test: &str, why: &str) -> Option<Arc<Self>> {
        if is_left_out(test, why) {
            return None;
        }
        let assets = assets_for(test).await?;
        Some(Arc::new(blocking(move || Self::start(Backend::Real, Extras::Audit, &assets)).await))
    }

    /// The entries of the audit log about a user.
    pub fn audit_of(&self, user: &str) -> Vec<Value> {
        let log = fs::read_to_string(self.folder.join(AUDIT_LOG)).expect("the API server writes it");
        let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        entries.filter(|entry| entry["user"]["username"] == user).collect()
    }

    /// A control plane for one test only whose API server forwards requests to extension API servers.
    pub async fn aggregating(test: &str) -> Option<Arc<Self>> {
        let assets = assets_for(test).await?;
        Some(Arc::new(blocking(move || Self::start(Backend::chosen(), Extras::Aggregation, &assets)).await))
    }

    /// A control plane for one test only without garbage collection until [`Rig::with_controller_manager`].
    pub async fn without_garbage_collection(test: &str) -> Option<Arc<Self>> {
        let assets = assets_for(test).await?;
        let start = move || Self::start(Backend::chosen(), Extras::NoGarbageCollection, &assets);
        Some(Arc::new(blocking(start).await))
    }

    /// A control plane for one test only that admits pods of the system's priority classes only where a quota names the class. The
    /// development server can't do this.
    pub async fn limiting_priorities(test: &str, why: &str) -> Option<Arc<Self>> {
        if is_left_out(test, why) {
            return None;
        }
        let assets = assets_for(test).await?;
        let start = move || Self::start(Backend::Real, Extras::LimitedPriorities, &assets);
        Some(Arc::new(blocking(start).await))
    }

    fn start(backend: Backend, extras: Extras, assets: &Path) -> Self {
        let folder = scratch::subfolder("rig");
        // Another process may bind a free port before the API server does. Then other ports are tried.
        for _ in 0..3 {
            if let Some(rig) = Self::try_start(backend, extras, assets, &folder) {
                return rig;
            }
        }
        let logs = ["kube-apiserver.log", "mcm-dev.log"].map(|log| tail_of(&folder.join(log)));
        panic!("the API server does not start; its log:\n{}", logs.concat());
    }

    fn try_start(backend: Backend, extras: Extras, assets: &Path, folder: &Path) -> Option<Self> {
        let credentials = Credentials { authority: BASE64_STANDARD.encode(write_credentials(folder)) };
        let aggregation = (extras == Extras::Aggregation).then(Aggregation::new);
        let mut api_server = match backend {
            Backend::Real => {
                let mut further = aggregation.as_ref().map(|aggregation| aggregation.flags(folder)).unwrap_or_default();
                if extras == Extras::Audit {
                    further.extend(audit_flags(folder));
                }
                if extras == Extras::LimitedPriorities {
                    further.push(limited_priorities(folder));
                }
                ApiServer::start_real(assets, folder, &credentials, further)
            }
            Backend::Dev => {
                let collects = extras != Extras::NoGarbageCollection;
                let further = if collects { Vec::new() } else { vec!["--without=garbage-collection".to_owned()] };
                ApiServer::start_dev(folder, aggregation.as_ref(), further)?
            }
        };
        for user in USERS {
            let text = kubeconfig(&api_server.url, &api_server.authority, user);
            fs::write(kubeconfig_path(folder, user), text).expect("writable");
        }
        let kubectl = Kubectl {
            program: assets.join("kubectl"),
            kubeconfig: kubeconfig_path(folder, &ADMIN),
            namespace: None,
            home: folder.to_path_buf(),
        };
        if !becomes_usable(&kubectl.kubeconfig, &mut api_server.process) {
            return None;
        }
        Some(Self {
            folder: folder.to_path_buf(),
            assets: assets.to_path_buf(),
            backend,
            aggregation,
            reader: Arc::new(Reader::new(kubectl.kubeconfig.clone())),
            kubectl,
            controller_manager: OnceLock::new(),
            api_server: Mutex::new(api_server),
        })
    }

    /// Starts kube-controller-manager with garbage collection, namespace deletion and disruption budgets. The development server has
    /// these controllers itself.
    pub async fn with_controller_manager(self: &Arc<Self>) {
        if self.backend == Backend::Dev {
            return;
        }
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

    /// Suspends the API server (SIGSTOP): connections stay open, and it does not answer.
    pub fn suspend_api_server(&self) {
        self.api_server.lock().expect("no test panics with the API server in hand").process.signal("STOP");
    }

    /// Resumes a suspended API server (SIGCONT).
    pub fn resume_api_server(&self) {
        self.api_server.lock().expect("no test panics with the API server in hand").process.signal("CONT");
    }

    /// Kills the API server: connections break, and new ones are refused.
    pub fn stop_api_server(&self) {
        self.api_server.lock().expect("no test panics with the API server in hand").process.kill();
    }

    /// Kills the API server, if it runs, and starts it again: watches break, and it can't repeat events from before its start.
    pub async fn restart_api_server(self: &Arc<Self>) {
        let rig = Arc::clone(self);
        blocking(move || {
            let mut server = rig.api_server.lock().expect("no test panics with the API server in hand");
            server.restart();
            let usable = becomes_usable(&rig.kubectl.kubeconfig, &mut server.process);
            assert!(usable, "no API server after its restart:\n{}", server.process.log_tail());
        })
        .await;
    }

    /// kubectl without a namespace.
    pub async fn kubectl(&self, arguments: &[&str]) -> Answer {
        self.kubectl.run(arguments, None).await
    }

    /// kubectl as a user without rights, unless a test gives it some.
    pub async fn kubectl_as_alice(&self, arguments: &[&str]) -> Answer {
        let kubectl = Kubectl { kubeconfig: kubeconfig_path(&self.folder, &ALICE), ..self.kubectl.clone() };
        kubectl.run(arguments, None).await
    }

    /// Tokens of the administrator and of alice.
    pub const TOKENS: [&'static str; 2] = [ADMIN.token, ALICE.token];

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

    /// A new namespace with exactly this name, for tests with their own control plane.
    pub async fn namespace_named(&self, name: &str) -> Namespace {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        reader::create(&self.reader.client().await, "/api/v1/namespaces", &namespace).await.expect("a new namespace");
        self.existing_namespace(name)
    }

    /// A namespace that exists.
    pub fn existing_namespace(&self, name: &str) -> Namespace {
        Namespace {
            kubectl: Kubectl { namespace: Some(name.to_owned()), ..self.kubectl.clone() },
            reader: Arc::clone(&self.reader),
            name: name.to_owned(),
        }
    }

    /// Installs the CRDs of `mcm manifests crds`, and waits until all are served.
    pub async fn install_crds(&self) {
        let crds = super::manager::mcm(&["manifests", "crds"]);
        self.apply(&crds).await.succeed();
        self.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]).await.succeed();
        for resource in ["machines", "machinesets", "machinedeployments", "machineclasses"] {
            super::wait_until(&format!("{resource} to be served"), Duration::from_secs(30), || {
                self.reader.list(resource, None)
            })
            .await;
        }
    }

    /// The kind of API server.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Kubeconfig of the administrator.
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.kubectl.kubeconfig
    }

    /// A lying proxy before the API server, and a kubeconfig for the manager that uses it.
    pub async fn liar(&self) -> (Liar, PathBuf) {
        let url = self.api_server.lock().expect("no test panics with the API server in hand").url.clone();
        let liar = Liar::before(&url).await;
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "liar",
            "clusters": [{ "name": "liar", "cluster": { "server": liar.url() } }],
            "users": [{ "name": MANAGER.name, "user": { "token": MANAGER.token } }],
            "contexts": [{ "name": "liar", "context": { "cluster": "liar", "user": MANAGER.name } }],
        });
        let path = self.folder.join(format!("{}.kubeconfig", liar.url().rsplit(':').next().unwrap_or_default()));
        fs::write(&path, text.to_string()).expect("the scratch folder is writable");
        (liar, path)
    }

    /// Kubeconfig of the user of `mcm` in a namespace.
    pub async fn manager_kubeconfig(&self, namespace: &Namespace, rights: Rights) -> PathBuf {
        match rights {
            Rights::Everything => kubeconfig_path(&self.folder, &MANAGER),
            Rights::Generated => {
                self.grant(namespace, &[]).await;
                kubeconfig_path(&self.folder, &RESTRICTED)
            }
            Rights::OfHalf(half) => {
                self.grant(namespace, &["--half", half]).await;
                kubeconfig_path(&self.folder, &RESTRICTED)
            }
            Rights::WithLocalMachines => {
                self.grant(namespace, &["--local-machines"]).await;
                kubeconfig_path(&self.folder, &RESTRICTED)
            }
        }
    }

    /// Grants the rights of the manifests to a user, because the tests use no service account.
    async fn grant(&self, namespace: &Namespace, further: &[&str]) {
        let flags = ["manifests", "rbac", "--simulation", "--bootstrap-tokens", "--namespace", &namespace.name];
        let generated = super::manager::mcm(&[&flags, further].concat());
        let views = super::manager::mcm(&["manifests", "apiservice", "--namespace", &namespace.name]);
        let mut documents = parse_documents("rbac", &generated).expect("mcm prints YAML");
        let views = parse_documents("views", &views).expect("mcm prints YAML");
        documents.extend(views.into_iter().filter(|document| document.value["kind"] != "APIService"));
        // The development server has no policies. The policies restrict the service account, which the tests do not use.
        documents.retain(|document| !document.value["kind"].as_str().is_some_and(|kind| kind.contains("Policy")));
        for document in &mut documents {
            if let Some(subjects) = document.value.get_mut("subjects") {
                let user = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": RESTRICTED.name });
                *subjects = json!([user]);
            }
        }
        let granted = to_yaml(documents.iter().map(|document| &document.value)).expect("JSON has a YAML form");
        self.apply(&granted).await.succeed();
    }

    /// A client of the user alice, which has no rights unless a test grants some.
    pub async fn client_of_alice(&self) -> kube::Client {
        let config = reader::config(&kubeconfig_path(&self.folder, &ALICE)).await;
        kube::Client::try_from(config).expect("a client")
    }

    /// A client of the administrator. It belongs to the runtime of the test.
    pub async fn client(&self) -> kube::Client {
        kube::Client::try_from(self.config().await).expect("a client")
    }

    /// The same client without kube's retries, so that the test gets every answer.
    pub async fn client_without_retries(&self) -> kube::Client {
        let mut config = self.config().await;
        config.default_retry = false;
        kube::Client::try_from(config).expect("a client")
    }

    /// A client with this token.
    pub async fn client_with_token(&self, token: &str) -> kube::Client {
        let mut config = self.config().await;
        config.default_retry = false;
        config.auth_info = kube::config::AuthInfo { token: Some(token.to_owned().into()), ..Default::default() };
        kube::Client::try_from(config).expect("a client")
    }

    async fn config(&self) -> kube::Config {
        reader::config(&self.kubectl.kubeconfig).await
    }

    /// The objects of a resource that belongs to no namespace, as JSON.
    pub async fn list(&self, resource: &str) -> Vec<Value> {
        self.reader.list(resource, None).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// One object that belongs to no namespace, as JSON.
    pub async fn get(&self, resource: &str, name: &str) -> Value {
        self.reader.get(resource, name, None).await.unwrap_or_else(|error| panic!("{error}"))
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

    /// kubectl in this namespace, with standard input.
    pub async fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> Answer {
        self.kubectl.run(arguments, Some(input)).await
    }

    /// `kubectl edit` in this namespace, with a program as editor.
    pub async fn edit(&self, object: &str, editor: &str) -> Answer {
        self.kubectl.run_with(&[("KUBE_EDITOR", editor)], &["edit", object], None).await
    }

    /// `kubectl get … --watch` in this namespace. Its output is in its log.
    pub fn watching(&self, resource: &str, name: &str) -> Process {
        let Kubectl { program, kubeconfig, home, .. } = &self.kubectl;
        let mut arguments = vec!["get".to_owned(), resource.to_owned(), name.to_owned(), "--watch".to_owned()];
        for (flag, value) in [
            ("--namespace", self.name.clone()),
            ("--kubeconfig", kubeconfig.display().to_string()),
            ("--cache-dir", home.join("cache").display().to_string()),
        ] {
            arguments.extend([flag.to_owned(), value]);
        }
        Process::start(home, &format!("watch-{}-{name}", self.name), program, &arguments)
    }

    /// The objects of a kind, as JSON.
    pub async fn list(&self, resource: &str) -> Vec<Value> {
        self.reader.list(resource, Some(&self.name)).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// One object, as JSON.
    pub async fn get(&self, resource: &str, name: &str) -> Value {
        self.reader.get(resource, name, Some(&self.name)).await.unwrap_or_else(|error| panic!("{error}"))
    }
}

/// The flag for an admission configuration that limits the system's priority classes.
fn limited_priorities(folder: &Path) -> String {
    let classes = ["system-node-critical", "system-cluster-critical"];
    let limited = json!({
        "resource": "pods", "matchScopes": [{"scopeName": "PriorityClass", "operator": "In", "values": classes}],
    });
    let quotas = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "ResourceQuotaConfiguration", "limitedResources": [limited],
    });
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
        "plugins": [{"name": "ResourceQuota", "configuration": quotas}],
    });
    let path = folder.join("admission.json");
    fs::write(&path, configuration.to_string()).expect("the scratch folder is writable");
    format!("--admission-control-config-file={}", path.display())
}

/// Whether a test that needs a real API server is skipped in this run. Then the test prints so, and is counted.
pub fn is_left_out(test: &str, why: &str) -> bool {
    let left_out = Backend::chosen() == Backend::Dev;
    if left_out {
        scratch::count_skipped(test, &format!("needs a real API server: {why}"));
    }
    left_out
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

/// Runs blocking work on a thread outside the runtime.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(error) => panic!("{error}"),
    })
}

/// Waits on this thread until an API server is ready, and grants the group of the manager all rights. False if its process ends before.
fn becomes_usable(kubeconfig: &Path, process: &mut Process) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut config = reader::config(kubeconfig).await;
        config.default_retry = false;
        let client = kube::Client::try_from(config).expect("a client");
        let deadline = Instant::now() + Duration::from_secs(90);
        while !reader::answers(&client, &["/readyz", "/api/v1/namespaces/kube-system"]).await {
            if process.ended().is_some() {
                return false;
            }
            assert!(Instant::now() < deadline, "no ready API server after 90 s:\n{}", process.log_tail());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "rig-managers" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": MANAGER.group }],
        });
        match reader::create(&client, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await {
            Ok(()) => true,
            // It is there after a restart.
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => true,
            Err(error) => panic!("the manager gets no rights: {error}"),
        }
    })
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
            "cluster": { "server": url, "certificate-authority-data": authority },
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
