'use strict';
// The texts of the levels about the cache, beside those of learn-words.js.

Words.add({
  'chapter.cache': ['The cache', '缓存'],
  'given.reads': ['reads of shop 1: {requests}', '查询商户 1：{requests}'], 'given.later': ['the same, later: {requests}', '稍后再查：{requests}'],
  'given.changes': ['changes it from v1 to v2: {requests}', '把它从 v1 改成 v2：{requests}'],
  'given.cached': ['at first the cache has {cached}, the database {shop}', '开始时缓存里是 {cached}，数据库里是 {shop}'],
  'given.most': ['the database may be asked {most|time|times}', '最多查库 {most} 次'],
  'given.event.expire': ['once, the key may expire', '可能有一次：缓存的键过期'],
  'buyer.w': ['the shop', '商家'],
  'cached.none': ['nothing', '空'], 'cached.expired': ['{value}, past its time', '{value}（逻辑过期）'],

  'guess.stale': ['An old value stays in the cache', '旧值会留在缓存里'], 'guess.loads': ['The database is asked too often', '查库次数会超出上限'],
  'invariant.stale': ['no old value stays', '不留旧值'], 'invariant.stale.broken': ['the cache keeps {cached}, the database has {shop}', '缓存里是 {cached}，数据库里是 {shop}'],
  'invariant.loads': ['{loads} of {most} loads', '查库 {loads} / {most} 次'], 'invariant.loads.broken': ['{loads} loads: {most} may be', '查库 {loads} 次：最多 {most} 次'],

  'move.get': ['read the cache', '查缓存'], 'move.select': ['load from the database', '查数据库'], 'move.set': ['store in the cache', '写缓存'],
  'move.try-mutex': ['lock, if it is free', '抢互斥锁'], 'move.look-again': ['read the cache again', '再查一次缓存'], 'move.unlock-mutex': ['unlock', '释放锁'],
  'move.take-lease': ['read again, take a lease', '再查一次，领租约'], 'move.set-leased': ['store, if the lease is still there', '租约还在才写缓存'],
  'move.change': ['change the row', '更新数据库'], 'move.erase': ['delete the key', '删缓存'], 'move.invalidate': ['delete the key and the lease', '删缓存和租约'],
  'said.get.hit': ['{value}', '命中：{value}'], 'said.get.miss': ['not there', '未命中'], 'said.get.expired': ['{value}, past its time', '{value}，逻辑上已过期'],
  'said.select': ['{value}', '{value}'], 'said.store': ['the cache has {value}', '缓存里是 {value}'],
  'said.try-mutex.again': ['held by another: sleeps, then reads the cache again', '锁被占用：休眠，再查缓存'], 'said.try-mutex.old': ['held by another: answers {value}', '锁被占用：先返回 {value}'],
  'said.take-lease': ['may store what it loads', '查到的值可以写回'], 'said.set-leased.refused': ['the lease is gone: not stored', '租约没了：不写回'],
  'said.change': ['the database has v2', '数据库里是 v2'], 'said.erase': ['not in the cache any more', '缓存里没有了'],
  'event.expire': ['The key expires', '缓存的键过期'], 'said.event.expire.said': ['not in the cache any more', '缓存里没有了'],
  'waits.later': ['comes later, when somebody has been answered', '稍后才来：先要有人得到结果'],
  'answer.v1': ['gets v1', '得到 v1'], 'answer.v2': ['gets v2', '得到 v2'], 'answer.null': ['no such shop', '没有这家店'], 'answer.CHANGED': ['changed', '已修改'],
  'table.shop': ['shop 1', '商户 1'], 'table.loads': ['loads', '查库次数'], 'table.mutex': ['the lock', '互斥锁'], 'table.lease': ['the lease', '租约'],
  'lines.course': ['sent', '发出'],

  'note.mutex-1': ['Here it does not look again under the lock.', '这里拿到锁后没有再查缓存。'], 'note.mutex-2': ['Here it reads the cache again under the lock.', '这里拿到锁后再查一次缓存。'],
  'note.null-caching': ['Here no shop has the id.', '这里查的 id 不存在。'],
});
