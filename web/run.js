'use strict';
// The view of a run: its lanes while it is under way, the verdict, and the explanation of a few recorded requests.
// Used by the lab's page, and by the report of a finished run.

Words.add({
  'state.preparing': ['preparing', '准备中'], 'state.running': ['running', '进行中'], 'state.judging': ['checking', '核对中'],
  'state.done': ['finished', '已完成'], 'state.stopped': ['stopped', '已停止'], 'state.failed': ['failed', '失败'],
  'run.setting': ['{buyers|buyer|buyers} × {tries|try|tries} · {stock|voucher|vouchers} · {instances} · {spread} · seed {seed}', '{buyers} 位买家 × 每人 {tries} 次 · {stock} 份 · {instances} · {spread} · 种子 {seed}'],
  'run.inTurn': ['one after the other', '先后进行'],
  'run.twoVouchers': ['another voucher first, slow transactions', '先抢另一张券，有慢事务'],
  'run.killNode': ['a node is killed once all are answered, slow transaction', '全部答复后终止一个节点，其间有慢事务'],
  'run.spread': ['over {seconds} s', '{seconds} 秒内到达'], 'run.burst': ['all at once', '同时到达'],
  'run.safe': ['should hold', '保证正确'], 'run.unsafe': ['broken on purpose', '反面教材'],
  'lane.orders': ['orders', '订单'], 'lane.stock': ['stock left', '剩余库存'], 'lane.issued': ['{count} on sale', '共售 {count} 份'],
  'lane.duplicates': ['duplicates', '重复订单'],
  'lane.plot': ['{strategy}: orders and stock left over time', '{strategy}：订单与剩余库存随时间的变化'],
  'lane.first.duplicates': ['first duplicate', '首个重复订单'], 'lane.first.oversold': ['first oversold', '首次超卖'],
  'lane.seconds': ['seconds', '秒'],
  'lane.requestsPerS': ['requests/s', '请求/秒'], 'lane.ordersPerS': ['orders/s', '订单/秒'],
  'lane.p50': ['p50 ms', 'p50 毫秒'], 'lane.p99': ['p99 ms', 'p99 毫秒'],
  'lane.replies': ['Replies by kind', '各类响应'],
  'lane.tryAgain': ['“Try again”: the purchase took too long, for example waiting for the sale’s row, or too many were under way. It ordered nothing, and these buyers do not come back.', '“请重试”：抢购等待过久（例如在排队等这场秒杀的行），或同时抢购的人太多。没有下单，这里的买家也不再重试。'],
  'lane.foreign': ['{count|time|times} a request deleted the lock of another.', '误删别人的锁 {count} 次。'],
  'lane.index': ['The locks let {count|second order|second orders} through; the database’s unique index did not.', '锁放过了 {count} 个重复订单，由数据库的唯一索引拒绝。'],
  'kind.ORDERED': ['ordered', '抢购成功'], 'kind.PENDING': ['pending', '处理中'], 'kind.WITHDRAWN': ['refused later', '随后被拒'], 'kind.SOLD_OUT': ['sold out', '已售罄'],
  'kind.ALREADY_ORDERED': ['has one already', '已有一份'], 'kind.LOCK_BUSY': ['lock busy', '锁被占用'], 'kind.STOCK_CHANGED': ['stock changed', '库存已变动'],
  'kind.UNAVAILABLE': ['try again: unavailable', '请重试：暂不可用'], 'kind.OVERLOADED': ['try again: overloaded', '请重试：人数过多'], 'kind.OUTCOME_UNKNOWN': ['outcome unknown', '结果未知'],
  'kind.UNAUTHORIZED': ['session lost', '登录已失效'], 'kind.TIME_OUT': ['no reply in time', '响应超时'], 'kind.CONNECTION_LOST': ['connection lost', '连接中断'], 'kind.NOT_SENT': ['could not connect', '无法连接'],
  'lane.batches': ['Orders that shared a commit', '共享一次提交的订单数'], 'lane.commits': ['commits', '提交次数'],
  'invariant.title': ['Invariants of {strategy}', '{strategy} 的不变量'],
  'invariant.oversold': ['oversold', '超卖'], 'invariant.duplicates': ['duplicates', '重复下单'],
  'invariant.lost': ['lost', '丢失'], 'invariant.phantom': ['phantom', '误报失败'],
  'invariant.oversold.means': ['more orders than vouchers', '订单比优惠券多'], 'invariant.duplicates.means': ['orders beyond a buyer’s first', '同一买家第一单之外的订单'],
  'invariant.lost.means': ['the reply confirmed an order that does not exist', '响应说下单成功，却没有这个订单'], 'invariant.phantom.means': ['an order exists, but the reply said it failed', '有订单，响应却说失败'],
  'invariant.later': ['checked at the end', '结束时核对'], 'invariant.holds': ['holds', '成立'], 'invariant.broken': ['broken', '被打破'],
  'verdict.holds': ['Holds. {orders|order|orders} for {stock|voucher|vouchers}, no buyer has two, and every reply agrees with the database.', '全部成立。{stock} 份优惠券共 {orders} 个订单，没有人下两单，每个响应都与数据库一致。'],
  'verdict.broken': ['Broken, as expected: {what}. The strategy cannot prevent it on {instances}.', '如预期出错：{what}。在 {instances} 上，该策略无法防止。'],
  'verdict.did-not-show': ['Nothing broke this time, but it can: {what} did not occur. More simultaneous tries make it more likely.', '这次没有出错，但可能出错：未出现{what}。增加同时尝试的次数会更容易出现。'],
  'verdict.not-seen': ['Nothing broke this time, though nothing prevents it: {what} did not occur.', '这次没有出错，但没有机制能防止：未出现{what}。'],
  'verdict.violation': ['A guarantee was broken: {what}. That must not happen; please report it with the raw data of this run.', '保证被打破：{what}。这不应发生，请附上本次运行的原始数据反馈。'],
  'verdict.duplicates': ['{count|duplicate order|duplicate orders}', '{count} 个重复订单'],
  'verdict.oversold': ['{count|order|orders} more than there were vouchers', '超卖 {count} 份'],
  'verdict.lost': ['{count|confirmed order|confirmed orders} lost', '{count} 个已确认的订单丢失'],
  'compare.title': ['Latency by percentile', '延迟分位数'],
  'compare.note': ['At 99, one request in a hundred takes that long or longer.', '99 表示百分之一的请求要等这么久或更久。'],
  'compare.percentile': ['percentile', '分位'],
  'event.title': ['Faults injected', '注入的故障'],
  'event.pause-redis': ['Redis was paused for {seconds} s', 'Redis 暂停 {seconds} 秒'], 'event.empty-redis': ['Redis was emptied', 'Redis 被清空'],
  'event.kill-instance': ['node {node} was killed', '节点 {node} 被强制终止'],
  'event.kill-instance.back': ['node {node} was killed, and back after {seconds} s', '节点 {node} 被强制终止，{seconds} 秒后恢复'],
  'event.cut-lease': ['locks expired early for {seconds} s ({cut|lock|locks})', '{seconds} 秒内让锁提前过期（{cut} 把）'],
  'event.short.pause-redis': ['Redis paused', 'Redis 暂停'], 'event.short.empty-redis': ['Redis emptied', 'Redis 清空'],
  'event.short.kill-instance': ['node killed', '节点被终止'], 'event.short.cut-lease': ['locks expire early', '锁提前过期'],
  'event.at': ['at {at} s', '第 {at} 秒'],
});

// Draws run documents into `root`, with the element `after` below the lanes. draw(document) may be called again whenever
// the run has changed.
function RunView(root, after = null) {
  const t = Words.t;
  let run = null;

  const number = Words.number;
  const last = (list) => (list.length ? list[list.length - 1] : null);
  const over = () => ['done', 'stopped', 'failed'].includes(run.state);
  const instances = (count) => t('run.nodes', { count });
  const widthOf = (element) => Math.max(280, Math.floor(element.clientWidth || 560));

  const settingText = ({ setting }) => t('run.setting', {
    ...setting, instances: instances(setting.instances),
    spread: [setting.spreadSeconds ? t('run.spread', { seconds: setting.spreadSeconds }) : t('run.burst'), setting.inTurn && t('run.inTurn'), setting.twoVouchers && t('run.twoVouchers'), setting.killNode && t('run.killNode')].filter(Boolean).join(' · '),
  });

  // ── One lane ───────────────────────────────────────────────────────────────────────────────────

  // The four invariants shown: their violations so far, null where only the end of the run shows them.
  function invariants(lane) {
    const sample = last(lane.samples);
    const verdict = lane.result && lane.result.report.verdict;
    return ['oversold', 'duplicates', 'lost', 'phantom'].map((invariant) => {
      const live = invariant === 'oversold' || invariant === 'duplicates';
      return [invariant, verdict ? verdict[invariant] : live && sample ? sample[invariant] : null];
    });
  }

  const invariantList = (lane) => make('ul', { class: 'invariants', 'aria-label': t('invariant.title', { strategy: lane.strategy }) }, invariants(lane).map(([invariant, count]) => {
    const kind = count === null ? 'later' : count > 0 ? 'broken' : 'holds';
    return make('li', { class: `invariant ${kind}`, 'data-invariant': invariant, title: t(`invariant.${invariant}.means`) },
      make('span', { class: 'sign', 'aria-hidden': 'true' }, { later: '…', broken: '✕', holds: '✓' }[kind]),
      make('span', { class: 'invariant-count' }, count === null ? '–' : number(count)),
      make('span', { class: 'invariant-name' }, t(`invariant.${invariant}`)), make('span', { class: 'unseen' }, t(`invariant.${kind}`)));
  }));

  function plot(lane, width) {
    const samples = [{ at: 0, rows: 0, stock: run.setting.stock, duplicates: 0, oversold: 0 }, ...lane.samples];
    const points = (field) => samples.map((sample) => [sample.at, sample[field]]);
    const broken = samples.find((sample) => sample.duplicates > 0 || sample.oversold > 0);
    const marks = run.events.map((event, at) => ({ at: event.at, text: t(`event.short.${event.what}`), row: at % 2 }));
    const timed = [...run.lanes.flatMap((one) => one.samples), ...run.events].map((one) => one.at);
    const now = Math.max(0, ...timed);
    // An instance that is not back yet is away until now.
    const spans = run.events.filter((event) => event.seconds || event.what === 'kill-instance')
      .map((event) => ({ from: event.at, to: event.seconds ? event.at + event.seconds : now }));
    if (broken) marks.push({ at: broken.at, text: t(broken.oversold > 0 ? 'lane.first.oversold' : 'lane.first.duplicates'), kind: 'bad', row: 2 });
    return Plots.lines({
      width, height: width < 420 ? 150 : 250, name: t('lane.plot', { strategy: lane.strategy }), unit: t('lane.seconds'), marks, spans,
      right: Math.max(run.setting.spreadSeconds || 1, now),
      top: Math.max(...run.lanes.flatMap((one) => one.samples.map((sample) => sample.rows)), 0),
      level: { value: run.setting.stock, text: t('lane.issued', { count: number(run.setting.stock) }) },
      series: [
        { name: t('lane.stock'), kind: 'six', area: true, points: points('stock').map(([x, y]) => [x, Math.max(0, y)]) },
        { name: t('lane.orders'), kind: 'one', points: points('rows'), from: broken ? broken.at : null },
        ...(samples.some((sample) => sample.duplicates > 0) ? [{ name: t('lane.duplicates'), kind: 'bad-line', area: true, points: points('duplicates') }] : []),
      ],
    });
  }

  function tiles(lane) {
    const sample = last(lane.samples);
    const report = lane.result && lane.result.report;
    const points = (field) => lane.samples.map((one) => [one.at, one[field] || 0]);
    const tile = (field, kind, end) => make('div', { class: 'tile' },
      make('dt', null, t(`lane.${field.replace(/Ms$/, '')}`)),
      make('dd', null, number(report ? end : sample ? sample[field] : null),
        Plots.spark({ name: t(`lane.${field.replace(/Ms$/, '')}`), points: points(field), kind })));
    return make('dl', { class: 'tiles' },
      tile('requestsPerS', 'six', report && report.requests_per_s), tile('ordersPerS', 'one', report && report.orders_per_s),
      tile('p50Ms', 'three', report && report.latency.p50_ms), tile('p99Ms', 'two', report && report.latency.p99_ms));
  }

  const ordersOf = (bound) => {
    const from = Math.floor(bound / 2) + 1;
    return from >= bound ? String(bound) : `${from}–${bound}`;
  };

  function verdict(lane) {
    if (!lane.result) return null;
    const { kind, detail } = lane.result.conformance;
    const found = lane.result.report.verdict;
    const broken = ['oversold', 'duplicates', 'lost'].filter((invariant) => found[invariant] > 0)
      .map((invariant) => t(`verdict.${invariant}`, { count: number(found[invariant]) }));
    const names = String(detail || '').split(', ').map((invariant) => (Words.has(`invariant.${invariant}`) ? t(`invariant.${invariant}`) : invariant));
    const what = kind === 'broken' ? broken : names;
    const tone = { holds: 'good', broken: 'bad', violation: 'bad' }[kind] || 'warn';
    return make('p', { class: `verdict ${tone}`, 'data-conformance': kind }, t(`verdict.${kind}`, {
      orders: number(found.orders), stock: number(found.issued), instances: instances(run.setting.instances),
      what: what.join(Words.language() === 'zh' ? '，' : ', '),
    }));
  }

  // How many attempts got which reply, the most frequent first, and what "try again" means where some got it.
  const replies = (lane) => {
    const all = Object.entries((lane.result && lane.result.report.replies) || lane.replies || {}).sort((a, b) => b[1] - a[1]);
    if (!all.length) return [];
    const list = make('ul', { class: 'replies', 'aria-label': t('lane.replies') }, all.map(([kind, count]) =>
      make('li', null, make('strong', null, number(count)), ' ', Words.has(`kind.${kind}`) ? t(`kind.${kind}`) : kind)));
    const isTryAgain = ([kind]) => kind === 'UNAVAILABLE' || kind === 'OVERLOADED';
    return [list, all.some(isTryAgain) && make('p', { class: 'soft small-print try-again' }, t('lane.tryAgain'))];
  };

  const indexRefused = (lane) => (lane.result && lane.result.indexRefused
    ? make('p', { class: 'verdict warn index-refused' }, t('lane.index', { count: number(lane.result.indexRefused) })) : null);

  const foreignDeletes = (lane) => (lane.result && lane.result.foreignDeletes
    ? make('p', { class: 'verdict warn foreign-deletes' }, t('lane.foreign', { count: number(lane.result.foreignDeletes) })) : null);

  function showLane(lane, element) {
    Words.add({ [`${lane.strategy}.idea`]: lane.idea });
    const figure = make('figure', { class: 'lane-plot' });
    // Both parts stay; their content is drawn anew.
    if (!element.children.length) element.append(make('div', { class: 'lane-live' }), make('div', { class: 'lane-rest' }));
    const [live, rest] = element.children;
    live.replaceChildren(
      make('header', null, make('h3', { class: 'mono' }, lane.strategy),
        make('span', { class: lane.safe ? 'badge good' : 'badge warn' }, t(lane.safe ? 'run.safe' : 'run.unsafe'))),
      make('p', { class: 'soft idea' }, t(`${lane.strategy}.idea`)), invariantList(lane), figure);
    // On a phone this is below the live parts of both lanes, so that these stay where they are.
    rest.replaceChildren(...[make('p', { class: 'mono lane-name', 'aria-hidden': 'true' }, lane.strategy),
      tiles(lane), ...replies(lane), indexRefused(lane), foreignDeletes(lane), verdict(lane)].filter(Boolean));
    // Drawn last: their width is known only after the layout.
    const width = widthOf(figure);
    const people = People.figure(lane, run.setting.buyers, width), shared = batches(lane, width);
    if (people) figure.before(people);
    if (shared) rest.append(shared);
    figure.append(plot(lane, width));
  }

  function batches(lane, width) {
    const sizes = ((lane.result && lane.result.batches) || []).filter(([, count]) => count > 0);
    return sizes.length ? make('section', null, make('h4', null, t('lane.batches')),
      Plots.bars({ width, name: t('lane.batches'), unit: t('lane.commits'), bars: sizes.map(([bound, count]) => [ordersOf(bound), count]), kind: 'four' })) : null;
  }

  // ── The run ───────────────────────────────────────────────────────────────────────────────────

  const facts = make('p', { class: 'soft run-facts' });
  const lanes = make('div', { class: 'lanes' });
  const terms = make('p', { class: 'soft small-print terms' });
  const events = make('section', { class: 'events', 'aria-live': 'polite' });
  const comparison = make('section', { class: 'card compare', hidden: true });
  const stories = make('div', { class: 'stories' });
  let players = [];
  // Announced by screen readers when there is a verdict; the lanes themselves change too often.
  const announcement = make('p', { class: 'unseen', role: 'status' });
  root.append(facts, lanes, terms, announcement, ...(after ? [after] : []), events, comparison, stories);

  function show() {
    if (!run) return;
    facts.textContent = settingText(run);
    terms.textContent = ['oversold', 'duplicates', 'lost', 'phantom'].map((invariant) => `${t(`invariant.${invariant}`)}: ${t(`invariant.${invariant}.means`)}`).join(Words.language() === 'zh' ? '；' : '; ');
    while (lanes.children.length < run.lanes.length) lanes.append(make('article', { class: 'card lane' }));
    while (lanes.children.length > run.lanes.length) lanes.lastChild.remove();
    run.lanes.forEach((lane, at) => {
      lanes.children[at].dataset.strategy = lane.strategy;
      showLane(lane, lanes.children[at]);
    });
    const verdicts = [...lanes.querySelectorAll('.verdict')].map((one) => `${one.closest('.lane').dataset.strategy}: ${one.textContent}`).join(' ');
    if (announcement.textContent !== verdicts) announcement.textContent = verdicts;
    showEvents();
    showCompare();
    showStories();
  }

  function showEvents() {
    const text = ({ at, what, seconds, node, cut }) => {
      const key = what === 'kill-instance' && seconds ? 'event.kill-instance.back' : `event.${what}`;
      return `${t('event.at', { at: at.toFixed(1) })}: ${t(key, { seconds: number(seconds), node: String(node).split(':').pop(), cut })}`;
    };
    const lines = run.events.map(text);
    if (events.dataset.shows === lines.join('\n')) return; // otherwise screen readers would announce it again and again
    events.dataset.shows = lines.join('\n');
    events.replaceChildren(...(lines.length ? [make('h3', null, t('event.title')), make('ol', { class: 'event-list' }, lines.map((line) => make('li', null, line)))] : []));
  }

  function showCompare() {
    const curves = run.lanes.filter((lane) => lane.result && lane.result.curve && lane.result.curve.length);
    comparison.hidden = !curves.length;
    if (!curves.length) return;
    const figure = make('figure');
    comparison.replaceChildren(make('h3', null, t('compare.title')), make('p', { class: 'soft' }, t('compare.note')), figure);
    figure.append(Plots.percentiles({
      width: widthOf(figure), name: t('compare.title'), unit: t('compare.percentile'),
      series: curves.map((lane) => ({ name: lane.strategy, kind: ['one', 'two', 'three'][run.lanes.indexOf(lane) % 3], points: lane.result.curve.filter(([share]) => share < 1) })),
    }));
  }

  // Whether a story's fault can matter to it: all but a node's end are faults of Redis, where the requests must have had a lock,
  // or been admitted.
  const isConcerned = ({ fault, requests }) => fault === 'kill-instance'
    || (fault && requests.some(({ steps }) => steps.some(({ step, place }) => place === 'redis' || (step === 'admitted' && fault !== 'cut-lease'))));

  function showStories() {
    const all = run.lanes.flatMap((lane) => (lane.stories || []).map((story) => ({ lane, story })));
    const key = JSON.stringify([run.id, Words.language(), all.length, widthOf(stories)]);
    if (stories.dataset.shows === key) return;
    stories.dataset.shows = key;
    stories.replaceChildren();
    players = [];
    all.forEach(({ lane, story }, at) => {
      // With one instance the requests go to it itself.
      const parts = { ...Story.explain(lane.strategy, story, run.setting.tries), byNginx: run.setting.instances > 1 };
      const stepper = Stepper.create(parts, story.kind === 'held' ? 'good' : 'bad', (figure) => Plots.timeline({ width: widthOf(figure), unit: t('story.ms'), ...parts.plot }));
      // The first story is open; the width of another is known when it is opened.
      const card = make('details', { class: `card story ${story.kind}`, 'data-kind': story.kind, open: at === 0, ontoggle: () => { if (card.open) stepper.ready(); } },
        make('summary', null, make('h3', null, t(`story.title.${story.kind}`, { strategy: lane.strategy, count: story.requests.filter((request) => request.orderId).length }))),
        make('p', { class: 'soft' }, t('story.note', { ms: number(Math.max(0.1, Math.round(parts.end * 10) / 10)) }), ' ',
          isConcerned(story) ? make('strong', { class: 'story-fault' }, t('story.fault', { fault: t(`event.short.${story.fault}`) })) : null),
        stepper.element);
      stories.append(card);
      stepper.ready();
      players.push(() => { card.open = true; card.scrollIntoView({ block: 'start' }); stepper.play(); });
    });
  }

  Words.onChange(show);
  let width = 0;
  new ResizeObserver(() => {
    const now = root.clientWidth;
    if (now !== width) { width = now; show(); }
  }).observe(root);

  return {
    draw: (document) => { run = document; show(); },
    clear: () => { run = null; players = []; facts.textContent = ''; comparison.hidden = true; [lanes, events, stories].forEach((part) => { delete part.dataset.shows; part.replaceChildren(); }); },
    over: () => !run || over(),
    hasStory: () => players.length > 0,
    // Plays the first story from its first step.
    play: () => { if (players.length) players[0](); },
    setting: () => (run ? settingText(run) : ''),
  };
}
