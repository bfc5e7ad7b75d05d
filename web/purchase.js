'use strict';
// Attempts to buy: one at a time for a voucher, from the click until its order is known, or the request was refused.
// Only orders.js knows whether the buyer has an order; an attempt ends when its order is there.

const Purchase = (() => {
  Words.add({
    'buy.buying': ['Buying…', '抢购中…'],
    'buy.slow': ['This is taking longer than usual. Your request has been sent.', '处理时间比平时长，请求已经发出，请稍候。'],
    'buy.pending': ['You’re in. Waiting for the order…', '已抢到名额，正在生成订单…'],
    'buy.pendingLong': ['Your order is taking longer than usual. This page keeps checking.', '生成订单的时间比平时长，本页会继续查询。'],
    'buy.unknown': ['No reply arrived. Looking up the result…', '没有收到响应，正在查询结果…'],
    'buy.unsure': ['It is still not known whether your order was placed; this page keeps looking. You can also try again: nobody gets two.', '暂时还不知道是否下单成功，本页会继续查询。你也可以再试一次，每人只会有一单。'],
    'buy.noneFound': ['A minute has passed, and there is no order of yours. You can try again: nobody gets two.', '已过一分钟，仍没有你的订单。可以再试一次，每人只会有一单。'],
    'buy.order': ['Order {id}', '订单号 {id}'],
  });

  // When a purchase without a reply is called slow; when it is given up and looked up; how long a result may be unknown
  // before the buyer may try again. Milliseconds.
  const SLOW = 4000, LIMIT = 15000, UNSURE = 10000;
  // Attempts whose outcome is not in the orders yet: no other one begins meanwhile.
  const UNDER_WAY = ['buying', 'bought', 'pending', 'unknown'];
  // They survive a reload of the page in this tab.
  const KEY = 'attempts';
  // How long after the page gave up waiting for the reply the order may still appear, milliseconds: the service ends a request
  // within 30 s, and what it had begun by then is decided within 30 s more.
  const DECIDED = 60000;

  const listeners = [];
  const attempts = new Map(); // voucher id → {name, orderId, say, until, since, begun}

  function set(voucher, attempt) {
    if (attempt) attempts.set(voucher, { since: performance.now(), begun: Date.now(), ...attempt }); else attempts.delete(voucher);
    keep();
    listeners.forEach((listener) => listener());
    return attempts.get(voucher);
  }

  function keep() {
    const open = [...attempts].filter(([, { name }]) => UNDER_WAY.includes(name)).map(([voucher, { name, orderId, begun }]) => ({ voucher, name, orderId, begun }));
    Orders.expect(open.length > 0);
    try { sessionStorage.setItem(KEY, JSON.stringify({ token: Account.token(), open })); } catch { /* no storage: lost by a reload */ }
  }

  // Resumes the attempts that were under way when the page was left: it is not known whether they led to an order.
  function resume() {
    let kept = null;
    try { kept = JSON.parse(sessionStorage.getItem(KEY)); } catch { /* no storage */ }
    if (!kept || kept.token !== Account.token()) return;
    for (const { voucher, name, orderId, begun } of kept.open.filter((one) => one.orderId || !isDecided(one))) {
      follow(voucher, set(voucher, { name: name === 'buying' ? 'unknown' : name, orderId, begun }));
    }
  }

  // The attempt at a voucher, unless its order is known by now.
  function of(voucher) {
    const attempt = attempts.get(voucher);
    const isKnown = attempt && attempt.orderId && Orders.byId(attempt.orderId);
    return attempt && !isKnown ? attempt : null;
  }

  const isDecided = (attempt) => Date.now() - attempt.begun > DECIDED;
  const isSlow = (attempt) => performance.now() - attempt.since > (attempt.name === 'buying' ? SLOW : UNSURE);

  async function buy(voucher) {
    const current = of(voucher);
    if (current && UNDER_WAY.includes(current.name) && !(current.name === 'unknown' && isSlow(current))) return;
    const mine = set(voucher, { name: 'buying' });
    const reply = await Account.ask('POST', `/voucher-order/seckill/${voucher}`, { limitMs: LIMIT });
    if (attempts.get(voucher) !== mine) return; // signed out meanwhile
    const { orderId } = reply;
    if (reply.ok) follow(voucher, set(voucher, { name: reply.code === 'PENDING' ? 'pending' : 'bought', orderId }));
    else if (reply.code === 'OUTCOME_UNKNOWN' || reply.code === 'NETWORK') follow(voucher, set(voucher, { name: 'unknown', orderId }));
    else refuse(voucher, reply);
  }

  function refuse(voucher, reply) {
    if (reply.status === 401) set(voucher, null);
    else if (reply.code === 'ALREADY_ORDERED') follow(voucher, set(voucher, { name: 'owned', orderId: reply.orderId }));
    else fail(voucher, Page.text(reply), reply.waitMs);
  }

  const fail = (voucher, say, waitMs = 0) => set(voucher, { name: 'failed', say, until: performance.now() + waitMs });

  // Looks for the attempt's order, by its id or among the buyer's orders, at growing intervals, until it is there, or certain
  // not to come, or another attempt has begun.
  async function follow(voucher, attempt) {
    const pause = Page.growing(attempt.orderId ? 300 : 600, 15000);
    while (attempts.get(voucher) === attempt) {
      const wasDecided = isDecided(attempt);
      // Asks for both: the list must not go on saying that there is no order.
      const [list, one] = await Promise.all([Orders.load(), attempt.orderId ? Orders.find(attempt.orderId) : null]);
      const reply = one || list;
      if (attempts.get(voucher) !== attempt) return;
      if (Orders.ofVoucher(voucher) || (attempt.orderId && Orders.byId(attempt.orderId))) {
        set(voucher, null);
        Orders.reload();
        return;
      }
      // Asked by its id, the service refuses an order only if there will never be one.
      if (one && one.status === 200 && !one.ok) { refuse(voucher, one); return; }
      // The order that the refusal was about is not in the list: it may be gone when the buyer tries again.
      if (attempt.name === 'owned' && isSlow(attempt)) { fail(voucher, () => Words.t('code.ALREADY_ORDERED')); return; }
      if (!attempt.orderId && wasDecided && list && list.ok) { fail(voucher, () => Words.t('buy.noneFound')); return; }
      await Page.sleep(pause(reply ? reply.waitMs : 0));
      listeners.forEach((listener) => listener());
    }
  }

  function reset() {
    attempts.clear();
    keep();
    listeners.forEach((listener) => listener());
  }

  return { buy, isSlow, of, reset, resume, onChange: (listener) => listeners.push(listener) };
})();
