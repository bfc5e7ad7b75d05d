'use strict';
// The plots of the mission about reads: queries of the database per second, while a hot key expires under its readers.

const HotKey = (() => {
  Words.add({
    'hot.plot': ['{strategy}: queries of the database per second', '{strategy}：数据库每秒查询数'],
    'hot.queries': ['queries for the shop, at most', '查询这家商铺，最多'],
    'hot.statements': ['all statements of the database, at most', '数据库的全部语句，最多'],
    'hot.note': ['Each point counts the second before it: queries for the shop as the nodes count them, and all statements as the database does. Shaded: the table is locked.', '每一点是此前一秒内的次数：查询商铺由各节点统计，全部语句由数据库自己统计。阴影：商铺表被锁住。'],
    'hot.expires': ['the key expires', 'key 过期'],
    'hot.figures': ['{reads|read|reads}, {queries|query|queries}; the slowest answer took {ms} ms.', '{reads} 次读取，{queries} 次查询；最慢的响应用了 {ms} 毫秒。'],
    'hot.failed': ['{count|read|reads} did not get the shop: the queue for the database was too long.', '{count} 次没有读到商铺：等数据库的队太长。'],
  });
  const t = Words.t;

  // How many there were in the second before each sample: [[seconds, count]].
  const perSecond = (samples, field) => samples.map((sample) => {
    const before = samples.findLast((one) => one.at <= sample.at - 1) || samples[0];
    return [sample.at, sample[field] - before[field]];
  });

  // Draws both lanes into `element`, which is in the page already, and explains them below.
  function draw(element, lanes) {
    const series = lanes.map(({ samples }) => [
      { name: t('hot.statements'), kind: 'six', points: perSecond(samples, 'statements') },
      { name: t('hot.queries'), kind: 'one', area: true, points: perSecond(samples, 'queries') },
    ]);
    const most = (points) => Math.max(...points.map(([, count]) => count));
    for (const lines of series) for (const line of lines) line.shown = most(line.points);
    const figures = lanes.map(() => make('figure'));
    element.replaceChildren(...lanes.map(({ strategy, samples, reads, failed, slowestMs }, at) => make('article', { 'data-strategy': strategy },
      make('h4', { class: 'mono' }, strategy), figures[at],
      make('p', null, t('hot.figures', { reads: Words.number(reads), queries: Words.number(samples.at(-1).queries), ms: Words.number(slowestMs) })),
      failed > 0 && make('p', { class: 'soft' }, t('hot.failed', { count: Words.number(failed) })))));
    element.after(make('p', { class: 'soft small-print' }, t('hot.note')));
    lanes.forEach(({ strategy, expiredAt, unlockedAt }, at) => figures[at].append(Plots.lines({
      width: Math.max(280, Math.floor(figures[at].clientWidth)), name: t('hot.plot', { strategy }), unit: t('lane.seconds'), series: series[at],
      right: Math.max(...lanes.map(({ samples }) => samples.at(-1).at)), top: Math.max(...series.flat().map((line) => line.shown)),
      marks: [{ at: expiredAt, text: t('hot.expires'), kind: 'bad' }], spans: [{ from: expiredAt, to: unlockedAt }],
    })));
  }

  return { draw, perSecond };
})();
