'use strict';
// Runs the model of the page /learn for crates/workload/tests/learn.rs, by Node.js. Argument: JSON, [{name, unsafe, condition:
// whether a promise of it has one}] for each strategy. Output: JSON; see `print` at the end.

const fs = require('fs');
const path = require('path');

const web = path.join(__dirname, '../../../../web');
// The files that the page loads for the model, in its order.
const files = [...fs.readFileSync(path.join(web, 'learn.html'), 'utf8').matchAll(/src="\.\/(learn-[a-z]+\.js)"/g)]
  .map((found) => found[1]).filter((name) => !['learn-words.js', 'learn-board.js'].includes(name));
const source = files.map((name) => fs.readFileSync(path.join(web, name), 'utf8')).join('\n');
const { Ladder, Levels, Model, Programs, Records, Replay } = new Function(`${source}; return { Ladder, Levels, Model, Programs, Records, Replay };`)();

const once = (events) => Object.fromEntries(events.map((event) => [event, 1]));
const explore = (setup) => Model(setup).explore();

// Every way in which two or three requests of one, two or three buyers come to so many nodes, with as much stock as
// shows one violation or the other.
function setups(strategy, nodes, index, events) {
  const buyers = ['xx', 'xy', 'xxy', 'xyz', 'xxx'];
  return buyers.flatMap((text) => [1, 2].flatMap((stock) => {
    const requests = [...text].map((buyer, at) => [buyer, nodes === 1 ? 1 : 1 + (at % 2)]);
    return stock < requests.length || new Set(text).size < text.length ? [{ strategy, requests, stock, index, events: once(events) }] : [];
  }));
}

// Whether a violation can be reached in any of them.
function reach(strategy, nodes, index, events) {
  const found = { oversold: false, secondOrder: false, stuck: 0, interleavings: 0 };
  for (const setup of setups(strategy, nodes, index, events)) {
    const { oversold, secondOrder, stuck, interleavings } = explore(setup);
    found.oversold ||= oversold > 0;
    found.secondOrder ||= secondOrder > 0;
    found.stuck += stuck;
    found.interleavings += interleavings;
  }
  return found;
}

const strategies = JSON.parse(process.argv[2]);
const events = (name) => Programs[name].events || [];
const reached = {};
for (const { name, unsafe, condition } of strategies.filter((one) => Programs[one.name])) {
  reached[name] = {
    // As the service runs it: the unique index refuses a second order, except to the strategies that are to break.
    one: reach(name, 1, !unsafe, events(name)),
    two: reach(name, 2, !unsafe, events(name)),
    // The strategy alone: without the index, and nothing happens but the requests' steps.
    alone: reach(name, 2, false, []),
    // Without the index, and with what may happen.
    bare: condition && reach(name, 2, false, events(name)),
  };
}

// A model with one wrong step: the strategy's own guard is gone, or comes too early or too late.
function broken(name, change) {
  const { request } = Programs[name];
  Programs[name].request = change([...request]);
  const found = reach(name, 2, false, []);
  Programs[name].request = request;
  return found;
}
const without = (step) => (program) => program.filter((one) => one.name !== step);
const commitLast = (program) => [...program.filter((one) => one.name !== 'commit'), program.find((one) => one.name === 'commit')];
const wrong = {
  'row-lock without its lock': broken('row-lock', without('lock-row')),
  'setnx-lock released before the commit': broken('setnx-lock', commitLast),
  'reentrant-lock without its lock': broken('reentrant-lock', without('lock-redis')),
};

const print = {
  files,
  programs: Object.keys(Programs),
  ladder: Ladder,
  reached,
  wrong,
  levels: Levels.map((level) => ({ ...level, ...explore(level) })),
  records: Records.map((record) => {
    const setup = Replay.setup(record);
    const moves = Replay.find(record);
    const game = Model(setup);
    const last = moves && moves.reduce((state, move) => game.apply(state, move).state, game.start());
    return { strategy: record.strategy, kind: record.kind, setup, moves, violations: last && game.violations(last) };
  }),
};
process.stdout.write(JSON.stringify(print));
