//! The pages of Swagger UI, which show the API's document. Served from the binary, so they work without a network.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::Path;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use bytes::Bytes;
use utoipa_swagger_ui::Config;

use super::served;
use crate::error::Error;

/// The routes of the pages.
pub fn routes() -> Router {
    Router::new()
        // By a relative address, since a proxy may have added a prefix to the path.
        .route("/docs", get(async || Redirect::temporary("docs/")))
        .route("/docs/", get(async || file(Path("index.html".to_owned())).await))
        .route("/docs/{file}", get(file))
}

/// A file of the page.
async fn file(Path(name): Path<String>) -> Response {
    static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
        let config = Config::from("openapi.json").use_base_layout();
        // By default the page sends the document's address to swagger.io to validate it.
        let config = config.validator_url("none").try_it_out_enabled(true);
        Arc::new(config.display_request_duration(true).default_models_expand_depth(0))
    });
    match utoipa_swagger_ui::serve(&name, CONFIG.clone()) {
        Ok(Some(found)) => {
            let bytes = match found.bytes {
                Cow::Borrowed(bytes) => Bytes::from_static(bytes),
                Cow::Owned(bytes) => bytes.into(),
            };
            served(&found.content_type, bytes)
        }
        Ok(None) => Error::NotFound.into_response(),
        Err(error) => Error::Internal(format!("Swagger UI: {error}")).into_response(),
    }
}
