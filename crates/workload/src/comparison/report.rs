//! The HTML report: one file that holds its data and everything that draws them, for any browser, offline. The
//! drawing code is the lab page's own, in `web/`.

use serde::Serialize;

const TEMPLATE: &str = include_str!("../../../../web/report.html");
/// What the template's marks stand for.
const PARTS: [(&str, &str); 8] = [
    ("{{look.css}}", include_str!("../../../../web/look.css")),
    ("{{words.js}}", include_str!("../../../../web/words.js")),
    ("{{plots.js}}", include_str!("../../../../web/plots.js")),
    ("{{story.js}}", include_str!("../../../../web/story.js")),
    ("{{scene.js}}", include_str!("../../../../web/scene.js")),
    ("{{stepper.js}}", include_str!("../../../../web/stepper.js")),
    ("{{people.js}}", include_str!("../../../../web/people.js")),
    ("{{run.js}}", include_str!("../../../../web/run.js")),
];

/// The report of a comparison.
pub fn html(document: &impl Serialize) -> serde_json::Result<String> {
    // As `</script>` inside the data would end them.
    let data = serde_json::to_string(document)?.replace('<', "\\u003c");
    let page =
        PARTS.iter().fold(TEMPLATE.to_owned(), |page, (mark, part)| page.replace(mark, part));
    Ok(page.replace("{{data}}", &data))
}
