//! What can be cached, and what a read returns.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ReadError;

/// A type that can be cached: anything serde can write as JSON and read back.
pub trait CacheValue: Serialize + DeserializeOwned + Send + Sync + 'static {}
impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> CacheValue for T {}

/// The result of a read: the value, shared with other readers, or `None` if it does not exist.
pub type ReadResult<T, E> = Result<Option<Arc<CachedValue<T>>>, ReadError<E>>;

/// A value shared by its readers, with room for its rendered form: the first reader that needs it
/// renders it, and every later hit in memory returns the same bytes.
#[derive(Debug)]
pub struct CachedValue<T> {
    value: T,
    rendered: OnceLock<Bytes>,
}

impl<T> CachedValue<T> {
    pub(crate) fn new(value: T) -> Arc<Self> {
        Arc::new(Self {
            value,
            rendered: OnceLock::new(),
        })
    }

    /// The rendered form, such as a response body. `render` runs for the first caller only, so all
    /// callers must pass one that gives the same bytes.
    pub fn rendered(&self, render: impl FnOnce(&T) -> Bytes) -> Bytes {
        self.rendered.get_or_init(|| render(&self.value)).clone()
    }
}

impl<T> Deref for CachedValue<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
