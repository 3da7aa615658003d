//! Paths with borrowed names.
//!
//! A rule visits thousands of places and makes few findings. So a rule uses a [`PathRef`], which needs no allocation, and a [`FieldPath`] is made
//! only for a finding that is kept.

use std::{fmt, hash::Hasher, ops::ControlFlow};

use super::{FieldPath, PATH_MAX, cut_text};

/// The path of a place in an object, like [`FieldPath`], with borrowed names.
#[derive(Clone, Copy, Debug)]
pub struct PathRef<'a> {
    above: Option<&'a PathRef<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Path(&'a str),
    Child(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> PathRef<'a> {
    /// The path with this text. The empty text is the object itself.
    pub const fn new(path: &'a str) -> Self {
        Self { above: None, step: Step::Path(path) }
    }

    const fn below<'b>(&'b self, step: Step<'b>) -> PathRef<'b> {
        PathRef { above: Some(self), step }
    }

    /// `self.name`.
    #[must_use]
    pub const fn child<'b>(&'b self, name: &'b str) -> PathRef<'b> {
        self.below(Step::Child(name))
    }

    /// `self[index]`, an element of a list.
    #[must_use]
    pub const fn index(&self, index: usize) -> PathRef<'_> {
        self.below(Step::Index(index))
    }

    /// `self[key]`, a value of a map.
    #[must_use]
    pub const fn key<'b>(&'b self, key: &'b str) -> PathRef<'b> {
        self.below(Step::Key(key))
    }

    fn is_root(&self) -> bool {
        self.above.is_none() && matches!(self.step, Step::Path(""))
    }

    /// Hashes the path without the indexes of lists. Two findings that differ only in indexes are the same problem.
    pub(super) fn hash_without_indexes(&self, hasher: &mut impl Hasher) {
        if let Some(above) = self.above {
            above.hash_without_indexes(hasher);
        }
        match self.step {
            Step::Path(path) => hash_text_without_indexes(path, hasher),
            Step::Child(name) => {
                hasher.write(b".");
                hasher.write(name.as_bytes());
            }
            Step::Index(_) => hasher.write(b"[]"),
            Step::Key(key) => {
                hasher.write(b"[");
                hasher.write(key.as_bytes());
                hasher.write(b"]");
            }
        }
    }

    /// The path for a finding that is kept, cut to a readable length.
    pub(super) fn to_field_path(self) -> FieldPath {
        FieldPath(cut_text(&self, PATH_MAX).into())
    }

    /// Compares the path with a text without writing the path, because thousands of findings need this.
    fn compare_with(&self, compared: &mut Compared<'_>) -> ControlFlow<()> {
        if let Some(above) = self.above {
            above.compare_with(compared)?;
        }
        match self.step {
            Step::Path(path) => compared.pass(path.as_bytes()),
            Step::Child(name) => {
                if !self.above.is_some_and(PathRef::is_root) {
                    compared.pass(b".")?;
                }
                compared.pass(name.as_bytes())
            }
            Step::Index(index) => {
                compared.pass(b"[")?;
                compared.pass(index.to_string().as_bytes())?;
                compared.pass(b"]")
            }
            Step::Key(key) => {
                compared.pass(b"[")?;
                compared.pass(key.as_bytes())?;
                compared.pass(b"]")
            }
        }
    }

    /// Whether `fields` is this path, or a parent of it.
    pub(super) fn is_at_or_below(&self, fields: &FieldPath) -> bool {
        let mut compared = Compared { rest: fields.as_str().as_bytes(), next: None };
        // The remaining parts of both show how they differ.
        let _ = self.compare_with(&mut compared);
        let is_around = |next: u8| !fields.as_str().contains('[') && matches!(next, b'.' | b'[');
        compared.rest.is_empty() && (fields.as_str().is_empty() || compared.next.is_none_or(is_around))
    }
}

/// A text that is compared with a path, part by part.
struct Compared<'t> {
    /// The rest of the text.
    rest: &'t [u8],
    /// The byte of the path that follows the end of the text.
    next: Option<u8>,
}

impl Compared<'_> {
    /// Compares the next part of the path. Breaks if both differ or the text has ended.
    fn pass(&mut self, part: &[u8]) -> ControlFlow<()> {
        let common = part.len().min(self.rest.len());
        if self.rest[..common] != part[..common] {
            return ControlFlow::Break(());
        }
        self.rest = &self.rest[common..];
        self.next = part.get(common).copied();
        if self.next.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn hash_text_without_indexes(path: &str, hasher: &mut impl Hasher) {
    let mut rest = path;
    while let Some(open) = rest.find('[') {
        let Some(len) = rest[open..].find(']') else { break };
        let inside = &rest[open + 1..open + len];
        hasher.write(&rest.as_bytes()[..open]);
        if inside.bytes().all(|byte| byte.is_ascii_digit()) {
            hasher.write(b"[]");
        } else {
            hasher.write(&rest.as_bytes()[open..=open + len]);
        }
        rest = &rest[open + len + 1..];
    }
    hasher.write(rest.as_bytes());
}

impl fmt::Display for PathRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(above) = self.above {
            above.fmt(f)?;
        }
        match self.step {
            Step::Path(path) => f.write_str(path),
            Step::Child(name) if self.above.is_some_and(PathRef::is_root) => f.write_str(name),
            Step::Child(name) => {
                f.write_str(".")?;
                f.write_str(name)
            }
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => {
                f.write_str("[")?;
                f.write_str(key)?;
                f.write_str("]")
            }
        }
    }
}

/// A type with a path.
pub trait Located {
    /// The borrowed path.
    fn place(&self) -> PathRef<'_>;
}

impl<T: Located + ?Sized> Located for &T {
    fn place(&self) -> PathRef<'_> {
        (**self).place()
    }
}

impl Located for FieldPath {
    fn place(&self) -> PathRef<'_> {
        PathRef::new(self.as_str())
    }
}

impl Located for PathRef<'_> {
    fn place(&self) -> PathRef<'_> {
        *self
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn hash(path: &PathRef<'_>) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        path.hash_without_indexes(&mut hasher);
        hasher.finish()
    }

    #[rstest]
    #[case::numbers_of_elements("a[0].b[key].c[12]", "a[7].b[key].c[1]", true)]
    #[case::keys_of_a_map("a[0].b[key]", "a[0].b[other]", false)]
    #[case::fields("a.b", "a.c", false)]
    fn list_numbers_do_not_make_another_place(
        #[case] one: &'static str,
        #[case] other: &'static str,
        #[case] same: bool,
    ) {
        assert_eq!(hash(&PathRef::new(one)) == hash(&PathRef::new(other)), same);
    }

    #[test]
    fn a_borrowed_path_prints_and_hashes_like_its_text() {
        let (root, list) = (PathRef::new(""), FieldPath::new("spec").child("list"));
        let (field, list) = (root.child("spec"), list.place());
        let (name, element) = (field.child("name"), list.index(7));
        let below = element.child("map");
        let value = below.key("a.b/c");
        for (path, text) in [
            (root, ""),
            (field, "spec"),
            (name, "spec.name"),
            (element, "spec.list[7]"),
            (value, "spec.list[7].map[a.b/c]"),
        ] {
            assert_eq!((path.to_string().as_str(), path.to_field_path().as_str()), (text, text));
        }
        assert_eq!(hash(&value), hash(&PathRef::new("spec.list[3].map[a.b/c]")));
        assert_ne!(hash(&value), hash(&PathRef::new("spec.list[3].map[other]")));
    }

    #[rstest]
    #[case::the_place_itself("a.b[k]", "a.b[k]", true)]
    #[case::fields_around("a.b[k]", "a.b", true)]
    #[case::the_field_above("a.b", "a", true)]
    #[case::the_object("a.b", "", true)]
    #[case::a_name_that_begins_alike("a.bc", "a.b", false)]
    #[case::another_value("a.b[k]", "a.b[l]", false)]
    #[case::a_value_is_no_field("a[k].b", "a[k]", false)]
    #[case::below("a", "a.b", false)]
    fn a_path_is_compared_with_its_parents(#[case] path: &str, #[case] fields: &'static str, #[case] expected: bool) {
        assert_eq!(PathRef::new(path).is_at_or_below(&FieldPath::new(fields)), expected);
    }
}
