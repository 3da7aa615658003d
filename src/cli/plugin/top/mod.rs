//! `top`: the machines of a namespace at a glance: counts, deployments, machines that are not well, warnings.
//!
//! On a terminal it is a live view of feature `tui` ([`live`]): [`screen`] has its state and keys, [`frame`] draws it, [`terminal`] is the
//! only part that touches the terminal. Otherwise it prints its lines once. It never writes to the cluster. Source: spec/packaging §5.2.

#[cfg(feature = "tui")]
mod frame;
#[cfg(feature = "tui")]
mod live;
pub mod overview;
#[cfg(feature = "tui")]
mod screen;
#[cfg(feature = "tui")]
mod terminal;

use std::io::Write;

use clap::Args;

use self::overview::{Overview, Within};
use super::{
    events,
    output::{self, OutputArgs},
    session::{Session, SessionArgs, now},
};
use crate::cli::{Failure, kubeconfig::run_interruptibly};

/// Flags of `top`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  kubectl mcm top\n  kubectl mcm top -A\n  kubectl mcm top -o json")]
pub struct TopArgs {
    /// Show all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Print once, also on a terminal; -o implies it
    #[arg(long)]
    pub once: bool,
    /// The cluster
    #[command(flatten)]
    pub session: SessionArgs,
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
}

impl TopArgs {
    fn within(&self, session: &Session) -> Within {
        if self.all_namespaces { Within::All } else { Within::One(session.namespace.clone()) }
    }
}

/// Prints the rows, or shows them until the user quits.
///
/// # Errors
/// When the cluster can't be read.
pub fn run(args: &TopArgs, out: &mut dyn Write) -> Result<(), Failure> {
    #[cfg(feature = "tui")]
    if !args.once && args.output.output.is_none() && terminal::is_there() {
        return run_interruptibly(live::show(args), "interrupted");
    }
    run_interruptibly(print(args, out), "interrupted")
}

async fn print(args: &TopArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let session = Session::open(&args.session).await?;
    let within = args.within(&session);
    let fleet = session.fleet_of(within.namespace()).await?;
    let warnings = events::recent(&session.client, within.namespace(), &session.notices).await;
    let overview = Overview::of(&fleet, warnings, within);
    output::write(&overview, session.views.source(), &args.output, now(), out)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// The crates that the program links with these features of its own.
    fn linked(features: &[&str]) -> Vec<String> {
        let cargo = option_env!("CARGO").unwrap_or("cargo");
        let mut command = Command::new(cargo);
        command.args(["tree", "--offline", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}"]);
        command
            .args(["--package", "machine-controller-manager"])
            .args(features)
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        let said = command.output().expect("cargo runs");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let lines = String::from_utf8(said.stdout).expect("UTF-8");
        lines.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
    }

    #[test]
    fn pk_082_without_the_feature_none_of_its_crates_is_linked() {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/image-binary");
        let said = Command::new(script).arg("--features").output().expect("the script runs").stdout;
        let of_image = String::from_utf8(said).expect("UTF-8");
        let of_image = of_image.trim();
        assert!(of_image.contains("openstack") && !of_image.contains("tui"), "{of_image}");
        let image = linked(&["--no-default-features", "--features", of_image]);
        let ours = ["ratatui", "ratatui-core", "ratatui-widgets", "ratatui-crossterm", "crossterm", "kasuari"];
        assert!(ours.iter().all(|name| !image.iter().any(|one| one == name)), "{image:?}");
        let whole = linked(&[]);
        assert!(ours.iter().all(|name| whole.iter().any(|one| one == name)), "{whole:?}");
    }
}
