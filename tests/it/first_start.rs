//! The first start: the profiles that people build, README's first command, the tour, and Ctrl-C.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use crate::support::{
    assets,
    process::Process,
    scratch::{count_ran, count_skipped, subfolder},
    wait_until,
};

const MCM: &str = env!("CARGO_BIN_EXE_mcm");
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn read(path: &str) -> String {
    fs::read_to_string(format!("{ROOT}/{path}")).expect(path)
}

/// The lines of a profile in Cargo.toml.
fn profile(name: &str) -> BTreeSet<String> {
    let manifest = read("Cargo.toml");
    let (_, after) = manifest.split_once(&format!("\n[profile.{name}]\n")).unwrap_or_default();
    after.split("\n[").next().unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn pk_001_release_is_fast_to_build_and_only_images_are_built_as_dist() {
    assert!(profile("release").contains(r#"lto = "off""#));
    assert!(profile("dist").is_superset(&[r#"inherits = "release""#, r#"lto = "fat""#].map(str::to_owned).into()));
    assert!(profile("histories").is_empty(), "`release` has its settings");
    assert!(read("scripts/image-binary").contains("--profile dist"));
    assert!(read("Dockerfile").contains("scripts/image-binary"));
    let scripts = fs::read_dir(format!("{ROOT}/scripts")).expect("a folder").map(|entry| entry.expect("a file").path());
    let measured = ["bench-webhook"]; // measures the program of the images
    for path in scripts.filter(|path| path.is_file()) {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let builds_dist = fs::read_to_string(&path).expect("a script").contains("dist}");
        assert!(!builds_dist || measured.contains(&name.as_str()), "scripts/{name} builds the profile dist");
    }
}

#[test]
fn pk_002_the_first_shell_line_of_the_readme_is_one_command() {
    let readme = read("README.md");
    let (_, after) = readme.split_once("```sh\n").expect("a block");
    let first = after.lines().next().expect("a line");
    let command = first.split(" #").next().expect("a command").trim();
    assert!(command.starts_with("cargo run ") && command.ends_with("-- dev --example"), "{first}");
    assert!(!command.contains([';', '|', '&']), "{first}");
}

/// `mcm dev` with these arguments, programs of this path, and no input.
fn dev(folder: &Path, path: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(MCM);
    command.arg("dev").args(arguments).env("PATH", path);
    command.env("HOME", folder).env("TMPDIR", folder).stdin(Stdio::null()).output().expect("mcm runs")
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_005_the_tour_runs_the_commands_of_the_readme_and_ends() {
    const TEST: &str = "first_start::pk_005_the_tour_runs_the_commands_of_the_readme";
    let assets = match assets::find() {
        Ok(assets) => assets,
        Err(why) => return count_skipped(TEST, &why),
    };
    count_ran(TEST);
    let folder = subfolder("tour");
    let path = format!("{}:/usr/bin:/bin", assets.display());
    let tour = tokio::task::spawn_blocking(move || dev(&folder, &path, &["--tour"])).await.expect("the tour ends");
    let (shown, said) = (String::from_utf8_lossy(&tour.stdout), String::from_utf8_lossy(&tour.stderr));
    assert!(tour.status.success(), "{shown}{said}");
    let readme = read("README.md");
    let (_, after) = readme.split_once("in a second terminal:").expect("the quick start");
    let (commands, _) = after.split_once("The VMs of `mcm dev`").expect("its end");
    let commands = commands.lines().filter(|line| line.starts_with("kubectl "));
    let commands: Vec<&str> = commands.map(|line| line.split(" #").next().unwrap_or_default().trim()).collect();
    assert!(commands.len() >= 10, "{commands:?}");
    let mut rest: &str = &shown;
    for command in commands {
        let (_, after) = rest.split_once(&format!("$ {command}\n")).unwrap_or_else(|| panic!("{command}: {shown}"));
        let output = after.split("\n$ ").next().unwrap_or_default();
        assert!(!output.trim().is_empty(), "{command} prints something: {shown}");
        rest = after;
    }
    for seen in ["example-deployment scaled", "spec.selector: Required value", "deleted"] {
        assert!(shown.contains(seen), "{seen}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_005_a_command_of_the_tour_that_fails_ends_it_with_1() {
    count_ran("first_start::pk_005_a_command_that_fails");
    let folder = subfolder("tour-fails");
    let programs = folder.join("bin");
    fs::create_dir(&programs).expect("a folder");
    // Nothing else is on the path, because a computer may have a kubectl.
    std::os::unix::fs::symlink("/bin/sh", programs.join("sh")).expect("a link");
    let tour = |folder: std::path::PathBuf, programs: std::path::PathBuf| async move {
        let run = move || dev(&folder, &programs.display().to_string(), &["--tour"]);
        let tour = tokio::task::spawn_blocking(run).await.expect("it ends");
        let said = String::from_utf8_lossy(&tour.stderr).into_owned();
        (tour.status.code(), said)
    };
    let (code, said) = tour(folder.clone(), programs.clone()).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("kubectl is not on the PATH"), "{said}");
    let kubectl = programs.join("kubectl");
    fs::write(&kubectl, "#!/bin/sh\necho no >&2; exit 3\n").expect("a script");
    fs::set_permissions(&kubectl, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("permissions");
    let (code, said) = tour(folder, programs).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("kubectl get machinedeployments,machines,nodes: it ended with code 3"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_006_ctrl_c_ends_the_cluster_and_leaves_no_file_but_the_kubeconfig() {
    count_ran("first_start::pk_006_ctrl_c_ends_the_cluster");
    let (home, log) = (subfolder("ctrl-c"), subfolder("ctrl-c-log"));
    let kubeconfig = home.join("kubeconfig");
    let arguments = [
        format!("HOME={}", home.display()),
        format!("TMPDIR={}", home.display()),
        MCM.to_owned(),
        "dev".to_owned(),
        "--example".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
    ];
    let mut dev = Process::start(&log, "dev", Path::new("/usr/bin/env"), &arguments);
    wait_until("a machine of the example to run", Duration::from_secs(60), || async {
        let log = dev.log();
        if log.contains(": Running") { Ok(()) } else { Err(log) }
    })
    .await;
    dev.signal("INT");
    assert_eq!(dev.wait(Duration::from_secs(10)), 0, "{}", dev.log_tail());
    let left: Vec<_> = fs::read_dir(&home).expect("the folder").map(|entry| entry.expect("a file").path()).collect();
    assert_eq!(left, [kubeconfig], "files that nobody asked for");
}
