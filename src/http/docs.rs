//! OpenAPI document: the shapes of the envelope, and what all operations have in common. A handler's `#[utoipa::path]`
//! says only what is particular: its input, its success, and under `x-codes` the failures that do not follow from the
//! input. [`complete`] adds the other failures and the headers; it runs once, not for each request.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, Header, OpenApi, Ref, RefOr, Required, Response};
use utoipa::{PartialSchema, ToSchema};

use super::auth::ADMIN_TOKEN;
use crate::error::Error;

/// The tag of operations that answer without the envelope: probes, metrics, this document.
pub const SERVICE: &str = "service";

/// The tag of operations that exist only with `--lab`.
pub const LAB: &str = "lab";

/// The security scheme of a session.
const SESSION: &str = "authorization";

/// Where a handler lists the codes of its failures. Not part of the finished document.
const CODES: &str = "x-codes";

const JSON: &str = "application/json";

/// An order's id, as a number. It passes 2^53, which a JavaScript number cannot hold: read `orderId`.
#[derive(ToSchema)]
#[schema(example = 62_496_928_117_555_201_i64)]
pub struct OrderId(#[allow(dead_code)] i64);

/// The envelope of a success with data.
#[derive(ToSchema)]
#[allow(dead_code)]
pub struct Success<T: ToSchema> {
    #[schema(schema_with = always_true)]
    success: bool,
    data: T,
}

/// The envelope of a success that may have no data.
#[derive(ToSchema)]
#[allow(dead_code)]
pub struct Found<T: ToSchema> {
    #[schema(schema_with = always_true)]
    success: bool,
    #[schema(nullable = false)]
    data: Option<T>,
}

/// The envelope of a success without data.
#[derive(ToSchema)]
#[allow(dead_code)]
pub struct Done {
    #[schema(schema_with = always_true)]
    success: bool,
}

/// The envelope of a committed order.
#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code)]
pub struct CommittedOrder {
    #[schema(schema_with = always_true)]
    success: bool,
    data: OrderId,
    /// The order's id, exactly.
    #[schema(pattern = "^[0-9]+$", example = "62496928117555201")]
    order_id: String,
}

/// The envelope of an order that is neither committed nor refused yet.
#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code)]
pub struct PendingOrder {
    #[schema(schema_with = always_true)]
    success: bool,
    data: OrderId,
    /// The order's id, exactly.
    #[schema(pattern = "^[0-9]+$", example = "62496928117555201")]
    order_id: String,
    #[schema(schema_with = always_pending)]
    code: String,
}

/// The envelope of a failure.
#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code)]
struct Failure {
    #[schema(schema_with = always_false)]
    success: bool,
    /// For people; may change.
    error_msg: String,
    /// For programs; stable.
    code: String,
    /// The order that the failure is about, where it is known.
    #[schema(nullable = false)]
    data: Option<OrderId>,
    /// The order's id, exactly.
    #[schema(nullable = false, pattern = "^[0-9]+$")]
    order_id: Option<String>,
}

fn always_true() -> Schema {
    only(Type::Boolean, [true])
}

fn always_false() -> Schema {
    only(Type::Boolean, [false])
}

fn always_pending() -> Schema {
    only(Type::String, ["PENDING"])
}

/// A value that is one of these.
fn only<T: Into<Value>>(kind: Type, values: impl IntoIterator<Item = T>) -> Schema {
    let object = ObjectBuilder::new().schema_type(kind);
    object.enum_values(Some(values)).into()
}

/// The failure that the document shows for this code.
fn failure_of(code: &str) -> Option<Error> {
    Error::each()
        .into_iter()
        .rfind(|failure| failure.code() == code)
}

/// The codes of an operation's failures.
type Codes = BTreeSet<String>;

/// Completes the document: names, failures, headers, security schemes.
pub fn complete(document: &mut OpenApi) {
    let components = document.components.get_or_insert_default();
    for path in document.paths.paths.values_mut() {
        let operations = [&mut path.get, &mut path.post, &mut path.put];
        for operation in operations.into_iter().flatten() {
            complete_operation(operation, &mut components.responses);
        }
    }
    let session =
        "A session's token, as `POST /user/login` returns it, with or without `Bearer ` before it.";
    let admin = "The server's `ADMIN_TOKEN`. Where none is set, every admin write is refused.";
    for (name, description) in [(SESSION, session), (ADMIN_TOKEN, admin)] {
        let key = ApiKey::Header(ApiKeyValue::with_description(name, description));
        components.add_security_scheme(name, SecurityScheme::ApiKey(key));
    }
}

fn complete_operation(
    operation: &mut Operation,
    components: &mut BTreeMap<String, RefOr<Response>>,
) {
    let tag = operation.tags.iter().flatten().next();
    let tag = tag.cloned().unwrap_or_default();
    // Handlers of two features may have one name.
    operation.operation_id = operation
        .operation_id
        .take()
        .map(|name| format!("{tag}_{name}"));
    let mut by_status: BTreeMap<u16, Codes> = BTreeMap::new();
    for code in codes(operation, &tag) {
        // An unknown code is documented as 500; a test fails on any 500.
        let status = failure_of(&code).map_or(500, |failure| failure.status());
        by_status.entry(status).or_default().insert(code);
    }
    // What is taken as a form is taken from the address, too.
    if let Some(body) = &mut operation.request_body
        && !body.content.contains_key(JSON)
    {
        body.required = Some(Required::False);
    }
    let responses = &mut operation.responses.responses;
    for (status, response) in responses.iter_mut() {
        let RefOr::T(response) = response else {
            continue;
        };
        let refusals = (status == "200").then(|| by_status.remove(&200)).flatten();
        if let (Some(codes), Some(content)) = (refusals, response.content.get_mut(JSON)) {
            add_refusals(content, &codes);
        }
        add_headers(response, false);
    }
    for (status, codes) in by_status {
        let name = Vec::from_iter(codes.iter().map(String::as_str)).join("_OR_");
        responses.insert(status.to_string(), Ref::from_response_name(&name).into());
        components.entry(name).or_insert_with(|| {
            let mut content = Content::new(Some(failure(&codes)));
            add_examples(&mut content, &codes);
            let mut response = Response::new(description(status));
            response.content.insert(JSON.to_owned(), content);
            add_headers(&mut response, matches!(status, 429 | 503));
            response.into()
        });
    }
}

/// The codes of an operation's failures: those it lists, and those that follow from what it takes.
fn codes(operation: &mut Operation, tag: &str) -> Codes {
    let listed = operation
        .extensions
        .as_mut()
        .and_then(|all| all.remove(CODES));
    let listed = listed.and_then(|codes| serde_json::from_value::<Codes>(codes).ok());
    let body = operation.request_body.as_ref();
    let asks_for = |scheme: &str| {
        let scheme = SecurityRequirement::new::<_, [&str; 0], _>(scheme, []);
        operation
            .security
            .iter()
            .flatten()
            .any(|given| *given == scheme)
    };
    let implied: [(bool, &[&str]); 7] = [
        (tag != SERVICE, &["UNAVAILABLE"]),
        (tag == LAB, &["NOT_FOUND"]),
        (
            operation
                .parameters
                .as_ref()
                .is_some_and(|all| !all.is_empty()),
            &["INVALID_PARAMETER"],
        ),
        (
            body.is_some(),
            &["INVALID_PARAMETER", "PAYLOAD_TOO_LARGE", "REQUEST_TIMEOUT"],
        ),
        (
            body.is_some_and(|body| body.content.contains_key(JSON)),
            &["MALFORMED_JSON", "UNSUPPORTED_MEDIA_TYPE"],
        ),
        (
            asks_for(SESSION),
            &["UNAUTHORIZED", "TOO_MANY_REQUESTS", "OVERLOADED"],
        ),
        (asks_for(ADMIN_TOKEN), &["FORBIDDEN"]),
    ];
    let implied = implied.into_iter().filter(|(applies, _)| *applies);
    let implied = implied.flat_map(|(_, codes)| codes.iter().map(|code| (*code).to_owned()));
    listed
        .unwrap_or_default()
        .into_iter()
        .chain(implied)
        .collect()
}

/// Puts the business refusals beside the success of a 200.
fn add_refusals(content: &mut Content, codes: &Codes) {
    if let Some(success) = content.schema.take() {
        let one_of = OneOfBuilder::new().item(success).item(failure(codes));
        content.schema = Some(one_of.into());
    }
    if let Some(success) = content.example.take() {
        add_example(content, "success", success);
    }
    add_examples(content, codes);
}

/// The envelope's schema with these codes.
fn failure(codes: &Codes) -> RefOr<Schema> {
    let mut schema = Failure::schema();
    if let RefOr::T(Schema::Object(envelope)) = &mut schema {
        let codes = only(Type::String, codes.iter().map(String::as_str));
        envelope.properties.insert("code".to_owned(), codes.into());
    }
    schema
}

fn add_examples(content: &mut Content, codes: &Codes) {
    for code in codes {
        if let Some(failure) = failure_of(code) {
            let text = failure.to_string();
            let value = json!({ "success": false, "errorMsg": text, "code": code });
            add_example(content, code, value);
        }
    }
}

fn add_example(content: &mut Content, name: &str, value: Value) {
    let example = ExampleBuilder::new().value(Some(value)).build();
    content.examples.insert(name.to_owned(), example.into());
}

fn add_headers(response: &mut Response, retry: bool) {
    let mut add = |name: &str, kind: Type, description: &str| {
        let mut header = Header::new(ObjectBuilder::new().schema_type(kind));
        header.description = Some(description.to_owned());
        response.headers.insert(name.to_owned(), header);
    };
    let request_id = "Names the request: the one it came with (at most 64 printable characters), else a new one. \
                      Log lines carry it.";
    add("x-request-id", Type::String, request_id);
    if retry {
        add(
            "Retry-After",
            Type::Integer,
            "Seconds after which trying again makes sense.",
        );
    }
}

fn description(status: u16) -> &'static str {
    match status {
        400 => "The request is malformed; `errorMsg` says where.",
        401 => "Not signed in: `authorization` is missing, or its session has ended.",
        403 => "Not allowed.",
        404 => "The server runs without `--lab`.",
        408 => "The body did not arrive in time.",
        413 => "The body is larger than 2 KiB, or than 64 KiB for the administrator.",
        415 => "The body must be sent as application/json.",
        429 => "Too many requests; nothing was done.",
        503 => {
            "Overloaded, or a server behind this one does not answer. Nothing was done, unless the code \
             is OUTCOME_UNKNOWN."
        }
        _ => "",
    }
}
