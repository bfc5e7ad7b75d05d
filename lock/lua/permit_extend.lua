-- Set the lease of a permit, counted from now.
--
-- KEYS[1]  the acquired permits: a sorted set of ids by the time at which each expires (Unix, ms)
-- ARGV[1]  the id
-- ARGV[2]  lease in milliseconds
--
-- Returns 1 when extended, 0 when it has expired or is not acquired.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local expires = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not expires or tonumber(expires) <= now then
  return 0
end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
return 1
