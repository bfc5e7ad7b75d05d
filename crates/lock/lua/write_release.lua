-- Release one hold of the write side; with the last one all waiters are notified.
--
-- KEYS[1]     the lock's name, see read_acquire.lua
-- ARGV[1..3]  see notify.lua; the message is "1": it wakes all waiters, since many readers may get in
-- ARGV[4]     lease in milliseconds, for the holds that remain
-- ARGV[5]     the owner as a writer
-- ARGV[6]     hold count that remains, absolute
-- The last key and argument are those of generation.lua.
--
-- Returns nil when this owner does not write (nothing is touched), 0 when holds of its own remain,
-- 1 when it no longer writes. If it still reads, the lock is a read lock from now on, and other
-- readers are notified as well (Redisson leaves them to their timers).
-- 3 instead of 1 if the user may not publish (see notify.lua).
if outdated() then
  return nil
end
if redis.call('HEXISTS', KEYS[1], ARGV[5]) == 0 then
  return nil
end
if tonumber(ARGV[6]) > 0 then
  redis.call('HSET', KEYS[1], ARGV[5], ARGV[6])
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[4])))
  return 0
end
redis.call('HDEL', KEYS[1], ARGV[5])
-- The field `mode` is there in any case. A further one is the hold count of this owner as a reader.
if redis.call('HLEN', KEYS[1]) > 1 then
  redis.call('HSET', KEYS[1], 'mode', 'read')
else
  redis.call('DEL', KEYS[1])
end
notify()
return released()
