-- Set the lease of permits that were acquired together, counted from now.
--
-- KEYS[1]  the acquired permits: a sorted set of ids by the time at which each expires (Unix, ms)
-- ARGV[1]  how many permits
-- ARGV[2]  the first 12 bytes of their ids, see permit_acquire.lua
-- ARGV[3]  lease in milliseconds
--
-- Returns 1 when all are extended, 0 when one has expired or is not acquired; then none is.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 0, ARGV[1] - 1 do
  local expires = redis.call('ZSCORE', KEYS[1], ARGV[2] .. struct.pack('>I4', i))
  if not expires or tonumber(expires) <= now then
    return 0
  end
end
for i = 0, ARGV[1] - 1 do
  redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[2] .. struct.pack('>I4', i))
end
return 1
