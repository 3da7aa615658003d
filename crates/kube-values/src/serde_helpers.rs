//! Reads and writes JSON like Go.
//!
//! Go writes `null` or `{}` for structs that were never set, and omits zero values. So `null` is read as the default, and a default value is omitted
//! (spec/api-and-admission §1).

use serde::{Deserialize, Deserializer};

/// Reads `null` as the default of the type. For use with `#[serde(default)]`.
pub fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Whether a value equals its default, and is omitted.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
