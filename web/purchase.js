'use strict';
// One purchase at a time, from the click to a definite result. While the result is not known it is polled: a pending
// order by its id, a lost reply by the buyer's list of orders.

const Purchase = (() => {
  Words.add({
    'buy.signIn': ['Sign in to buy', '登录后抢购'],
    'buy.notYet': ['Not begun yet', '尚未开始'],
    'buy.ended': ['The sale is over', '秒杀已结束'],
    'buy.buying': ['Buying…', '抢购中…'],
    'buy.pending': ['Admitted. Waiting for the order…', '已抢到名额，正在生成订单…'],
    'buy.unknown': ['No reply arrived. Looking up the result…', '没有收到答复，正在查询结果…'],
    'buy.bought': ['It is yours', '抢购成功'],
    'buy.owned': ['You have one', '您已抢到'],
    'buy.soldOut': ['Sold out', '已售罄'],
    'buy.again': ['Try again', '再试一次'],
    'buy.wait': ['Try again in {seconds} s', '{seconds} 秒后重试'],
    'buy.order': ['Order {id}', '订单号 {id}'],
    'buy.boughtSay': ['The order is in the database. Pay for it under “My orders”.', '订单已写入数据库，请在“我的订单”里支付。'],
    'buy.none': ['No order was found. You can try again.', '没有查到订单，可以再试一次。'],
    'buy.look': ['The result is still not known. Check “My orders” in a moment before you buy again.', '仍无法确认结果。请稍后查看“我的订单”，再决定是否重新抢购。'],
  });

  // How long, and how often, an unknown result is polled, milliseconds.
  const POLL_FOR = 30000, POLL_EVERY = 400;

  const listeners = [];
  const states = new Map(); // voucher id → {name, orderId, text, until}
  const stateOf = (voucher) => states.get(voucher) || { name: 'idle' };
  function setState(voucher, state) {
    states.set(voucher, state);
    listeners.forEach((listener) => listener(state.name));
  }

  async function buy(voucher) {
    if (['buying', 'pending', 'unknown'].includes(stateOf(voucher).name)) return;
    setState(voucher, { name: 'buying' });
    const reply = await Account.ask('POST', `/voucher-order/seckill/${voucher}`);
    if (reply.ok && reply.code === 'PENDING') {
      setState(voucher, { name: 'pending', orderId: reply.orderId });
      await pollOrder(voucher, reply.orderId);
    } else if (reply.code === 'OUTCOME_UNKNOWN' || reply.code === 'NETWORK') {
      setState(voucher, { name: 'unknown', orderId: reply.orderId });
      if (reply.orderId) await pollOrder(voucher, reply.orderId); else await findOrder(voucher);
    } else showResult(voucher, reply);
  }

  function showResult(voucher, reply) {
    if (reply.ok) setState(voucher, { name: 'bought', orderId: reply.orderId });
    else if (reply.status === 401) states.delete(voucher);
    else if (reply.code === 'SOLD_OUT') setState(voucher, { name: 'soldOut', code: reply.code });
    else if (reply.code === 'ALREADY_ORDERED') setState(voucher, { name: 'owned', code: reply.code, orderId: reply.orderId });
    else fail(voucher, reply);
  }

  const fail = (voucher, reply) => setState(voucher, {
    name: 'failed', code: reply.code, message: reply.message, until: performance.now() + reply.waitMs,
  });

  // Polls the order until it exists, is refused, or the time is up.
  async function pollOrder(voucher, orderId) {
    const deadline = performance.now() + POLL_FOR;
    while (performance.now() < deadline) {
      const reply = await Account.ask('GET', `/voucher-order/${orderId}`);
      if (reply.ok && reply.code !== 'PENDING') {
        setState(voucher, { name: 'bought', orderId });
        return;
      }
      const final = reply.status === 401 || (reply.status === 200 && !reply.ok);
      // After a lost reply the order may still appear; a pending order is known to the service until it is final.
      if (final && !(reply.code === 'ORDER_NOT_FOUND' && stateOf(voucher).name === 'unknown')) {
        showResult(voucher, reply);
        return;
      }
      await Page.sleep(Math.max(POLL_EVERY, reply.waitMs));
    }
    setState(voucher, { name: 'failed', key: stateOf(voucher).name === 'unknown' ? 'buy.none' : 'buy.look', until: 0 });
  }

  // Without an order id: looks for an order of this voucher among the buyer's.
  async function findOrder(voucher) {
    const deadline = performance.now() + POLL_FOR / 3;
    let asked = false;
    while (performance.now() < deadline) {
      await Page.sleep(POLL_EVERY * 2);
      const reply = await Account.ask('GET', '/voucher-order/of/me');
      if (reply.status === 401) { states.delete(voucher); return; }
      asked = asked || reply.ok;
      const found = reply.ok && reply.data.find((order) => order.voucherId === voucher && order.status !== 4);
      if (found) {
        setState(voucher, { name: 'bought', orderId: found.orderId });
        return;
      }
    }
    setState(voucher, { name: 'failed', key: asked ? 'buy.none' : 'buy.look', until: 0 });
  }

  // After a cancellation the state of one voucher is void, after a sign-out that of all.
  const forget = (voucher) => { if (voucher === undefined) states.clear(); else states.delete(voucher); };

  return { buy, forget, stateOf, onChange: (listener) => listeners.push(listener) };
})();
