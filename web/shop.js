'use strict';
// The shop page: what the address selects is shown by route.js, shops.js and sale.js; the buyer's session, orders and
// purchases are account.js, orders.js and purchase.js.

(() => {
  Words.add({
    'shop.title': ['Flash sale', '秒杀商店'],
    'shop.foot': ['“You got it” is shown only after the order is committed to the database.', '只有订单写入数据库之后，才会显示“抢购成功”。'],
    'shop.loading': ['Loading…', '加载中…'],
    'shop.failed': ['The shop could not be loaded. Trying again…', '店铺信息加载失败，正在重试…'],
    'shop.unknown': ['There is no such shop.', '店铺不存在。'],
    'shop.about': ['A demo of a flash sale: few vouchers, many buyers, one order per buyer.', '秒杀演示：券少人多，每人限购一单。'],
    'shop.about.lab': ['See in the lab how that breaks', '到实验室看看它怎么被打破'],
    'shop.wrongLink': ['This link leads to something that is not on sale here. Below is what there is.', '链接指向的内容这里没有，下面是现有的。'],
  });

  const id = (name) => document.getElementById(name);
  let at = { type: null, shop: null, voucher: null }, missing = false;
  // What the address named, until the visitor's next choice.
  let named = at;

  // The selected shop, also where it is not on the first page of its category.
  const shop = Page.loaded(async () => {
    const asked = at.shop;
    if (!asked) return null;
    const reply = await Page.ask('GET', `/shop/${asked}`);
    return asked === at.shop ? reply : null;
  }, (reply) => {
    missing = !reply.ok && !Page.isFailure(reply);
    showPlace();
  });

  function select(other, asDefault) {
    if (!asDefault) named = other;
    const sameShop = other.shop === at.shop;
    at = other;
    Route.write(at, asDefault);
    Shops.select(at.type, at.shop);
    Sale.select(at.shop, at.voucher);
    if (!sameShop) {
      missing = false;
      shop.reset();
      shop.load();
      showPlace();
    }
    fillIn();
  }

  // Selects what the address leaves open, as soon as it is known what there is.
  function fillIn() {
    const [types, shops] = [Shops.types(), Shops.all()];
    const open = { ...at };
    if (types && !types.some((one) => one.id === open.type)) open.type = types.length ? types[0].id : null;
    if (!open.shop && shops && open.type === at.type && shops.length) open.shop = shops[0].id;
    if (open.shop === at.shop) {
      // It may be published after the page was opened.
      if (named.voucher && named.shop === at.shop && Sale.has(named.voucher)) open.voucher = named.voucher;
      const sale = open.voucher && Sale.has(open.voucher) ? null : Sale.preferred();
      open.voucher = sale ? sale.id : open.voucher;
    }
    if (open.type !== at.type || open.shop !== at.shop || open.voucher !== at.voucher) select(open, true);
  }

  // Whether what the address names is known not to be on sale.
  function isWrong() {
    const types = Shops.types();
    const isType = !types || !named.type || types.some((one) => one.id === named.type);
    const isVoucher = !named.voucher || named.shop !== at.shop || Sale.has(named.voucher);
    return !isType || !isVoucher;
  }

  function showPlace() {
    const listed = (Shops.all() || []).find((one) => one.id === at.shop);
    const known = shop.data || listed;
    // A category without shops: its name.
    const type = !at.shop && Shops.all() && (Shops.types() || []).find((one) => one.id === at.type);
    id('shop-name').textContent = known ? known.name : type ? type.name
      : Words.t(missing ? 'shop.unknown' : shop.failed ? 'shop.failed' : 'shop.loading');
    const wrong = isWrong();
    id('wrong-link').textContent = wrong ? Words.t('shop.wrongLink') : '';
    id('wrong-link').hidden = !wrong;
    id('shop-facts').textContent = known ? [known.area, known.address, known.openHours].filter(Boolean).join(' · ') : '';
  }

  function follow(address) {
    named = address;
    select(address, true);
  }

  Route.onChange(follow);
  Shops.onChoice(({ type, shop }) => select({ type, shop, voucher: null }, false));
  Shops.onChange(() => { fillIn(); showPlace(); Sale.show(); });
  Sale.onChoice((voucher) => select({ ...at, voucher }, false));
  Sale.onChange(() => { fillIn(); showPlace(); });
  Account.onChange(() => {
    Purchase.reset();
    Orders.reset();
    Sale.refresh();
  });
  Account.onSignIn(Sale.focusButton);
  Orders.onChange(Sale.refresh);
  Purchase.onChange(() => {
    Sale.refresh();
    Sale.poll();
  });
  Words.onChange(() => { Shops.show(); showPlace(); Sale.show(); Orders.show(); });

  Account.start();
  Orders.reset();
  Purchase.resume();
  Shops.start();
  follow(Route.read());
})();
