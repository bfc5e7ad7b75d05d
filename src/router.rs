//! The route table. A route's method and path are stated once, in its handler's `#[utoipa::path]`; the groups here say
//! what guards it. Every request passes [`crate::http::middleware::per_request`] first.

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRef;
use axum::middleware::from_fn_with_state as with_state;
use tower_http::compression::CompressionLayer;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::clock::Zone;
use crate::error::Error;
use crate::health::{self, Health};
use crate::http::admission::{Guards, admit_signed_in};
use crate::http::auth::{AdminToken, renew_session, require_admin};
use crate::http::{page, spans};
use crate::metrics::{self, Metrics};
use crate::openapi::{self, ApiDocument};
use crate::order;
use crate::order::lifetime::Lifetime;
use crate::order::lookup::OrderLookup;
use crate::order::purchase::PurchaseService;
use crate::shop::{self, Shops};
use crate::user::{self, Users};
use crate::voucher::{self, Vouchers};

/// What handlers work with. Shared by an `Arc`, because the state of a route is cloned for each request.
#[allow(missing_docs)] // each part is documented by its type
pub struct AppState {
    pub users: Users,
    pub shops: Shops,
    pub vouchers: Vouchers,
    pub guards: Arc<Guards>,
    pub purchases: PurchaseService,
    pub lookup: OrderLookup,
    pub lifetime: Lifetime,
    pub health: Health,
    pub metrics: Metrics,
}

macro_rules! parts {
    ($($part:ident: $type:ty),*) => { $(
        impl FromRef<Arc<AppState>> for $type {
            fn from_ref(state: &Arc<AppState>) -> Self {
                state.$part.clone()
            }
        }
    )* };
}

parts!(
    users: Users, shops: Shops, vouchers: Vouchers, purchases: PurchaseService, lookup: OrderLookup, lifetime: Lifetime,
    health: Health, metrics: Metrics
);

impl AsRef<Guards> for AppState {
    fn as_ref(&self) -> &Guards {
        &self.guards
    }
}

type Group = OpenApiRouter<Arc<AppState>>;

macro_rules! handlers {
    ($($($word:ident)::+),+ $(,)?) => {
        OpenApiRouter::new()$(.routes(routes!($($word)::+)))+
    };
}

/// For everyone.
fn public() -> Group {
    handlers!(
        user::send_code,
        user::login,
        shop::get,
        shop::of_type,
        shop::of_name,
        shop::types,
        voucher::list
    )
}

/// For a signed-in user: [`admit_signed_in`] guards them.
fn signed_in() -> Group {
    handlers!(
        user::logout,
        user::me,
        user::get,
        order::mine,
        order::get,
        order::pay,
        order::cancel
    )
}

/// For the administrator: [`require_admin`] guards them.
fn admin() -> Group {
    handlers!(
        voucher::publish,
        voucher::publish_seckill,
        voucher::add_stock,
        shop::create,
        shop::update
    )
}

/// For a signed-in user, each guarded by its extractor [`Admitted`](crate::http::admission::Admitted).
fn purchases() -> Group {
    handlers!(order::buy_by_body, order::buy)
}

/// For operators. Probes carry no token, and must answer when Redis does not.
fn service() -> Group {
    handlers!(health::live, health::ready, metrics::get)
}

/// With `--lab`, for everyone.
fn lab() -> Group {
    handlers!(user::sent_code, user::login_in_memory)
}

fn document() -> OpenApiRouter<ApiDocument> {
    handlers!(openapi::document)
}

/// The API's document, with the operations of the lab.
pub fn api_document() -> ApiDocument {
    ApiDocument(|| {
        let groups = [
            public(),
            signed_in(),
            admin(),
            purchases(),
            service(),
            lab(),
        ];
        let groups = groups.into_iter().map(OpenApiRouter::into_openapi);
        groups.fold(document().into_openapi(), OpenApi::merge_from)
    })
}

/// The service's routes; those of the lab with `--lab` only. `zone` is the zone of date-times on the wire, for the pages.
pub fn routes(state: Arc<AppState>, admin_token: AdminToken, zone: Zone, is_lab: bool) -> Router {
    let admin_guard = with_state(admin_token, require_admin);
    let user_guard = with_state(state.guards.clone(), admit_signed_in);
    let sessions = state.guards.sessions.clone();
    let routes = public()
        .merge(admin().route_layer(admin_guard))
        .layer(with_state(sessions, renew_session))
        .merge(signed_in().route_layer(user_guard));
    let routes = routes.merge(purchases()).merge(service());
    let routes = if is_lab { routes.merge(lab()) } else { routes };
    let docs = Router::from(document().with_state(api_document())).layer(CompressionLayer::new());

    let router = Router::new()
        .merge(routes.with_state(state))
        .merge(docs)
        .merge(page::routes(is_lab, zone))
        .fallback(page::not_found)
        .method_not_allowed_fallback(async || Error::MethodNotAllowed);
    spans::with_routes(router)
}
