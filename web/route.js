'use strict';
// What the address selects: #type=1&shop=1&voucher=2. A visitor's choice is a new entry of the history, a default is not.

const Route = (() => {
  const listeners = [];
  // Stands for a part of the address that is not an id: no shop or voucher has this id.
  const NOT_AN_ID = -1;

  function read() {
    const parts = new URLSearchParams(location.hash.slice(1));
    const id = (name) => {
      const number = Number(parts.get(name));
      if (!parts.get(name)) return null;
      return Number.isSafeInteger(number) && number > 0 ? number : NOT_AN_ID;
    };
    return { type: id('type'), shop: id('shop'), voucher: id('voucher') };
  }

  function write(at, asDefault) {
    const parts = new URLSearchParams(Object.entries(at).filter(([, value]) => value));
    const address = `#${parts}`;
    if (address === (location.hash || '#')) return;
    history[asDefault ? 'replaceState' : 'pushState'](null, '', address);
  }

  // Back, forward, and an address that was pasted.
  window.addEventListener('popstate', () => listeners.forEach((listener) => listener(read())));

  return { read, write, onChange: (listener) => listeners.push(listener) };
})();
