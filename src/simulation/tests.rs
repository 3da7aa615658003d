//! A few histories with every run of the tests; `.ci/run` lets a hundred thousand happen.

use super::{
    history::{Edit, History, Setup, Step, Strategy},
    *,
};

#[test]
fn histories_hold() {
    for seed in 0..150 {
        let history = History::of_seed(seed);
        if let Some(violation) = run(&history, Telling::Silent).violation {
            let short = shortened(&history, &violation);
            let told = run(&short, Telling::Aloud);
            panic!("seed {seed}: {violation:?}\n{short:#?}\n{}", told.lines.join("\n"));
        }
    }
}

#[test]
fn a_history_is_a_function_of_its_seed() {
    let told = |seed| run(&History::of_seed(seed), Telling::Aloud).lines;
    assert_eq!(told(3), told(3));
    assert_ne!(told(3), told(4));
}

#[test]
fn a_plain_rollout_is_told_readably() {
    let history = History {
        seed: 1,
        setup: Setup { replicas: 2, strategy: Strategy::Rolling { surge: 1, unavailable: 0 } },
        rounds: vec![vec![Step::Edit(Edit::Class(1))]],
    };
    let told = run(&history, Telling::Aloud);
    assert_eq!(told.violation, None);
    let text = told.lines.join("\n");
    for part in ["a user wants machines of class 1", "joins", "everything is at rest"] {
        assert!(text.contains(part), "{text}");
    }
}
