'use strict';
// The diagram of a recorded story: the buyer, the nodes, Redis and the database, and the story's own requests, each at the
// place where its latest step happened.

const Scene = (() => {
  Words.add({
    'scene.name': ['What each server holds at this step', '此刻各服务器上的状态'],
    'scene.buyer': ['One buyer', '一位买家'], 'scene.buyers': ['{count} buyers', '{count} 位买家'],
    'scene.node': ['Node {node}', '节点 {node}'], 'scene.redis': ['Redis', 'Redis'], 'scene.database': ['Database', '数据库'],
    'scene.lock.free': ['no lock held', '没有锁'], 'scene.lock.held': ['lock held by {names}', '锁由 {names} 持有'],
    'scene.none': ['no orders', '没有订单'],
    'scene.order.open': ['{name}: not committed', '{name}：未提交'], 'scene.order.committed': ['order of {name}', '{name} 的订单'],
    'scene.admitted': ['admitted: {names}', '已放行：{names}'],
    'scene.two': ['Two orders by one buyer', '同一买家的两个订单'],
    'scene.oversold': ['{orders} orders, and {stock} was left', '{orders} 个订单，当时只剩 {stock} 份'],
    'scene.token': ['{name}: {place}', '{name}：{place}'],
  });
  const t = Words.t;
  const DATABASE_STEPS = ['looked', 'row-locked', 'placed', 'inserted', 'decremented', 'committed', 'batch-committed'];

  // What the servers hold after the first `at` steps, and where each request is: a pure function.
  function stateAt(steps, at) {
    const names = [...new Set(steps.map((step) => step.name))].sort();
    const requests = new Map(names.map((name) => [name, { name, node: steps.find((step) => step.name === name).request.node, doing: 'sent', place: 'buyer' }]));
    const locks = [], orders = new Map(), admitted = [];
    for (const step of steps.slice(0, at)) {
      const request = requests.get(step.name);
      const failed = step.outcome === 'failed';
      switch (step.step) {
        case 'locked': locks.push({ name: step.name, place: step.place, node: request.node }); request.doing = 'locked'; break;
        case 'unlocked': {
          // A foreign DEL ends the lock of another; its own had ended before.
          const owner = step.outcome === 'foreign' && steps.find((other) => other.request.orderId === step.owner);
          for (const name of [step.name, owner && owner.name]) {
            const held = locks.findIndex((lock) => lock.name === name);
            if (held >= 0) locks.splice(held, 1);
          }
          break;
        }
        case 'lock-busy': case 'lock-failed': request.doing = 'refused'; break;
        case 'looked': case 'row-locked': request.doing = 'read'; break;
        case 'placed':
          if (step.outcome === 'taken') { orders.set(step.name, 'open'); request.doing = 'wrote'; } else request.doing = 'refused';
          break;
        case 'inserted': if (!failed) { orders.set(step.name, 'open'); request.doing = 'wrote'; } break;
        case 'decremented': if (step.outcome === 'moved') { orders.delete(step.name); request.doing = 'refused'; } break;
        case 'committed': case 'batch-committed':
          if (failed) { orders.delete(step.name); request.doing = 'refused'; } else { orders.set(step.name, 'committed'); request.doing = 'committed'; }
          break;
        case 'consumed': orders.set(step.name, 'committed'); request.doing = 'committed'; break;
        case 'admitted': if (failed) request.doing = 'refused'; else admitted.push(step.name); break;
        case 'killed': request.doing = 'refused'; break;
        case 'answered': if (request.doing !== 'refused') request.doing = 'answered'; break;
        default:
      }
      if (DATABASE_STEPS.includes(step.step)) request.place = 'database';
      else if (step.step === 'answered') request.place = 'buyer';
      else if (step.step === 'admitted' || step.place === 'redis') request.place = 'redis';
      else if (step.step !== 'consumed' && step.step !== 'killed') request.place = request.node; // the request itself is over by then
    }
    return { requests: [...requests.values()], locks, orders: [...orders].map(([name, state]) => ({ name, state })), admitted };
  }

  const lockText = (locks) => (locks.length ? t('scene.lock.held', { names: locks.map((lock) => lock.name).join(', ') }) : t('scene.lock.free'));

  // The diagram of `steps`, `width` wide: {element, show}; show(at): the state after the first `at` steps.
  function create(steps, width) {
    const first = stateAt(steps, 0);
    const nodes = [...new Set(first.requests.map((request) => request.node))].sort();
    const oneBuyer = new Set(steps.map((step) => step.request.userId)).size === 1;
    const inMemory = steps.some((step) => step.place === 'memory');
    const inRedis = steps.some((step) => step.place === 'redis');
    const admits = steps.some((step) => step.step === 'admitted');
    // The lowest stock that a request read: more orders than that are oversold.
    const left = Math.min(...steps.filter((step) => Number.isInteger(step.stock)).map((step) => step.stock));
    const port = (node) => node.split(':').pop();

    // Boxes, from above: buyer, nodes beside each other, Redis where it takes part, database.
    const boxes = new Map(), between = 26, space = 14;
    let y = 1;
    const row = (height, ...keys) => {
      const each = (width - 2 - space * (keys.length - 1)) / keys.length;
      keys.forEach((key, at) => boxes.set(key, { x: 1 + at * (each + space), y, width: each, height }));
      y += height + between;
    };
    row(60, 'buyer');
    row(inMemory ? 84 : 60, ...nodes);
    if (inRedis || admits) row(62, 'redis');
    row(90, 'database');
    const height = y - between + 1;
    const titles = { buyer: oneBuyer ? t('scene.buyer') : t('scene.buyers', { count: first.requests.length }), redis: t('scene.redis'), database: t('scene.database') };
    const title = (key) => titles[key] || t('scene.node', { node: port(key) });
    // A request stays in the column of its node, so that it never crosses the box of another.
    const columns = first.requests.map(({ node }, at) => boxes.get(node).x + 24 + 30 * first.requests.slice(0, at).filter((one) => one.node === node).length);
    const spot = (place, at) => [columns[at], boxes.get(place).y + 42];

    const lines = [];
    const connect = (upper, lower, x) => lines.push(draw('line', { x1: x, x2: x, y1: boxes.get(upper).y + boxes.get(upper).height, y2: boxes.get(lower).y, class: 'life' }));
    for (const node of nodes) {
      const x = boxes.get(node).x + boxes.get(node).width / 2;
      connect('buyer', node, x);
      connect(node, boxes.has('redis') ? 'redis' : 'database', x);
    }
    if (boxes.has('redis')) connect('redis', 'database', width / 2);
    const frames = new Map([...boxes].map(([key, box]) => [key, draw('rect', { ...box, rx: 10, class: 'scene-box', 'data-box': key })]));
    const holds = new Map(); // the line of a box that says what it holds
    const note = (key, x, textY, anchor) => holds.set(key, draw('text', { x, y: textY, 'text-anchor': anchor }));
    if (inMemory) for (const node of nodes) note(node, boxes.get(node).x + 12, boxes.get(node).y + 74, 'start');
    for (const key of ['redis', 'database'].filter((one) => boxes.has(one))) note(key, boxes.get(key).x + boxes.get(key).width - 12, boxes.get(key).y + 19, 'end');
    const path = draw('path', { class: 'scene-path', d: '' });
    const orders = draw('g', {});
    const tokens = first.requests.map((request) => draw('g', { class: 'token', 'data-name': request.name },
      draw('circle', { r: 12 }), draw('text', { y: 4, 'text-anchor': 'middle' }, request.name)));
    const element = draw('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', class: 'plot scene-picture' },
      lines, [...frames.values()], [...boxes].map(([key, box]) => draw('text', { x: box.x + 12, y: box.y + 19, class: 'strong' }, title(key))),
      [...holds.values()], orders, path, tokens);

    const place = (token, [x, top]) => { token.style.transform = `translate(${x}px, ${top}px)`; };
    function order({ name, state }, at, broken) {
      const box = boxes.get('database'), wide = Math.min(140, (box.width - 24) / first.requests.length - 8);
      const x = box.x + 12 + at * (wide + 8), top = box.y + 60;
      return [draw('rect', { x, y: top, width: wide, height: 22, rx: 6, class: `scene-order ${state}${broken ? ' broken' : ''}` }),
        draw('text', { x: x + wide / 2, y: top + 15, 'text-anchor': 'middle', class: broken ? 'bad' : null }, t(`scene.order.${state}`, { name }))];
    }

    function show(at) {
      const state = stateAt(steps, at), before = stateAt(steps, Math.max(0, at - 1));
      const now = at ? steps[at - 1].name : null;
      // What is not committed breaks nothing yet.
      const committed = state.orders.filter((one) => one.state === 'committed').length;
      const twice = oneBuyer && committed > 1;
      const broken = twice || (!oneBuyer && committed > left);
      const wrong = broken && t(twice ? 'scene.two' : 'scene.oversold', { orders: committed, stock: left });
      const said = {
        redis: [inRedis && lockText(state.locks.filter((lock) => lock.place === 'redis')), admits && state.admitted.length && t('scene.admitted', { names: state.admitted.join(', ') })].filter(Boolean).join(' · '),
        database: wrong ? `✕ ${wrong}` : state.orders.length ? '' : t('scene.none'),
      };
      for (const [key, line] of holds) {
        const held = state.locks.filter((lock) => lock.place === 'memory' && lock.node === key);
        line.textContent = key in said ? said[key] : lockText(held);
        line.setAttribute('class', key === 'database' ? (broken ? 'bad' : '') : state.locks.some((lock) => (lock.place === 'redis' ? key === 'redis' : lock.node === key)) ? 'held-lock' : '');
      }
      frames.get('database').setAttribute('class', broken ? 'scene-box broken' : 'scene-box');
      orders.replaceChildren(...state.orders.flatMap((one, which) => order(one, which, broken && one.state === 'committed')));
      path.setAttribute('d', '');
      state.requests.forEach((request, which) => {
        const from = spot(before.requests[which].place, which), to = spot(request.place, which);
        tokens[which].setAttribute('class', `token ${request.doing}${request.name === now ? ' now' : ''}`);
        tokens[which].dataset.place = request.place;
        place(tokens[which], to);
        if (request.name === now && request.place !== before.requests[which].place) path.setAttribute('d', `M${from.join(' ')}L${to.join(' ')}`);
      });
      const texts = [...holds].map(([key, line]) => `${title(key)}: ${line.textContent}`);
      element.setAttribute('aria-label', [t('scene.name'), ...state.requests.map((request) => t('scene.token', { name: request.name, place: title(request.place) })), ...texts].join('; '));
    }
    return { element, show };
  }

  return { create, stateAt };
})();
