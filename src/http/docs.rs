//! OpenAPI document: adds what all operations have in common, the reply envelope, the failures that follow from an
//! operation's input, and the headers. A handler's `#[utoipa::path]` says only what is particular: its input, the `data`
//! of its success, and under `x-codes` the failures that do not follow from the input. [`complete`] runs once, not for each
//! request.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use utoipa::ToSchema;

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

/// Codes whose reply has the id of an order, where it is known.
const WITH_ORDER_ID: [&str; 2] = ["ALREADY_ORDERED", "OUTCOME_UNKNOWN"];

/// The order's id. It passes 2^53, which a JavaScript number cannot hold: read `orderId`.
#[derive(ToSchema)]
#[schema(example = json!(ORDER_ID))]
pub struct OrderId(#[allow(dead_code)] i64);

/// An order's id in examples.
const ORDER_ID: i64 = 62_496_928_117_555_201;

/// Status and text of every failure, by code.
type Failures = BTreeMap<&'static str, (u16, String)>;

/// The document, completed.
pub fn complete(mut document: Value) -> Value {
    let failures: Failures = Error::each()
        .iter()
        .map(|failure| (failure.code(), (failure.status(), failure.to_string())))
        .collect();
    let mut responses = Map::new();
    for (_, path) in members(&mut document["paths"]) {
        for (_, operation) in members(path) {
            complete_operation(operation, &failures, &mut responses);
        }
    }
    document["components"]["responses"] = responses.into();
    let scheme = |name: &str, text: &str| json!({ "type": "apiKey", "in": "header", "name": name, "description": text });
    document["components"]["securitySchemes"] = json!({
        SESSION: scheme(
            SESSION,
            "A session's token, as `POST /user/login` returns it, with or without `Bearer ` before it."
        ),
        ADMIN_TOKEN: scheme(
            ADMIN_TOKEN,
            "The server's `ADMIN_TOKEN`. Where none is set, every admin write is refused."
        ),
    });
    document["components"]["headers"] = json!({
        "x-request-id": {
            "description": "Names the request: the one it came with (at most 64 printable characters), else a new one. \
                            Log lines carry it.",
            "schema": { "type": "string", "minLength": 1, "maxLength": 64 }
        },
        "Retry-After": {
            "description": "Seconds after which trying again makes sense.",
            "schema": { "type": "integer", "minimum": 1 }
        }
    });
    document
}

fn complete_operation(
    operation: &mut Value,
    failures: &Failures,
    components: &mut Map<String, Value>,
) {
    let mut by_status: BTreeMap<u16, BTreeSet<String>> = BTreeMap::new();
    for code in codes(operation) {
        // An unknown code is documented as 500; a test fails on any 500.
        let status = failures
            .get(code.as_str())
            .map_or(500, |(status, _)| *status);
        by_status.entry(status).or_default().insert(code);
    }
    let is_service = operation["tags"][0] == SERVICE;
    // Handlers of two features may have one name.
    if let (Some(tag), Some(name)) = (
        operation["tags"][0].as_str(),
        operation["operationId"].as_str(),
    ) {
        operation["operationId"] = format!("{tag}_{name}").into();
    }
    if let Some(kinds) = operation.get_mut("requestBody") {
        members(&mut kinds["content"]).for_each(|(_, kind)| {
            never_null(&mut kind["schema"]);
        });
    }
    let responses = &mut operation["responses"];
    for (status, response) in members(responses) {
        if !is_service {
            let refusals = (status == "200").then(|| by_status.remove(&200)).flatten();
            wrap(
                response,
                status == "202",
                &refusals.unwrap_or_default(),
                failures,
            );
        }
        add_headers(response, false);
    }
    for (status, codes) in by_status {
        let name = codes
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("_OR_");
        responses[status.to_string()] = json!({ "$ref": format!("#/components/responses/{name}") });
        components.entry(name).or_insert_with(|| {
            let mut response = json!({
                "description": description(status),
                "content": { "application/json": {
                    "schema": failure(&codes),
                    "examples": examples(&codes, failures),
                } }
            });
            add_headers(&mut response, matches!(status, 429 | 503));
            response
        });
    }
}

/// The codes of an operation's failures: those it lists, and those that follow from what it takes.
fn codes(operation: &mut Value) -> BTreeSet<String> {
    let listed = operation
        .as_object_mut()
        .and_then(|operation| operation.remove(CODES));
    let listed = listed.unwrap_or_default();
    let listed = listed
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let tag = &operation["tags"][0];
    let body = &operation["requestBody"]["content"];
    let parameters = operation["parameters"].as_array();
    let schemes = operation["security"].as_array();
    let asks_for = |scheme: &str| {
        schemes
            .into_iter()
            .flatten()
            .any(|given| given[scheme].is_array())
    };
    let implied: [(bool, &[&str]); 7] = [
        (tag != SERVICE, &["UNAVAILABLE"]),
        (tag == LAB, &["NOT_FOUND"]),
        (
            parameters.is_some_and(|all| !all.is_empty()),
            &["INVALID_PARAMETER"],
        ),
        (
            body.is_object(),
            &["INVALID_PARAMETER", "PAYLOAD_TOO_LARGE", "REQUEST_TIMEOUT"],
        ),
        (
            body["application/json"].is_object(),
            &["MALFORMED_JSON", "UNSUPPORTED_MEDIA_TYPE"],
        ),
        (
            asks_for(SESSION),
            &["UNAUTHORIZED", "TOO_MANY_REQUESTS", "OVERLOADED"],
        ),
        (asks_for(ADMIN_TOKEN), &["FORBIDDEN"]),
    ];
    let implied = implied.into_iter().filter(|(applies, _)| *applies);
    listed
        .chain(implied.flat_map(|(_, codes)| codes.iter().copied()))
        .map(str::to_owned)
        .collect()
}

/// Puts the envelope around a success, and the business refusals beside it; `pending`: the success is an order to come.
fn wrap(response: &mut Value, pending: bool, refusals: &BTreeSet<String>, failures: &Failures) {
    let content = response["content"]
        .as_object()
        .and_then(|kinds| kinds.values().next())
        .cloned();
    let content = content.unwrap_or_default();
    let mut data = content["schema"].clone();
    let optional = never_null(&mut data);
    let is_order_id = data == order_id_schema();
    let mut required = vec!["success"];
    let mut properties = json!({ "success": { "type": "boolean", "enum": [true] } });
    let mut example = json!({ "success": true });
    if !data.is_null() {
        if !optional {
            required.push("data");
        }
        if let Some(given) = content.get("example").or(data.get("example")) {
            example["data"] = given.clone();
        }
        properties["data"] = data;
    }
    if is_order_id {
        required.push("orderId");
        properties["orderId"] = order_id();
        example["data"] = json!(ORDER_ID);
        example["orderId"] = json!(ORDER_ID.to_string());
    }
    if pending {
        required.push("code");
        properties["code"] = json!({ "type": "string", "enum": ["PENDING"] });
        example["code"] = json!("PENDING");
    }
    let success = json!({
        "type": "object", "title": "success", "required": required, "properties": properties
    });
    let mut all = examples(refusals, failures);
    let schema = if refusals.is_empty() {
        success
    } else {
        json!({ "oneOf": [success, failure(refusals)] })
    };
    all.insert("success".to_owned(), json!({ "value": example }));
    response["content"] = json!({ "application/json": { "schema": schema, "examples": all } });
}

fn order_id_schema() -> Value {
    json!({ "$ref": "#/components/schemas/OrderId" })
}

fn order_id() -> Value {
    json!({ "type": "string", "pattern": "^[0-9]+$", "description": "The order's id, exactly." })
}

/// The envelope schema of these failures.
fn failure(codes: &BTreeSet<String>) -> Value {
    let mut properties = json!({
        "success": { "type": "boolean", "enum": [false] },
        "errorMsg": { "type": "string", "description": "For people; may change." },
        "code": { "type": "string", "enum": codes, "description": "For programs; stable." }
    });
    if codes
        .iter()
        .any(|code| WITH_ORDER_ID.contains(&code.as_str()))
    {
        properties["data"] = order_id_schema();
        properties["orderId"] = order_id();
    }
    json!({
        "type": "object", "title": "failure",
        "required": ["success", "errorMsg", "code"], "properties": properties
    })
}

fn examples(codes: &BTreeSet<String>, failures: &Failures) -> Map<String, Value> {
    let mut examples = Map::new();
    for code in codes {
        if let Some((_, text)) = failures.get(code.as_str()) {
            let value = json!({ "success": false, "errorMsg": text, "code": code });
            examples.insert(code.clone(), json!({ "value": value }));
        }
    }
    examples
}

fn add_headers(response: &mut Value, retry: bool) {
    response["headers"]["x-request-id"] = json!({ "$ref": "#/components/headers/x-request-id" });
    if retry {
        response["headers"]["Retry-After"] = json!({ "$ref": "#/components/headers/Retry-After" });
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

/// Removes `null` from a schema, because absent values are left out. Returns whether the schema allowed `null`.
fn never_null(schema: &mut Value) -> bool {
    if let Some([null, value]) = schema["oneOf"].as_array().map(Vec::as_slice)
        && null["type"] == "null"
    {
        *schema = value.clone();
        return true;
    }
    false
}

/// The members of an object; none where the value is not an object.
fn members(value: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    value
        .as_object_mut()
        .into_iter()
        .flat_map(|map| map.iter_mut())
}
