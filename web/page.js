'use strict';
// What the live pages share: requests to the service, its clock, and the notice that there is no network.

const Page = (() => {
  const lab = document.documentElement.dataset.lab === 'true';
  const zone = document.documentElement.dataset.zone || 'Asia/Shanghai';

  Words.add({
    'code.NETWORK': ['The service cannot be reached. Check the connection and try again.', '连不上服务。请检查网络后重试。'],
    'code.UNAVAILABLE': ['The service is not available right now; nothing was ordered. Try again in a moment.', '服务暂时不可用，没有下单。请稍后再试。'],
    'code.OVERLOADED': ['Too many people are buying right now; nothing was ordered. Try again in a moment.', '当前抢购人数过多，没有下单。请稍后再试。'],
    'code.TOO_MANY_REQUESTS': ['Too many requests. Wait a moment and try again.', '操作太频繁，请稍后再试。'],
    'code.UNAUTHORIZED': ['Your session has ended. Please sign in again.', '登录已失效，请重新登录。'],
    'code.INTERNAL': ['Something went wrong on our side (request {request}).', '服务器内部出错（请求 {request}）。'],
    'code.PHONE_INVALID': ['That is not a mainland China mobile number (11 digits).', '手机号格式不对（11 位大陆手机号）。'],
    'code.CODE_INVALID': ['That code is wrong, or it has expired.', '验证码错误，或已过期。'],
    'code.SOLD_OUT': ['Sold out.', '已售罄。'],
    'code.STOCK_CHANGED': ['The stock changed while you were buying; there may be some left. Try again.', '库存刚刚发生变化，可能还有剩余，请再试一次。'],
    'code.ALREADY_ORDERED': ['You already have one. One per person.', '你已经抢到过了，每人限购一份。'],
    'code.LOCK_BUSY': ['Another purchase of yours is still being processed.', '你的另一次抢购还在处理中。'],
    'code.SALE_NOT_BEGUN': ['The sale has not started yet.', '秒杀尚未开始。'],
    'code.SALE_ENDED': ['The sale is over.', '秒杀已经结束。'],
    'code.VOUCHER_NOT_FOUND': ['This voucher is not on sale any more.', '该优惠券已下架。'],
    'code.ORDER_NOT_FOUND': ['It is certain: there is no such order.', '已经确认：没有这个订单。'],
    'code.ORDER_FAILED': ['The order could not be placed because of an error on our side. Try again.', '系统原因导致下单失败，请重试。'],
    'code.ORDER_CANCELLED': ['This order has been cancelled.', '订单已取消。'],
    'code.ALREADY_PAID': ['This order has already been paid.', '订单已支付。'],
    'code.ORDER_REFUNDED': ['This order has been refunded.', '订单已退款。'],
    'code.OUTCOME_UNKNOWN': ['It is not known yet whether the order was placed.', '暂时无法确认订单是否成功。'],
    'page.days': ['{days} d {clock}', '{days} 天 {clock}'],
    'page.offline': ['You are offline. This page goes on when the connection is back.', '你已离线，恢复连接后本页会继续。'],
  });

  // A monotonic clock, milliseconds since 1970: it does not jump when the machine's clock is set.
  const monotonic = () => performance.timeOrigin + performance.now();
  // Bounds of the server's clock minus ours. A reply's Date is a whole second, so each reply narrows them; one that
  // contradicts the earlier ones (the machine was suspended) replaces them.
  let offset = null;
  function adjustClock(date, sent, received) {
    const second = Date.parse(date);
    if (Number.isNaN(second)) return;
    const [low, high] = [second - received, second + 1000 - sent];
    offset = offset && Math.max(low, offset[0]) <= Math.min(high, offset[1])
      ? [Math.max(low, offset[0]), Math.min(high, offset[1])] : [low, high];
  }
  // The earliest time that the server's clock can show, milliseconds since 1970: a sale does not begin here before it begins
  // there.
  const now = () => monotonic() + (offset ? offset[0] : Date.now() - monotonic());
  // How long to wait before the server is asked again, at least `ms`. While the bounds are wide, the request is sent about
  // when one of the server's seconds begins: its reply halves them.
  function nextPoll(ms) {
    if (!offset || offset[1] - offset[0] < 100) return ms;
    const then = monotonic() + ms + (offset[0] + offset[1]) / 2;
    return ms + (1000 - then % 1000);
  }

  // Time left, as 1 d 03:12:10, rounded up so that it ends at zero.
  function countdown(ms) {
    const seconds = Math.max(0, Math.ceil(ms / 1000));
    const two = (value) => String(value).padStart(2, '0');
    const clock = `${two(Math.floor(seconds / 3600) % 24)}:${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}`;
    const days = Math.floor(seconds / 86400);
    return days ? Words.t('page.days', { days, clock }) : clock;
  }

  // The instant of a local date-time in the server's zone: formatting a guess in that zone shows how far the guess is
  // off.
  const shown = new Intl.DateTimeFormat('en-US', {
    timeZone: zone, hourCycle: 'h23', year: 'numeric', month: 'numeric', day: 'numeric',
    hour: 'numeric', minute: 'numeric', second: 'numeric',
  });
  function instant(local) {
    const wanted = Date.parse(`${local}Z`);
    let guess = wanted;
    for (let round = 0; round < 2; round++) {
      const part = Object.fromEntries(shown.formatToParts(guess).map(({ type, value }) => [type, Number(value)]));
      guess += wanted - Date.UTC(part.year, part.month - 1, part.day, part.hour, part.minute, part.second);
    }
    return guess;
  }

  // Sends a request, and waits `limitMs` for the reply. Never throws: {ok, status, code, data, orderId, message, waitMs}.
  async function ask(method, path, { body, headers = {}, limitMs = 10000 } = {}) {
    const sent = monotonic();
    let response, envelope;
    try {
      response = await fetch(path, {
        method, cache: 'no-store', credentials: 'same-origin', signal: AbortSignal.timeout(limitMs),
        headers: body === undefined ? headers : { ...headers, 'content-type': 'application/json' },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
      adjustClock(response.headers.get('date'), sent, monotonic());
      envelope = await response.json();
    } catch {
      return { ok: false, status: response ? response.status : 0, code: 'NETWORK', message: 'NETWORK', waitMs: 1000 };
    }
    const code = envelope.code || (envelope.success ? 'OK' : 'UNKNOWN');
    return {
      ok: envelope.success === true,
      status: response.status,
      code,
      request: envelope.requestId || '–',
      data: envelope.data,
      orderId: envelope.orderId, // a string: `data` would have been rounded
      message: String(envelope.errorMsg || code),
      waitMs: Math.min(60, Number(response.headers.get('retry-after')) || 0) * 1000,
    };
  }

  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

  // Intervals that grow by half from `first` to `most` milliseconds, and are never shorter than the server asked for.
  function growing(first, most) {
    let next = first;
    return (waitMs = 0) => {
      const now = next;
      next = Math.min(most, next * 1.5);
      return Math.max(now, waitMs);
    };
  }

  // The text of a refusal, in the language that is current when it is called.
  const text = (reply) => () => (Words.has(`code.${reply.code}`) ? Words.t(`code.${reply.code}`, { request: reply.request }) : reply.message);

  // Whether a reply says only that the server could not answer.
  const isFailure = (reply) => reply.code === 'NETWORK' || reply.status === 429 || reply.status >= 500;

  // A part of the page that is loaded from the server: `data` is what it last said, null before. Where the server could
  // not answer, the load is repeated at growing intervals; until then `failed` is true and `data` stays as it was. `send`
  // returns the reply, or null when there is nothing to load. A reply that was overtaken by another load is dropped.
  function loaded(send, onChange) {
    const part = { data: null, failed: false };
    let latest = 0, timer = null, pause = growing(1000, 15000);
    part.load = async () => {
      const mine = ++latest;
      clearTimeout(timer);
      const reply = await send();
      if (mine !== latest || !reply) return reply;
      part.failed = isFailure(reply);
      if (part.failed) timer = setTimeout(part.load, pause(reply.waitMs));
      else {
        part.data = reply.ok ? reply.data : part.data;
        pause = growing(1000, 15000);
      }
      onChange(reply);
      return reply;
    };
    part.reset = () => {
      latest++;
      clearTimeout(timer);
      Object.assign(part, { data: null, failed: false });
    };
    return part;
  }

  // Replaces the children of `container`. The keyboard's focus stays on the element of the same `data-key`; where that
  // is gone, it moves to the one that the old element names as `data-next`, or else to the container.
  function render(container, ...children) {
    const focused = container.contains(document.activeElement) ? document.activeElement : null;
    container.replaceChildren(...children.flat(3).filter(Boolean));
    if (!focused) return;
    const keyed = (key) => key && container.querySelector(`[data-key="${CSS.escape(key)}"]`);
    (keyed(focused.dataset.key) || keyed(focused.dataset.next) || container).focus({ preventScroll: true });
  }

  // Runs `work` about every `ms`, one at a time and only while the page is visible. Returns a function that
  // runs it now.
  function whileVisible(ms, work) {
    let timer = null, busy = false;
    async function run() {
      clearTimeout(timer);
      if (busy || document.hidden) return;
      busy = true;
      let wait = 0;
      try { wait = (await work()) || 0; } finally { busy = false; }
      clearTimeout(timer);
      timer = setTimeout(run, Math.max(ms, wait));
    }
    document.addEventListener('visibilitychange', run);
    run();
    return run;
  }

  function showOffline() {
    const banner = document.getElementById('offline') || document.body.appendChild(make('p', { id: 'offline', class: 'notice bad', role: 'status' }));
    banner.textContent = navigator.onLine ? '' : Words.t('page.offline');
    banner.hidden = navigator.onLine;
  }
  window.addEventListener('online', showOffline);
  window.addEventListener('offline', showOffline);
  Words.onChange(showOffline);
  showOffline();

  return { lab, ask, countdown, growing, instant, isFailure, loaded, nextPoll, now, render, sleep, text, whileVisible };
})();
