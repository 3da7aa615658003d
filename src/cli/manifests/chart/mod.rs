//! `mcm manifests chart`: the generated files of the Helm chart in `deploy/charts`.
//!
//! What follows from code is generated: templates of definitions, rights, webhooks, policies, views, alerts and
//! dashboards ([`generated`]), and values,
//! schema and reference of the values ([`values`], [`flags`], [`reference`]). The workload's templates are written by hand. A test compares the committed files
//! with these functions. Source: spec/packaging §3.1.

mod alert_values;
mod alerts;
mod cluster_values;
mod dashboards;
mod flags;
mod generated;
mod metric_values;
mod reference;
mod template;
mod values;

use std::{fs, path::Path};

use anyhow::Context;

use crate::cli::Failure;

/// A generated file of the chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChartFile {
    /// Its path below the folder of the chart.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// All generated files of the chart.
pub fn files() -> Vec<ChartFile> {
    let flags = flags::of_serve();
    let mut files: Vec<_> = generated::templates()
        .into_iter()
        .map(|template| ChartFile { path: format!("templates/generated/{}", template.name), text: template.text })
        .collect();
    let others = [
        ("templates/generated/_flags.tpl", flags::template()),
        ("values.yaml", reference::yaml()),
        ("values.schema.json", values::schema_json(&flags)),
        ("VALUES.md", reference::tables(&flags)),
    ];
    files.extend(others.into_iter().map(|(path, text)| ChartFile { path: path.to_owned(), text }));
    files
}

/// Writes all generated files below the folder of the chart.
///
/// # Errors
/// When a file can't be written. The error names it.
pub fn write(folder: &Path) -> Result<(), Failure> {
    for file in files() {
        let path = folder.join(&file.path);
        let wrote = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, &file.text));
        wrote.with_context(|| format!("cannot write {}", path.display())).map_err(Failure::run)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// `UPDATE_CHART=1 cargo test` writes the files.
    #[test]
    fn pk_021_the_committed_files_are_those_of_the_code() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/charts/machine-controller-manager");
        if std::env::var_os("UPDATE_CHART").is_some() {
            write(&folder).unwrap();
        }
        for file in files() {
            let committed = fs::read_to_string(folder.join(&file.path)).unwrap_or_default();
            assert!(
                committed == file.text,
                "{} is stale: run cargo run -- manifests chart --write deploy/charts/machine-controller-manager",
                file.path
            );
        }
        let generated = fs::read_dir(folder.join("templates/generated")).unwrap();
        let committed: BTreeSet<_> =
            generated.map(|entry| format!("templates/generated/{}", entry.unwrap().file_name().display())).collect();
        let expected: BTreeSet<_> =
            files().into_iter().map(|file| file.path).filter(|path| path.starts_with("templates/generated/")).collect();
        assert_eq!(committed, expected, "a file in templates/generated that nothing generates");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let Err(Failure::Run(error)) = write(&file.path().join("chart")) else { panic!("written into a file") };
        assert!(
            error.to_string().starts_with("cannot write ") && error.to_string().contains("templates/generated"),
            "{error}"
        );
    }
}
