-- Admits several purchases in one call: for each, the stock counter, the claim, and the stream entry that a consumer
-- will turn into an order, all or nothing. Sent twice with the same order id (a reply was lost), it counts once.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.epoch
-- KEYS[3]  stream.orders.counters: sales whose counter is exact; any other is being rebuilt, or is to be
-- ARGV[1]  most entries that may wait in the stream
-- ARGV[2]  how long the status of an order is kept, s
-- ARGV[3]  1 where this is sent again and may have been run, else 0
-- ARGV[4…] for each purchase: user, voucher, order id, the epoch in which that id was leased
--
-- Returns  for each purchase three strings, in one flat list: `admitted`, entry, epoch; `refused`, code; `other epoch`;
-- `no counter` (none that is exact); `claimed`; `sold out`, entries that wait; `full`. Missing strings are ''.
--
-- The keys of a sale and of a user are built from their ids and the shard that ends the name of KEYS[1], such as `:{3}`: all
-- are in one slot of a cluster, where they follow KEYS above. In the default key style there is no shard.
local shard = (string.match(KEYS[1], ':{%d+}$') or '') .. ':'
local epoch = redis.call('GET', KEYS[2]) or ''
local waiting = redis.call('XLEN', KEYS[1])
local most, again = tonumber(ARGV[1]), ARGV[3] == '1'
local stocks, taken, replies = {}, {}, {}

local function reply(word, first, second)
  replies[#replies + 1] = word
  replies[#replies + 1] = first or ''
  replies[#replies + 1] = second or ''
end

for at = 4, #ARGV, 4 do
  local user, voucher, order, leased_in = unpack(ARGV, at, at + 3)
  local statuses, claims = 'seckill:place' .. shard .. user, 'seckill:order' .. shard .. voucher
  local status = again and redis.call('HGET', statuses, order)
  if status then
    local entry = string.match(status, '^p %d+ (.+)$')
    if entry then
      reply('admitted', entry, epoch)
    else
      reply('refused', string.match(status, '^r %d+ (.+)$'))
    end
  elseif epoch == '' or epoch ~= leased_in then
    -- The id counter may have started over since, and another node may have been given this id.
    reply('other epoch')
  else
    local counter = 'seckill:stock' .. shard .. voucher
    local stock = stocks[voucher]
    if not stock and redis.call('SISMEMBER', KEYS[3], voucher) == 1 then
      stock = tonumber(redis.call('GET', counter))
    end
    if not stock then
      reply('no counter')
    elseif stock <= 0 or waiting >= most then
      -- A user with a claim gets that answer even when nothing is left.
      if redis.call('SISMEMBER', claims, user) == 1 then
        reply('claimed')
      elseif stock <= 0 then
        reply('sold out', tostring(waiting))
      else
        reply('full')
      end
    elseif redis.call('SADD', claims, user) == 0 then
      reply('claimed')
    else
      stock, taken[counter] = stock - 1, (taken[counter] or 0) + 1
      local entry = redis.call('XADD', KEYS[1], '*', 'userId', user, 'voucherId', voucher, 'id', order)
      redis.call('HSET', statuses, order, 'p ' .. voucher .. ' ' .. entry)
      redis.call('EXPIRE', statuses, ARGV[2])
      waiting = waiting + 1
      reply('admitted', entry, epoch)
    end
    stocks[voucher] = stock
  end
end
-- One write for each sale instead of one for each purchase.
for counter, count in pairs(taken) do
  redis.call('DECRBY', counter, count)
end
return replies
