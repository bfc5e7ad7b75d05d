-- What became of entries: each is acknowledged, and what follows from it is done, once. XACK answers 1 to
-- one caller only, however often and by whomever an entry was delivered.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.failures
-- KEYS[3]  stream.orders.dead
-- ARGV[1]  the group
-- ARGV[2]  how long a refusal is remembered, s
-- ARGV[3]  most dead letters that are kept
-- ARGV[4…] for each entry: entry, order id, user, voucher, verdict, code
--
-- Verdicts: `ordered`; `full`, the database has nothing left; `refused`, the user keeps the claim because
-- there is an order; `freed`, the user may try again; `parked`, likewise, and the entry goes to the dead
-- letters.
--
-- Returns  how many were acknowledged here.
--
-- The keys of a sale and of a user are built from their ids, so this cannot run on a cluster.
local ordered, entries, sales, done = {}, {}, {}, 0

local function undo(entry, order, user, voucher, verdict, code)
  if verdict == 'parked' then
    local content = redis.call('XRANGE', KEYS[1], entry, entry)[1]
    local fields = content and content[2] or {}
    redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*', 'entry', entry, 'reason', code, unpack(fields))
    code = 'ORDER_FAILED'
  end
  if user == '' or voucher == '' then
    return
  end
  if order ~= '' then
    local place = 'seckill:place:' .. user
    redis.call('HSET', place, order, 'r ' .. voucher .. ' ' .. code)
    redis.call('EXPIRE', place, ARGV[2])
  end
  if verdict ~= 'refused' then
    redis.call('SREM', 'seckill:order:' .. voucher, user)
  end
  local stock = 'seckill:stock:' .. voucher
  if verdict == 'full' then
    -- The gate let in more than there is: it is wrong, and is built anew from the database.
    redis.call('DEL', stock)
  elseif redis.call('EXISTS', stock) == 1 then
    redis.call('INCR', stock)
  end
end

for at = 4, #ARGV, 6 do
  local entry, order, user, voucher, verdict, code = unpack(ARGV, at, at + 5)
  if verdict == 'ordered' then
    -- Nothing follows from it that may not be done twice.
    ordered[#ordered + 1] = entry
    redis.call('HDEL', 'seckill:place:' .. user, order)
  elseif redis.call('XACK', KEYS[1], ARGV[1], entry) == 1 then
    done = done + 1
    undo(entry, order, user, voucher, verdict, code)
  end
  entries[#entries + 1] = entry
  sales[voucher] = true
end
if #ordered > 0 then
  done = done + redis.call('XACK', KEYS[1], ARGV[1], unpack(ordered))
end
if #entries > 0 then
  redis.call('XDEL', KEYS[1], unpack(entries))
  redis.call('HDEL', KEYS[2], unpack(entries))
  -- Whoever is counting what is in flight counts again.
  for voucher in pairs(sales) do
    redis.call('DEL', 'seckill:rebuild:' .. voucher)
  end
end
return done
