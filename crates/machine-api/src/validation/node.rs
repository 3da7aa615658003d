//! A tolerant view of untyped JSON.
//!
//! Stored objects may hold any JSON type anywhere (poison values), and one wrong type must not hide the other mistakes.
//! So rules read through [`Node`], which tells absent from mistyped: the first is the business of "is required" rules,
//! the second has been reported once by [`super::types`] and concerns no other rule.

use kube_values::json::{Json, Members};
use serde_json::Value;

/// What stands at a place of an object. `null` counts as absent, as in Go.
#[derive(Clone, Copy, Debug)]
pub enum Node<'a> {
    /// Nothing.
    Absent,
    /// Something below a value that is no object.
    Mistyped,
    /// This value.
    Is(&'a Json<'a>),
}

impl<'a> Node<'a> {
    /// The view of a value.
    pub fn of(value: &'a Json<'a>) -> Self {
        if value.is_null() { Self::Absent } else { Self::Is(value) }
    }

    /// The view of a value that may not be there.
    pub fn of_option(value: Option<&'a Json<'a>>) -> Self {
        value.map_or(Self::Absent, Self::of)
    }

    /// The member of this name.
    #[must_use]
    pub fn get(self, key: &str) -> Self {
        match self {
            Self::Is(Json::Object(members)) => Self::of_option(members.get(key)),
            Self::Is(_) | Self::Mistyped => Self::Mistyped,
            Self::Absent => Self::Absent,
        }
    }

    /// The member at the end of these names.
    #[must_use]
    pub fn at(self, keys: &[&str]) -> Self {
        keys.iter().fold(self, |node, key| node.get(key))
    }

    /// Whether nothing is there.
    pub fn is_absent(self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Whether something is there, of whatever type.
    pub fn is_present(self) -> bool {
        matches!(self, Self::Is(_))
    }

    /// The value, if something is there.
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

    /// The text, if it is one.
    pub fn text(self) -> Option<&'a str> {
        self.value().and_then(Json::as_str)
    }

    /// The text of a field for which absent and empty are the same; nothing when the field is mistyped.
    pub fn text_or_empty(self) -> Option<&'a str> {
        if self.is_absent() { Some("") } else { self.text() }
    }

    /// The whole number, if it is one. Numbers beyond 64 bits are cut off at the ends.
    pub fn integer(self) -> Option<i64> {
        self.value().and_then(integer)
    }

    /// The number of a field for which absent and zero are the same; nothing when the field is mistyped.
    pub fn integer_or_zero(self) -> Option<i64> {
        if self.is_absent() { Some(0) } else { self.integer() }
    }

    /// Whether the field is `true`.
    pub fn is_true(self) -> bool {
        self.value() == Some(&Json::Bool(true))
    }

    /// The members, if it is an object.
    pub fn members(self) -> Option<&'a Members<'a>> {
        self.value().and_then(Json::as_object)
    }

    /// The members whose values are texts; none when it is no object.
    pub fn texts(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let members = self.members().into_iter().flat_map(Members::iter);
        members.filter_map(|(key, value)| value.as_str().map(|text| (key, text)))
    }

    /// The elements; none when it is no list.
    pub fn elements(self) -> &'a [Json<'a>] {
        self.value().and_then(Json::as_array).unwrap_or_default()
    }
}

/// The whole number a JSON value is, if it is one.
pub fn integer(value: &Json<'_>) -> Option<i64> {
    match value {
        Json::Number(number) => number.as_i64().or_else(|| {
            let float = number.as_f64()?;
            // The cast saturates, which is what is wanted of a number that no 64-bit integer holds.
            #[allow(clippy::cast_possible_truncation)]
            (float.fract() == 0.0).then_some(float as i64)
        }),
        _ => None,
    }
}
