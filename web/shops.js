'use strict';
// The categories, and the shops of the selected one.

const Shops = (() => {
  Words.add({
    'shops.title': ['Shops', '店铺'],
    'shops.type': ['Category', '类别'],
    'shops.none': ['No shop in this category yet.', '该类别下还没有店铺。'],
    'shops.more': ['More shops', '更多店铺'],
    'shops.loading': ['Loading…', '加载中…'],
    'shops.failed': ['The shops could not be loaded. Trying again…', '店铺加载失败，正在重试…'],
  });

  const t = Words.t;
  const id = (name) => document.getElementById(name);
  const PAGE = 5;
  const listeners = [];
  let type = null, shop = null, older = [], more = false;

  const types = Page.loaded(() => Page.ask('GET', '/shop-type/list'), changed);
  const first = Page.loaded(async () => {
    const asked = type;
    if (!asked) return null;
    const reply = await Page.ask('GET', `/shop/of/type?typeId=${asked}&current=1`);
    return asked === type ? reply : null;
  }, (reply) => {
    if (reply.ok) more = reply.data.length === PAGE;
    changed();
  });

  function changed() {
    show();
    listeners.forEach((listener) => listener());
  }

  const all = () => [...(first.data || []), ...older];

  async function loadMore() {
    const asked = type;
    const reply = await Page.ask('GET', `/shop/of/type?typeId=${asked}&current=${all().length / PAGE + 1}`);
    if (asked !== type || !reply.ok) return;
    more = reply.data.length === PAGE;
    older.push(...reply.data);
    changed();
  }

  // Selects a category and a shop, by their ids; null where the address names none.
  function select(newType, newShop) {
    shop = newShop;
    if (newType !== type) {
      type = newType;
      older = []; more = false;
      first.reset();
      first.load();
    }
    show();
  }

  let choose = () => {};
  function show() {
    const key = JSON.stringify([Words.language(), types.data, types.failed, type, shop, all(), more, first.failed, first.data === null]);
    if (id('shops').dataset.shows === key) return;
    id('shops').dataset.shows = key;
    Page.render(id('types'), (types.data || []).map((one) => make('option', { value: one.id, selected: one.id === type }, one.name)));
    const card = (one) => make('li', null, make('button', {
      type: 'button', class: 'choice', 'aria-pressed': String(shop === one.id), 'data-key': one.id, onclick: () => choose({ type, shop: one.id }),
    }, make('strong', null, one.name), make('span', { class: 'soft' }, [one.area, one.score ? `★ ${(one.score / 10).toFixed(1)}` : null].filter(Boolean).join(' · '))));
    const failed = types.failed || first.failed;
    Page.render(id('shops'),
      failed && make('p', { class: 'said bad', role: 'status' }, t('shops.failed')),
      all().length ? make('ul', { class: 'choices' }, all().map(card))
        : !failed && make('p', { class: 'soft' }, t(first.data ? 'shops.none' : 'shops.loading')),
      more && make('button', { type: 'button', class: 'quiet', 'data-key': 'more', onclick: loadMore }, t('shops.more')));
  }

  id('types').addEventListener('change', () => choose({ type: Number(id('types').value), shop: null }));

  return {
    select, show, start: types.load,
    types: () => types.data, all: () => first.data && all(),
    // `listener` is told of a choice of the visitor: {type, shop}.
    onChoice: (listener) => { choose = listener; },
    onChange: (listener) => listeners.push(listener),
  };
})();
