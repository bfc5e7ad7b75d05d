'use strict';
// The statement or command that the service sends for a step, with the values of the board, and the idea of the line that does
// the same in the course's Java. Casts, our column `unguarded` and the checks between statements are left out; of a script the
// core is shown, behind its name. crates/workload/tests/learn/model.js looks for each of them in the service's source.

const Statements = (() => {
  const VOUCHER = 7;
  const STOCK = `tb_seckill_voucher WHERE voucher_id = ${VOUCHER}`;
  const ORDERS = 'tb_voucher_order (id, user_id, voucher_id)';
  const ordersOf = (user) => `FROM tb_voucher_order WHERE user_id = ${user} AND voucher_id = ${VOUCHER} AND status <> 4`;
  // Where the unique index counts an order, its generated column `buyer` finds it: the user, unless the order is cancelled.
  const orderOf = (user, isUnguarded) => (isUnguarded ? ordersOf(user) : `FROM tb_voucher_order WHERE buyer = ${user} AND voucher_id = ${VOUCHER}`);
  const take = (count) => `UPDATE tb_seckill_voucher SET stock = stock - ${count} WHERE voucher_id IN (${VOUCHER}) AND stock >= ${count}`;
  const javaOrders = 'query().eq("user_id", userId).eq("voucher_id", id).exists()';
  const javaTake = (condition) => `seckillVoucherService.update().setSql("stock = stock - 1").eq("voucher_id", id)${condition}.update();`;
  const javaSetIfAbsent = 'stringRedisTemplate.opsForValue().setIfAbsent(key, id, 10, TimeUnit.SECONDS);';

  // How each strategy acquires and releases its lock in Redis.
  const locks = {
    'setnx-unowned': ({ user, order }) => ({
      acquire: [`SET lock:setnx-unowned:order:${user} ${order} NX PX 3`, javaSetIfAbsent],
      release: [`GETDEL lock:setnx-unowned:order:${user}`, 'stringRedisTemplate.delete(key);'],
    }),
    'setnx-lock': ({ user, name }) => ({
      acquire: [`setnx_acquire.lua: SET lock:setnx:order:${user} ${name} NX PX 30000`, javaSetIfAbsent],
      release: [`setnx_release.lua: if GET lock:setnx:order:${user} == ${name} then DEL lock:setnx:order:${user}`, 'stringRedisTemplate.execute(UNLOCK_SCRIPT, List.of(key), id);'],
    }),
    'reentrant-lock': ({ user, name }) => ({
      acquire: [`acquire.lua: if EXISTS lock:order:${user} == 0 then HSET lock:order:${user} ${name} 1; PEXPIRE lock:order:${user} 30000`, 'redissonClient.getLock("lock:order:" + userId).tryLock();'],
      release: [`release.lua: if HEXISTS lock:order:${user} ${name} == 1 then DEL lock:order:${user}`, 'lock.unlock();'],
    }),
  };

  // Step → [what is sent, the Java line].
  const lines = {
    'look': ({ user, strategy }) => [strategy === 'row-lock' ? `SELECT id ${ordersOf(user)} LIMIT 1`
      : `SELECT s.stock, (SELECT o.id FROM tb_voucher_order o WHERE o.user_id = ${user} AND o.voucher_id = s.voucher_id AND o.status <> 4 LIMIT 1) FROM tb_seckill_voucher s WHERE s.voucher_id = ${VOUCHER}`,
    `boolean ordered = ${javaOrders};`],
    'insert': ({ order, user }) => [`INSERT INTO ${ORDERS} VALUES (${order}, ${user}, ${VOUCHER})`, 'save(order);'],
    'insert-unless': ({ order, user, strategy }) => [`INSERT INTO ${ORDERS} SELECT ${order}, ${user}, ${VOUCHER} FROM DUAL WHERE NOT EXISTS (SELECT 1 ${orderOf(user, Ladder[strategy].unguarded)})`, `if (!${javaOrders}) save(order);`],
    'read-stock': () => [`SELECT stock FROM ${STOCK}`, 'int stock = seckillVoucherService.getById(id).getStock();'],
    'decrement': () => [`UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = ${VOUCHER}`, javaTake('')],
    'decrement-where': () => [take(1), javaTake('.gt("stock", 0)')],
    'decrement-same': ({ seen }) => [`UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = ${VOUCHER} AND stock = ${seen}`, javaTake('.eq("stock", stock)')],
    'lock-row': () => [`SELECT stock FROM ${STOCK} FOR UPDATE`, 'seckillVoucherMapper.selectForUpdate(id);'],
    'commit': () => ['COMMIT', 'transactionManager.commit(status); // @Transactional'],
    'roll-back': () => ['ROLLBACK', 'transactionManager.rollback(status); // @Transactional'],
    'lock-memory': ({ user }) => [`process_locks.acquire(${user})`, 'synchronized (userId.toString().intern()) {'],
    'unlock-memory': () => ['drop(guard)', '} // synchronized'],
    'lock-redis': (values) => locks[values.strategy](values).acquire,
    'unlock-redis': (values) => locks[values.strategy](values).release,
    'delete-lock': (values) => (values.compares ? [`DEL lock:setnx-unowned:order:${values.user}`, 'stringRedisTemplate.delete(key);'] : locks['setnx-unowned'](values).release),
    'compare-lock': ({ user }) => [`GET lock:setnx-unowned:order:${user}`, 'boolean mine = id.equals(stringRedisTemplate.opsForValue().get(key));'],
    'claim-unit': () => [`SELECT id INTO @unit FROM tb_stock_unit WHERE voucher_id = ${VOUCHER} LIMIT 1 FOR UPDATE SKIP LOCKED; DELETE FROM tb_stock_unit WHERE id = @unit`, 'stockUnitMapper.claimOne(id);'],
    'queue': () => [`queues.enqueue(${VOUCHER}, purchase)`, 'queue.put(order);'],
    'answer': () => ['answered.await', 'future.get();'],
    'take-queue': () => ['queues.next_batch()', 'queue.drainTo(orders);'],
    'insert-batch': ({ batch }) => [batch.length === 1 ? `INSERT INTO ${ORDERS} VALUES ${batch[0]}` : `INSERT IGNORE INTO ${ORDERS} VALUES ${batch.join(', ') || '…'}`, 'orderMapper.insertIgnore(orders);'],
    'decrement-batch': ({ count }) => [take(count), 'seckillVoucherMapper.take(id, orders.size());'],
    'commit-batch': () => ['COMMIT', 'transactionManager.commit(status);'],
    'admit': ({ user, order, strategy }) => [strategy === 'memory-queue' ? `memory_admit.lua: DECR seckill:stock:${VOUCHER}; SADD seckill:order:${VOUCHER} ${user}`
      : `stream_admit.lua: SADD seckill:order:${VOUCHER} ${user}; XADD stream.orders * userId ${user} voucherId ${VOUCHER} id ${order}; DECRBY seckill:stock:${VOUCHER} 1`,
      'stringRedisTemplate.execute(SECKILL_SCRIPT, List.of(), id, userId, orderId);'],
    'queue-reply': ({ order }) => [`orders.push_back(${order})`, 'orderTasks.add(order); return Result.ok(orderId);'],
    'take-order': () => ['orders.front()', 'orderTasks.take();'],
    'read-entry': ({ node }) => [`XREADGROUP GROUP g1 ${node} COUNT 1 STREAMS stream.orders >`, 'stringRedisTemplate.opsForStream().read(consumer, options, lastConsumed);'],
    'insert-entry': ({ order, user }) => [`INSERT INTO ${ORDERS} VALUES (${order}, ${user}, ${VOUCHER})`, 'save(order);'],
    'acknowledge': () => ['stream_resolve.lua: XACK stream.orders g1 …; XDEL stream.orders …', 'stringRedisTemplate.opsForStream().acknowledge("stream.orders", "g1", entry.getId());'],
  };
  // The first of these that a program has also opens its transaction.
  const opening = ['lock-row', 'insert', 'insert-unless', 'insert-batch', 'insert-entry'];

  // {sent, java} for a step of an actor in this state; null for a step without.
  function of(game, s, who, step) {
    const { role, name, node, program } = game.cast[who];
    const actor = s.actors[who];
    const by = role === 'request' ? who : actor.entry;
    const user = (request) => (request === undefined ? '…' : 'xyz'.indexOf(game.cast[request].buyer) + 1);
    const order = (request) => (request === undefined ? '…' : 101 + request);
    const describe = step.sent || lines[step.name];
    const line = typeof describe !== 'function' ? describe : describe({
      strategy: game.setup.strategy, name, node: `node-${8080 + node}`, user: user(by), order: order(by), read: actor.read || '…', seen: actor.seen === undefined ? '…' : actor.seen,
      compares: program.some((one) => one.name === 'compare-lock'),
      batch: (actor.batch || []).map((request) => `(${order(request)}, ${user(request)}, ${VOUCHER})`),
      count: Math.max(1, s.open[who] ? Math.min(s.stock, s.open[who].orders.length) : 1),
    });
    if (!line) return null;
    const opens = step === program.find((one) => opening.includes(one.name));
    return { sent: `${opens ? 'START TRANSACTION; ' : ''}${line[0]}`, java: line[1] };
  }

  return { of };
})();
