'use strict';
// The buyers of a sale as people: one dot each, filled with an order, red with more than one.

const People = (() => {
  Words.add({
    'people.name': ['One dot for each buyer of {strategy}', '{strategy} 的每位买家一个点'],
    'people.now': ['So far {orders|voucher|vouchers} for {people} of {buyers|buyer|buyers}', '目前 {buyers} 人中有 {people} 人得到 {orders} 份'],
    'people.end': ['{orders|voucher|vouchers} went to {people|person|people}; {rest} got none', '{orders} 份给了 {people} 人；{rest} 人没有得到'],
    'people.repeated': ['{repeated|person|people} got two or more', '{repeated} 人得到两份或更多'],
  });
  const t = Words.t;

  // The caption and the dots of a lane. They are there from the start, so that nothing below them moves at the first sample.
  // null for an older run, which counted no people.
  function figure(lane, buyers, width) {
    const sample = lane.samples[lane.samples.length - 1] || { people: 0, rows: 0, repeated: 0 };
    if (sample.people === undefined) return null;
    const values = { buyers, people: Words.number(sample.people), orders: Words.number(sample.rows), rest: Words.number(buyers - sample.people), repeated: Words.number(sample.repeated) };
    return make('figure', { class: 'people' },
      Plots.dots({ width, name: t('people.name', { strategy: lane.strategy }), count: buyers, kinds: [['many', sample.repeated], ['once', sample.people - sample.repeated]] }),
      make('figcaption', null, t(lane.result ? 'people.end' : 'people.now', values), sample.repeated ? make('strong', { class: 'many' }, ` · ${t('people.repeated', values)}`) : null));
  }

  return { figure };
})();
