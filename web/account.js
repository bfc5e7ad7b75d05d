'use strict';
// The session: the sign-in form (phone number and code), and requests with the session's token.

const Account = (() => {
  Words.add({
    'account.title': ['You', '我'],
    'account.why': ['Sign in with your phone number to buy.', '用手机号登录后即可抢购。'],
    'account.phone': ['Mobile number', '手机号'],
    'account.random': ['Use a random number', '随机生成一个号码'],
    'account.send': ['Send me a code', '获取验证码'],
    'account.sending': ['Sending…', '发送中…'],
    'account.code': ['Code', '验证码'],
    'account.enter': ['Sign in', '登录'],
    'account.entering': ['Signing in…', '登录中…'],
    'account.lab': ['Lab server: the code is {code}. Elsewhere it is sent as a text message.', '实验环境：验证码是 {code}。正式环境会以短信发送。'],
    'account.unsent': ['The code could not be sent. Try again in a moment.', '验证码发送失败，请稍后再试。'],
    'account.sent': ['The code is on its way. It is valid for two minutes.', '验证码已发送，两分钟内有效。'],
    'account.again': ['Use another number', '换个号码'],
    'account.resend': ['Send another code', '重新发送验证码'],
    'account.hello': ['Signed in as {name}', '已登录：{name}'],
    'account.out': ['Sign out', '退出登录'], 'account.leaving': ['Signing out…', '退出中…'],
    'account.notOut': ['You are not signed out yet: the service does not answer. Trying again…', '尚未退出：服务没有响应，正在重试…'],
    'account.expired': ['You were signed out. Please sign in again.', '登录已失效，请重新登录。'],
    'account.bye': ['Signed out.', '已退出登录。'],
    'account.checking': ['Checking your session…', '正在确认登录状态…'],
    'account.failed': ['Your session could not be checked. Trying again…', '登录状态确认失败，正在重试…'],
    'account.wait': ['Try again in {seconds} s', '{seconds} 秒后重试'],
  });

  const KEY = 'token';
  const listeners = [];
  let token = storedToken();
  // The signed-in user. Until it is loaded the token may or may not be valid; only a 401 says that it is not.
  const user = Page.loaded(async () => {
    const used = token;
    if (!used) return null;
    const reply = await ask('GET', '/user/me');
    return used === token ? reply : null;
  }, () => show());
  // The form: its step, what was typed, the message under it (a function, as the language may change), and until when the
  // service asked to wait.
  let step = 'phone', phone = '', code = '', busy = false, leaving = false, message = null, failed = false, until = 0;
  const signedIn = [];

  function storedToken() {
    try { return localStorage.getItem(KEY); } catch { return null; }
  }
  function storeToken(value) {
    try {
      if (value) localStorage.setItem(KEY, value); else localStorage.removeItem(KEY);
    } catch { /* no storage: for this page only */ }
    begin(value);
  }
  const box = () => document.getElementById('account');
  const setMessage = (text, bad = false, waitMs = 0) => { message = text; failed = bad; until = performance.now() + waitMs; };
  const refused = (reply) => setMessage(Page.text(reply), true, reply.waitMs);

  // A session begins or ends, in this tab or in another.
  function begin(value) {
    token = value;
    user.reset();
    step = 'phone';
    code = '';
    show();
    listeners.forEach((listener) => listener());
    user.load();
  }
  window.addEventListener('storage', ({ key }) => {
    if ((key !== KEY && key !== null) || storedToken() === token) return;
    setMessage(storedToken() ? null : () => Words.t('account.bye'));
    begin(storedToken());
  });

  // As Page.ask, with the session's token. When the session has ended, the form says so.
  async function ask(method, path, options = {}) {
    const used = token;
    const headers = used ? { authorization: used } : {};
    const reply = await Page.ask(method, path, { ...options, headers: { ...options.headers, ...headers } });
    if (reply.status === 401 && used && used === token) {
      endSession(() => Words.t('account.expired'), true);
    }
    return reply;
  }

  function endSession(text, bad = false) {
    setMessage(text, bad);
    storeToken(null);
  }

  async function sendCode() {
    busy = true; setMessage(null); show();
    const reply = await Page.ask('POST', `/user/code?phone=${encodeURIComponent(phone)}`);
    if (reply.ok) {
      step = 'code';
      code = '';
      setMessage(() => Words.t('account.sent'));
      if (Page.lab) {
        const reply = await Page.ask('GET', `/lab/code/${encodeURIComponent(phone)}`);
        if (reply.ok) {
          code = String(reply.data);
          setMessage(() => Words.t('account.lab', { code: reply.data }));
        }
      }
    } else {
      refused(reply);
      if (reply.status === 503) message = () => Words.t('account.unsent');
    }
    busy = false; show();
    const next = box().querySelector(reply.ok ? 'input[name=code]' : 'input[name=phone]');
    if (next) next.focus(); // another tab may have signed in
  }

  async function signIn() {
    busy = true; setMessage(null); show();
    const reply = await Page.ask('POST', '/user/login', { body: { phone, code } });
    busy = false;
    if (!reply.ok) {
      refused(reply); show();
      box().querySelector('input[name=code]').focus();
      return;
    }
    setMessage(null);
    storeToken(reply.data);
    signedIn.forEach((listener) => listener());
  }

  // How long to wait, as the service asked; counted down each second.
  const waitText = () => (until > performance.now() ? Words.t('account.wait', { seconds: Math.ceil((until - performance.now()) / 1000) }) : '');
  setInterval(() => { const wait = box().querySelector('.wait'); if (wait && wait.textContent) wait.textContent = waitText(); }, 250);

  // A mainland number that is unlikely to be in use here.
  const randomPhone = () => `199${String(crypto.getRandomValues(new Uint32Array(1))[0] % 1e8).padStart(8, '0')}`;

  function show() {
    const line = [make('p', { class: failed ? 'said bad' : 'said', role: failed ? 'alert' : 'status' }, message ? message() : ''), make('p', { class: 'soft wait' }, waitText())];
    const input = (name, value, attributes, change) => make('input', {
      name, value, required: true, readonly: busy, 'data-key': name, 'data-next': 'phone', ...attributes,
      oninput: (event) => change(event.target.value.trim()),
    });
    // Not `disabled`: a button that has the focus keeps it while it is busy.
    const submit = (label) => make('button', {
      class: 'main', type: 'submit', 'aria-disabled': String(busy), 'data-key': 'submit', 'data-next': 'person',
    }, label);
    const quiet = (key, onclick, label) => make('button', { type: 'button', class: 'quiet', 'data-key': key, 'data-next': 'phone', onclick }, label);
    const form = (send, ...fields) =>
      make('form', { class: 'sign-in', onsubmit: (event) => { event.preventDefault(); if (!busy) send(); } }, fields);
    if (token) {
      const name = user.data && user.data.nickName;
      const out = quiet('out', signOut, Words.t(leaving ? 'account.leaving' : 'account.out'));
      out.id = 'sign-out';
      out.setAttribute('aria-disabled', String(leaving));
      Page.render(box(), make('div', { class: 'person' },
        make('span', { class: 'avatar', 'aria-hidden': 'true' }, [...(name || '?')].pop().toUpperCase()),
        make('p', { id: 'person', tabindex: -1, 'data-key': 'person' }, name ? Words.t('account.hello', { name })
          : Words.t(user.failed ? 'account.failed' : 'account.checking')),
        out), line);
    } else if (step === 'phone') {
      Page.render(box(), make('p', { class: 'soft' }, Words.t('account.why')), form(sendCode,
        make('label', { class: 'field' }, make('span', null, Words.t('account.phone')),
          input('phone', phone, { type: 'tel', inputmode: 'numeric', autocomplete: 'tel-national', maxlength: 11, pattern: '1[0-9]{10}', placeholder: '13800138000' },
            (value) => { phone = value; })),
        make('div', { class: 'row' },
          submit(Words.t(busy ? 'account.sending' : 'account.send')),
          Page.lab && quiet('random', () => { phone = randomPhone(); show(); }, Words.t('account.random')))), line);
    } else {
      Page.render(box(), make('p', { class: 'soft' }, phone), form(signIn,
        make('label', { class: 'field' }, make('span', null, Words.t('account.code')),
          input('code', code, { inputmode: 'numeric', autocomplete: 'one-time-code', maxlength: 6, pattern: '[0-9]{6}' },
            (value) => { code = value; })),
        make('div', { class: 'row' },
          submit(Words.t(busy ? 'account.entering' : 'account.enter')),
          quiet('resend', () => { if (!busy) sendCode(); }, Words.t('account.resend')),
          quiet('again', () => { step = 'phone'; setMessage(null); show(); }, Words.t('account.again')))), line);
    }
  }

  // Repeats the request until the service has answered, or another tab has signed out.
  async function signOut() {
    if (leaving) return;
    const used = token, pause = Page.growing(1000, 15000);
    leaving = true;
    setMessage(null);
    show();
    while (used === token) {
      const reply = await ask('POST', '/user/logout');
      if (token && used !== token) break;
      // 401: the session had ended already.
      if (reply.ok || reply.status === 401) { endSession(() => Words.t('account.bye')); break; }
      setMessage(() => Words.t('account.notOut'), true);
      show();
      await Page.sleep(pause(reply.waitMs));
    }
    leaving = false;
    show();
  }

  // Scrolls to the form and focuses it.
  function focusForm() {
    box().scrollIntoView({ block: 'center' });
    const input = box().querySelector('input');
    if (input) input.focus({ preventScroll: true });
  }

  Words.onChange(show);
  return { ask, focusForm, show, start: () => { show(); user.load(); }, token: () => token, onChange: (listener) => listeners.push(listener), onSignIn: (listener) => signedIn.push(listener) };
})();
