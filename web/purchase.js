'use strict';
// One purchase at a time, from the press of the button to a certain end. What is on the way is followed
// up until it is decided: a pending order by its id, a lost reply by the buyer's own orders.

const Purchase = (() => {
  Words.add({
    'buy.signIn': ['Sign in to buy', '登录后抢购'],
    'buy.notYet': ['Not begun yet', '尚未开始'],
    'buy.ended': ['The sale is over', '秒杀已结束'],
    'buy.buying': ['Buying…', '抢购中…'],
    'buy.pending': ['A place is yours. Confirming…', '已抢到名额，正在确认…'],
    'buy.unknown': ['The reply was lost. Looking up what became of it…', '没有收到答复，正在查询结果…'],
    'buy.bought': ['It is yours', '抢购成功'],
    'buy.owned': ['You have one', '您已抢到'],
    'buy.soldOut': ['Sold out', '已售罄'],
    'buy.again': ['Try again', '再试一次'],
    'buy.wait': ['Try again in {seconds} s', '{seconds} 秒后重试'],
    'buy.order': ['Order {id}', '订单号 {id}'],
    'buy.boughtSay': ['The order is in the database. Pay for it under “My orders”.', '订单已写入数据库，请在“我的订单”里支付。'],
    'buy.none': ['No order has appeared. You can try again.', '没有查到订单，可以再试一次。'],
    'buy.look': ['Still not known. Look at “My orders” in a moment before you buy again.', '仍无法确认。请稍后查看“我的订单”，再决定是否重新抢购。'],
  });

  // How long an undecided purchase is followed up, and how often it is asked for, milliseconds.
  const PATIENCE = 30000, PAUSE = 400;

  const listeners = [];
  const states = new Map(); // voucher id → {name, orderId, text, until}
  const of = (voucher) => states.get(voucher) || { name: 'idle' };
  function put(voucher, state) {
    states.set(voucher, state);
    listeners.forEach((listener) => listener(state.name));
  }

  async function buy(voucher) {
    if (['buying', 'pending', 'unknown'].includes(of(voucher).name)) return;
    put(voucher, { name: 'buying' });
    const reply = await Account.ask('POST', `/voucher-order/seckill/${voucher}`);
    if (reply.ok && reply.code === 'PENDING') {
      put(voucher, { name: 'pending', orderId: reply.orderId });
      await follow(voucher, reply.orderId);
    } else if (reply.code === 'OUTCOME_UNKNOWN' || reply.code === 'NETWORK') {
      put(voucher, { name: 'unknown', orderId: reply.orderId });
      if (reply.orderId) await follow(voucher, reply.orderId); else await search(voucher);
    } else settle(voucher, reply);
  }

  function settle(voucher, reply) {
    if (reply.ok) put(voucher, { name: 'bought', orderId: reply.orderId });
    else if (reply.status === 401) states.delete(voucher);
    else if (reply.code === 'SOLD_OUT') put(voucher, { name: 'soldOut', code: reply.code });
    else if (reply.code === 'ALREADY_ORDERED') put(voucher, { name: 'owned', code: reply.code, orderId: reply.orderId });
    else fail(voucher, reply);
  }

  const fail = (voucher, reply) => put(voucher, {
    name: 'failed', code: reply.code, message: reply.message, until: performance.now() + reply.waitMs,
  });

  // Asks for the order until it is there, is refused, or patience ends.
  async function follow(voucher, orderId) {
    const deadline = performance.now() + PATIENCE;
    while (performance.now() < deadline) {
      const reply = await Account.ask('GET', `/voucher-order/${orderId}`);
      if (reply.ok && reply.code !== 'PENDING') {
        put(voucher, { name: 'bought', orderId });
        return;
      }
      const decided = reply.status === 401 || (reply.status === 200 && !reply.ok);
      // "Unknown" may be decided a moment later; of a pending order the service knows until it is decided.
      if (decided && !(reply.code === 'ORDER_NOT_FOUND' && of(voucher).name === 'unknown')) {
        settle(voucher, reply);
        return;
      }
      await Page.sleep(Math.max(PAUSE, reply.waitMs));
    }
    put(voucher, { name: 'failed', key: of(voucher).name === 'unknown' ? 'buy.none' : 'buy.look', until: 0 });
  }

  // No id was told: an order for this voucher among the buyer's own is the answer.
  async function search(voucher) {
    const deadline = performance.now() + PATIENCE / 3;
    let asked = false;
    while (performance.now() < deadline) {
      await Page.sleep(PAUSE * 2);
      const reply = await Account.ask('GET', '/voucher-order/of/me');
      if (reply.status === 401) { states.delete(voucher); return; }
      asked = asked || reply.ok;
      const found = reply.ok && reply.data.find((order) => order.voucherId === voucher && order.status !== 4);
      if (found) {
        put(voucher, { name: 'bought', orderId: found.orderId });
        return;
      }
    }
    put(voucher, { name: 'failed', key: asked ? 'buy.none' : 'buy.look', until: 0 });
  }

  // What was bought is not bought any more once it is cancelled, and nothing is known of another person.
  const forget = (voucher) => { if (voucher === undefined) states.clear(); else states.delete(voucher); };

  return { buy, forget, of, onChange: (listener) => listeners.push(listener) };
})();
