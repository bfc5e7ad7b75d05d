-- Acquire one leased permit.
--
-- KEYS[1]   the semaphore: a string, the number of permits that are free
-- KEYS[2]   the acquired permits: a sorted set of ids by the time at which each expires (Unix, ms)
-- ARGV[1]   the id of the new permit
-- ARGV[2]   lease in milliseconds
-- ARGV[3]   the channel of its waiters
-- ARGV[4..] the commands that publish: PUBLISH, and SPUBLISH on a cluster
--
-- Returns 0 when acquired, else the milliseconds until the next permit expires, or -1 if none will.
--
-- The id makes a command that is sent twice count once. The server's clock decides; Redisson's clients
-- go by theirs.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local expired = redis.call('ZRANGEBYSCORE', KEYS[2], 0, now, 'LIMIT', 0, 1000)
if #expired > 0 then
  redis.call('ZREM', KEYS[2], unpack(expired))
  redis.call('INCRBY', KEYS[1], #expired)
end
local acquired = redis.call('ZSCORE', KEYS[2], ARGV[1])
local free = tonumber(redis.call('GET', KEYS[1]) or 0)
if not acquired and free > 0 then
  redis.call('DECRBY', KEYS[1], 1)
  redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[1])
  -- If the semaphore expires as a whole, so do its permits.
  local left = redis.call('PTTL', KEYS[1])
  if left > 0 then
    redis.call('PEXPIRE', KEYS[2], left)
  end
  acquired, free = true, free - 1
end
-- Other waiters may acquire what has expired.
if #expired > 0 and free > 0 then
  for i = 4, #ARGV do
    redis.pcall(ARGV[i], ARGV[3], tostring(free))
  end
end
if acquired then
  return 0
end
-- Above this, Redisson means "never".
local first = redis.call('ZRANGEBYSCORE', KEYS[2], 0, '(922337203685477', 'WITHSCORES', 'LIMIT', 0, 1)
if not first[2] then
  return -1
end
return math.max(1, tonumber(first[2]) - now)
