'use strict';
// The diagram above the form: one buyer, two nodes, and where the lock is. Drawn twice, with a lock in each node's
// memory and with one lock in Redis, each with sentences under the same numbers.

const Diagram = (() => {
  Words.add({
    'diagram.separate': ['A lock in each node’s memory', '每个节点内存里各有一把锁'],
    'diagram.shared': ['One lock in Redis, for all nodes', 'Redis 里一把锁，所有节点共用'],
    'diagram.buyer': ['one buyer, two requests', '一位买家，两个请求'],
    'diagram.node': ['Node {node}', '节点 {node}'], 'diagram.memory': ['its memory', '它的内存'],
    'diagram.mine': ['lock: held', '锁：已拿到'], 'diagram.redis': ['Redis: one lock', 'Redis：一把锁'],
    'diagram.got': ['1 acquires it', '1 获得锁'], 'diagram.taken': ['2 is refused', '2 被拒绝'],
    'diagram.database': ['Database', '数据库'], 'diagram.order': ['order {n}', '订单 {n}'],
    'diagram.two': ['✕ two orders', '✕ 两个订单'], 'diagram.one': ['✓ one order', '✓ 一个订单'],
    'diagram.separate.1': ['A buyer clicks twice. nginx sends one request to node 8081 and the other to node 8082.', '买家点了两次。nginx 把一个请求发给节点 8081，另一个发给节点 8082。'],
    'diagram.separate.2': ['Node 8081 acquires the lock of this buyer in its own memory.', '节点 8081 在自己的内存里获得这位买家的锁。'],
    'diagram.separate.3': ['Node 8082 does the same in its memory. That is another lock: node 8082 cannot see the memory of node 8081.', '节点 8082 在它自己的内存里做同样的事。那是另一把锁：它看不见节点 8081 的内存。'],
    'diagram.separate.4': ['Both query the database for an order by this buyer, both find none, and both insert one.', '两者都查询数据库里这位买家的订单，都没有查到，于是各插入一个订单。'],
    'diagram.shared.1': ['The same two requests, on the same two nodes.', '同样的两个请求，同样的两个节点。'],
    'diagram.shared.2': ['Node 8081 acquires the lock of this buyer in Redis.', '节点 8081 在 Redis 里获得这位买家的锁。'],
    'diagram.shared.3': ['Node 8082 tries to acquire the same lock in the same Redis. It is held, so node 8082 refuses the request.', '节点 8082 向同一个 Redis 请求同一把锁。锁已被持有，于是拒绝该请求。'],
    'diagram.shared.4': ['Only node 8081 continues to the database: one order.', '只有节点 8081 继续访问数据库：一个订单。'],
    'diagram.alt.own': ['Two nodes, each with a lock in its own memory; the database has two orders by one buyer.', '两个节点各有一把内存锁；数据库里同一买家有两个订单。'],
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
  const node = (x, n) => [box(x, 78, 128, 74), text(x + 64, 98, t('diagram.node', { node: 8080 + n }), 'strong')];

  function separate() {
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
      box(16, 66, 116, 34), text(74, 88, t('diagram.node', { node: 8081 }), 'strong'), box(208, 66, 116, 34), text(266, 88, t('diagram.node', { node: 8082 }), 'strong'),
      arrow(84, 102, 122, 132), dot(88, 124, 2), arrow(256, 102, 218, 132), dot(252, 124, 3),
      box(70, 136, 200, 46, 'sunk'), padlock(92, 158, 'good'), text(184, 155, t('diagram.redis'), 'strong'), text(184, 173, `${t('diagram.got')} · ${t('diagram.taken')}`, 'small'),
      draw('path', { d: 'M38 102C24 150 30 200 66 222', class: 'flow good' }), arrow(60, 218, 68, 223, 'good'), dot(30, 168, 4),
      box(70, 206, 200, 50), text(170, 225, t('diagram.database'), 'strong'), text(170, 245, t('diagram.order', { n: 1 })),
      text(170, 282, t('diagram.one'), 'good strong'));
  }

  const panel = (kind, picture) => make('article', { class: `card diagram ${kind}` },
    make('h2', null, t(`diagram.${kind}`), ' ', make('code', { class: 'soft' }, kind === 'separate' ? 'process-lock' : 'reentrant-lock')),
    make('div', { class: 'diagram-body' }, make('figure', null, picture),
      make('ol', { class: 'plain-steps' }, [1, 2, 3, 4].map((n) => make('li', null, t(`diagram.${kind}.${n}`))))));

  const show = (place) => place.replaceChildren(panel('separate', separate()), panel('shared', shared()));
  return { show };
})();
