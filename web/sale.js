'use strict';
// The vouchers of the selected shop, and the ticket of the selected flash sale: countdown, stock and buy button.

const Sale = (() => {
  Words.add({
    'sale.none': ['This shop has no flash sale right now.', '这家店目前没有秒杀。'],
    'sale.loading': ['Loading…', '加载中…'],
    'sale.failed': ['The vouchers could not be loaded. Trying again…', '优惠券加载失败，正在重试…'],
    'sale.stale': ['This may be out of date: the service is not responding. Trying again…', '服务没有响应，以下信息可能不是最新的，正在重试…'],
    'sale.flash': ['Flash sale', '限时秒杀'],
    'sale.worth': ['worth {price}', '价值 {price}'],
    'sale.begins': ['Starts in', '距开始'],
    'sale.ends': ['Ends in', '距结束'],
    'sale.over': ['Ended on {date}', '已于 {date} 结束'],
    'sale.left': ['Left', '剩余'],
    'sale.some': ['{count} left', '剩余 {count}'],
    'sale.price': ['Buy for {price}', '{price} 立即抢购'],
    'sale.more': ['More from this shop', '本店更多优惠'],
    'sale.ordinary': ['Sold in the shop', '到店购买'],
    'sale.soon': ['soon', '即将开始'],
    'sale.rules': ['Rules', '使用规则'],
    'sale.old': ['{count} more, sold out or ended', '另有 {count} 个已售罄或已结束'],
    'buy.signIn': ['Sign in to buy', '登录后抢购'],
    'buy.notYet': ['Not started yet', '尚未开始'],
    'buy.ended': ['The sale is over', '秒杀已结束'],
    'buy.checking': ['Checking your orders…', '正在查询你的订单…'],
    'buy.unchecked': ['Buy without checking', '不等查询，直接抢购'],
    'buy.uncheckedSay': ['Your orders could not be loaded, so it is not known whether you have this one. If you do, you will not get a second.', '订单加载失败，无法确认你是否已抢到。若已抢到，不会重复下单。'],
    'buy.bought': ['You got it', '抢购成功'],
    'buy.boughtSay': ['The order is in the database. Pay for it under “My orders”.', '订单已写入数据库，请在“我的订单”里支付。'],
    'buy.toOrder': ['To my order', '去我的订单'],
    'buy.owned': ['You have one', '你已抢到'],
    'buy.soldOut': ['Sold out', '已售罄'],
    'buy.expired': ['Your order was not paid in time, so it was cancelled.', '你的订单未按时支付，已被取消。'],
    'buy.again': ['Try again', '再试一次'],
    'buy.wait': ['Try again in {seconds} s', '{seconds} 秒后重试'],
  });

  const t = Words.t;
  const id = (name) => document.getElementById(name);
  // When the buyer's orders have not been loaded for so long, the buyer may buy without that check; milliseconds.
  const CHECK_FOR = 5000;
  const POLL_EVERY = 1000;
  const listeners = [];
  let shop = null, chosen = null, unknownSince = null, choose = () => {};

  // A voucher may have no price.
  const yuan = (cents = 0) => `¥${(cents / 100).toLocaleString('en-US', { minimumFractionDigits: cents % 100 ? 2 : 0 })}`;
  const isSale = (voucher) => voucher.type === 1 && voucher.beginTime && voucher.endTime;
  const begin = (voucher) => Page.instant(voucher.beginTime);
  const end = (voucher) => Page.instant(voucher.endTime);
  const isOn = (voucher) => isSale(voucher) && begin(voucher) <= Page.now() && Page.now() < end(voucher);
  const isLive = (voucher) => isSale(voucher) && Page.now() < end(voucher) && voucher.stock > 0;

  const vouchers = Page.loaded(async () => {
    const asked = shop;
    if (!asked) return null;
    const reply = await Page.ask('GET', `/voucher/list/${asked}`);
    return asked === shop ? reply : null;
  }, (reply) => {
    if (reply.ok) Orders.setTitles(reply.data);
    listeners.forEach((listener) => listener());
    show();
  });

  // The sale that is shown where the address names none: null while the vouchers are not known.
  function preferred() {
    const sales = (vouchers.data || []).filter(isSale);
    return sales.find((sale) => isOn(sale) && sale.stock > 0) || sales.find(isLive) || sales[sales.length - 1] || null;
  }

  // Selects a shop and a voucher, by their ids; null for none.
  function select(newShop, voucher) {
    chosen = voucher;
    if (newShop !== shop) {
      shop = newShop;
      vouchers.reset();
      poll();
    }
    show();
  }

  // The buy button: its label, what pressing it does, and the message below it. An order that the server has listed decides
  // it first, then the attempt that is under way.
  function buttonOf(sale) {
    if (!Account.token()) return { kind: 'go', label: t('buy.signIn'), press: Account.focusForm };
    const order = Orders.ofVoucher(sale.id);
    if (order) {
      const unpaid = order.status === Orders.UNPAID;
      if (Orders.dueIn(order) <= 0) return { kind: 'off', label: t('orders.overdue'), order: order.orderId };
      return { kind: 'yours', label: t(unpaid ? 'buy.bought' : 'buy.owned'), order: order.orderId,
        say: unpaid ? t('buy.boughtSay') : t(`status.${order.status}`) };
    }
    const attempt = Purchase.of(sale.id) || { name: 'none' };
    const press = () => Purchase.buy(sale.id);
    const slow = attempt.since && Purchase.isSlow(attempt);
    switch (attempt.name) {
      case 'buying': return { kind: 'busy', label: t('buy.buying'), say: slow ? t('buy.slow') : null };
      case 'bought': return { kind: 'yours', label: t('buy.bought'), order: attempt.orderId, say: t('buy.boughtSay') };
      case 'owned': return { kind: 'yours', label: t('buy.owned'), order: attempt.orderId, say: t('code.ALREADY_ORDERED') };
      case 'pending': return { kind: 'busy', label: t('buy.pending'), order: attempt.orderId, say: slow ? t('buy.pendingLong') : null };
      case 'unknown': return slow
        ? { kind: 'go', label: t('buy.again'), order: attempt.orderId, press, say: t('buy.unsure') }
        : { kind: 'busy', label: t('buy.unknown'), order: attempt.orderId };
      default:
    }
    // What became of the last attempt, or of the order that it brought.
    const say = attempt.name === 'failed' ? attempt.say() : Orders.hasExpired(sale.id) ? t('buy.expired') : null;
    if (Page.now() < begin(sale)) return { kind: 'off', label: t('buy.notYet') };
    if (Page.now() >= end(sale)) return { kind: 'off', label: t('buy.ended'), say };
    if (sale.stock <= 0) return { kind: 'off', label: t('buy.soldOut'), say };
    if (attempt.name === 'failed') {
      const wait = Math.ceil((attempt.until - performance.now()) / 1000);
      return wait > 0 ? { kind: 'off', label: t('buy.wait', { seconds: wait }), say, bad: true }
        : { kind: 'go', label: t('buy.again'), press, say, bad: true };
    }
    if (!Orders.known()) {
      unknownSince = unknownSince || performance.now();
      const late = performance.now() - unknownSince > CHECK_FOR;
      return late ? { kind: 'go', label: t('buy.unchecked'), press, say: t('buy.uncheckedSay') } : { kind: 'busy', label: t('buy.checking') };
    }
    unknownSince = null;
    return { kind: 'go', label: t('sale.price', { price: yuan(sale.payValue) }), press, say };
  }

  const clock = Page.countdown;

  // Built once per sale and language; `refresh` fills in what changes.
  let built = null;
  function show() {
    const sale = (vouchers.data || []).find((voucher) => voucher.id === chosen);
    const key = sale ? `${sale.id} ${Words.language()} ${sale.title}` : null;
    if (!sale) {
      built = null;
      const nowhere = !shop && Shops.all() && !Shops.all().length;
      const say = nowhere ? 'shops.none' : vouchers.data ? 'sale.none' : vouchers.failed ? 'sale.failed' : 'sale.loading';
      Page.render(id('sale'), make('p', { class: vouchers.failed ? 'notice bad' : 'notice', role: 'status' }, t(say)));
    } else if (!built || built.key !== key) {
      built = build(sale, key);
      Page.render(id('sale'), built.ticket);
    }
    if (sale) { built.sale = sale; refresh(); }
    showOthers();
  }

  function build(sale, key) {
    const label = make('span', { class: 'soft' });
    const countdown = make('span', { class: 'countdown', role: 'timer' });
    const stock = make('span', { class: 'stock-number', id: 'stock' });
    const button = make('button', { type: 'button', class: 'buy', id: 'buy', 'data-key': 'buy', onclick: () => built.press && built.press() });
    const order = make('p', { class: 'order-id' });
    const say = make('p', { class: 'said' });
    // On a small screen the orders are out of view.
    const toOrder = make('button', { type: 'button', class: 'quiet small to-order', hidden: true,
      onclick: () => focusAt(document.querySelector(`.order[data-key="${Orders.ofVoucher(sale.id)?.orderId}"]`)) }, t('buy.toOrder'));
    const stale = make('p', { class: 'said bad' });
    const ticket = make('article', { class: 'ticket' },
      make('div', { class: 'ticket-price' },
        make('span', { class: 'tag' }, t('sale.flash')),
        make('span', { class: 'price' }, yuan(sale.payValue)),
        make('span', { class: 'worth' }, t('sale.worth', { price: yuan(sale.actualValue) }))),
      make('div', { class: 'ticket-body' },
        make('h2', { id: 'sale-title', tabindex: -1, 'data-key': 'title' }, sale.title),
        sale.subTitle ? make('p', { class: 'soft' }, sale.subTitle) : null,
        make('dl', { class: 'facts' },
          make('div', null, make('dt', null, label), make('dd', null, countdown)),
          make('div', null, make('dt', { class: 'soft' }, t('sale.left')), make('dd', null, stock))),
        make('p', { class: 'said', id: 'due', role: 'timer' }),
        button,
        make('div', { 'aria-live': 'polite', id: 'outcome' }, order, say), toOrder, stale,
        sale.rules ? make('details', null, make('summary', null, t('sale.rules')), make('p', { class: 'soft' }, sale.rules)) : null));
    return { key, ticket, label, countdown, stock, button, order, say, toOrder, stale, press: null };
  }

  function focusAt(element) {
    if (!element) return;
    element.focus({ preventScroll: true });
    element.scrollIntoView({ block: 'center' });
  }

  const setText = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  function refresh() {
    if (!built) return;
    const { sale } = built;
    const [now, from, to] = [Page.now(), begin(sale), end(sale)];
    const over = now >= to;
    setText(built.label, over ? t('sale.over', { date: Words.time(to) }) : t(now < from ? 'sale.begins' : 'sale.ends'));
    setText(built.countdown, over ? '' : clock((now < from ? from : to) - now));
    setText(built.stock, Words.number(Math.max(0, sale.stock)));
    const { kind, label, press, order, say, bad } = buttonOf(sale);
    built.press = press;
    setText(built.button, label);
    setText(id('due'), kind === 'yours' ? Orders.timeToPay(Orders.ofVoucher(sale.id)) : '');
    built.button.dataset.kind = kind;
    // Not `disabled`: a button that has the focus keeps it while it is busy.
    built.button.setAttribute('aria-disabled', String(kind !== 'go'));
    setText(built.order, order ? t('buy.order', { id: order }) : '');
    setText(built.say, say || '');
    built.say.className = bad ? 'said bad' : 'said';
    built.toOrder.hidden = Orders.byId(order)?.status !== Orders.UNPAID;
    setText(built.stale, vouchers.failed ? t('sale.stale') : '');
  }

  function showOthers() {
    const others = (vouchers.data || []).filter((voucher) => voucher.id !== chosen);
    const row = (voucher) => {
      const sale = isSale(voucher);
      const note = !sale ? t('sale.ordinary') : voucher.stock <= 0 ? t('buy.soldOut')
        : isOn(voucher) ? t('sale.some', { count: Words.number(voucher.stock) }) : isLive(voucher) ? t('sale.soon') : t('buy.ended');
      const inside = [make('span', { class: 'row-price' }, yuan(voucher.payValue)),
        make('span', { class: 'row-title' }, voucher.title), make('span', { class: 'row-note soft' }, note)];
      const press = () => {
        choose(voucher.id);
        id('sale').scrollIntoView({ block: 'nearest' });
        id('sale-title').focus({ preventScroll: true });
      };
      return make('li', null, sale
        ? make('button', { type: 'button', class: 'choice', 'data-key': voucher.id, onclick: press }, inside)
        : make('div', { class: 'choice' }, inside));
    };
    const current = others.filter((voucher) => !isSale(voucher) || isLive(voucher));
    const past = others.filter((voucher) => isSale(voucher) && !isLive(voucher)).reverse();
    const key = JSON.stringify([Words.language(), others, current.length, chosen]);
    if (id('vouchers').dataset.shows === key) return;
    id('vouchers').dataset.shows = key;
    const opened = Boolean(id('vouchers').querySelector('details[open]'));
    Page.render(id('vouchers'),
      current.length + past.length ? make('h2', { class: 'quiet-title' }, t('sale.more')) : null,
      make('ul', { class: 'choices' }, current.map(row)),
      past.length ? make('details', { open: opened }, make('summary', { 'data-key': 'old' }, t('sale.old', { count: past.length })), make('ul', { class: 'choices' }, past.map(row))) : null);
  }

  // The stock changes by itself.
  const poll = Page.whileVisible(POLL_EVERY, async () => {
    const reply = await vouchers.load();
    return reply ? Math.max(reply.waitMs, Page.nextPoll(POLL_EVERY)) : 0;
  });
  setInterval(() => { if (!document.hidden) refresh(); }, 250);

  return {
    poll, preferred, refresh, select, show,
    // Where a buyer goes on after signing in.
    focusButton: () => focusAt(id('buy')),
    has: (voucher) => !vouchers.data || vouchers.data.some((one) => one.id === voucher && isSale(one)),
    // `listener` is told the id of a voucher that the visitor chose.
    onChoice: (listener) => { choose = listener; },
    onChange: (listener) => listeners.push(listener),
  };
})();
