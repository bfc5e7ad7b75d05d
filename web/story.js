'use strict';
// The explanation of a few recorded requests: their steps in order, numbered, with a sentence for each, and the same
// numbers on a timeline. A pure function: a story (JSON) in, texts and the chart's input out.

const Story = (() => {
  const t = Words.t;
  const end = (step) => step.at + (step.took || 0);

  // The moment by which steps are ordered. A read must come before the writes that it did not see: a read that found nothing
  // is placed at its begin, a read that found something at its end.
  function moment(step) {
    const foundNoOrder = step.order === false || step.outcome === 'taken';
    const readOnlyStock = step.step === 'looked' && step.order === undefined;
    const looksForNothing = step.step === 'inserted' || step.step === 'queued';
    return foundNoOrder || readOnlyStock || looksForNothing ? step.at : end(step);
  }

  // A commit takes effect before its node receives the reply. A request that read the order did so after the commit, so
  // the commit is placed before the first such read.
  function placeCommitsBeforeReads(moments) {
    const commits = moments.filter((one) => one.step.endsWith('committed') && one.outcome !== 'failed');
    const firstCommit = commits.sort((a, b) => a.at - b.at)[0];
    if (!firstCommit) return;
    for (const one of moments) {
      const foundOrder = one.order === true || one.outcome === 'ordered-before';
      const sawCommit = foundOrder && one.which !== firstCommit.which && one.moment > firstCommit.at;
      if (sawCommit) firstCommit.moment = Math.min(firstCommit.moment, one.moment - 0.001);
    }
  }

  // A foreign DEL takes effect as soon as its node has sent it, after the other request has acquired the lock that it deletes.
  function placeForeignDeletes(moments) {
    for (const one of moments.filter(({ outcome }) => outcome === 'foreign')) {
      const acquired = moments.find(({ step, request }) => step === 'locked' && request.orderId === one.owner);
      one.moment = Math.max(one.at, acquired ? acquired.moment + 0.001 : 0);
    }
  }

  const colours = {
    locked: 'four', unlocked: 'four', 'lock-busy': 'refused', 'lock-failed': 'refused', looked: 'one', 'row-locked': 'four',
    placed: 'two', inserted: 'two', decremented: 'two', committed: 'three', 'batch-committed': 'three', queued: 'six', admitted: 'two', consumed: 'three', killed: 'refused', answered: 'six',
  };

  // `tries` is how many requests each buyer sent; a story may show fewer.
  function explain(strategy, story, tries = 0) {
    const names = story.requests.map((_, at) => String.fromCharCode(65 + at));
    const port = (node) => node.split(':').pop();
    const user = (request) => (request.userId.length > 7 ? `…${request.userId.slice(-5)}` : request.userId);
    const oneBuyer = new Set(story.requests.map((request) => request.userId)).size === 1;
    const moments = story.requests.flatMap((request, which) => {
      const nodeSteps = request.steps.filter((step) => step.step !== 'arrived' && step.step !== 'answered')
        .map((step) => ({ ...step, request, which, moment: moment(step), till: end(step) }));
      // The reply is placed where the client received it, not where the node sent it.
      const answered = { step: 'answered', request, which, moment: request.answered, at: request.answered, till: request.answered };
      return [...nodeSteps, answered];
    });
    placeCommitsBeforeReads(moments);
    placeForeignDeletes(moments);
    moments.sort((a, b) => a.moment - b.moment || a.which - b.which);

    // The state before each step: locks held, stock read, orders written and committed, by request; and who has just deleted
    // the lock of another.
    const held = new Map(), looked = new Map(), written = new Set(), committed = new Set();
    let deletedBy = null;
    const nameOf = (orderId) => names[story.requests.findIndex((request) => request.orderId === orderId)] || t('step.another');
    const steps = moments.map((one, at) => {
      const { key: wanted, strong } = sentence(one, { strategy, held, looked, written, committed, oneBuyer, deletedBy, all: moments });
      const saysFailure = /\.(failed|sold-out)$/.test(wanted);
      let key = Words.has(wanted) ? wanted : 'step.other';
      if (one.outcome === 'failed' && !saysFailure) key = 'step.failed';
      const deleter = deletedBy;
      if (one.step === 'locked') held.set(one.which, one);
      if (one.step === 'locked') deletedBy = null;
      if (one.outcome === 'foreign') deletedBy = names[one.which];
      if (one.step === 'unlocked') held.delete(one.which);
      if (one.step === 'looked') looked.set(one.which, one.stock);
      if (one.step === 'inserted' || one.outcome === 'taken') written.add(one.which);
      if (['committed', 'batch-committed'].includes(one.step) && one.outcome !== 'failed') committed.add(one.which);
      const hasLooked = one.request.steps.some((step) => step.step === 'looked');
      const values = {
        node: port(one.request.node),
        user: user(one.request),
        stock: one.stock ?? '?',
        step: one.step,
        owner: one.owner === undefined ? '' : nameOf(one.owner),
        deleter: deleter || '',
        others: one.orders === undefined ? '' : one.orders - 1,
        asks: t(hasLooked ? 'step.asks.again' : 'step.asks'),
        order: one.order === undefined ? '' : t(one.order ? 'step.yes' : 'step.no'),
        reply: one.step === 'answered' ? replyText(one.request) : '',
      };
      return { ...one, number: at + 1, name: names[one.which], text: t(key, values), strong };
    });

    const where = story.requests.map((request, at) => t('story.where', { name: names[at], node: port(request.node) })).join(Words.language() === 'zh' ? '，' : ', ');
    const oneNode = new Set(story.requests.map((request) => request.node)).size === 1;
    const count = story.requests.length;
    let sentKey = oneNode ? 'story.sent.alone' : 'story.sent.same';
    if (!oneBuyer) sentKey = 'story.sent.others';
    const sent = Words.join(t(sentKey, { user: user(story.requests[0]), count: Math.max(tries, count), where }),
      story.requests.map((request, at) => request.elsewhere && t('story.elsewhere', { name: names[at] })).filter(Boolean).join(''),
      oneBuyer && tries > count && t('story.sent.some', { count }));
    return { steps, sent, end: Math.max(...steps.map((step) => step.till)), conclusion: conclusion(strategy, story, moments), plot: plot(story, steps, names, port) };
  }

  // What the buyer was told; a code without a text is shown as it is.
  function replyText({ reply, orderId }) {
    if (!Words.has(`reply.${reply}`)) return reply;
    return t(`reply.${reply}`, { id: orderId || '–' });
  }

  // The key of a step's sentence, and whether the step is decisive: where it goes wrong, or where that is prevented.
  function sentence(one, { strategy, held, looked, written, committed, oneBuyer, deletedBy, all }) {
    const others = (set) => [...set.keys()].filter((which) => which !== one.which);
    const locks = all.some((other) => other.step === 'locked');
    // Whether another request of this set (those that have read, say, or written) has not committed yet.
    const uncommitted = (set) => others(set).some((which) => !committed.has(which));
    const key = `step.${one.step}`;
    const outcome = one.outcome === undefined ? '' : one.outcome;
    switch (one.step) {
      case 'locked': {
        const isHeldByAnother = others(held).length > 0;
        const wasHeldBefore = all.some((other) => other.step === 'locked' && other.which !== one.which && other.moment < one.moment);
        // A node records its release when Redis has answered, later than the lock became free. So of the other requests only one
        // that has not committed holds the lock in Redis for certain.
        const hasTwoHolders = one.place === 'redis' ? uncommitted(held) : isHeldByAnother;
        if (hasTwoHolders && oneBuyer && deletedBy) return { key: `${key}.deleted`, strong: true };
        if (hasTwoHolders && oneBuyer) return { key: `${key}.${one.place}.again`, strong: true };
        if (wasHeldBefore && !isHeldByAnother && oneBuyer) return { key: `${key}.${one.place}.after`, strong: false };
        return { key: `${key}.${one.place}`, strong: false };
      }
      case 'unlocked': {
        if (outcome === 'foreign' || outcome === 'lost') return { key: `${key}.${outcome}`, strong: outcome === 'foreign' };
        const early = all.some((other) => other.step === 'committed' && other.which === one.which && other.moment > one.moment);
        return { key: early ? 'step.unlocked.early' : key, strong: early };
      }
      case 'lock-busy': {
        const later = all.some((other) => other.step === 'locked' && other.which === one.which && other.moment > one.moment);
        return { key: later ? `${key}.later` : `${key}.${one.place}`, strong: !later };
      }
      case 'looked': {
        if (one.order === true) return { key: 'step.looked.some', strong: true };
        if (one.order === false && oneBuyer) {
          if (uncommitted(written)) return { key: 'step.looked.blind', strong: true };
          return { key: uncommitted(looked) ? 'step.looked.too' : 'step.looked.none', strong: uncommitted(looked) && !locks };
        }
        const same = !oneBuyer && others(looked).some((which) => !committed.has(which) && looked.get(which) === one.stock);
        return { key: same ? 'step.looked.same' : 'step.looked.stock', strong: same };
      }
      case 'placed': {
        if (strategy === 'unit-rows' && (outcome === 'taken' || outcome === 'nothing-left')) return { key: `step.placed.unit.${outcome}`, strong: false };
        const unseen = outcome === 'taken' && oneBuyer && uncommitted(written);
        return { key: unseen ? 'step.placed.blind' : `step.placed.${outcome}`, strong: unseen || outcome === 'ordered-before' || outcome === 'index-refused' };
      }
      case 'row-locked': {
        const before = all.some((other) => other.step === 'row-locked' && other.which !== one.which && other.moment < one.moment);
        return { key: before ? 'step.row-locked.after' : key, strong: one.order === true };
      }
      case 'inserted': return { key, strong: oneBuyer && uncommitted(written) };
      case 'decremented':
        return { key: strategy === 'naive' ? 'step.decremented.naive' : `step.decremented.${outcome || 'done'}`, strong: false };
      case 'batch-committed':
        if (outcome === 'failed') {
          return { key: one.request.reply === 'SOLD_OUT' ? `${key}.sold-out` : `${key}.failed`, strong: true };
        }
        return { key: one.orders === 1 ? `${key}.alone` : key, strong: false };
      case 'committed': return { key: outcome === 'failed' ? `${key}.failed` : key, strong: false };
      case 'queued': case 'consumed': return { key: strategy === 'memory-queue' ? `${key}.memory` : key, strong: false };
      case 'killed': return { key, strong: true };
      case 'admitted':
        if (outcome === 'failed') return { key: `${key}.failed`, strong: true };
        return { key, strong: false };
      default: return { key, strong: false };
    }
  }

  // The sentence below the steps. Where the requests met the stream or the unique index, it explains that. Otherwise it explains
  // the strategy (`story.why`), and is not guessed from the steps.
  function conclusion(strategy, story, moments) {
    const met = (fact) => story.kind === 'held' && moments.some(fact);
    if (strategy !== 'memory-queue' && met((one) => one.step === 'consumed')) return t('conclusion.admitted');
    if (met((one) => one.outcome === 'index-refused')) return t('conclusion.index');
    if (story.why) return Words.join(story.why[Words.language() === 'zh' ? 1 : 0], story.kind === 'held' && t('conclusion.one'));
    return t({ oversold: 'conclusion.oversold', lost: 'conclusion.lost', held: 'conclusion.held' }[story.kind] || 'conclusion.no-lock');
  }

  function plot(story, steps, names, port) {
    const nodes = [...new Set(story.requests.map((request) => request.node))].sort();
    const row = (request, which) => {
      const requestSteps = steps.filter((step) => step.which === which);
      const spans = requestSteps.filter((step) => step.step === 'locked').map((lock) => {
        const unlock = requestSteps.find((step) => step.step === 'unlocked' && step.at >= lock.at);
        return { from: lock.till, to: unlock ? unlock.at : request.answered };
      });
      const bars = requestSteps.map((step) => ({ from: step.at, to: step.till, at: step.moment, kind: colours[step.step] || 'six', number: step.number, strong: step.strong }));
      return { name: names[which], from: request.sent, to: request.answered, spans, bars };
    };
    const seen = new Set(steps.map((step) => colours[step.step] || 'six'));
    const entries = [['four', 'legend.lock'], ['one', 'legend.look'], ['two', 'legend.write'], ['three', 'legend.commit'], ['refused', 'legend.refused'], ['six', 'legend.answer']]
      .filter(([kind]) => seen.has(kind)).map(([kind, key]) => [kind, t(key)]);
    // Behind the entry for locks.
    if (steps.some((step) => step.step === 'locked')) entries.splice(1, 0, ['span', t('story.held-by')]);
    return {
      name: t('story.plot', { count: story.requests.length, nodes: nodes.map((node) => t('story.node', { node: port(node) })).join(', ') }),
      groups: nodes.map((node) => ({
        name: t('story.node', { node: port(node) }),
        rows: story.requests.map((request, which) => ({ request, which })).filter(({ request }) => request.node === node).map(({ request, which }) => row(request, which)),
      })),
      entries,
    };
  }

  return { explain };
})();
