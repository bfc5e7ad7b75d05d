//! Errors of files.

use std::{io, path::Path};

use workload::Error;

/// The error of this file.
pub fn file(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    move |source| Error::File { path: path.to_owned(), source }
}
