'use strict';
// Charts as SVG: lines, bars, latency by percentile, sparklines, and a timeline of requests. Colours come from look.css
// by class. Nothing here depends on what is plotted.
// A chart is drawn for the width it will have, so that its text is never scaled.

const Plots = (() => {
  const round = (value) => Math.round(value * 10) / 10;
  const label = (x, y, anchor, text, kind) =>
    draw('text', { x: round(x), y: round(y), 'text-anchor': anchor, class: kind || null }, String(text));
  const frame = (width, height, name, ...children) =>
    draw('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': name, class: 'plot' }, children);

  // Axis marks from 0 to at least `largest`: steps of 1, 2 or 5 times a power of ten.
  function axis(largest, marks = 4) {
    const rough = Math.max(largest, 1e-9) / marks;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.9999);
    const top = Math.max(1, Math.ceil(largest / step - 1e-9)) * step;
    const count = Math.round(top / step);
    return { top, marks: Array.from({ length: count + 1 }, (_, at) => at * step) };
  }

  function compact(value) {
    const trim = (v) => String(Number(v.toPrecision(3)));
    if (value >= 1e6) return `${trim(value / 1e6)}M`;
    if (value >= 1e4) return `${trim(value / 1e3)}k`;
    return trim(value);
  }

  // The approximate width of a text: Chinese characters are twice as wide.
  const textWidth = (text) => [...text].reduce((sum, c) => sum + (c > '\u2e80' ? 12.5 : 6.7), 0);

  // The legend: names beside their colours, in as many lines as they need below `y`. entries: [[class, text]]
  function legend(entries, left, right, y, high = 4) {
    const out = [];
    let x = left;
    for (const [kind, text] of entries) {
      const space = 34 + textWidth(text);
      if (x > left && x + space > right) { x = left; y += 20; }
      out.push(draw('rect', { x, y: y - 4 - high / 2, width: 12, height: high, rx: high / 2.5, class: kind }), label(x + 17, y, 'start', text));
      x += space;
    }
    return { out, bottom: y + 6 };
  }

  const path = (points) => points.map(([x, y], at) => `${at ? 'L' : 'M'}${round(x)} ${round(y)}`).join('');

  // A line chart. series: [{name, kind, points: [[x, y]], area, from, shown}]: from the x `from` on, the line is drawn as broken.
  // level: {value, text}, a horizontal line. marks: [{at, text, kind}], vertical lines. spans: [{from, to}], shaded.
  // right and top: how far the axes reach at least, so that charts beside each other can be compared.
  function lines({ width, height = 260, name, unit, series, level, marks = [], spans = [], right, top = 1 }) {
    const box = { left: 44, right: width - 14, top: 22, bottom: height - 44 };
    const all = series.flatMap((line) => line.points);
    const across = axis(right || Math.max(0.001, ...all.map((point) => point[0])), width < 420 ? 4 : 6);
    const up = axis(Math.max(1, top, level ? level.value * 1.08 : 0, ...all.map((point) => point[1])));
    const end = right || across.top;
    const x = (value) => box.left + (value / end) * (box.right - box.left);
    const y = (value) => box.bottom - (value / up.top) * (box.bottom - box.top);
    const out = [];
    for (const span of spans) {
      const [from, to] = [x(span.from), Math.min(box.right, x(span.to))];
      out.push(draw('rect', { x: round(from), y: box.top - 6, width: round(Math.max(1, to - from)), height: box.bottom - box.top + 6, class: 'fault-span' }));
    }
    for (const mark of up.marks) {
      out.push(draw('line', { x1: box.left, x2: box.right, y1: y(mark), y2: y(mark), class: 'grid' }), label(box.left - 8, y(mark) + 4, 'end', compact(mark)));
    }
    for (const mark of across.marks.filter((mark) => mark <= end * 1.0001)) out.push(label(x(mark), box.bottom + 18, 'middle', compact(mark)));
    out.push(label(box.right, box.bottom + 36, 'end', unit, 'unit'));
    if (level) {
      out.push(draw('line', { x1: box.left, x2: box.right, y1: y(level.value), y2: y(level.value), class: 'level' }),
        label(box.right, y(level.value) - 6, 'end', level.text, 'strong'));
    }
    const names = [];
    for (const line of series) {
      const at = line.points.map((point) => [x(point[0]), y(point[1])]);
      if (!at.length) continue;
      if (line.area) out.push(draw('path', { d: `${path(at)}L${round(at[at.length - 1][0])} ${box.bottom}L${round(at[0][0])} ${box.bottom}Z`, class: `area ${line.kind}` }));
      const broken = line.from === null || line.from === undefined ? -1 : line.points.findIndex((point) => point[0] >= line.from);
      const whole = broken < 0 ? at : at.slice(0, broken + 1);
      out.push(draw('path', { d: path(whole), class: `line ${line.kind}` }));
      if (broken >= 0) {
        out.push(draw('path', { d: path(at.slice(broken)), class: 'line broken' }),
          draw('circle', { cx: at[broken][0], cy: at[broken][1], r: 5, class: 'broken-at' }));
      }
      // The legend shows each series' latest value, if it names no other.
      names.push([`swatch ${broken >= 0 ? 'broken-fill' : line.kind}`, `${line.name} ${compact(line.shown ?? line.points[line.points.length - 1][1])}`]);
    }
    const below = legend(names, width < 420 ? 4 : box.left, box.right - 60, height - 6);
    out.push(below.out);
    for (const mark of marks) {
      const late = x(mark.at) > (box.left + box.right) / 2;
      out.push(draw('line', { x1: x(mark.at), x2: x(mark.at), y1: box.top - 6, y2: box.bottom, class: `moment ${mark.kind || ''}` }),
        label(x(mark.at) + (late ? -5 : 5), box.top - 9 + 13 * (mark.row || 0), late ? 'end' : 'start', mark.text, mark.kind));
    }
    return frame(width, below.bottom, name, out);
  }

  // A sparkline: a line without axes, shown beside a number.
  function spark({ width = 120, height = 34, name, points, kind = 'one' }) {
    const top = Math.max(1e-9, ...points.map((point) => point[1]));
    const right = Math.max(1e-9, ...points.map((point) => point[0]));
    const at = points.map(([x, y]) => [(x / right) * (width - 2) + 1, height - 2 - (y / top) * (height - 5)]);
    if (at.length < 2) return frame(width, height, name);
    return frame(width, height, name,
      draw('path', { d: `${path(at)}L${round(at[at.length - 1][0])} ${height}L1 ${height}Z`, class: `area ${kind}` }),
      draw('path', { d: path(at), class: `line thin ${kind}` }));
  }

  // A horizontal bar chart. bars: [[name, value]].
  function bars({ width, name, unit, bars: all, kind = 'one' }) {
    const rest = Math.min(width * 0.5, Math.max(30, ...all.map(([text]) => textWidth(text))) + 14);
    const height = all.length * 26 + 26;
    const top = Math.max(1e-9, ...all.map(([, value]) => value));
    const space = width - rest - 60;
    return frame(width, height, name, all.map(([text, value], at) => [
      label(rest - 8, at * 26 + 17, 'end', text),
      draw('rect', { x: rest, y: at * 26 + 4, width: Math.max(1, (value / top) * space), height: 18, rx: 4, class: `bar ${kind}` }),
      label(rest + (value / top) * space + 7, at * 26 + 17, 'start', Words.number(value), 'strong'),
    ]), label(rest, height - 8, 'start', unit, 'unit'));
  }

  // Latency by percentile; both axes are logarithmic (50, 90, 99, … at equal distances).
  // series: [{name, kind, points: [[quantile, ms]]}]
  function percentiles({ width, height = 280, name, unit, series }) {
    const box = { left: 64, right: width - 14, top: 14, bottom: height - 52 };
    const values = series.flatMap((line) => line.points.map((point) => Math.max(0.01, point[1])));
    const low = Math.floor(Math.log10(Math.min(1, ...values)));
    const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(0.1, ...values))));
    const rarity = (quantile) => -Math.log10(Math.max(1 - quantile, 1e-9));
    const rarest = Math.max(1, ...series.flatMap((line) => line.points.map((point) => rarity(point[0]))));
    const x = (quantile) => box.left + (rarity(quantile) / rarest) * (box.right - box.left);
    const y = (ms) => box.bottom - ((Math.log10(Math.max(0.01, ms)) - low) / (high - low)) * (box.bottom - box.top);
    const out = [];
    for (let power = low; power <= high; power++) {
      const ms = 10 ** power;
      out.push(draw('line', { x1: box.left, x2: box.right, y1: y(ms), y2: y(ms), class: 'grid' }), label(box.left - 8, y(ms) + 4, 'end', `${compact(ms)} ms`));
    }
    for (const [quantile, text] of [[0, '0'], [0.5, '50'], [0.9, '90'], [0.99, '99'], [0.999, '99.9'], [0.9999, '99.99']]) {
      if (rarity(quantile) <= rarest + 0.01) out.push(label(x(quantile), box.bottom + 18, 'middle', text));
    }
    out.push(label(box.right, box.bottom + 34, 'end', unit, 'unit'));
    for (const line of series) {
      out.push(draw('path', { d: path(line.points.map((point) => [x(point[0]), y(point[1])])), class: `line ${line.kind}` }));
    }
    const below = legend(series.map((line) => [`swatch ${line.kind}`, line.name]), box.left, box.right - 60, height - 6);
    return frame(width, below.bottom, name, out, below.out);
  }

  // As many dots as `count`, in rows: the first of each kind in `kinds` ([[kind, how many]]), the rest empty. One path a
  // kind, so that thousands of dots cost no more than a few.
  function dots({ width, name, count, kinds }) {
    const pitch = (count <= 160 ? 15 : count <= 600 ? 11 : 8) - (width < 420 ? 3 : 0);
    const across = Math.max(1, Math.floor(width / pitch));
    let next = 0;
    const row = (kind, many) => {
      let d = '';
      for (const end = Math.min(count, next + many); next < end; next++) d += `M${(next % across + 0.5) * pitch} ${(Math.floor(next / across) + 0.5) * pitch}h0`;
      return d && draw('path', { d, class: `dots ${kind}`, 'stroke-width': pitch - 4 });
    };
    const rows = [...kinds, ['none', count]].map(([kind, many]) => row(kind, many));
    return frame(width, Math.ceil(count / across) * pitch, name, rows.filter(Boolean));
  }

  // Where the numbers of a timeline stand: at their moments, moved apart where they would overlap in a row, and never to the
  // left of a smaller number, in whichever row.
  function numberPlaces(groups, x, spacing, right) {
    const all = groups.flatMap((group) => group.rows.flatMap((row) => row.bars.map((bar) => ({ row, number: bar.number, place: x(bar.at) }))));
    all.sort((a, b) => a.number - b.number);
    for (let i = 1; i < all.length; i++) {
      const before = all.slice(0, i).findLast((other) => other.row === all[i].row);
      all[i].place = Math.max(all[i].place, all[i - 1].place, before ? before.place + spacing : 0);
    }
    for (let i = all.length - 1; i >= 0; i--) {
      const after = all.slice(i + 1).find((other) => other.row === all[i].row);
      all[i].place = Math.min(all[i].place, i + 1 < all.length ? all[i + 1].place : right, after ? after.place - spacing : right);
    }
    return new Map(all.map(({ number, place }) => [number, place]));
  }

  // A timeline: requests as rows, grouped, on one time axis. A bar's number stands at its moment `at`, and whatever shows a
  // step has its number as `data-number`.
  // groups: [{name, rows: [{name, from, to, spans: [{from, to, text}], bars: [{from, to, at, kind, number, strong}]}]}]; entries: [[kind, text]], for the legend.
  function timeline({ width, name, unit, groups, entries }) {
    const left = 34, right = width - 16, spacing = 21;
    const end = Math.max(1e-3, ...groups.flatMap((group) => group.rows.flatMap((row) => [row.to, ...row.bars.map((bar) => bar.to)])));
    const across = axis(end, width < 420 ? 4 : 8);
    const x = (ms) => left + (ms / end) * (right - left);
    const out = [];
    const places = numberPlaces(groups, x, spacing, right - 4);
    let top = 6;
    for (const group of groups) {
      const height = 30 + group.rows.length * 62;
      out.push(draw('rect', { x: 1, y: top, width: width - 2, height: height - 4, rx: 12, class: 'group' }), label(14, top + 20, 'start', group.name, 'strong'));
      group.rows.forEach((row, at) => {
        const y = top + 30 + at * 62;
        out.push(label(14, y + 40, 'start', row.name, 'strong'), draw('line', { x1: x(row.from), x2: x(row.to), y1: y + 36, y2: y + 36, class: 'life' }));
        for (const span of row.spans) {
          const spanWidth = Math.max(4, x(span.to) - x(span.from));
          out.push(draw('rect', { x: x(span.from), y: y + 20, width: spanWidth, height: 32, rx: 6, class: 'span' }));
        }
        for (const bar of row.bars) {
          out.push(draw('rect', { x: x(bar.from), y: y + 27, width: Math.max(4, x(bar.to) - x(bar.from)), height: 18, rx: 4, class: `bar ${bar.kind}`, 'data-number': bar.number }));
        }
        for (const bar of row.bars) {
          const place = places.get(bar.number);
          out.push(draw('g', { class: 'numbered', 'data-number': bar.number },
            draw('line', { x1: place, y1: y + 17, x2: x(bar.at), y2: y + 27, class: 'tie' }),
            draw('circle', { cx: place, cy: y + 8, r: 9.5, class: bar.strong ? 'number strong' : 'number' }),
            label(place, y + 12, 'middle', bar.number, bar.strong ? 'in-strong' : 'in-number')));
        }
      });
      top += height + 4;
    }
    for (const { number, at } of groups.flatMap((group) => group.rows.flatMap((row) => row.bars))) {
      out.push(draw('line', { x1: x(at), x2: x(at), y1: 2, y2: top - 4, class: 'playhead', 'data-number': number }));
    }
    for (const mark of across.marks.filter((mark) => mark <= end * 1.0001)) out.push(label(x(mark), top + 14, 'middle', compact(mark)));
    out.push(label(right, top + 30, 'end', unit, 'unit'));
    const below = legend(entries.map(([kind, text]) => [kind === 'span' ? 'span' : `bar ${kind}`, text]), left - 20, right - 70, top + 32, 10);
    return frame(width, below.bottom + 4, name, out, below.out);
  }

  return { bars, dots, label, frame, lines, percentiles, spark, textWidth, timeline };
})();
