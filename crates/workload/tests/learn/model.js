'use strict';
// Compares the model of the page /learn to the table of strategies, for crates/workload/tests/learn.rs, by Node.js. Argument:
// JSON, [{name, unguarded: whether the unique index skips its orders, oversell, second: on one and on two nodes, lost,
// condition: whether one of its promises has a condition}].
// Output: the levels' figures, as a table of Markdown.

const assert = require('assert/strict');
const fs = require('fs');
const path = require('path');

const web = path.join(__dirname, '../../../../web');
// The files that the page loads for the model, in its order.
const files = [...fs.readFileSync(path.join(web, 'learn.html'), 'utf8').matchAll(/src="\.\/(learn-[a-z-]+\.js)"/g)]
  .map((found) => found[1]).filter((name) => !/words|board/.test(name));
const source = files.map((name) => fs.readFileSync(path.join(web, name), 'utf8')).join('\n');
const { Caches, Chapters, Levels, Model, Programs, Records, Replay, Statements } = new Function(`${source}; return { Caches, Chapters, Levels, Model, Programs, Records, Replay, Statements };`)();

const once = (events) => Object.fromEntries(events.map((event) => [event, 1]));
const explore = (setup) => Model(setup).explore();

// Every way in which two or three requests of one, two or three buyers come to so many nodes, with a stock that can show a
// violation: less than the requests, or a buyer with several requests.
function setups(strategy, nodes, index, events) {
  const buyers = ['xx', 'xy', 'xxy', 'xyz', 'xxx'];
  return buyers.flatMap((text) => [1, 2].flatMap((stock) => {
    const requests = [...text].map((buyer, at) => [buyer, nodes === 1 ? 1 : 1 + (at % 2)]);
    return stock < requests.length || new Set(text).size < text.length ? [{ strategy, requests, stock, index, events: once(events) }] : [];
  }));
}

// Whether a violation can be reached in any of them.
function reach(strategy, nodes, index, events) {
  const found = { oversold: false, secondOrder: false, lost: false, stuck: 0 };
  for (const setup of setups(strategy, nodes, index, events)) {
    const { breaking, stuck } = explore(setup);
    found.oversold ||= breaking.oversold > 0;
    found.secondOrder ||= breaking['second-order'] > 0;
    found.lost ||= breaking.lost > 0;
    found.stuck += stuck;
  }
  return found;
}

const strategies = JSON.parse(process.argv[2]);
const names = strategies.map(({ name }) => name);
assert.deepEqual(Object.keys(Programs), names, 'the programs of web/learn-strategies.js, in the order of the table');

// A violation can be reached exactly where the table says that it can happen.
for (const { name, unguarded, oversell, second, lost, condition } of strategies) {
  const events = Programs[name].events || [];
  // As the service runs it: the unique index refuses a second order, except under the strategies that are meant to let one through.
  const [one, two] = [1, 2].map((nodes) => reach(name, nodes, !unguarded, events));
  // The strategy alone: without the index, and nothing happens but the requests' steps.
  const alone = reach(name, 2, false, []);
  assert.equal(one.oversold || two.oversold, oversell, `${name}: oversell`);
  assert.deepEqual([one.secondOrder, two.secondOrder], second, `${name}: second order, on one and on two nodes`);
  assert.deepEqual([one.lost, two.lost, alone.lost], [lost, lost, false], `${name}: lost, with its events and without`);
  assert.deepEqual([one.stuck, two.stuck, alone.stuck], [0, 0, 0], `${name}: a deadlock`);
  // On a condition: the strategy alone keeps the promise, and without the condition and the index it does not.
  if (condition) {
    assert(!alone.secondOrder, `${name}, alone`);
    assert(reach(name, 2, false, events).secondOrder, `${name}, without its condition`);
  }
  if (['row-lock', 'setnx-lock', 'reentrant-lock'].includes(name)) assert(!alone.secondOrder, `${name}, as it is`);
}

// A model with one wrong step is noticed: the strategy's own guard is gone, or is released too early.
function breaks(name, change, what) {
  const { request } = Programs[name];
  Programs[name].request = change([...request]);
  assert(reach(name, 2, false, []).secondOrder, `${name} ${what} breaks nothing`);
  Programs[name].request = request;
}
const without = (step) => (program) => program.filter((one) => one.name !== step);
const commitLast = (program) => [...program.filter((one) => one.name !== 'commit'), program.find((one) => one.name === 'commit')];
breaks('row-lock', without('lock-row'), 'without its lock');
breaks('setnx-lock', commitLast, 'released before the commit');
breaks('reentrant-lock', without('lock-redis'), 'without its lock');

// Every state that can be reached.
function states(setup) {
  const model = Model(setup), known = new Map();
  const visit = (s) => {
    const text = JSON.stringify(s);
    if (known.has(text)) return;
    known.set(text, s);
    for (const move of model.moves(s)) visit(model.apply(s, move, text).state);
  };
  visit(model.start());
  return [...known.values()];
}

// A request whose entry Redis loses is told that there is no order, and none comes later.
const forgetting = states({ strategy: 'stream', requests: [['x', 1], ['y', 2]], stock: 2, index: true, events: { forget: 1 } });
const denied = forgetting.filter((s) => s.actors.some(({ reply }) => reply === 'ORDER_NOT_FOUND'));
assert(denied.length, 'no entry is lost');
assert(!denied.some((s) => s.orders.some(({ by }) => s.actors[by].reply === 'ORDER_NOT_FOUND')), 'an order that was told as missing');

// What the lab recorded is an interleaving of the model.
for (const record of Records) {
  const name = `${record.strategy} ${record.kind}`;
  const moves = Replay.find(record);
  assert(Array.isArray(moves), `${name}: the model cannot do what was recorded`);
  const game = Model(Replay.setup(record));
  const broken = game.violations(moves.reduce((state, move) => game.apply(state, move).state, game.start()));
  const wanted = { oversold: 'oversold', 'two-orders': 'second-order', lost: 'lost' }[record.kind];
  assert(wanted ? broken.includes(wanted) : broken.length === 0, `${name}: ${broken}`);
}
assert(Records.length > 5, `${Records.length} records`);
// One of setnx-unowned shows that a request that gets no order deletes the lock of another.
const rolledBack = Records.filter((record) => Replay.setup(record).fails);
assert.deepEqual(rolledBack.map(({ strategy }) => strategy), ['setnx-unowned']);
for (const { requests } of rolledBack) {
  const [failed, ...others] = requests;
  assert(!failed.orderId && failed.steps.some(({ outcome }) => outcome === 'foreign'), 'recorded without a foreign DEL');
  assert(others.length === 2 && others.every(({ orderId }) => orderId), 'recorded without a second order');
}

// The levels are the ladder, and have these figures.
const levels = Levels.map((level) => ({ ...level, ...explore(level) }));
const each = levels.map(({ strategy }) => strategy).filter((strategy, at, all) => strategy !== all[at - 1]);
assert.deepEqual(each, [...names, ...Object.keys(Caches.programs)], 'a level in web/learn-levels.js for each strategy, in this order');

// Whether a violation can be reached without the moves that `isForbidden({move, before, said})`.
function breaksWithout(setup, isForbidden) {
  const model = Model(setup), known = new Set();
  const visit = (before) => {
    const text = JSON.stringify(before);
    if (known.has(text)) return false;
    known.add(text);
    if (model.violations(before).length) return true;
    return model.moves(before).some((move) => {
      const { state, said } = model.apply(before, move, text);
      return !isForbidden({ move, before, said }) && visit(state);
    });
  };
  return visit(model.start());
}

// 误删: A, which gets no order itself, deletes the lock of another request. Every break of these levels has such a DEL.
const isForeignDelete = ({ said }) => said.key === 'delete-lock.foreign';
for (const id of ['setnx-unowned', 'setnx-unowned-compare']) {
  const level = levels.find((one) => one.id === id);
  assert(level.broken > 0, `${id} does not break`);
  assert(!breaksWithout(level, isForeignDelete), `${id} breaks without a foreign DEL`);
}
// Half a cure: the lease must end between GET and DEL.
const compared = levels.find(({ id }) => id === 'setnx-unowned-compare');
const endsBetween = ({ move, before }) => move === 'lease:A' && before.actors[0].same;
assert(!breaksWithout(compared, endsBetween), 'a lease that ends before GET is enough');

// The cache: what breaks which rule, and why the others hold.
const broken = Object.fromEntries(levels.filter(({ most }) => most).map(({ id, breaking, stuck }) => {
  assert.equal(stuck, 0, `${id}: a deadlock`);
  return [id, Object.keys(breaking).filter((rule) => breaking[rule] > 0)];
}));
assert.deepEqual(broken, {
  'delete-then-update': ['stale'], 'update-then-delete': ['stale'], 'lease': [], 'null-caching': [], 'mutex-1': ['loads'], 'mutex-2': [], 'logical-expiry': [],
});
const cacheLevel = (id) => levels.find((one) => one.id === id);
assert(!breaksWithout(cacheLevel('update-then-delete'), ({ move }) => move === 'expire:A'), 'update-then-delete breaks though the key does not expire');
// With more readers, and a key that expires twice, a lease keeps old values out, too.
const crowded = { ...cacheLevel('lease'), requests: [['x', 1], ['y', 2], ['w', 1, 'write']], events: { expire: 2 } };
assert.equal(explore(crowded).breaking.stale, 0, 'lease, with two readers');
// Without the step that a level is about, it breaks.
for (const [id, program, step, rule] of [
  ['null-caching', 'request', 'set', 'loads'], ['mutex-2', 'checked', 'try-mutex', 'loads'], ['mutex-2', 'checked', 'look-again', 'loads'],
  ['logical-expiry', 'request', 'look-again', 'loads'], ['logical-expiry', 'request', 'set', 'stale'],
]) {
  const programs = Caches.programs[cacheLevel(id).strategy], kept = programs[program];
  programs[program] = kept.filter(({ name }) => name !== step);
  assert(explore(cacheLevel(id)).breaking[rule] > 0, `${id} without ${step} breaks nothing`);
  programs[program] = kept;
}

// Each chapter begins with a level, and they are in the order of the levels.
const begins = Chapters.map(([, first]) => Levels.findIndex(({ id }) => id === first));
assert.deepEqual(begins, [...new Set(begins)].sort((a, b) => a - b));
assert.equal(begins[0], 0);

// The statements under the steps are those of the service's source: SQL word for word, with `#` for a value; of Redis the
// commands, in the script that is named, and the keys.
const root = path.join(web, '..');
const read = (folder, end) => fs.readdirSync(path.join(root, folder), { recursive: true })
  .filter((name) => name.endsWith(end)).map((name) => fs.readFileSync(path.join(root, folder, name), 'utf8')).join('\n');
const rust = read('src', '.rs') + read('crates/cache/src', '.rs');
const lua = (name) => fs.readFileSync(['lua', 'crates/lock/lua', 'crates/cache/lua'].map((folder) => path.join(root, folder, name)).find(fs.existsSync), 'utf8');
// Where the service fills in a condition, both ways.
const conditions = [rust.replace('{user} =', 'user_id =').replace('{status})', ' AND status <> 4)'), rust.replace('{user} =', 'buyer =').replace('{status})', ')')];
const sql = [
  [/ *\\\n\s*/g, ' '], [/CAST\((\S+) AS SIGNED\)/g, '$1'], [/ AS (stock|order_id)\b/g, ''],
  [/, unguarded\)/g, ')'], [/, (\{\}|\{unguarded\})/g, ''],
  [' FORCE INDEX (idx_voucher)', ''], ['/*M!100600 SKIP LOCKED */ /*!80001 SKIP LOCKED */', 'SKIP LOCKED'],
  [/\{\w*\}|\?|\b\d+\b/g, '#'],
].reduce((text, [old, now]) => text.replaceAll(old, now), conditions.join('\n'));
const withoutValues = (text) => text.replace(/…|\b\d+\b/g, '#').replace(/VALUES \(#, #, #\), .*/, 'VALUES #');

function assertIsSent(statement, name) {
  const [, script, core] = /^(?:(\w+\.lua): )?(.*)$/.exec(statement);
  if (/^(START|SELECT|INSERT|UPDATE|COMMIT|ROLLBACK)/.test(statement)) {
    for (const part of statement.split('; ').map(withoutValues)) {
      assert(sql.includes(part) || sql.includes(part.replace(/ FOR UPDATE$/, '')), `${name}: the service does not send “${part}”`);
    }
    return;
  }
  const where = script ? lua(script) : `${rust}\nDEL GETDEL get_del`;
  for (const command of core.match(/\b[A-Z]{2,}\b/g) || []) assert(where.includes(command), `${name}: ${command} is not in ${script || 'src/'}`);
  for (const key of core.match(/\b[a-z-]+(:[a-z-]+)+:/g) || []) {
    const [, ...inner] = key.split(':');
    assert(rust.includes(key) || rust.includes(`seckill:{name}`) && rust.includes(`self.name("${inner[0]}"`), `${name}: the key ${key}`);
  }
}
for (const level of levels) {
  const game = Model(level);
  game.cast.forEach(({ program }, who) => program.forEach((step) => {
    const line = Statements.of(game, game.start(), who, step);
    assert(line && line.sent && line.java, `${level.id}: no statement for the step ${step.name}`);
    // Most of the cache's are the course's.
    if (Programs[level.strategy] || line.sent.includes('.lua: ')) assertIsSent(line.sent, `${level.id}, ${step.name}`);
  }));
}

const count = (number) => number.toLocaleString('en');
const rows = levels.map(({ id, requests, events, interleavings, broken }) => [
  `\`${id}\``, requests.map(([buyer, node]) => `${buyer}→${node}`).join(' '), Object.keys(events).sort().join(', ') || '–',
  count(interleavings), count(broken),
]);
const titles = ['level', 'requests', 'may happen once', 'interleavings', 'of these break it'];
for (const row of [titles, ...rows]) {
  console.log(`| ${row.join(' | ')} |`);
  if (row === titles) console.log(`|${titles.map(() => '---').join('|')}|`);
}
