-- Takes entries over from consumers of another kind that keep them for too long: each is replaced by a new entry with the
-- same fields, which is delivered to the caller's consumer, into no reply. A consumer that wakes up acknowledges the old
-- one, which is gone: it cannot take an order from the consumer that is about to commit it.
--
-- KEYS[1]  stream.orders
-- ARGV[1]  the group
-- ARGV[2]  the caller's consumer
-- ARGV[3]  most entries that are delivered to it; beyond them, whoever reads on gets the new ones
-- ARGV[4]  how long the status of an order is kept, s
-- ARGV[5…] for each: entry, the consumer that keeps it
--
-- Returns  for each that was replaced: the new entry, order, user, voucher; in one flat list.
--
-- The keys of a sale and of a user are built from their ids and the shard that ends the name of KEYS[1], such as `:{3}`: all
-- are in one slot of a cluster. In the default key style there is none.
-- Only a Java node makes it needed, and that knows the default style alone; so they are not declared as KEYS.
local shard = (string.match(KEYS[1], ':{%d+}$') or '') .. ':'
local replaced = {}
for at = 5, #ARGV, 2 do
  local entry, consumer = ARGV[at], ARGV[at + 1]
  if #redis.call('XPENDING', KEYS[1], ARGV[1], entry, entry, 1, consumer) == 1 then
    local content = redis.call('XRANGE', KEYS[1], entry, entry)[1]
    redis.call('XACK', KEYS[1], ARGV[1], entry)
    if content then
      local of = {}
      for field = 1, #content[2], 2 do of[content[2][field]] = content[2][field + 1] end
      local order, user, voucher = of['id'] or '', of['userId'] or '', of['voucherId'] or ''
      redis.call('XDEL', KEYS[1], entry)
      local new = redis.call('XADD', KEYS[1], '*', unpack(content[2]))
      local statuses = 'seckill:place' .. shard .. user
      local status = redis.call('HGET', statuses, order)
      -- For the node that admitted it, which knows the old entry and adds the order again where that is lost.
      if user ~= '' and (not status or status == 'p ' .. voucher .. ' ' .. entry) then
        redis.call('HSET', statuses, order, 'p ' .. voucher .. ' ' .. new)
        redis.call('EXPIRE', statuses, ARGV[4])
      end
      -- A rebuild that is counting what is in flight would count both.
      redis.call('DEL', 'seckill:rebuild' .. shard .. voucher)
      for _, field in ipairs({new, order, user, voucher}) do
        replaced[#replaced + 1] = field
      end
    end
  end
end
if #replaced > 0 then
  -- Or the consumer that kept them might be given them again.
  redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', ARGV[3], 'STREAMS', KEYS[1], '>')
end
return replaced
