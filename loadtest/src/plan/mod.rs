//! The capacity plan: how a sale goes on given machines, and which machines it needs.
//!
//! - [`figures`]: what an answer costs, as measured.
//! - [`model`]: stations and what an answer takes of them; what a target needs. [`sale`]: the formula of the queue.
//! - [`report`]: the report; [`tables`]: the tables of the documents, among them the comparison with a measured sale;
//!   [`growth`]: those of measured growth.

pub mod figures;
pub mod growth;
pub mod model;
pub mod options;
pub mod report;
pub mod sale;
pub mod tables;

use figures::Figures;
use options::PlanOptions;
use report::Plan;
use workload::Error;

/// Calculates the plan; with `--write` writes the tables of the documents too.
pub fn run(options: &PlanOptions) -> Result<Plan, Error> {
    let figures = Figures::read(options.figures.as_deref())?;
    if options.write {
        tables::write(&figures)?;
    }
    Plan::of(&figures, options)
}
