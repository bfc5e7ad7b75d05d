'use strict';
// How words come into a page: which language, every text that more than one page shows, and the one
// function that makes elements. Whatever a server or a person wrote becomes a text node, never markup.

// make('p', {class: 'x', 'aria-live': 'polite', onclick: f}, 'text', child, null): an HTML element.
// Attributes that are null or false are left out; children may be strings, elements, arrays or null.
const make = (name, attributes, ...children) => Words.build(document.createElement(name), attributes, children);
// The same for SVG.
const draw = (name, attributes, ...children) =>
  Words.build(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);

const Words = (() => {
  const texts = {}; // key → [English, Chinese]
  const listeners = [];
  let language = remembered() || ((navigator.language || '').toLowerCase().startsWith('zh') ? 'zh' : 'en');

  // A page opened as a file may have no storage.
  function remembered() {
    try {
      const kept = localStorage.getItem('language');
      return kept === 'zh' || kept === 'en' ? kept : null;
    } catch { return null; }
  }

  function build(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? '' : value);
    }
    element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
    return element;
  }

  // add({key: ['English', '中文']})
  const add = (more) => Object.assign(texts, more);
  const has = (key) => key in texts;

  // t('key', {name: value}): the text, its {name} marks filled in.
  const t = (key, values = {}) => {
    const pair = texts[key];
    if (!pair) return key;
    return pair[language === 'zh' ? 1 : 0].replace(/\{(\w+)\}/g, (mark, name) => (name in values ? values[name] : mark));
  };

  // Fills in what the page's own markup asks for: data-t="key", and data-t-ATTRIBUTE="key".
  function apply() {
    document.documentElement.lang = language === 'zh' ? 'zh-CN' : 'en';
    for (const element of document.querySelectorAll('[data-t]')) element.textContent = t(element.dataset.t);
    for (const attribute of ['aria-label', 'placeholder', 'content']) {
      for (const element of document.querySelectorAll(`[data-t-${attribute}]`)) {
        element.setAttribute(attribute, t(element.getAttribute(`data-t-${attribute}`)));
      }
    }
    for (const button of document.querySelectorAll('[data-language]')) {
      button.setAttribute('aria-pressed', String(button.dataset.language === language));
    }
  }

  function speak(other) {
    language = other;
    try { localStorage.setItem('language', other); } catch { /* remembered for this page only */ }
    apply();
    listeners.forEach((listener) => listener());
  }

  // Whole numbers with separators; others with three significant digits.
  const number = (value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return '–';
    const digits = Number.isInteger(value) || Math.abs(value) >= 100
      ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 };
    return value.toLocaleString('en-US', digits);
  };

  document.addEventListener('click', (event) => {
    const button = event.target.closest('[data-language]');
    if (button) speak(button.dataset.language);
  });
  document.addEventListener('DOMContentLoaded', apply);

  return { add, apply, build, has, number, t, language: () => language, onChange: (listener) => listeners.push(listener) };
})();

Words.add({
  'nav.shop': ['Shop', '商店'],
  'nav.lab': ['Lab', '实验室'],
  'nav.docs': ['API', '接口文档'],
  'nav.label': ['Pages', '页面'],
  'nav.language': ['Language', '语言'],
  'nav.skip': ['To the content', '跳到正文'],
  'brand': ['Flash sale', '秒杀'],
  'noscript': ['This page needs JavaScript.', '本页面需要 JavaScript。'],
});
