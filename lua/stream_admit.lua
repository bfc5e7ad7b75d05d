-- Admits several purchases in one call: for each, the stock counter, the claim, and the stream entry that a consumer
-- will turn into an order, all or nothing. Sent twice with the same order id (a reply was lost), it counts once.
-- The caller's consumer holds the entries that are added here: the group goes past them, without a pending entry for each. One
-- record for all of them says whose they are. That an order is pending is written nowhere else: its entry says so.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.epoch
-- KEYS[3]  stream.orders.counters: sales whose counter is exact; any other is being rebuilt, or is to be
-- KEYS[4]  stream.orders.held: for each call whose entries a consumer holds the last of them, with the consumer and the first
-- ARGV[1]  most entries that may wait in the stream
-- ARGV[2]  '' where this was certainly not run before; else an entry that is older than those that it may have added
-- ARGV[3]  the epoch in which the order ids were leased; nothing is admitted in another, nor by another run of the server
-- ARGV[4]  the group
-- ARGV[5]  the caller's consumer; '' where it takes nothing now
-- ARGV[6…] for each purchase: user, voucher, order id
--
-- Returns  in one flat list: for each purchase a string, which is the entry where it is admitted, else `refused: ` and the code
-- (after it was admitted by the call before), `other epoch`, `no counter` (none that is exact), `claimed`, `sold out: ` and how
-- many entries wait, or `full`. Then the epoch, and `held` if the consumer holds the entries that were added here. Then
-- older ones that are delivered to it, for each: entry, order, user, voucher.
--
-- The keys of a sale and of a user are built from their ids and the shard that ends the name of KEYS[1], such as `:{3}`: all
-- are in one slot of a cluster, where they follow KEYS above. In the default key style there is no shard.
local shard = (string.match(KEYS[1], ':{%d+}$') or '') .. ':'
local epoch = redis.call('GET', KEYS[2]) or ''
local waiting = redis.call('XLEN', KEYS[1])
local most, again = tonumber(ARGV[1]), ARGV[2] ~= ''
-- In another epoch the id counter may have started over, and another node may have been given these ids. Another run of the
-- server than the epoch's (it was started anew, or took another's place) may have older data, which name the epoch all the
-- same, without claims and orders that were answered.
local is_current = epoch ~= '' and epoch == ARGV[3]
  and string.find(redis.call('INFO', 'server'), 'run_id:' .. string.match(epoch, '^%x*'), 1, true)
local sales, added, replies = {}, {}, {}

local function fields(entry)
  local of = {}
  for at = 1, #entry[2], 2 do of[entry[2][at]] = entry[2][at + 1] end
  return of['id'] or '', of['userId'] or '', of['voucherId'] or ''
end

-- Each sale: the key of its claims, its counter and what that says (false where it is not exact), who has a claim, and who gets
-- one here. One command for each sale instead of one for each purchase.
for at = 6, is_current and #ARGV or 0, 3 do
  local user, voucher = ARGV[at], ARGV[at + 1]
  local sale = sales[voucher]
  if not sale then
    local counter, claims = 'seckill:stock' .. shard .. voucher, 'seckill:order' .. shard .. voucher
    local stock = redis.call('SISMEMBER', KEYS[3], voucher) == 1 and tonumber(redis.call('GET', counter))
    sale = {counter = counter, claims = claims, stock = stock, users = {}, claimed = {}, admitted = {}}
    sales[voucher] = sale
  end
  sale.users[#sale.users + 1] = user
end
for _, sale in pairs(sales) do
  for at, claimed in ipairs(redis.call('SMISMEMBER', sale.claims, unpack(sale.users))) do
    sale.claimed[sale.users[at]] = claimed == 1
  end
end

-- Delivers what is older; when nothing else is left, the consumer can hold what is added.
local older, held = {}, false
local function catch_up()
  -- pcall: without the group nothing is delivered, and maintenance makes it.
  local read = redis.pcall('XREADGROUP', 'GROUP', ARGV[4], ARGV[5], 'COUNT', 64, 'STREAMS', KEYS[1], '>')
  local entries = read and read[1] and read[1][2] or {}
  held = not (read and read.err) and #entries < 64
  for _, entry in ipairs(entries) do
    for _, field in ipairs({entry[1], fields(entry)}) do
      older[#older + 1] = field
    end
  end
end

-- What the call before this one may have added: the entry, by order and user.
local present = {}
for _, entry in ipairs(again and redis.call('XRANGE', KEYS[1], '(' .. ARGV[2], '+') or {}) do
  local order, user = fields(entry)
  present[order .. ' ' .. user] = entry[1]
end

for at = 6, #ARGV, 3 do
  local user, voucher, order = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local entry = again and present[order .. ' ' .. user]
  local status = again and not entry and redis.call('HGET', 'seckill:place' .. shard .. user, order)
  local refused = status and string.match(status, '^r %d+ (.+)$')
  local reply
  if entry then
    reply = entry
  elseif refused then
    reply = 'refused: ' .. refused
  elseif not is_current then
    reply = 'other epoch'
  else
    local sale = sales[voucher]
    if not sale.stock then
      reply = 'no counter'
    elseif sale.claimed[user] then
      -- A user with a claim gets that answer even when nothing is left.
      reply = 'claimed'
    elseif sale.stock <= 0 then
      reply = 'sold out: ' .. waiting
    elseif waiting >= most then
      reply = 'full'
    else
      if #added == 0 and ARGV[5] ~= '' then
        catch_up()
      end
      sale.claimed[user], sale.stock = true, sale.stock - 1
      sale.admitted[#sale.admitted + 1] = user
      reply = redis.call('XADD', KEYS[1], '*', 'userId', user, 'voucherId', voucher, 'id', order)
      waiting = waiting + 1
      added[#added + 1] = reply
    end
  end
  replies[#replies + 1] = reply
end
for _, sale in pairs(sales) do
  if #sale.admitted > 0 then
    redis.call('SADD', sale.claims, unpack(sale.admitted))
    redis.call('DECRBY', sale.counter, #sale.admitted)
  end
end
-- pcall: after a loss of the stream alone its entries may begin below those of the records, until the epoch ends.
if held and not redis.pcall('XADD', KEYS[4], added[#added], 'consumer', ARGV[5], 'first', added[1]).err then
  redis.call('XGROUP', 'SETID', KEYS[1], ARGV[4], added[#added])
else
  held = false
end
replies[#replies + 1] = epoch
replies[#replies + 1] = held and 'held' or ''
for _, field in ipairs(older) do
  replies[#replies + 1] = field
end
return replies
