//! A tolerant view of untyped JSON.
//!
//! A stored object may have any JSON type at any place, and one wrong type must not hide other mistakes. So rules read with [`Node`], which
//! distinguishes absent and mistyped values. Rules for required fields report absent values. [`super::types`] has already reported mistyped values,
//! so that all other rules ignore them.

use kube_values::json::{Json, Members};
use serde_json::Value;

/// The value at a place of an object. `null` counts as absent, as in Go.
#[derive(Clone, Copy, Debug)]
pub enum Node<'a> {
    /// There is no value.
    Absent,
    /// A place below a value that is no object.
    Mistyped,
    /// A value.
    Is(&'a Json<'a>),
}

impl<'a> Node<'a> {
    /// The node of a value.
    pub fn of(value: &'a Json<'a>) -> Self {
        if value.is_null() { Self::Absent } else { Self::Is(value) }
    }

    /// The node of an optional value.
    pub fn of_option(value: Option<&'a Json<'a>>) -> Self {
        value.map_or(Self::Absent, Self::of)
    }

    /// The member with this name.
    #[must_use]
    pub fn get(self, key: &str) -> Self {
        match self {
            Self::Is(Json::Object(members)) => Self::of_option(members.get(key)),
            Self::Is(_) | Self::Mistyped => Self::Mistyped,
            Self::Absent => Self::Absent,
        }
    }

    /// The member at the end of this path.
    #[must_use]
    pub fn at(self, keys: &[&str]) -> Self {
        keys.iter().fold(self, |node, key| node.get(key))
    }

    /// Whether there is no value.
    pub fn is_absent(self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Whether there is a value, of any type.
    pub fn is_present(self) -> bool {
        matches!(self, Self::Is(_))
    }

    /// The value, if there is one.
    pub fn value(self) -> Option<&'a Json<'a>> {
        match self {
            Self::Is(value) => Some(value),
            Self::Absent | Self::Mistyped => None,
        }
    }

    /// The value, or `null`.
    pub fn value_or_null(self) -> Value {
        self.value().map_or(Value::Null, Json::to_value)
    }

    /// The text, if the value is a text.
    pub fn text(self) -> Option<&'a str> {
        self.value().and_then(Json::as_str)
    }

    /// The text of a field whose absence means the empty text. `None` if the field is mistyped.
    pub fn text_or_empty(self) -> Option<&'a str> {
        if self.is_absent() { Some("") } else { self.text() }
    }

    /// The integer, if the value is one. A number outside 64 bits becomes the nearest 64-bit integer.
    pub fn integer(self) -> Option<i64> {
        self.value().and_then(integer)
    }

    /// The integer of a field whose absence means zero. `None` if the field is mistyped.
    pub fn integer_or_zero(self) -> Option<i64> {
        if self.is_absent() { Some(0) } else { self.integer() }
    }

    /// Whether the field is `true`.
    pub fn is_true(self) -> bool {
        self.value() == Some(&Json::Bool(true))
    }

    /// The members, if the value is an object.
    pub fn members(self) -> Option<&'a Members<'a>> {
        self.value().and_then(Json::as_object)
    }

    /// The members with text values. Empty if the value is no object.
    pub fn texts(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let members = self.members().into_iter().flat_map(Members::iter);
        members.filter_map(|(key, value)| value.as_str().map(|text| (key, text)))
    }

    /// The elements. Empty if the value is no list.
    pub fn elements(self) -> &'a [Json<'a>] {
        self.value().and_then(Json::as_array).unwrap_or_default()
    }
}

/// The integer of a JSON value, if it is one.
pub fn integer(value: &Json<'_>) -> Option<i64> {
    match value {
        Json::Number(number) => number.as_i64().or_else(|| {
            let float = number.as_f64()?;
            // The cast saturates, which is correct for a number outside 64 bits.
            #[allow(clippy::cast_possible_truncation)]
            (float.fract() == 0.0).then_some(float as i64)
        }),
        _ => None,
    }
}
