-- Give a leased permit back and tell a waiter.
--
-- KEYS[1]   the semaphore: a string, the number of permits that are free
-- KEYS[2]   the permits that are out: a sorted set of ids by the time at which each expires (Unix, ms)
-- ARGV[1]   the id
-- ARGV[2]   the channel waiters listen on
-- ARGV[3..] the commands that tell waiters: PUBLISH, and SPUBLISH on a cluster
--
-- Returns 1 when it was given back in time, 0 when too late or not out at all (an expired permit that
-- is still out is given back all the same).
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
