'use strict';
// The cache of the course on the same board: shop 1, cached under one key, requests that read it, and one that changes it.
// Programs for the model, with the statements of their steps, and the texts that the table of strategies has for the others.
// Two rules: no old value stays in the cache, and the database is loaded from at most `most` times.

const Caches = (() => {
  const isFresh = ({ cache }) => cache !== null && !cache.expired;
  const hit = (w) => {
    w.say('get.hit', { value: w.s.cache.value });
    w.self.result = w.s.cache.value;
  };
  const miss = (w) => w.say(w.s.cache ? 'get.expired' : 'get.miss', { value: w.s.cache ? w.s.cache.value : '' });
  const store = (w, value) => {
    w.s.cache = { value };
    w.say('store', { value });
  };

  // ── A request that reads ──────────────────────────────────────────────────────────────────
  const get = {
    // A request that found the lock held sleeps until it is free.
    name: 'get', waits: ({ s, self }) => (self.sleeps && s.mutex !== null ? { on: 'memory', who: s.mutex } : null),
    run(w) {
      if (isFresh(w.s)) {
        hit(w);
        return w.end(w.self.result);
      }
      if (w.s.cache) w.self.old = w.s.cache.value;
      miss(w);
    },
    sent: ['GET cache:shop:1', 'String json = stringRedisTemplate.opsForValue().get(key);'],
  };
  const getLater = { ...get, waits: ({ s }) => (s.actors.some(({ reply }) => reply) ? null : { on: 'later', who: null }) };
  const select = {
    name: 'select',
    run(w) {
      w.s.loads += 1;
      w.self.read = w.s.shop;
      // An old value was the answer already.
      w.self.result = w.self.old || w.self.read;
      w.say('select', { value: w.s.shop });
    },
    sent: ['SELECT * FROM tb_shop WHERE id = 1', 'Shop shop = getById(id);'],
  };
  const set = (value, java) => ({
    name: 'set',
    run(w) { store(w, w.self.read); },
    sent: ({ read }) => [`SET cache:shop:1 ${value(read)}`, java],
  });
  const withTtl = set((read) => `${read === 'null' ? '""' : read} PX ${read === 'null' ? 120000 : 1800000}`, 'stringRedisTemplate.opsForValue().set(key, json, 30, TimeUnit.MINUTES);');
  const withExpiry = set((read) => `{"data":${read},"expireTime":…}`, 'stringRedisTemplate.opsForValue().set(key, toJson(new RedisData(shop, expireTime)));');

  // ── The mutex ─────────────────────────────────────────────────────────────────────────────
  const tryMutex = {
    name: 'try-mutex',
    run(w) {
      if (w.s.mutex === null) {
        w.s.mutex = w.me;
        return w.say('lock-redis');
      }
      if (w.self.old) {
        w.say('try-mutex.old', { value: w.self.old });
        return w.end(w.self.old);
      }
      w.self.sleeps = true;
      w.goTo('get');
      w.say('try-mutex.again');
    },
    sent: ({ name }) => [`SET lock:shop:1 ${name} NX PX 10000`, 'stringRedisTemplate.opsForValue().setIfAbsent(lockKey, "1", 10, TimeUnit.SECONDS);'],
  };
  const lookAgain = {
    name: 'look-again',
    run(w) {
      if (!isFresh(w.s)) return miss(w);
      hit(w);
      w.goTo('unlock-mutex');
    },
    sent: get.sent,
  };
  const unlockMutex = {
    name: 'unlock-mutex',
    run(w) { w.s.mutex = null; w.say('unlock'); },
    sent: ['DEL lock:shop:1', 'stringRedisTemplate.delete(lockKey);'],
  };

  // ── The lease: what was loaded is stored only if nothing was deleted since ────────────────
  const takeLease = {
    name: 'take-lease',
    run(w) {
      if (isFresh(w.s)) {
        hit(w);
        return w.end(w.self.result);
      }
      if (w.s.lease === null) w.s.lease = w.me;
      w.self.lease = w.s.lease;
      w.say('take-lease');
    },
    sent: ({ name }) => [`lease_get.lua: GET cache:shop:1; SET {cache:shop:1}:lease ${name} PX 60000`, 'stringRedisTemplate.execute(LEASE_GET, List.of(key, leaseKey), id);'],
  };
  const setLeased = {
    name: 'set-leased',
    run(w) {
      if (w.s.lease !== w.self.lease) return w.say('set-leased.refused');
      w.s.lease = null;
      store(w, w.self.read);
    },
    sent: ({ name, read }) => [`lease_set.lua: if GET {cache:shop:1}:lease == ${name} then SET cache:shop:1 ${read} PX 1800000`, 'stringRedisTemplate.execute(LEASE_SET, List.of(key, leaseKey), id, json);'],
  };

  // ── The request that changes the shop ─────────────────────────────────────────────────────
  const change = {
    name: 'change',
    run(w) { w.s.shop = 'v2'; w.self.result = 'CHANGED'; w.say('change'); },
    sent: ["UPDATE tb_shop SET name = 'v2' WHERE id = 1", 'updateById(shop);'],
  };
  const erase = {
    name: 'erase',
    run(w) { w.s.cache = null; w.say('erase'); },
    sent: ['DEL cache:shop:1', 'stringRedisTemplate.delete(key);'],
  };
  const invalidate = {
    ...erase, name: 'invalidate',
    run(w) { w.s.lease = null; erase.run(w); },
    sent: ['invalidate.lua: DEL cache:shop:1 {cache:shop:1}:lease; PUBLISH cache:invalidate cache:shop:1', 'stringRedisTemplate.delete(List.of(key, leaseKey));'],
  };

  const cache = (shop, cached, programs) => ({
    rules: ['stale', 'loads'],
    violations: (s, { most }, isOver) => [
      ...(isOver && s.cache && s.cache.value !== s.shop ? ['stale'] : []),
      ...(s.loads > most ? ['loads'] : []),
    ],
    state: () => ({ shop, cache: cached, mutex: null, lease: null, loads: 0 }),
    ...programs,
  });
  const aside = [get, select, withTtl];
  const programs = {
    'delete-then-update': cache('v1', { value: 'v1' }, { request: aside, write: [erase, change] }),
    'update-then-delete': cache('v1', { value: 'v1' }, { request: aside, write: [change, erase] }),
    'lease': cache('v1', { value: 'v1' }, { request: [get, takeLease, select, setLeased], write: [change, invalidate] }),
    'null-caching': cache('null', null, { request: aside, later: [getLater, ...aside.slice(1)] }),
    'mutex': cache('v1', null, {
      request: [get, tryMutex, select, withTtl, unlockMutex], checked: [get, tryMutex, lookAgain, select, withTtl, unlockMutex],
    }),
    'logical-expiry': cache('v2', { value: 'v1', expired: true }, { request: [get, tryMutex, lookAgain, select, withExpiry, unlockMutex] }),
  };

  const table = {
    'delete-then-update': {
      idea: ['Delete the cached value, then change the row.', '先删缓存，再更新数据库。'],
      why: ['Between the two a reader finds nothing in the cache, loads the old row, and stores it. The old value stays until its time to live ends.',
        '缓存已删、数据库还没更新，这时来的读请求查到旧值，又写回缓存。旧值要留到过期为止。'],
    },
    'update-then-delete': {
      idea: ['Change the row, then delete the cached value.', '先更新数据库，再删缓存。'],
      why: ['It needs bad luck: the key expires, and a reader that loaded before the change stores after the deletion. A time to live ends it; a lease prevents it.',
        '要很不走运才会出错：键恰好过期，读请求在更新前查到旧值，在删缓存之后才写回。过期时间能兜底，租约能避免。'],
    },
    'lease': {
      idea: ['Change the row, then delete the value and its lease; what was loaded is stored only while its lease is there. This service does it so.',
        '先更新数据库，再把缓存和租约一起删掉；租约还在，查到的值才能写回。本服务就是这样做的。'],
      why: ['Whatever was loaded before the change was loaded under a lease that is gone, so it is not stored.', '更新前查到的旧值，租约已被删掉，写不回缓存。'],
    },
    'null-caching': {
      idea: ['That there is no such row is cached, too: as an empty value, for a short time.', '数据库里没有这一行，也缓存下来：存一个空值，过期时间设短。'],
      why: ['Who comes after an answer finds the empty value. Without it every request for an id that does not exist reaches the database: 缓存穿透, cache penetration. Those who come at the same moment still load at the same moment; and once there is such a row, the empty value has to be deleted.',
        '之后来的请求查到空值，不再查库。没有它，每次查不存在的 id 都会打到数据库：缓存穿透。同时到来的请求仍会同时查库；这一行一旦新增，空值也要删掉。'],
    },
    'mutex': {
      idea: ['Of all who find nothing, only the one that gets the lock loads; the others sleep, and read the cache again.', '未命中的请求里，只有抢到锁的那个查库；其余的休眠片刻，再查缓存。'],
      why: ['A hot key expires, and all its readers would load: 缓存击穿, cache breakdown. But a request that found nothing may get the lock when another one has stored the value and unlocked. So whoever has the lock must read the cache again.',
        '热点键过期，所有读请求一起查库：缓存击穿。可是一个未命中的请求，可能等别人写好缓存、释放锁之后才抢到锁。所以拿到锁以后，必须再查一次缓存。'],
    },
    'logical-expiry': {
      idea: ['The key never expires; the value says when it is old. Who then gets the lock rebuilds it, and everybody is answered with the old value at once.', '键永不过期，值里记着逻辑过期时间。过期后抢到锁的请求去重建，所有人都先拿到旧值。'],
      why: ['One load, and nobody waits. The price: until it is rebuilt, readers get the old value.', '只查一次库，谁也不用等。代价是重建完成之前，读到的都是旧值。'],
    },
  };

  return { programs, table };
})();

Events.expire = {
  targets: (s) => (s.cache ? [0] : []),
  run(w) { w.s.cache = null; },
};
