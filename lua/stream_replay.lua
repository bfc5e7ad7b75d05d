-- Adds again what a node admitted and Redis may have lost. Entries that still exist are left alone.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.counters
-- ARGV[1]  how long the status of an order is kept, s
-- ARGV[2…] for each: order id, user, voucher
--
-- Returns  for each the entry that stands for it now, or '' where it was refused meanwhile.
--
-- The keys of a sale and of a user are built from their ids and the shard that ends the name of KEYS[1], such as `:{3}`: all
-- are in one slot of a cluster, where they follow KEYS above. In the default key style there is no shard.
local shard = (string.match(KEYS[1], ':{%d+}$') or '') .. ':'
local entries = {}
for at = 2, #ARGV, 3 do
  local order, user, voucher = unpack(ARGV, at, at + 2)
  local key = 'seckill:place' .. shard .. user
  local status = redis.call('HGET', key, order)
  local entry = status and string.match(status, '^p %d+ (.+)$')
  -- The stream may be lost without the statuses.
  if entry and #redis.call('XRANGE', KEYS[1], entry, entry) == 0 then
    status, entry = nil, nil
  end
  if status then
    entry = entry or ''
  else
    entry = redis.call('XADD', KEYS[1], '*', 'userId', user, 'voucherId', voucher, 'id', order)
    redis.call('HSET', key, order, 'p ' .. voucher .. ' ' .. entry)
    redis.call('EXPIRE', key, ARGV[1])
    redis.call('SADD', 'seckill:order' .. shard .. voucher, user)
    -- A stock counter that was rebuilt before this entry came back does not count it.
    redis.call('SREM', KEYS[2], voucher)
    redis.call('DEL', 'seckill:rebuild' .. shard .. voucher)
  end
  entries[#entries + 1] = entry
end
return entries
