-- Release one hold of the reentrant lock; with the last one the key is deleted and a waiter notified.
--
-- KEYS[1]     the lock's name
-- ARGV[1..3]  see notify.lua; the message is "0"
-- ARGV[4]     lease in milliseconds, for the holds that remain
-- ARGV[5]     owner
-- ARGV[6]     hold count that remains, absolute: sent twice, it still counts once
-- The last key and argument are those of generation.lua.
--
-- Returns nil when this owner does not hold the lock (nothing is touched), 0 when holds remain,
-- 1 when the lock is free now.
-- 3 instead of 1 if the user may not publish (see notify.lua).
if outdated() then
  return nil
end
if redis.call('HEXISTS', KEYS[1], ARGV[5]) == 0 then
  return nil
end
if tonumber(ARGV[6]) > 0 then
  redis.call('HSET', KEYS[1], ARGV[5], ARGV[6])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  return 0
end
redis.call('DEL', KEYS[1])
notify()
return released()
