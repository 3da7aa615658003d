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
use tokio::sync::oneshot;

use self::{
    archive::File,
    bundle::{Rules, bundle},
    gather::{Gathered, gather, key_of_cluster},
    index::Index,
    redact::Addresses,
    scrub::Names,
};
use super::{Failure, doctor::InstallationArgs, kubeconfig::run_interruptibly, offline};
use crate::{DriverSet, manager::registered_drivers::RegisteredDrivers};
use machine_api::validation::{Coverage, Providers};

/// The error after Ctrl-C. An unfinished file is removed.
const INTERRUPTED: &str = "interrupted; nothing was written";

/// Flags of `mcm support-bundle`.
#[derive(Clone, Debug, Args)]
pub struct SupportBundleArgs {
    /// The installation that is described
    #[command(flatten)]
    pub installation: InstallationArgs,
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
    let providers = RegisteredDrivers::new(registry.clone(), Coverage::Some);
    let (gathered, namespace, names) = run_interruptibly(read(args, &providers), INTERRUPTED)?;
    let now = Timestamp::now();
    let addresses = if args.keep_addresses { Addresses::Keep } else { Addresses::Remove };
    let make = move || {
        let schema_of = |provider: &str| registry.schema(provider).cloned();
        let rules = Rules { namespace: &namespace, addresses, names, schema_of: &schema_of, now };
        let folder = format!("mcm-support-{}", now.strftime("%Y%m%dT%H%M%SZ"));
        bundle(&gathered, &folder, &rules)
    };
    let (files, index) = run_interruptibly(on_a_thread(make), INTERRUPTED)?;
    if args.list {
        return print(&index, out);
    }
    let path = args.file.clone().unwrap_or_else(|| {
        // With pseudonyms the name of the namespace is one of the names that are replaced.
        PathBuf::from(format!("mcm-support-{}-{}.tar.gz", index.namespace, now.strftime("%Y%m%dT%H%M%SZ")))
    });
    let count = files.len();
    run_interruptibly(write(files, now, &path), INTERRUPTED)?;
    writeln!(out, "wrote {} with {count} files; nothing was sent anywhere", path.display())?;
    for gap in &index.gaps {
        writeln!(out, "missing: {}: {}", gap.what, gap.why)?;
    }
    Ok(())
}

async fn read(args: &SupportBundleArgs, providers: &dyn Providers) -> Result<(Gathered, String, Names), Failure> {
    let connected = args.installation.connect().await?;
    let gathered = gather(&connected.examined(providers)).await;
    let names = if args.pseudonyms {
        let key = key_of_cluster(&connected.client).await;
        // Without the key, names are equal within this bundle only.
        Names::pseudonyms(key.unwrap_or_else(|| rand::random::<u128>().to_string()).as_bytes())
    } else {
        Names::Keep
    };
    Ok((gathered, connected.namespace, names))
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

/// The outcome of long work on a thread of its own, so that signals are handled meanwhile. After a signal the command does not wait for the thread.
///
/// # Errors
/// When the work ends without an outcome.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    let (done, outcome) = oneshot::channel();
    // After a signal the outcome is not needed.
    std::thread::Builder::new().spawn(move || drop(done.send(work())))?;
    outcome.await.map_err(|_| Failure::run(anyhow::anyhow!("the bundle could not be made: its thread ended early")))
}

/// A file of its own beside the archive's place. It is removed unless it was moved there.
struct Unfinished {
    path: PathBuf,
}

impl Unfinished {
    /// A new file that only its owner may read. A file or link of this name is neither opened nor changed.
    fn create(beside: &Path) -> std::io::Result<(Self, fs::File)> {
        let mut path = beside.to_path_buf().into_os_string();
        path.push(format!(".{:016x}.part", rand::random::<u64>()));
        let path = PathBuf::from(path);
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok((Self { path }, file))
    }

    fn move_to(self, path: &Path) -> std::io::Result<()> {
        fs::rename(&self.path, path)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After the move nothing has this name.
        let _ = fs::remove_file(&self.path);
    }
}

/// Checks that the archive would replace no folder, device or pipe, such as `/dev/stdout`.
fn is_replaceable(path: &Path) -> std::io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(std::io::Error::other("it is no plain file")),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Writes the archive beside its place, and moves it there when it is complete. Only its owner may read it.
async fn write(files: Vec<File>, now: Timestamp, path: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::run(anyhow::anyhow!("cannot write {}: {error}; name another file with --file", path.display()))
    };
    is_replaceable(path).map_err(failed)?;
    let (unfinished, file) = Unfinished::create(path).map_err(failed)?;
    on_a_thread(move || archive::write(&files, now, std::io::BufWriter::new(file))).await?.map_err(failed)?;
    unfinished.move_to(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use futures::FutureExt;

    use super::*;

    fn files(bytes: usize) -> Vec<File> {
        vec![File { path: "b/x.txt".to_owned(), content: vec![b'x'; bytes] }]
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn an_archive_is_written_through_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        fs::write(place("victim"), "untouched").unwrap();
        symlink(place("victim"), place("linked.tgz.part")).unwrap();
        symlink(place("victim"), place("linked.tgz")).unwrap();
        fs::write(place("open.tgz.part"), "").unwrap();
        fs::set_permissions(place("open.tgz.part"), fs::Permissions::from_mode(0o666)).unwrap();
        for name in ["linked.tgz", "open.tgz"] {
            write(files(10), Timestamp::UNIX_EPOCH, &place(name)).await.unwrap();
            assert_eq!(mode(&place(name)), 0o600, "{name}");
            assert!(fs::symlink_metadata(place(name)).unwrap().is_file(), "{name}");
        }
        assert_eq!(fs::read_to_string(place("victim")).unwrap(), "untouched");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 5, "nothing else remains");
    }

    #[tokio::test]
    async fn an_archive_replaces_plain_files_only() {
        let folder = tempfile::tempdir().unwrap();
        let (other, link) = (folder.path().join("other"), folder.path().join("link"));
        fs::create_dir(&other).unwrap();
        symlink(&other, &link).unwrap();
        let refused = write(files(1), Timestamp::UNIX_EPOCH, &link).await.unwrap_err().to_string();
        assert!(refused.contains("it is no plain file"), "{refused}");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else remains");
    }

    #[tokio::test]
    async fn two_archives_at_the_same_place_do_not_share_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.tgz");
        let at = Timestamp::UNIX_EPOCH;
        let (one, other) =
            futures::future::join(write(files(1 << 20), at, &path), write(files(1 << 20), at, &path)).await;
        assert!(one.is_ok() && other.is_ok());
        let mut expected = Vec::new();
        archive::write(&files(1 << 20), at, &mut expected).unwrap();
        assert!(fs::read(&path).unwrap() == expected, "the archive is whole");
    }

    #[tokio::test]
    async fn an_interrupted_archive_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.tgz");
        let written = write(files(16 << 20), Timestamp::UNIX_EPOCH, &path).now_or_never();
        assert!(written.is_none(), "a signal can come while the file is written");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_place_that_does_not_exist_is_named() {
        let refused = write(files(1), Timestamp::UNIX_EPOCH, Path::new("/nonexistent/b.tgz")).await.unwrap_err();
        assert!(refused.to_string().contains("/nonexistent/b.tgz") && refused.to_string().contains("--file"));
    }
}
