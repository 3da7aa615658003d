//! `mcm migrate-storage`: stores all objects of the four kinds in another version.
//!
//! This file has the flags, the order of the steps, and the report. [`definition`] decides the next step of a kind, and [`passes`]
//! rewrites the objects. All state is in the cluster, so that a second run after an interruption continues where the first run
//! stopped. It skips kinds that are done. For an object that is already stored in the version, it sends a patch that changes nothing.
//! Source: spec/api-and-admission §8.6.

pub mod definition;
mod passes;
mod refusals;

use std::{io::Write, time::Duration};

use clap::Args;
use kube::Client;
use serde::Serialize;

use self::{
    definition::{Step, name_of, next_step},
    passes::Cluster,
};
use super::{
    Failure,
    kubeconfig::{ClusterArgs, run_interruptibly},
    offline::TargetVersion,
    output::OutputFormat,
};
use machine_api::kind::{ApiVersion, Kind};

/// Flags of `mcm migrate-storage`.
#[derive(Clone, Debug, Args)]
pub struct MigrateStorageArgs {
    /// The version in which all objects will be stored
    #[arg(long, value_name = "VERSION")]
    pub to: TargetVersion,
    /// The cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Maximum number of objects that are rewritten per second
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rate: u32,
    /// Seconds to wait until all API servers know the converter, before the storage version changes, and again until they know
    /// the new storage version, before objects are rewritten
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    pub settle: u64,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Output for programs
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<OutputFormat>,
}

/// The result for one kind.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KindReport {
    /// Plural name of the kind.
    pub resource: &'static str,
    /// The version in which objects are stored now, or would be.
    pub version: &'static str,
    /// How far the migration came.
    pub outcome: KindOutcome,
    /// Number of objects in the last pass.
    pub objects: usize,
    /// Number of objects that were stored in another version, or not yet in the form of the definition.
    pub rewritten: usize,
    /// Number of passes over all objects.
    pub passes: usize,
}

/// How far the migration of a kind came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KindOutcome {
    /// All objects were already stored in the version.
    AlreadyDone,
    /// All objects are stored in the version, and the definition shows this.
    Migrated,
    /// A dry run: the storage version would change, and all objects would be rewritten.
    WouldSwitchAndRewrite,
    /// A dry run: all objects would be rewritten. The storage version is already the right one.
    WouldRewrite,
}

/// Runs the migration and writes the report; progress goes to standard error.
///
/// # Errors
/// When a definition is not ready, when objects could not be rewritten, or when a signal came. Finished work stays, and the next run
/// goes on from there.
pub fn run(args: &MigrateStorageArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let reports = run_interruptibly(
        async { migrate(args, args.cluster.connect().await?).await },
        "interrupted; nothing is lost, run the same command again to go on",
    )?;
    match args.output {
        Some(format) => format.write(&reports, out),
        None => report(&reports, out),
    }
}

async fn migrate(args: &MigrateStorageArgs, client: Client) -> Result<Vec<KindReport>, Failure> {
    let to = match args.to {
        TargetVersion::V1alpha1 => ApiVersion::V1alpha1,
        TargetVersion::V1beta1 => ApiVersion::V1beta1,
    };
    let cluster = Cluster::new(client, to, args.rate);
    let mut steps = Vec::new();
    let mut obstacles = Vec::new();
    for kind in Kind::ALL {
        match next_step(&cluster.definition(kind).await?, to) {
            Ok(step) => steps.push((kind, step)),
            Err(obstacle) => obstacles.push(obstacle.to_string()),
        }
    }
    if !obstacles.is_empty() {
        return Err(Failure::Input(obstacles.join("\n")));
    }
    if args.dry_run {
        return Ok(steps.into_iter().map(|(kind, step)| KindReport::intended(kind, to, step)).collect());
    }
    if steps.iter().any(|(_, step)| *step != Step::Done) {
        for (kind, _) in steps.iter().filter(|(_, step)| *step != Step::Done) {
            cluster.check_conversion(*kind).await?;
        }
        let settle = Duration::from_secs(args.settle);
        let switches: Vec<Kind> =
            steps.iter().filter(|(_, step)| *step == Step::Switch).map(|(kind, _)| *kind).collect();
        if !switches.is_empty() {
            // An API server that still uses a definition without the converter would send hollow objects to its watches.
            eprintln!("waiting {} s until every API server knows the converter", args.settle);
            tokio::time::sleep(settle).await;
        }
        for kind in switches {
            cluster.switch(kind).await?;
            eprintln!("{}: new writes are stored as {}", name_of(kind), to.as_str());
        }
        eprintln!("waiting {} s until every API server knows the storage version", args.settle);
        tokio::time::sleep(settle).await;
    }
    let mut reports = Vec::new();
    for (kind, step) in steps {
        reports.push(match step {
            Step::Done => KindReport::intended(kind, to, step),
            Step::Switch | Step::Rewrite => cluster.rewrite_all(kind).await?,
        });
    }
    Ok(reports)
}

impl KindReport {
    fn intended(kind: Kind, to: ApiVersion, step: Step) -> Self {
        let outcome = match step {
            Step::Done => KindOutcome::AlreadyDone,
            Step::Switch => KindOutcome::WouldSwitchAndRewrite,
            Step::Rewrite => KindOutcome::WouldRewrite,
        };
        Self { resource: kind.plural(), version: to.as_str(), outcome, objects: 0, rewritten: 0, passes: 0 }
    }
}

fn report(reports: &[KindReport], out: &mut dyn Write) -> Result<(), Failure> {
    for KindReport { resource, version, outcome, objects, rewritten, passes } in reports {
        let text = match outcome {
            KindOutcome::AlreadyDone => format!("all objects are stored as {version} already"),
            KindOutcome::Migrated => {
                format!("all {objects} objects are stored as {version}; {rewritten} were rewritten in {passes} passes")
            }
            KindOutcome::WouldSwitchAndRewrite => {
                format!("would make {version} the storage version and rewrite all objects")
            }
            KindOutcome::WouldRewrite => format!("{version} is the storage version; would rewrite all objects"),
        };
        writeln!(out, "{resource}: {text}")?;
    }
    Ok(())
}
