-- Set the lease of permits that were acquired together, counted from now.
--
-- KEYS[1]  the acquired permits: a sorted set of ids by the time at which each expires (Unix, ms)
-- ARGV[1]  number of the first permit
-- ARGV[2]  number of the last
-- ARGV[3]  the first 12 bytes of their ids, see permit_acquire.lua
-- ARGV[4]  lease in milliseconds
--
-- Returns 1 when all are extended, 0 when one has expired or is not acquired; then none is.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = ARGV[1], ARGV[2] do
  local expires = redis.call('ZSCORE', KEYS[1], ARGV[3] .. struct.pack('>I4', i))
  if not expires or tonumber(expires) <= now then
    return 0
  end
end
for i = ARGV[1], ARGV[2] do
  redis.call('ZADD', KEYS[1], now + ARGV[4], ARGV[3] .. struct.pack('>I4', i))
end
return 1
