'use strict';
// The lab page: start a run with one click, as a mission, or by the form; watch it, inject faults meanwhile, and share it.
// The view of a run is run.js, the missions are missions.js; this file sends the requests and fills in the form.

(() => {
  const t = Words.t;
  const id = (name) => document.getElementById(name);
  const POLL = 250;
  const NUMBERS = ['buyers', 'tries', 'stock', 'spreadSeconds'];
  const SLOW_SECONDS = 20;
  // The run of the first click: small, so that its buyers are signed in within a second or two.
  const BREAK = { buyers: 160, tries: 4, stock: 140, spreadSeconds: 4 };

  // ── The address: #run=ID&lanes=a,b&buyers=… or #mission=ID, and a token that is taken out of it at once ──

  let address;
  const kept = (name) => { try { return sessionStorage.getItem(name); } catch { return null; } };
  const keep = (name, value) => { try { sessionStorage.setItem(name, value); } catch { /* this page only */ } };
  function readAddress() {
    address = new URLSearchParams(location.hash.slice(1));
    if (!address.has('token')) return;
    keep('admin-token', address.get('token'));
    id('token').value = address.get('token');
    address.delete('token');
    history.replaceState(null, '', String(address) ? `#${address}` : location.pathname);
  }
  id('token').value = kept('admin-token') || '';
  readAddress();
  id('token').addEventListener('input', () => keep('admin-token', id('token').value.trim()));
  const admin = () => ({ 'x-admin-token': id('token').value.trim() });

  // ── The form ───────────────────────────────────────────────────────────────────────────────────

  let about = null, setting = null, said = null;
  const outcome = make('section', { class: 'card outcome', id: 'mission-outcome', role: 'status', hidden: true });
  const view = RunView(id('run'), outcome);

  // Shows a message in the paragraph `at`, which is at the button that was pressed last.
  let saidAt = 'break-said';
  function say(text, bad = false, at = saidAt) {
    id(saidAt).textContent = '';
    said = text;
    saidAt = at;
    id(at).textContent = text ? text() : '';
    id(at).className = bad ? 'said bad' : 'said';
  }

  async function loadAbout() {
    const reply = await Page.ask('GET', '/lab/about');
    if (!reply.ok) { say(Page.text(reply), true); setTimeout(loadAbout, 2000); return; }
    if (said) say(null);
    about = reply.data;
    for (const { name, idea, why } of about.strategies) Words.add({ [`${name}.idea`]: idea, [`${name}.why`]: why });
    applyAddress(about.running || address.get('run'));
    showBreak();
    session.show();
    loadHistory();
  }

  // Shows the form and the mission that the address names, and the run `wanted`; no run where that is null.
  function applyAddress(wanted) {
    const whole = (name) => (address.has(name) && Number.isInteger(Number(address.get(name))) ? Number(address.get(name)) : null);
    const lanes = (address.get('lanes') || '').split(',').filter((name) => about.strategies.some((one) => one.name === name));
    setting = { ...about.defaults, lanes: lanes.length === 2 ? lanes : [...about.defaults.lanes], seed: whole('seed') };
    for (const name of [...NUMBERS, 'instances']) if (whole(name) !== null) setting[name] = whole(name);
    for (const name of ['inTurn', 'twoVouchers', 'killNode']) if (address.get(name) === 'true') setting[name] = true;
    if (about.nodes < 2) setting.instances = 1;
    showForm();
    missions.choose(address.get('mission'));
    if (wanted && !(run && run.id === wanted)) open(wanted);
    if (!wanted && run) {
      following = run = null;
      view.clear();
      id('run-section').hidden = true;
    }
  }

  // Back, forward, and an address that was pasted.
  window.addEventListener('popstate', () => { readAddress(); if (about) applyAddress(address.get('run')); });

  const kills = () => Boolean(about) && about.faults.includes('kill-instance');
  const breakSetting = () => ({ ...BREAK, lanes: about.nodes > 1 ? ['process-lock', 'reentrant-lock'] : ['naive', 'row-lock'], instances: Math.min(2, about.nodes) });

  function showBreak() {
    if (!about) return;
    const { lanes: [left, right], ...rest } = breakSetting();
    id('break').disabled = false;
    id('break-what').textContent = t('lab.break.what', { left, right, ...rest });
  }

  function showForm() {
    if (!about) return;
    id('token-field').hidden = id('token-where').hidden = Boolean(id('token').value);
    const chosen = (at) => about.strategies.find((one) => one.name === setting.lanes[at]);
    const safe = (one) => !(one.oversell || one.lost || (setting.instances > 1 ? one.secondOrderOnTwoNodes : one.secondOrderOnOneNode));
    const lane = (at) => make('div', { class: 'lane-choice' },
      make('label', { class: 'field' }, make('span', null, t(at ? 'form.right' : 'form.left')),
        make('select', { name: `lane-${at}`, onchange: (event) => { setting.lanes[at] = event.target.value; showForm(); id('form').elements[`lane-${at}`].focus(); } },
          about.strategies.map((one) => make('option', { value: one.name, selected: one.name === setting.lanes[at] }, one.name)))),
      make('p', { class: 'explained' }, make('strong', null, t('form.idea')), ' ', t(`${setting.lanes[at]}.idea`)),
      // Folded up, as the missions ask for a guess first.
      make('details', { class: 'explained', open: expected[at] }, make('summary', null, t('form.expect')),
        make('p', null, make('span', { class: safe(chosen(at)) ? 'badge good' : 'badge warn' }, t(safe(chosen(at)) ? 'run.safe' : 'run.unsafe')), ' ',
          make('span', { class: 'soft' }, t('run.nodes', { count: setting.instances }))),
        make('p', null, make('strong', null, t(safe(chosen(at)) ? 'form.safe' : 'form.risk')), ' ', t(`${setting.lanes[at]}.why`))));
    const expected = [...id('lanes').querySelectorAll('details')].map((one) => one.open);
    id('lanes').replaceChildren(lane(0), lane(1));
    const field = (name) => make('label', { class: 'field' }, make('span', null, t(`form.${name}`)),
      make('input', { name, type: 'number', inputmode: 'numeric', required: true, min: name === 'spreadSeconds' ? 0 : 1, max: about.limits[name], value: setting[name],
        oninput: (event) => { setting[name] = Number(event.target.value); } }));
    const instances = make('fieldset', { class: 'field' }, make('legend', null, t('form.instances')), make('div', { class: 'radios' }, [1, 2].map((count) =>
      make('label', null, make('input', { type: 'radio', name: 'instances', value: count, checked: setting.instances === count, disabled: count > about.nodes,
        onchange: () => { setting.instances = count; showForm(); } }), ' ', t(`unit.instances.${count}`)))));
    const seed = make('label', { class: 'field' }, make('span', null, t('form.seed')),
      make('input', { name: 'seed', type: 'number', inputmode: 'numeric', min: 0, max: 2 ** 32 - 1, value: setting.seed,
        oninput: (event) => { setting.seed = event.target.value === '' ? null : Number(event.target.value); } }));
    id('numbers').replaceChildren(...NUMBERS.map(field), seed, instances);
    id('in-turn').checked = Boolean(setting.inTurn);
    id('two-vouchers').checked = Boolean(setting.twoVouchers);
    id('kill-node').checked = Boolean(setting.killNode);
    id('kill-node').disabled = !kills();
    id('slow').checked = setting.spreadSeconds === SLOW_SECONDS;
    if (about.nodes < 2 && !said) say(() => t('form.alone'));
    showFaults();
  }
  id('slow').addEventListener('change', () => {
    setting.spreadSeconds = id('slow').checked ? SLOW_SECONDS : about.defaults.spreadSeconds;
    showForm();
  });

  id('in-turn').addEventListener('change', () => { setting.inTurn = id('in-turn').checked; });
  id('two-vouchers').addEventListener('change', () => { setting.twoVouchers = id('two-vouchers').checked; });
  id('kill-node').addEventListener('change', () => { setting.killNode = id('kill-node').checked; });

  // ── A run ──────────────────────────────────────────────────────────────────────────────────────

  let run = null, following = null, faultSaid = null;

  // Asks for the token below this message, so that both are in view.
  function askForToken(message) {
    message.after(id('token-field'), id('token-where'));
    id('token-field').hidden = id('token-where').hidden = false;
    id('token').focus();
  }

  // Starts a run and shows it; returns its id and seed, or null where it was refused.
  async function begin(wanted, at) {
    for (const button of ['start', 'break']) id(button).disabled = true;
    say(() => t('form.starting'), false, at);
    const { seed, ...rest } = wanted;
    const reply = await Page.ask('POST', '/lab/runs', { headers: admin(), body: seed === null || seed === undefined ? rest : { ...rest, seed } });
    for (const button of ['start', 'break']) id(button).disabled = false;
    if (reply.ok) {
      say(null);
      follow(reply.data.id, true);
      return reply.data;
    }
    await showRefusal(reply, at);
    return null;
  }

  async function showRefusal(reply, at) {
    say(Page.text(reply), true);
    if (reply.code === 'FORBIDDEN') askForToken(id(at));
    if (reply.code === 'RUN_UNDER_WAY') {
      const now = await Page.ask('GET', '/lab/about');
      if (now.ok && now.data.running) follow(now.data.running, true);
    }
  }

  // Has a hot key read to the end; returns the run, or null where it was refused.
  async function readHotKey() {
    say(() => t('mission.reading'), false, 'mission-said');
    const reply = await Page.ask('POST', '/lab/hot-key', { headers: admin(), limitMs: 60000 });
    if (reply.ok) { say(null); return reply.data; }
    await showRefusal(reply, 'mission-said');
    return null;
  }

  const missions = Missions.create(id('missions'), outcome, {
    start: (wanted) => begin({ ...wanted, seed: null }, 'mission-said'),
    read: readHotKey,
    nodes: () => (about ? about.nodes : 0),
    kills: () => kills(),
    onChoice: (mission) => history.pushState(null, '', `#mission=${mission}`),
  });
  const session = SessionStory.create(id('session-story'), {
    ask: async (message) => {
      // Ten requests, one after the other.
      const reply = await Page.ask('POST', '/lab/sessions', { headers: admin(), limitMs: 30000 });
      if (reply.code === 'FORBIDDEN') askForToken(message);
      return reply;
    },
    nodes: () => (about ? about.nodes : 0),
  });
  id('break').addEventListener('click', () => begin(breakSetting(), 'break-said'));
  id('form').addEventListener('submit', (event) => {
    event.preventDefault();
    begin(setting, 'said');
  });
  // The run's head wraps on a narrow screen: what stays below it has to know its height.
  new ResizeObserver(([{ target }]) => document.documentElement.style.setProperty('--head', `${target.offsetHeight}px`))
    .observe(document.querySelector('.run-head'));
  id('how').addEventListener('click', () => view.play());
  id('guesses').addEventListener('click', () => outcome.scrollIntoView({ block: 'start' }));
  id('stop').addEventListener('click', async () => {
    const reply = await Page.ask('POST', `/lab/runs/${encodeURIComponent(run.id)}/stop`, { headers: admin() });
    if (!reply.ok) say(Page.text(reply), true);
  });

  // Says that the run of the address is no longer kept; its setting is in the form.
  function sayGone() {
    say(() => t('form.gone'), false, 'said');
    id('form').scrollIntoView({ block: 'start' });
  }

  // Shows a run that is over, or follows one that is not.
  async function open(wanted) {
    const reply = await Page.ask('GET', `/lab/runs/${encodeURIComponent(wanted)}?from=0`);
    if (reply.ok) follow(wanted);
    else if (reply.code === 'RUN_NOT_FOUND') sayGone();
    else say(Page.text(reply), true);
  }

  async function follow(wanted, scroll = false) {
    if (following === wanted) return;
    following = wanted;
    run = null;
    faultSaid = null;
    view.clear();
    while (following === wanted) {
      const known = run ? run.lanes[0].samples.length : 0;
      const reply = await Page.ask('GET', `/lab/runs/${encodeURIComponent(wanted)}?from=${known}`);
      if (following !== wanted) return;
      if (reply.ok) {
        const before = run;
        run = reply.data;
        if (before) run.lanes.forEach((lane, at) => { lane.samples = [...before.lanes[at].samples, ...lane.samples]; });
        steady(showRun);
        if (!before) {
          // A run that the visitor began or chose is a new entry of the history.
          if (link() !== location.hash) history[scroll ? 'pushState' : 'replaceState'](null, '', link());
          if (scroll) id('run-section').scrollIntoView({ block: 'start' });
        }
        if (view.over()) { following = null; loadHistory(); return; }
      } else if (reply.code === 'RUN_NOT_FOUND') {
        sayGone();
        following = null;
        id('run-section').hidden = true;
        return;
      } else {
        // The node that replies may be the one that was killed on purpose: it will be back.
        id('doing').textContent = t('lab.silent');
        id('doing').classList.add('bad');
      }
      await Page.sleep(document.hidden ? POLL * 4 : Math.max(POLL, reply.waitMs));
    }
  }

  // Does `work`, and leaves the lane that is in view where it is, however much what is above it has grown.
  function steady(work) {
    const lanes = [...document.querySelectorAll('.lane-live')];
    const topOf = (one) => one.getBoundingClientRect().top;
    const lane = lanes.find((one) => topOf(one) >= 0 && topOf(one) < innerHeight) || lanes.findLast((one) => topOf(one) < innerHeight / 2);
    if (!lane) { work(); return; }
    const before = topOf(lane);
    work();
    scrollBy({ top: topOf(lane) - before, behavior: 'instant' });
  }

  function showRun() {
    const running = !['done', 'stopped', 'failed'].includes(run.state);
    id('run-section').hidden = false;
    id('run-section').dataset.state = run.state;
    const conformances = run.lanes.map((lane) => lane.result && lane.result.conformance.kind);
    id('state').textContent = t(`state.${run.state}`);
    id('state').className = run.state === 'failed' || conformances.includes('violation') ? 'badge bad' : run.state === 'done' ? 'badge good' : 'badge warn';
    id('doing').textContent = run.state === 'failed' ? String(run.failure || '') : running ? t(`doing.${run.state}`) : '';
    id('doing').classList.remove('bad');
    const share = { preparing: 0, judging: 1, done: 1, stopped: 1, failed: 1 }[run.state];
    id('progress').style.width = `${100 * Math.min(1, share ?? (run.lanes[0].samples.at(-1)?.at ?? 0) / Math.max(0.5, run.setting.spreadSeconds))}%`;
    id('stop').hidden = !running;
    view.draw(run);
    missions.follow(run);
    id('how').hidden = running || !view.hasStory();
    id('guesses').hidden = outcome.hidden;
    showFaults();
    showDownloads(!running);
  }

  const link = () => {
    const { lanes, ...rest } = run.setting;
    const at = new URLSearchParams({ run: run.id, lanes: lanes.join(','), ...rest });
    return `#${at.toString().replaceAll('%2C', ',')}`;
  };

  function showDownloads(shown) {
    id('downloads').hidden = !shown;
    const key = shown ? `${run.id} ${Words.language()}` : '';
    if (id('downloads').dataset.shows === key) return;
    id('downloads').dataset.shows = key;
    if (!shown) return;
    const copy = make('button', { type: 'button', class: 'quiet', id: 'copy', onclick: async () => {
      history.replaceState(null, '', link());
      // Only a page from this machine or over TLS may use the clipboard.
      try { await navigator.clipboard.writeText(location.href); copy.textContent = t('run.copied'); } catch { copy.textContent = t('run.copy-bar'); }
    } }, t('run.link'));
    const at = `/lab/runs/${encodeURIComponent(run.id)}`;
    id('downloads').replaceChildren(copy,
      make('a', { class: 'button', id: 'raw', href: `${at}/raw`, download: `run-${run.id}.json` }, t('run.raw')),
      make('a', { class: 'button', id: 'report', href: `${at}/report`, download: `run-${run.id}.html` }, t('run.report')));
  }

  // The buttons stay when the run is over: otherwise what is below them would jump.
  function showFaults() {
    if (!about) return;
    const ready = run && run.state === 'running';
    if (id('faults').dataset.shows !== Words.language()) {
      id('faults').dataset.shows = Words.language();
      id('faults').replaceChildren(...about.faults.map((name) =>
        make('button', { type: 'button', class: 'quiet small', 'data-fault': name, title: t(`fault.${name}.does`), onclick: () => injectFault(name) }, t(`fault.${name}`))));
      if (!kills()) id('faults').append(make('span', { class: 'soft' }, t('faults.noKilling')));
    }
    for (const button of id('faults').querySelectorAll('button')) button.disabled = !ready;
    const text = faultSaid ? faultSaid() : t('faults.idle');
    id('fault-said').classList.toggle('idle', !faultSaid);
    if (id('fault-said').textContent !== text) id('fault-said').textContent = text;
  }

  async function injectFault(fault) {
    faultSaid = () => t(`fault.${fault}.does`);
    showFaults();
    const reply = await Page.ask('POST', '/lab/faults', { headers: admin(), body: { fault } });
    if (!reply.ok) faultSaid = Page.text(reply);
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
    const row = (one) => make('li', null, make('button', { type: 'button', class: 'choice', onclick: () => { follow(one.id, true); } },
      make('span', { class: 'soft when' }, Words.time(Date.parse(one.startedAt))),
      make('span', { class: 'history-lanes' }, one.setting.lanes.map((lane, at) => make('span', null, make('code', null, lane), ' ',
        one.conformances[at] ? make('span', { class: `badge ${tone[kind(one.conformances[at])] || 'warn'}` }, t(`conformance.${kind(one.conformances[at])}`)) : null))),
      make('span', { class: 'soft row-note' }, `${t('run.nodes', { count: one.setting.instances })} · ${one.setting.seed}`)));
    const [newest, older] = [earlier.slice(0, 5), earlier.slice(5)];
    id('history').replaceChildren(...newest.map(row), ...(older.length ? [make('li', null, make('details', null, make('summary', null, t('history.more')), make('ul', { class: 'choices' }, older.map(row))))] : []));
  }

  Words.onChange(() => {
    Diagram.show(id('diagram'));
    showForm();
    showBreak();
    if (about) missions.show();
    session.show();
    if (said) id(saidAt).textContent = said();
    if (run) showRun();
    showHistory();
  });
  Diagram.show(id('diagram'));
  loadAbout();
})();
