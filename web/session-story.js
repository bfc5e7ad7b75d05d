'use strict';
// A session in one node's memory: the service signs a user in at one node and asks two of them who that is, once with the
// session in memory and once in Redis. Shown are its requests, each with the status that it was answered with.

const SessionStory = (() => {
  Words.add({
    'session.title': ['A session in one node’s memory', '会话在一个节点的内存里'],
    'session.intro': ['A user signs in at one node, and nginx sends the next click to the other. Does that one know the user?', '用户在一个节点登录，nginx 把下一次点击发给另一个节点。那个节点认识这位用户吗？'],
    'session.ask': ['Sign in at one, ask both', '在一个节点登录，再问两个节点'],
    'session.asking': ['Asking…', '正在询问…'],
    'session.in.memory': ['The session in the first node’s memory', '会话在第一个节点的内存里'],
    'session.in.redis': ['Fixed: the session in Redis', '改正：会话在 Redis 里'],
    'session.step.code': ['Node {node} sends a sign-in code.', '节点 {node} 发送验证码。'],
    'session.step.read-code': ['The code is read; only the lab shows it.', '读取验证码，只有实验室会显示它。'],
    'session.step.sign-in.memory': ['Node {node} keeps the session in its own memory and replies with a cookie.', '节点 {node} 把会话保存在自己的内存里，返回一个 cookie。'],
    'session.step.sign-in.redis': ['Node {node} writes the session to Redis and replies with its token.', '节点 {node} 把会话写入 Redis，返回对应的令牌。'],
    'session.step.me.200': ['“Who am I?” Node {node} finds the session and knows the user.', '“我是谁？”节点 {node} 找到会话，认识这位用户。'],
    'session.step.me.401': ['“Who am I?” Node {node} has no such session: please sign in.', '“我是谁？”节点 {node} 没有这个会话：请登录。'],
    'session.step.me.other': ['“Who am I?” Node {node} cannot say.', '“我是谁？”节点 {node} 无法回答。'],
    'session.silent': ['no reply', '没有响应'],
    'session.lost': ['The same cookie, another node: 401. nginx spreads the connections over the nodes, so a signed-in user meets this again and again.', '同一个 cookie，换一个节点就是 401。nginx 把连接分给各个节点，登录用户会一再遇到。'],
    'session.holds': ['All nodes read the same Redis, so it does not matter which one is asked.', '所有节点读同一个 Redis，问哪个节点都一样。'],
    'session.unclear': ['Not what was expected: see the replies above.', '与预期不同：请看上面的响应。'],
  });
  const t = Words.t;
  const EXPECTED = { memory: 'lost', redis: 'holds' };

  function sentence({ step, node, status }, keptIn) {
    const which = { 'sign-in': keptIn, me: [200, 401].includes(status) ? status : 'other' }[step];
    return t(which ? `session.step.${step}.${which}` : `session.step.${step}`, { node: node.split(':').pop() });
  }

  function part({ keptIn, outcome, requests }) {
    const expected = EXPECTED[keptIn] === outcome;
    const tone = { lost: 'bad', holds: 'good' }[outcome];
    return make('article', { class: outcome === 'holds' ? 'card diagram shared' : 'card diagram', 'data-kept-in': keptIn, 'data-outcome': outcome },
      make('h3', null, t(`session.in.${keptIn}`)),
      make('ol', { class: 'plain-steps' }, requests.map((request) => make('li', { 'data-step': request.step, 'data-node': request.node },
        make('span', null, sentence(request, keptIn), ' ', make('code', { class: 'soft' }, request.carries ? `${request.request} (${request.carries})` : request.request), ' ',
          make('span', { class: `badge ${request.status === 200 ? 'good' : 'bad'}` }, request.status || t('session.silent')))))),
      make('p', { class: `conclusion ${(expected && tone) || ''}` }, t(expected ? `session.${outcome}` : 'session.unclear')));
  }

  // ask(message) sends the request and returns the reply, which the element `message` then shows; nodes(): how many instances
  // there are.
  function create(panel, { ask, nodes }) {
    let busy = false, failed = null, story = null;
    const title = make('h2', { id: 'session-title' }), intro = make('p', { class: 'soft' });
    const button = make('button', { type: 'button', class: 'quiet', id: 'session-ask', onclick: run });
    const said = make('p', { class: 'said', role: 'status' });
    const parts = make('div', { class: 'diagrams', 'aria-live': 'polite' });
    panel.append(title, intro, make('div', { class: 'row break-row' }, button), said, parts);

    async function run() {
      busy = true;
      show();
      const reply = await ask(said);
      busy = false;
      failed = reply.ok ? null : reply;
      if (reply.ok) story = reply.data;
      show();
    }

    function show() {
      title.textContent = t('session.title');
      intro.textContent = t('session.intro');
      button.textContent = t('session.ask');
      button.disabled = busy || nodes() < 2;
      said.textContent = busy ? t('session.asking') : failed ? Page.text(failed)() : nodes() === 1 ? t('mission.two') : '';
      said.className = failed && !busy ? 'said bad' : 'said';
      parts.replaceChildren(...(story ? story.parts.map(part) : []));
    }

    show();
    return { show };
  }

  return { create };
})();
