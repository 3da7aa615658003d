//! How Go's JSON habits are read and written.
//!
//! Go writes `null` or `{}` for structs that were never set and drops zero values. On reading, `null` therefore means
//! the default; on writing, a default value is left out (spec/api-and-admission §1).

use serde::{Deserialize, Deserializer};

/// Reads `null` as the default of the type. Use together with `#[serde(default)]`.
pub fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Whether a value equals its default and is left out when written.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
