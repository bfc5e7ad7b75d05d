//! The capacity plan: how a sale goes on given machines, and which machines it needs.
//!
//! - [`figures`]: what an answer costs, as measured.
//! - [`model`]: the stations that an answer passes, how long it takes at each, and the plan that follows.
//! - [`sale`]: how a sale goes through one queue, as a formula.
//! - [`tables`]: the tables of the documents.

pub mod figures;
pub mod model;
pub mod options;
pub mod sale;
pub mod tables;

use figures::Figures;
use options::PlanOptions;
use workload::{
    Error,
    markdown::{count, figure},
    table::render,
};

/// Calculates the plan, and reports it; with `--write` writes the tables of the documents too.
pub fn run(options: &PlanOptions) -> Result<String, Error> {
    let figures = Figures::built_in()?;
    if options.write {
        tables::write(&figures)?;
    }
    let plan = model::plan(&figures, options)?.into_iter();
    let rows: Vec<_> = plan
        .map(|(name, text)| vec![name.to_owned(), text])
        .collect();
    let PlanOptions {
        buyers,
        tries,
        stock,
        strategy,
        over,
        ..
    } = options;
    Ok(format!(
        "{} buyers × {tries} attempts, 63 % within {over} s, {} vouchers by {strategy}\n\
         on {} instances of {} cores, {} Redis, a database of {} cores, {} ms a commit\n\
         needed: for 99 % of the answers within a second, on processors busy for 70 % of the time\n\n\
         {}\n\
         Measured, and calculated from: {}",
        count(*buyers),
        count(*stock),
        options.nodes,
        options.node_cores,
        options.redis_shards,
        options.database_cores,
        figure(figures.commit_ms),
        render(&["", "calculated"], &rows),
        figures.conditions
    ))
}
