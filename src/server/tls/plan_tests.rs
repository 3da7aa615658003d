//! The life of self-managed certificates as a table, and a whole rotation.

use rstest::rstest;

use super::*;

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

fn settings() -> PlanSettings {
    PlanSettings::for_names(names(&["mcm.ns.svc", "127.0.0.1"]))
}

fn serials() -> impl FnMut() -> [u8; 16] {
    let mut next = 0_u8;
    move || {
        next += 1;
        [next; 16]
    }
}

fn created() -> CertSecret {
    carry_out(&CertPlan::Create, None, start(), &settings(), serials()).unwrap().unwrap()
}

fn with_a_new_authority(at: Timestamp) -> CertSecret {
    let plan = CertPlan::AddAuthority(AuthorityReason::Ageing);
    carry_out(&plan, Some(created()), at, &settings(), serials()).unwrap().unwrap()
}

fn renew(signer: usize, reason: RenewReason) -> CertPlan {
    CertPlan::RenewServing { signer, names: settings().names, reason }
}

#[rstest]
#[case::a_fresh_pair_is_kept_for_a_day(start(), CertPlan::Keep { until: start() + DAY })]
#[case::a_clock_behind_ours_changes_nothing(start() - CLOCK_SKEW, CertPlan::Keep { until: start() - CLOCK_SKEW + DAY })]
#[case::two_thirds_of_its_life_it_is_kept(start() + DAY * 242, CertPlan::Keep { until: start() + DAY * 243 })]
#[case::then_it_is_renewed(start() + DAY * 244, renew(0, RenewReason::Ageing))]
#[case::an_expired_one_is_renewed_too(start() + DAY * 366, renew(0, RenewReason::Unusable))]
#[case::an_unusable_certificate_goes_before_an_ageing_authority(start() + DAY * 2434, renew(0, RenewReason::Unusable))]
#[case::an_expired_authority_means_starting_over(start() + DAY * 3651, CertPlan::Create)]
fn time_decides(#[case] now: Timestamp, #[case] expected: CertPlan) {
    assert_eq!(plan(Some(&created()), Publication::CompleteSince(start()), now, &settings()), expected);
}

#[test]
fn an_old_authority_gets_a_successor() {
    let now = start() + DAY * 2434;
    let usable = carry_out(&renew(0, RenewReason::Unusable), Some(created()), now, &settings(), serials()).unwrap();
    let decided = plan(usable.as_ref(), Publication::CompleteSince(start()), now, &settings());
    assert_eq!(decided, CertPlan::AddAuthority(AuthorityReason::Ageing));
}

/// The objects that were made by a replica whose clock was ahead.
#[derive(Clone, Copy)]
enum MadeAhead {
    /// All authorities and the serving certificate.
    All(SignedDuration),
    /// Only the serving certificate. Its authority is valid.
    Serving(SignedDuration),
    /// An additional authority that has not signed anything yet.
    Authority(SignedDuration),
}

#[rstest]
#[case::within_the_skew(MadeAhead::All(CLOCK_SKEW), None)]
#[case::all_of_it_eight_hours(MadeAhead::All(SignedDuration::from_hours(8)), Some(CertPlan::Create))]
#[case::the_certificate_nine_months(MadeAhead::Serving(DAY * 270), Some(renew(0, RenewReason::Unusable)))]
#[case::an_authority(MadeAhead::Authority(DAY * 270), Some(CertPlan::AddAuthority(AuthorityReason::NotBegun)))]
fn objects_that_a_clock_ahead_has_made_are_replaced(#[case] made: MadeAhead, #[case] expected: Option<CertPlan>) {
    let carry =
        |step, secret, ahead| carry_out(&step, secret, start() + ahead, &settings(), serials()).unwrap().unwrap();
    let secret = match made {
        MadeAhead::All(ahead) => carry(CertPlan::Create, None, ahead),
        MadeAhead::Serving(ahead) => carry(renew(0, RenewReason::Ageing), Some(created()), ahead),
        MadeAhead::Authority(ahead) => carry(CertPlan::AddAuthority(AuthorityReason::Ageing), Some(created()), ahead),
    };
    let decided = plan(Some(&secret), Publication::CompleteSince(start()), start(), &settings());
    match expected {
        Some(expected) => assert_eq!(decided, expected),
        None => assert!(matches!(decided, CertPlan::Keep { .. }), "{decided:?}"),
    }
}

#[test]
fn an_authority_that_is_not_valid_yet_signs_nothing() {
    let secret = with_a_new_authority(start() + DAY * 500);
    let now = start() + DAY * 300;
    let published = Publication::CompleteSince(start());
    let decided = plan(Some(&secret), published, now, &settings());
    assert_eq!(decided, CertPlan::AddAuthority(AuthorityReason::NotBegun));
    let next = carry_out(&decided, Some(secret), now, &settings(), serials()).unwrap();
    assert_eq!(plan(next.as_ref(), published, now, &settings()), renew(0, RenewReason::NewAuthority));
}

/// The situations of a pass.
#[derive(Clone, Copy, Default)]
struct Situation {
    is_lost: bool,
    clocks_differ: bool,
    /// The step that the previous pass scheduled, for a moment in seven seconds.
    scheduled: Option<fn() -> CertPlan>,
}

fn ageing() -> CertPlan {
    renew(0, RenewReason::Ageing)
}

fn unusable() -> CertPlan {
    renew(0, RenewReason::Unusable)
}

/// What a pass does with the content of the start after this time. A drawn wait is half of its spread.
#[rstest]
#[case::nothing_is_due(SignedDuration::ZERO, Situation::default(), Err(Due::Nothing { until: start() + DAY }))]
#[case::a_step_waits(DAY * 244, Situation::default(), Ok((ageing(), 7_500)))]
#[case::a_scheduled_step_keeps_its_moment(
    DAY * 244, Situation { scheduled: Some(ageing), ..Situation::default() }, Ok((ageing(), 7_000)))]
#[case::another_step_waits_again(
    DAY * 244, Situation { scheduled: Some(unusable), ..Situation::default() }, Ok((ageing(), 7_500)))]
#[case::what_callers_miss_waits_shortly(DAY * 366, Situation::default(), Ok((unusable(), 150)))]
#[case::a_creation_does_not_wait(DAY * 3651, Situation::default(), Ok((CertPlan::Create, 0)))]
#[case::a_lost_secret_is_restored(SignedDuration::ZERO, Situation { is_lost: true, ..Situation::default() }, Err(Due::Restore))]
#[case::before_any_other_step(DAY * 244, Situation { is_lost: true, ..Situation::default() }, Err(Due::Restore))]
#[case::whatever_the_clocks_show(
    DAY * 244, Situation { is_lost: true, clocks_differ: true, ..Situation::default() }, Err(Due::Restore))]
#[case::but_not_when_nothing_in_it_is_valid(
    DAY * 3651, Situation { is_lost: true, ..Situation::default() }, Ok((CertPlan::Create, 0)))]
#[case::clocks_that_differ_hold_up_a_step(
    DAY * 244, Situation { clocks_differ: true, ..Situation::default() }, Err(Due::AfterClocksAgree(ageing())))]
#[case::and_no_look(
    SignedDuration::ZERO, Situation { clocks_differ: true, ..Situation::default() }, Err(Due::Nothing { until: start() + DAY }))]
fn a_pass_decides(
    #[case] after: SignedDuration,
    #[case] situation: Situation,
    #[case] expected: Result<(CertPlan, u64), Due>,
) {
    let (content, instant) = (created(), Instant::now());
    let in_ms = |ms: u64| instant + Duration::from_millis(ms);
    let scheduled = situation.scheduled.map(|step| Scheduled { step: step(), at: in_ms(7_000) });
    let observation = Observation {
        content: Some(&content),
        is_lost: situation.is_lost,
        published: Publication::CompleteSince(start()),
        clocks_differ: situation.clocks_differ,
        scheduled: scheduled.as_ref(),
        now: start() + after,
        instant,
    };
    let expected = expected.map_or_else(|due| due, |(step, ms)| Due::Take(Scheduled { step, at: in_ms(ms) }));
    assert_eq!(due(&observation, &settings(), || [128; 16]), expected);
}

#[test]
fn without_a_secret_one_is_created() {
    assert_eq!(plan(None, Publication::Incomplete, start(), &settings()), CertPlan::Create);
}

#[test]
fn a_missing_name_renews_at_once_and_keeps_the_names_of_other_replicas() {
    let wanted = PlanSettings::for_names(names(&["mcm.ns.svc", "webhook.example.com"]));
    let all = names(&["127.0.0.1", "mcm.ns.svc", "webhook.example.com"]);
    let expected = CertPlan::RenewServing { signer: 0, names: all, reason: RenewReason::NameMissing };
    assert_eq!(plan(Some(&created()), Publication::Incomplete, start(), &wanted), expected);
}

#[test]
fn an_authority_without_its_key_gets_a_successor() {
    let mut secret = created();
    secret.authorities[0].key = None;
    let expected = CertPlan::AddAuthority(AuthorityReason::KeyMissing);
    assert_eq!(plan(Some(&secret), Publication::Incomplete, start(), &settings()), expected);
}

#[test]
fn a_serving_certificate_of_a_foreign_authority_is_replaced_even_if_the_new_one_is_not_published() {
    let mut secret = with_a_new_authority(start());
    let stranger = Authority::generate(start(), DAY * 400, [9; 16]).unwrap();
    secret.serving = stranger.issue(&settings().names, start(), DAY * 365, [8; 16]).unwrap();
    secret.authorities.truncate(2);
    secret.authorities[1].key = None;
    assert_eq!(plan(Some(&secret), Publication::Incomplete, start(), &settings()), renew(0, RenewReason::Unusable));
}

#[rstest]
#[case::not_before_every_bundle_holds_it(Publication::Incomplete, false)]
#[case::nor_right_after(Publication::CompleteSince(start() + DAY * 10 - SignedDuration::from_mins(9)), false)]
#[case::but_ten_minutes_later(Publication::CompleteSince(start() + DAY * 10 - SignedDuration::from_mins(10)), true)]
fn a_new_authority_signs(#[case] published: Publication, #[case] signs: bool) {
    let now = start() + DAY * 10;
    let decided = plan(Some(&with_a_new_authority(now)), published, now, &settings());
    if signs {
        assert_eq!(decided, renew(0, RenewReason::NewAuthority));
    } else {
        assert!(matches!(decided, CertPlan::Keep { .. }), "{decided:?}");
    }
}

#[test]
fn a_report_on_an_older_bundle_says_nothing_about_a_new_authority() {
    let published = Published { bundle: created().bundle_pem().into(), since: start() };
    let known = |secret: &CertSecret| Publication::of(Some(&published), Some(secret));
    assert_eq!(known(&with_a_new_authority(start())), Publication::Incomplete);
    let same = Published { bundle: with_a_new_authority(start()).bundle_pem().into(), since: start() };
    assert_eq!(Publication::of(Some(&same), None), Publication::Incomplete);
}

#[test]
fn while_the_new_authority_is_not_published_the_old_one_goes_on_signing() {
    let now = start() + DAY * 300;
    let decided = plan(Some(&with_a_new_authority(now)), Publication::Incomplete, now, &settings());
    assert_eq!(decided, renew(1, RenewReason::Ageing));
}

#[test]
fn a_bundle_never_holds_more_than_four() {
    let mut secret = created();
    for _ in 0..6 {
        let plan = CertPlan::AddAuthority(AuthorityReason::Ageing);
        secret = carry_out(&plan, Some(secret), start(), &settings(), serials()).unwrap().unwrap();
    }
    assert_eq!(secret.authorities.len(), MAX_AUTHORITIES);
}

/// Simulates twenty-five years in steps. The bundles of callers are updated two steps later. Checks which certificates
/// the callers would see.
#[test]
fn in_twenty_five_years_every_caller_always_trusts_the_certificate() {
    let step = SignedDuration::from_hours(100);
    let (settings, mut serials) = (settings(), serials());
    let mut secret: Option<CertSecret> = None;
    let mut callers: Option<Published> = None;
    let mut rotations = BTreeSet::new();
    let mut now = start();
    while now < start() + DAY * 365 * 25 {
        for _ in 0..3 {
            let published = Publication::of(callers.as_ref(), secret.as_ref());
            let step = plan(secret.as_ref(), published, now, &settings);
            let next = carry_out(&step, secret.clone(), now, &settings, &mut serials).unwrap();
            secret = next.or(secret);
        }
        let held = secret.clone().unwrap();
        if let Some(callers) = &callers {
            let trusted = Certificate::read_all(callers.bundle.as_bytes(), "bundle").unwrap();
            let leaf = held.serving.leaf();
            assert!(leaf.not_after > now, "expired at {now}");
            assert!(trusted.iter().any(|ca| now < ca.not_after && leaf.is_signed_by(ca)), "not trusted at {now}");
        }
        assert!(held.authorities.len() <= 2, "old authorities pile up at {now}");
        rotations.insert(held.authorities[0].certificate.to_pem());
        let bundle = held.bundle_pem();
        if callers.as_ref().is_none_or(|callers| *callers.bundle != *bundle) {
            callers = Some(Published { bundle: bundle.into(), since: now });
        }
        now += step;
    }
    assert_eq!(rotations.len(), 4, "one authority every two thirds of ten years");
}

#[test]
fn the_secrets_data_survives_a_round_trip() {
    let secret = with_a_new_authority(start());
    assert_eq!(CertSecret::from_data(&secret.to_data()).unwrap(), secret);
}

#[rstest]
#[case::nothing(&[], "ca.crt is missing or empty")]
#[case::no_pem(&[("ca.crt", "hello")], "ca.crt is missing or empty")]
#[case::another_ones_key(&[("tls.key", "OTHER")], "the private key does not belong to the certificate")]
fn a_broken_secret_says_what_is_wrong(#[case] replaced: &[(&str, &str)], #[case] message: &str) {
    let mut data = if replaced.is_empty() { std::collections::BTreeMap::new() } else { created().to_data() };
    for (key, text) in replaced {
        let text = if *text == "OTHER" { created().serving.key_pem() } else { (*text).to_owned() };
        data.insert((*key).to_owned(), k8s_openapi::ByteString(text.into_bytes()));
    }
    assert_eq!(CertSecret::from_data(&data).unwrap_err().to_string(), message);
}

#[test]
fn nothing_prints_a_key() {
    let secret = created();
    let key = secret.serving.key_pem();
    let printed = format!("{secret:?}");
    for line in key.lines() {
        assert!(!printed.contains(line));
    }
    assert!(!printed.contains(&format!("{:?}", &secret.to_data()["tls.key"].0[..16])));
}
