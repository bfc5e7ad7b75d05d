'use strict';
// Reads the API's document (OpenAPI 3.1): references, schemas in words, and examples; and JSON without rounding.

const ApiSchema = (document) => {
  // What a reference names, or the value itself.
  const resolve = (value) => {
    let found = value || {};
    while (found.$ref) found = found.$ref.slice(2).split('/').reduce((at, name) => (at || {})[name], document) || {};
    return found;
  };

  // A schema with its parts (`allOf`) as one.
  const whole = (schema) => {
    const given = resolve(schema);
    if (!given.allOf) return given;
    const parts = given.allOf.map(whole);
    return {
      ...given, type: 'object', allOf: undefined,
      properties: Object.assign({}, ...parts.map((part) => part.properties)),
      required: parts.flatMap((part) => part.required || []),
    };
  };

  const choices = (schema) => (schema.oneOf || schema.anyOf || []).filter((choice) => choice.type !== 'null');

  // What a value of this schema is, in words: "integer, 1 to 10".
  const words = (schema) => {
    const one = whole(schema);
    const kind = [].concat(one.type || []).filter((name) => name !== 'null').join(' or ');
    const parts = [kind === 'array' ? `list of ${words(one.items).split(',')[0] || 'values'}` : kind];
    if (one.enum) parts.push(one.enum.map((value) => JSON.stringify(value)).join(', '));
    const { minimum: low, maximum: high } = one;
    if (low !== undefined && high !== undefined) parts.push(`${low} to ${high}`);
    else if (low !== undefined) parts.push(`at least ${low}`);
    else if (high !== undefined) parts.push(`at most ${high}`);
    return parts.filter(Boolean).join(', ');
  };

  // The members of an object, or of a list's objects: [{name, required, words, description, schema}].
  const members = (schema) => {
    const one = whole(schema);
    if (one.type === 'array') return members(one.items);
    return Object.entries(one.properties || {}).map(([name, member]) => {
      const only = choices(resolve(member));
      const value = only.length === 1 ? only[0] : member;
      return {
        name, schema: value, required: (one.required || []).includes(name), words: words(value),
        description: resolve(member).description || value.description || whole(value).description,
      };
    });
  };

  // An example of a value, as far as the schema has one.
  const example = (schema) => {
    const one = whole(schema);
    if (one.example !== undefined) return one.example;
    if (one.default !== undefined) return one.default;
    if (choices(one).length) return example(choices(one)[0]);
    if (one.enum) return one.enum[0];
    if (one.type === 'array') return [example(one.items)];
    if (one.type === 'object' || one.properties) {
      // What has no example is left out, unless it is needed.
      return Object.fromEntries(members(one).map(({ name, required, schema: member }) => [name, required ? example(member) ?? null : whole(member).example])
        .filter(([, value]) => value !== undefined));
    }
    return { integer: 0, number: 0, boolean: false, string: '' }[[].concat(one.type)[0]];
  };

  // The operations: [{method, path, ...}], in the document's order.
  const operations = () => Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ method: method.toUpperCase(), path, ...operation })));

  return { choices, example, members, operations, resolve, words };
};

// JSON whose numbers stay as they are written: as JavaScript numbers, order ids would be rounded.
const ExactJson = (() => {
  const MARK = 'exact:';

  // With line breaks; other text stays as it is.
  function indent(text) {
    let depth = 0, out = '', inside = false;
    const line = () => `\n${'  '.repeat(depth)}`;
    for (let at = 0; at < text.length; at++) {
      const c = text[at];
      if (inside) {
        out += c;
        if (c === '\\') out += text[++at] || '';
        else if (c === '"') inside = false;
      } else if (c === '"') {
        inside = true;
        out += c;
      } else if (c === '{' || c === '[') {
        const empty = /^\s*[}\]]/.exec(text.slice(at + 1, at + 100));
        if (empty) at += empty[0].length; else depth++;
        out += empty ? c + empty[0].trim() : c + line();
      } else if (c === '}' || c === ']') {
        depth = Math.max(0, depth - 1);
        out += line() + c;
      } else if (c === ',') out += c + line();
      else if (c === ':') out += ': ';
      else if (!/\s/.test(c)) out += c;
    }
    return out;
  }

  return {
    indent,
    // As JSON.parse, with integers of more than 16 digits as marked strings.
    parse: (text) => JSON.parse(text.replace(/([:[,]\s*)(-?\d{17,})(?=\s*[,}\]])/g, `$1"${MARK}$2"`)),
    // A value as text: as it is, or as JSON.
    print: (value) => {
      const text = typeof value === 'string' ? value : indent(JSON.stringify(value));
      return text.replaceAll(new RegExp(`"?${MARK}(-?\\d+)"?`, 'g'), '$1');
    },
  };
})();
