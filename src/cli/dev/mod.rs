//! `mcm dev`: a complete cluster in one process, for a first run and for experiments.
//!
//! It runs the embedded API server, webhooks, all control loops and the virtual cloud. There are no short cuts: definitions and webhook
//! configurations are the same as in `mcm manifests`, and the manager is a client over TLS like any other. Source: spec/extension-apiserver §6.1.

mod folder;
mod install;
mod progress;
mod tour;

use std::{
    fs,
    io::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ArgAction, Args, Parser, ValueEnum};

use tokio::signal::unix::{SignalKind, signal};

use self::{
    folder::Folder,
    progress::{Hints, Style, Then},
};
use super::{
    Failure,
    go_flags::go_bool,
    logging,
    serve::{args::ServeArgs, validate::HostInfo},
};
use crate::{DriverSet, manager, server::ReservedPorts, settings::Settings};
use kube_dev_server::{
    AuthorizationMode, CONTEXT, Credentials, DevServer, DevServerOptions, Limits, Listening, Reach, StandIn, Storage,
    write_private,
};
use kube_values::duration::GoDuration;

/// The namespace of the machine objects.
const NAMESPACE: &str = "default";
/// How long running requests may take when the process ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The manager's user. It has no exceptions in admission.
const MANAGER: &str = "mcm-dev-manager";
/// Latencies of the virtual cloud (decision 41).
const SIMULATION: &str = "\
latency:
  create: {constant: 1s}
  boot: {constant: 2s}
  ready: {constant: 1s}
  delete: {constant: 1s}
  api: {constant: 0s}
";

/// Values of `--authorization-mode`, in the spelling of kube-apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Authorization {
    /// Every authenticated user may do everything.
    #[value(name = "AlwaysAllow")]
    AlwaysAllow,
    /// Roles and bindings decide.
    #[value(name = "RBAC")]
    Rbac,
}

/// The controller with this name.
fn stand_in(name: &str) -> Result<StandIn, String> {
    let found = StandIn::NAMED.iter().find(|(known, _)| *known == name);
    found.map(|(_, stand_in)| *stand_in).ok_or_else(|| {
        let names: Vec<&str> = StandIn::NAMED.iter().map(|(name, _)| *name).collect();
        format!("it is none of {}", names.join(", "))
    })
}

/// Address of the API server.
#[derive(Clone, Copy, Debug, Args)]
pub struct ListenArgs {
    /// Port of the API server; 0 means any free port
    #[arg(long, default_value = "0")]
    pub port: u16,
    /// Address of the API server; an address that other hosts can reach needs --insecure-listen-anywhere
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "IP")]
    pub address: IpAddr,
    /// Allow an address that other hosts can reach; every user with a kubeconfig or token of this API server may do everything
    #[arg(long)]
    pub insecure_listen_anywhere: bool,
}

impl ListenArgs {
    fn reach(self) -> Reach {
        if self.insecure_listen_anywhere { Reach::Anybody } else { Reach::ThisHost }
    }
}

/// Limits of the API server. The manager has the default limits of `mcm serve`.
#[derive(Clone, Copy, Debug, Args)]
pub struct LimitArgs {
    /// Maximum number of concurrent reading requests to the API server; 0 means no limit. Requests of administrators and health
    /// checks do not count
    #[arg(long, default_value = "400", value_name = "N")]
    pub max_requests_inflight: usize,
    /// Maximum number of concurrent writing requests to the API server; the same exceptions apply
    #[arg(long, default_value = "200", value_name = "N")]
    pub max_mutating_requests_inflight: usize,
    /// Maximum number of concurrent watches of all users; 0 means no limit
    #[arg(long, default_value = "10000", value_name = "N")]
    pub max_watches: usize,
    /// Deadline of a request to the API server, even if its caller allows a longer one; watches have no deadline
    #[arg(long, default_value = "1m", value_parser = positive_duration, value_name = "DURATION")]
    pub request_timeout: Duration,
    /// Maximum number of connections to the API server
    #[arg(long, default_value = "2000", value_name = "N")]
    pub max_connections: NonZeroUsize,
}

impl LimitArgs {
    fn limits(self) -> Limits {
        Limits {
            reading: self.max_requests_inflight,
            writing: self.max_mutating_requests_inflight,
            watches: self.max_watches,
            deadline: self.request_timeout,
            connections: self.max_connections.get(),
        }
    }
}

/// A duration greater than zero.
fn positive_duration(text: &str) -> Result<Duration, String> {
    let duration = text.parse::<GoDuration>().map_err(|error| error.to_string())?.to_std();
    if duration.is_zero() { Err("it must be more than 0".to_owned()) } else { Ok(duration) }
}

/// Flags of `mcm dev`.
#[derive(Clone, Debug, Args)]
#[allow(clippy::struct_excessive_bools)] // one per flag
pub struct DevArgs {
    /// Apply an example: a class of the virtual cloud and a deployment of three machines
    #[arg(long)]
    pub example: bool,
    /// Apply the example, then run the commands of README's quick start and print their output; on a terminal, ask before each
    #[arg(long, conflicts_with = "api_server_only")]
    pub tour: bool,
    /// Keep all objects in this folder; unset means in memory only
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// File for the kubeconfig; unset means a file in the data folder, or in a temporary folder that is removed at the end
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server.
    #[command(flatten)]
    pub listen: ListenArgs,
    /// Limits of the API server.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Run only the API server, without definitions, webhooks, controllers and virtual cloud
    #[arg(long, conflicts_with_all = ["example", "simulation_config"])]
    pub api_server_only: bool,
    /// Rights of authenticated users: all rights, or the rights of roles and bindings
    #[arg(long, value_enum, default_value = "AlwaysAllow", value_name = "MODE")]
    pub authorization_mode: Authorization,
    /// Built-in controllers to switch off, comma separated: garbage-collection, namespaces, budgets, nodes, aggregated-roles,
    /// account-tokens, default-accounts, event-ttl
    #[arg(long, value_delimiter = ',', value_parser = stand_in, value_name = "CONTROLLERS")]
    pub without: Vec<StandIn>,
    /// File with further users, one line token,user,uid,"group,group" each
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Serve computed views, such as machineoutlooks, through the API server
    #[arg(long, default_value = "true", default_missing_value = "true", num_args = 0..=1, require_equals = true,
          value_parser = go_bool, action = ArgAction::Set, value_name = "BOOL")]
    pub extension_apiserver: bool,
    /// File with latencies, failures and quota of the virtual cloud; read again when it changes
    #[arg(long, value_name = "FILE")]
    pub simulation_config: Option<PathBuf>,
    /// Unix socket for commands that test clients: refusals, delays, frozen watches, lost history, lost connections, a wrong clock;
    /// docs/testing.md lists them
    #[arg(long, value_name = "SOCKET")]
    pub test_hooks: Option<PathBuf>,
    /// Verbosity of the log: 0 logs only problems, 1 what happens, 4 also why
    #[arg(short = 'v', long = "v", default_value = "0", value_name = "LEVEL")]
    pub verbosity: i32,
}

/// Runs until a signal stops it.
///
/// # Errors
/// [`Failure::Run`] when the data folder or a port can't be used.
pub fn run(args: &DevArgs, drivers: &DriverSet, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    logging::start_quietly(args.verbosity).map_err(Failure::run)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::run)?;
    let ended = runtime.block_on(start(args, drivers, out));
    // Do not wait for blocking tasks that still run.
    runtime.shutdown_background();
    ended
}

async fn start(args: &DevArgs, drivers: &DriverSet, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    let began = std::time::Instant::now();
    // Only the first call in a process succeeds. A later call would install the same provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = Folder::open(args.data_dir.as_deref())?;
    let server = server(args)?;
    let address = SocketAddr::from((args.listen.address, args.listen.port));
    let (listening, credentials) = server.listen_for(args.listen.reach(), address).await.map_err(Failure::run)?;
    let _hooks = match &args.test_hooks {
        Some(path) => Some(server.listen_for_hooks(path).await.map_err(|error| {
            Failure::run(anyhow::anyhow!("cannot listen on {} for --test-hooks: {error}", path.display()))
        })?),
        None => None,
    };
    let kubeconfig = args.kubeconfig.clone().unwrap_or_else(|| folder.path.join("kubeconfig"));
    write_kubeconfig(&kubeconfig, &credentials.kubeconfig(listening.from_this_host()))?;
    if args.api_server_only {
        return serve_alone(listening, &kubeconfig, out).await;
    }

    // Two ports: for health and metrics, and for webhooks. They stay bound until the manager uses them.
    let (reserved, ports) = ReservedPorts::of_loopback()?;
    let client = server.client("mcm-dev-installer", NAMESPACE);
    install::manifests(&client, &format!("https://127.0.0.1:{}", ports[1])).await.map_err(Failure::Run)?;
    if args.extension_apiserver {
        install::views(&client, ports[1]).await.map_err(Failure::Run)?;
    } else {
        install::no_views(&client).await.map_err(Failure::Run)?;
    }
    let settings = settings(args, &folder.path, &server, &credentials, listening.from_this_host(), ports)?;
    // Classes of real clouds create nothing there. The virtual cloud serves the providers that its configuration names.
    let drivers = drivers.clone().without_clouds();
    let manager = keep_running(reserved, settings, &drivers);
    tokio::pin!(manager);
    let style = Style::of_stdout();
    let display = async {
        install::webhooks_answer(&client).await?;
        if args.extension_apiserver {
            install::views_answer(&client).await?;
        }
        writeln!(
            out,
            "ready after {:.1} s: Kubernetes API at https://{}\n  kubeconfig: {}",
            began.elapsed().as_secs_f64(),
            listening.address,
            kubeconfig.display()
        )?;
        if args.example || args.tour {
            install::example(&client).await?;
            writeln!(out, "applied the example: machineclass/example-virtual, machinedeployment/example-deployment")?;
        }
        out.flush()?;
        let deployment = install::some_deployment(&client).await?;
        let text = hints(&kubeconfig, deployment.as_deref(), args.extension_apiserver);
        let hints = if args.tour {
            Hints { text: String::new(), wait_for_machine: true, then: Then::End }
        } else {
            Hints { text, wait_for_machine: args.example, then: Then::GoOn }
        };
        progress::show(&client, out, style, began, hints).await?;
        if args.tour {
            tour::run(&kubeconfig, out).await?;
        }
        anyhow::Ok(())
    };
    // When the progress can't be printed any more, the cluster goes on. It ends with the manager, or with the tour.
    let ended = tokio::select! {
        ended = &mut manager => ended,
        shown = display => match shown {
            Ok(()) if args.tour => Ok(()),
            Ok(()) => manager.await,
            Err(error) if error.is::<tour::TourError>() => Err(error),
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "the progress is not shown any more");
                manager.await
            }
        },
    };
    if style == Style::Redrawn {
        // The shell's next output begins a new line.
        let _ = writeln!(out);
    }
    // After a tour the manager still runs, and would complain about an API server that ends before it.
    if !args.tour {
        listening.end(DRAIN_TIMEOUT).await;
    }
    ended.map_err(Failure::Run)
}

/// Runs a manager until a signal stops it. When a manager ends because its caches are corrupt, a new one starts, because the end of the
/// process would end the cluster too.
async fn keep_running(mut reserved: ReservedPorts, settings: Settings, drivers: &DriverSet) -> anyhow::Result<()> {
    loop {
        match manager::run_over(reserved, settings.clone(), drivers.clone()).await {
            Err(error) if error.is::<manager::CorruptCaches>() => reserved = ReservedPorts::default(),
            ended => return ended,
        }
    }
}

fn server(args: &DevArgs) -> Result<DevServer, Failure> {
    let options = DevServerOptions {
        storage: args.data_dir.clone().map_or(Storage::Memory, Storage::Folder),
        authorization: match args.authorization_mode {
            Authorization::AlwaysAllow => AuthorizationMode::AlwaysAllow,
            Authorization::Rbac => AuthorizationMode::Rbac,
        },
        without: args.without.iter().copied().collect(),
        limits: args.limits.limits(),
        ..DevServerOptions::default()
    };
    let server = DevServer::start(options).map_err(Failure::run)?;
    if let Some(file) = &args.token_auth_file {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::Input(format!("cannot use --token-auth-file {}: {error}", file.display()))
        };
        let text = fs::read_to_string(file).map_err(|error| failed(&error))?;
        server.add_tokens(&text).map_err(|error| failed(&error))?;
    }
    Ok(server)
}

/// Runs only the API server, until SIGTERM or SIGINT.
async fn serve_alone(listening: Listening, kubeconfig: &Path, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    writeln!(out, "Kubernetes API at https://{}\n  kubeconfig: {}", listening.address, kubeconfig.display())?;
    out.flush()?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tokio::select! {
        () = listening.end(DRAIN_TIMEOUT) => {}
        // A second signal ends at once.
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// The next three commands to try.
fn hints(kubeconfig: &Path, deployment: Option<&str>, has_views: bool) -> String {
    let commands = match deployment {
        Some(name) => [
            "get machinedeployments,machines,nodes".to_owned(),
            format!("scale machinedeployment {name} --replicas=5"),
            if has_views { "get machineoutlooks" } else { "explain machinedeployment.spec.strategy" }.to_owned(),
        ],
        None => [
            "api-resources --api-group=machine.sapcloud.io".to_owned(),
            "apply -f deploy/examples/machineclass-virtual.yaml -f deploy/examples/machinedeployment.yaml".to_owned(),
            "get machines --watch".to_owned(),
        ],
    };
    let commands = commands.map(|command| format!("  kubectl {command}\n")).concat();
    format!("try in a second terminal:\n  export KUBECONFIG={}\n{commands}", kubeconfig.display())
}

/// The settings of `mcm serve` for this cluster, from its flags.
fn settings(
    args: &DevArgs,
    folder: &Path,
    server: &DevServer,
    credentials: &Credentials,
    address: SocketAddr,
    ports: [u16; 2],
) -> Result<Settings, Failure> {
    let token = format!("{:032x}", rand::random::<u128>());
    server.add_token(&token, MANAGER);
    let kubeconfig = folder.join("manager.kubeconfig");
    write_kubeconfig(&kubeconfig, &credentials.kubeconfig_with_token(address, MANAGER, &token))?;
    let simulation = if let Some(file) = &args.simulation_config {
        file.clone()
    } else {
        let file = folder.join("simulation.yaml");
        fs::write(&file, SIMULATION)?;
        file
    };
    let state = match &args.data_dir {
        Some(folder) => format!("file:{}", folder.join("simulation.journal").display()),
        None => "none".to_owned(),
    };
    let flags = [
        "serve".to_owned(),
        format!("--control-kubeconfig={}", kubeconfig.display()),
        format!("--target-kubeconfig={}", kubeconfig.display()),
        format!("--namespace={NAMESPACE}"),
        "--leader-elect=false".to_owned(),
        "--address=127.0.0.1".to_owned(),
        format!("--port={}", ports[0]),
        "--compat-port=0".to_owned(),
        "--secure-address=127.0.0.1".to_owned(),
        format!("--secure-port={}", ports[1]),
        "--cert-extra-san=127.0.0.1".to_owned(),
        format!("--extension-apiserver={}", args.extension_apiserver),
        "--shutdown-delay-duration=0s".to_owned(),
        "--shutdown-timeout=5s".to_owned(),
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
        "--enable-simulation".to_owned(),
        format!("--simulation-config={}", simulation.display()),
        format!("--simulation-state={state}"),
    ];
    let parsed = Serving::try_parse_from(flags).map_err(Failure::run)?;
    let host = HostInfo { host_name: "mcm-dev".to_owned(), pod_namespace: None };
    parsed.args.validate(&host).map_err(|problems| Failure::Usage(problems.join("\n")))
}

/// A command line with the flags of `serve` only.
#[derive(Parser)]
struct Serving {
    #[command(flatten)]
    args: ServeArgs,
}

/// Writes the kubeconfig, but never over a file that `mcm dev` has not written.
fn write_kubeconfig(path: &Path, text: &str) -> Result<(), Failure> {
    let is_foreign = fs::read_to_string(path).is_ok_and(|old| !old.trim().is_empty() && !old.contains(CONTEXT));
    if is_foreign {
        return Err(Failure::Input(format!(
            "{} is there already and is no kubeconfig of mcm dev; name another file with --kubeconfig",
            path.display()
        )));
    }
    write_private(path, text).map_err(|error| {
        Failure::Input(format!("cannot write {}: {error}; name another file with --kubeconfig", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_kubeconfig_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        fs::write(&path, "apiVersion: v1\ncurrent-context: production\n").unwrap();
        let refused = write_kubeconfig(&path, "{}").unwrap_err().to_string();
        assert!(refused.contains("is no kubeconfig of mcm dev"), "{refused}");
        fs::write(&path, format!("current-context: {CONTEXT}\n")).unwrap();
        write_kubeconfig(&path, "{}").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
    }

    #[test]
    fn controllers_are_known_by_their_names() {
        assert_eq!(stand_in("budgets"), Ok(StandIn::Budgets));
        assert!(stand_in("kubelets").unwrap_err().contains("none of garbage-collection, namespaces"));
    }

    #[test]
    fn hints_are_three_commands_that_fit_the_cluster() {
        let commands = |text: &str| text.lines().filter(|line| line.starts_with("  kubectl ")).count();
        let with = hints(Path::new("/k"), Some("pool"), true);
        assert!(with.contains("export KUBECONFIG=/k") && with.contains("scale machinedeployment pool"), "{with}");
        assert!(with.contains("machineoutlooks") && commands(&with) == 3, "{with}");
        assert!(!hints(Path::new("/k"), Some("pool"), false).contains("machineoutlooks"));
        assert_eq!(commands(&hints(Path::new("/k"), None, true)), 3);
    }
}
