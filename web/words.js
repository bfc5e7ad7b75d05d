'use strict';
// Texts in two languages (the current one, and those that several pages show), and the functions that create elements.
// What a server or a visitor wrote becomes a text node, never markup.

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

  // t('key', {name: value}): the text in the current language, its placeholders filled in: {name}, or {name|order|orders}
  // for a number and its noun.
  const t = (key, values = {}) => {
    const pair = texts[key];
    if (!pair) return key;
    return pair[language === 'zh' ? 1 : 0].replace(/\{(\w+)(?:\|([^|}]*)\|([^}]*))?\}/g, (mark, name, one, many) => {
      if (!(name in values)) return mark;
      return one === undefined ? values[name] : `${values[name]} ${String(values[name]) === '1' ? one : many}`;
    });
  };

  // Fills in the texts that the page's markup names: data-t="key", and data-t-ATTRIBUTE="key".
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

  function setLanguage(chosen) {
    language = chosen;
    try { localStorage.setItem('language', chosen); } catch { /* remembered for this page only */ }
    apply();
    listeners.forEach((listener) => listener());
  }

  // Joins sentences, in English with a space between them. Empty ones are left out.
  const join = (...parts) => parts.filter(Boolean).join(language === 'zh' ? '' : ' ');

  // Whole numbers with separators; others with three significant digits.
  const number = (value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return '–';
    const digits = Number.isInteger(value) || Math.abs(value) >= 100
      ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 };
    return value.toLocaleString('en-US', digits);
  };

  // A moment, in milliseconds since 1970, as date and time in the browser's time zone, which is named.
  const time = (moment) => new Intl.DateTimeFormat(language === 'zh' ? 'zh-CN' : 'en-US', {
    year: 'numeric', month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit', second: '2-digit',
    hourCycle: 'h23', timeZoneName: 'short',
  }).format(moment);

  document.addEventListener('click', (event) => {
    const button = event.target.closest('[data-language]');
    if (button) setLanguage(button.dataset.language);
  });
  document.addEventListener('DOMContentLoaded', apply);

  return { add, apply, build, has, join, number, t, time, language: () => language, onChange: (listener) => listeners.push(listener) };
})();

Words.add({
  'nav.shop': ['Shop', '商店'],
  'nav.learn': ['Learn', '学习'],
  'nav.lab': ['Lab', '实验室'],
  'nav.api': ['API', '接口'],
  'nav.label': ['Pages', '页面'],
  'nav.language': ['Language', '语言'],
  'nav.skip': ['To the content', '跳到正文'],
  'brand': ['Flash sale', '秒杀'],
  'run.nodes': ['{count|node|nodes}', '{count} 个节点'],
  'noscript': ['This page needs JavaScript.', '本页面需要 JavaScript。'],
});

// ── The explanation of a few requests────────────────────────────────────────────────────────────────
Words.add({
  'story.title.two-orders': ['How {strategy} gave one buyer {count} orders', '{strategy} 如何让一位买家得到 {count} 个订单'],
  'story.title.oversold': ['How {strategy} sold one voucher twice', '{strategy} 如何把一份优惠券卖了两次'],
  'story.title.lost': ['How {strategy} lost an order that it had confirmed', '{strategy} 如何弄丢了已确认的订单'],
  'story.title.held': ['How {strategy} prevented a second order', '{strategy} 如何防止重复下单'],
  'story.fault': ['Recorded while the fault lasted: {fault}.', '记录于故障期间：{fault}。'],
  'story.note': ['Recorded in this run: {ms} ms, step by step.', '取自本次运行的记录：{ms} 毫秒，逐步展开。'],
  'story.plot': ['Timeline: {count} requests on {nodes}', '时间线：{count} 个请求，{nodes}'],
  'story.node': ['Node {node}', '节点 {node}'], 'story.ms': ['milliseconds', '毫秒'],
  'story.held-by': ['holds its lock', '持有锁'],
  'story.sent.same': ['Buyer {user} sends {count} requests at the same moment. nginx distributes them: {where}.', '买家 {user} 在同一时刻发出 {count} 个请求，nginx 将它们分发：{where}。'],
  'story.sent.alone': ['Buyer {user} sends {count} requests at the same moment: {where}.', '买家 {user} 在同一时刻发出 {count} 个请求：{where}。'],
  'story.sent.others': ['{count} buyers each send a request at the same moment: {where}.', '{count} 位买家在同一时刻发出请求：{where}。'],
  'story.sent.some': ['These {count} of them show why it ended that way.', '其中这 {count} 个说明了结果的原因。'],
  'story.elsewhere': ['{name} is for another voucher.', '{name} 抢的是另一张券。'],
  'story.where': ['{name} to node {node}', '{name} 到节点 {node}'],
  'step.locked.memory': ['Node {node} acquires the lock of buyer {user} in its own memory.', '节点 {node} 在自己的内存里获得买家 {user} 的锁。'],
  'step.locked.memory.again': ['Node {node} acquires the lock of the same buyer in its own memory: another lock, independent of the first.', '节点 {node} 在它自己的内存里获得同一买家的锁：这是另一把锁，与前一把无关。'],
  'step.locked.memory.after': ['Node {node} acquires the lock of buyer {user}, which is free again.', '节点 {node} 获得买家 {user} 的锁，它刚被释放。'],
  'step.locked.redis': ['Node {node} acquires the lock of buyer {user} in Redis. All nodes share that Redis, so there is one lock.', '节点 {node} 在 Redis 里获得买家 {user} 的锁。所有节点共用这个 Redis，所以锁只有一把。'],
  'step.locked.redis.again': ['Node {node} acquires the lock of the same buyer in Redis, while the other request is still working: the lease of its lock has ended.', '节点 {node} 在 Redis 里获得同一买家的锁，而另一个请求还没处理完：它那把锁的租期已到。'],
  'step.locked.redis.after': ['Node {node} acquires the lock of buyer {user} in Redis, which is free again.', '节点 {node} 在 Redis 里获得买家 {user} 的锁：它刚被释放。'],
  'step.lock-busy.redis': ['Node {node} tries to acquire the same lock in Redis. It is held, so the request is refused.', '节点 {node} 向 Redis 请求同一把锁。锁已被持有，请求被拒绝。'],
  'step.lock-busy.memory': ['Node {node} finds the lock held, so the request is refused.', '节点 {node} 发现锁已被持有，拒绝请求。'],
  'step.lock-busy.later': ['Node {node} finds the lock held, and tries again later.', '节点 {node} 发现锁已被持有，稍后再试。'],
  'step.lock-failed': ['Node {node} gets no reply to its attempt to acquire the lock.', '节点 {node} 请求锁，没有得到响应。'],
  'step.looked.none': ['Node {node} reads: stock {stock}; no order by this buyer.', '节点 {node} 查询：库存 {stock}；这位买家没有订单。'],
  'step.looked.blind': ['Node {node} reads: stock {stock}; still no order by this buyer, as the other request has not committed yet.', '节点 {node} 查询：库存 {stock}；仍没有这位买家的订单，因为另一个请求还没有提交。'],
  'step.looked.too': ['Node {node} reads as well: stock {stock}; no order by this buyer yet.', '节点 {node} 也查询：库存 {stock}；还没有这位买家的订单。'],
  'step.looked.some': ['Node {node} reads: this buyer has an order already.', '节点 {node} 查询：这位买家已有订单。'],
  'step.looked.stock': ['Node {node} reads the stock: {stock}.', '节点 {node} 读取库存：{stock}。'],
  'step.looked.same': ['Node {node} reads the stock: {stock} as well. The other request has read the same value and not decremented it yet.', '节点 {node} 读取库存：同样是 {stock}。另一个请求读到了同一个值，但还没有扣减。'],
  'step.row-locked': ['Node {node} locks the sale’s row in the database; the next transaction waits for it. Stock {stock}; has this buyer an order? {order}', '节点 {node} 锁住数据库里这场秒杀的行，下一个事务须等待。库存 {stock}；这位买家有订单吗？{order}'],
  'step.row-locked.after': ['Node {node} had to wait for that row lock, and has it now. Stock {stock}; has this buyer an order? {order}', '节点 {node} 等到了这一行的锁。库存 {stock}；这位买家有订单吗？{order}'],
  'step.yes': ['Yes.', '有。'], 'step.no': ['No.', '没有。'],
  'step.asks': ['The database is queried', '查询数据库'], 'step.asks.again': ['The database is queried once more', '再次查询数据库'],
  'step.placed.taken': ['{asks}: there is no order by this buyer, so node {node} inserts one; the stock is decremented with the commit.', '{asks}：没有这位买家的订单，于是节点 {node} 插入订单，提交时库存减一。'],
  'step.placed.blind': ['{asks}: it sees no order by this buyer, as the other is not committed yet. So node {node} inserts one too.', '{asks}：看不到这位买家的订单，因为另一个尚未提交。于是节点 {node} 也插入一个。'],
  'step.placed.index-refused': ['{asks}: it sees no order by this buyer, but the unique index refuses the insert, as another request has inserted one meanwhile.', '{asks}：看不到这位买家的订单，但插入被唯一索引拒绝，因为另一个请求此时已插入一个。'],
  'step.placed.ordered-before': ['{asks}: this buyer has an order, so nothing is inserted.', '{asks}：这位买家已有订单，不再插入。'],
  'step.placed.nothing-left': ['The database finds no stock left: the order is rolled back.', '数据库发现没有库存了：订单被回滚。'],
  'step.placed.unit.taken': ['Node {node} inserts an order and takes a unit’s row that nobody else has locked.', '节点 {node} 插入订单，并取走一行没有被别人锁住的份额。'],
  'step.placed.unit.nothing-left': ['No unit is left: node {node} undoes this.', '没有剩余的份额：节点 {node} 撤销这一步。'],
  'step.placed.failed': ['The database does not answer in time: nothing is inserted.', '数据库没有及时响应：什么也没有插入。'],
  'step.inserted': ['Node {node} inserts an order.', '节点 {node} 插入一个订单。'],
  'step.decremented.naive': ['Node {node} decrements the stock without checking it.', '节点 {node} 把库存减一，不检查是否还有货。'],
  'step.decremented.done': ['Node {node} decrements the stock.', '节点 {node} 把库存减一。'],
  'step.decremented.moved': ['The stock is no longer the value that node {node} read: the purchase fails.', '库存已不是节点 {node} 读到的值，抢购失败。'],
  'step.committed': ['Node {node} commits: from now on every transaction sees this order.', '节点 {node} 提交：从此所有事务都能看到这个订单。'],
  'step.queued': ['Node {node} queues it for the next commit.', '节点 {node} 让它排队等待下一次提交。'],
  'step.batch-committed': ['Node {node} commits it together with {others|other order|other orders}.', '节点 {node} 将它与另外 {others} 个订单一起提交。'],
  'step.batch-committed.alone': ['Node {node} commits it alone: no other order was waiting.', '节点 {node} 单独提交它：没有其他订单在等待。'],
  'step.batch-committed.failed': ['Node {node} adds it to a group commit; the database’s unique index rejects it.', '节点 {node} 把它放进组提交；数据库唯一索引拒绝了它。'],
  'step.batch-committed.sold-out': ['Node {node} adds it to a group commit, and finds no stock left for it.', '节点 {node} 把它放进组提交，发现已没有库存。'],
  'step.admitted': ['The script in Redis admits the request and records the buyer.', 'Redis 中的脚本放行请求并记录买家。'],
  'step.admitted.failed': ['The script in Redis refuses the request.', 'Redis 中的脚本拒绝请求。'],
  'step.consumed': ['The consumer has written this request’s order: it is in the database by now.', '消费者已写入这个请求的订单：此时它已在数据库里。'],
  'step.queued.memory': ['Node {node} puts the order into a queue in its memory. Nothing is written yet.', '节点 {node} 把订单放进自己内存里的阻塞队列。此时什么都还没写入。'],
  'step.consumed.memory': ['The worker of node {node} has written this order: it is in the database by now.', '节点 {node} 的工作线程写入了这个订单：此时它已在数据库里。'],
  'step.killed': ['Node {node} is killed, and the queue in its memory goes with it. The buyer was told “you got it”; there is no order, and nobody knows that one is missing.', '节点 {node} 被强制终止，内存里的队列随之消失。买家早已看到“抢购成功”，库里却没有这个订单，也没有人知道少了一单。'],
  'step.unlocked.early': ['Node {node} releases its lock but has not committed: nobody else can see the order yet.', '节点 {node} 释放锁，却还没有提交：别人还看不到这个订单。'],
  'step.another': ['another request', '另一个请求'],
  'step.locked.deleted': ['Node {node} acquires the lock of the same buyer in Redis: {deleter} has just deleted it, although its holder is still working.', '节点 {node} 在 Redis 里获得同一买家的锁：锁刚被 {deleter} 误删，而它的持有者还没处理完。'],
  'step.committed.failed': ['The transaction does not commit, and is rolled back: this request has no order.', '事务没有提交，而是回滚：这个请求没有订单。'],
  'step.unlocked.foreign': ['Node {node} deletes the lock by DEL. But its own lease has ended long since: it deletes the lock of {owner}.', '节点 {node} 直接 DEL。可自己的租期早就到了，删掉的是 {owner} 的锁：误删。'],
  'step.unlocked.lost': ['Node {node} wants to release its lock: it is gone already.', '节点 {node} 想释放锁，锁早就没了。'],
  'step.unlocked': ['Node {node} releases its lock.', '节点 {node} 释放锁。'],
  'step.answered': ['Node {node} replies: {reply}', '节点 {node} 返回：{reply}'],
  'step.failed': ['Node {node}: “{step}” did not succeed.', '节点 {node}：“{step}”没有成功。'],
  'step.other': ['Node {node}: {step}.', '节点 {node}：{step}。'],
  'reply.ORDERED': ['“You got it”, order {id}.', '“抢购成功”，订单 {id}。'], 'reply.PENDING': ['“Pending”, order {id}.', '“处理中”，订单 {id}。'],
  'reply.SOLD_OUT': ['“Sold out”.', '“已售罄”。'], 'reply.ALREADY_ORDERED': ['“You already have one”.', '“你已经抢到过了”。'],
  'reply.LOCK_BUSY': ['“Another purchase of yours is being processed”.', '“你的另一次抢购正在处理”。'], 'reply.STOCK_CHANGED': ['“The stock changed”, though some is left.', '“库存已变动”，其实还有剩余。'],
  'legend.lock': ['lock', '锁'], 'legend.look': ['read', '查询'], 'legend.write': ['write', '写入'], 'legend.commit': ['commit', '提交'], 'legend.refused': ['refused', '被拒绝'], 'legend.answer': ['reply', '返回'],
  'conclusion.one': ['One buyer, one order.', '一位买家，一个订单。'],
  'conclusion.no-lock': ['Each request read before the other had committed, saw no order, and inserted one. Check and insert must be atomic, or protected by one lock that all nodes share.', '双方都在对方提交之前查询，都没看到订单，于是各插入一个。检查与插入必须是原子的，或由所有节点共用的一把锁保护。'],
  'conclusion.lost': ['Yes was said before the order was written.', '订单还没写入，就答复了成功。'],
  'conclusion.oversold': ['Both read the same stock, and both decremented it. Check and decrement must be atomic.', '双方读到同一库存，也都扣减了它。检查与扣减必须是原子的。'],
  'conclusion.index': ['The lock did not keep the second request out; the database’s unique index did. One buyer, one order.', '锁没有挡住第二个请求，数据库的唯一索引挡住了。一位买家，一个订单。'],
  'conclusion.admitted': ['The script in Redis decides, one request at a time; the order is written later, and the buyer has to wait for it or ask again. One buyer, one order.', '由 Redis 中的脚本逐个决定；订单稍后写入，买家须等待或再查询。一位买家，一个订单。'],
  'conclusion.held': ['One request got the order; the others were refused. One buyer, one order.', '一个请求得到订单，其余被拒绝。一位买家，一个订单。'],
});
