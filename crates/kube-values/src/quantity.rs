//! Resource quantities: `500m`, `1.5Gi`, `12e6`.
//!
//! Source: k8s.io/apimachinery/pkg/api/resource `ParseQuantity` and `CanonicalizeBytes`. Accepts exactly what Go accepts, with Go's value: amounts
//! finer than a nano are rounded away from zero, and binary amounts are capped at 2^63-1. Values are exact decimals of any size, so that `1e400`,
//! which Go accepts, is compared correctly and never overflows. One difference is intended: Go does not print the suffix of decimal amounts of 10^21
//! and above.

use std::{cmp::Ordering, fmt, str::FromStr};

use k8s_openapi::apimachinery::pkg::api::resource;
use serde_json::Value;

/// An amount of a resource. Equality and order depend on the value: `1` equals `1000m`.
#[derive(Clone, Debug)]
pub struct Quantity {
    amount: Decimal,
    format: Format,
}

/// The error for a text that is no quantity. The messages are Go's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuantity {
    /// The text is not a number with a suffix.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// The number is invalid.
    #[error("unable to parse numeric part of quantity")]
    Number,
    /// The suffix is unknown.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// The format in which a quantity was written and is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    DecimalExponent,
    BinarySi,
    DecimalSi,
}

/// `digits` × 10^`exponent`. The decimal digits have no leading or trailing zeros, the most significant comes first. Empty for zero.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    exponent: i64,
}

/// The exponent of 10^-9, the smallest amount.
const NANO: i64 = -9;
/// The maximum number of digits in a subtraction. A smaller term that would need more digits has no effect.
const MAX_DIGITS: i64 = 4096;
const BINARY_SUFFIXES: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL_SUFFIXES: [(&str, i64); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

impl Quantity {
    /// Zero.
    pub const fn zero() -> Self {
        Self { amount: Decimal::ZERO, format: Format::DecimalSi }
    }

    /// Reads a JSON value like Go's decoder: strings with surrounding blanks, plain numbers, and `null` as zero.
    pub fn from_json(value: &Value) -> Result<Self, InvalidQuantity> {
        match value {
            Value::Null => Ok(Self::zero()),
            Value::String(text) => text.trim().parse(),
            Value::Number(number) => number.to_string().parse(),
            Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(InvalidQuantity::Format),
        }
    }

    /// Whether the amount is zero.
    pub fn is_zero(&self) -> bool {
        self.amount.digits.is_empty()
    }

    /// Whether the amount is negative.
    pub fn is_negative(&self) -> bool {
        self.amount.negative
    }

    /// The amount in thousandths, rounded away from zero, like Go's `MilliValue`. `None` if it does not fit.
    pub fn thousandths(&self) -> Option<i128> {
        let Decimal { negative, digits, exponent } = &self.amount;
        let power = exponent + 3;
        let cut = usize::try_from(-power).unwrap_or(0).min(digits.len());
        let (kept, rest) = digits.split_at(digits.len() - cut);
        let whole = kept.iter().try_fold(0_i128, |sum, digit| sum.checked_mul(10)?.checked_add(i128::from(*digit)))?;
        // The digits never end with a zero, so the part that is cut off is not zero.
        let whole = if rest.is_empty() { whole } else { whole + 1 };
        let factor = if whole == 0 { 1 } else { 10_i128.checked_pow(u32::try_from(power.max(0)).ok()?)? };
        let magnitude = whole.checked_mul(factor)?;
        Some(if *negative { -magnitude } else { magnitude })
    }

    /// The sum. It has the format of `self`, unless `self` is zero.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { amount: self.amount.minus(&Decimal::ZERO.minus(&other.amount)), format }
    }

    /// The product with a number.
    #[must_use]
    pub fn times(&self, number: u64) -> Self {
        let Decimal { negative, digits, exponent } = &self.amount;
        Self { amount: Decimal::new(*negative, times(digits, number), *exponent), format: self.format }
    }

    /// The difference, or zero if `other` is larger. It has the format of `self`.
    #[must_use]
    pub fn saturating_sub(&self, other: &Self) -> Self {
        match self.checked_sub(other) {
            Some(rest) => rest,
            None => Self { amount: Decimal::ZERO, format: self.format },
        }
    }

    /// The difference. `None` if `other` is larger.
    pub fn checked_sub(&self, other: &Self) -> Option<Self> {
        let rest = self.amount.minus(&other.amount);
        (!rest.negative).then_some(Self { amount: rest, format: self.format })
    }
}

impl FromStr for Quantity {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(InvalidQuantity::Format);
        }
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        // Go's parser reads a sign without digits, or any number of zeros, as zero.
        if unsigned.bytes().all(|byte| byte == b'0') {
            return Ok(Self::zero());
        }
        let (whole, rest) = split_digits(unsigned);
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => split_digits(rest),
            None => ("", rest),
        };
        let (factor, exponent, format) = checked_suffix(rest)?;
        let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|byte| byte - b'0').collect();
        let fraction_len = i64::try_from(fraction.len()).map_err(|_| InvalidQuantity::Number)?;
        // A suffix without digits: Go's fast path reads it as zero, and its exact path for extreme suffixes refuses it.
        if digits.is_empty() && (factor > 1 << 40 || exponent < NANO) {
            return Err(InvalidQuantity::Number);
        }
        let amount = Decimal::new(negative, times(&digits, factor), exponent - fraction_len).rounded_to_nano();
        Ok(Self { amount, format }.capped())
    }
}

impl Quantity {
    /// Binary amounts are at most 2^63-1. Below 1 they are printed in decimal.
    fn capped(mut self) -> Self {
        if self.format != Format::BinarySi {
            return self;
        }
        let magnitude = Decimal { negative: false, ..self.amount.clone() };
        let max = Decimal::from_u64(i64::MAX.unsigned_abs());
        if magnitude > max {
            self.amount = Decimal { negative: self.amount.negative, ..max };
        }
        if magnitude < Decimal::from_u64(1) && !self.is_zero() {
            self.format = Format::DecimalSi;
        }
        self
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// The factor, the power of ten and the format of a suffix.
fn checked_suffix(suffix: &str) -> Result<(u64, i64, Format), InvalidQuantity> {
    let letters = suffix.bytes().take_while(|byte| b"eEinumkKMGTP".contains(byte)).count();
    let number = &suffix[letters..];
    let digits = number.strip_prefix(['+', '-']).unwrap_or(number);
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InvalidQuantity::Format);
    }
    if let Some((_, exponent)) = DECIMAL_SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        return Ok((1, *exponent, Format::DecimalSi));
    }
    if let Some(place) = BINARY_SUFFIXES.iter().position(|name| *name == suffix) {
        return Ok((1 << (10 * (place + 1)), 0, Format::BinarySi));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).ok_or(InvalidQuantity::Suffix)?;
    // Go parses 64 bits and uses 32 of them.
    let parsed: i64 = exponent.parse().map_err(|_| InvalidQuantity::Suffix)?;
    #[allow(clippy::cast_possible_truncation)]
    Ok((1, i64::from(parsed as i32), Format::DecimalExponent))
}

/// The product of decimal digits and a factor.
fn times(digits: &[u8], factor: u64) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(digits.len() + 20);
    let mut carry: u128 = 0;
    for digit in digits.iter().rev() {
        carry += u128::from(*digit) * u128::from(factor);
        push_digit(&mut out, &mut carry);
    }
    while carry > 0 {
        push_digit(&mut out, &mut carry);
    }
    out.reverse();
    out
}

/// Moves the last digit of `carry` to `out`.
fn push_digit(out: &mut Vec<u8>, carry: &mut u128) {
    out.push(u8::try_from(*carry % 10).unwrap_or_default());
    *carry /= 10;
}

impl Decimal {
    const ZERO: Self = Self { negative: false, digits: Vec::new(), exponent: 0 };

    fn new(negative: bool, mut digits: Vec<u8>, mut exponent: i64) -> Self {
        let leading = digits.iter().take_while(|digit| **digit == 0).count();
        digits.drain(..leading);
        while digits.last() == Some(&0) {
            digits.pop();
            exponent += 1;
        }
        if digits.is_empty() { Self::ZERO } else { Self { negative, digits, exponent } }
    }

    fn from_u64(value: u64) -> Self {
        Self::new(false, times(&[1], value), 0)
    }

    /// The power of ten of the first digit. Meaningless for zero.
    fn magnitude(&self) -> i64 {
        self.exponent + i64::try_from(self.digits.len()).unwrap_or(i64::MAX)
    }

    /// Removes digits below 10^-9. If there were any, rounds away from zero.
    fn rounded_to_nano(self) -> Self {
        if self.exponent >= NANO || self.digits.is_empty() {
            return self;
        }
        let kept = usize::try_from(self.magnitude() - NANO).unwrap_or(0);
        let mut digits = vec![0];
        digits.extend(&self.digits[..kept.min(self.digits.len())]);
        for digit in digits.iter_mut().rev() {
            if *digit < 9 {
                *digit += 1;
                break;
            }
            *digit = 0;
        }
        Self::new(self.negative, digits, NANO)
    }

    fn cmp_magnitude(&self, other: &Self) -> Ordering {
        match (self.digits.is_empty(), other.digits.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            // There are no trailing zeros, so of two digit strings with the same beginning the longer string is larger.
            (false, false) => self.magnitude().cmp(&other.magnitude()).then_with(|| self.digits.cmp(&other.digits)),
        }
    }

    fn minus(&self, other: &Self) -> Self {
        let subtrahend = Self { negative: !other.negative, ..other.clone() };
        if other.digits.is_empty() {
            return self.clone();
        }
        if self.digits.is_empty() {
            return subtrahend;
        }
        let exponent = self.exponent.min(other.exponent);
        if self.magnitude().max(other.magnitude()) - exponent > MAX_DIGITS {
            return if self.cmp_magnitude(other) == Ordering::Less { subtrahend } else { self.clone() };
        }
        if self.negative == subtrahend.negative {
            return Self::new(self.negative, added(&self.at(exponent), &other.at(exponent)), exponent);
        }
        match self.cmp_magnitude(other) {
            Ordering::Less => {
                Self::new(subtrahend.negative, subtracted(&other.at(exponent), &self.at(exponent)), exponent)
            }
            _ => Self::new(self.negative, subtracted(&self.at(exponent), &other.at(exponent)), exponent),
        }
    }

    /// The digits in units of 10^`exponent`, least significant first. `exponent` must not be above the exponent of `self`.
    fn at(&self, exponent: i64) -> Vec<u8> {
        let zeros = usize::try_from(self.exponent - exponent).unwrap_or(0);
        let mut digits = vec![0; zeros];
        digits.extend(self.digits.iter().rev());
        digits
    }
}

/// The sum of two numbers. The arguments have the least significant digit first, the result has the most significant digit first.
fn added(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(a.len().max(b.len()) + 1);
    let mut carry = 0;
    for place in 0..a.len().max(b.len()) {
        let sum = a.get(place).copied().unwrap_or(0) + b.get(place).copied().unwrap_or(0) + carry;
        out.push(sum % 10);
        carry = sum / 10;
    }
    out.push(carry);
    out.reverse();
    out
}

/// `a` - `b` for `a` ≥ `b`. The arguments have the least significant digit first, the result has the most significant digit first.
fn subtracted(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(a.len());
    let mut borrow = 0;
    for (place, digit) in a.iter().enumerate() {
        let taken = b.get(place).copied().unwrap_or(0) + borrow;
        borrow = u8::from(*digit < taken);
        out.push(digit + 10 * borrow - taken);
    }
    out.reverse();
    out
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.cmp_magnitude(other),
            (true, true) => other.cmp_magnitude(self),
        }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.amount == other.amount
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.amount.cmp(&other.amount)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("0");
        }
        if self.amount.negative {
            f.write_str("-")?;
        }
        if let Some((number, suffix)) = self.binary_form() {
            return write!(f, "{number}{suffix}");
        }
        // The exponent is rounded down to a multiple of three. The largest suffix is `E`, so larger amounts have more digits before it.
        let mut exponent = self.amount.exponent.div_euclid(3) * 3;
        if self.format != Format::DecimalExponent {
            exponent = exponent.min(18);
        }
        for digit in &self.amount.digits {
            write!(f, "{digit}")?;
        }
        for _ in exponent..self.amount.exponent {
            f.write_str("0")?;
        }
        match self.format {
            Format::DecimalExponent if exponent == 0 => Ok(()),
            Format::DecimalExponent => write!(f, "e{exponent}"),
            Format::BinarySi | Format::DecimalSi => {
                let suffix = DECIMAL_SUFFIXES.iter().find(|(_, power)| *power == exponent);
                f.write_str(suffix.map_or("", |(suffix, _)| suffix))
            }
        }
    }
}

impl Quantity {
    /// The number and the suffix of a binary amount. `None` if the amount is small or has a fraction, and is printed in decimal.
    fn binary_form(&self) -> Option<(u64, &'static str)> {
        let magnitude = Decimal { negative: false, ..self.amount.clone() };
        if self.format != Format::BinarySi || magnitude < Decimal::from_u64(1024) || self.amount.exponent < 0 {
            return None;
        }
        let digits = self.amount.at(0);
        let mut number =
            digits.iter().rev().try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(*digit)))?;
        let mut suffix = "";
        for larger in BINARY_SUFFIXES {
            if number % 1024 != 0 {
                break;
            }
            number /= 1024;
            suffix = larger;
        }
        Some((number, suffix))
    }
}

impl TryFrom<&resource::Quantity> for Quantity {
    type Error = InvalidQuantity;

    fn try_from(stored: &resource::Quantity) -> Result<Self, Self::Error> {
        stored.0.trim().parse()
    }
}

impl From<&Quantity> for resource::Quantity {
    fn from(quantity: &Quantity) -> Self {
        Self(quantity.to_string())
    }
}

#[cfg(test)]
mod tests;
