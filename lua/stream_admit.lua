-- Places in sales, for several buyers at once: stock, claim, and the entry that a consumer will turn into an
-- order, all or nothing for each of them. Sent twice with the same order id (a reply was lost), it counts
-- once.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.epoch
-- ARGV[1]  most entries that may wait in the stream
-- ARGV[2]  how long a place is remembered, s
-- ARGV[3]  1 where this is sent again and may have been run, else 0
-- ARGV[4…] for each buyer: user, voucher, order id, the epoch in which that id was leased
--
-- Returns  for each three strings, in one flat list: `admitted`, entry, epoch; `refused`, code; `other epoch`;
-- `closed`; `claimed`; `sold out`, entries that wait; `full`. What is missing of the three is ''.
--
-- The keys of a sale and of a user are built from their ids, so this cannot run on a cluster.
local epoch = redis.call('GET', KEYS[2]) or ''
local waiting = redis.call('XLEN', KEYS[1])
local most, again = tonumber(ARGV[1]), ARGV[3] == '1'
local stocks, said = {}, {}

local function say(word, first, second)
  said[#said + 1] = word
  said[#said + 1] = first or ''
  said[#said + 1] = second or ''
end

for at = 4, #ARGV, 4 do
  local user, voucher, order, leased_in = unpack(ARGV, at, at + 3)
  local places, claims = 'seckill:place:' .. user, 'seckill:order:' .. voucher
  local place = again and redis.call('HGET', places, order)
  if place then
    local entry = string.match(place, '^p %d+ (.+)$')
    if entry then
      say('admitted', entry, epoch)
    else
      say('refused', string.match(place, '^r %d+ (.+)$'))
    end
  elseif epoch == '' or epoch ~= leased_in then
    -- The counter of ids may have started over since, and another node may have been given this number.
    say('other epoch')
  else
    local gate = 'seckill:stock:' .. voucher
    local stock = stocks[voucher] or tonumber(redis.call('GET', gate))
    if not stock then
      say('closed')
    elseif stock <= 0 or waiting >= most then
      -- Who holds a place is told so even when nothing is left.
      if redis.call('SISMEMBER', claims, user) == 1 then
        say('claimed')
      elseif stock <= 0 then
        say('sold out', tostring(waiting))
      else
        say('full')
      end
    elseif redis.call('SADD', claims, user) == 0 then
      say('claimed')
    else
      stock = redis.call('DECR', gate)
      local entry = redis.call('XADD', KEYS[1], '*', 'userId', user, 'voucherId', voucher, 'id', order)
      redis.call('HSET', places, order, 'p ' .. voucher .. ' ' .. entry)
      redis.call('EXPIRE', places, ARGV[2])
      waiting = waiting + 1
      say('admitted', entry, epoch)
    end
    stocks[voucher] = stock
  end
end
return said
