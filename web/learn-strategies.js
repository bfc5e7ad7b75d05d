'use strict';
// The strategies as programs for the model: the steps of a request, in the order in which src/order/strategy/ makes them;
// the steps of the helper that some have on each node; and the events that concern them.

const Programs = (() => {
  const s = Steps;
  const place = [s.insertUnless, s.decrementWhere];
  const look = s.look('looked'), lockRedis = s.tryRedis(1);
  const queues = (setup) => ({ queue: Object.fromEntries(setup.requests.map(([, node]) => [node, []])) });
  return {
    'naive': { request: [look, s.insert, s.decrement, s.commit] },
    'compare-and-set': { request: [look, s.insert, s.readStock, s.decrementSame, s.commit] },
    'conditional': { request: [look, ...place, s.commit] },
    'row-lock': { request: [s.lockRow, s.look('row-locked'), s.insert, s.decrementWhere, s.commit] },
    'lock-in-transaction': { request: [s.lockMemory, s.insertUnless, s.unlockMemory, s.decrementWhere, s.commit] },
    'process-lock': { request: [look, s.lockMemory, ...place, s.commit, s.unlockMemory] },
    'setnx-unowned': {
      request: [s.tryRedis(2), ...place, s.commit, s.deleteLock], events: ['lease'],
      compared: [s.tryRedis(2), ...place, s.commit, s.compareLock, s.deleteIfSame],
    },
    'setnx-lock': { request: [lockRedis, ...place, s.commit, s.unlockRedis], events: ['lease'] },
    'reentrant-lock': { request: [lockRedis, ...place, s.commit, s.unlockRedis], events: ['pause', 'forget'] },
    'memory-queue': {
      request: [s.admitOnly, s.queueAndReply], helper: [s.takeOrder, s.insertEntry, s.decrementEntry, s.commitEntry], events: ['kill'],
      state: (setup) => ({ counter: setup.stock, claims: [], ...queues(setup) }),
    },
    'stream': {
      request: [s.admit], helper: [s.readEntry, s.insertEntry, s.decrementEntry, s.commitEntry, s.acknowledge], events: ['takeover', 'forget'],
      state: (setup) => ({ counter: setup.stock, claims: [], stream: [] }),
    },
    'group-commit': {
      request: [s.queue, s.untilCommitted], helper: [s.takeQueue, s.insertBatch, s.decrementBatch, s.commitBatch], state: queues,
    },
    'unit-rows': {
      request: [{ ...s.insert, trace: 'placed' }, s.claimUnit, s.commitUnit], ended: s.unitsEnd,
      state: ({ stock }) => ({ stock: 0, units: Array.from({ length: stock }, () => ({ by: null })) }),
    },
  };
})();

// What can happen besides the steps. targets(s, cast): the actors that it can concern now; run(w): what it does to the actor.
const Events = (() => {
  const working = (s) => (who) => s.actors[who].reply === undefined;
  const loseLock = {
    targets: (s) => Object.values(s.redis).filter(working(s)),
    run(w) { delete w.s.redis[w.buyer]; },
  };
  return {
    // The work takes longer than the lease: that of the request that fails, where there is one.
    lease: {
      ...loseLock,
      targets: (s, cast) => loseLock.targets(s).filter((who) => cast[who].fails || !cast.some(({ fails }) => fails)),
    },
    // The holder's node stands still for longer than the lease: nothing renews the lock.
    pause: loseLock,
    // Redis loses its latest writes. The stream's sales are counted anew, from the rows; an entry that no consumer has is gone,
    // and its request ends as a no.
    forget: {
      targets: (s, cast) => {
        const holders = Object.values(s.redis).filter(working(s));
        const claimed = s.claims && s.claims.length ? [cast.findIndex((actor) => actor.role === 'helper')] : [];
        return [...holders, ...claimed].slice(0, 1);
      },
      run(w) {
        w.s.redis = {};
        if (!w.s.claims) return;
        for (const { by, to } of w.s.stream) if (to === null) w.s.actors[by].reply = 'ORDER_NOT_FOUND';
        Object.assign(w.s, { claims: [...new Set(w.s.orders.map((order) => order.buyer))].sort(), counter: w.s.stock, stream: [] });
      },
    },
    // A node is killed: what is in its memory is gone, and so is its open transaction. It starts again.
    kill: {
      targets: (s, cast) => cast.map((_, who) => who).filter((who) => cast[who].role === 'helper' && (s.actors[who].at > 0 || s.queue[cast[who].node].length)),
      run(w) {
        w.rollBack();
        w.s.queue[w.node] = [];
        w.cast.forEach((actor, who) => {
          const isUnderWay = w.s.actors[who].at > 0 && w.s.actors[who].reply === undefined;
          if (actor.node !== w.node || !isUnderWay) return;
          w.s.actors[who] = actor.role === 'helper' ? { at: 0 } : { at: actor.program.length, reply: 'CONNECTION_LOST' };
        });
      },
    },
    // A consumer that is believed dead: another one, which is idle, takes its entry over.
    takeover: {
      targets: (s, cast) => cast.map((_, who) => who).filter((who) => s.actors[who].entry !== undefined
        && s.actors.some((other, at) => at !== who && cast[at].role === 'helper' && other.at === 0)),
      run(w) {
        const to = w.cast.findIndex((actor, who) => actor.role === 'helper' && who !== w.me && w.s.actors[who].at === 0);
        const { entry } = w.self;
        for (const one of w.s.stream) if (one.by === entry) one.to = to;
        w.s.actors[to] = { at: 1, entry };
      },
    },
  };
})();
