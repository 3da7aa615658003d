//! The parameters of an action, encoded as Alibaba Cloud signs them. Pure.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug, Display, Formatter, Write},
};

/// An action with its parameters. `Debug` prints no values, because user data is one of them.
#[derive(Clone, PartialEq, Eq)]
pub struct Query {
    action: &'static str,
    version: &'static str,
    parameters: BTreeMap<String, String>,
}

impl Query {
    /// An action of an API with this version, without parameters.
    pub const fn new(action: &'static str, version: &'static str) -> Self {
        Self { action, version, parameters: BTreeMap::new() }
    }

    /// The name of the action.
    pub const fn action(&self) -> &'static str {
        self.action
    }

    /// The version of the API.
    pub const fn version(&self) -> &'static str {
        self.version
    }

    /// Sets a parameter.
    pub fn set(&mut self, name: &str, value: impl Display) {
        self.parameters.insert(name.to_owned(), value.to_string());
    }

    /// Sets a parameter to a text that is not empty.
    pub fn set_text(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            self.set(name, text);
        }
    }

    /// Sets a parameter to a value, if there is one.
    pub fn set_some(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// The parameters in the order of their names, as they stand in the URL and in what is signed.
    pub fn encoded(&self) -> String {
        let mut all = String::new();
        for (name, value) in &self.parameters {
            if !all.is_empty() {
                all.push('&');
            }
            encode(name, &mut all);
            all.push('=');
            encode(value, &mut all);
        }
        all
    }
}

impl Debug for Query {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Query({} {:?})", self.action, self.parameters.keys())
    }
}

/// Appends a text with all bytes encoded but letters, digits, `-`, `_`, `.` and `~` (RFC 3986).
fn encode(text: &str, to: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => to.push(char::from(byte)),
            _ => {
                // Writing to a text never fails.
                let _ = write!(to, "%{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_sorted_and_encoded() {
        let mut query = Query::new("A", "V");
        query.set("b", "x y*~+/=");
        query.set("a", true);
        query.set_text("c", "");
        query.set_some("d", None::<i32>);
        query.set_some("e", Some(5));
        query.set("f", "ä");
        assert_eq!(query.encoded(), "a=true&b=x%20y%2A~%2B%2F%3D&e=5&f=%C3%A4");
        assert_eq!(format!("{query:?}"), "Query(A [\"a\", \"b\", \"e\", \"f\"])");
    }
}
