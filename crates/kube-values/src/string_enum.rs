//! Enums for string fields that other programs may extend.
//!
//! A newer or older program may have stored a value that this program does not know. The object must still be readable, and must be written with the
//! same value. So each of these enums keeps an unknown value in the variant `Other`.

/// Declares an enum of known texts with a variant `Other(String)` for all other texts.
///
/// The first variant is the default. `Display`, `From<&str>`, `as_str`, `Serialize` and `Deserialize` use the texts. `null` is read as the default,
/// as by Go's decoder.
#[macro_export]
macro_rules! string_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[doc = $doc:literal])* $variant:ident = $word:literal),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[doc = $doc])* $variant,)+
            /// An unknown text, as it was read.
            Other(String),
        }

        impl $name {
            /// The known texts, in declaration order.
            #[allow(dead_code)]
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The known texts with their doc comments, which have the blanks of the source.
            #[allow(dead_code)]
            pub const MEANINGS: &'static [(&'static str, &'static str)] = &[$(($word, concat!($($doc),*))),+];

            /// The stored text.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)+
                    Self::Other(word) => word,
                }
            }

            /// Whether the field is omitted when it is written (Go omits empty strings).
            #[allow(dead_code)]
            pub fn is_empty(&self) -> bool {
                self.as_str().is_empty()
            }
        }

        #[allow(clippy::derivable_impls)]
        impl Default for $name {
            fn default() -> Self {
                $crate::string_enum!(@first $name $($variant)+)
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)+
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        /// Any string: a schema with the known texts would refuse a newer program.
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string"})
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = Option::<std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Ok(word.map_or_else(Self::default, |word| Self::from(word.as_ref())))
            }
        }
    };
    (@first $name:ident $first:ident $($rest:ident)*) => { $name::$first };
}

#[cfg(test)]
mod tests {
    string_enum! {
        /// A sample.
        pub enum Colour {
            /// No colour.
            Unset = "",
            /// Red.
            Red = "Red",
        }
    }

    #[test]
    fn an_unknown_word_survives_a_round_trip() {
        let read: Colour = serde_json::from_str("\"Blue\"").unwrap();
        assert_eq!(read, Colour::Other("Blue".to_owned()));
        assert!(!read.is_empty() && !Colour::WORDS.contains(&read.as_str()));
        assert_eq!(serde_json::to_string(&read).unwrap(), "\"Blue\"");
    }

    #[test]
    fn null_is_the_default() {
        assert_eq!(serde_json::from_str::<Colour>("null").unwrap(), Colour::Unset);
    }
}
