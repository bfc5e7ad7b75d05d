'use strict';
// The page where the visitor is the scheduler: the levels, the prediction, the moves, and how a level ends.

const Learn = (() => {
  const t = Words.t;
  const byId = (id) => document.getElementById(id);
  const done = remembered(); // level → {won, right}
  // `guess`: the prediction; `moves`: those made; `end`: how the level ended, or null; `shown`: moves that are shown one at
  // a time instead of made by the visitor, or null; `complete`: whether one schedule was played to its end; `wrong`: the
  // text's key for an address that names no level or an impossible schedule, or null; `shared`: {text, how}, what was last
  // passed on from this point.
  let number = 0, game, state, moves, guess, end, proof, shown, proving, complete, wrong, shared;

  // A page opened as a file may have no storage.
  function remembered() {
    try { return JSON.parse(localStorage.getItem('learn')) || {}; } catch { return {}; }
  }
  function remember() {
    try { localStorage.setItem('learn', JSON.stringify(done)); } catch { /* for this page only */ }
  }

  const level = () => Levels[number];
  const row = (strategy) => Ladder[strategy] || Caches.table[strategy];
  const language = () => (Words.language() === 'zh' ? 1 : 0); // of the pairs in Ladder
  // Its strategy, numbered where that has several levels.
  function title({ id, strategy }) {
    const same = Levels.filter((one) => one.strategy === strategy).map((one) => one.id);
    return same.length > 1 ? `${strategy} (${same.indexOf(id) + 1})` : strategy;
  }

  function open(which) {
    number = which;
    guess = end = proof = wrong = null;
    proving = complete = false;
    deal(level());
  }

  // What the address names: #LEVEL, or #LEVEL:MOVES, a schedule to be shown, such as #naive:ABAAABBB. Of one that is not
  // possible as a whole, the steps before the first impossible one are shown.
  function openAddress() {
    const [, id, schedule] = /^#?([^:]*):?(.*)$/s.exec(address());
    const which = Levels.findIndex((one) => one.id === id);
    open(Math.max(0, which));
    if (which < 0 && (id || schedule)) wrong = 'level.unknown';
    else if (schedule) {
      const wanted = schedule.match(/[A-F]|N\d|[a-z]+:([A-F]|N\d)|[^]/g);
      const possible = playable(wanted);
      if (possible.length < wanted.length) wrong = possible.length ? 'level.cut' : 'level.impossible';
      deal(level(), possible.length ? possible : null);
    }
    draw();
    showChip();
  }

  // Programs that pass a link on may have escaped its colons.
  function address() {
    try { return decodeURIComponent(location.hash); } catch { return location.hash; }
  }

  // The moves up to the first that is not possible.
  function playable(wanted) {
    let s = state;
    const until = wanted.findIndex((move) => {
      if (!game.moves(s).includes(move)) return true;
      s = game.apply(s, move).state;
      return false;
    });
    return until < 0 ? wanted : wanted.slice(0, until);
  }

  function deal(setup, show = null) {
    game = Model(setup);
    state = game.start();
    moves = [];
    shown = show;
    shared = null;
  }

  function play(move) {
    const who = game.cast.findIndex((actor) => actor.name === (move.includes(':') ? move.split(':')[1] : move));
    const { at } = state.actors[who];
    const made = game.apply(state, move);
    moves.push({ move, who, at: made.step ? at : -1, step: made.step && made.step.name, said: made.said, number: moves.length + 1, before: state, line: made.step && Statements.of(game, state, who, made.step) });
    state = made.state;
    shared = null;
    complete = complete || (!shown && game.isOver(state));
    if (!shown && !end && game.violations(state).length) finish('violation');
    announce(Board.spoken(game, state, moves.at(-1)));
    draw();
  }

  function undo() {
    const last = moves.pop();
    if (last) state = last.before;
    shared = null;
    announce(t('board.undone'));
    draw();
  }

  // Says it to those who cannot see the board.
  function announce(text) { byId('announcement').textContent = text; }

  function finish(how) {
    end = how;
    proof = game.explore();
    done[level().id] = { won: how !== 'lost', right: isRight() };
    remember();
  }

  // The prediction is right if it names what can happen; where several can happen, each is right.
  function isRight() {
    return guess === 'holds' ? proof.broken === 0 : proof.breaking[guess] > 0;
  }

  function prove() {
    proving = true;
    draw();
    // After the page was drawn: a search may take a second on a phone.
    setTimeout(() => {
      proving = false;
      deal(level());
      proof = game.explore();
      finish(proof.broken ? 'lost' : 'proof');
      draw();
    }, 30);
  }

  const button = (kind, key, onclick, more = {}) => make('button', { type: 'button', class: kind, 'data-key': key, onclick, ...more }, t(key));

  function prediction() {
    if (guess) return make('p', { class: 'soft guess-was' }, Words.join(t('guess.was', { guess: t(`guess.${guess}`) }), end && t(isRight() ? 'guess.right' : 'guess.wrong')));
    return make('fieldset', { class: 'guess' }, make('legend', null, t('guess.title')),
      make('div', { class: 'row' }, [...game.rules, 'holds'].map((one) => button('quiet', `guess.${one}`, () => { guess = one; draw(); }, { 'data-guess': one }))));
  }

  function board() {
    const open = guess && !end && !proving && !shown;
    const over = open && game.isOver(state);
    return [
      make('h3', { class: 'board-title' }, t(open ? 'board.title' : 'board.name')),
      Board.invariants(game, state),
      make('div', { class: 'columns' }, Board.columns(game, state, moves, open ? play : null)),
      Board.events(game, state, open ? play : null),
      shown && make('div', { class: 'row' }, shown.length
        ? make('button', { type: 'button', class: 'main', 'data-key': 'board.play', onclick: () => play(shown.shift()) }, t('board.play'))
        : make('p', { class: 'said', role: 'status' }, t('board.shown')), !guess && button('quiet', 'board.play-yourself', () => go(number))),
      open && make('div', { class: 'row controls' }, button('quiet', 'board.undo', undo, { disabled: !moves.length }),
        button('quiet', 'board.restart', restart, { disabled: !moves.length }), button('quiet', 'board.prove', prove, { disabled: !complete, 'aria-describedby': complete ? null : 'prove-first' })),
      open && !complete && make('p', { class: 'soft small-print', id: 'prove-first' }, t('board.first')),
      make('p', { class: 'said', role: 'status' }, proving ? t('board.proving') : over ? t('board.over') : ''),
      open && make('p', { class: 'soft small-print keys' }, t('board.help')),
      result(),
      sharing(),
      Board.stores(game, state),
      Board.lines(game),
      make('h3', null, t('board.log')), moves.length ? Board.log(game, moves) : make('p', { class: 'soft' }, t('board.nothing')),
    ];
  }

  // Shows moves, one at each press of a button.
  function show(setup, some) {
    deal(setup, [...some]);
    draw('board.play');
    document.querySelector('.board-title').scrollIntoView({ block: 'start' });
  }

  function restart() { deal(level()); draw(); }

  function result() {
    if (!end) return null;
    const { interleavings, broken, states, shortest } = proof;
    const values = { interleavings: Words.number(interleavings), broken: Words.number(broken), states: Words.number(states), moves: shortest ? shortest.length : 0 };
    const why = row(level().strategy).why[language()];
    const last = number === Levels.length - 1;
    return make('section', { class: `result ${end === 'lost' ? 'bad' : 'good'}`, 'data-end': end },
      make('h3', { id: 'result-title', tabindex: '-1', 'data-key': 'result' }, t(`end.${end}`, { moves: moves.length })),
      make('p', null, t(broken ? 'end.some' : 'end.none', values)), make('p', null, why),
      make('div', { class: 'row' },
        broken > 0 && button('quiet', 'end.show', () => show(level(), shortest)),
        button('quiet', 'level.again', () => { open(number); draw(`guess.${game.rules[0]}`); }),
        !last && button('main', 'level.next', () => go(number + 1))),
      Object.keys(done).length === Levels.length && make('p', null, t('end.all', {
        won: Object.values(done).filter((one) => one.won).length, count: Levels.length, right: Object.values(done).filter((one) => one.right).length,
      })),
      recording());
  }

  // The moves made on the board of this level; a recording is replayed on one of its own.
  const schedule = () => (game.setup === level() ? moves.map(({ move }) => move).join('') : '');
  // What an address names: see openAddress.
  const point = () => [level().id, schedule()].filter(Boolean).join(':');
  const link = () => `${location.href.split('#')[0]}#${point()}`;

  // The result in a line of text: the level, the moves, and what broke; null before there is one.
  function resultLine() {
    const broke = game.setup === level() && Board.brokenRules(game, state);
    if (!broke && !end) return null;
    const values = end && { interleavings: Words.number(proof.interleavings), broken: Words.number(proof.broken) };
    return [title(level()), schedule(), broke || t(proof.broken ? 'share.some' : 'share.none', values)].filter(Boolean).join(' · ');
  }

  function sharing() {
    const line = resultLine();
    return make('div', { class: 'row share' },
      line && make('code', { class: 'result-line' }, line),
      button('quiet small', 'share.link', () => pass(link(), { title: document.title, url: link() })),
      line && button('quiet small', 'share.result', () => pass(line, { text: line, url: link() })),
      shared && make('span', { class: 'soft', 'data-how': shared.how }, t(`share.${shared.how}`)),
      shared && shared.how === 'by-hand' && make('input', { id: 'share-field', readonly: true, 'aria-label': t('share.by-hand'), value: shared.text }));
  }

  // Passes a text on: by the device's own dialog, else by the clipboard, else selected in a field.
  async function pass(text, data) {
    if (navigator.share) {
      try { return await navigator.share(data); } catch (error) { if (error.name === 'AbortError') return; }
    }
    let how = 'copied';
    // A page that came by plain HTTP has no clipboard.
    try { await navigator.clipboard.writeText(text); } catch { how = 'by-hand'; }
    shared = { text, how };
    announce(t(`share.${how}`));
    draw();
    const field = byId('share-field');
    if (field) field.select();
  }

  const nodesOf = (record) => new Set(record.requests.map((request) => request.node)).size;
  // Whether the strategy's own guard was lost in it, and the unique index alone refused the second order.
  const isIndexRefused = (record) => record.requests.some((request) => request.steps.some((step) => step.outcome === 'index-refused'));

  // Whether a request that got no order deleted the lock of another.
  const hasForeignDelete = ({ requests }) => requests.some((request) => !request.orderId && request.steps.some((step) => step.outcome === 'foreign'));

  // The record that fits the level best: of the same strategy, with the same end, on as many nodes. Where a lock can be lost,
  // a record in which that happened: the service always has the index behind such a lock.
  function recordOf(setup, breaks) {
    const nodes = new Set(setup.requests.map(([, node]) => node)).size;
    const loses = !row(setup.strategy).unguarded && ['lease', 'pause', 'forget'].some((event) => event in setup.events);
    const fits = (one) => [(one.kind === 'held') !== breaks || (loses && isIndexRefused(one)), isIndexRefused(one) === loses, nodesOf(one) === nodes];
    const score = (one) => fits(one).reduce((sum, fit) => 2 * sum + fit, 0);
    return Records.filter((one) => one.strategy === setup.strategy && fits(one)[0]).sort((a, b) => score(b) - score(a))[0];
  }

  // What a recorded step was, by its outcome.
  function recorded({ step, outcome, orders, stock, order }, strategy) {
    const key = [strategy === 'memory-queue' && step === 'consumed' && 'trace.written', `trace.${step}.${outcome}`, strategy === 'unit-rows' && `trace.${step}.unit`, step === 'batch-committed' && orders === 1 && 'trace.batch-committed.alone', `trace.${step}`]
      .find((one) => one && Words.has(one));
    return [t(key, { orders }), stock !== undefined && t('trace.stock', { stock }), order === true && t('trace.order')].filter(Boolean).join(' · ');
  }

  // What the lab is to run beside it.
  const against = ({ strategy, kind }) => (kind === 'lost' ? 'stream' : strategy === 'row-lock' ? 'group-commit' : 'row-lock');

  function recording() {
    const record = recordOf(level(), proof.broken > 0);
    if (!record) return null;
    const count = nodesOf(record), setup = Replay.setup(record);
    const steps = record.requests.flatMap((request, which) => [
      ...request.steps.filter(({ step }) => step !== 'arrived' && step !== 'answered').map((step) => ({ which, at: step.at + (step.took || 0), text: recorded(step, record.strategy) })),
      { which, at: request.answered, text: t('record.reply', { reply: t(`answer.${request.reply}`) }) },
    ]).sort((a, b) => a.at - b.at);
    const port = (node) => node.split(':').pop();
    const kind = isIndexRefused(record) ? 'index' : hasForeignDelete(record) ? 'foreign' : record.kind;
    return make('section', { class: 'record' }, make('h3', null, t('record.title')),
      make('p', null, t(`record.${kind}`, { count: record.requests.length, nodes: t('run.nodes', { count }) })),
      make('div', { class: 'table-frame', tabindex: '0', role: 'group', 'aria-label': t('record.title') }, make('table', null,
        make('thead', null, make('tr', null, make('th', { scope: 'col' }, t('record.ms')), record.requests.map((request, at) => make('th', { scope: 'col' }, `${'ABC'[at]} · ${t('node', { node: port(request.node) })}`)))),
        make('tbody', null, steps.map((step) => make('tr', null, make('th', { scope: 'row' }, step.at.toFixed(2)), record.requests.map((_, at) => make('td', null, at === step.which ? step.text : ''))))))),
      make('div', { class: 'row' },
        button('quiet', 'record.play', () => show(setup, Replay.find(record))),
        document.documentElement.dataset.lab === 'true' && make('a', { class: 'button', href: `/lab#lanes=${record.strategy},${against(record)}&instances=${count}${record.kind === 'lost' ? '&killNode=true' : ''}` }, t('record.lab'))));
  }

  function levels() {
    const chip = (one, at) => {
      const how = done[one.id] ? (done[one.id].won ? 'won' : 'lost') : 'open';
      return make('li', null, make('button', { type: 'button', class: `quiet small ${how}`, 'data-level': one.id, 'data-key': `level-${one.id}`, 'aria-current': at === number && 'step', onclick: () => go(at) },
        { won: '✓ ', lost: '✗ ', open: '' }[how], title(one), make('span', { class: 'unseen' }, ` (${t(`level.${how}`)})`)));
    };
    const chips = Levels.map(chip);
    const begins = Chapters.map(([, first]) => Levels.findIndex(({ id }) => id === first));
    byId('levels').replaceChildren(...Chapters.map(([chapter], at) => make('li', { 'data-chapter': chapter },
      make('span', { id: `chapter-${chapter}` }, t(`chapter.${chapter}`)),
      make('ol', { 'aria-labelledby': `chapter-${chapter}` }, chips.slice(begins[at], begins[at + 1])))));
  }

  // Another level, in view, and a new entry of the history.
  function go(which) {
    history.pushState(null, '', `#${Levels[which].id}`);
    open(which);
    draw();
    byId('level').focus();
    showChip();
  }

  const showChip = () => document.querySelector('[data-level][aria-current]').scrollIntoView({ block: 'nearest', inline: 'center' });

  // Draws everything. The keyboard's focus stays on the element of the same `data-key`; where a move ended the level, it
  // goes to the result; where a step led to waiting, to the next one that is possible.
  function draw(wanted) {
    const focused = document.activeElement && document.activeElement.dataset.key;
    const wasOver = document.querySelector('.result') !== null;
    const { strategy, id } = level();
    levels();
    byId('level').replaceChildren(...[
      wrong && make('p', { class: 'said bad', role: 'status' }, t(wrong)),
      make('p', { class: 'soft' }, t('level.number', { number: number + 1, count: Levels.length })),
      make('h2', { id: 'level-title' }, make('code', null, strategy)),
      make('p', { class: 'idea' }, Words.join(row(strategy).idea[language()], Words.has(`note.${id}`) && t(`note.${id}`))),
      Board.given(level()),
      shown && !guess ? null : prediction(),
      ...board(),
    ].flat(3).filter(Boolean));
    document.title = `${point()} · ${t('learn.title')}`;
    const keyed = (key) => key && document.querySelector(`[data-key="${CSS.escape(key)}"]:not(:disabled)`);
    // The board stays in view.
    if (end && !wasOver) {
      byId('result-title').focus({ preventScroll: true });
      byId('result-title').scrollIntoView({ block: 'nearest' });
    }
    else if (wanted || focused) (keyed(wanted || focused) || document.querySelector('[data-move]:not(:disabled)') || byId('level')).focus({ preventScroll: true });
  }

  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !guess || proving || end) return;
    const key = event.key.toLowerCase();
    const name = { 1: 'N1', 2: 'N2' }[key] || (/^[a-f]$/.test(key) && game.cast.some((actor) => actor.name === key.toUpperCase()) ? key.toUpperCase() : null);
    const possible = game.moves(state);
    const move = possible.find((one) => one === name) || (key === 'e' && possible.find((one) => one.includes(':')));
    if (move) play(move);
    else if (key === 'u') undo();
    else if (key === 'r') restart();
    else return;
    event.preventDefault();
  });

  Words.onChange(() => draw());
  document.addEventListener('DOMContentLoaded', () => {
    openAddress();
  });
  // Back, forward, and an address that was pasted.
  window.addEventListener('popstate', openAddress);
})();
