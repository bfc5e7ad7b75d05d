'use strict';
// The levels, in the order of the ladder of strategies. Each is a setup of the model: who sends how many requests to which
// node (the third word is the program, where it is not the usual one), how much stock there is, whether the database's unique index refuses a buyer's second order, and what may
// happen besides the requests' steps, how often.

// The chapters of the course, each by the level that it begins with.
const Chapters = [
  ['oversell', 'naive'], ['one-order', 'row-lock'], ['foreign-delete', 'setnx-unowned'], ['watchdog', 'setnx-lock-lease'],
  ['async', 'memory-queue'], ['beyond', 'group-commit'], ['cache', 'delete-then-update'],
];

const Levels = (() => {
  const twice = [['x', 1], ['x', 1]];
  const onTwoNodes = [['x', 1], ['x', 2]];
  const thrice = [['x', 1], ['x', 2], ['x', 2]];
  const level = (id, strategy, requests, stock, more = {}) => ({ id, strategy, requests, stock, index: false, events: {}, ...more });
  // About the cache: how often the database may be asked at most.
  const cache = (id, strategy, requests, most, more = {}) => level(id, strategy, requests, 0, { most, ...more });
  const readAndChange = [['x', 1], ['w', 2, 'write']];
  const readers = [['x', 1], ['y', 2], ['z', 2]];
  return [
    level('naive', 'naive', [['x', 1], ['y', 1]], 1),
    level('compare-and-set', 'compare-and-set', twice, 2),
    level('conditional', 'conditional', twice, 2),
    level('row-lock', 'row-lock', [['x', 1], ['x', 2], ['y', 2]], 1),
    level('lock-in-transaction', 'lock-in-transaction', twice, 2),
    level('process-lock-1', 'process-lock', twice, 2),
    level('process-lock-2', 'process-lock', onTwoNodes, 2),
    level('setnx-unowned', 'setnx-unowned', thrice, 3, { events: { lease: 1 }, fails: 'A' }),
    level('setnx-unowned-compare', 'setnx-unowned', thrice, 3, { events: { lease: 1 }, fails: 'A', program: 'compared' }),
    level('setnx-lock', 'setnx-lock', [['x', 1], ['x', 2], ['y', 2]], 2),
    level('setnx-lock-lease', 'setnx-lock', onTwoNodes, 2, { events: { lease: 1 } }),
    level('reentrant-lock', 'reentrant-lock', onTwoNodes, 2, { index: true, events: { pause: 1, forget: 1 } }),
    level('memory-queue', 'memory-queue', [['x', 1], ['x', 2], ['y', 2]], 2, { index: true, events: { kill: 1 } }),
    level('stream', 'stream', [['x', 1], ['x', 2], ['y', 2]], 1, { index: true, events: { takeover: 1, forget: 1 } }),
    level('group-commit', 'group-commit', [['x', 1], ['x', 2], ['y', 1]], 1, { index: true }),
    level('unit-rows', 'unit-rows', [['x', 1], ['x', 2], ['y', 2]], 2, { index: true }),
    cache('delete-then-update', 'delete-then-update', readAndChange, 1),
    cache('update-then-delete', 'update-then-delete', readAndChange, 1, { events: { expire: 1 } }),
    cache('lease', 'lease', readAndChange, 1, { events: { expire: 1 } }),
    cache('null-caching', 'null-caching', [['x', 1], ['y', 2], ['z', 2, 'later']], 2),
    cache('mutex-1', 'mutex', readers, 1),
    cache('mutex-2', 'mutex', readers, 1, { program: 'checked' }),
    cache('logical-expiry', 'logical-expiry', readers, 1),
  ];
})();
