'use strict';
// How words come into a page: which language, every text that more than one page shows, and the one
// function that makes elements. Whatever a server or a person wrote becomes a text node, never markup.

// make('p', {class: 'x', 'aria-live': 'polite', onclick: f}, 'text', child, null): an HTML element.
// Attributes that are null or false are left out; children may be strings, elements, arrays or null.
const make = (name, attributes, ...children) => Words.build(document.createElement(name), attributes, children);
// The same for SVG.
const draw = (name, attributes, ...children) =>
  Words.build(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);

const Words = (() => {
  const texts = {}; // key → [English, Chinese]
  const listeners = [];
  let language = remembered() || ((navigator.language || '').toLowerCase().startsWith('zh') ? 'zh' : 'en');

  // A page opened as a file may have no storage.
  function remembered() {
    try {
      const kept = localStorage.getItem('language');
      return kept === 'zh' || kept === 'en' ? kept : null;
    } catch { return null; }
  }

  function build(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? '' : value);
    }
    element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
    return element;
  }

  // add({key: ['English', '中文']})
  const add = (more) => Object.assign(texts, more);
  const has = (key) => key in texts;

  // t('key', {name: value}): the text, its {name} marks filled in.
  const t = (key, values = {}) => {
    const pair = texts[key];
    if (!pair) return key;
    return pair[language === 'zh' ? 1 : 0].replace(/\{(\w+)\}/g, (mark, name) => (name in values ? values[name] : mark));
  };

  // Fills in what the page's own markup asks for: data-t="key", and data-t-ATTRIBUTE="key".
  function apply() {
    document.documentElement.lang = language === 'zh' ? 'zh-CN' : 'en';
    for (const element of document.querySelectorAll('[data-t]')) element.textContent = t(element.dataset.t);
    for (const attribute of ['aria-label', 'placeholder', 'content']) {
      for (const element of document.querySelectorAll(`[data-t-${attribute}]`)) {
        element.setAttribute(attribute, t(element.getAttribute(`data-t-${attribute}`)));
      }
    }
    for (const button of document.querySelectorAll('[data-language]')) {
      button.setAttribute('aria-pressed', String(button.dataset.language === language));
    }
  }

  function speak(other) {
    language = other;
    try { localStorage.setItem('language', other); } catch { /* remembered for this page only */ }
    apply();
    listeners.forEach((listener) => listener());
  }

  // Whole numbers with separators; others with three significant digits.
  const number = (value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return '–';
    const digits = Number.isInteger(value) || Math.abs(value) >= 100
      ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 };
    return value.toLocaleString('en-US', digits);
  };

  document.addEventListener('click', (event) => {
    const button = event.target.closest('[data-language]');
    if (button) speak(button.dataset.language);
  });
  document.addEventListener('DOMContentLoaded', apply);

  return { add, apply, build, has, number, t, language: () => language, onChange: (listener) => listeners.push(listener) };
})();

Words.add({
  'nav.shop': ['Shop', '商店'],
  'nav.lab': ['Lab', '实验室'],
  'nav.docs': ['API', '接口文档'],
  'nav.label': ['Pages', '页面'],
  'nav.language': ['Language', '语言'],
  'nav.skip': ['To the content', '跳到正文'],
  'brand': ['Flash sale', '秒杀'],
  'noscript': ['This page needs JavaScript.', '本页面需要 JavaScript。'],
});

// ── A run, as the lab and its report show it ────────────────────────────────────────────────────
Words.add({
  'state.preparing': ['preparing', '准备中'], 'state.running': ['running', '进行中'], 'state.judging': ['being judged', '判定中'],
  'state.done': ['finished', '已完成'], 'state.stopped': ['stopped', '已停止'], 'state.failed': ['failed', '失败'],
  'run.setting': ['{buyers} buyers × {tries} tries · {stock} vouchers · {instances} · {spread} · seed {seed}', '{buyers} 位买家 × 每人 {tries} 次 · {stock} 份 · {instances} · {spread} · 种子 {seed}'],
  'run.one': ['1 instance', '1 个实例'], 'run.two': ['{count} instances', '{count} 个实例'],
  'run.spread': ['over {seconds} s', '分布在 {seconds} 秒内'], 'run.burst': ['all at once', '同时到达'],
  'run.safe': ['promises to hold', '承诺不出错'], 'run.unsafe': ['unsafe on purpose', '有意不安全'],
  'lane.orders': ['orders', '订单'], 'lane.stock': ['stock left', '剩余库存'], 'lane.issued': ['{count} on sale', '共售 {count} 份'],
  'lane.duplicates': ['duplicates', '重复订单'],
  'lane.plot': ['{strategy}: orders and stock left over time', '{strategy}：订单与剩余库存随时间的变化'],
  'lane.first.duplicates': ['first duplicate', '首个重复订单'], 'lane.first.oversold': ['first oversold', '首次超卖'],
  'lane.seconds': ['seconds', '秒'],
  'lane.requestsPerS': ['requests/s', '请求/秒'], 'lane.ordersPerS': ['orders/s', '订单/秒'],
  'lane.p50': ['p50 ms', 'p50 毫秒'], 'lane.p99': ['p99 ms', 'p99 毫秒'], 'lane.batch': ['orders a commit', '每次提交的订单'],
  'lane.batches': ['Orders that shared a commit', '共享一次提交的订单数'], 'lane.commits': ['commits', '提交次数'],
  'law.title': ['Invariants of {strategy}', '{strategy} 的不变量'],
  'law.oversold': ['oversold', '超卖'], 'law.duplicates': ['duplicates', '重复下单'],
  'law.lost': ['lost', '丢失'], 'law.phantom': ['phantom', '幽灵'],
  'law.oversold.means': ['more orders than vouchers', '订单比优惠券多'], 'law.duplicates.means': ['orders beyond a buyer’s first', '同一买家第一单之外的订单'],
  'law.lost.means': ['confirmed, but no such order', '已确认，却没有该订单'], 'law.phantom.means': ['an order, but its buyer was told no', '有订单，买家却被告知失败'],
  'law.later': ['judged at the end', '结束时判定'], 'law.holds': ['holds', '成立'], 'law.broken': ['broken', '被打破'],
  'verdict.holds': ['Held. {orders} orders for {stock} vouchers, never two for one buyer, and every reply is true.', '守住了。{stock} 份优惠券共 {orders} 个订单，没有人下两单，每个答复都属实。'],
  'verdict.broken': ['Broken, as it must be: {what}. The strategy has no way to prevent it on {instances}.', '如预期被打破：{what}。在 {instances} 上，该策略无从防止。'],
  'verdict.did-not-show': ['Nothing broke this time, though it can: {what} did not show. More tries at once make it likelier.', '这次没有出错，但它可能出错：未出现{what}。同时尝试更多次会更容易出现。'],
  'verdict.not-seen': ['Nothing broke this time, though nothing prevents it: {what} did not show.', '这次没有出错，但没有任何东西能阻止它：未出现{what}。'],
  'verdict.violation': ['A promise was broken: {what}. That must not happen; please report it with this run’s raw data.', '承诺被打破：{what}。这不应发生，请附上本次运行的原始数据反馈。'],
  'verdict.duplicates': ['{count} duplicate orders, to buyers who had one already', '{count} 个重复订单，买家本已有一单'],
  'verdict.oversold': ['{count} orders more than there were vouchers', '超卖 {count} 份'],
  'compare.title': ['How long a buyer waits', '买家要等多久'],
  'compare.note': ['The further right, the rarer: at 99, one in a hundred waits that long or longer.', '越靠右越少见：99 表示百分之一的请求要等这么久或更久。'],
  'compare.percentile': ['percentile', '百分位'],
  'event.title': ['What happened to the machines', '机器上发生的事'],
  'event.pause-redis': ['Redis was paused for {seconds} s', 'Redis 暂停 {seconds} 秒'], 'event.empty-redis': ['Redis was emptied', 'Redis 被清空'],
  'event.kill-instance': ['{node} was killed', '{node} 被杀死'], 'event.instance-back': ['{node} is back', '{node} 已恢复'],
  'event.cut-lease': ['locks were cut short for {seconds} s ({cut} of them)', '锁的租期被剪短，持续 {seconds} 秒（{cut} 把）'],
  'event.short.pause-redis': ['Redis paused', 'Redis 暂停'], 'event.short.empty-redis': ['Redis emptied', 'Redis 清空'],
  'event.short.kill-instance': ['node killed', '节点被杀'], 'event.short.instance-back': ['node back', '节点恢复'], 'event.short.cut-lease': ['leases cut', '租期剪短'],
  'event.at': ['at {at} s', '第 {at} 秒'],
});

// ── The story of a few requests ─────────────────────────────────────────────────────────────────
Words.add({
  'story.title.two-orders': ['How {strategy} gave one buyer {count} orders', '{strategy} 如何让一位买家得到 {count} 个订单'],
  'story.title.oversold': ['How {strategy} sold one voucher twice', '{strategy} 如何把一份优惠券卖了两次'],
  'story.title.held': ['How {strategy} held', '{strategy} 如何守住'],
  'story.note': ['One real case out of this run, taken from its records: {ms} ms, step by step.', '取自本次运行记录的一个真实片段：{ms} 毫秒，逐步展开。'],
  'story.plot': ['Timeline: {count} requests on {nodes}', '时间线：{count} 个请求，{nodes}'],
  'story.node': ['Node {node}', '节点 {node}'], 'story.ms': ['milliseconds', '毫秒'],
  'story.held-by': ['holds its lock', '持有锁'],
  'story.sent.same': ['Buyer {user} asks {count} times at the same moment. nginx spreads the requests: {where}.', '买家 {user} 在同一时刻发出 {count} 个请求，nginx 将它们分发：{where}。'],
  'story.sent.alone': ['Buyer {user} asks {count} times at the same moment: {where}.', '买家 {user} 在同一时刻发出 {count} 个请求：{where}。'],
  'story.sent.others': ['{count} buyers ask at the same moment: {where}.', '{count} 位买家在同一时刻发出请求：{where}。'],
  'story.where': ['{name} to node {node}', '{name} 到节点 {node}'],
  'step.locked.memory': ['Node {node} takes the lock of buyer {user} in its own memory.', '节点 {node} 在自己的内存里取得买家 {user} 的锁。'],
  'step.locked.memory.again': ['Node {node} takes the lock of the same buyer in its own memory: another lock, which knows nothing of the first.', '节点 {node} 在它自己的内存里取得同一买家的锁：这是另一把锁，对前一把一无所知。'],
  'step.locked.memory.after': ['Node {node} takes the lock of buyer {user}, which is free again.', '节点 {node} 取得买家 {user} 的锁，它刚被释放。'],
  'step.locked.redis': ['Node {node} asks Redis for the lock of buyer {user} and gets it. There is one Redis, so there is one lock.', '节点 {node} 向 Redis 请求买家 {user} 的锁并得到了它。Redis 只有一个，锁也就只有一把。'],
  'step.locked.redis.after': ['Node {node} asks Redis for the lock of buyer {user} and gets it: it is free again.', '节点 {node} 向 Redis 请求买家 {user} 的锁并得到了它：它已被释放。'],
  'step.lock-busy.redis': ['Node {node} asks Redis for the same lock and hears: taken. It turns the buyer away.', '节点 {node} 向 Redis 请求同一把锁，得到的回答是：已被占用。买家被挡回。'],
  'step.lock-busy.memory': ['Node {node} finds the lock taken and turns the buyer away.', '节点 {node} 发现锁已被占用，挡回买家。'],
  'step.lock-failed': ['Node {node} gets no answer about the lock.', '节点 {node} 没有得到关于锁的答复。'],
  'step.looked.none': ['Node {node} looks: stock {stock}; has this buyer an order? No.', '节点 {node} 查询：库存 {stock}；这位买家有订单吗？没有。'],
  'step.looked.blind': ['Node {node} looks: stock {stock}; has this buyer an order? Still no: the other request has not committed its own yet.', '节点 {node} 查询：库存 {stock}；这位买家有订单吗？仍然没有：另一个请求还没有提交。'],
  'step.looked.too': ['Node {node} looks as well: stock {stock}; has this buyer an order? No, not yet.', '节点 {node} 也查询：库存 {stock}；这位买家有订单吗？还没有。'],
  'step.looked.some': ['Node {node} looks: this buyer has an order already.', '节点 {node} 查询：这位买家已有订单。'],
  'step.looked.stock': ['Node {node} reads the stock: {stock}.', '节点 {node} 读取库存：{stock}。'],
  'step.looked.same': ['Node {node} reads the stock: {stock} as well. The other request has read the same one and not taken it yet.', '节点 {node} 读取库存：同样是 {stock}。另一个请求读到了同一份，但还没有拿走。'],
  'step.row-locked': ['Node {node} locks the sale’s row in the database; whoever comes next waits there. Stock {stock}; has this buyer an order? {order}', '节点 {node} 锁住数据库里这场秒杀的行，后来者在此等待。库存 {stock}；这位买家有订单吗？{order}'],
  'step.row-locked.after': ['Node {node} had to wait for that row, and has it now. Stock {stock}; has this buyer an order? {order}', '节点 {node} 一直在等这一行，现在得到了。库存 {stock}；这位买家有订单吗？{order}'],
  'step.yes': ['Yes.', '有。'], 'step.no': ['No.', '没有。'],
  'step.asks': ['The database is asked', '询问数据库'], 'step.asks.again': ['The database is asked once more', '再问一次数据库'],
  'step.placed.taken': ['{asks}: an order of this buyer? None, so node {node} inserts one and takes one from the stock.', '{asks}：这位买家有订单吗？没有，于是节点 {node} 插入订单，库存减一。'],
  'step.placed.blind': ['{asks}: an order of this buyer? It sees none, as the other is not committed yet. So node {node} inserts one too.', '{asks}：这位买家有订单吗？看不到，因为另一个订单尚未提交。于是节点 {node} 也插入了一个。'],
  'step.placed.ordered-before': ['{asks}: an order of this buyer? There is one, so nothing is inserted.', '{asks}：这位买家有订单吗？有，于是不再插入。'],
  'step.placed.nothing-left': ['The database finds no stock left: nothing is inserted.', '数据库发现没有库存了：不再插入。'],
  'step.placed.failed': ['The database does not answer in time: nothing is inserted.', '数据库没有及时答复：没有插入任何东西。'],
  'step.inserted': ['Node {node} inserts an order.', '节点 {node} 插入一个订单。'],
  'step.decremented.naive': ['Node {node} takes one from the stock, without asking whether there is one.', '节点 {node} 把库存减一，不再确认是否还有货。'],
  'step.decremented.done': ['Node {node} takes one from the stock.', '节点 {node} 把库存减一。'],
  'step.decremented.moved': ['The stock is no longer what node {node} read: it gives up.', '库存已不是节点 {node} 读到的数，放弃。'],
  'step.committed': ['Node {node} commits: from now on everybody can see this order.', '节点 {node} 提交：从此所有人都能看到这个订单。'],
  'step.queued': ['Node {node} puts it in line for the next commit.', '节点 {node} 让它排队等待下一次提交。'],
  'step.batch-committed': ['Node {node} commits it together with others’ orders.', '节点 {node} 将它与他人的订单一起提交。'],
  'step.batch-committed.failed': ['Node {node} puts it into a common commit; the database’s unique index drops it.', '节点 {node} 把它放进共同的提交；数据库唯一索引将它丢弃。'],
  'step.admitted': ['The script in Redis admits the buyer and notes it.', 'Redis 中的脚本放行买家并记录下来。'],
  'step.admitted.failed': ['The script in Redis turns the buyer away.', 'Redis 中的脚本挡回买家。'],
  'step.unlocked': ['Node {node} gives its lock back.', '节点 {node} 释放锁。'],
  'step.answered': ['Node {node} answers: {reply}', '节点 {node} 答复：{reply}'],
  'step.failed': ['Node {node}: “{step}” did not succeed.', '节点 {node}：“{step}”没有成功。'],
  'step.other': ['Node {node}: {step}.', '节点 {node}：{step}。'],
  'reply.ORDERED': ['“It is yours”, order {id}.', '“抢购成功”，订单 {id}。'], 'reply.PENDING': ['“A place is yours”, order {id}.', '“已抢到名额”，订单 {id}。'],
  'reply.SOLD_OUT': ['“Sold out”.', '“已售罄”。'], 'reply.ALREADY_ORDERED': ['“You have one already”.', '“您已经抢到过了”。'],
  'reply.LOCK_BUSY': ['“Another purchase of yours is on its way”.', '“您的另一次抢购正在处理”。'], 'reply.STOCK_CHANGED': ['“Sold out”, though it is not.', '“已售罄”，其实没有。'],
  'legend.lock': ['lock', '锁'], 'legend.look': ['look', '查询'], 'legend.write': ['write', '写入'], 'legend.commit': ['commit', '提交'], 'legend.refused': ['turned away', '被挡回'], 'legend.answer': ['answer', '答复'],
  'moral.two-locks': ['Two locks, two times yes: one buyer, two orders. A lock in a process’s memory guards that process and no other.', '两把锁，两次“可以”：一位买家，两个订单。进程内存里的锁只能保护这个进程自己。'],
  'moral.no-lock': ['Each looked before the other had written, saw no order, and made one. Looking and writing have to be one step, or stand under one lock that all nodes share.', '双方都在对方写入之前查询，都没看到订单，于是各下一单。查询与写入必须是一步，或处在所有节点共用的同一把锁之下。'],
  'moral.oversold': ['Both read the same voucher in stock, and both took it. Reading and taking have to be one step.', '双方读到的是同一份库存，也都拿走了它。读取与扣减必须是一步。'],
  'moral.shared-lock': ['One lock for all nodes: the second request could not pass, whichever node it reached. One buyer, one order.', '所有节点共用一把锁：第二个请求无论到达哪个节点都过不去。一位买家，一个订单。'],
  'moral.held': ['One request got the order; the others were turned away. One buyer, one order.', '一个请求得到订单，其余被挡回。一位买家，一个订单。'],
});
