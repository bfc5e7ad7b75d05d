'use strict';
// The sequence diagram of a recorded story: buyer, nginx, nodes, Redis and database beside each other, and every request and
// step as an arrow, in their order from above. A pure function of what `Story.explain` returned.

const Sequence = (() => {
  Words.add({
    'sequence.title': ['As a sequence diagram', '画成时序图'],
    'sequence.name': ['Sequence diagram: {count} messages', '时序图：{count} 条消息'],
    'sequence.sent': ['buy', '抢购'],
    'sequence.locked': ['acquires the lock', '获得锁'], 'sequence.unlocked': ['releases the lock', '释放锁'],
    'sequence.foreign': ['deletes the lock of another', '删掉了别人的锁'], 'sequence.lost': ['its lock is gone', '锁已不在'],
    'sequence.lock-busy': ['the lock is held', '锁被占用'], 'sequence.lock-failed': ['no lock', '没有拿到锁'],
    'sequence.queued': ['is queued', '进入队列'], 'sequence.killed': ['the node is killed', '节点被强制终止'], 'sequence.admitted': ['admission script', '准入脚本'],
    'sequence.answered': ['reply', '响应'],
  });
  const t = Words.t;
  // What a step sends to the database. A purchase is placed and committed at once, or in two requests.
  const STATEMENTS = {
    looked: 'SELECT', 'row-locked': 'SELECT … FOR UPDATE', placed: 'INSERT, UPDATE, COMMIT', inserted: 'INSERT',
    decremented: 'UPDATE', committed: 'COMMIT', 'batch-committed': 'INSERT, UPDATE, COMMIT', consumed: 'INSERT, UPDATE, COMMIT',
  };
  const IN_TWO = { placed: 'INSERT', committed: 'UPDATE, COMMIT' };
  const ROW = 40, TOP = 44;

  // The participants that a step's message passes.
  function way({ step, place, request }, byNginx) {
    const way = ['buyer', ...(byNginx ? ['nginx'] : []), request.node];
    if (step === 'sent') return way;
    if (step === 'answered') return way.reverse();
    if (STATEMENTS[step]) return [request.node, 'database'];
    return [request.node, step === 'admitted' || place === 'redis' ? 'redis' : request.node];
  }

  function label({ step, outcome, request }) {
    const isInTwo = ['placed', 'committed'].every((name) => request.steps.some((other) => other.step === name));
    if (STATEMENTS[step]) return (isInTwo && IN_TWO[step]) || STATEMENTS[step];
    const key = [`sequence.${outcome}`, `sequence.${step}`].find(Words.has);
    return key ? t(key) : step;
  }

  // `tone` is the colour of the decisive steps: `good` or `bad`. `byNginx`: whether nginx passed the requests on.
  function picture({ steps, byNginx }, width, tone) {
    // Each request's first step follows the message of its buyer. Two participants for each arrow.
    const messages = steps.flatMap((step, at) => {
      const isFirst = steps.findIndex((other) => other.which === step.which) === at;
      return isFirst ? [{ step: 'sent', which: step.which, name: step.name, request: step.request, number: step.number }, step] : [step];
    }).flatMap((message) => {
      const passes = way(message, byNginx);
      return passes.slice(1).map((to, at) => ({ ...message, from: passes[at], to }));
    });
    const nodes = [...new Set(steps.map(({ request }) => request.node))].sort();
    const keys = ['buyer', ...(byNginx ? ['nginx'] : []), ...nodes, ...(messages.some(({ to }) => to === 'redis') ? ['redis'] : []), 'database'];
    const each = width / keys.length;
    const x = (key) => (keys.indexOf(key) + 0.5) * each;
    const title = (key) => (Words.has(`scene.${key}`) ? t(`scene.${key}`) : key.split(':').pop());
    const height = TOP + messages.length * ROW + 8;
    const lives = keys.flatMap((key) => [Plots.label(x(key), 18, 'middle', title(key), 'strong'), draw('line', { x1: x(key), x2: x(key), y1: 26, y2: height, class: 'life' })]);
    const arrow = (message, at) => {
      const from = x(message.from), to = x(message.to), y = TOP + at * ROW + 24;
      const text = `${message.name}: ${label(message)}`;
      const half = Plots.textWidth(text) * (message.strong ? 0.6 : 0.5) + 2; // bold is wider
      const middle = Math.max(half, Math.min(width - half, from === to ? from : (from + to) / 2));
      const line = from === to ? `M${from} ${y - 5}h14v10h-12` : `M${from} ${y}H${to}`;
      const tip = from === to ? from + 2 : to, back = from === to || to < from ? 6 : -6, tipY = from === to ? y + 5 : y;
      const colour = message.strong ? tone : '';
      return draw('g', { class: 'message', 'data-number': message.number },
        draw('path', { d: line, class: `flow ${colour} ${message.step === 'answered' ? 'reply' : ''}` }),
        draw('path', { d: `M${tip + back} ${tipY - 4}L${tip} ${tipY}L${tip + back} ${tipY + 4}`, class: `flow ${colour}` }),
        draw('rect', { x: middle - half, y: y - 21, width: 2 * half, height: 15, class: 'message-ground' }),
        Plots.label(middle, y - 9, 'middle', text, colour));
    };
    return Plots.frame(width, height, t('sequence.name', { count: messages.length }), lives, messages.map(arrow));
  }

  return { picture };
})();
