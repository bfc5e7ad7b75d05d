-- Begins to rebuild a sale's stock counter. The old one stays in its place for nodes that admit by it alone (a Java
-- node's script); our own admit nothing meanwhile.
--
-- KEYS[1]  seckill:stock:{voucherId}
-- KEYS[2]  seckill:order:{voucherId}
-- KEYS[3]  stream.orders.epoch
-- KEYS[4]  stream.orders.counters        sales whose counter is exact
-- KEYS[5]  stream.orders.claims          sales whose claims are complete
-- KEYS[6]  seckill:rebuild:{voucherId}   the token of the rebuild, a space, and the stream's last entry at its begin
-- KEYS[7]  seckill:rebuild:{voucherId}:claims   the token of the one who writes the claims
-- KEYS[8]  stream.orders
-- ARGV[1]  a token that no other rebuild uses
-- ARGV[2]  how long the caller may take, ms
-- ARGV[3]  how old the epoch must be, so that every node has added again what was lost; ms
-- ARGV[4]  the voucher
-- ARGV[5]  the epoch in which the caller has written the claims of all buyers in the database; '' where it has not
--
-- Returns  {'exists'} (nothing to do), {'early'}, {'busy'} (another rebuild is running), {'claims', epoch} (the claims are
-- to be written first) or {'begun', epoch}.
if redis.call('SISMEMBER', KEYS[4], ARGV[4]) == 1 and redis.call('EXISTS', KEYS[1]) == 1 then
  return {'exists'}
end
local epoch = redis.call('GET', KEYS[3])
local since = epoch and string.match(epoch, ':(%d+)$')
if not since then
  return {'early'}
end
local now = redis.call('TIME')
local age = now[1] * 1000000 + now[2] - since
-- A negative age is that of a clock that stepped back: how old the epoch is is unknown, and waiting would not help.
if age >= 0 and age < ARGV[3] * 1000 then
  return {'early'}
end
local function is_ours(key)
  local holder = redis.call('GET', key)
  return not holder or string.sub(holder, 1, #ARGV[1]) == ARGV[1]
end
if ARGV[5] ~= epoch then
  if not is_ours(KEYS[7]) then
    return {'busy'}
  end
  if redis.call('SISMEMBER', KEYS[5], ARGV[4]) == 0 or redis.call('EXISTS', KEYS[2]) == 0 then
    redis.call('SET', KEYS[7], ARGV[1], 'PX', ARGV[2])
    return {'claims', epoch}
  end
end
if not is_ours(KEYS[6]) then
  return {'busy'}
end
local last = redis.call('XREVRANGE', KEYS[8], '+', '-', 'COUNT', 1)[1]
redis.call('SET', KEYS[6], ARGV[1] .. ' ' .. (last and last[1] or '0-0'), 'PX', ARGV[2])
return {'begun', epoch}
