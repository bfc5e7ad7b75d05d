-- Free the lock whoever holds it, and tell a waiter.
--
-- KEYS[1]   the lock's name
-- ARGV[1]   the channel its waiters listen on
-- ARGV[2]   the message that tells them ("0")
-- ARGV[3..] the commands that tell them: PUBLISH, and SPUBLISH on a cluster
--
-- Returns 1 when there was a lock to free, else 0.
if redis.call('DEL', KEYS[1]) == 0 then
  return 0
end
-- pcall: the lock is free by now, even where telling is refused (a denied channel, SPUBLISH before
-- Redis 7). Waiters look again at the latest when the lease they know of ends.
for i = 3, #ARGV do
  redis.pcall(ARGV[i], ARGV[1], ARGV[2])
end
return 1
