'use strict';
// Finds the interleaving of the model that a recorded trace shows. A record is a story of a run, as the lab writes it:
// requests with their replies and their steps, each with its begin and duration on one clock.

const Replay = (() => {
  const planned = (request) => request.steps.filter(({ step }) => step !== 'arrived' && step !== 'answered');
  const end = (step) => step.at + (step.took || 0);
  // Its transaction was rolled back although nothing refused it.
  const isRolledBack = ({ reply }) => reply === 'UNAVAILABLE';

  // The setup of the model in which the record can happen. Hundreds of other buyers took part in the run, and the model has
  // none. So its stock is what the requests read if the record shows an oversell, and otherwise enough for all of them.
  function setup(record) {
    const distinct = (values) => [...new Set(values)];
    const users = distinct(record.requests.map((request) => request.userId));
    const nodes = distinct(record.requests.map((request) => request.node)).sort();
    const read = record.requests.flatMap((request) => request.steps).map((step) => step.stock).filter(Number.isInteger);
    return {
      strategy: record.strategy,
      requests: record.requests.map((request) => ['xyz'[users.indexOf(request.userId)], nodes.indexOf(request.node) + 1]),
      stock: record.kind === 'oversold' ? Math.min(...read) : record.requests.length,
      index: !Ladder[record.strategy].unguarded,
      events: Object.fromEntries((Programs[record.strategy].events || []).map((event) => [event, 1])),
      fails: record.requests.some(isRolledBack) ? 'ABC'[record.requests.findIndex(isRolledBack)] : undefined,
    };
  }

  // The moves, or null where no interleaving of the model is what was recorded: the same steps with the same findings, in
  // an order that the times allow, with the same replies.
  function find(record) {
    const game = Model(setup(record));
    const plan = record.requests.map(planned);
    const dead = new Set();
    const trace = (who, s, back = 0) => (game.cast[who].program[s.actors[who].at - back] || {}).trace;

    // The recorded step of a request's next step in the model; -1 where it does not match. `at`: those it is in.
    function recorded(s, at, who) {
      const wanted = trace(who, s);
      const going = at[who] >= 0 && wanted === trace(who, s, 1);
      const which = going ? at[who] : at[who] + 1;
      const name = plan[who][which] && plan[who][which].step;
      const same = name === wanted || (wanted === 'locked' && name === 'lock-busy');
      return same ? which : -1;
    }

    // Whether another request's step was over before this one began, and has not been made yet.
    function tooEarly(s, at, who, step) {
      return plan.some((steps, other) => {
        if (other === who || s.actors[other].reply !== undefined) return false;
        const going = at[other] >= 0 && trace(other, s) === trace(other, s, 1);
        const pending = steps[going ? at[other] : at[other] + 1];
        return pending && end(pending) < step.at;
      });
    }

    function agrees(step, name, said) {
      const isBusy = ['lock-redis.again', 'lock-redis.busy'].includes(said.key);
      if (step.step === 'lock-busy' || isBusy) return step.step === 'lock-busy' && isBusy;
      // Older recordings do not say whose lock it was.
      if (step.step === 'unlocked' && step.outcome) return said.key === { foreign: 'delete-lock.foreign', lost: 'unlock.lost' }[step.outcome];
      if (name === 'look' && step.order !== undefined && step.order !== (said.key === 'look.order')) return false;
      return record.kind !== 'oversold' || step.stock === undefined || said.values.stock === undefined || step.stock === said.values.stock;
    }

    function visit(s, at) {
      if (game.isOver(s)) {
        const lost = game.lost(s);
        if (!plan.every((steps, who) => steps.some(({ step }) => step === 'killed') === lost.includes(who))) return null;
        const replied = record.requests.every(({ reply }, who) => reply === 'PENDING' || reply === s.actors[who].reply);
        return replied ? [] : null;
      }
      const key = JSON.stringify([s, at]);
      if (dead.has(key)) return null;
      const ranked = game.moves(s).map((move) => {
        const who = game.cast.findIndex((actor) => actor.name === move);
        // Steps that leave no trace come as early as they can, events and helpers as late.
        if (who >= 0 && game.next(s, who).step.trace === undefined && game.cast[who].role === 'request') return { move, when: 0 };
        if (who < 0 || game.cast[who].role === 'helper') return { move, when: who < 0 ? Infinity : Number.MAX_VALUE };
        const which = recorded(s, at, who);
        const step = plan[who][which];
        return step && !tooEarly(s, at, who, step) ? { move, who, which, step, when: end(step) } : null;
      }).filter(Boolean).sort((a, b) => a.when - b.when);
      for (const { move, who, which, step } of ranked) {
        const made = game.apply(s, move);
        if (step && !agrees(step, made.step.name, made.said)) continue;
        const rest = visit(made.state, step ? at.map((one, other) => (other === who ? which : one)) : at);
        if (rest) return [move, ...rest];
      }
      dead.add(key);
      return null;
    }

    return visit(game.start(), plan.map(() => -1));
  }

  return { setup, find };
})();
