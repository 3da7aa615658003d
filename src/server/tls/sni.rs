//! Further pairs for callers that ask for certain names (`--tls-sni-cert-key`), as with the API server's flag of this name.
//!
//! A pattern begins with the label `*`, which stands for one label. A caller that asks for no name, or for a name without a pair,
//! gets the serving certificate. An address is not a name. Source: spec/extension-apiserver
//! §4.1, Kubernetes `--tls-sni-cert-key`.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use rustls::sign::CertifiedKey;
use tracing::{error, info};

use super::{files::PairFiles, material::KeyPair, shared::Shared};
use controller_runtime::lock;

/// A pair of files, and its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SniPair {
    /// The files.
    pub files: PairFiles,
    /// Names and patterns. If empty, the names of the certificate.
    pub names: Vec<String>,
    /// How often the files are read; [`super::POLL_INTERVAL`].
    pub interval: Duration,
}

/// The pair of each name.
#[derive(Default)]
pub(super) struct SniTable(BTreeMap<String, Arc<CertifiedKey>>);

impl fmt::Debug for SniTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl SniTable {
    /// Names from the flag have priority over names from a certificate. If two pairs have the same name, the first pair is used.
    fn of<'a>(pairs: impl Iterator<Item = (&'a [String], &'a KeyPair)> + Clone) -> Self {
        let mut table = BTreeMap::new();
        let explicit = pairs.clone().filter(|(names, _)| !names.is_empty());
        let extracted = pairs.filter(|(names, _)| names.is_empty());
        let said = explicit.map(|(names, pair)| (names.to_vec(), pair));
        let valid = extracted.map(|(_, pair)| (pair.leaf().names.iter().cloned().collect(), pair));
        for (names, pair) in said.chain(valid) {
            // A pair was tried when it was read.
            let Ok(key) = pair.certified_key().map(Arc::new) else { continue };
            for name in names {
                table.entry(name.to_ascii_lowercase()).or_insert_with(|| Arc::clone(&key));
            }
        }
        Self(table)
    }

    /// The pair of this name. The name itself has priority over a pattern.
    pub(super) fn find(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        if self.0.is_empty() {
            return None;
        }
        let name = name.to_ascii_lowercase();
        let pattern = || name.split_once('.').and_then(|(_, rest)| self.0.get(&format!("*.{rest}")));
        self.0.get(&name).or_else(pattern).cloned()
    }
}

/// Keeps the table up to date.
pub(super) async fn follow(pairs: Vec<SniPair>, shared: &Shared) {
    let known: Mutex<Vec<Option<KeyPair>>> = Mutex::new(vec![None; pairs.len()]);
    let (known, pairs) = (&known, &pairs);
    let follow = |nth: usize| {
        let take = move |found: Result<KeyPair, String>| match found {
            Ok(pair) => {
                let mut known = lock(known);
                info!(
                    expires = %pair.leaf().not_after, name = ?pair.leaf().names,
                    "loaded a certificate for certain names"
                );
                known[nth] = Some(pair);
                let read = pairs.iter().zip(&*known);
                let read = read.filter_map(|(pair, known)| Some((pair.names.as_slice(), known.as_ref()?)));
                shared.load_for_names(SniTable::of(read), known.iter().flatten().map(|pair| pair.leaf().not_after));
                if known.iter().all(Option::is_some) {
                    shared.all_names_have_certificates();
                }
            }
            Err(why) => {
                error!(
                    error = %why,
                    "the names it is for keep the certificate they have until the files are put right"
                );
                shared.a_name_has_no_certificate(&why);
            }
        };
        pairs[nth].files.follow(pairs[nth].interval, take)
    };
    futures::future::join_all((0..pairs.len()).map(follow)).await;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;

    use super::{
        super::plan::{CertPlan, PlanSettings, carry_out},
        *,
    };

    fn pair(serial: u8, names: &[&str]) -> KeyPair {
        let names: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let settings = PlanSettings::for_names(names);
        let made = carry_out(&CertPlan::Create, None, jiff::Timestamp::now(), &settings, || [serial; 16]);
        made.unwrap().unwrap().serving
    }

    #[rstest]
    #[case::a_name_that_was_said("api.example.com", Some(0))]
    #[case::in_other_letters("API.Example.com", Some(0))]
    #[case::a_pattern_that_was_said("b.example.com", Some(1))]
    #[case::a_pattern_is_for_one_label("a.b.example.com", None)]
    #[case::a_name_of_a_certificate("own.example.org", Some(2))]
    #[case::a_name_before_a_pattern("own.example.com", Some(2))]
    #[case::the_first_of_equals("twice.example.org", Some(2))]
    #[case::what_was_said_goes_before_what_a_certificate_has("said.example.org", Some(1))]
    #[case::nobodys("example.net", None)]
    fn names_find_their_pairs(#[case] name: &str, #[case] expected: Option<usize>) {
        let said = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let pairs = [
            (said(&["api.example.com"]), pair(1, &["a"])),
            (said(&["*.example.com", "said.example.org"]), pair(2, &["b"])),
            (said(&[]), pair(3, &["own.example.org", "own.example.com", "twice.example.org", "said.example.org"])),
            (said(&[]), pair(4, &["twice.example.org"])),
        ];
        let table = SniTable::of(pairs.iter().map(|(names, pair)| (names.as_slice(), pair)));
        let found = table.find(name).map(|key| key.cert[0].clone());
        let expected = expected.map(|nth| pairs[nth].1.leaf().der().clone());
        assert!(found == expected, "{name}");
    }
}
