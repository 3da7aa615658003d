//! The commands of "Both versions" in docs/operations.md run as they are written: objects are stored as v1beta1, and as v1alpha1 again.

use std::{path::Path, process::Stdio, time::Duration};

use tokio::process::Command;

use crate::support::{
    assets,
    process::Process,
    scratch::{count_ran, count_skipped, subfolder},
    wait::expect,
    wait_until,
};

const MCM: &str = env!("CARGO_BIN_EXE_mcm");
/// One command may take this long.
const BAR: Duration = Duration::from_secs(60);

/// The commands of a section, each with what the comment at its end says that it prints.
fn commented(document: &str, section: &str) -> Vec<(String, Option<String>)> {
    let body = document.split(&format!("\n## {section}\n")).nth(1).expect("the section");
    let body = body.split("\n## ").next().unwrap_or_default();
    let blocks = body.split("\n```sh\n").skip(1).filter_map(|rest| rest.split_once("\n```"));
    let lines = blocks.flat_map(|(block, _)| block.lines());
    lines
        .map(|line| match line.split_once("    # ") {
            Some((command, printed)) => (command.trim().to_owned(), Some(printed.trim().to_owned())),
            None => (line.trim().to_owned(), None),
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_122_both_versions_are_served_and_objects_migrate_forth_and_back() {
    const NAME: &str = "both_versions::pk_122";
    let assets = match assets::find() {
        Ok(assets) => assets,
        Err(why) => return count_skipped(NAME, &why),
    };
    count_ran(NAME);
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md")).expect("UTF-8");
    let commands = commented(&document, "Both versions");
    assert!(commands.iter().filter(|(command, _)| command.contains("migrate-storage")).count() >= 3, "{commands:?}");
    assert!(commands.iter().filter(|(_, printed)| printed.is_some()).count() >= 2, "{commands:?}");
    // What users saw before they had the policy: the section says it in the words of the API server.
    for said in ["`kubectl replace` with them is accepted", "webhookClientConfig: Forbidden", "`mcm doctor` reports"] {
        assert!(document.contains(said), "{said}");
    }
    let folder = subfolder("both-versions");
    let kubeconfig = folder.join("kubeconfig").display().to_string();
    let start = ["dev".to_owned(), "--example".to_owned(), format!("--kubeconfig={kubeconfig}")];
    let process = Process::start(&folder, "mcm-dev", Path::new(MCM), &start);
    wait_until("the hints", Duration::from_secs(60), || async {
        expect(process.log().contains("second terminal"), || process.log())
    })
    .await;
    let programs = Path::new(MCM).parent().expect("a folder").display();
    let path = format!("{}:{programs}:{}", assets.display(), std::env::var("PATH").unwrap_or_default());
    let mut machines = Vec::new();
    for (command, expected) in &commands {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env("PATH", &path).env("HOME", &folder).env("KUBECONFIG", &kubeconfig);
        let done = shell.stdin(Stdio::null()).kill_on_drop(true).current_dir(&folder).output();
        let done = tokio::time::timeout(BAR, done).await.expect("the command ends").expect("a shell");
        let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{command}:\n{said}");
        if let Some(expected) = expected {
            assert_eq!(said.trim(), expected, "{command}");
        }
        if command.contains("kubectl get machines") {
            machines.push(said);
        }
    }
    assert!(
        !machines.is_empty() && machines.iter().all(|said| said.contains("machine.machine.sapcloud.io/")),
        "{machines:?}"
    );
}

#[test]
fn the_comment_at_the_end_of_a_command_is_its_output() {
    let document = "# T\n\n## A\n\n```sh\nx    # y\nz\n```\n\n## B\n\n```sh\nw\n```\n";
    assert_eq!(commented(document, "A"), [("x".to_owned(), Some("y".to_owned())), ("z".to_owned(), None)]);
}
