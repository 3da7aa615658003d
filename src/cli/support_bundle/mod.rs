//! `mcm support-bundle`: one archive with what is needed to understand a problem, without secrets.
//!
//! [`gather`] reads, side by side and with deadlines. [`allowed`] lists the fields of each kind that are kept, [`redact`] keeps only these,
//! [`scrub`] removes known secret values, addresses and names from texts, [`bundle`] makes the files and the index, and [`archive`] writes
//! them. Nothing is sent anywhere, and the cluster is only read. Source: spec/packaging §7.5.

mod allowed;
mod archive;
mod bundle;
mod gather;
mod index;
mod redact;
mod scrub;

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use clap::Args;
use jiff::Timestamp;

use self::{
    archive::File,
    bundle::{Rules, bundle},
    gather::{Gathered, gather, key_of_cluster},
    index::Index,
    redact::Addresses,
    scrub::Names,
};
use super::{
    Failure,
    doctor::{Examined, TargetArgs},
    kubeconfig::{ClusterArgs, run_interruptibly},
    namespace_name, offline,
    webhook_scope::WebhookScope,
};
use crate::{DriverSet, manager::registered_drivers::RegisteredDrivers};
use machine_api::validation::{Coverage, Providers};

/// Flags of `mcm support-bundle`.
#[derive(Clone, Debug, Args)]
pub struct SupportBundleArgs {
    /// The cluster with the machine objects
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The cluster with the Nodes
    #[command(flatten)]
    pub target: TargetArgs,
    /// Namespace of the machine objects; unset means the namespace of the kubeconfig's context
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace_name)]
    pub namespace: Option<String>,
    /// Namespaces that the webhooks cover: all, or --namespace only
    #[arg(long, default_value = "cluster", value_name = "SCOPE")]
    pub scope: WebhookScope,
    /// File to write; unset means mcm-support-NAMESPACE-TIME.tar.gz in the working directory
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    pub file: Option<PathBuf>,
    /// Print what the bundle would contain and lack, and write nothing
    #[arg(long)]
    pub list: bool,
    /// Replace the names of objects by words that are the same in every bundle of this cluster
    #[arg(long)]
    pub pseudonyms: bool,
    /// Keep the addresses of nodes and servers
    #[arg(long)]
    pub keep_addresses: bool,
}

/// Reads the cluster and writes the bundle. What can't be read is a gap in its index, and no error.
///
/// # Errors
/// When the kubeconfig can't be used or the file can't be written.
pub fn run(args: &SupportBundleArgs, drivers: &DriverSet, out: &mut dyn Write) -> Result<(), Failure> {
    let registry = offline::known_drivers(drivers)?;
    let schema_of = |provider: &str| registry.schema(provider).cloned();
    let providers = RegisteredDrivers::new(registry.clone(), Coverage::Some);
    let (gathered, namespace, names) = run_interruptibly(read(args, &providers), "interrupted; nothing was written")?;
    let now = Timestamp::now();
    let rules = Rules {
        namespace: &namespace,
        addresses: if args.keep_addresses { Addresses::Keep } else { Addresses::Remove },
        names,
        schema_of: &schema_of,
        now,
    };
    let folder = format!("mcm-support-{}", now.strftime("%Y%m%dT%H%M%SZ"));
    let (files, index) = bundle(&gathered, &folder, &rules);
    if args.list {
        return print(&index, out);
    }
    let path = args.file.clone().unwrap_or_else(|| {
        // With pseudonyms the name of the namespace is one of the names that are replaced.
        PathBuf::from(format!("mcm-support-{}-{}.tar.gz", index.namespace, now.strftime("%Y%m%dT%H%M%SZ")))
    });
    write(&files, now, &path)?;
    writeln!(out, "wrote {} with {} files; nothing was sent anywhere", path.display(), files.len())?;
    for gap in &index.gaps {
        writeln!(out, "missing: {}: {}", gap.what, gap.why)?;
    }
    Ok(())
}

async fn read(args: &SupportBundleArgs, providers: &dyn Providers) -> Result<(Gathered, String, Names), Failure> {
    let client = args.cluster.connect().await?;
    let target = args.target.connect(&client).await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let gathered =
        gather(&Examined::usual(&client, &args.target, target.as_ref(), &namespace, args.scope, providers)).await;
    let names = if args.pseudonyms {
        let key = key_of_cluster(&client).await;
        // Without the key, names are equal within this bundle only.
        Names::pseudonyms(key.unwrap_or_else(|| rand::random::<u128>().to_string()).as_bytes())
    } else {
        Names::Keep
    };
    Ok((gathered, namespace, names))
}

/// The preview.
fn print(index: &Index, out: &mut dyn Write) -> Result<(), Failure> {
    for file in &index.files {
        writeln!(out, "{:>10}  {}", file.bytes, file.path)?;
    }
    for gap in &index.gaps {
        writeln!(out, "   missing  {}: {}", gap.what, gap.why)?;
    }
    Ok(())
}

/// Writes the archive beside its place, and moves it there when it is complete. Only its owner may read it.
fn write(files: &[File], now: Timestamp, path: &Path) -> Result<(), Failure> {
    let mut beside = path.to_path_buf().into_os_string();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let failed = |error: std::io::Error| {
        Failure::run(anyhow::anyhow!("cannot write {}: {error}; name another file with --file", path.display()))
    };
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside);
    let written = file.and_then(|file| {
        archive::write(files, now, std::io::BufWriter::new(file))?;
        fs::rename(&beside, path)
    });
    written.map_err(|error| {
        // What remains is of no use, and may not exist.
        let _ = fs::remove_file(&beside);
        failed(error)
    })
}
