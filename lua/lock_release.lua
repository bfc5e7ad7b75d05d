-- Give one hold of the reentrant lock back; with the last one the key goes and a waiter is told.
--
-- KEYS[1]   the lock's name
-- KEYS[2]   the channel its waiters listen on
-- ARGV[1]   the message that tells them ("0")
-- ARGV[2]   lease in milliseconds, for the holds that remain
-- ARGV[3]   owner
-- ARGV[4]   depth that remains, absolute: sent twice, it still counts once
-- ARGV[5..] the commands that tell them: PUBLISH, and SPUBLISH on a cluster
--
-- Returns nil when this owner does not hold the lock (nothing is touched), 0 when holds remain,
-- 1 when the lock is free now.
if redis.call('HEXISTS', KEYS[1], ARGV[3]) == 0 then
  return nil
end
if tonumber(ARGV[4]) > 0 then
  redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 0
end
redis.call('DEL', KEYS[1])
-- pcall: the lock is free by now, even where telling is refused (a denied channel, SPUBLISH before
-- Redis 7). Waiters look again at the latest when the lease they know of ends.
for i = 5, #ARGV do
  redis.pcall(ARGV[i], KEYS[2], ARGV[1])
end
return 1
