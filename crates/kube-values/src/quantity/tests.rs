//! Tables of what Go accepts and prints (`resource/quantity_test.go`), and properties that compare with exact arithmetic.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;

fn quantity(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[rstest]
#[case::a_plain_number("0", "0")]
#[case::leading_zeros("0001", "1")]
#[case::zeros("000", "0")]
#[case::only_a_sign_is_nothing("-", "0")]
#[case::only_a_dot_is_nothing(".", "0")]
#[case::a_dot_with_a_suffix_is_nothing(".Gi", "0")]
#[case::minus_zero("-0", "0")]
#[case::an_explicit_plus("+1", "1")]
#[case::negative("-1500m", "-1500m")]
#[case::a_fraction("1.5", "1500m")]
#[case::a_trailing_dot("1.", "1")]
#[case::a_leading_dot(".5", "500m")]
#[case::trailing_zeros("1000", "1k")]
#[case::thousands_of_millis("2000m", "2")]
#[case::down_to_a_multiple_of_three("10000k", "10M")]
#[case::not_beyond("12345", "12345")]
#[case::the_largest_suffix("1E", "1E")]
#[case::beyond_the_largest_suffix("1000E", "1000E")]
#[case::small_e_is_an_exponent("1e3", "1e3")]
#[case::large_e_is_an_exponent("1E3", "1e3")]
#[case::an_exponent_with_a_plus("1e+3", "1e3")]
#[case::a_negative_exponent("12e-3", "12e-3")]
#[case::an_exponent_moves_to_a_multiple_of_three("1e4", "10e3")]
#[case::exponent_zero("5e0", "5")]
#[case::any_size("1e400", "10e399")]
#[case::nanos("1n", "1n")]
#[case::finer_than_a_nano_grows("0.1n", "1n")]
#[case::finer_than_a_nano_grows_with_a_carry("9.9999999999", "10")]
#[case::finer_than_a_nano_keeps_the_sign("-0.1n", "-1n")]
#[case::tiny_grows_to_a_nano("1e-100", "1e-9")]
#[case::binary("1Ki", "1Ki")]
#[case::binary_up("1024Ki", "1Mi")]
#[case::binary_fraction("1.5Gi", "1536Mi")]
#[case::binary_below_the_first_suffix("0.5Ki", "512")]
#[case::binary_with_a_rest("1.1Ki", "1126400m")]
#[case::binary_below_one("0.0001Ki", "102400u")]
#[case::binary_is_capped("8Ei", "9223372036854775807")]
#[case::binary_is_capped_below("-8Ei", "-9223372036854775807")]
#[case::almost_the_cap("7Ei", "7Ei")]
fn quantities_that_go_accepts_are_printed_canonically(#[case] text: &str, #[case] canonical: &str) {
    assert_eq!(quantity(text).to_string(), canonical);
}

#[rstest]
#[case::empty("", InvalidQuantity::Format)]
#[case::a_blank(" 1", InvalidQuantity::Format)]
#[case::words("lots", InvalidQuantity::Format)]
#[case::two_signs("--1", InvalidQuantity::Suffix)]
#[case::two_dots("1.2.3", InvalidQuantity::Format)]
#[case::a_fraction_as_exponent("1e1.5", InvalidQuantity::Format)]
#[case::a_dot_in_the_exponent("1e+.5", InvalidQuantity::Format)]
#[case::text_behind_the_suffix("1Gib", InvalidQuantity::Format)]
#[case::an_unknown_suffix("1K", InvalidQuantity::Suffix)]
#[case::binary_milli("1mi", InvalidQuantity::Suffix)]
#[case::two_suffixes("1kk", InvalidQuantity::Suffix)]
#[case::a_digit_behind_a_suffix("1k2", InvalidQuantity::Suffix)]
#[case::an_exponent_of_nothing("1e+", InvalidQuantity::Suffix)]
#[case::an_exponent_beyond_64_bits("1e99999999999999999999", InvalidQuantity::Suffix)]
#[case::nothing_in_a_large_suffix("Pi", InvalidQuantity::Number)]
#[case::nothing_in_a_small_exponent("e-12", InvalidQuantity::Number)]
#[case::another_alphabet("１", InvalidQuantity::Format)]
fn what_go_refuses_is_refused(#[case] text: &str, #[case] error: InvalidQuantity) {
    assert_eq!(text.parse::<Quantity>(), Err(error));
}

#[rstest]
#[case::decimal_and_milli("1", "1000m", Ordering::Equal)]
#[case::decimal_and_binary("1024", "1Ki", Ordering::Equal)]
#[case::zeros("0", "-0Ki", Ordering::Equal)]
#[case::kilo_is_less_than_kibi("1k", "1Ki", Ordering::Less)]
#[case::negative_is_less_than_nothing("-1n", "0", Ordering::Less)]
#[case::more_negative_is_less("-2", "-1", Ordering::Less)]
#[case::digits_decide("1.5", "1.05", Ordering::Greater)]
#[case::huge("1e2000000000", "7Ei", Ordering::Greater)]
fn amounts_compare_by_value(#[case] a: &str, #[case] b: &str, #[case] order: Ordering) {
    assert_eq!(quantity(a).cmp(&quantity(b)), order);
    assert_eq!(quantity(b).cmp(&quantity(a)), order.reverse());
    assert_eq!(quantity(a) == quantity(b), order == Ordering::Equal);
}

#[rstest]
#[case::cpu("4", "80m", "3920m")]
#[case::memory("16Gi", "1Gi", "15Gi")]
#[case::memory_in_other_units("16Gi", "1000M", "16179869184")]
#[case::all_of_it("1Gi", "1024Mi", "0")]
#[case::more_than_there_is("1Gi", "2Gi", "0")]
#[case::nothing_taken("5", "0", "5")]
#[case::from_nothing("0", "5", "0")]
#[case::less_than_nothing_adds("1", "-1", "2")]
#[case::a_hair_of_a_huge_amount("1e2000000000", "1n", "1e2000000000")]
fn reserved_amounts_are_subtracted(#[case] capacity: &str, #[case] reserved: &str, #[case] rest: &str) {
    assert_eq!(quantity(capacity).saturating_sub(&quantity(reserved)), quantity(rest));
}

#[rstest]
#[case::a_number(json!(4), Ok("4"))]
#[case::a_fraction(json!(1.5), Ok("1500m"))]
#[case::blanks(json!(" 8Gi "), Ok("8Gi"))]
#[case::null(json!(null), Ok("0"))]
#[case::an_empty_string(json!(""), Err(InvalidQuantity::Format))]
#[case::a_boolean(json!(true), Err(InvalidQuantity::Format))]
fn json_is_read_as_go_reads_it(#[case] value: Value, #[case] expected: Result<&str, InvalidQuantity>) {
    let read = Quantity::from_json(&value).map(|quantity| quantity.to_string());
    assert_eq!(read.as_deref().map_err(|error| *error), expected);
}

/// An amount in nanos, and a text with the same value.
fn amounts() -> impl Strategy<Value = (i128, String)> {
    let suffixes = [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("e3", 3), ("E-3", -3)];
    (-1_000_000_000_i64..1_000_000_000, 0_u32..4, proptest::sample::select(suffixes.to_vec())).prop_filter_map(
        "not finer than a nano",
        |(number, decimals, (suffix, power))| {
            let scale = power - i32::try_from(decimals).ok()? + 9;
            let nanos = i128::from(number) * 10_i128.pow(u32::try_from(scale).ok()?);
            let divisor = 10_i64.pow(decimals);
            let sign = if number < 0 { "-" } else { "" };
            let (whole, part) = (number.abs() / divisor, number.abs() % divisor);
            let width = decimals as usize;
            let fraction = if decimals == 0 { String::new() } else { format!(".{part:0width$}") };
            Some((nanos, format!("{sign}{whole}{fraction}{suffix}")))
        },
    )
}

proptest! {
    #[test]
    fn order_and_equality_are_those_of_the_numbers((a, a_text) in amounts(), (b, b_text) in amounts()) {
        prop_assert_eq!(quantity(&a_text).cmp(&quantity(&b_text)), a.cmp(&b));
        prop_assert_eq!(quantity(&a_text).is_zero(), a == 0);
        prop_assert_eq!(quantity(&a_text).is_negative(), a < 0);
    }

    #[test]
    fn subtraction_is_that_of_the_numbers((a, a_text) in amounts(), (b, b_text) in amounts()) {
        let expected = quantity(&format!("{}n", a - b));
        prop_assert_eq!(quantity(&a_text).checked_sub(&quantity(&b_text)), (a >= b).then_some(expected));
    }

    #[test]
    fn the_canonical_form_means_the_same_and_is_stable((_, text) in amounts()) {
        let printed = quantity(&text).to_string();
        prop_assert_eq!(quantity(&printed), quantity(&text));
        prop_assert_eq!(quantity(&printed).to_string(), printed);
    }

    #[test]
    fn binary_amounts_are_exact(number in 0_u64..1 << 33, power in 0_usize..3) {
        let text = format!("{number}{}", BINARY_SUFFIXES[power]);
        let bytes = number << (10 * (power + 1));
        prop_assert_eq!(quantity(&text), quantity(&bytes.to_string()));
        prop_assert_eq!(quantity(&quantity(&text).to_string()), quantity(&text));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[-+0-9.eEinumkKMGTP ]{0,24}") {
        if let Ok(read) = text.parse::<Quantity>() {
            let _ = (read.to_string(), read.saturating_sub(&quantity("1")));
        }
    }
}

#[rstest]
#[case::of_one_format("1Gi", "1Gi", 2, "3Gi")]
#[case::nothing_has_no_format("0", "16Gi", 1, "16Gi")]
#[case::fractions("500m", "1", 3, "3500m")]
#[case::less_than_nothing("-1", "1", 2, "1")]
fn amounts_are_added(#[case] one: &str, #[case] other: &str, #[case] times: u64, #[case] sum: &str) {
    let read = |text: &str| text.parse::<Quantity>().unwrap();
    assert_eq!(read(one).plus(&read(other).times(times)).to_string(), sum);
}

#[rstest]
#[case::cores("4", Some(4_000))]
#[case::millicores("80m", Some(80))]
#[case::a_fraction("1.5", Some(1_500))]
#[case::gibibytes("1Gi", Some(1_073_741_824_000))]
#[case::decimal("2k", Some(2_000_000))]
#[case::an_exponent("1e3", Some(1_000_000))]
#[case::tiny_is_rounded_up("1n", Some(1))]
#[case::a_bit_more_is_rounded_up("1234567n", Some(2))]
#[case::negative_is_rounded_away_from_zero("-1500u", Some(-2))]
#[case::nothing("0", Some(0))]
#[case::too_much("1e400", None)]
fn a_quantity_is_counted_in_thousandths(#[case] text: &str, #[case] value: Option<i128>) {
    assert_eq!(quantity(text).thousandths(), value);
}
