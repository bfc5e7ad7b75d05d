'use strict';
// The shop page: a shop and its vouchers, the selected flash sale with countdown, stock and buy button, and the buyer's
// orders. Signing in is account.js, the purchase purchase.js.

(() => {
  Words.add({
    'shop.title': ['Flash sale', '秒杀商店'],
    'shop.foot': ['“It is yours” is shown only after the order is committed to the database.', '只有订单写入数据库之后，才会显示“抢购成功”。'],
    'shops.title': ['Shops', '店铺'],
    'shops.type': ['Category', '类别'],
    'shops.none': ['No shop in this category yet.', '该类别下还没有店铺。'],
    'shops.more': ['More shops', '更多店铺'],
    'sale.none': ['This shop has no flash sale right now.', '这家店目前没有秒杀。'],
    'sale.flash': ['Flash sale', '限时秒杀'],
    'sale.worth': ['worth {price}', '价值 {price}'],
    'sale.begins': ['Begins in', '距开始'],
    'sale.ends': ['Ends in', '距结束'],
    'sale.over': ['Ended on {date}', '已于 {date} 结束'],
    'sale.left': ['Left', '剩余'],
    'sale.some': ['{count} left', '剩余 {count}'],
    'sale.days': ['{days} d {clock}', '{days} 天 {clock}'],
    'sale.price': ['Buy for {price}', '{price} 立即抢购'],
    'sale.more': ['More from this shop', '本店更多优惠'],
    'sale.ordinary': ['Sold in the shop', '到店购买'],
    'sale.soon': ['soon', '即将开始'],
    'sale.rules': ['Rules', '使用规则'],
    'sale.old': ['{count} more that are sold out or over', '另有 {count} 个已售罄或已结束'],
    'orders.title': ['My orders', '我的订单'],
    'orders.none': ['No orders yet.', '还没有订单。'],
    'orders.pay': ['Pay', '支付'],
    'orders.cancel': ['Cancel', '取消'],
    'orders.more': ['Older orders', '更早的订单'],
    'orders.voucher': ['Voucher {id}', '优惠券 {id}'],
    'status.1': ['unpaid', '待支付'], 'status.2': ['paid', '已支付'], 'status.3': ['used', '已使用'],
    'status.4': ['cancelled', '已取消'], 'status.5': ['refunding', '退款中'], 'status.6': ['refunded', '已退款'],
  });

  const t = Words.t;
  const id = (name) => document.getElementById(name);
  const ORDERS_PAGE = 10, SHOPS_PAGE = 5;
  const linked = new URLSearchParams(location.hash.slice(1)); // #type=1&shop=1&voucher=2, to share
  const titles = new Map(); // voucher id → title, for the orders

  let types = [], type = Number(linked.get('type')) || null;
  let shops = [], moreShops = false, shop = null;
  let vouchers = null, chosen = Number(linked.get('voucher')) || null, error = null;
  let orders = [], page = 1, moreOrders = false, orderError = null;

  const yuan = (cents) => `¥${(cents / 100).toLocaleString('en-US', { minimumFractionDigits: cents % 100 ? 2 : 0 })}`;
  const isSale = (voucher) => voucher.type === 1 && voucher.beginTime && voucher.endTime;
  const begin = (voucher) => Page.instant(voucher.beginTime);
  const end = (voucher) => Page.instant(voucher.endTime);
  const isOn = (voucher) => isSale(voucher) && begin(voucher) <= Page.now() && Page.now() < end(voucher);
  const isLive = (voucher) => isSale(voucher) && Page.now() < end(voucher) && voucher.stock > 0;
  const owned = (voucher) => orders.find((order) => order.voucherId === voucher && order.status !== 4);

  function remember() {
    const at = new URLSearchParams();
    if (type) at.set('type', type);
    if (shop) at.set('shop', shop.id);
    if (chosen) at.set('voucher', chosen);
    history.replaceState(null, '', `#${at}`);
  }

  // ── The shops ──────────────────────────────────────────────────────────────────────────────────

  async function loadTypes() {
    const reply = await Page.ask('GET', '/shop-type/list');
    if (!reply.ok) { error = reply.message; showSale(); setTimeout(loadTypes, 2000); return; }
    types = reply.data;
    if (!types.some((one) => one.id === type)) type = types.length ? types[0].id : null;
    showTypes();
    await loadShops(1);
    const linkedShop = Number(linked.get('shop'));
    let first = shops.find((one) => one.id === linkedShop);
    if (!first && linkedShop) {
      const named = await Page.ask('GET', `/shop/${linkedShop}`);
      if (named.ok) first = named.data;
    }
    first = first || shops[0];
    if (first) selectShop(first); else { vouchers = []; showSale(); }
  }

  async function loadShops(current) {
    const asked = type;
    const reply = await Page.ask('GET', `/shop/of/type?typeId=${asked}&current=${current}`);
    if (asked !== type || !reply.ok) return;
    shops = current === 1 ? reply.data : [...shops, ...reply.data];
    moreShops = reply.data.length === SHOPS_PAGE;
    showShops();
  }

  function selectShop(other) {
    if (!shop || shop.id !== other.id) { vouchers = null; if (shop) chosen = null; }
    shop = other;
    showShops(); showPlace(); showSale();
    pollNow();
  }

  function showTypes() {
    id('types').replaceChildren(...types.map((one) => make('option', { value: one.id, selected: one.id === type }, one.name)));
  }

  function showShops() {
    const card = (one) => make('li', null, make('button', {
      type: 'button', class: 'choice', 'aria-pressed': String(Boolean(shop) && shop.id === one.id), onclick: () => selectShop(one),
    }, make('strong', null, one.name), make('span', { class: 'soft' }, [one.area, one.score ? `★ ${(one.score / 10).toFixed(1)}` : null].filter(Boolean).join(' · '))));
    id('shops').replaceChildren(
      shops.length ? make('ul', { class: 'choices' }, shops.map(card)) : make('p', { class: 'soft' }, t('shops.none')),
      moreShops ? make('button', { type: 'button', class: 'quiet', onclick: () => loadShops(shops.length / SHOPS_PAGE + 1) }, t('shops.more')) : '');
  }

  function showPlace() {
    if (!shop) return;
    id('shop-name').textContent = shop.name;
    id('shop-facts').textContent = [shop.area, shop.address, shop.openHours].filter(Boolean).join(' · ');
  }

  // ── The selected sale ────────────────────────────────────────────────────────────────────

  async function loadVouchers() {
    if (!shop) return 0;
    const asked = shop.id;
    const reply = await Page.ask('GET', `/voucher/list/${asked}`);
    if (asked !== shop.id) return 0;
    error = reply.ok ? null : reply.message;
    if (reply.ok) {
      vouchers = reply.data;
      for (const voucher of vouchers) titles.set(voucher.id, voucher.title);
      const sales = vouchers.filter(isSale);
      if (!sales.some((sale) => sale.id === chosen)) {
        const best = sales.find((sale) => isOn(sale) && sale.stock > 0) || sales.find(isLive) || sales[sales.length - 1];
        chosen = best ? best.id : null;
      }
      remember();
    }
    showSale(); showOrders();
    return reply.waitMs;
  }

  // The buy button: its label, whether it can be pressed, and the message below it.
  function buttonOf(sale) {
    const state = Purchase.stateOf(sale.id);
    const mine = owned(sale.id);
    const order = state.orderId || (mine && mine.orderId);
    if (!Account.user()) return { kind: 'go', label: t('buy.signIn'), press: Account.focusForm };
    switch (state.name) {
      case 'buying': case 'pending': case 'unknown': return { kind: 'busy', label: t(`buy.${state.name}`), order };
      case 'bought': return { kind: 'yours', label: t('buy.bought'), order, say: t('buy.boughtSay') };
      case 'owned': return { kind: 'yours', label: t('buy.owned'), order, say: t('code.ALREADY_ORDERED') };
      default:
    }
    if (mine) return { kind: 'yours', label: t('buy.owned'), order };
    if (Page.now() < begin(sale)) return { kind: 'off', label: t('buy.notYet') };
    if (Page.now() >= end(sale)) return { kind: 'off', label: t('buy.ended') };
    if (sale.stock <= 0) return { kind: 'off', label: t('buy.soldOut'), say: state.name === 'soldOut' ? t('code.SOLD_OUT') : null };
    const press = () => Purchase.buy(sale.id);
    if (state.name === 'soldOut') return { kind: 'go', label: t('buy.again'), press, say: t('code.SOLD_OUT') };
    if (state.name === 'failed') {
      const say = state.key ? t(state.key) : (Words.has(`code.${state.code}`) && state.code !== 'INTERNAL' ? t(`code.${state.code}`) : state.message);
      const wait = Math.ceil((state.until - performance.now()) / 1000);
      return wait > 0 ? { kind: 'off', label: t('buy.wait', { seconds: wait }), say, bad: true }
        : { kind: 'go', label: t('buy.again'), press, say, bad: true };
    }
    return { kind: 'go', label: t('sale.price', { price: yuan(sale.payValue) }), press };
  }

  // Time left, as 1 d 03:12:10, rounded up so that it ends at zero.
  function clock(ms) {
    const seconds = Math.max(0, Math.ceil(ms / 1000));
    const two = (value) => String(value).padStart(2, '0');
    const text = `${two(Math.floor(seconds / 3600) % 24)}:${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}`;
    const days = Math.floor(seconds / 86400);
    return days ? t('sale.days', { days, clock: text }) : text;
  }

  // Built once per sale and language; `refresh` fills in what changes.
  let built = null;
  function showSale() {
    const sale = (vouchers || []).find((voucher) => voucher.id === chosen);
    const key = sale ? `${sale.id} ${Words.language()} ${sale.title}` : null;
    if (!sale) {
      built = null;
      id('sale').replaceChildren(make('p', { class: error ? 'notice bad' : 'notice', role: 'status' },
        error || (vouchers ? t('sale.none') : '…')));
    } else if (!built || built.key !== key) {
      built = build(sale, key);
      id('sale').replaceChildren(built.ticket);
    }
    if (sale) { built.sale = sale; refresh(); }
    showVouchers();
  }

  function build(sale, key) {
    const part = (name, attributes, ...children) => make(name, attributes, ...children);
    const label = part('span', { class: 'soft' });
    const countdown = part('span', { class: 'countdown', role: 'timer' });
    const stock = part('span', { class: 'stock-number', id: 'stock' });
    const button = part('button', { type: 'button', class: 'buy', id: 'buy', onclick: () => built.press && built.press() });
    const order = part('p', { class: 'order-id' });
    const say = part('p', { class: 'said' });
    const error = part('p', { class: 'said bad' });
    const ticket = part('article', { class: 'ticket' },
      part('div', { class: 'ticket-price' },
        part('span', { class: 'tag' }, t('sale.flash')),
        part('span', { class: 'price' }, yuan(sale.payValue)),
        part('span', { class: 'worth' }, t('sale.worth', { price: yuan(sale.actualValue) }))),
      part('div', { class: 'ticket-body' },
        part('h2', { id: 'sale-title' }, sale.title),
        sale.subTitle ? part('p', { class: 'soft' }, sale.subTitle) : null,
        part('dl', { class: 'facts' },
          part('div', null, part('dt', null, label), part('dd', null, countdown)),
          part('div', null, part('dt', { class: 'soft' }, t('sale.left')), part('dd', null, stock))),
        button,
        part('div', { 'aria-live': 'polite', id: 'outcome' }, order, say), error,
        sale.rules ? part('details', null, part('summary', null, t('sale.rules')), part('p', { class: 'soft' }, sale.rules)) : null));
    return { key, ticket, label, countdown, stock, button, order, say, error, press: null };
  }

  const setText = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  function refresh() {
    if (!built) return;
    const { sale } = built;
    const [now, from, to] = [Page.now(), begin(sale), end(sale)];
    const over = now >= to;
    setText(built.label, over ? t('sale.over', { date: sale.endTime.replace('T', ' ') }) : t(now < from ? 'sale.begins' : 'sale.ends'));
    setText(built.countdown, over ? '' : clock((now < from ? from : to) - now));
    setText(built.stock, Words.number(Math.max(0, sale.stock)));
    const { kind, label, press, order, say, bad } = buttonOf(sale);
    built.press = press;
    setText(built.button, label);
    built.button.dataset.kind = kind;
    // Not `disabled`: a button that has the focus keeps it while it is busy.
    built.button.setAttribute('aria-disabled', String(kind !== 'go'));
    setText(built.order, order ? t('buy.order', { id: order }) : '');
    setText(built.say, say || '');
    built.say.className = bad ? 'said bad' : 'said';
    setText(built.error, error || '');
  }

  function showVouchers() {
    const others = (vouchers || []).filter((voucher) => voucher.id !== chosen);
    const row = (voucher) => {
      const sale = isSale(voucher);
      const note = !sale ? t('sale.ordinary') : voucher.stock <= 0 ? t('buy.soldOut')
        : isOn(voucher) ? t('sale.some', { count: Words.number(voucher.stock) }) : isLive(voucher) ? t('sale.soon') : t('buy.ended');
      const inside = [make('span', { class: 'row-price' }, yuan(voucher.payValue)),
        make('span', { class: 'row-title' }, voucher.title), make('span', { class: 'row-note soft' }, note)];
      return make('li', null, sale
        ? make('button', { type: 'button', class: 'choice', onclick: () => { chosen = voucher.id; remember(); showSale(); id('sale').scrollIntoView({ block: 'nearest' }); } }, inside)
        : make('div', { class: 'choice' }, inside));
    };
    const current = others.filter((voucher) => !isSale(voucher) || isLive(voucher));
    const past = others.filter((voucher) => isSale(voucher) && !isLive(voucher)).reverse();
    const key = JSON.stringify([Words.language(), others, current.length, chosen]);
    if (id('vouchers').dataset.shows === key) return;
    id('vouchers').dataset.shows = key;
    const opened = Boolean(id('vouchers').querySelector('details[open]'));
    id('vouchers').replaceChildren(
      current.length + past.length ? make('h2', { class: 'quiet-title' }, t('sale.more')) : '',
      make('ul', { class: 'choices' }, current.map(row)),
      past.length ? make('details', { open: opened }, make('summary', null, t('sale.old', { count: past.length })), make('ul', { class: 'choices' }, past.map(row))) : '');
  }

  // ── The orders ─────────────────────────────────────────────────────────────────────────────────

  async function loadOrders(current = 1) {
    const user = Account.user();
    if (!user) { orders = []; page = 1; showOrders(); refresh(); return; }
    const reply = await Account.ask('GET', `/voucher-order/of/me?current=${current}`);
    if (Account.user() !== user) return;
    orderError = reply.ok ? null : reply.message;
    if (reply.ok) {
      page = current;
      orders = current === 1 ? reply.data : [...orders, ...reply.data];
      moreOrders = reply.data.length === ORDERS_PAGE;
    }
    showOrders(); refresh();
  }

  async function change(order, what) {
    const reply = await Account.ask('POST', `/voucher-order/${order.orderId}/${what}`);
    if (reply.ok && what === 'cancel') Purchase.forget(order.voucherId);
    await loadOrders();
    if (!reply.ok && reply.status !== 401) { orderError = reply.message; showOrders(); }
    pollNow();
  }

  function showOrders() {
    const signedIn = Boolean(Account.user());
    id('orders-card').hidden = !signedIn;
    const key = JSON.stringify([Words.language(), orders, orderError, moreOrders, orders.map((order) => titles.get(order.voucherId))]);
    if (id('orders').dataset.shows === key) return;
    id('orders').dataset.shows = key;
    const row = (order) => make('li', { class: 'order' },
      make('div', null,
        make('strong', null, titles.get(order.voucherId) || t('orders.voucher', { id: order.voucherId })),
        make('span', { class: 'order-id' }, order.orderId),
        make('span', { class: 'soft' }, order.createTime.replace('T', ' '))),
      make('div', { class: 'order-end' },
        make('span', { class: `badge status-${order.status}` }, t(`status.${order.status}`)),
        order.status === 1 ? make('span', { class: 'row' },
          make('button', { type: 'button', class: 'small main', onclick: () => change(order, 'pay') }, t('orders.pay')),
          make('button', { type: 'button', class: 'small quiet', onclick: () => change(order, 'cancel') }, t('orders.cancel'))) : null));
    id('orders').replaceChildren(
      orderError ? make('p', { class: 'said bad' }, orderError) : '',
      orders.length ? make('ul', { class: 'orders' }, orders.map(row)) : make('p', { class: 'soft' }, t('orders.none')),
      moreOrders ? make('button', { type: 'button', class: 'quiet', onclick: () => loadOrders(page + 1) }, t('orders.more')) : '');
  }

  // ── Start ──────────────────────────────────────────────────────────────────────────────────────

  let last = null;
  Account.onChange(() => {
    refresh(); // the button changes with the session
    const user = Account.user();
    if ((user && user.id) === last) return;
    last = user && user.id;
    Purchase.forget();
    loadOrders();
  });
  Purchase.onChange((state) => {
    refresh();
    if (state === 'bought' || state === 'owned') loadOrders();
    if (state !== 'buying') pollNow();
  });
  Words.onChange(() => { showShops(); showPlace(); showSale(); showOrders(); });
  id('types').addEventListener('change', async () => {
    type = Number(id('types').value);
    await loadShops(1);
    if (shops.length) selectShop(shops[0]);
  });

  const pollNow = Page.whileVisible(1000, loadVouchers);
  setInterval(() => { if (!document.hidden) refresh(); }, 250);
  Account.show();
  Account.loadUser();
  loadTypes();
})();
