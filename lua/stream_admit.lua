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
-- ARGV[6…] for each sale: voucher, how many purchases, their users, their order ids
--
-- Returns  in one flat list: for each purchase a string, which is the entry where it is admitted, else `refused: ` and the code
-- (after it was admitted by the call before), `other epoch`, `no counter` (none that is exact), `claimed`, `sold out: ` and how
-- many entries wait, or `full`. Then the epoch, and `held` if the consumer holds the entries that were added here. Then
-- older ones that are delivered to it, for each: entry, order, user, voucher.
--
-- The keys of a sale and of a user are built from their ids and the shard that ends the name of KEYS[1], such as `:{3}`: all
-- are in one slot of a cluster, where they follow KEYS above. In the default key style there is no shard.
local call, argv = redis.call, ARGV
local shard = (string.match(KEYS[1], ':{%d+}$') or '') .. ':'
local epoch = call('GET', KEYS[2]) or ''
local waiting = call('XLEN', KEYS[1])
local most, again = tonumber(argv[1]), argv[2] ~= ''
-- In another epoch the id counter may have started over, and another node may have been given these ids. Another run of the
-- server than the epoch's (it was started anew, or took another's place) may have older data, which name the epoch all the
-- same, without claims and orders that were answered.
local is_current = epoch ~= '' and epoch == argv[3]
  and string.find(call('INFO', 'server'), 'run_id:' .. string.match(epoch, '^%x*'), 1, true)
local replies, replied = {}, 0
-- The first and the last entry that are added here.
local first, last

local function fields(entry)
  local of = {}
  for at = 1, #entry[2], 2 do of[entry[2][at]] = entry[2][at + 1] end
  return of['id'] or '', of['userId'] or '', of['voucherId'] or ''
end

-- Delivers what is older; when nothing else is left, the consumer can hold what is added.
local older, held, most_older = {}, false, 64
local function catch_up()
  -- pcall: without the group nothing is delivered, and maintenance makes it.
  local read = redis.pcall('XREADGROUP', 'GROUP', argv[4], argv[5], 'COUNT', most_older, 'STREAMS', KEYS[1], '>')
  local entries = read and read[1] and read[1][2] or {}
  held = not (read and read.err) and #entries < most_older
  for _, entry in ipairs(entries) do
    for _, field in ipairs({entry[1], fields(entry)}) do
      older[#older + 1] = field
    end
  end
end

-- What the call before this one may have added: the entry, by order and user.
local present = {}
for _, entry in ipairs(again and call('XRANGE', KEYS[1], '(' .. argv[2], '+') or {}) do
  local order, user = fields(entry)
  present[order .. ' ' .. user] = entry[1]
end

-- What became of a purchase in the call before this one; nil where that did not come to it.
local function before(user, order)
  if present[order .. ' ' .. user] then
    return present[order .. ' ' .. user]
  end
  local status = call('HGET', 'seckill:place' .. shard .. user, order)
  local refused = status and string.match(status, '^r %d+ (.+)$')
  return refused and 'refused: ' .. refused
end

local at = 6
while at <= #argv do
  local voucher, purchases = argv[at], tonumber(argv[at + 1])
  local users, orders = at + 2, at + 2 + purchases
  at = orders + purchases
  local counter, claims = 'seckill:stock' .. shard .. voucher, 'seckill:order' .. shard .. voucher
  -- Nil where it is not exact.
  local stock = is_current and call('SISMEMBER', KEYS[3], voucher) == 1 and tonumber(call('GET', counter)) or nil
  local claimed = stock and call('SMISMEMBER', claims, unpack(argv, users, orders - 1))
  -- Who gets a claim here: in a list, and to be looked up.
  local admitted, count, is_admitted = {}, 0, {}
  for offset = 0, purchases - 1 do
    local user, order = argv[users + offset], argv[orders + offset]
    local reply = again and before(user, order)
    if reply then
      -- Decided by the call before this one.
    elseif not is_current then
      reply = 'other epoch'
    elseif not stock then
      reply = 'no counter'
    elseif claimed[offset + 1] == 1 or is_admitted[user] then
      -- A user with a claim gets that answer even when nothing is left.
      reply = 'claimed'
    elseif count >= stock then
      reply = 'sold out: ' .. waiting
    elseif waiting >= most then
      reply = 'full'
    else
      if not first and argv[5] ~= '' then
        catch_up()
      end
      reply = call('XADD', KEYS[1], '*', 'userId', user, 'voucherId', voucher, 'id', order)
      first, last, waiting, count = first or reply, reply, waiting + 1, count + 1
      admitted[count], is_admitted[user] = user, true
    end
    replied = replied + 1
    replies[replied] = reply
  end
  if count > 0 then
    call('SADD', claims, unpack(admitted))
    call('DECRBY', counter, count)
  end
end
-- pcall: after a loss of the stream alone its entries may begin below those of the records, until the epoch ends.
if held and not redis.pcall('XADD', KEYS[4], last, 'consumer', argv[5], 'first', first).err then
  call('XGROUP', 'SETID', KEYS[1], argv[4], last)
else
  held = false
end
replies[replied + 1] = epoch
replies[replied + 2] = held and 'held' or ''
for _, field in ipairs(older) do
  replies[#replies + 1] = field
end
return replies
