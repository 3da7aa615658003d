//! Requests in the query protocol of EC2: a form in which a dotted name is the path of a value. List indices begin at 1.

use std::fmt;

/// A request: its action and its parameters in order. `Debug` prints no values, because they may contain user data.
#[derive(Clone, PartialEq, Eq)]
pub struct Query {
    action: &'static str,
    version: &'static str,
    parameters: Vec<(String, String)>,
    prefix: String,
}

impl Query {
    /// A request for this action, with this version of the service's API.
    pub fn new(action: &'static str, version: &'static str) -> Self {
        Self { action, version, parameters: Vec::new(), prefix: String::new() }
    }

    /// The action.
    pub const fn action(&self) -> &'static str {
        self.action
    }

    /// Sets a parameter.
    pub fn set(&mut self, name: &str, value: impl fmt::Display) {
        self.parameters.push((format!("{}{name}", self.prefix), value.to_string()));
    }

    /// Sets a parameter if there is a value.
    pub fn set_some(&mut self, name: &str, value: Option<impl fmt::Display>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// Sets the parameters of a structure.
    pub fn nested(&mut self, name: &str, fill: impl FnOnce(&mut Self)) {
        let outer = self.prefix.len();
        self.prefix.push_str(name);
        self.prefix.push('.');
        fill(self);
        self.prefix.truncate(outer);
    }

    /// Sets the parameters of a list's elements.
    pub fn list<T>(&mut self, name: &str, elements: impl IntoIterator<Item = T>, mut fill: impl FnMut(&mut Self, T)) {
        for (number, element) in (1..).zip(elements) {
            self.nested(&format!("{name}.{number}"), |query| fill(query, element));
        }
    }

    /// Sets a list of values.
    pub fn values(&mut self, name: &str, values: impl IntoIterator<Item = impl fmt::Display>) {
        for (number, value) in (1..).zip(values) {
            self.set(&format!("{name}.{number}"), value);
        }
    }

    /// The parameters in order, without action and version.
    #[cfg(test)]
    pub fn parameters(&self) -> &[(String, String)] {
        &self.parameters
    }

    /// The body of the request.
    pub fn body(&self) -> String {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("Action", self.action).append_pair("Version", self.version);
        form.extend_pairs(&self.parameters).finish()
    }
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.parameters.iter().map(|(name, _)| name);
        write!(f, "{} ", self.action)?;
        f.debug_list().entries(names).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_counted_from_one_and_structures_are_paths() {
        let mut query = Query::new("RunInstances", "2016-11-15");
        query.set("MinCount", 1);
        query.set_some("KeyName", None::<&str>);
        query.list("TagSpecification", ["instance", "volume"], |query, kind| {
            query.set("ResourceType", kind);
            query.list("Tag", [("a b", "c&d")], |query, (key, value)| {
                query.set("Key", key);
                query.set("Value", value);
            });
        });
        query.nested("Placement", |query| query.set("Tenancy", "host"));
        query.values("InstanceId", ["i-1", "i-2"]);
        assert_eq!(
            query.body(),
            "Action=RunInstances&Version=2016-11-15&MinCount=1&TagSpecification.1.ResourceType=instance\
             &TagSpecification.1.Tag.1.Key=a+b&TagSpecification.1.Tag.1.Value=c%26d\
             &TagSpecification.2.ResourceType=volume&TagSpecification.2.Tag.1.Key=a+b\
             &TagSpecification.2.Tag.1.Value=c%26d&Placement.Tenancy=host&InstanceId.1=i-1&InstanceId.2=i-2"
        );
        let printed = format!("{query:?}");
        assert!(printed.contains("Placement.Tenancy") && !printed.contains("c&d"), "{printed}");
    }
}
