//! A macro for the `with_*` methods of configuration structs.

/// Writes one `with_*` method per field.
macro_rules! setters {
    ($($name:ident($field:ident: $type:ty),)*) => { $(
        #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $name(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )* };
}

pub(crate) use setters;
