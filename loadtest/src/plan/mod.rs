//! The capacity plan: how a sale goes on given machines, and which machines it needs.

pub mod figures;
mod model;
pub mod options;
mod sale;
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
    let mut rows = Vec::new();
    for (name, text) in model::plan(&figures, options)? {
        rows.push(vec![name.to_owned(), text]);
    }
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
         needed: for the attempts of the first second, on processors busy for 70 % of the time\n\n\
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
