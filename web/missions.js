'use strict';
// Seven missions, in order: a guess before each run, and afterwards the guess beside what happened. Each has the load that
// makes its point, and is done once a run has shown it. The last one reads shops, and sells nothing.

const Missions = (() => {
  Words.add({
    'missions.title': ['Seven missions: guess first', '七个任务：先猜一猜'],
    'missions.intro': ['There are three rules: one order per buyer, never more orders than vouchers, and no confirmed order is lost. Predict what will happen to them, then watch it. The last mission is about reads.', '规则有三条：每人限购一单，订单不能比优惠券多，已确认的订单不能丢。先预测它们会怎样，再亲眼看看。最后一个任务关于读。'],
    'mission.run': ['Run it', '运行'], 'mission.next': ['Next mission', '下一个任务'],
    'mission.holds': ['it holds', '守住'], 'mission.breaks': ['it breaks', '被打破'], 'mission.equal': ['both the same', '两者相同'],
    'mission.ask.left': ['Does {left} keep the rules?', '{left} 能守住规则吗？'], 'mission.ask.right': ['Does {right} keep the rules?', '{right} 能守住规则吗？'],
    'mission.ask.faster': ['Which one sells faster?', '哪一个卖得更快？'], 'mission.ask.more': ['Which one sells more of the {stock} vouchers?', '{stock} 份优惠券，哪一个卖出的更多？'],
    'mission.ask.leftQueries': ['How many queries does {left} send when the key expires?', 'key 过期时，{left} 会发出多少次查询？'],
    'mission.ask.rightQueries': ['How many queries does {right} send when the key expires?', 'key 过期时，{right} 会发出多少次查询？'],
    'mission.one': ['one', '一次'], 'mission.many': ['one for each read that misses the key', '每个没读到缓存的请求一次'],
    'mission.queries': ['{count|query|queries}', '{count} 次查询'], 'mission.reading': ['Reading… some ten seconds', '正在读取…约十秒'],
    'mission.two': ['needs two nodes', '需要两个节点'], 'mission.noKilling': ['no node can be killed here', '此处无法终止节点'], 'mission.done': ['done', '已完成'],
    'mission.outcome': ['Your guesses', '你的猜测'], 'mission.guess': ['your guess', '你的猜测'], 'mission.seen': ['what happened', '实际结果'],
    'mission.right': ['right', '猜对'], 'mission.wrong': ['wrong', '猜错'],
    'mission.orders': ['{left}: {a|order|orders}, {right}: {b|order|orders}', '{left}：{a} 个订单，{right}：{b} 个订单'],
    'mission.rates': ['{left}: {a|order|orders} a second, {right}: {b}', '{left}：每秒 {a} 个订单，{right}：{b}'],
    'mission.violations': ['{duplicates|second order|second orders}, {oversold} oversold', '{duplicates} 个重复订单，超卖 {oversold} 份'],
    'mission.lost': ['{count|confirmed order|confirmed orders} lost', '丢失 {count} 个已确认的订单'],
    'mission.index': ['the unique index refused {count|second order|second orders}', '唯一索引拒绝了 {count} 个重复订单'],
    'mission.commits': ['{strategy}: {orders|order|orders} in {commits|commit|commits}', '{strategy}：{commits} 次提交完成 {orders} 个订单'],
    'mission.missed': ['This run did not show what the mission is about. Run it once more.', '这次运行没有出现本任务要展示的情形，请再运行一次。'],
    'mission.memory': ['Two nodes, a lock in memory', '两个节点，内存里的锁'],
    'mission.memory.task': ['One buyer clicks four times; nginx spreads the clicks over two nodes. On the left each node locks in its own memory, on the right in Redis.', '一位买家点四次，nginx 把点击分给两个节点。左边每个节点在自己的内存里加锁，右边在 Redis 里加锁。'],
    'mission.memory.moral': ['A lock protects only those who see it. Two memories are two locks.', '锁只能约束看得见它的人。两块内存就是两把锁。'],
    'mission.read': ['Read, then write', '先读后写'],
    'mission.read.task': ['Everybody comes at once and clicks once. The left reads the stock, then takes one without looking again; the right lets the database check and decrement in one statement.', '所有人同时到来，每人点一次。左边先读库存，再直接减一；右边让数据库用一条语句检查并扣减。'],
    'mission.read.moral': ['What was read is out of date by the time of writing. The check belongs in the statement that writes.', '写入时，先前读到的已经过时。检查应当写进执行写入的那条语句。'],
    'mission.retry': ['Compare, or wait in line', '比较，还是排队'],
    'mission.retry.task': ['The left takes a voucher only if the stock is still what it read. The right waits in line at the sale’s row. There are enough vouchers for half of the people.', '左边只有在库存仍等于读到的值时才扣减；右边在这场秒杀的行上排队。优惠券只够一半的人。'],
    'mission.retry.moral': ['Of all who read the same number, one succeeds; the rest are refused although there is stock left.', '读到同一个数字的人只有一个成功，其余人在还有库存时就被拒绝。'],
    'mission.lease': ['The lock of another, deleted', '误删：删掉了别人的锁'],
    'mission.lease.task': ['Both lock in Redis, one lock per buyer, whatever the voucher. Each buyer first clicks another voucher, of which there is only one: nearly all of these clicks wait for its row, find nothing left and are rolled back, and their finally releases the lock. On the left a lease is 3 ms, and the release is a DEL, whoever holds the lock. On the right a lease outlives the work, and only its holder releases the lock.', '两边都在 Redis 里按买家加锁，不分抢的是哪张券。每位买家先点另一张券，那张只有一份：这些请求几乎都要等行锁，却抢不到，事务回滚，finally 照样释放锁。左边租期只有 3 毫秒，释放就是直接 DEL，不管锁是谁的；右边租期长于业务，只有持有者才能释放锁。'],
    'mission.lease.moral': ['A request that was rolled back has no order, and broke the rule all the same: its lease had ended, a second request held the lock, and its DEL deleted that one’s lock. A third came in beside the second: two orders. Release a lock only if it is yours; comparing and deleting must be one atomic operation. Leases that end in mid-work make second orders, too: renew them, or make them long.', '回滚的请求自己没有下单，却照样打破了规则：它的租期先到，第二个请求拿到锁，它的 DEL 误删了第二个的锁，第三个又进来，和第二个都下了单。锁只能由持有者释放，判断和删除必须是一个原子操作。左边还有些重复订单不是误删，只是租期先到：租期要续，或者留足时间。'],
    'mission.foreign': ['{count} locks of others deleted', '误删别人的锁 {count} 次'],
    'mission.batch': ['A burst', '瞬间高峰'],
    'mission.batch.task': ['Five hundred people at once, on one side after the other. The left locks the sale’s row for each order; the right gathers what arrives during a commit into the next one.', '五百人同时到来，两边先后进行。左边为每个订单锁住秒杀的行；右边把提交期间到达的订单合并进下一次提交。'],
    'mission.kill': ['A queue in memory, and kill −9', '内存队列与 kill -9'],
    'mission.kill.task': ['Two hundred people at once, and a voucher for each. On both sides a script in Redis admits them, and the orders are written later. On the left the queue is in the memory of each node, and the buyer is told “you got it” at once; on the right it is a stream in Redis, and the buyer is told “pending”. A slow transaction keeps both sides from writing until everybody has a reply. Then one node is killed.', '两百人同时到来，每人都有一份。两边都由 Redis 中的脚本放行，订单稍后写入。左边的队列在每个节点的内存里，当场就答复“抢购成功”；右边的队列是 Redis 里的 stream，答复“处理中”。一个慢事务让两边都写不进去，等所有人都得到答复，再强制终止一个节点。'],
    'mission.kill.moral': ['What waited in the memory of the killed node is gone, and its buyers were told that they had it. In the stream, another consumer takes over what the dead one had not acknowledged. Put the queue where it outlives the node, or say yes after the commit.', '被终止的节点内存里排队的订单全没了，而买家早已被告知成功。stream 里没有确认的消息，会由另一个消费者接手。队列要放在比节点活得久的地方，否则就等提交之后再答复成功。'],
    'mission.batch.moral': ['Many orders, one wait for the disk. The longer the queue, the larger the commits: look at how many orders shared one.', '多个订单，只等一次磁盘。排队越长，每次提交的订单越多：看看有多少订单共享了一次提交。'],
    'mission.hotkey': ['A hot key expires', '热点 key 过期'],
    'mission.hotkey.task': ['Redis answers 400 reads a second of one shop, until its key expires after two seconds. The query that loads the shop takes half a second then, as its table is locked for so long. On the left whoever misses the key asks the database. On the right one reader takes the rebuild mutex, and the others wait for what it stores.', '同一家商铺每秒被读 400 次，都由 Redis 回答；两秒后它的 key 过期。这时查一次数据库要半秒，因为商铺表被锁住这么久。左边谁没读到缓存，谁就去查数据库；右边只有拿到互斥锁的去查，其余的等它写回缓存。'],
    'mission.hotkey.moral': ['The cache protects the database only while the key is there; a hot key needs a guard for the moment after (breakdown, or stampede). With the mutex one reader rebuilds it, and the others still wait for the query. With logical expiry nobody waits: the old value is served meanwhile (/learn#logical-expiry).', 'key 在，缓存才挡得住；热点 key 过期的那一刻要另外防（缓存击穿）。互斥锁让一个请求重建缓存，其余的仍要等它查完。逻辑过期谁也不用等：重建期间先返回旧值（/learn#logical-expiry）。'],
  });
  const t = Words.t;
  const LIST = [
    { id: 'memory', lanes: ['process-lock', 'reentrant-lock'], buyers: 160, tries: 4, stock: 140, instances: 2, spreadSeconds: 3, asks: ['left', 'right'], shows: ([left]) => left.duplicates > 0 },
    { id: 'read', lanes: ['naive', 'conditional'], buyers: 200, tries: 1, stock: 60, instances: 2, spreadSeconds: 0, asks: ['left', 'right'], shows: ([left]) => left.oversold > 0 },
    { id: 'retry', lanes: ['compare-and-set', 'row-lock'], buyers: 200, tries: 1, stock: 100, instances: 2, spreadSeconds: 0, asks: ['left', 'more'], shows: ([left, right]) => left.orders < right.orders },
    { id: 'lease', lanes: ['setnx-unowned', 'setnx-lock'], buyers: 80, tries: 8, stock: 400, instances: 2, spreadSeconds: 4, twoVouchers: true, asks: ['left', 'right'], shows: ([left]) => left.deletedLock },
    { id: 'batch', lanes: ['row-lock', 'group-commit'], buyers: 500, tries: 1, stock: 500, instances: 2, spreadSeconds: 0, inTurn: true, asks: ['right', 'faster'], shows: ([left, right]) => right.perS > left.perS },
    { id: 'kill', lanes: ['memory-queue', 'stream'], buyers: 200, tries: 1, stock: 200, instances: 2, spreadSeconds: 0, killNode: true, asks: ['left', 'right'], shows: ([left, right]) => left.lost > 0 && right.orders > 0 },
    { id: 'hotkey', lanes: ['cache-aside', 'mutex'], reads: true, asks: ['leftQueries', 'rightQueries'], shows: ([left, right]) => left.queries >= 20 && right.queries === 1 },
  ];

  // What a mission's point is about, in a lane of a run of reads, and of a judged sale.
  const seenInReads = ({ samples }) => ({ queries: samples.at(-1).queries });
  const seenInSale = ({ result: { report }, stories = [] }) => ({
    ...report.verdict, perS: report.orders_per_s, deletedLock: stories.some(({ requests }) => requests.some((request) => request.elsewhere)),
  });
  // Whether a run shows the point of a mission.
  const isShown = (mission, run) => mission.shows(run.lanes.map(mission.reads ? seenInReads : seenInSale));

  const optionsOf = ({ lanes }, ask) => ({
    left: ['holds', 'breaks'], right: ['holds', 'breaks'], faster: lanes, more: [...lanes, 'equal'], leftQueries: ['one', 'many'], rightQueries: ['one', 'many'],
  }[ask]);
  const named = (option) => (Words.has(`mission.${option}`) ? t(`mission.${option}`) : option);

  // The sentence on how many commits a lane's orders took; 0 if its strategy commits each order alone.
  function commitsOf({ strategy, result }) {
    const commits = (result.batches || []).reduce((sum, [, count]) => sum + count, 0);
    return commits && t('mission.commits', { strategy, orders: Words.number(result.report.verdict.orders), commits: Words.number(commits) });
  }

  // What happened, as one of the options of `ask`, and in figures: a pure function of a run that is over.
  function outcomeOf(run, ask) {
    if (ask === 'leftQueries' || ask === 'rightQueries') {
      const { queries } = seenInReads(run.lanes[ask === 'leftQueries' ? 0 : 1]);
      return { option: queries > 1 ? 'many' : 'one', figures: t('mission.queries', { count: Words.number(queries) }) };
    }
    const reports = run.lanes.map((lane) => lane.result.report);
    const [left, right] = run.setting.lanes;
    const figures = (a, b) => ({ left, right, a: Words.number(a), b: Words.number(b) });
    if (ask === 'faster' || ask === 'more') {
      const [a, b] = reports.map((report) => (ask === 'more' ? report.verdict.orders : report.orders_per_s));
      const same = ask === 'more' && a === b;
      const commits = ask === 'faster' ? run.lanes.map(commitsOf).filter(Boolean) : [];
      return { option: same ? 'equal' : a >= b ? left : right, figures: [t(ask === 'more' ? 'mission.orders' : 'mission.rates', figures(a, b)), ...commits].join('; ') };
    }
    const { indexRefused = 0, foreignDeletes = 0, report: { verdict: { duplicates, oversold, lost } } } = run.lanes[ask === 'left' ? 0 : 1].result;
    return {
      option: duplicates + oversold + lost > 0 ? 'breaks' : 'holds',
      figures: [t('mission.violations', { duplicates, oversold: Math.max(0, oversold) }), indexRefused && t('mission.index', { count: indexRefused }),
        lost && t('mission.lost', { count: lost }), foreignDeletes && t('mission.foreign', { count: foreignDeletes })].filter(Boolean).join('; '),
    };
  }

  // panel: the list and the questions; outcome: guess beside result, of a sale. start(setting) begins a
  // sale, and read() reads a hot key to the end; both return the run, or null. nodes(): how many nodes there are; kills():
  // whether one can be killed; onChoice(id): the visitor chose a mission.
  function create(panel, outcome, { start, read, nodes, kills, onChoice }) {
    let chosen = LIST[0], guesses = {}, played = null, busy = false;
    const done = new Set(kept());
    // The message, and the field for the token below it, stay where the rest is drawn anew.
    const drawn = make('div');
    const ofReads = make('section', { class: 'outcome', id: 'reads-outcome', role: 'status', hidden: true });
    panel.append(drawn, make('p', { class: 'said', id: 'mission-said', role: 'status' }), ofReads);
    function kept() {
      try { return (localStorage.getItem('missions') || '').split(',').filter(Boolean); } catch { return []; }
    }
    function keep() {
      try { localStorage.setItem('missions', [...done].join(',')); } catch { /* for this page only */ }
    }
    // Why a mission cannot be run here: a text's key, or null.
    const obstacle = (mission) => (mission.instances > nodes() ? 'mission.two' : mission.killNode && !kills() ? 'mission.noKilling' : null);
    const possible = (mission) => !obstacle(mission);

    function show() {
      const item = (mission, at) => make('li', null, make('button', {
        type: 'button', class: 'choice', 'data-mission': mission.id, 'data-key': mission.id, 'aria-pressed': String(mission === chosen), disabled: !possible(mission),
        onclick: () => { choose(mission); onChoice(mission.id); },
      }, make('span', null, `${at + 1}. ${t(`mission.${mission.id}`)}`), done.has(mission.id) ? make('span', { class: 'badge good' }, `✓ ${t('mission.done')}`) : possible(mission) ? null : make('span', { class: 'soft' }, t(obstacle(mission)))));
      const values = { left: chosen.lanes[0], right: chosen.lanes[1], stock: chosen.stock };
      const question = (ask) => make('fieldset', { class: 'guess' }, make('legend', null, t(`mission.ask.${ask}`, values)),
        make('div', { class: 'radios' }, optionsOf(chosen, ask).map((option) => make('label', null,
          make('input', { type: 'radio', name: `guess-${ask}`, value: option, 'data-key': `${ask}-${option}`, checked: guesses[ask] === option, onchange: () => { guesses[ask] = option; ready(); } }), ' ', named(option)))));
      const run = make('button', { type: 'submit', class: 'main', id: 'mission-run', 'data-key': 'mission-run' }, t('mission.run'));
      const ready = () => { run.disabled = busy || !possible(chosen) || !chosen.asks.every((ask) => guesses[ask]); };
      ready();
      Page.render(drawn,
        make('h2', { id: 'missions-title' }, t('missions.title')),
        make('p', { class: 'soft' }, t('missions.intro')),
        make('div', { class: 'missions-body' },
          make('ol', { class: 'choices mission-list' }, LIST.map(item)),
          make('form', { class: 'mission', id: 'mission', onsubmit: (event) => { event.preventDefault(); play(); } },
            make('h3', null, t(`mission.${chosen.id}`)), make('p', null, t(`mission.${chosen.id}.task`)),
            chosen.asks.map(question), run)));
    }

    function choose(mission) {
      if (mission !== chosen) guesses = {};
      chosen = mission;
      show();
    }

    async function play() {
      const { id, asks, shows, reads, ...setting } = chosen;
      const mission = chosen, guessed = { ...guesses };
      busy = true;
      ofReads.hidden = true;
      show();
      const run = await (reads ? read() : start(setting));
      busy = false;
      if (run) played = { mission, guessed, runId: run.id, finished: null };
      show();
      if (run && reads) finish(run);
    }

    // Called with the run whenever it has changed.
    function follow(run) {
      const ours = played && played.runId === run.id;
      outcome.hidden = !(ours && run.state === 'done');
      if (ours && run.state === 'done') finish(run);
    }

    function finish(run) {
      const { mission } = played;
      if (!done.has(mission.id) && isShown(mission, run)) {
        done.add(mission.id);
        keep();
        show();
      }
      played.finished = run;
      showOutcome();
    }

    function showOutcome() {
      if (!played || !played.finished) return;
      const { mission, guessed, finished } = played;
      const key = `${finished.id} ${Words.language()}`;
      const place = mission.reads ? ofReads : outcome;
      if (place.dataset.shows === key) return;
      place.dataset.shows = key;
      const plots = make('div', { class: 'pair', hidden: !mission.reads });
      const values = { left: mission.lanes[0], right: mission.lanes[1], stock: mission.stock };
      const after = LIST[LIST.indexOf(mission) + 1];
      place.replaceChildren(make('h3', null, `${t('mission.outcome')}: ${t(`mission.${mission.id}`)}`), plots,
        make('ul', { class: 'guesses' }, mission.asks.map((ask) => {
          const seen = outcomeOf(finished, ask);
          const right = seen.option === guessed[ask];
          return make('li', { class: right ? 'right' : 'wrong', 'data-ask': ask },
            make('strong', null, t(`mission.ask.${ask}`, values)),
            make('span', null, `${t('mission.guess')}: ${named(guessed[ask])}`),
            make('span', null, `${t('mission.seen')}: ${named(seen.option)} (${seen.figures})`),
            make('span', { class: `badge ${right ? 'good' : 'bad'}` }, right ? `✓ ${t('mission.right')}` : `✕ ${t('mission.wrong')}`));
        })),
        make('p', { class: 'conclusion' }, t(isShown(mission, finished) ? `mission.${mission.id}.moral` : 'mission.missed')),
        ...(after ? [make('button', { type: 'button', class: 'quiet', id: 'mission-next', onclick: () => {
          choose(after);
          onChoice(after.id);
          panel.scrollIntoView({ block: 'start' });
          panel.querySelector(`[data-mission="${after.id}"]`).focus({ preventScroll: true });
        } }, t('mission.next'))] : []));
      if (!mission.reads) return;
      ofReads.hidden = false;
      HotKey.draw(plots, finished.lanes);
    }

    // choose(id): the mission of that name, where there is one.
    return { show: () => { show(); showOutcome(); }, follow, choose: (id) => choose(LIST.find((one) => one.id === id) || chosen) };
  }

  return { create, isShown, outcomeOf, LIST };
})();
