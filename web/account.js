'use strict';
// Who is at the counter: signing in by phone and code, and asking the service in that person's name.

const Account = (() => {
  Words.add({
    'account.title': ['You', '我'],
    'account.why': ['Sign in with your phone number to buy.', '用手机号登录后即可抢购。'],
    'account.phone': ['Mobile number', '手机号'],
    'account.invent': ['Invent one', '随便来一个'],
    'account.send': ['Send me a code', '获取验证码'],
    'account.sending': ['Sending…', '发送中…'],
    'account.code': ['Code', '验证码'],
    'account.enter': ['Sign in', '登录'],
    'account.entering': ['Signing in…', '登录中…'],
    'account.lab': ['This is the lab: the code is {code}. Elsewhere it comes as a text message.', '实验室模式：验证码是 {code}。正式环境会以短信发送。'],
    'account.sent': ['The code is on its way. It is valid for two minutes.', '验证码已发送，两分钟内有效。'],
    'account.again': ['Another number', '换个号码'],
    'account.hello': ['Signed in as {name}', '已登录：{name}'],
    'account.out': ['Sign out', '退出登录'],
    'account.expired': ['You were signed out. Please sign in again.', '登录已失效，请重新登录。'],
    'account.bye': ['Signed out.', '已退出登录。'],
    'account.wait': ['Try again in {seconds} s', '{seconds} 秒后重试'],
  });

  const listeners = [];
  let token = stored();
  let person = null;
  // What the form shows: which step, what was typed, and what to say.
  let step = 'phone', phone = '', code = '', busy = false, said = null, failed = false;

  function stored() {
    try { return localStorage.getItem('token'); } catch { return null; }
  }
  function keep(value) {
    token = value;
    try {
      if (value) localStorage.setItem('token', value); else localStorage.removeItem('token');
    } catch { /* kept for this page only */ }
  }
  const box = () => document.getElementById('account');
  const changed = () => { show(); listeners.forEach((listener) => listener()); };
  const say = (text, bad = false) => { said = text; failed = bad; };

  // As Page.ask, in the name of who is signed in. A session that has ended is told once, politely.
  async function ask(method, path, options = {}) {
    const used = token;
    const headers = used ? { authorization: used } : {};
    const reply = await Page.ask(method, path, { ...options, headers: { ...options.headers, ...headers } });
    if (reply.status === 401 && used && used === token) {
      leave(() => Words.t('account.expired'), true);
    }
    return reply;
  }

  function leave(words, bad = false) {
    keep(null);
    person = null;
    step = 'phone';
    code = '';
    say(words, bad);
    changed();
  }

  async function sendCode() {
    busy = true; say(null); show();
    const reply = await Page.ask('POST', `/user/code?phone=${encodeURIComponent(phone)}`);
    if (reply.ok) {
      step = 'code';
      code = '';
      say(() => Words.t('account.sent'));
      if (Page.lab) {
        const told = await Page.ask('GET', `/lab/code/${encodeURIComponent(phone)}`);
        if (told.ok) {
          code = String(told.data);
          say(() => Words.t('account.lab', { code: told.data }));
        }
      }
    } else {
      say(trouble(reply), true);
    }
    busy = false; show();
    box().querySelector(reply.ok ? 'input[name=code]' : 'input[name=phone]').focus();
  }

  async function enter() {
    busy = true; say(null); show();
    const reply = await Page.ask('POST', '/user/login', { body: { phone, code } });
    busy = false;
    if (!reply.ok) {
      say(trouble(reply), true); show();
      box().querySelector('input[name=code]').focus();
      return;
    }
    keep(reply.data);
    step = 'phone'; code = ''; say(null);
    await recognise();
  }

  const trouble = (reply) => () => {
    const text = Words.has(`code.${reply.code}`) ? Words.t(`code.${reply.code}`, { request: '–' }) : reply.message;
    return reply.waitMs ? `${text} ${Words.t('account.wait', { seconds: Math.ceil(reply.waitMs / 1000) })}` : text;
  };

  // Asks whose session the kept token is.
  async function recognise() {
    if (!token) { changed(); return; }
    const reply = await ask('GET', '/user/me');
    if (reply.ok) { person = reply.data; changed(); }
    else if (token) { say(trouble(reply), true); changed(); }
  }

  // A mainland number nobody is likely to have typed here before.
  const invented = () => `199${String(crypto.getRandomValues(new Uint32Array(1))[0] % 1e8).padStart(8, '0')}`;

  function show() {
    const message = make('p', { class: failed ? 'said bad' : 'said', role: failed ? 'alert' : 'status' }, said ? said() : '');
    const input = (name, value, attributes, change) => make('input', {
      name, value, required: true, disabled: busy, ...attributes,
      oninput: (event) => change(event.target.value.trim()),
    });
    const form = (send, ...fields) =>
      make('form', { class: 'sign-in', onsubmit: (event) => { event.preventDefault(); if (!busy) send(); } }, fields);
    if (token && person) {
      box().replaceChildren(make('div', { class: 'person' },
        make('span', { class: 'avatar', 'aria-hidden': 'true' }, [...(person.nickName || '?')].pop().toUpperCase()),
        make('p', null, Words.t('account.hello', { name: person.nickName })),
        make('button', { type: 'button', class: 'quiet', id: 'sign-out', onclick: signOut }, Words.t('account.out'))), message);
    } else if (step === 'phone') {
      box().replaceChildren(make('p', { class: 'soft' }, Words.t('account.why')), form(sendCode,
        make('label', { class: 'field' }, make('span', null, Words.t('account.phone')),
          input('phone', phone, { type: 'tel', inputmode: 'numeric', autocomplete: 'tel-national', maxlength: 11, pattern: '1[0-9]{10}', placeholder: '13800138000' },
            (value) => { phone = value; })),
        make('div', { class: 'row' },
          make('button', { class: 'main', type: 'submit', disabled: busy }, Words.t(busy ? 'account.sending' : 'account.send')),
          Page.lab && make('button', { type: 'button', class: 'quiet', onclick: () => { phone = invented(); show(); } }, Words.t('account.invent')))), message);
    } else {
      box().replaceChildren(make('p', { class: 'soft' }, phone), form(enter,
        make('label', { class: 'field' }, make('span', null, Words.t('account.code')),
          input('code', code, { inputmode: 'numeric', autocomplete: 'one-time-code', maxlength: 6, pattern: '[0-9]{6}' },
            (value) => { code = value; })),
        make('div', { class: 'row' },
          make('button', { class: 'main', type: 'submit', disabled: busy }, Words.t(busy ? 'account.entering' : 'account.enter')),
          make('button', { type: 'button', class: 'quiet', onclick: () => { step = 'phone'; say(null); show(); } }, Words.t('account.again')))), message);
    }
  }

  async function signOut() {
    const reply = await ask('POST', '/user/logout');
    // An ended session is what was wanted, whoever ended it.
    if (reply.ok || reply.status === 401) leave(() => Words.t('account.bye'));
    else { say(trouble(reply), true); show(); }
  }

  // Brings whoever has to sign in first to the place for it.
  function invite() {
    box().scrollIntoView({ block: 'center' });
    const input = box().querySelector('input');
    if (input) input.focus({ preventScroll: true });
  }

  Words.onChange(show);
  return { ask, invite, recognise, show, person: () => person, onChange: (listener) => listeners.push(listener) };
})();
