-- Begins to rebuild a sale's stock counter. Nothing is admitted while there is no counter.
--
-- KEYS[1]  seckill:stock:{voucherId}
-- KEYS[2]  seckill:rebuild:{voucherId}
-- KEYS[3]  stream.orders.epoch
-- ARGV[1]  a token that no other rebuild uses
-- ARGV[2]  how long the caller may take, ms
-- ARGV[3]  how old the epoch must be, so that every node has added again what was lost; ms
--
-- Returns  `exists` (nothing to do), `early`, `busy` (another rebuild is running) or `begun`.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 'exists'
end
local since = string.match(redis.call('GET', KEYS[3]) or '', ':(%d+)$')
local now = redis.call('TIME')
if not since or now[1] * 1000000 + now[2] - since < ARGV[3] * 1000 then
  return 'early'
end
return redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', ARGV[2]) and 'begun' or 'busy'
