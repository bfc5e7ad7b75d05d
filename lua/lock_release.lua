-- Give one hold of the reentrant lock back; with the last one the key goes and a waiter is told.
--
-- KEYS[1]  the lock's name
-- KEYS[2]  the channel its waiters listen on
-- ARGV[1]  the commands that announce, see lock_tell.lua
-- ARGV[2]  the message that tells them ("0")
-- ARGV[3]  lease in milliseconds, for the holds that remain
-- ARGV[4]  owner
-- ARGV[5]  depth that remains, absolute: sent twice, it still counts once
--
-- Returns nil when this owner does not hold the lock (nothing is touched), 0 when holds remain,
-- 1 when the lock is free now.
if redis.call('HEXISTS', KEYS[1], ARGV[4]) == 0 then
  return nil
end
if tonumber(ARGV[5]) > 0 then
  redis.call('HSET', KEYS[1], ARGV[4], ARGV[5])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return 0
end
redis.call('DEL', KEYS[1])
tell(KEYS[2])
return 1
