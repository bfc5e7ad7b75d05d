-- Adds again what a node admitted and Redis may have lost. Entries that still exist are left alone.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.counters
-- ARGV[1]  how long the status of an order is kept, s
-- ARGV[2…] for each: order id, user, voucher, the entry that it had
--
-- Returns  for each the entry that stands for it now, or '' where it was refused meanwhile.
--
-- The keys of a sale and of a user are built from their ids and the shard that ends the name of KEYS[1], such as `:{3}`: all
-- are in one slot of a cluster, where they follow KEYS above. In the default key style there is no shard.
local shard = (string.match(KEYS[1], ':{%d+}$') or '') .. ':'
local entries = {}

-- This entry, if it is there and is of this order: another Redis may have given its number to another.
local function standing(entry, order, user)
  local content = entry and redis.call('XRANGE', KEYS[1], entry, entry)[1]
  local of = {}
  for at = 1, content and #content[2] or 0, 2 do of[content[2][at]] = content[2][at + 1] end
  return of['id'] == order and of['userId'] == user and entry
end

for at = 2, #ARGV, 4 do
  local order, user, voucher, first = unpack(ARGV, at, at + 3)
  local key = 'seckill:place' .. shard .. user
  local status = redis.call('HGET', key, order)
  local entry = ''
  if not status or string.sub(status, 1, 1) == 'p' then
    -- That it was added again is written, as a reply may be lost, and no other entry names this one.
    local later = status and string.match(status, '^p %d+ (.+)$')
    entry = standing(later, order, user) or standing(first, order, user)
    if not entry then
      entry = redis.call('XADD', KEYS[1], '*', 'userId', user, 'voucherId', voucher, 'id', order)
      redis.call('HSET', key, order, 'p ' .. voucher .. ' ' .. entry)
      redis.call('EXPIRE', key, ARGV[1])
      redis.call('SADD', 'seckill:order' .. shard .. voucher, user)
      -- A stock counter that was rebuilt before this entry came back does not count it.
      redis.call('SREM', KEYS[2], voucher)
      redis.call('DEL', 'seckill:rebuild' .. shard .. voucher)
    end
  end
  entries[#entries + 1] = entry
end
return entries
