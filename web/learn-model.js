'use strict';
// The model behind the page where the visitor is the scheduler: a few requests as programs of atomic steps on a database,
// a Redis and the nodes' memories, and an exhaustive search of every order in which their steps can come. No page, no
// clock, no randomness: a state is plain data, and a move makes a new one.
//
// A step is one statement or one command of the service. The database is InnoDB at READ COMMITTED, as far as a purchase
// sees it: a plain read sees what is committed; an UPDATE, or a SELECT … FOR UPDATE, locks the sale's row until the
// transaction ends; an INSERT waits for an uncommitted one with the same unique key. A refusal rolls back in the same
// step, and a reply is part of the last step.

// setup: {strategy, requests: [[buyer, node, program?], …], stock, index, events: {name: how often}, program, fails}; `index`: whether
// the database's unique index refuses a buyer's second order; `program`: which of the strategy's, where it has an option;
// `fails`: the name of a request whose transaction is rolled back instead of committed.
const Model = (setup) => {
  const strategy = Programs[setup.strategy] || Caches.programs[setup.strategy];
  const rules = strategy.rules || ['oversold', 'second-order', 'lost'];
  const nodes = [...new Set(setup.requests.map(([, node]) => node))].sort();
  // Who takes part: the requests A, B, …; then, where the strategy has one, a helper on each node.
  const cast = [
    ...setup.requests.map(([buyer, node, program], at) => {
      const name = 'ABCDEF'[at];
      const fails = name === setup.fails;
      const steps = strategy[program || setup.program || 'request'];
      return { name, role: 'request', buyer, node, fails, program: steps.map((step) => (fails && step === Steps.commit ? Steps.rollBack : step)) };
    }),
    ...(strategy.helper ? nodes.map((node) => ({ name: `N${node}`, role: 'helper', node, program: strategy.helper })) : []),
  ];
  const requests = setup.requests.map((_, at) => at);

  const start = () => ({
    stock: setup.stock, // committed
    orders: [], // committed: {buyer, by}, in the order of the requests
    row: null, // who has locked the sale's row
    open: cast.map(() => null), // transactions: {orders, taken}, not visible to others
    memory: {}, // 'node/buyer' → who holds that lock in the node's memory
    redis: {}, // buyer → who holds that lock in Redis
    actors: cast.map(() => ({ at: 0 })),
    left: { ...setup.events },
    ...(strategy.state ? strategy.state(setup) : {}),
  });

  // What a step works with: the state, and whose step it is.
  function world(s, me) {
    const self = s.actors[me];
    const w = {
      s, me, self, setup, cast, buyer: cast[me].buyer, node: cast[me].node, said: { key: '', values: {} },
      // Tells what the step did: a key of the page's texts.
      say: (key, values = {}) => { w.said = { key, values }; },
      // The committed order of a buyer.
      ordered: (buyer = w.buyer) => s.orders.find((order) => order.buyer === buyer),
      transaction: () => (s.open[me] ||= { orders: [], taken: 0 }),
      write: (order) => w.transaction().orders.push(order),
      lockRow() { w.transaction(); s.row = me; },
      take(count) { w.lockRow(); s.open[me].taken += count; },
      rollBack() {
        s.open[me] = null;
        if (s.row === me) s.row = null;
        if (strategy.ended) strategy.ended(w, false);
      },
      commit() {
        const { orders, taken } = w.transaction();
        s.orders = [...s.orders, ...orders].sort((a, b) => a.by - b.by);
        s.stock -= taken;
        s.open[me] = null;
        if (s.row === me) s.row = null;
        if (strategy.ended) strategy.ended(w, true);
      },
      // Ends the request at once.
      end(result) { self.result = result; self.at = cast[me].program.length; },
      // Rolls back. Of the request's remaining steps only those that clean up are made, and only if it has locked.
      refuse(result) { w.rollBack(); self.result = result; self.refused = true; },
      goTo(name) { self.at = cast[me].program.findIndex((step) => step.name === name); },
    };
    return w;
  }

  // The next step of an actor, and for what and whom it has to wait: {step, waits: null or {on, who}}.
  function next(s, who) {
    const step = s.actors[who].reply === undefined ? cast[who].program[s.actors[who].at] : undefined;
    return { step, waits: step && step.waits ? step.waits(world(s, who)) : null };
  }

  const isOver = (s) => requests.every((who) => s.actors[who].reply !== undefined)
    && s.actors.every((actor, who) => cast[who].role === 'request' || actor.at === 0)
    && !(s.stream && s.stream.length) && !(s.queue && Object.values(s.queue).flat().length);

  // The moves that are possible: the name of an actor, or 'event:actor'.
  function moves(s) {
    if (isOver(s)) return [];
    const steps = cast.filter((_, who) => {
      const { step, waits } = next(s, who);
      return step && !waits;
    }).map((actor) => actor.name);
    const events = Object.keys(s.left).filter((event) => s.left[event] > 0)
      .flatMap((event) => Events[event].targets(s, cast).map((who) => `${event}:${cast[who].name}`));
    return [...steps, ...events];
  }

  // Makes a move: {state, said: {key, values}, step}. `text`: the state as JSON, where that is known.
  function apply(before, move, text = JSON.stringify(before)) {
    const s = JSON.parse(text);
    const [event, target] = move.includes(':') ? move.split(':') : [null, move];
    const who = cast.findIndex((actor) => actor.name === target);
    const w = world(s, who);
    if (event) {
      s.left[event] -= 1;
      Events[event].run(w);
      w.say(`event.${event}.said`, { name: target });
      return { state: s, said: w.said, step: null };
    }
    const { program, role } = cast[who];
    const step = program[w.self.at];
    w.self.at += 1;
    step.run(w);
    if (w.self.refused) while (w.self.at < program.length && !(w.self.locked && program[w.self.at].cleanup)) w.self.at += 1;
    if (w.self.at >= program.length) {
      if (role === 'helper') s.actors[who] = { at: 0 };
      else s.actors[who] = { at: program.length, reply: w.self.result };
    }
    return { state: s, said: w.said, step };
  }

  // The requests that were told yes, and whose order is nowhere: neither committed nor on its way.
  function lost(s) {
    const waiting = s.queue ? Object.values(s.queue).flat() : [];
    const isKnown = (who) => s.orders.some(({ by }) => by === who) || waiting.includes(who) || s.actors.some(({ entry }) => entry === who);
    return requests.filter((who) => s.actors[who].reply === 'ORDERED' && !isKnown(who));
  }

  // The invariants that a state breaks.
  function violations(s) {
    if (strategy.violations) return strategy.violations(s, setup, isOver(s));
    const buyers = s.orders.map((order) => order.buyer);
    return [
      ...(s.orders.length > setup.stock ? ['oversold'] : []),
      ...(new Set(buyers).size < buyers.length ? ['second-order'] : []),
      ...(lost(s).length ? ['lost'] : []),
    ];
  }

  // Every interleaving: a state that several of them reach is explored once, and how many lead through it is counted.
  // {interleavings, breaking: rule → how many break it, broken: at all, stuck: end in a deadlock, states,
  // shortest: the moves to the nearest violation or null}
  function explore() {
    const known = new Map();
    const visit = (s) => {
      const key = JSON.stringify(s);
      const before = known.get(key);
      if (before) return before;
      const broken = violations(s);
      const possible = moves(s);
      const found = { interleavings: 0, broken: 0, stuck: 0, breaking: Object.fromEntries(rules.map((rule) => [rule, 0])), distance: broken.length ? 0 : Infinity, move: null };
      if (!possible.length) {
        found.interleavings = 1;
        found.broken = broken.length ? 1 : 0;
        for (const rule of broken) found.breaking[rule] = 1;
        found.stuck = isOver(s) ? 0 : 1;
      }
      for (const move of possible) {
        const after = visit(apply(s, move, key).state);
        for (const count of ['interleavings', 'broken', 'stuck']) found[count] += after[count];
        for (const rule of rules) found.breaking[rule] += after.breaking[rule];
        if (after.distance + 1 < found.distance) Object.assign(found, { distance: after.distance + 1, move });
      }
      known.set(key, found);
      return found;
    };
    const { interleavings, broken, breaking, stuck, distance } = visit(start());
    return { interleavings, broken, breaking, stuck, states: known.size, shortest: Number.isFinite(distance) ? path(known) : null };
  }

  function path(known) {
    const found = [];
    for (let s = start(); ;) {
      const { move, distance } = known.get(JSON.stringify(s));
      if (distance === 0) return found;
      found.push(move);
      s = apply(s, move).state;
    }
  }

  return { setup, cast, rules, start, next, moves, apply, isOver, violations, lost, explore };
};
