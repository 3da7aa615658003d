//! Damaged, duplicated and invented reviews: for any bytes, the answer is valid for the API server.
//!
//! The entry points are the same as in the fuzz targets in `fuzz/`. Here they run for a bounded time on mutations of real reviews.

#[path = "../../fuzz/entries.rs"]
mod entries;

use std::{collections::BTreeSet, fs, path::Path};

use kube_values::json::Json;

use proptest::{prelude::*, sample::Index};
use serde_json::{Value, json};

const REVIEWS: [&str; 3] = [
    include_str!("../fixtures/reviews/machine.json"),
    include_str!("../fixtures/reviews/machine-bad.json"),
    include_str!("../fixtures/reviews/machinedeployment.json"),
];

/// Fragments that are significant for a JSON parser or for our kinds.
const TOKENS: [&str; 24] = [
    "null",
    "{}",
    "[]",
    "{",
    "[",
    "}",
    "\"",
    "\\u0000",
    "\\ud800",
    ",",
    ":",
    "1e999",
    "-0",
    "99999999999999999999",
    "\"uid\":\"\",",
    "\"object\":null,",
    "\"metadata\":7,",
    "\"annotations\":{\"admission.machine.sapcloud.io/skip\":\"MCH-19,,x\"},",
    "\"finalizers\":[null],",
    "\"deletionTimestamp\":\"x\",",
    "\"operation\":\"DELETE\",",
    "\"subResource\":\"status\",",
    "\u{feff}",
    "\"spec\":[[[[[[[[[[[[[[[[",
];

#[derive(Clone, Debug)]
enum Damage {
    Byte(u8),
    Cut(usize),
    Double(usize),
    Insert(usize),
}

fn damages() -> impl Strategy<Value = Vec<(Index, Damage)>> {
    let damage = prop_oneof![
        any::<u8>().prop_map(Damage::Byte),
        (1_usize..200).prop_map(Damage::Cut),
        (1_usize..200).prop_map(Damage::Double),
        (0..TOKENS.len()).prop_map(Damage::Insert),
    ];
    prop::collection::vec((any::<Index>(), damage), 0..6)
}

fn damaged(text: &str, damages: &[(Index, Damage)]) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for (place, damage) in damages {
        let at = place.index(bytes.len().max(1)).min(bytes.len());
        match damage {
            Damage::Byte(byte) => {
                if let Some(there) = bytes.get_mut(at) {
                    *there = *byte;
                }
            }
            Damage::Cut(length) => drop(bytes.drain(at..(at + length).min(bytes.len()))),
            Damage::Double(length) => {
                let part = bytes[at..(at + length).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            Damage::Insert(token) => drop(bytes.splice(at..at, TOKENS[*token].bytes())),
        }
    }
    bytes
}

/// Conversion reviews of all deployments that the Go original wrote, in both directions.
fn conversions() -> Vec<String> {
    let list: Value = serde_json::from_str(include_str!("../fixtures/go/machinedeployments.json")).expect("JSON");
    let review = |to: &str| {
        let request =
            json!({"uid": "u", "desiredAPIVersion": format!("machine.sapcloud.io/{to}"), "objects": list["items"]});
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request}).to_string()
    };
    vec![review("v1beta1"), review("v1alpha1")]
}

const PROVIDER_SPEC: &str = r#"{"ami":"ami-1","blockDevices":[{"ebs":{"volumeSize":50,"volumeType":"gp3"}}],"iam":{"name":"n"},
    "machineType":"m5.large","networkInterfaces":[{"subnetID":"s","securityGroupIDs":["g"]}],"region":"eu-1","tags":{"a":"b"}}"#;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn admission_reviews(review in prop::sample::select(REVIEWS.to_vec()), damages in damages()) {
        entries::admission_review(&damaged(review, &damages));
    }

    #[test]
    fn conversion_reviews(review in prop::sample::select(conversions()), damages in damages()) {
        entries::conversion_review(&damaged(&review, &damages));
    }

    #[test]
    fn provider_specs(damages in damages()) {
        entries::provider_spec(&damaged(PROVIDER_SPEC, &damages));
    }

    #[test]
    fn objects_are_parsed_as_serde_json_parses_them(review in prop::sample::select(REVIEWS.to_vec()), damages in damages()) {
        let bytes = damaged(review, &damages);
        let ours = serde_json::from_slice::<Json<'_>>(&bytes).ok().map(|json| json.to_value());
        prop_assert_eq!(ours, serde_json::from_slice::<Value>(&bytes).ok());
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        entries::admission_review(&bytes);
        entries::conversion_review(&bytes);
        entries::provider_spec(&bytes);
    }
}

/// The fuzz crate is built by hand only. This test checks without its dependencies that every entry point has a target, and that every target is
/// declared and calls the entry point of its name.
#[test]
fn every_entry_is_a_fuzz_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let text = |path: &str| fs::read_to_string(folder.join(path)).expect("a file of the fuzz crate");
    let after = |text: &str, prefix: &str, end: char| -> BTreeSet<String> {
        let named = text.lines().filter_map(|line| line.strip_prefix(prefix)?.split(end).next());
        named.map(str::to_owned).collect()
    };
    let entries = after(&text("entries.rs"), "pub fn ", '(');
    assert!(!entries.is_empty());
    let manifest = text("Cargo.toml");
    let (_, binaries) = manifest.split_once("[[bin]]").expect("a target");
    assert_eq!(after(binaries, "name = \"", '"'), entries);
    let files = fs::read_dir(folder.join("fuzz_targets")).expect("a folder of targets");
    let files: BTreeSet<_> = files
        .map(|file| file.expect("a file").path().file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    assert_eq!(files, entries);
    for entry in entries {
        let call = format!("entries::{entry}(bytes)");
        assert!(text(&format!("fuzz_targets/{entry}.rs")).contains(&call), "{entry} does not call {call}");
    }
}
