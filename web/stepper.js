'use strict';
// A recorded story that can be stepped: its timeline, its list of steps, and what the servers hold at that step are one;
// the buttons, the slider, the list and the numbers of the timeline all move the same position.

const Stepper = (() => {
  Words.add({
    'stepper.name': ['Step through the recording', '逐步回放记录'],
    'stepper.play': ['Play', '播放'], 'stepper.pause': ['Pause', '暂停'],
    'stepper.back': ['One step back', '后退一步'], 'stepper.next': ['One step forward', '前进一步'],
    'stepper.position': ['Step', '步骤'],
    'stepper.at': ['Step {at} of {count}', '第 {at} 步，共 {count} 步'], 'stepper.before': ['Before the first step', '第一步之前'],
    'scene.name': ['What each server holds at this step', '此刻各服务器上的状态'],
    'scene.node': ['Node {node}', '节点 {node}'], 'scene.redis': ['Redis', 'Redis'], 'scene.database': ['Database', '数据库'],
    'scene.lock.free': ['no lock held', '没有锁被持有'], 'scene.lock.held': ['lock held by {name}', '锁由 {name} 持有'],
    'scene.none': ['no orders', '没有订单'],
    'scene.order.open': ['order of {name}, not committed: nobody else sees it', '{name} 的订单，尚未提交：别人看不到'],
    'scene.order.committed': ['order of {name}', '{name} 的订单'],
    'scene.admitted': ['admitted: {names}', '已放行：{names}'],
    'scene.sent': ['{name} is sent', '{name} 已发出'],
    'scene.read': ['{name} has read', '{name} 已读取'], 'scene.locked': ['{name} holds a lock', '{name} 持有锁'],
    'scene.refused': ['{name} is refused', '{name} 被拒绝'], 'scene.wrote': ['{name} has written', '{name} 已写入'],
    'scene.committed': ['{name} is committed', '{name} 已提交'], 'scene.answered': ['{name} is answered', '{name} 已得到响应'],
    'scene.two': ['Two orders by one buyer', '同一买家的两个订单'],
  });
  const t = Words.t;
  const PER_STEP_MS = 1100;

  // What the servers hold after the first `at` steps: a pure function.
  function stateAt(steps, at) {
    const names = [...new Set(steps.map((step) => step.name))].sort();
    const requests = new Map(names.map((name) => [name, { name, node: steps.find((step) => step.name === name).request.node, doing: 'sent' }]));
    const locks = [], orders = new Map(), admitted = [];
    for (const step of steps.slice(0, at)) {
      const request = requests.get(step.name);
      const failed = step.outcome === 'failed';
      switch (step.step) {
        case 'locked': locks.push({ name: step.name, place: step.place, node: request.node }); request.doing = 'locked'; break;
        case 'unlocked': { const held = locks.findIndex((lock) => lock.name === step.name); if (held >= 0) locks.splice(held, 1); break; }
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
        case 'answered': if (request.doing !== 'refused') request.doing = 'answered'; break;
        default:
      }
    }
    return { requests: [...requests.values()], locks, orders: [...orders].map(([name, state]) => ({ name, state })), admitted };
  }

  // The state as boxes: each node with its requests and the locks in its memory, Redis, the database.
  function scene(steps, at, oneBuyer) {
    const { requests, locks, orders, admitted } = stateAt(steps, at);
    const nodes = [...new Set(requests.map((request) => request.node))].sort();
    const uses = (place) => steps.some((step) => step.place === place);
    const lockLine = (held) => (held.length
      ? held.map((lock) => make('p', { class: 'scene-lock held' }, t('scene.lock.held', { name: lock.name })))
      : make('p', { class: 'scene-lock' }, t('scene.lock.free')));
    const box = (kind, title, ...children) => make('div', { class: `scene-box ${kind}` }, make('strong', null, title), ...children);
    const twice = oneBuyer && orders.length > 1;
    return [
      ...nodes.map((node) => box('node', t('scene.node', { node: node.split(':').pop() }),
        requests.filter((request) => request.node === node).map((request) => make('p', { class: `scene-request ${request.doing}` }, t(`scene.${request.doing}`, { name: request.name }))),
        uses('memory') ? lockLine(locks.filter((lock) => lock.place === 'memory' && lock.node === node)) : null)),
      uses('redis') || steps.some((step) => step.step === 'admitted') ? box('redis', t('scene.redis'),
        uses('redis') ? lockLine(locks.filter((lock) => lock.place === 'redis')) : null,
        admitted.length ? make('p', null, t('scene.admitted', { names: admitted.join(', ') })) : null) : null,
      box(twice ? 'database broken' : 'database', t('scene.database'),
        orders.length ? orders.map(({ name, state }) => make('p', { class: `scene-order ${state}` }, t(`scene.order.${state}`, { name }))) : make('p', { class: 'soft' }, t('scene.none')),
        twice ? make('p', { class: 'scene-twice' }, `✕ ${t('scene.two')}`) : null),
    ];
  }

  // An element with all of it. `parts` is what Story.explain returned; `drawTimeline(figure)` adds the timeline once the
  // figure is in the page. Returns {element, ready, play}.
  function create(parts, tone, drawTimeline) {
    const count = parts.steps.length;
    const oneBuyer = new Set(parts.steps.map((step) => step.request.userId)).size === 1;
    let at = count, timer = null;
    const figure = make('figure', { onclick: (event) => {
      const number = event.target.closest('[data-number]');
      if (number) { pause(); go(Number(number.dataset.number)); }
    } });
    const place = make('div', { class: 'scene', role: 'group', 'aria-label': t('scene.name') });
    const position = make('output', { class: 'soft stepper-at', 'aria-live': 'polite' });
    const slider = make('input', { type: 'range', min: 0, max: count, step: 1, value: count, 'aria-label': t('stepper.position'), oninput: () => { pause(); go(Number(slider.value)); } });
    const button = (name, sign, work) => make('button', { type: 'button', class: `quiet small stepper-${name}`, 'aria-label': t(`stepper.${name}`), title: t(`stepper.${name}`), onclick: work }, sign);
    const back = button('back', '◀', () => { pause(); go(at - 1); }), next = button('next', '▶', () => { pause(); go(at + 1); });
    const player = make('button', { type: 'button', class: 'main small stepper-play', onclick: () => (timer ? pause() : play()) }, t('stepper.play'));
    const list = make('ol', { class: 'steps' }, parts.steps.map((step) => make('li', { class: step.strong ? 'step strong' : 'step', 'data-number': step.number, onclick: () => { pause(); go(step.number); } },
      make('span', { class: step.strong ? 'dot strong' : 'dot', 'aria-hidden': 'true' }, step.number),
      make('span', { class: 'request-name' }, step.name), make('span', { class: 'when' }, `${step.moment.toFixed(1)} ms`),
      make('span', { class: 'what' }, step.text))));
    const element = make('div', { class: 'story-body stepper' },
      make('div', { class: 'story-picture' },
        make('div', { class: 'stepper-controls', role: 'group', 'aria-label': t('stepper.name') }, player, back, slider, next, position),
        figure, place, make('p', { class: `conclusion ${tone}` }, parts.conclusion)),
      make('div', null, make('p', { class: 'story-sent' }, parts.sent), list));

    function go(to) {
      at = Math.max(0, Math.min(count, to));
      slider.value = String(at);
      position.textContent = at ? t('stepper.at', { at, count }) : t('stepper.before');
      for (const part of element.querySelectorAll('[data-number]')) {
        const number = Number(part.dataset.number);
        part.classList.toggle('future', number > at);
        part.classList.toggle('now', number === at);
      }
      place.replaceChildren(...scene(parts.steps, at, oneBuyer).filter(Boolean));
    }
    function pause() {
      clearInterval(timer);
      timer = null;
      player.textContent = t('stepper.play');
    }
    function play() {
      if (at === count) go(0);
      player.textContent = t('stepper.pause');
      timer = setInterval(() => {
        // The card may have been drawn anew, in another language or width.
        if (!element.isConnected || at === count) pause();
        else go(at + 1);
        if (at === count) pause();
      }, PER_STEP_MS);
    }
    const ready = () => { figure.replaceChildren(drawTimeline(figure)); go(at); };
    return { element, play, ready };
  }

  return { create, stateAt };
})();
