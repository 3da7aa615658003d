//! The container image: its content, and the program in it. `scripts/image` makes it with buildah, without a daemon and without a network. No container
//! runtime is used: the program runs in its unpacked root folder, which is mounted read-only, as an unprivileged user.
//!
//! The binary under test is the one in `MCM_IMAGE_BINARY` (`scripts/image --test BINARY`), otherwise the debug build. A debug build needs shared
//! libraries, so its image has those of this computer; the tests leave them out of their counts.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;

use crate::support::{
    process::Process,
    rig::is_left_out,
    scratch::{count_ran, count_skipped, subfolder},
    wait_until,
};

const MCM: &str = env!("CARGO_BIN_EXE_mcm");
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/image");
const CLASS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/examples/machineclass-aws.yaml");
/// The user of the image, and a user that a platform chooses.
const USERS: [&str; 2] = ["65532", "1000670000"];

/// Runs the program of an unpacked image as a container runtime does with `readOnlyRootFilesystem` and an `emptyDir` for `/tmp`. One file
/// can be mounted over another.
const CONTAINER: &str = r#"
set -e
root=$1 user=$2 file=$3 over=$4; shift 4
mount --bind "$root" "$root"
if [ -n "$file" ]; then mount --bind "$file" "$root$over"; fi
mount -o remount,bind,ro "$root"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
exec chroot --userspec="$user:$user" --groups= "$root" /usr/local/bin/mcm "$@"
"#;

fn binary() -> PathBuf {
    std::env::var_os("MCM_IMAGE_BINARY").map_or_else(|| PathBuf::from(MCM), PathBuf::from)
}

/// Whether images can be made and unpacked here. Otherwise the test is counted as skipped.
fn can_run(test: &str) -> bool {
    if is_left_out(test, "an image is the same beside either") {
        return false;
    }
    let is_there =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|run| run.status.success());
    let missing: Vec<&str> = ["buildah", "skopeo", "umoci"].into_iter().filter(|program| !is_there(program)).collect();
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    match (missing.is_empty(), is_root) {
        (true, true) => {
            count_ran(test);
            true
        }
        (true, false) => {
            count_skipped(test, "no image to test: only root can mount its folders");
            false
        }
        (false, _) => {
            count_skipped(test, &format!("no image to test: install {}", missing.join(", ")));
            false
        }
    }
}

fn succeed(command: &mut Command) -> String {
    let run = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(run.status.success(), "{command:?}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).expect("text")
}

fn archive(binary: &Path, to: &Path) {
    succeed(Command::new(SCRIPT).arg("--to").arg(to).arg(binary).env("SOURCE_DATE_EPOCH", "1700000000"));
}

/// The image of the binary under test, and its root folder. All tests share them.
fn image() -> &'static (PathBuf, PathBuf) {
    static IMAGE: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let folder = subfolder("image");
        let (file, layout, bundle) = (folder.join("image.tar"), folder.join("layout"), folder.join("bundle"));
        archive(&binary(), &file);
        let (from, to) = (format!("oci-archive:{}", file.display()), format!("oci:{}:mcm", layout.display()));
        succeed(Command::new("skopeo").args(["copy", "--quiet", &from, &to]));
        let layout = format!("{}:mcm", layout.display());
        succeed(Command::new("umoci").args(["unpack", "--image", &layout]).arg(&bundle));
        // Test folders may only be entered by their owner; the users of the image must get to the root folder.
        for folder in bundle.ancestors().take_while(|folder| folder.parent().is_some()) {
            let mode = fs::metadata(folder).expect("a folder").permissions().mode();
            fs::set_permissions(folder, fs::Permissions::from_mode(mode | 0o011)).expect("permissions");
        }
        (file, bundle.join("rootfs"))
    })
}

/// The digest of an image, and its configuration.
fn inspect(file: &Path) -> Value {
    let text = succeed(Command::new("skopeo").arg("inspect").arg(format!("oci-archive:{}", file.display())));
    serde_json::from_str(&text).expect("JSON")
}

/// A file of this computer, and the file of the image that it is mounted over.
type Mount<'a> = (&'a str, &'a str);

fn container(user: &str, mount: Option<Mount<'_>>, arguments: &[&str]) -> Vec<String> {
    let root = image().1.display().to_string();
    let (file, over) = mount.unwrap_or_default();
    let fixed = ["--mount", "sh", "-c", CONTAINER, "sh", &root, user, file, over];
    fixed.iter().chain(arguments).map(|argument| (*argument).to_owned()).collect()
}

fn run(user: &str, arguments: &[&str]) -> Output {
    Command::new("unshare").args(container(user, None, arguments)).env_clear().output().expect("unshare runs")
}

/// A file of the image by its path in the image.
struct Entry {
    path: String,
    about: fs::Metadata,
}

fn entries(root: &Path) -> Vec<Entry> {
    let mut folders = vec![root.to_owned()];
    let mut entries = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let about = fs::symlink_metadata(&path).expect("an entry");
            if about.is_dir() {
                folders.push(path.clone());
            }
            let path = format!("/{}", path.strip_prefix(root).expect("below the root").display());
            entries.push(Entry { path, about });
        }
    }
    entries
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_011_the_program_runs_in_the_image_as_any_user_on_a_read_only_root() {
    const TEST: &str = "image::pk_011_the_program_runs_in_the_image";
    if !can_run(TEST) {
        return;
    }
    for user in USERS {
        let version = run(user, &["version"]);
        assert!(version.stdout.starts_with(b"mcm "), "{user}: {version:?}");
        let manifests = run(user, &["manifests", "all"]);
        assert!(manifests.status.success(), "{user}: {manifests:?}");
        assert!(String::from_utf8_lossy(&manifests.stdout).contains("machines.machine.sapcloud.io"), "{user}");

        let arguments = container(user, None, &["dev", "--example", "--kubeconfig=/tmp/kubeconfig"]);
        let mut dev = Process::start(&subfolder("image-dev"), "dev", Path::new("/usr/bin/unshare"), &arguments);
        wait_until("a machine of the example to run", Duration::from_secs(60), || async {
            let log = dev.log();
            if log.contains(": Running") { Ok(()) } else { Err(log) }
        })
        .await;
        let status = fs::read_to_string(format!("/proc/{}/status", dev.pid())).expect("the process runs");
        let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).expect(name).trim().to_owned();
        assert_eq!(of("Uid:").split_whitespace().next(), Some(user));
        assert_eq!(of("CapEff:").trim_matches('0'), "", "the process has no capability");
        dev.signal("TERM");
        assert_eq!(dev.wait(Duration::from_secs(30)), 0, "{}", dev.log_tail());
    }
    let written = run(USERS[0], &["dev", "--kubeconfig=/kubeconfig"]);
    assert!(!written.status.success(), "the root folder is read-only");
    assert!(String::from_utf8_lossy(&written.stderr).contains("/kubeconfig"), "{written:?}");
}

#[test]
fn pk_012_equal_inputs_give_equal_digests() {
    if !can_run("image::pk_012_equal_inputs_give_equal_digests") {
        return;
    }
    let again = subfolder("image-again").join("image.tar");
    archive(&binary(), &again);
    let (first, second) = (inspect(&image().0), inspect(&again));
    assert_eq!(first["Digest"], second["Digest"]);
    assert_eq!(first["Labels"]["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(first["Labels"]["org.opencontainers.image.licenses"], "Apache-2.0");
}

#[test]
fn pk_013_the_image_has_one_executable_and_nothing_that_its_user_may_write() {
    if !can_run("image::pk_013_the_image_has_one_executable") {
        return;
    }
    let root = &image().1;
    let entries = entries(root);
    let is_library = |path: &str| path.starts_with("/lib");
    let files = |bits: u32| -> Vec<&str> {
        let has = |entry: &&Entry| !entry.about.is_symlink() && entry.about.mode() & bits != 0;
        entries.iter().filter(has).map(|entry| entry.path.as_str()).filter(|path| !is_library(path)).collect()
    };
    assert_eq!(files(0o6000), Vec::<&str>::new(), "setuid and setgid");
    assert_eq!(files(0o022), ["/tmp"], "writable for others than root");
    let foreign: Vec<&str> =
        entries.iter().filter(|entry| entry.about.uid() != 0).map(|entry| entry.path.as_str()).collect();
    assert_eq!(foreign, Vec::<&str>::new(), "owned by another user than root");
    let executables: Vec<&str> = entries
        .iter()
        .filter(|entry| entry.about.is_file() && entry.about.mode() & 0o111 != 0)
        .map(|entry| entry.path.as_str())
        .filter(|path| !is_library(path))
        .collect();
    assert_eq!(executables, ["/usr/local/bin/mcm"]);
    let top: BTreeSet<&str> = entries
        .iter()
        .filter(|entry| entry.path.matches('/').count() == 1 && !is_library(&entry.path))
        .map(|entry| entry.path.as_str())
        .collect();
    assert_eq!(top, BTreeSet::from(["/etc", "/machine-controller", "/machine-controller-manager", "/tmp", "/usr"]));
    for document in ["LICENSE", "NOTICE"] {
        assert!(root.join("usr/share/doc/machine-controller-manager").join(document).is_file(), "{document}");
    }
    let users = fs::read_to_string(root.join("etc/passwd")).expect("users");
    assert!(users.contains("nonroot:x:65532:65532:"), "{users}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_016_a_private_authority_is_trusted_by_variable_or_by_mount_and_not_otherwise() {
    if !can_run("image::pk_016_a_private_authority_is_trusted") {
        return;
    }
    // Any server whose certificate comes from an authority of its own: the API server of `mcm dev`, which refuses the calls.
    let folder = subfolder("image-authority");
    let kubeconfig = folder.join("kubeconfig");
    let arguments = ["dev", "--api-server-only", &format!("--kubeconfig={}", kubeconfig.display())].map(str::to_owned);
    let server = Process::start(&folder, "server", Path::new(MCM), &arguments);
    let cluster = wait_until("the server", Duration::from_secs(60), || async {
        let text = fs::read_to_string(&kubeconfig).map_err(|_| server.log())?;
        let config: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        Ok(config["clusters"][0]["cluster"].clone())
    })
    .await;
    let authority = cluster["certificate-authority-data"].as_str().expect("an authority");
    let file = folder.join("authority.pem");
    fs::write(&file, BASE64_STANDARD.decode(authority).expect("base64")).expect("a file");
    let endpoint = format!("--provider-endpoint=AWS={}", cluster["server"].as_str().expect("an address"));
    let file = file.display().to_string();

    let ask = |variable: Option<&str>, mount: Option<Mount<'_>>| {
        let mut command = Command::new("unshare");
        command.args(container(USERS[0], mount, &["validate", "-f", "-", "--ask-provider", &endpoint])).env_clear();
        command.envs(variable.map(|path| ("SSL_CERT_FILE", path)));
        command.stdin(fs::File::open(CLASS).expect("the example"));
        let run = command.output().expect("unshare runs");
        format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr))
    };
    let (refused, answered) = ("invalid peer certificate: UnknownIssuer", "StatusCode: 401");
    // Any file of the image that the program does not read by itself.
    let elsewhere = "/usr/share/doc/machine-controller-manager/NOTICE";
    let trusting = [
        ask(None, Some((&file, "/etc/ssl/certs/ca-certificates.crt"))),
        ask(Some(elsewhere), Some((&file, elsewhere))),
    ];
    for said in trusting {
        assert!(said.contains(answered) && !said.contains(refused), "{said}");
    }
    for said in [ask(None, None), ask(None, Some((&file, elsewhere))), ask(Some(elsewhere), None)] {
        assert!(said.contains(refused) && !said.contains(answered), "{said}");
    }
}

#[test]
fn pk_017_an_index_joins_the_images_of_two_platforms() {
    if !can_run("image::pk_017_an_index_joins_the_images_of_two_platforms") {
        return;
    }
    let folder = subfolder("image-index");
    // A stand-in for a build on arm64: a file that begins like such a program (the machine in an ELF head) and is none.
    let (program, arm) = (folder.join("mcm-arm64"), folder.join("arm64.tar"));
    let mut head = fs::read(binary()).expect("the binary")[..64].to_vec();
    head[18] = 0xb7;
    fs::write(&program, head).expect("a file");
    archive(&program, &arm);
    assert_eq!(inspect(&arm)["Architecture"], "arm64");

    let (index, layout) = (folder.join("index.tar"), folder.join("layout"));
    succeed(Command::new(SCRIPT).arg("--index").arg(&index).arg(&image().0).arg(&arm));
    fs::create_dir(&layout).expect("a folder");
    succeed(Command::new("tar").arg("-xf").arg(&index).arg("-C").arg(&layout));
    let read = |path: PathBuf| -> Value { serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON") };
    let blob =
        |digest: &Value| layout.join("blobs/sha256").join(digest.as_str().expect("a digest").replace("sha256:", ""));
    let top = read(layout.join("index.json"));
    let list = read(blob(&top["manifests"][0]["digest"]));
    let platforms: BTreeSet<(String, String)> = list["manifests"]
        .as_array()
        .expect("manifests")
        .iter()
        .map(|entry| {
            let text = |value: &Value| value.as_str().expect("a text").to_owned();
            assert!(blob(&entry["digest"]).is_file(), "{entry}");
            (text(&entry["platform"]["architecture"]), text(&entry["digest"]))
        })
        .collect();
    let digest = |file: &Path| inspect(file)["Digest"].as_str().expect("a digest").to_owned();
    let expected = [("amd64", digest(&image().0)), ("arm64", digest(&arm))];
    assert_eq!(platforms, expected.map(|(name, digest)| (name.to_owned(), digest)).into());
}
