//! Reads answers in XML. Elements are found by name, and unknown elements are ignored.

use roxmltree::{Document, Node, ParsingOptions};

/// The maximum number of elements, attributes and texts of an answer. A full page of instances with all their tags and interfaces has
/// half as many.
const MOST_NODES: u32 = 400_000;

/// An answer of a service.
pub struct Xml<'a>(Document<'a>);

impl<'a> Xml<'a> {
    /// Reads an answer. `None` if it is no XML or too large.
    pub fn parse(body: &'a [u8]) -> Option<Self> {
        let options = ParsingOptions { nodes_limit: MOST_NODES, ..ParsingOptions::default() };
        Document::parse_with_options(std::str::from_utf8(body).ok()?, options).ok().map(Self)
    }

    /// The root element.
    pub fn root(&self) -> Element<'_, 'a> {
        Element(self.0.root_element())
    }

    /// Whether this is the answer to an action: the root element has the name of the action and the suffix `Response`.
    pub fn answers(&self, action: &str) -> bool {
        self.0.root_element().tag_name().name().strip_suffix("Response") == Some(action)
    }

    /// The first element with this name, at any depth.
    pub fn anywhere(&self, name: &str) -> Option<Element<'_, 'a>> {
        self.0.descendants().find(|node| node.has_tag_name_of(name)).map(Element)
    }
}

/// An element of an answer.
#[derive(Clone, Copy)]
pub struct Element<'d, 'a>(Node<'d, 'a>);

impl<'d, 'a> Element<'d, 'a> {
    /// The first child with this name.
    pub fn child(self, name: &str) -> Option<Self> {
        self.0.children().find(|node| node.has_tag_name_of(name)).map(Self)
    }

    /// The elements of a list: the `item` children of the child with this name.
    pub fn items(self, name: &str) -> impl Iterator<Item = Self> + use<'d, 'a> {
        let list = self.child(name).map(|list| list.0.children());
        list.into_iter().flatten().filter(|node| node.has_tag_name_of("item")).map(Self)
    }

    /// The text of a child. Empty if there is no such child.
    pub fn text(self, name: &str) -> &'d str {
        self.child(name).and_then(|child| child.0.text()).map(str::trim).unwrap_or_default()
    }

    /// The text of a child. `None` if it is missing or empty.
    pub fn some_text(self, name: &str) -> Option<String> {
        Some(self.text(name)).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// The parsed text of a child. `None` if it is missing or invalid.
    pub fn value<T: std::str::FromStr>(self, name: &str) -> Option<T> {
        self.text(name).parse().ok()
    }
}

trait Named {
    fn has_tag_name_of(&self, name: &str) -> bool;
}

impl Named for Node<'_, '_> {
    /// Whether the node is an element with this name. The namespace is ignored, because it contains the version of the API.
    fn has_tag_name_of(&self, name: &str) -> bool {
        self.is_element() && self.tag_name().name() == name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_elements_are_skipped_and_namespaces_do_not_matter() {
        let body = br#"<?xml version="1.0"?><R xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><new><x/></new>
            <set><item><id> i-1 </id><n>7</n></item><other/><item><id/></item></set></R>"#;
        let xml = Xml::parse(body).unwrap();
        let ids: Vec<_> = xml.root().items("set").map(|item| item.some_text("id")).collect();
        assert_eq!(ids, [Some("i-1".to_owned()), None]);
        assert_eq!(xml.anywhere("item").unwrap().value::<i32>("n"), Some(7));
        assert_eq!(xml.root().items("nothing").count(), 0);
    }

    #[test]
    fn a_body_that_is_no_xml_is_none() {
        for body in [&b"{}"[..], b"", b"<a>", b"\xff\xfe", b"<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>"] {
            assert!(Xml::parse(body).is_none(), "{}", String::from_utf8_lossy(body));
        }
    }
}
