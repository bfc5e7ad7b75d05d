-- Release a leased permit and notify a waiter.
--
-- KEYS[1]   the semaphore: a string, the number of permits that are free
-- KEYS[2]   the acquired permits: a sorted set of ids by the time at which each expires (Unix, ms)
-- ARGV[1]   the id
-- ARGV[2]   the channel of its waiters
-- ARGV[3..] the commands that publish: PUBLISH, and SPUBLISH on a cluster
--
-- Returns 1 when it was released in time, 0 when its lease had ended or it was not acquired (an expired
-- permit that is still in the set is released all the same).
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local expires = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not expires then
  return 0
end
redis.call('ZREM', KEYS[2], ARGV[1])
local free = redis.call('INCRBY', KEYS[1], 1)
if free > 0 then
  for i = 3, #ARGV do
    redis.pcall(ARGV[i], ARGV[2], tostring(free))
  end
end
return tonumber(expires) > now and 1 or 0
