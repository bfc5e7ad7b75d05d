'use strict';
// A recorded story that can be stepped through. Its timeline, its list of steps and the diagram of its requests show the same
// position, which the buttons, the slider, the list and the numbers of the timeline move.

const Stepper = (() => {
  Words.add({
    'stepper.name': ['Step through the recording', '逐步回放记录'],
    'stepper.play': ['Play', '播放'], 'stepper.pause': ['Pause', '暂停'],
    'stepper.back': ['One step back', '后退一步'], 'stepper.next': ['One step forward', '前进一步'],
    'stepper.all': ['All {count} steps', '全部 {count} 步'],
    'stepper.position': ['Step', '步骤'],
    'stepper.at': ['Step {at} of {count}', '第 {at} 步，共 {count} 步'], 'stepper.before': ['Before the first step', '第一步之前'],
  });
  const t = Words.t;
  const PER_STEP_MS = 1100;

  const widthOf = (place) => Math.max(260, Math.min(640, place.clientWidth || 560));

  // An element with all of it. `parts` is what Story.explain returned; `drawTimeline(figure)` adds the timeline once the
  // figure is in the page. Returns {element, ready, play}.
  function create(parts, tone, drawTimeline) {
    const count = parts.steps.length;
    let at = count, timer = null, scene = null;
    const figure = make('figure', { onclick: (event) => {
      const number = event.target.closest('[data-number]');
      if (number) { pause(); go(Number(number.dataset.number)); }
    } });
    const place = make('div', { class: 'scene' });
    const sequence = make('div');
    const sentence = make('p', { class: 'scene-said' });
    const position = make('output', { class: 'soft stepper-at', 'aria-live': 'polite' });
    const slider = make('input', { type: 'range', min: 0, max: count, step: 1, value: count, 'aria-label': t('stepper.position'), oninput: () => { pause(); go(Number(slider.value)); } });
    const button = (name, sign, work) => make('button', { type: 'button', class: `quiet small stepper-${name}`, 'aria-label': t(`stepper.${name}`), title: t(`stepper.${name}`), onclick: work }, sign);
    const back = button('back', '◀', () => { pause(); go(at - 1); }), next = button('next', '▶', () => { pause(); go(at + 1); });
    const player = make('button', { type: 'button', class: 'main small stepper-play', onclick: () => (timer ? pause() : play()) }, t('stepper.play'));
    const list = make('ol', { class: 'steps' }, parts.steps.map((step) => make('li', { class: step.strong ? 'step strong' : 'step', 'data-number': step.number, onclick: () => { pause(); go(step.number); } },
      make('span', { class: step.strong ? 'dot strong' : 'dot', 'aria-hidden': 'true' }, step.number),
      make('span', { class: 'request-name' }, step.name), make('span', { class: 'when' }, `${step.moment.toFixed(1)} ms`),
      make('span', { class: 'what' }, step.text))));
    const element = make('div', { class: 'story-body stepper' },
      make('div', { class: 'story-picture' },
        make('div', { class: 'stepper-controls', role: 'group', 'aria-label': t('stepper.name') }, player, back, slider, next, position),
        figure, sentence, place, make('p', { class: `conclusion ${tone}` }, parts.conclusion),
        make('details', { class: 'sequence' }, make('summary', null, t('sequence.title')), sequence)),
      // On a phone the sentence of the present step suffices.
      make('div', null, make('p', { class: 'story-sent' }, parts.sent), make('details', { open: innerWidth > 640 }, make('summary', null, t('stepper.all', { count })), list)));

    function go(to) {
      at = Math.max(0, Math.min(count, to));
      slider.value = String(at);
      position.textContent = at ? t('stepper.at', { at, count }) : t('stepper.before');
      for (const part of element.querySelectorAll('[data-number]')) {
        const number = Number(part.dataset.number);
        part.classList.toggle('future', number > at);
        part.classList.toggle('now', number === at);
      }
      sentence.textContent = at ? `${parts.steps[at - 1].name} · ${parts.steps[at - 1].text}` : '';
      scene.show(at);
    }
    function pause() {
      clearInterval(timer);
      timer = null;
      player.textContent = t('stepper.play');
    }
    function play() {
      if (at === count) go(0);
      player.textContent = t('stepper.pause');
      timer = setInterval(() => {
        // The card may have been drawn anew, in another language or width.
        if (!element.isConnected || at === count) pause();
        else go(at + 1);
        if (at === count) pause();
      }, PER_STEP_MS);
    }
    const ready = () => {
      figure.replaceChildren(drawTimeline(figure));
      scene = Scene.create(parts.steps, widthOf(place));
      place.replaceChildren(scene.element);
      sequence.replaceChildren(Sequence.picture(parts, widthOf(place), tone));
      go(at);
    };
    return { element, play, ready };
  }

  return { create };
})();
