-- Acquire leased permits: the requested number or none.
--
-- KEYS[1]     the semaphore: a string, the number of permits that are free
-- KEYS[2]     the acquired permits: a sorted set of ids by the time at which each expires (Unix, ms)
-- ARGV[1..3]  see notify.lua; the message is the number of free permits
-- ARGV[4]     how many permits
-- ARGV[5]     the first 12 bytes of their ids; the other four count from 0
-- ARGV[6]     lease in milliseconds
--
-- Returns 0 when acquired, else the milliseconds until enough permits have expired, or -1 if never.
--
-- The ids make a command that is sent twice count once. The server's clock decides; Redisson's clients
-- go by theirs.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local wanted = tonumber(ARGV[4])
local expired = redis.call('ZREMRANGEBYSCORE', KEYS[2], 0, now)
if expired > 0 then
  redis.call('INCRBY', KEYS[1], expired)
end
local acquired = redis.call('ZSCORE', KEYS[2], ARGV[5] .. struct.pack('>I4', 0))
local free = tonumber(redis.call('GET', KEYS[1]) or 0)
if not acquired and free >= wanted then
  redis.call('DECRBY', KEYS[1], wanted)
  for i = 0, wanted - 1 do
    redis.call('ZADD', KEYS[2], now + ARGV[6], ARGV[5] .. struct.pack('>I4', i))
  end
  -- If the semaphore expires as a whole, so do its permits.
  local left = redis.call('PTTL', KEYS[1])
  if left > 0 then
    redis.call('PEXPIRE', KEYS[2], left)
  end
  acquired, free = true, free - wanted
end
-- Other waiters may acquire what has expired.
if expired > 0 and free > 0 then
  notify('', tostring(free))
end
if acquired then
  return 0
end
-- Above this, Redisson means "never".
local last = redis.call('ZRANGEBYSCORE', KEYS[2], 0, '(922337203685477', 'WITHSCORES', 'LIMIT', wanted - free - 1, 1)
if not last[2] then
  return -1
end
return math.max(1, tonumber(last[2]) - now)
