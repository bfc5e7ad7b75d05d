'use strict';
// The steps of the model: the statements and commands that the service sends. A step: {name, trace: the name of that step
// in a traced request, waits(w): null or {on, who}, run(w), cleanup: it also follows a refusal of a request that has locked}.

const Steps = (() => {
  const held = (on, who, me) => (who === undefined || who === null || who === me ? null : { on, who });
  const rowLocked = (w) => held('row', w.s.row, w.me);
  // Who has inserted an order of this buyer and not committed it: the unique index makes a second insert wait.
  function inserting(w, buyer, by) {
    const same = (order) => order.by === by || (w.setup.index && order.buyer === buyer);
    const who = w.s.open.findIndex((open, other) => other !== w.me && open && open.orders.some(same));
    return who < 0 ? null : { on: 'index', who };
  }

  // ── Statements of a request ─────────────────────────────────────────────────────────────────
  const look = (trace) => ({
    name: 'look', trace,
    run(w) {
      const order = w.ordered();
      w.say(order ? 'look.order' : 'look.none', { stock: w.s.stock });
      if (order) w.refuse('ALREADY_ORDERED');
      else if (w.s.stock < 1) w.refuse('SOLD_OUT');
    },
  });
  const insertOrRefuse = (w, present) => {
    if (present) {
      w.say('insert.refused');
      return w.refuse('ALREADY_ORDERED');
    }
    w.write({ buyer: w.buyer, by: w.me });
    w.say('insert');
  };
  const insert = {
    name: 'insert', trace: 'inserted', waits: (w) => inserting(w, w.buyer, w.me),
    run: (w) => insertOrRefuse(w, w.setup.index && w.ordered()),
  };
  const insertUnless = {
    name: 'insert-unless', trace: 'placed', waits: (w) => inserting(w, w.buyer, w.me),
    run: (w) => insertOrRefuse(w, w.ordered()),
  };
  const decrementIf = (name, trace, condition, refusal) => ({
    name, trace, waits: rowLocked,
    run(w) {
      if (condition(w)) {
        w.take(1);
        return w.say('decrement', { stock: w.s.stock - 1 });
      }
      w.say(`${name}.refused`, { stock: w.s.stock, seen: w.self.seen });
      w.refuse(refusal);
    },
  });
  const decrement = decrementIf('decrement', 'decremented', () => true);
  // In one text with the commit.
  const decrementWhere = decrementIf('decrement-where', 'committed', (w) => w.s.stock > 0, 'SOLD_OUT');
  const decrementSame = decrementIf('decrement-same', 'decremented', (w) => w.s.stock === w.self.seen, 'STOCK_CHANGED');
  const readStock = {
    name: 'read-stock', trace: 'looked',
    run(w) {
      w.self.seen = w.s.stock;
      w.say('read-stock', { stock: w.s.stock });
      if (w.s.stock < 1) w.refuse('SOLD_OUT');
    },
  };
  const lockRow = {
    name: 'lock-row', trace: 'row-locked', waits: rowLocked,
    run(w) { w.lockRow(); w.say('lock-row'); },
  };
  const commit = {
    name: 'commit', trace: 'committed',
    run(w) {
      w.commit();
      w.self.result = 'ORDERED';
      w.say('commit');
    },
  };
  // In place of the commit: something fails at the end, and the request goes on with its clean-up.
  const rollBack = {
    name: 'roll-back', trace: 'committed',
    run(w) { w.refuse('UNAVAILABLE'); w.say('roll-back'); },
  };

  // ── Locks ───────────────────────────────────────────────────────────────────────────────────
  const inMemory = (w) => `${w.node}/${w.buyer}`;
  const lockMemory = {
    name: 'lock-memory', trace: 'locked', waits: (w) => held('memory', w.s.memory[inMemory(w)], w.me),
    run(w) { w.s.memory[inMemory(w)] = w.me; w.self.locked = true; w.say('lock-memory'); },
  };
  const unlockMemory = {
    name: 'unlock-memory', trace: 'unlocked', cleanup: true,
    run(w) { delete w.s.memory[inMemory(w)]; w.say('unlock'); },
  };
  // `tries`: how often it tries before it gives up.
  const tryRedis = (tries) => ({
    name: 'lock-redis', trace: 'locked',
    run(w) {
      if (w.s.redis[w.buyer] === undefined) {
        w.s.redis[w.buyer] = w.me;
        w.self.locked = true;
        return w.say('lock-redis');
      }
      w.self.tried = (w.self.tried || 0) + 1;
      if (w.self.tried < tries) {
        w.self.at -= 1;
        return w.say('lock-redis.again');
      }
      w.end('LOCK_BUSY');
      w.say('lock-redis.busy');
    },
  });
  // Releases it for its owner only: a script compares and deletes.
  const unlockRedis = {
    name: 'unlock-redis', trace: 'unlocked', cleanup: true,
    run(w) {
      w.say(w.s.redis[w.buyer] === w.me ? 'unlock' : 'unlock.lost');
      if (w.s.redis[w.buyer] === w.me) delete w.s.redis[w.buyer];
    },
  };
  // Releases it by DEL, whoever holds it.
  const deleteLock = {
    name: 'delete-lock', trace: 'unlocked', cleanup: true,
    run(w) {
      const holder = w.s.redis[w.buyer];
      w.say(holder === undefined ? 'unlock.lost' : holder === w.me ? 'unlock' : 'delete-lock.foreign', { holder: holder === undefined ? '' : w.cast[holder].name });
      delete w.s.redis[w.buyer];
    },
  };

  // The release in two commands: the value is compared, then the lock is deleted.
  const compareLock = {
    name: 'compare-lock', cleanup: true,
    run(w) {
      w.self.same = w.s.redis[w.buyer] === w.me;
      w.say(w.self.same ? 'compare-lock' : 'compare-lock.other');
    },
  };
  const deleteIfSame = {
    name: 'delete-lock', trace: 'unlocked', cleanup: true,
    run(w) {
      if (w.self.same) deleteLock.run(w);
      else w.say('unlock.lost');
    },
  };

  // ── Unit rows: one row for each unit ────────────────────────────────────────────────────────
  const claimUnit = {
    name: 'claim-unit', trace: 'placed',
    // Rows that others have locked are skipped, unless these are all that are left.
    waits({ s: { units } }) {
      return units.length && units.every((unit) => unit.by !== null) ? { on: 'unit', who: units[0].by } : null;
    },
    run(w) {
      const unit = w.s.units.find((one) => one.by === null);
      w.say(unit ? 'claim-unit' : 'claim-unit.sold-out');
      if (!unit) return w.refuse('SOLD_OUT');
      unit.by = w.me;
    },
  };
  const commitUnit = { name: 'commit', trace: 'committed', run(w) { w.commit(); w.say('commit'); w.end('ORDERED'); } };
  // A unit that was claimed is deleted by the commit, and free again after a rollback.
  const unitsEnd = (w, committed) => {
    w.s.units = w.s.units.filter((unit) => !committed || unit.by !== w.me);
    for (const unit of w.s.units) if (unit.by === w.me) unit.by = null;
  };

  // ── Group commit: the helper of a node commits what has queued ──────────────────────────────
  const queue = {
    name: 'queue', trace: 'batch-committed',
    run(w) { w.s.queue[w.node].push(w.me); w.say('queue'); },
  };
  const untilCommitted = { name: 'answer', trace: 'batch-committed', waits: () => ({ on: 'commit', who: null }), run() {} };
  const takeQueue = {
    name: 'take-queue', waits: (w) => (w.s.queue[w.node].length ? null : { on: 'work', who: null }),
    run(w) {
      w.self.batch = w.s.queue[w.node];
      w.s.queue[w.node] = [];
      w.say('take-queue', { requests: w.self.batch.map((by) => w.cast[by].name).join(', ') });
    },
  };
  const insertBatch = {
    name: 'insert-batch',
    waits: (w) => w.self.batch.map((by) => inserting(w, w.cast[by].buyer, by)).find(Boolean) || null,
    run(w) {
      const { orders } = w.transaction();
      for (const by of w.self.batch) {
        const { buyer } = w.cast[by];
        if (!w.setup.index || !(w.ordered(buyer) || orders.some((order) => order.buyer === buyer))) orders.push({ buyer, by });
      }
      w.say('insert-batch', { count: orders.length, of: w.self.batch.length });
    },
  };
  const decrementBatch = {
    name: 'decrement-batch', waits: (w) => (w.s.open[w.me].orders.length ? rowLocked(w) : null),
    run(w) {
      const open = w.transaction();
      open.orders = open.orders.slice(0, w.s.stock);
      if (open.orders.length) w.take(open.orders.length);
      w.say('decrement-batch', { count: open.orders.length });
    },
  };
  const commitBatch = {
    name: 'commit-batch',
    run(w) {
      w.commit();
      for (const by of w.self.batch) {
        const order = w.s.orders.find((one) => one.by === by);
        const reply = order ? 'ORDERED' : w.ordered(w.cast[by].buyer) ? 'ALREADY_ORDERED' : 'SOLD_OUT';
        w.s.actors[by] = { at: w.cast[by].program.length, reply };
      }
      w.say('commit-batch');
    },
  };

  // ── Stream: a script in Redis admits, the helper of a node is a consumer of the group ───────
  // The script without the entry; whether it admits.
  function claim(w) {
    const { s } = w;
    if (s.claims.includes(w.buyer)) {
      w.say('admit.claimed');
      w.end('ALREADY_ORDERED');
      return false;
    }
    if (s.counter < 1) {
      w.say('admit.sold-out');
      w.end('SOLD_OUT');
      return false;
    }
    s.counter -= 1;
    s.claims = [...s.claims, w.buyer].sort();
    w.say('admit', { counter: s.counter });
    return true;
  }
  const admit = {
    name: 'admit', trace: 'admitted',
    run(w) {
      if (!claim(w)) return;
      w.s.stream.push({ by: w.me, to: null });
      w.end('PENDING');
    },
  };
  const readEntry = {
    name: 'read-entry', waits: (w) => (w.s.stream.some((entry) => entry.to === null) ? null : { on: 'work', who: null }),
    run(w) {
      const entry = w.s.stream.find((one) => one.to === null);
      entry.to = w.me;
      w.self.entry = entry.by;
      w.say('read-entry', { request: w.cast[entry.by].name });
    },
  };
  const resolved = (w, outcome) => {
    w.rollBack();
    w.self.outcome = outcome;
    w.goTo('acknowledge');
  };
  const insertEntry = {
    name: 'insert-entry', waits: (w) => inserting(w, w.cast[w.self.entry].buyer, w.self.entry),
    run(w) {
      const by = w.self.entry, { buyer } = w.cast[by];
      // The order's id is the primary key, so an entry that was delivered twice is recognised without the unique index.
      const isWritten = w.s.orders.some((order) => order.by === by);
      if (isWritten || (w.setup.index && w.ordered(buyer))) {
        w.say(isWritten ? 'insert-entry.done' : 'insert.refused');
        return resolved(w, isWritten ? 'ORDERED' : 'ALREADY_ORDERED');
      }
      w.write({ buyer, by });
      w.say('insert');
    },
  };
  const decrementEntry = {
    name: 'decrement-where', waits: rowLocked,
    run(w) {
      if (w.s.stock < 1) {
        w.say('decrement-where.refused');
        return resolved(w, 'SOLD_OUT');
      }
      w.take(1);
      w.say('decrement', { stock: w.s.stock - 1 });
    },
  };
  const commitEntry = {
    name: 'commit',
    run(w) { w.commit(); w.self.outcome = 'ORDERED'; w.say('commit'); },
  };
  const acknowledge = {
    name: 'acknowledge',
    run(w) {
      const by = w.self.entry;
      w.s.stream = w.s.stream.filter((entry) => entry.by !== by);
      if (w.s.actors[by].reply === 'PENDING') w.s.actors[by].reply = w.self.outcome;
      w.say('acknowledge', { request: w.cast[by].name });
    },
  };

  // ── Memory queue: the script admits, and the queue is in the node's memory; the helper of a node is its worker ───────
  const admitOnly = { name: 'admit', trace: 'admitted', run: claim };
  const queueAndReply = {
    name: 'queue-reply', trace: 'queued',
    run(w) { w.s.queue[w.node].push(w.me); w.say('queue-reply'); w.end('ORDERED'); },
  };
  const takeOrder = {
    name: 'take-order', waits: (w) => (w.s.queue[w.node].length ? null : { on: 'work', who: null }),
    run(w) {
      const [first, ...rest] = w.s.queue[w.node];
      w.s.queue[w.node] = rest;
      w.self.entry = first;
      w.say('take-order', { request: w.cast[first].name });
    },
  };

  return {
    admitOnly, queueAndReply, takeOrder, look, insert, insertUnless, decrement, decrementWhere, decrementSame, readStock, lockRow, commit, rollBack, lockMemory,
    unlockMemory, tryRedis, unlockRedis, deleteLock, compareLock, deleteIfSame, queue, untilCommitted, takeQueue, insertBatch, decrementBatch,
    commitBatch, admit, readEntry, insertEntry, decrementEntry, commitEntry, acknowledge, claimUnit, commitUnit,
    unitsEnd,
  };
})();
