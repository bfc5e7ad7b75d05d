//! `loadtest judge` on every strategy, on one instance and on two: it finds what the strategy's row says can happen, and no
//! more; what must show itself there shows itself here.

use futures_util::future::join_all;
use seckill_loadtest::judge::Flaw;
use strategies::{Guarantee, Strategy};

use crate::judge::{flaws, judge, options};
use crate::support::stack::Stack;

/// Strategies that are judged one after the other, on servers of their own. The others are judged meanwhile: most of the time a
/// judgement waits.
const ON_ONE_STACK: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_strategy_is_judged_as_its_row_says() {
    join_all(Strategy::ALL.chunks(ON_ONE_STACK).map(judge_each)).await;
}

async fn judge_each(strategies: &[Strategy]) {
    let stack = Stack::lab(2).await;
    for strategy in strategies {
        let mut options = options(stack.access(), &stack.urls());
        options.strategy = strategy.name().to_owned();
        // Refusals of an earlier strategy may be there.
        options.yes = true;
        let judgement = judge(&options).await.expect("a judgement");
        let report = &judgement.report;
        let found = flaws(&judgement);
        let mut checks = report.checks.iter();
        let is_change_tried = checks.any(|check| check.what.starts_with("缓存与数据库不一致"));
        assert!(is_change_tried, "the reads were not tried: {report}");
        let is_second_order =
            |flaw: Flaw| matches!(flaw, Flaw::SecondOrder | Flaw::SecondOrderAcrossNodes);
        for nodes in [1, 2] {
            let mut on_these_nodes = found.iter().filter(|(_, on)| *on == nodes);
            let has_second_order = on_these_nodes
                .clone()
                .any(|(flaw, _)| is_second_order(*flaw));
            let is_oversold = on_these_nodes.any(|(flaw, _)| *flaw == Flaw::Oversold);
            for (is_found, guarantee) in [
                (is_oversold, strategy.row().oversell),
                (has_second_order, strategy.second_order_on(nodes as u32)),
            ] {
                let may_be = guarantee.can_break();
                let must_be = guarantee == Guarantee::Shown;
                assert!(
                    if is_found { may_be } else { !must_be },
                    "{strategy} on {nodes}: {report}"
                );
            }
        }
        // The lease of the lock without an owner is so short that the lock may or may not be seen.
        let has_weak_lock = *strategy == Strategy::SetnxUnowned;
        let has_another = found.iter().any(|(flaw, _)| match flaw {
            Flaw::LeaseEnded | Flaw::ForeignDelete | Flaw::OnlyTheLock => !has_weak_lock,
            flaw => !is_second_order(*flaw) && *flaw != Flaw::Oversold,
        });
        assert!(!has_another, "{strategy}: {report}");
    }
}
