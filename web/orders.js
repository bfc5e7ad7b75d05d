'use strict';
// The buyer's orders, as the server last listed them: the one source of an order's state, for the list and for the buy
// button. They are loaded again after each change, when another tab changed them, when the page is shown again, and
// every few seconds while an order is unpaid, since it may expire, then every second until it has.

const Orders = (() => {
  Words.add({
    'orders.title': ['My orders', '我的订单'],
    'orders.none': ['No orders yet.', '还没有订单。'],
    'orders.loading': ['Loading…', '加载中…'],
    'orders.failed': ['Your orders could not be loaded. Trying again…', '订单加载失败，正在重试…'],
    'orders.expected': ['Looking for your order…', '正在查找你的订单…'],
    'orders.pay': ['Pay', '支付'], 'orders.paying': ['Paying…', '支付中…'],
    'orders.cancel': ['Cancel', '取消'], 'orders.cancelling': ['Cancelling…', '取消中…'],
    'orders.sure': ['Cancel this order? Your place goes to somebody else.', '确定取消？名额会让给别人。'],
    'orders.yes': ['Yes, cancel it', '确定取消'], 'orders.keep': ['Keep it', '保留'],
    'orders.unknown': ['No reply arrived. Looking up the result…', '没有收到响应，正在查询结果…'],
    'orders.not.pay': ['It was not paid. You can try again.', '没有支付成功，可以再试一次。'],
    'orders.not.cancel': ['It was not cancelled. You can try again.', '没有取消成功，可以再试一次。'],
    'orders.more': ['Older orders', '更早的订单'],
    'orders.moreFailed': ['The older orders could not be loaded.', '更早的订单加载失败。'],
    'orders.voucher': ['Voucher {id}', '优惠券 {id}'],
    'orders.due': ['Pay within {clock}, or it is cancelled.', '请在 {clock} 内支付，否则订单会被取消。'],
    'orders.overdue': ['The time to pay is over.', '支付时间已过。'],
    'status.expired': ['not paid in time', '超时未支付'],
    'status.1': ['unpaid', '待支付'], 'status.2': ['paid', '已支付'], 'status.3': ['used', '已使用'],
    'status.4': ['cancelled', '已取消'], 'status.5': ['refunding', '退款中'], 'status.6': ['refunded', '已退款'],
  });

  const t = Words.t;
  const PAGE = 10, UNPAID = 1, CANCELLED = 4;
  // How often unpaid orders are looked at, and how long an error is shown at least; milliseconds.
  const WATCH_EVERY = 5000, SAID_FOR = 3000;
  const listeners = [];
  const tabs = 'BroadcastChannel' in window ? new BroadcastChannel('orders') : null;
  const titles = new Map(); // voucher id → title
  // What the buyer does to an order, by its id: {what, state, say, at}. The state is 'asked' (are they sure?), 'sending',
  // 'unknown' or 'refused'.
  const changes = new Map();
  let older = [], more = false, moreFailed = false, expected = false;

  const first = Page.loaded(async () => {
    const token = Account.token();
    if (!token) return null;
    const reply = await Account.ask('GET', '/voucher-order/of/me?current=1');
    return token === Account.token() ? reply : null;
  }, (reply) => {
    if (reply.ok) {
      if (!older.length) more = reply.data.length === PAGE;
      // An error ends with the next successful load.
      moreFailed = false;
      for (const [orderId, { state, at }] of changes) if (state === 'refused' && performance.now() - at > SAID_FOR) changes.delete(orderId);
    }
    changed();
  });

  function changed() {
    show();
    listeners.forEach((listener) => listener());
  }

  // Newest first; an order that moved from the first page to the second is there once.
  function all() {
    const page = first.data || [];
    const known = new Set(page.map((order) => order.orderId));
    return [...page, ...older.filter((order) => !known.has(order.orderId))];
  }

  // Takes in another page, or a single order. What was loaded of an order before is replaced.
  function merge(orders) {
    const loaded = new Map(orders.map((order) => [order.orderId, order]));
    const update = (order) => loaded.get(order.orderId) || order;
    if (first.data) first.data = first.data.map(update);
    const known = new Set((first.data || []).map((order) => order.orderId));
    older = [...older.map(update), ...orders.filter((order) => !known.has(order.orderId)
      && !older.some((one) => one.orderId === order.orderId))];
    // A row may have no time.
    const time = (order) => order.createTime || '';
    older.sort((a, b) => (time(b) > time(a) ? 1 : time(b) < time(a) ? -1 : 0));
    changed();
  }

  async function loadMore() {
    const page = Math.floor(all().length / PAGE) + 1;
    const reply = await Account.ask('GET', `/voucher-order/of/me?current=${page}`);
    moreFailed = !reply.ok;
    if (moreFailed) { show(); return; }
    more = reply.data.length === PAGE;
    merge(reply.data);
  }

  // Looks one order up; returns the reply.
  async function find(orderId) {
    const reply = await Account.ask('GET', `/voucher-order/${orderId}`);
    if (reply.ok && reply.code !== 'PENDING') merge([reply.data]);
    return reply;
  }

  function set(orderId, change) {
    if (change) changes.set(orderId, change); else changes.delete(orderId);
    show();
    return change;
  }

  // Pays or cancels. If the reply does not tell the outcome, the order is looked up, as after a purchase, until its state is
  // known.
  async function change(orderId, what) {
    const isOurs = (mine) => changes.get(orderId) === mine; // not signed out meanwhile
    const sending = set(orderId, { what, state: 'sending' });
    const reply = await Account.ask('POST', `/voucher-order/${orderId}/${what}`, { limitMs: 20000 });
    if (!isOurs(sending)) return;
    let refusal = Page.text(reply);
    if (reply.ok) merge([reply.data]);
    else if (Page.isFailure(reply)) {
      const unknown = set(orderId, { what, state: 'unknown' });
      const pause = Page.growing(300, 15000);
      for (let found = await find(orderId); Page.isFailure(found); found = await find(orderId)) {
        await Page.sleep(pause(found.waitMs));
        if (!isOurs(unknown)) return;
      }
      if (!isOurs(unknown)) return;
      refusal = () => t(`orders.not.${what}`);
    } else await find(orderId);
    if (byId(orderId)?.status === UNPAID) set(orderId, { what, state: 'refused', say: refusal, at: performance.now() });
    else { set(orderId, null); reload(); }
  }

  // Loads them here and in the other tabs.
  function reload() {
    if (tabs) tabs.postMessage('changed');
    return first.load();
  }

  // How long an unpaid order may still be paid, milliseconds; Infinity where it does not expire.
  const dueIn = (order) => (order?.status === UNPAID && order.expireTime ? Page.instant(order.expireTime) - Page.now() : Infinity);
  // The same as a text.
  function timeToPay(order) {
    const ms = dueIn(order);
    return ms === Infinity ? '' : ms > 0 ? t('orders.due', { clock: Page.countdown(ms) }) : t('orders.overdue');
  }
  // Whether the service cancelled the order, and not its buyer: after the time to pay.
  const isExpired = (order) => order.status === CANCELLED && order.updateTime > order.expireTime;

  const byId = (orderId) => all().find((order) => order.orderId === orderId);
  const ofVoucher = (voucher) => all().find((order) => order.voucherId === voucher && order.status !== CANCELLED);

  function reset() {
    first.reset();
    older = []; more = moreFailed = false;
    changes.clear();
    changed();
    first.load();
    askAgain();
  }

  // An order that was under way when the page was left may be written after the first look.
  async function askAgain() {
    const token = Account.token();
    for (const ms of [1500, 3000, 6000]) {
      await Page.sleep(ms);
      if (!token || token !== Account.token()) return;
      await first.load();
    }
  }

  function show() {
    document.getElementById('orders-card').hidden = !Account.token();
    const box = document.getElementById('orders');
    const orders = all();
    const said = first.failed ? t('orders.failed') : moreFailed ? t('orders.moreFailed') : null;
    const asked = [...changes].map(([orderId, { what, state, say }]) => [orderId, what, state, say && say()]);
    const key = JSON.stringify([Words.language(), orders, said, asked, expected, first.data === null, more, orders.map((order) => titles.get(order.voucherId))]);
    if (box.dataset.shows === key) return;
    box.dataset.shows = key;
    // A button that was pressed says what it does, and keeps the focus until its order has another state.
    const button = (name, kind, next, press, { orderId }, busy = false) => make('button', {
      type: 'button', class: `small ${kind}`, 'data-key': `${name}-${orderId}`, 'data-next': next, 'aria-disabled': String(busy),
      onclick: () => { if (!busy) press(); },
    }, t(`orders.${name}`));
    function buttons(order) {
      const { orderId } = order, { what, state } = changes.get(orderId) || {};
      if (state === 'asked') return [make('span', { class: 'soft' }, t('orders.sure')), make('span', { class: 'row' },
        button('yes', 'main', `cancelling-${orderId}`, () => change(orderId, 'cancel'), order), button('keep', 'quiet', `cancel-${orderId}`, () => set(orderId, null), order))];
      const busy = state === 'sending' || state === 'unknown';
      const actionButton = (name, doing, kind, next, press) => (busy && what === name ? button(doing, kind, orderId, press, order, true) : button(name, kind, next, press, order, busy));
      return [make('span', { class: 'row' },
        actionButton('pay', 'paying', 'main', `paying-${orderId}`, () => change(orderId, 'pay')),
        actionButton('cancel', 'cancelling', 'quiet', `keep-${orderId}`, () => set(orderId, { what: 'cancel', state: 'asked' })))];
    }
    function messageOf({ orderId }) {
      const { state, say } = changes.get(orderId) || {};
      return state === 'refused' ? make('p', { class: 'said bad' }, say()) : state === 'unknown' ? make('p', { class: 'said' }, t('orders.unknown')) : null;
    }
    const row = (order) => make('li', { class: 'order', tabindex: -1, 'data-key': order.orderId },
      make('div', null,
        make('strong', null, titles.get(order.voucherId) || t('orders.voucher', { id: order.voucherId })),
        make('span', { class: 'soft', role: 'timer', 'aria-live': 'off', 'data-due': order.orderId }, timeToPay(order)),
        make('span', { class: 'order-id' }, order.orderId),
        make('span', { class: 'soft' }, order.createTime && Words.time(Page.instant(order.createTime)))),
      make('div', { class: 'order-end' },
        make('span', { class: `badge status-${order.status}` }, t(`status.${isExpired(order) ? 'expired' : order.status}`)),
        order.status === UNPAID ? buttons(order) : null),
      order.status === UNPAID ? messageOf(order) : null);
    Page.render(box,
      said && make('p', { class: 'said bad' }, said),
      orders.length ? make('ul', { class: 'orders' }, orders.map(row))
        : !said && make('p', { class: 'soft' }, t(expected ? 'orders.expected' : first.data ? 'orders.none' : 'orders.loading')),
      more && make('button', { type: 'button', class: 'quiet', 'data-key': 'more', onclick: loadMore }, t('orders.more')));
  }

  // An unpaid order may expire, or be changed on another device.
  Page.whileVisible(1000, async () => {
    const unpaid = all().filter((order) => order.status === UNPAID);
    if (!unpaid.length) return 0;
    await first.load();
    return Math.min(WATCH_EVERY, ...unpaid.map(dueIn));
  });
  setInterval(() => {
    for (const timer of document.querySelectorAll('[data-due]')) timer.textContent = timeToPay(byId(timer.dataset.due));
  }, 250);
  document.addEventListener('visibilitychange', () => { if (!document.hidden && Account.token()) first.load(); });
  if (tabs) tabs.addEventListener('message', () => first.load());

  return {
    byId, dueIn, find, load: first.load, ofVoucher, reload, reset, show, timeToPay, UNPAID,
    // Whether the buyer's last order of a voucher has expired.
    hasExpired: (voucher) => isExpired(all().find((order) => order.voucherId === voucher) || {}),
    known: () => first.data !== null,
    // Whether an attempt to buy may still bring an order.
    expect: (isExpected) => { expected = isExpected; show(); },
    setTitles: (vouchers) => { vouchers.forEach((voucher) => titles.set(voucher.id, voucher.title)); show(); },
    onChange: (listener) => listeners.push(listener),
  };
})();
