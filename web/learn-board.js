'use strict';
// The board: the requests as columns of steps, what may happen besides, and what the database, Redis and the nodes'
// memories hold. Draws a game's state; decides nothing.

const Board = (() => {
  const t = Words.t;
  const buyer = (id) => t(`buyer.${id}`);
  // The model numbers its nodes; their names are those of the stack of ./dev up.
  const port = (node) => 8080 + node;

  // The name of an actor on the board.
  function title(game, who) {
    const { role, name, node, buyer: of } = game.cast[who];
    if (role === 'helper') return t(`helper.${game.setup.strategy}`, { node: port(node) });
    return `${name} · ${buyer(of)} · ${t('node', { node: port(node) })}`;
  }
  const short = (game, who) => (game.cast[who].role === 'helper' ? title(game, who) : game.cast[who].name);

  // moves: those made, [{move, who, at, said}]; play(move): null where no move can be made.
  function columns(game, s, moves, play) {
    return game.cast.map((actor, who) => {
      const movesMade = moves.filter((one) => one.who === who);
      const { step: now, waits } = game.next(s, who);
      const repeats = actor.role === 'helper';
      // A helper begins again: the steps of its present round.
      const round = repeats ? movesMade.slice(movesMade.map((one) => one.at).lastIndexOf(0)).filter((one) => one.at < s.actors[who].at) : movesMade;
      const steps = actor.program.map((step, at) => {
        const made = round.findLast((one) => one.at === at);
        const text = t(`move.${step.name}`);
        const sent = statement(made && step !== now ? made.line : Statements.of(game, s, who, step));
        if (made && step !== now) return make('li', { class: 'past' }, make('span', { class: 'turn' }, String(made.number)), make('span', null, text, make('small', null, said(made.said)), sent));
        if (step !== now) return make('li', { class: 'later' }, make('span', { class: 'turn' }), make('span', null, text, sent));
        const why = waits && t(`waits.${waits.on}`, { who: waits.who === null ? '' : short(game, waits.who) });
        return make('li', { class: waits ? 'waits' : 'now' }, make('span', { class: 'turn' }, waits ? '…' : '▶'),
          make('span', null, play && !waits ? make('button', { type: 'button', class: 'step-button', 'data-move': actor.name, 'data-key': `move-${actor.name}`, onclick: () => play(actor.name) }, text) : text,
            why && make('small', null, why), sent));
      });
      const { reply } = s.actors[who], isLost = game.lost(s).includes(who);
      return make('section', { class: `column ${actor.role}`, 'data-actor': actor.name, 'aria-label': title(game, who) },
        make('h3', { class: ['one', 'two', 'three'][actor.node - 1] || 'six' }, title(game, who)), make('ol', null, steps),
        reply && make('p', { class: `badge ${isLost ? 'bad' : reply === 'ORDERED' ? 'good' : ''}`, 'data-reply': reply }, t(isLost ? 'answer.lost' : `answer.${reply}`)));
    });
  }

  const said = ({ key, values }) => (key ? t(`said.${key}`, values) : '');
  const statement = (line) => line && make('code', { class: 'statement' }, line.sent);

  function events(game, s, play) {
    const possible = game.moves(s).filter((move) => move.includes(':'));
    if (!possible.length) return null;
    return make('div', { class: 'row happenings', role: 'group', 'aria-label': t('board.events') },
      make('span', { class: 'soft' }, t('board.events')),
      possible.map((move) => {
        const [event, name] = move.split(':');
        const who = game.cast.findIndex((actor) => actor.name === name);
        return make('button', { type: 'button', class: 'quiet small', 'data-move': move, 'data-key': `move-${event}`, disabled: !play, onclick: () => play(move) }, t(`event.${event}`, { name: short(game, who) }));
      }));
  }

  const entry = (name, ...values) => [make('dt', null, name), values.flat().map((value) => make('dd', value && value.class ? { class: value.class } : null, value && value.text !== undefined ? value.text : value))];
  const box = (name, ...entries) => make('section', { class: 'store' }, make('h3', null, name), make('dl', null, entries.flat(Infinity)));
  const listed = (values) => (values.length ? values : [t('table.none')]);

  // What the cache holds.
  const cached = (cache) => (cache === null ? t('cached.none') : cache.expired ? t('cached.expired', cache) : cache.value);

  function cacheStores(game, s) {
    const held = (who) => (who === null ? t('table.none') : { text: t('table.lock.held', { who: short(game, who) }), class: 'held' });
    const has = (name) => game.cast.some(({ program }) => program.some((step) => step.name === name));
    return make('div', { class: 'stores' },
      box(t('table.database'), entry(t('table.shop'), { text: s.shop, class: 'figure' }), entry(t('table.loads'), String(s.loads))),
      box(t('table.redis'), entry('cache:shop:1', { text: cached(s.cache), class: s.cache && s.cache.value !== s.shop ? 'held' : 'figure' }),
        has('try-mutex') && entry(t('table.mutex'), held(s.mutex)), has('take-lease') && entry(t('table.lease'), held(s.lease))));
  }

  function stores(game, s) {
    if (s.cache !== undefined) return cacheStores(game, s);
    const name = (who) => short(game, who);
    const lock = (of, who) => entry(t('table.lock', { buyer: buyer(of) }), who === undefined ? t('table.lock.free') : { text: t('table.lock.held', { who: name(who) }), class: 'held' });
    const program = game.cast[0].program.map((step) => step.name);
    const buyers = [...new Set(game.setup.requests.map(([of]) => of))];
    const nodes = [...new Set(game.setup.requests.map(([, node]) => node))].sort();
    const counts = buyers.map((of) => s.orders.filter((order) => order.buyer === of).length);
    const committed = s.orders.map((order) => ({ text: t('table.order', { buyer: buyer(order.buyer), who: name(order.by) }), class: counts[buyers.indexOf(order.buyer)] > 1 ? 'wrong' : 'kept' }));
    const open = s.open.flatMap((one) => (one ? one.orders : [])).map((order) => ({ text: t('table.uncommitted', { buyer: buyer(order.buyer), who: name(order.by) }), class: 'open' }));
    const units = s.units ? entry(t('table.units'), listed(s.units.map((unit) => (unit.by === null ? t('table.unit.free') : { text: t('table.lock.held', { who: name(unit.by) }), class: 'open' })))) : [];
    return make('div', { class: 'stores' },
      box(t('table.database'), entry(t('table.stock'), { text: String(s.stock), class: s.stock < 0 ? 'wrong' : 'figure' }), units,
        entry(t('table.row'), s.row === null ? t('table.row.free') : { text: t('table.row.held', { who: name(s.row) }), class: 'held' }),
        entry(t('table.orders'), listed([...committed, ...open]))),
      program.includes('lock-redis') && box(t('table.redis'), buyers.map((of) => lock(of, s.redis[of]))),
      s.claims && box(t('table.redis'), entry(t('table.counter'), { text: String(s.counter), class: 'figure' }), entry(t('table.claims'), listed(s.claims.map(buyer))),
        s.stream ? entry(t('table.stream'), listed(s.stream.map((one) => `${name(one.by)}${one.to === null ? '' : ` → ${name(one.to)}`}`))) : []),
      (program.includes('lock-memory') || s.queue) && nodes.map((node) => box(t('table.memory', { node: port(node) }),
        program.includes('lock-memory') && buyers.map((of) => lock(of, s.memory[`${node}/${of}`])),
        s.queue && entry(t('table.queue'), listed(s.queue[node].map(name))))));
  }

  function invariantsOf(game, s) {
    const broken = game.violations(s);
    if (s.cache !== undefined) {
      const found = { cached: cached(s.cache), shop: s.shop, loads: s.loads, most: game.setup.most };
      return game.rules.map((id) => ({ id, text: t(`invariant.${id}${broken.includes(id) ? '.broken' : ''}`, found), isBroken: broken.includes(id) }));
    }
    const values = { orders: s.orders.length, stock: game.setup.stock };
    const counts = {};
    for (const order of s.orders) counts[order.buyer] = (counts[order.buyer] || 0) + 1;
    const [twice, count] = Object.entries(counts).find(([, orders]) => orders > 1) || [];
    return [
      { id: 'oversold', text: t(broken.includes('oversold') ? 'invariant.stock.broken' : 'invariant.stock', values), isBroken: broken.includes('oversold') },
      { id: 'second-order', text: twice ? t('invariant.buyer.broken', { buyer: buyer(twice), count }) : t('invariant.buyer'), isBroken: broken.includes('second-order') },
      ...('kill' in game.setup.events ? [{ id: 'lost', text: t(broken.includes('lost') ? 'invariant.confirmed.broken' : 'invariant.confirmed', { count: game.lost(s).length }), isBroken: broken.includes('lost') }] : []),
    ];
  }

  const invariants = (game, s) => make('p', { class: 'row invariant-row' }, invariantsOf(game, s).map(({ id, text, isBroken }) =>
    make('span', { class: `badge ${isBroken ? 'bad' : 'good'}`, 'data-invariant': id }, `${isBroken ? '✗' : '✓'} ${text}`)));

  // What a move did, in a sentence.
  const sentence = (game, { move, who, step, said: done }) => `${t(step ? `move.${step}` : `event.${move.split(':')[0]}`, { name: short(game, who) })}: ${said(done)}`;

  function log(game, moves) {
    return make('ol', { class: 'log' }, moves.map((one) => make('li', null,
      make('b', null, one.step ? short(game, one.who) : '!'), ' ', sentence(game, one), statement(one.line))));
  }

  // Each step once: what the service sends, and beside it the Java line. The commit of a request that does not fail comes first.
  function lines(game) {
    const names = new Set();
    const actors = game.cast.map((_, who) => who).sort((a, b) => Boolean(game.cast[a].fails) - Boolean(game.cast[b].fails));
    const rows = actors.flatMap((who) => game.cast[who].program.map((step) => ({ name: step.name, line: Statements.of(game, game.start(), who, step) })))
      .filter(({ name, line }) => line && !names.has(name) && names.add(name));
    // The cache's steps are the course's, and so is the half cure of a lock.
    const isOurs = !Caches.programs[game.setup.strategy] && !game.setup.program;
    const title = t('lines.title');
    return make('section', { class: 'lines' }, make('h3', null, title),
      make('div', { class: 'table-frame', tabindex: '0', role: 'group', 'aria-label': title }, make('table', null,
        make('thead', null, make('tr', null, ['lines.step', isOurs ? 'lines.sent' : 'lines.course', 'lines.java'].map((key) => make('th', { scope: 'col' }, t(key))))),
        make('tbody', null, rows.map(({ name, line }) => make('tr', { 'data-step': name }, make('th', { scope: 'row' }, t(`move.${name}`)),
          make('td', null, make('code', null, line.sent)), make('td', null, make('code', { lang: 'en' }, line.java))))))));
  }

  // The same for those who hear the page, with the reply and what it broke.
  function spoken(game, s, move) {
    const { reply } = s.actors[move.who];
    const name = move.step ? `${short(game, move.who)}: ` : '';
    return [name + sentence(game, move), reply && t('record.reply', { reply: t(`answer.${reply}`) }), brokenRules(game, s)].filter(Boolean).join(t('spoken.join'));
  }

  // The rules that are broken, in words; empty where none is.
  const brokenRules = (game, s) => invariantsOf(game, s).filter(({ isBroken }) => isBroken).map(({ text }) => text).join(', ');

  // What is given, in words.
  function given(setup) {
    const events = Object.keys(setup.events).map((event) => t(`given.event.${event}`));
    if (setup.most) return factList([...cacheFacts(setup), ...events]);
    const buyers = [...new Set(setup.requests.map(([of]) => of))];
    const sent = (of) => setup.requests.map(([whose], at) => (whose === of ? 'ABCDEF'[at] : null)).filter(Boolean).join(' + ');
    const nodes = new Set(setup.requests.map(([, node]) => node)).size;
    const facts = [
      ...buyers.map((of) => t('given.requests', { buyer: buyer(of), requests: sent(of) })),
      t('given.stock', { count: setup.stock }), t(nodes === 1 ? 'given.nodes.1' : 'given.nodes', { count: nodes }),
      t(setup.index ? 'given.index.yes' : 'given.index.no'), ...events,
      ...(setup.fails ? [t('given.fails', { name: setup.fails })] : []),
    ];
    return factList(facts);
  }

  const factList = (facts) => make('ul', { class: 'given' }, facts.map((fact) => make('li', null, fact)));

  function cacheFacts(setup) {
    const { most, requests } = setup;
    const { cache, shop } = Model(setup).start();
    const facts = [['reads', undefined], ['later', 'later'], ['changes', 'write']].map(([key, kind]) => {
      const names = requests.map(([, , program], at) => (program === kind ? 'ABC'[at] : null)).filter(Boolean);
      return names.length && t(`given.${key}`, { requests: names.join(' + ') });
    });
    return [...facts.filter(Boolean), t('given.cached', { cached: cached(cache), shop }), t('given.most', { most })];
  }

  return { columns, events, stores, invariants, log, given, lines, spoken, brokenRules };
})();
