'use strict';
// The lab: set up a run, start it, watch it, break something meanwhile, and share it. What a run looks like
// is run.js; this file only asks the service and fills in the form.

(() => {
  Words.add({
    'lab.title': ['Flash sale: the lab', '秒杀实验室'],
    'lab.heading': ['Watch a lock sell to one buyer twice', '看一把锁怎样让一位买家买到两次'],
    'lab.intro.1': ['A flash sale has two rules: never sell more vouchers than there are, and never give one buyer two. Thousands press at the same moment, and two copies of the service (two “nodes”) share the work, so both rules are easily broken.', '秒杀有两条规则：卖出的不能比拥有的多，一位买家不能得到两份。成千上万人在同一刻点击，又有两份服务（两个“节点”）分担工作，这两条规则都很容易被打破。'],
    'lab.intro.2': ['Here two strategies sell the same sale side by side, under a real load. One of them usually fails. Below is why, before you start; after a run you see it happen in its own records. While it runs you can break things: pause Redis, kill a node.', '在这里，两种策略在真实压力下并排卖同一场秒杀，其中一种通常会失败。下面先说明原因；运行之后，你会在它自己的记录里看到这一切发生。运行期间还可以搞破坏：暂停 Redis、杀死一个节点。'],
    'lab.foot': ['Everything shown is measured on this machine, in this run, and judged by the same checker as the load tool.', '所示一切都在本机、本次运行中测得，并由与压测工具相同的检查器判定。'],
    'form.title': ['Try it: a real load on the real instances', '动手试试：对真实实例施加真实压力'],
    'form.left': ['Left', '左侧'], 'form.right': ['Right', '右侧'],
    'form.buyers': ['Buyers', '买家'], 'form.tries': ['Tries each, at once', '每人同时尝试'], 'form.stock': ['Vouchers on sale', '优惠券数量'],
    'form.instances': ['Instances', '实例数'], 'form.spreadSeconds': ['Spread over, seconds', '分布时长（秒）'], 'form.seed': ['Seed (optional)', '种子（可选）'],
    'form.idea': ['The idea', '思路'], 'form.risk': ['What can go wrong', '会出什么问题'], 'form.safe': ['Why it holds', '为什么守得住'],
    'form.token': ['Admin token', '管理令牌'],
    'form.token.where': ['A run puts load on this machine, so it needs the admin token: ./dev lab prints the link that has it, and so does the line ADMIN_TOKEN of ./dev env. It stays in this tab.', '运行会给本机带来压力，因此需要管理令牌：./dev lab 会打印带令牌的链接，./dev env 的 ADMIN_TOKEN 一行也有。它只保存在本标签页。'],
    'form.start': ['Start', '开始'], 'form.stop': ['Stop', '停止'],
    'form.starting': ['Starting…', '正在开始…'],
    'form.gone': ['This run is no longer kept here. Its setting and seed are filled in: press Start to run it again.', '这次运行已不再保存。参数和种子已填好，点“开始”即可重跑。'],
    'form.alone': ['Only one instance runs, so there is nothing to fall out between two.', '目前只有一个实例，看不到两个节点之间的问题。'],
    'doing.preparing': ['the buyers sign in', '买家正在登录'],
    'doing.running': ['the buyers are buying', '买家正在抢购'],
    'doing.judging': ['every reply is held against every row', '逐条核对答复与数据库'],
    'run.title': ['The run', '本次运行'],
    'run.link': ['Copy the link', '复制链接'], 'run.copied': ['Copied', '已复制'], 'run.copy-bar': ['It is in the address bar', '链接在地址栏里'], 'run.raw': ['Raw data (JSON)', '原始数据（JSON）'], 'run.report': ['Report (HTML)', '报告（HTML）'],
    'faults.title': ['Break something while it runs', '运行时弄坏点什么'],
    'fault.pause-redis': ['Pause Redis', '暂停 Redis'],
    'fault.pause-redis.does': ['Redis answers nobody for a moment. Buyers wait or are told to try again; nobody may get a second order.', 'Redis 短时间不答复任何人。买家会等待或被告知重试；任何人都不应得到第二单。'],
    'fault.empty-redis': ['Empty Redis', '清空 Redis'],
    'fault.empty-redis.does': ['Locks, sessions and counters vanish. Lanes on a lock in Redis must hold all the same: the database has the last word.', '锁、会话和计数器全部消失。用 Redis 锁的一侧仍须守住：最后裁决的是数据库。'],
    'fault.kill-instance': ['Kill an instance', '杀死一个实例'],
    'fault.kill-instance.does': ['One node dies with requests in hand, and comes back. Throughput halves; no confirmed order may be lost.', '一个节点带着手中的请求死去，稍后恢复。吞吐减半；已确认的订单一个都不能丢。'],
    'fault.cut-lease': ['Cut the leases', '剪短租期'],
    'fault.cut-lease.does': ['Locks in Redis run out while their holders still work. Two may then hold “the” lock; the unique index refuses the second order.', '持有者还在工作，Redis 里的锁就到期了。此时可能有两个持有者；唯一索引会拒绝第二单。'],
    'fault.done': ['Done: watch the lanes and the strip.', '已执行：请看两侧曲线和不变量。'],
    'code.RUN_UNDER_WAY': ['Another run is under way. It is shown below.', '另一次运行正在进行，见下方。'],
    'code.NO_RUN': ['No run is under way to break anything in.', '没有正在进行的运行。'],
    'code.RUN_NOT_FOUND': ['There is no such run.', '没有这次运行。'],
    'history.title': ['Earlier runs', '先前的运行'],
    'standing.holds': ['held', '守住'], 'standing.broken': ['broken', '打破'], 'standing.not-seen': ['not seen', '未出现'],
    'standing.did-not-show': ['did not show', '未出现'], 'standing.violation': ['violation', '违约'],
    'unit.instances.1': ['one', '一个'], 'unit.instances.2': ['two, behind nginx', '两个，经由 nginx'],
  });

  const t = Words.t;
  const id = (name) => document.getElementById(name);
  const POLL = 250;
  const NUMBERS = ['buyers', 'tries', 'stock', 'spreadSeconds'];

  // ── The address: #run=ID&lanes=a,b&buyers=…, and a token that is taken out of it at once ───────

  const address = new URLSearchParams(location.hash.slice(1));
  const kept = (name) => { try { return sessionStorage.getItem(name); } catch { return null; } };
  const keep = (name, value) => { try { sessionStorage.setItem(name, value); } catch { /* this page only */ } };
  if (address.has('token')) {
    keep('admin-token', address.get('token'));
    id('token').value = address.get('token');
    address.delete('token');
    history.replaceState(null, '', String(address) ? `#${address}` : location.pathname);
  } else {
    id('token').value = kept('admin-token') || '';
  }
  id('token').addEventListener('input', () => keep('admin-token', id('token').value.trim()));
  const admin = () => ({ 'x-admin-token': id('token').value.trim() });

  // ── The form ───────────────────────────────────────────────────────────────────────────────────

  let about = null, setting = null, said = null;
  const view = RunView(id('run'));

  function say(text, bad = false) {
    said = text;
    id('said').textContent = text ? text() : '';
    id('said').className = bad ? 'said bad' : 'said';
  }
  const words = (reply) => () => (Words.has(`code.${reply.code}`) ? t(`code.${reply.code}`, { request: '–' }) : reply.message);

  async function loadAbout() {
    const reply = await Page.ask('GET', '/lab/about');
    if (!reply.ok) { say(words(reply), true); setTimeout(loadAbout, 2000); return; }
    about = reply.data;
    for (const { name, idea, why } of about.strategies) Words.add({ [`${name}.idea`]: idea, [`${name}.why`]: why });
    const whole = (name) => (address.has(name) && Number.isInteger(Number(address.get(name))) ? Number(address.get(name)) : null);
    const lanes = (address.get('lanes') || '').split(',').filter((name) => about.strategies.some((one) => one.name === name));
    setting = { ...about.defaults, lanes: lanes.length === 2 ? lanes : about.defaults.lanes, seed: whole('seed') };
    for (const name of [...NUMBERS, 'instances']) if (whole(name) !== null) setting[name] = whole(name);
    if (about.nodes < 2) setting.instances = 1;
    showForm();
    loadHistory();
    if (about.running) follow(about.running);
    else if (address.has('run')) open(address.get('run'));
  }

  function showForm() {
    if (!about) return;
    const chosen = (at) => about.strategies.find((one) => one.name === setting.lanes[at]);
    const safe = (one) => !(one.oversell || (setting.instances > 1 ? one.secondOrderOnTwoNodes : one.secondOrderOnOneNode));
    const lane = (at) => make('div', { class: 'lane-choice' },
      make('label', { class: 'field' }, make('span', null, t(at ? 'form.right' : 'form.left')),
        make('select', { name: `lane-${at}`, onchange: (event) => { setting.lanes[at] = event.target.value; showForm(); id('form').elements[`lane-${at}`].focus(); } },
          about.strategies.map((one) => make('option', { value: one.name, selected: one.name === setting.lanes[at] }, one.name)))),
      make('p', null, make('span', { class: safe(chosen(at)) ? 'badge good' : 'badge warn' }, t(safe(chosen(at)) ? 'run.safe' : 'run.unsafe')), ' ',
        make('span', { class: 'soft' }, t(setting.instances > 1 ? 'run.two' : 'run.one', { count: setting.instances }))),
      make('p', { class: 'explained' }, make('strong', null, t('form.idea')), ' ', t(`${setting.lanes[at]}.idea`)),
      make('p', { class: 'explained' }, make('strong', null, t(safe(chosen(at)) ? 'form.safe' : 'form.risk')), ' ', t(`${setting.lanes[at]}.why`)));
    id('lanes').replaceChildren(lane(0), lane(1));
    const field = (name) => make('label', { class: 'field' }, make('span', null, t(`form.${name}`)),
      make('input', { name, type: 'number', inputmode: 'numeric', required: true, min: name === 'spreadSeconds' ? 0 : 1, max: about.limits[name], value: setting[name],
        oninput: (event) => { setting[name] = Number(event.target.value); } }));
    const instances = make('fieldset', { class: 'field' }, make('legend', null, t('form.instances')), make('div', { class: 'radios' }, [1, 2].map((count) =>
      make('label', null, make('input', { type: 'radio', name: 'instances', value: count, checked: setting.instances === count, disabled: count > about.nodes,
        onchange: () => { setting.instances = count; showForm(); } }), ' ', t(`unit.instances.${count}`)))));
    const seed = make('label', { class: 'field' }, make('span', null, t('form.seed')),
      make('input', { name: 'seed', type: 'number', inputmode: 'numeric', min: 0, max: Number.MAX_SAFE_INTEGER, value: setting.seed,
        oninput: (event) => { setting.seed = event.target.value === '' ? null : Number(event.target.value); } }));
    id('numbers').replaceChildren(...NUMBERS.map(field), seed, instances);
    if (about.nodes < 2 && !said) say(() => t('form.alone'));
    showFaults();
  }

  // ── A run ──────────────────────────────────────────────────────────────────────────────────────

  let run = null, following = null, faultSaid = {};

  id('form').addEventListener('submit', async (event) => {
    event.preventDefault();
    id('start').disabled = true;
    say(() => t('form.starting'));
    const { seed, ...rest } = setting;
    const reply = await Page.ask('POST', '/lab/runs', { headers: admin(), body: seed === null || seed === undefined ? rest : { ...rest, seed } });
    id('start').disabled = false;
    if (reply.ok) {
      say(null);
      follow(reply.data.id, true);
    } else {
      say(words(reply), true);
      if (reply.code === 'FORBIDDEN') id('token').focus();
      if (reply.code === 'RUN_UNDER_WAY') {
        const now = await Page.ask('GET', '/lab/about');
        if (now.ok && now.data.running) follow(now.data.running, true);
      }
    }
  });
  id('stop').addEventListener('click', async () => {
    const reply = await Page.ask('POST', `/lab/runs/${encodeURIComponent(run.id)}/stop`, { headers: admin() });
    if (!reply.ok) say(words(reply), true);
  });

  // Shows a run that is over, or follows one that is not.
  async function open(wanted) {
    const reply = await Page.ask('GET', `/lab/runs/${encodeURIComponent(wanted)}?from=0`);
    if (reply.ok) follow(wanted);
    else say(reply.code === 'RUN_NOT_FOUND' ? () => t('form.gone') : words(reply), reply.code !== 'RUN_NOT_FOUND');
  }

  async function follow(wanted, scroll = false) {
    if (following === wanted) return;
    following = wanted;
    run = null;
    faultSaid = {};
    view.clear();
    while (following === wanted) {
      const known = run ? run.lanes[0].samples.length : 0;
      const reply = await Page.ask('GET', `/lab/runs/${encodeURIComponent(wanted)}?from=${known}`);
      if (following !== wanted) return;
      if (reply.ok) {
        const before = run;
        run = reply.data;
        if (before) run.lanes.forEach((lane, at) => { lane.samples = [...before.lanes[at].samples, ...lane.samples]; });
        showRun();
        if (!before) {
          remember();
          if (scroll) id('run-section').scrollIntoView({ block: 'start' });
        }
        if (view.over()) { following = null; loadHistory(); return; }
      } else if (reply.code === 'RUN_NOT_FOUND') {
        say(() => t('form.gone'));
        following = null;
        id('run-section').hidden = true;
        return;
      }
      // Also an instance that was killed on purpose may be the one that answers: it comes back.
      await Page.sleep(document.hidden ? POLL * 4 : Math.max(POLL, reply.waitMs));
    }
  }

  function showRun() {
    const running = !['done', 'stopped', 'failed'].includes(run.state);
    id('run-section').hidden = false;
    id('run-section').dataset.state = run.state;
    const standings = run.lanes.map((lane) => lane.result && lane.result.standing.kind);
    id('state').textContent = t(`state.${run.state}`);
    id('state').className = run.state === 'failed' || standings.includes('violation') ? 'badge bad' : run.state === 'done' ? 'badge good' : 'badge warn';
    id('doing').textContent = run.state === 'failed' ? String(run.failure || '') : running ? t(`doing.${run.state}`) : '';
    const share = { preparing: 0, judging: 1, done: 1, stopped: 1, failed: 1 }[run.state];
    id('progress').style.width = `${100 * Math.min(1, share ?? run.elapsedS / Math.max(0.5, run.setting.spreadSeconds))}%`;
    id('stop').hidden = !running;
    id('start').hidden = running;
    id('start').textContent = t('form.start');
    view.draw(run);
    showFaults();
    showDownloads(!running);
  }

  const link = () => {
    const { lanes, seed, ...rest } = run.setting;
    const at = new URLSearchParams({ run: run.id, lanes: lanes.join(','), ...rest, seed: seed ?? run.seed });
    return `#${at.toString().replaceAll('%2C', ',')}`;
  };
  const remember = () => history.replaceState(null, '', link());

  function showDownloads(shown) {
    id('downloads').hidden = !shown;
    const key = shown ? `${run.id} ${Words.language()}` : '';
    if (id('downloads').dataset.shows === key) return;
    id('downloads').dataset.shows = key;
    if (!shown) return;
    const copy = make('button', { type: 'button', class: 'quiet', id: 'copy', onclick: async () => {
      remember();
      // Only a page from this machine or over TLS may use the clipboard.
      try { await navigator.clipboard.writeText(location.href); copy.textContent = t('run.copied'); } catch { copy.textContent = t('run.copy-bar'); }
    } }, t('run.link'));
    const at = `/lab/runs/${encodeURIComponent(run.id)}`;
    id('downloads').replaceChildren(copy,
      make('a', { class: 'button', id: 'raw', href: `${at}/raw`, download: `run-${run.id}.json` }, t('run.raw')),
      make('a', { class: 'button', id: 'report', href: `${at}/report`, download: `run-${run.id}.html` }, t('run.report')));
  }

  function showFaults() {
    if (!about) return;
    const ready = run && run.state === 'running';
    id('faults').closest('section').hidden = view.over();
    const offered = about.faults.filter((name) => name !== 'kill-instance' || about.nodes > 1);
    if (id('faults').dataset.shows !== Words.language()) {
      id('faults').dataset.shows = Words.language();
      id('faults').replaceChildren(...offered.map((name) => make('li', null,
        make('button', { type: 'button', class: 'quiet', 'data-fault': name, onclick: () => cause(name) }, t(`fault.${name}`)),
        make('p', { class: 'soft' }, t(`fault.${name}.does`)),
        make('p', { class: 'said', role: 'status', 'data-said': name }))));
    }
    for (const button of id('faults').querySelectorAll('button')) button.disabled = !ready;
    for (const line of id('faults').querySelectorAll('[data-said]')) {
      const text = faultSaid[line.dataset.said] ? faultSaid[line.dataset.said]() : '';
      if (line.textContent !== text) line.textContent = text;
    }
  }

  async function cause(fault) {
    const reply = await Page.ask('POST', '/lab/faults', { headers: admin(), body: { fault } });
    faultSaid[fault] = reply.ok ? () => t('fault.done') : words(reply);
    showFaults();
  }

  // ── Earlier runs ───────────────────────────────────────────────────────────────────────────────

  let earlier = [];
  async function loadHistory() {
    const reply = await Page.ask('GET', '/lab/runs');
    if (reply.ok) { earlier = reply.data; showHistory(); }
  }
  function showHistory() {
    id('history-card').hidden = !earlier.length;
    const kind = (standing) => standing.kind || standing;
    const tone = { holds: 'good', broken: 'bad', violation: 'bad' };
    id('history').replaceChildren(...earlier.map((one) => make('li', null, make('button', { type: 'button', class: 'choice', onclick: () => { follow(one.id, true); } },
      make('span', { class: 'soft when' }, String(one.startedAt).slice(11, 19)),
      make('span', { class: 'history-lanes' }, one.setting.lanes.map((lane, at) => make('span', null, make('code', null, lane), ' ',
        one.standings[at] ? make('span', { class: `badge ${tone[kind(one.standings[at])] || 'warn'}` }, t(`standing.${kind(one.standings[at])}`)) : null))),
      make('span', { class: 'soft row-note' }, `${one.setting.instances > 1 ? t('run.two', { count: one.setting.instances }) : t('run.one')} · ${one.seed}`)))));
  }

  Words.onChange(() => {
    Diagram.show(id('diagram'));
    showForm();
    if (said) id('said').textContent = said();
    if (run) showRun();
    showHistory();
  });
  Diagram.show(id('diagram'));
  loadAbout();
})();
