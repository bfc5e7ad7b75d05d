//! The user of a session.

use serde::Serialize;
use utoipa::ToSchema;

/// A user, as others see it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = User)]
#[serde(rename_all = "camelCase")]
pub struct CurrentUser {
    /// The user's id.
    #[schema(example = 1)]
    pub id: i64,
    /// The name shown to others.
    #[schema(example = "user_3k9x2m7q1a")]
    pub nick_name: String,
    /// The address of the user's picture; may be empty.
    pub icon: String,
}
