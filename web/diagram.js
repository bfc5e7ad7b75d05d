'use strict';
// The picture before any run: one buyer, two nodes, and where the lock is. Drawn twice, with a lock in each
// node's memory and with one lock in Redis, each with its few sentences under the same numbers.

const Diagram = (() => {
  Words.add({
    'diagram.own': ['A lock in each node’s memory', '每个节点内存里各有一把锁'],
    'diagram.shared': ['One lock in Redis, for all nodes', 'Redis 里一把锁，所有节点共用'],
    'diagram.buyer': ['one buyer, two requests', '一位买家，两个请求'],
    'diagram.node': ['Node {n}', '节点 {n}'], 'diagram.memory': ['its memory', '它的内存'],
    'diagram.mine': ['lock: mine', '锁：我的'], 'diagram.redis': ['Redis: one lock', 'Redis：一把锁'],
    'diagram.got': ['1 has it', '1 拿到'], 'diagram.taken': ['2 hears: taken', '2 得知：被占用'],
    'diagram.database': ['Database', '数据库'], 'diagram.order': ['order {n}', '订单 {n}'],
    'diagram.two': ['✕ two orders', '✕ 两个订单'], 'diagram.one': ['✓ one order', '✓ 一个订单'],
    'diagram.own.1': ['A buyer presses twice. nginx sends one request to node 1 and the other to node 2.', '买家点了两次。nginx 把一个请求交给节点 1，另一个交给节点 2。'],
    'diagram.own.2': ['Node 1 takes “the lock of this buyer” in its own memory.', '节点 1 在自己的内存里取得“这位买家的锁”。'],
    'diagram.own.3': ['Node 2 does the same in its memory. That is another lock: it cannot see into node 1.', '节点 2 在它的内存里做同样的事。那是另一把锁：它看不见节点 1 的内存。'],
    'diagram.own.4': ['Both ask the database “an order already?”, both hear “no”, and both write one.', '两者都问数据库“已有订单吗？”，都得到“没有”，于是各写一单。'],
    'diagram.shared.1': ['The same two requests, on the same two nodes.', '同样的两个请求，同样的两个节点。'],
    'diagram.shared.2': ['Node 1 asks Redis for the lock of this buyer and gets it.', '节点 1 向 Redis 请求这位买家的锁，得到了。'],
    'diagram.shared.3': ['Node 2 asks the same Redis for the same lock and hears “taken”. It turns the request away.', '节点 2 向同一个 Redis 请求同一把锁，得知“被占用”，挡回请求。'],
    'diagram.shared.4': ['Only node 1 goes on to the database: one order.', '只有节点 1 走到数据库：一个订单。'],
    'diagram.alt.own': ['Two nodes, each with a lock in its own memory; the database ends up with two orders of one buyer.', '两个节点各有一把内存锁；数据库里同一买家有了两个订单。'],
    'diagram.alt.shared': ['Two nodes that share one lock in Redis; the database has one order.', '两个节点共用 Redis 里的一把锁；数据库里只有一个订单。'],
  });
  const t = Words.t;
  const text = (x, y, what, kind, anchor = 'middle') => Plots.label(x, y, anchor, what, kind);
  const box = (x, y, width, height, kind) => draw('rect', { x, y, width, height, rx: 12, class: `box ${kind || ''}` });
  const arrow = (x1, y1, x2, y2, kind) => {
    const angle = Math.atan2(y2 - y1, x2 - x1), tip = 7;
    const corner = (turn) => `${(x2 - tip * Math.cos(angle + turn)).toFixed(1)} ${(y2 - tip * Math.sin(angle + turn)).toFixed(1)}`;
    return [draw('line', { x1, y1, x2, y2, class: `flow ${kind || ''}` }), draw('path', { d: `M${corner(0.45)}L${x2} ${y2}L${corner(-0.45)}`, class: `flow ${kind || ''}` })];
  };
  const dot = (x, y, n, kind) => [draw('circle', { cx: x, cy: y, r: 10, class: kind === 'bad' ? 'number strong' : 'number' }), text(x, y + 4, n, kind === 'bad' ? 'in-strong' : 'in-number')];
  const padlock = (x, y, kind) => draw('g', { class: `padlock ${kind}` },
    draw('path', { d: `M${x - 5} ${y}v-4a5 5 0 0 1 10 0v4`, class: 'shackle' }), draw('rect', { x: x - 8, y: y - 1, width: 16, height: 12, rx: 3 }));
  const node = (x, n) => [box(x, 78, 128, 74), text(x + 64, 98, t('diagram.node', { n }), 'strong')];

  function own() {
    return Plots.frame(340, 292, t('diagram.alt.own'),
      text(170, 16, t('diagram.buyer')), arrow(150, 24, 92, 72), arrow(190, 24, 248, 72), dot(170, 46, 1),
      node(16, 1), box(28, 106, 104, 38, 'sunk'), padlock(46, 125, 'bad'), text(96, 130, t('diagram.mine')), dot(16, 112, 2),
      node(196, 2), box(208, 106, 104, 38, 'sunk'), padlock(226, 125, 'bad'), text(276, 130, t('diagram.mine')), dot(324, 112, 3, 'bad'),
      text(170, 130, '≠', 'big bad'),
      arrow(80, 156, 128, 202, 'bad'), arrow(260, 156, 212, 202, 'bad'), dot(170, 182, 4, 'bad'),
      box(60, 206, 220, 50), text(170, 225, t('diagram.database'), 'strong'), text(116, 245, t('diagram.order', { n: 1 })), text(224, 245, t('diagram.order', { n: 2 }), 'bad strong'),
      text(170, 282, t('diagram.two'), 'bad strong'));
  }

  function shared() {
    return Plots.frame(340, 292, t('diagram.alt.shared'),
      text(170, 16, t('diagram.buyer')), arrow(150, 24, 92, 62), arrow(190, 24, 248, 62), dot(170, 42, 1),
      box(16, 66, 116, 34), text(74, 88, t('diagram.node', { n: 1 }), 'strong'), box(208, 66, 116, 34), text(266, 88, t('diagram.node', { n: 2 }), 'strong'),
      arrow(84, 102, 122, 132), dot(88, 124, 2), arrow(256, 102, 218, 132), dot(252, 124, 3),
      box(70, 136, 200, 46, 'sunk'), padlock(92, 158, 'good'), text(184, 155, t('diagram.redis'), 'strong'), text(184, 173, `${t('diagram.got')} · ${t('diagram.taken')}`, 'small'),
      draw('path', { d: 'M38 102C24 150 30 200 66 222', class: 'flow good' }), arrow(60, 218, 68, 223, 'good'), dot(30, 168, 4),
      box(70, 206, 200, 50), text(170, 225, t('diagram.database'), 'strong'), text(170, 245, t('diagram.order', { n: 1 })),
      text(170, 282, t('diagram.one'), 'good strong'));
  }

  const panel = (kind, picture) => make('article', { class: `card diagram ${kind}` },
    make('h2', null, t(`diagram.${kind}`), ' ', make('code', { class: 'soft' }, kind === 'own' ? 'process-lock' : 'reentrant-lock')),
    make('div', { class: 'diagram-body' }, make('figure', null, picture),
      make('ol', { class: 'plain-steps' }, [1, 2, 3, 4].map((n) => make('li', null, t(`diagram.${kind}.${n}`))))));

  const show = (place) => place.replaceChildren(panel('own', own()), panel('shared', shared()));
  return { show };
})();
