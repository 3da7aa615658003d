//! The examples in `deploy/examples/`: every kind has an example, and each file applies.

use std::{collections::BTreeSet, fs, path::PathBuf};

use machine_controller_manager::cli::documents::parse_documents;

use crate::support::{Rig, cluster_object::text};

fn examples() -> Vec<(PathBuf, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/examples");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .filter(|path| !path.ends_with("kustomization.yaml"))
        .collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read_to_string(path).expect("readable"))).collect()
}

#[test]
fn every_kind_has_an_example() {
    let kinds: BTreeSet<String> = examples()
        .iter()
        .flat_map(|(path, yaml)| parse_documents(&path.display().to_string(), yaml).expect("YAML"))
        .map(|document| text(&document.value, "/kind").to_owned())
        .collect();
    for kind in ["Machine", "MachineClass", "MachineDeployment", "MachineSet"] {
        assert!(kinds.contains(kind), "no example of {kind} among {kinds:?}");
    }
}

#[tokio::test]
async fn every_example_applies() {
    let Some(rig) = Rig::shared("examples::every_example_applies").await else { return };
    rig.install_crds().await;
    for (path, yaml) in examples() {
        println!("{}", path.display());
        // Strict validation: an unknown field is a mistake in the example.
        let file = path.display().to_string();
        rig.kubectl(&["apply", "--validate=strict", "-f", &file]).await.succeed();
        assert!(!yaml.contains('\t'), "tabs in {}", path.display());
    }
}
