-- Give one hold of the reentrant lock back; with the last one the key goes and a waiter is told.
--
-- KEYS[1]   the lock's name
-- ARGV[1]   lease in milliseconds, for the holds that remain
-- ARGV[2]   owner
-- ARGV[3]   depth that remains, absolute: sent twice, it still counts once
-- ARGV[4]   the channel its waiters listen on. Not one of the KEYS: a key that does not exist would
--           make a cluster refuse the script (TRYAGAIN) for as long as the slot is being moved
-- ARGV[5]   the message that tells them ("0")
-- ARGV[6..] the commands that tell them: PUBLISH, and SPUBLISH on a cluster
--
-- Returns nil when this owner does not hold the lock (nothing is touched), 0 when holds remain,
-- 1 when the lock is free now.
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
  return nil
end
if tonumber(ARGV[3]) > 0 then
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return 0
end
redis.call('DEL', KEYS[1])
-- pcall: the lock is free by now, even where telling is refused (a denied channel, SPUBLISH before
-- Redis 7). Waiters look again at the latest when the lease they know of ends.
for i = 6, #ARGV do
  redis.pcall(ARGV[i], ARGV[4], ARGV[5])
end
return 1
