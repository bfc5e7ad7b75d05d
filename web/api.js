'use strict';
// The page of the API's document: each operation with what it takes and answers, and a form that sends it.

(() => {
  Words.add({
    'api.title': ['Flash sale: the API', '秒杀：接口文档'],
    'api.heading': ['The API', '接口文档'],
    'api.source': ['As a document:', '机器可读的文档：'],
    'api.tokens': ['Tokens for the requests you send', '发送请求时使用的令牌'],
    'api.session': ['Session token (authorization)', '登录令牌（authorization）'],
    'api.admin': ['Admin token (x-admin-token)', '管理令牌（x-admin-token）'],
    'api.kept': ['If you are signed in at the shop, its token is filled in. What you type here stays in this page.', '如果已在商店登录，这里会填入它的令牌；在此输入的内容只留在本页。'],
    'api.filter': ['Filter by path or summary', '按路径或摘要筛选'], 'api.nothing': ['No operation has this in its path or summary.', '没有路径或摘要包含它的接口。'],
    'api.curl': ['Copy as curl', '复制为 curl'], 'api.copied': ['Copied', '已复制'], 'api.copyFailed': ['The clipboard is not available here.', '此处无法使用剪贴板。'],
    'api.headers': ['Headers of the reply', '响应头'], 'api.use': ['Use this token', '使用这个令牌'],
    'api.loading': ['Loading…', '加载中…'],
    'api.failed': ['The document could not be loaded. Reload the page to try again.', '文档加载失败，请刷新页面重试。'],
    'api.parameters': ['Try it', '试一试'],
    'api.body': ['Body', '请求体'],
    'api.fields': ['Fields of the body', '请求体的字段'],
    'api.replies': ['Replies', '响应'],
    'api.send': ['Send', '发送'],
    'api.sending': ['Sending…', '发送中…'],
    'api.answered': ['{status} in {ms} ms', '{status}，{ms} 毫秒'],
    'api.unreached': ['No reply: {error}', '没有响应：{error}'],
    'api.needs.authorization': ['needs a session', '需要登录'],
    'api.needs.x-admin-token': ['needs the admin token', '需要管理令牌'],
    'api.required': ['required', '必填'],
    'api.optional': ['optional', '可选'],
  });

  const t = Words.t;
  const id = (name) => document.getElementById(name);
  // Longest reply that is shown, characters.
  const SHOWN = 100000;
  let source = null, api = null;

  // `code`, **bold** and *italic* in a text, as elements.
  const inline = (text) => text.split(/(`[^`]+`|\*\*[^*]+\*\*|\*[^*]+\*)/).map((part) => {
    if (part.startsWith('`')) return make('code', null, part.slice(1, -1));
    if (part.startsWith('**')) return make('strong', null, part.slice(2, -2));
    return part.length > 2 && part.startsWith('*') ? make('em', null, part.slice(1, -1)) : part;
  });
  const paragraphs = (text) => (text || '').trim().split(/\n\n+/).filter(Boolean).map((one) => make('p', null, inline(one.replace(/\n/g, ' '))));

  // The members of a schema as a list, their own members below them.
  function schemaList(schema, depth = 0) {
    const members = depth < 6 ? api.members(schema) : [];
    if (!members.length) return null;
    return make('ul', { class: 'schema' }, members.map((member) => make('li', null,
      make('code', null, member.name), ' ',
      make('span', { class: 'soft' }, [member.words, member.required && t('api.required')].filter(Boolean).join(', ')),
      member.description ? [' ', make('span', { lang: 'en' }, inline(member.description.replace(/\n/g, ' ')))] : null,
      schemaList(member.schema, depth + 1))));
  }

  // ── Sending ───────────────────────────────────────────────────────────────────────────────────

  // What the form asks for: {url, method, headers, body}.
  function requestOf(operation, form) {
    const headers = {};
    const query = new URLSearchParams();
    let path = operation.path;
    for (const parameter of operation.parameters || []) {
      const value = form.elements[parameter.name].value.trim();
      if (parameter.in === 'path') path = path.replace(`{${parameter.name}}`, encodeURIComponent(value));
      else if (value && parameter.in === 'query') query.set(parameter.name, value);
      else if (value) headers[parameter.name] = value;
    }
    const body = form.elements.body && form.elements.body.value.trim();
    if (body) headers['content-type'] = bodyOf(operation).kind;
    if (id('session').value.trim()) headers.authorization = id('session').value.trim();
    if (id('admin').value.trim()) headers['x-admin-token'] = id('admin').value.trim();
    return { url: path + (String(query) ? `?${query}` : ''), method: operation.method, headers, body: body || undefined };
  }

  function curl({ url, method, headers, body }) {
    const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
    return [`curl -i -X ${method} ${quoted(location.origin + url)}`, ...Object.entries(headers).map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`),
      ...(body ? [`-d ${quoted(body)}`] : [])].join(' \\\n  ');
  }

  // Sends what the form says. `status` shows that it is under way and what came of it, `reply` the body, `more` the headers.
  async function send(operation, form, status, reply, more) {
    const { url, ...request } = requestOf(operation, form);
    status.textContent = t('api.sending');
    reply.hidden = true;
    more.replaceChildren();
    const began = performance.now();
    try {
      const answer = await fetch(url, { ...request, cache: 'no-store', credentials: 'same-origin', signal: AbortSignal.timeout(60000) });
      const text = await answer.text();
      status.textContent = t('api.answered', { status: answer.status, ms: Math.round(performance.now() - began) });
      const isJson = (answer.headers.get('content-type') || '').includes('json');
      reply.textContent = (isJson ? ExactJson.indent(text) : text).slice(0, SHOWN);
      reply.hidden = !text;
      const token = operation.operationId === 'user_login' && isJson && JSON.parse(text).data;
      more.replaceChildren(...[
        token && make('button', { type: 'button', class: 'quiet', onclick: () => { id('session').value = token; } }, t('api.use')),
        make('details', null, make('summary', null, t('api.headers')), make('pre', { tabindex: 0, role: 'group', 'aria-label': t('api.headers') }, [...answer.headers].map((pair) => pair.join(': ')).join('\n'))),
      ].filter(Boolean));
    } catch (error) {
      status.textContent = t('api.unreached', { error: error.message });
    }
  }

  // The body that an operation takes: {kind, schema, required}, or null.
  function bodyOf(operation) {
    if (!operation.requestBody) return null;
    const content = Object.entries(operation.requestBody.content)[0];
    if (!content) return null;
    const [kind, { schema }] = content;
    // An operation that takes parameters takes them as a form, too, by the same names: this page sends the parameters.
    const repeatsParameters = kind !== 'application/json' && (operation.parameters || []).length > 0;
    if (repeatsParameters) return null;
    return { kind, schema, required: operation.requestBody.required };
  }

  // ── An operation ──────────────────────────────────────────────────────────────────────────────

  function field(operation, parameter) {
    const { name, required, description } = parameter;
    const hint = `${operation.operationId}-${name}-hint`;
    const example = parameter.example ?? (required ? api.example(parameter.schema) : '');
    // What may be left out stays empty, but for a query: its example shows how it is written.
    const isFilledIn = required || parameter.in === 'query';
    const value = isFilledIn ? (example ?? '') : '';
    return make('div', { class: 'field' },
      make('label', { for: `${hint}-of` }, make('code', null, name), ' ',
        make('span', { class: 'soft' }, [parameter.in, api.words(parameter.schema), t(required ? 'api.required' : 'api.optional')].filter(Boolean).join(', '))),
      make('input', { id: `${hint}-of`, name, value: ExactJson.print(value), required: required && parameter.in === 'path', 'aria-describedby': description ? hint : null, spellcheck: 'false', autocomplete: 'off' }),
      description ? make('span', { class: 'hint', id: hint, lang: 'en' }, inline(description.replace(/\n/g, ' '))) : null);
  }

  function formOf(operation) {
    const status = make('p', { class: 'said', role: 'status' });
    const reply = make('pre', { hidden: true, tabindex: 0, role: 'group', 'aria-label': t('api.replies') });
    const more = make('div');
    const body = bodyOf(operation);
    const copy = make('button', { type: 'button', class: 'quiet', onclick: async () => {
      try {
        await navigator.clipboard.writeText(curl(requestOf(operation, form)));
        copy.textContent = t('api.copied');
      } catch {
        copy.textContent = t('api.copyFailed');
      }
    } }, t('api.curl'));
    const form = make('form', { onsubmit: (event) => { event.preventDefault(); send(operation, form, status, reply, more); } },
      (operation.parameters || []).map((parameter) => field(operation, parameter)),
      body && make('label', { class: 'field' }, make('span', null, t('api.body')),
        make('textarea', { name: 'body', rows: 8, spellcheck: 'false', autocomplete: 'off' }, ExactJson.print(api.example(body.schema)))),
      make('div', { class: 'row' }, make('button', { class: 'main', type: 'submit' }, t('api.send')), copy));
    return make('section', null, make('h3', null, t('api.parameters')), form, status, reply, more);
  }

  function replies(operation) {
    const row = ([status, given]) => {
      const reply = api.resolve(given);
      const kinds = Object.values(reply.content || {});
      const examples = kinds.flatMap((kind) => Object.entries(kind.examples || {}));
      const success = examples.find(([name]) => name === 'success');
      const codes = examples.map(([name]) => name).filter((name) => name !== 'success');
      // Where a reply has one of several schemas, each of them.
      const schemas = kinds.flatMap((kind) => {
        const schema = api.resolve(kind.schema);
        const choices = api.choices(schema);
        return choices.length ? choices : [schema];
      });
      // The success comes first.
      const shown = Number(status) < 300 && schemas[0];
      const example = success ? success[1].value : shown && api.example(shown);
      return make('li', null, make('strong', null, status), ' ', make('span', { lang: 'en' }, inline(reply.description || '')),
        codes.length ? make('p', { class: 'codes' }, codes.map((code) => make('code', { class: 'badge' }, code))) : null,
        shown ? schemaList(shown) : null,
        example ? make('pre', { tabindex: 0, role: 'group', 'aria-label': `${status}` }, ExactJson.print(example)) : null);
    };
    return make('section', null, make('h3', null, t('api.replies')), make('ul', { class: 'replies' }, Object.entries(operation.responses).map(row)));
  }

  function show(operation) {
    const body = bodyOf(operation);
    const needs = (operation.security || []).flatMap(Object.keys);
    const inside = make('div', { class: 'operation-body' });
    // Made when it is opened: most of them never are.
    const fill = () => {
      if (inside.children.length) return;
      const fields = body && schemaList(body.schema);
      inside.append(...[
        operation.description && make('div', { lang: 'en' }, paragraphs(operation.description)),
        formOf(operation),
        fields && make('section', null, make('h3', null, t('api.fields')), fields),
        replies(operation),
      ].filter(Boolean));
    };
    const details = make('details', { class: 'operation', id: operation.operationId, ontoggle: () => {
      if (!details.open) return;
      fill();
      history.replaceState(null, '', `#${operation.operationId}`);
    } },
    make('summary', null,
      make('span', { class: `method ${operation.method.toLowerCase()}` }, operation.method), make('code', null, operation.path),
      make('span', { lang: 'en', class: 'soft' }, inline(operation.summary || '')),
      needs.map((name) => make('span', { class: 'badge' }, t(`api.needs.${name}`)))), inside);
    return details;
  }

  function draw() {
    if (!api) return;
    const open = [...document.querySelectorAll('.operation[open]')].map((one) => one.id);
    id('about').replaceChildren(...paragraphs(source.info.description));
    const all = api.operations();
    id('operations').replaceChildren(...source.tags.map(({ name, description }) => make('section', { class: 'group-of', 'aria-labelledby': `tag-${name}` },
      make('h2', { id: `tag-${name}`, lang: 'en' }, name), make('p', { class: 'soft', lang: 'en' }, inline(description || '')),
      all.filter((operation) => operation.tags[0] === name).map(show))));
    for (const name of [...open, location.hash.slice(1)]) {
      const details = name && id(name);
      if (details && details.matches('details')) details.open = true;
    }
    filter();
  }

  // Hides the operations that have the text in neither path nor summary, and groups of which none is left.
  function filter() {
    const wanted = id('filter').value.trim().toLowerCase();
    for (const one of document.querySelectorAll('.operation')) one.hidden = !one.querySelector('summary').textContent.toLowerCase().includes(wanted);
    for (const group of document.querySelectorAll('.group-of')) group.hidden = !group.querySelector('.operation:not([hidden])');
    id('filter-said').textContent = document.querySelector('.operation:not([hidden])') ? '' : t('api.nothing');
  }
  id('filter').addEventListener('input', filter);

  async function start() {
    try {
      id('session').value = localStorage.getItem('token') || '';
    } catch { /* no storage */ }
    try {
      const reply = await fetch('/docs/openapi.json', { signal: AbortSignal.timeout(20000) });
      source = ExactJson.parse(await reply.text());
      api = ApiSchema(source);
    } catch {
      id('operations').replaceChildren(make('p', { class: 'notice bad', role: 'alert' }, t('api.failed')));
      return;
    }
    draw();
    const target = location.hash.length > 1 && id(location.hash.slice(1));
    if (target) target.scrollIntoView();
  }

  Words.onChange(draw);
  start();
})();
