//! The little arithmetic on Kubernetes quantities that a simulated node needs.
//!
//! Values are thousandths, so that `80m` cores stay exact; bytes fit by far.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, i32); 9] =
    [("n", -9), ("u", -6), ("m", -3), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

/// The value in thousandths, rounded up; `None` when the text is no quantity.
pub fn parse(text: &str) -> Option<i128> {
    for (suffix, shift) in BINARY {
        if let Some(number) = text.strip_suffix(suffix) {
            return scaled(number, 3)?.checked_mul(1 << shift);
        }
    }
    for (suffix, exponent) in DECIMAL {
        if let Some(number) = text.strip_suffix(suffix) {
            return scaled(number, exponent + 3);
        }
    }
    match text.split_once(['e', 'E']) {
        Some((number, exponent)) => scaled(number, exponent.parse::<i32>().ok()?.checked_add(3)?),
        None => scaled(text, 3),
    }
}

/// A decimal number times a power of ten, rounded up.
fn scaled(number: &str, exponent: i32) -> Option<i128> {
    let (negative, digits) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all: String = [whole, fraction].concat();
    if all.is_empty() || all.len() > 30 || !all.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: i128 = all.parse().ok()?;
    let power = exponent - i32::try_from(fraction.len()).ok()?;
    let factor = 10_i128.checked_pow(power.unsigned_abs())?;
    let value = if power >= 0 { value.checked_mul(factor)? } else { value / factor + i128::from(value % factor != 0) };
    Some(if negative { -value } else { value })
}

/// `capacity - reserved`, not below zero, written as Kubernetes would: plain when whole, else in thousandths.
pub fn minus(capacity: &Quantity, reserved: &Quantity) -> Quantity {
    let (Some(have), Some(less)) = (parse(&capacity.0), parse(&reserved.0)) else { return capacity.clone() };
    let left = (have - less).max(0);
    if left % 1000 != 0 {
        return Quantity(format!("{left}m"));
    }
    let whole = left / 1000;
    if whole > 0 && whole % 1024 == 0 { Quantity(format!("{}Ki", whole / 1024)) } else { Quantity(whole.to_string()) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::cores("4", Some(4_000))]
    #[case::millicores("80m", Some(80))]
    #[case::a_fraction("1.5", Some(1_500))]
    #[case::gibibytes("1Gi", Some(1_073_741_824_000))]
    #[case::decimal("2k", Some(2_000_000))]
    #[case::an_exponent("1e3", Some(1_000_000))]
    #[case::tiny_is_rounded_up("1n", Some(1))]
    #[case::no_number("many", None)]
    #[case::empty("", None)]
    fn a_quantity_has_a_value(#[case] text: &str, #[case] value: Option<i128>) {
        assert_eq!(parse(text), value);
    }

    #[rstest]
    #[case::cores("4", "80m", "3920m")]
    #[case::memory("8Gi", "1Gi", "7340032Ki")]
    #[case::not_below_zero("512Mi", "1Gi", "0")]
    #[case::whole_cores("4", "1", "3")]
    fn what_is_reserved_is_taken_off(#[case] capacity: &str, #[case] reserved: &str, #[case] left: &str) {
        assert_eq!(minus(&Quantity(capacity.to_owned()), &Quantity(reserved.to_owned())).0, left);
    }
}
