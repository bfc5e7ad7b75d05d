'use strict';
// The buyer's orders, as the server last told them: the one source of an order's state, for the list and for the buy
// button. They are loaded again after each change, when another tab changed them, when the page is shown again, and
// every few seconds while one is unpaid, since it may expire.

const Orders = (() => {
  Words.add({
    'orders.title': ['My orders', '我的订单'],
    'orders.none': ['No orders yet.', '还没有订单。'],
    'orders.loading': ['Loading…', '加载中…'],
    'orders.failed': ['Your orders could not be loaded. Trying again…', '订单加载失败，正在重试…'],
    'orders.pay': ['Pay', '支付'],
    'orders.cancel': ['Cancel', '取消'],
    'orders.more': ['Older orders', '更早的订单'],
    'orders.voucher': ['Voucher {id}', '优惠券 {id}'],
    'status.1': ['unpaid', '待支付'], 'status.2': ['paid', '已支付'], 'status.3': ['used', '已使用'],
    'status.4': ['cancelled', '已取消'], 'status.5': ['refunding', '退款中'], 'status.6': ['refunded', '已退款'],
  });

  const t = Words.t;
  const PAGE = 10, UNPAID = 1, CANCELLED = 4, WATCH_EVERY = 5000;
  const listeners = [];
  const tabs = 'BroadcastChannel' in window ? new BroadcastChannel('orders') : null;
  const titles = new Map(); // voucher id → title
  let older = [], more = false, error = null;

  const first = Page.loaded(async () => {
    const token = Account.token();
    if (!token) return null;
    const reply = await Account.ask('GET', '/voucher-order/of/me?current=1');
    return token === Account.token() ? reply : null;
  }, (reply) => {
    if (reply.ok && !older.length) more = reply.data.length === PAGE;
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

  // Another page was loaded, or a single order: the newer word on an order replaces the older.
  function merge(orders) {
    const told = new Map(orders.map((order) => [order.orderId, order]));
    const update = (order) => told.get(order.orderId) || order;
    if (first.data) first.data = first.data.map(update);
    const known = new Set((first.data || []).map((order) => order.orderId));
    older = [...older.map(update), ...orders.filter((order) => !known.has(order.orderId)
      && !older.some((one) => one.orderId === order.orderId))];
    older.sort((a, b) => (b.createTime > a.createTime ? 1 : b.createTime < a.createTime ? -1 : 0));
    changed();
  }

  async function loadMore() {
    const page = Math.floor(all().length / PAGE) + 1;
    const reply = await Account.ask('GET', `/voucher-order/of/me?current=${page}`);
    if (!reply.ok) { error = () => t('orders.failed'); show(); return; }
    error = null;
    more = reply.data.length === PAGE;
    merge(reply.data);
  }

  // Looks one order up; returns the reply.
  async function find(orderId) {
    const reply = await Account.ask('GET', `/voucher-order/${orderId}`);
    if (reply.ok && reply.code !== 'PENDING') merge([reply.data]);
    return reply;
  }

  async function change(order, what) {
    const reply = await Account.ask('POST', `/voucher-order/${order.orderId}/${what}`, { limitMs: 20000 });
    error = reply.ok || reply.status === 401 ? null : () => reply.message;
    if (reply.ok) merge([reply.data]); else show();
    reload();
  }

  // Loads them here and in the other tabs.
  function reload() {
    if (tabs) tabs.postMessage('changed');
    return first.load();
  }

  const byId = (orderId) => all().find((order) => order.orderId === orderId);
  const ofVoucher = (voucher) => all().find((order) => order.voucherId === voucher && order.status !== CANCELLED);

  function reset() {
    first.reset();
    older = []; more = false; error = null;
    changed();
    first.load();
  }

  function show() {
    document.getElementById('orders-card').hidden = !Account.token();
    const box = document.getElementById('orders');
    const orders = all();
    const said = error ? error() : first.failed ? t('orders.failed') : null;
    const key = JSON.stringify([Words.language(), orders, said, first.data === null, more, orders.map((order) => titles.get(order.voucherId))]);
    if (box.dataset.shows === key) return;
    box.dataset.shows = key;
    const button = (order, what, kind) => make('button', {
      type: 'button', class: `small ${kind}`, 'data-key': `${what}-${order.orderId}`, 'data-next': order.orderId,
      onclick: () => change(order, what),
    }, t(`orders.${what}`));
    const row = (order) => make('li', { class: 'order', tabindex: -1, 'data-key': order.orderId },
      make('div', null,
        make('strong', null, titles.get(order.voucherId) || t('orders.voucher', { id: order.voucherId })),
        make('span', { class: 'order-id' }, order.orderId),
        make('span', { class: 'soft' }, order.createTime.replace('T', ' '))),
      make('div', { class: 'order-end' },
        make('span', { class: `badge status-${order.status}` }, t(`status.${order.status}`)),
        order.status === UNPAID
          ? make('span', { class: 'row' }, button(order, 'pay', 'main'), button(order, 'cancel', 'quiet')) : null));
    Page.render(box,
      said && make('p', { class: 'said bad' }, said),
      orders.length ? make('ul', { class: 'orders' }, orders.map(row))
        : !said && make('p', { class: 'soft' }, t(first.data ? 'orders.none' : 'orders.loading')),
      more && make('button', { type: 'button', class: 'quiet', 'data-key': 'more', onclick: loadMore }, t('orders.more')));
  }

  // An unpaid order may expire, or be changed on another device.
  Page.whileVisible(WATCH_EVERY, async () => {
    if (all().some((order) => order.status === UNPAID)) await first.load();
  });
  document.addEventListener('visibilitychange', () => { if (!document.hidden && Account.token()) first.load(); });
  if (tabs) tabs.addEventListener('message', () => first.load());

  return {
    byId, find, load: first.load, ofVoucher, reload, reset, show, UNPAID,
    known: () => first.data !== null,
    setTitles: (vouchers) => { vouchers.forEach((voucher) => titles.set(voucher.id, voucher.title)); show(); },
    onChange: (listener) => listeners.push(listener),
  };
})();
