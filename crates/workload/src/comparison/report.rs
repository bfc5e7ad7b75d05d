//! The results of a comparison as files: the report for people, and the raw data.

use serde::Serialize;
use serde_json::{Value, json};

use super::run_state::RunState;
use crate::{generator::Record, reply::Reply};

const TEMPLATE: &str = include_str!("../../../../web/report.html");
/// What the template's marks stand for.
const PARTS: [(&str, &str); 9] = [
    ("{{look.css}}", include_str!("../../../../web/look.css")),
    ("{{words.js}}", include_str!("../../../../web/words.js")),
    ("{{plots.js}}", include_str!("../../../../web/plots.js")),
    ("{{story.js}}", include_str!("../../../../web/story.js")),
    ("{{scene.js}}", include_str!("../../../../web/scene.js")),
    (
        "{{sequence.js}}",
        include_str!("../../../../web/sequence.js"),
    ),
    ("{{stepper.js}}", include_str!("../../../../web/stepper.js")),
    ("{{people.js}}", include_str!("../../../../web/people.js")),
    ("{{run.js}}", include_str!("../../../../web/run.js")),
];

/// The HTML report: one file that holds its data and everything that draws them, for any browser, offline. The
/// drawing code is the lab page's own, in `web/`.
pub fn html(document: &impl Serialize) -> serde_json::Result<String> {
    // A `</script>` inside the data would end the script.
    let data = serde_json::to_string(document)?.replace('<', "\\u003c");
    let page = PARTS
        .iter()
        .fold(TEMPLATE.to_owned(), |page, (mark, part)| {
            page.replace(mark, part)
        });
    Ok(page.replace("{{data}}", &data))
}

/// The raw data, as JSON: the document, and as `records` every attempt of each lane, once all are over, with its reply and
/// the node's steps. Enough to judge it again.
pub fn raw(run: &RunState) -> serde_json::Result<String> {
    let mut raw = serde_json::to_value(run.document(0))?;
    let lanes = run.records.get().into_iter().flatten();
    raw["records"] = lanes
        .map(|lane| lane.iter().map(attempt).collect::<Value>())
        .collect();
    Ok(serde_json::to_string_pretty(&raw)? + "\n")
}

fn attempt(record: &Record) -> Value {
    let id = match &record.observed.reply {
        Reply::Ordered(id) | Reply::Pending(id) | Reply::Withdrawn { id, .. } => Some(*id),
        Reply::AlreadyOrdered(id) | Reply::Unknown { id, .. } => *id,
        Reply::Refused(_) | Reply::Malformed => None,
    };
    json!({
        "userId": record.observed.user_id,
        "attempt": record.observed.attempt,
        // Seconds since the first request.
        "sent": record.sent.as_secs_f64(),
        // From when it was due.
        "latencyMs": record.latency().as_secs_f64() * 1e3,
        "reply": record.observed.reply.label(),
        // As text, since it passes 2^53.
        "orderId": id.map(|id| id.to_string()),
        // The node's steps, as its header had them.
        "trace": record.trace,
    })
}
