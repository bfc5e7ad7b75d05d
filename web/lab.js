'use strict';
// The lab page: configure a run, start it, watch it, inject faults meanwhile, and share it. The view of a run is run.js;
// this file sends the requests and fills in the form.

(() => {
  Words.add({
    'lab.title': ['Flash sale: the lab', '秒杀实验室'],
    'lab.heading': ['Watch one buyer get two orders', '看一位买家怎样下了两单'],
    'lab.intro.1': ['A flash sale has two rules: never sell more vouchers than there are, and never give one buyer two. Thousands of requests arrive at the same moment, at two instances of the service (“nodes”), so both rules are easily broken.', '秒杀有两条规则：不能超卖，一位买家不能买到两份。成千上万的请求同时到达服务的两个实例（“节点”），这两条规则都很容易被打破。'],
    'lab.intro.2': ['Here two strategies run the same sale side by side, under real load. One of them usually fails. The diagrams below show why; after a run its own records show it step by step. During a run you can inject faults: pause Redis, kill a node.', '在这里，两种策略在真实压力下并排运行同一场秒杀，其中一种通常会失败。下面的示意图说明原因；运行之后，可以在它自己的记录里逐步看到。运行期间还可以注入故障：暂停 Redis、终止一个节点。'],
    'lab.foot': ['All figures are measured on this machine, in this run, and checked by the load tool’s checker.', '所有数据都在本机、本次运行中测得，并由压测工具的检查器核对。'],
    'form.title': ['Try it: a real load on the real instances', '动手试试：对真实实例施加真实压力'],
    'form.left': ['Left', '左侧'], 'form.right': ['Right', '右侧'],
    'form.buyers': ['Buyers', '买家'], 'form.tries': ['Tries each, at once', '每人同时尝试'], 'form.stock': ['Vouchers on sale', '优惠券数量'],
    'form.instances': ['Instances', '实例数'], 'form.spreadSeconds': ['Spread over, seconds', '分布时长（秒）'], 'form.seed': ['Seed (optional)', '种子（可选）'],
    'form.idea': ['The idea', '思路'], 'form.risk': ['What can go wrong', '会出什么问题'], 'form.safe': ['Why it is safe', '为什么安全'],
    'form.token': ['Admin token', '管理令牌'],
    'form.token.where': ['A run puts load on this machine, so it needs the admin token: ./dev lab prints a link with it, ./dev env prints it as ADMIN_TOKEN. It is stored in this tab only.', '运行会给本机带来压力，因此需要管理令牌：./dev lab 会打印带令牌的链接，./dev env 的 ADMIN_TOKEN 也是它。它只保存在本标签页。'],
    'form.start': ['Start', '开始'], 'form.stop': ['Stop', '停止'],
    'form.starting': ['Starting…', '正在开始…'],
    'form.gone': ['This run is no longer kept here. Its setting and seed are filled in: press Start to run it again.', '这次运行已不再保存。参数和种子已填好，点“开始”即可重跑。'],
    'form.alone': ['Only one instance runs, so problems between two instances cannot occur.', '目前只有一个实例，看不到两个节点之间的问题。'],
    'doing.preparing': ['the buyers sign in', '买家正在登录'],
    'doing.running': ['the buyers are buying', '买家正在抢购'],
    'doing.judging': ['every reply is compared with the database', '逐条核对答复与数据库'],
    'run.title': ['The run', '本次运行'],
    'run.link': ['Copy the link', '复制链接'], 'run.copied': ['Copied', '已复制'], 'run.copy-bar': ['Copy it from the address bar', '请从地址栏复制'], 'run.raw': ['Raw data (JSON)', '原始数据（JSON）'], 'run.report': ['Report (HTML)', '报告（HTML）'],
    'faults.title': ['Inject a fault while it runs', '运行时注入故障'],
    'fault.pause-redis': ['Pause Redis', '暂停 Redis'],
    'fault.pause-redis.does': ['Redis does not reply for a moment. Buyers wait or are told to try again; no buyer may get a second order.', 'Redis 短时间不答复。买家会等待或被告知重试；任何人都不应得到第二单。'],
    'fault.empty-redis': ['Empty Redis', '清空 Redis'],
    'fault.empty-redis.does': ['Locks, sessions and counters are lost. Strategies with a lock in Redis must stay correct: the database’s unique index refuses second orders.', '锁、会话和计数器全部丢失。使用 Redis 锁的策略仍须正确：数据库的唯一索引会拒绝第二单。'],
    'fault.kill-instance': ['Kill an instance', '强制终止一个实例'],
    'fault.kill-instance.does': ['One instance is killed with requests in flight, and restarted. Throughput halves; no confirmed order may be lost.', '一个实例在处理请求时被强制终止，随后重启。吞吐减半；已确认的订单一个都不能丢。'],
    'fault.cut-lease': ['Shorten the leases', '缩短租期'],
    'fault.cut-lease.does': ['Locks in Redis expire while their holders still work. Two requests may then hold the same lock; the unique index refuses the second order.', '持有者还在工作，Redis 里的锁就到期了。此时同一把锁可能有两个持有者；唯一索引会拒绝第二单。'],
    'fault.done': ['Done: watch the plots and the invariants.', '已执行：请看两侧曲线和不变量。'],
    'code.RUN_UNDER_WAY': ['Another run is under way. It is shown below.', '另一次运行正在进行，见下方。'],
    'code.NO_RUN': ['No run is under way.', '没有正在进行的运行。'],
    'code.RUN_NOT_FOUND': ['There is no such run.', '没有这次运行。'],
    'history.title': ['Earlier runs', '先前的运行'],
    'conformance.holds': ['holds', '成立'], 'conformance.broken': ['broken', '出错'], 'conformance.not-seen': ['not seen', '未出现'],
    'conformance.did-not-show': ['not seen', '未出现'], 'conformance.violation': ['violation', '保证被打破'],
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
  const errorText = (reply) => () => (Words.has(`code.${reply.code}`) ? t(`code.${reply.code}`, { request: '–' }) : reply.message);

  async function loadAbout() {
    const reply = await Page.ask('GET', '/lab/about');
    if (!reply.ok) { say(errorText(reply), true); setTimeout(loadAbout, 2000); return; }
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

  let run = null, following = null, faultMessages = {};

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
      say(errorText(reply), true);
      if (reply.code === 'FORBIDDEN') id('token').focus();
      if (reply.code === 'RUN_UNDER_WAY') {
        const now = await Page.ask('GET', '/lab/about');
        if (now.ok && now.data.running) follow(now.data.running, true);
      }
    }
  });
  id('stop').addEventListener('click', async () => {
    const reply = await Page.ask('POST', `/lab/runs/${encodeURIComponent(run.id)}/stop`, { headers: admin() });
    if (!reply.ok) say(errorText(reply), true);
  });

  // Shows a run that is over, or follows one that is not.
  async function open(wanted) {
    const reply = await Page.ask('GET', `/lab/runs/${encodeURIComponent(wanted)}?from=0`);
    if (reply.ok) follow(wanted);
    else say(reply.code === 'RUN_NOT_FOUND' ? () => t('form.gone') : errorText(reply), reply.code !== 'RUN_NOT_FOUND');
  }

  async function follow(wanted, scroll = false) {
    if (following === wanted) return;
    following = wanted;
    run = null;
    faultMessages = {};
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
      // The instance that replies may be the one that was killed on purpose: it will be back.
      await Page.sleep(document.hidden ? POLL * 4 : Math.max(POLL, reply.waitMs));
    }
  }

  function showRun() {
    const running = !['done', 'stopped', 'failed'].includes(run.state);
    id('run-section').hidden = false;
    id('run-section').dataset.state = run.state;
    const conformances = run.lanes.map((lane) => lane.result && lane.result.conformance.kind);
    id('state').textContent = t(`state.${run.state}`);
    id('state').className = run.state === 'failed' || conformances.includes('violation') ? 'badge bad' : run.state === 'done' ? 'badge good' : 'badge warn';
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
        make('button', { type: 'button', class: 'quiet', 'data-fault': name, onclick: () => injectFault(name) }, t(`fault.${name}`)),
        make('p', { class: 'soft' }, t(`fault.${name}.does`)),
        make('p', { class: 'said', role: 'status', 'data-said': name }))));
    }
    for (const button of id('faults').querySelectorAll('button')) button.disabled = !ready;
    for (const line of id('faults').querySelectorAll('[data-said]')) {
      const text = faultMessages[line.dataset.said] ? faultMessages[line.dataset.said]() : '';
      if (line.textContent !== text) line.textContent = text;
    }
  }

  async function injectFault(fault) {
    const reply = await Page.ask('POST', '/lab/faults', { headers: admin(), body: { fault } });
    faultMessages[fault] = reply.ok ? () => t('fault.done') : errorText(reply);
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
    const kind = (conformance) => conformance.kind || conformance;
    const tone = { holds: 'good', broken: 'bad', violation: 'bad' };
    id('history').replaceChildren(...earlier.map((one) => make('li', null, make('button', { type: 'button', class: 'choice', onclick: () => { follow(one.id, true); } },
      make('span', { class: 'soft when' }, String(one.startedAt).slice(11, 19)),
      make('span', { class: 'history-lanes' }, one.setting.lanes.map((lane, at) => make('span', null, make('code', null, lane), ' ',
        one.conformances[at] ? make('span', { class: `badge ${tone[kind(one.conformances[at])] || 'warn'}` }, t(`conformance.${kind(one.conformances[at])}`)) : null))),
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
