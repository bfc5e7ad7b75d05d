'use strict';
// The shop page, which connects its parts: route.js, shops.js and sale.js show what the address selects; account.js,
// orders.js and purchase.js are the buyer's session, orders and purchases.

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
  let selected = { type: null, shop: null, voucher: null };
  // Whether the service says that there is no such shop.
  let missing = false;
  // What the address named, until the visitor's next choice.
  let named = selected;

  // The selected shop, also where it is not on the first page of its category.
  const shop = Page.loaded(async () => {
    const asked = selected.shop;
    if (!asked) return null;
    const reply = await Page.ask('GET', `/shop/${asked}`);
    return asked === selected.shop ? reply : null;
  }, (reply) => {
    missing = !reply.ok && !Page.isFailure(reply);
    showPlace();
  });

  // Selects a category, a shop and a voucher. `asDefault`: the visitor has not chosen them.
  function select(selection, asDefault) {
    if (!asDefault) named = selection;
    const sameShop = selection.shop === selected.shop;
    selected = selection;
    Route.write(selected, asDefault);
    Shops.select(selected.type, selected.shop);
    Sale.select(selected.shop, selected.voucher);
    if (!sameShop) {
      missing = false;
      shop.reset();
      shop.load();
      showPlace();
    }
    fillIn();
  }

  // Selects a default for each part that the address does not name, as soon as its choices are loaded.
  function fillIn() {
    const types = Shops.types();
    const shops = Shops.all();
    const filled = { ...selected };
    if (types && !types.some((one) => one.id === filled.type)) filled.type = types.length ? types[0].id : null;
    // The shops are those of the selected category.
    if (!filled.shop && shops && filled.type === selected.type && shops.length) filled.shop = shops[0].id;
    // And the vouchers those of the selected shop.
    if (filled.shop === selected.shop) {
      // The voucher that the address names may be published after the page was opened.
      if (named.voucher && named.shop === selected.shop && Sale.has(named.voucher)) filled.voucher = named.voucher;
      const isOnSale = filled.voucher && Sale.has(filled.voucher);
      const preferred = isOnSale ? null : Sale.preferred();
      if (preferred) filled.voucher = preferred.id;
    }
    if (filled.type !== selected.type || filled.shop !== selected.shop || filled.voucher !== selected.voucher) select(filled, true);
  }

  // Whether the address names a category or a voucher that does not exist here. What is not loaded yet counts as existing.
  function isLinkWrong() {
    const types = Shops.types();
    const typeExists = !types || !named.type || types.some((one) => one.id === named.type);
    const voucherExists = !named.voucher || named.shop !== selected.shop || Sale.has(named.voucher);
    return !typeExists || !voucherExists;
  }

  // The heading: the shop's name, or why there is none.
  function heading(known) {
    if (known) return known.name;
    const isEmptyCategory = !selected.shop && Shops.all();
    const type = isEmptyCategory && (Shops.types() || []).find((one) => one.id === selected.type);
    if (type) return type.name;
    if (missing) return Words.t('shop.unknown');
    return Words.t(shop.failed ? 'shop.failed' : 'shop.loading');
  }

  function showPlace() {
    const listed = (Shops.all() || []).find((one) => one.id === selected.shop);
    const known = shop.data || listed;
    id('shop-name').textContent = heading(known);
    const wrong = isLinkWrong();
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
  Sale.onChoice((voucher) => select({ ...selected, voucher }, false));
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
