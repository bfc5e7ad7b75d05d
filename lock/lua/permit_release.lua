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
-- 2 more: the user may not publish, so that nobody was notified.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local expires = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not expires then
  return 0
end
redis.call('ZREM', KEYS[2], ARGV[1])
local free = redis.call('INCRBY', KEYS[1], 1)
local denied = false
if free > 0 then
  for i = 3, #ARGV do
    local reply = redis.pcall(ARGV[i], ARGV[2], tostring(free))
    if type(reply) == 'table' and reply.err then
      denied = denied or string.find(reply.err, 'NOPERM') ~= nil
        or string.find(reply.err, 'user executing') ~= nil
    end
  end
end
return (tonumber(expires) > now and 1 or 0) + (denied and 2 or 0)
