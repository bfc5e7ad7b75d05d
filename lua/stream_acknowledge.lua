-- Acknowledges entries, and does once what follows from the resolution of each. XACK answers 1 to one caller only,
-- however often and to whichever consumer an entry was delivered.
--
-- That an order is committed is true whoever says it. Every other resolution counts only while the entry is pending under
-- the caller's name: a consumer that stood still may have been overtaken by one that is committing the order just now.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.failures
-- KEYS[3]  stream.orders.dead
-- KEYS[4]  stream.orders.counters
-- ARGV[1]  the group
-- ARGV[2]  the caller's consumer
-- ARGV[3]  how long a refusal is kept, s
-- ARGV[4]  most dead letters that are kept
-- ARGV[5]  the voucher of the orders that are committed
-- ARGV[6]  how many are
-- ARGV[7…] their entries, the latest last; then, for each entry that is not committed: entry, order id, user, voucher,
--          resolution, code or error
--
-- Resolutions: `sold out`, the database has nothing left; `already ordered`, the user keeps the claim because
-- there is an order; `refused`, the user may try again; `dead letter`, likewise, and the entry goes to the dead-letter
-- stream.
--
-- Returns  how many were acknowledged by this call.
--
-- The keys of a sale and of a user are built from their ids and the shard that ends the name of KEYS[1], such as `:{3}`: all
-- are in one slot of a cluster, where they follow KEYS above. In the default key style there is no shard.
local shard = (string.match(KEYS[1], ':{%d+}$') or '') .. ':'
local committed, sales, done = tonumber(ARGV[6]), {}, 0
local entries = {unpack(ARGV, 7, 6 + committed)}

local function undo(entry, order, user, voucher, resolution, code)
  if resolution == 'dead letter' then
    local content = redis.call('XRANGE', KEYS[1], entry, entry)[1]
    local fields = content and content[2] or {}
    redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[4], '*', 'entry', entry, 'reason', code,
      unpack(fields, 1, math.min(#fields, 100)))
    code = 'ORDER_FAILED'
  end
  if user == '' or voucher == '' then
    return
  end
  if order ~= '' then
    local statuses = 'seckill:place' .. shard .. user
    redis.call('HSET', statuses, order, 'r ' .. voucher .. ' ' .. code)
    redis.call('EXPIRE', statuses, ARGV[3])
  end
  if resolution ~= 'already ordered' then
    redis.call('SREM', 'seckill:order' .. shard .. voucher, user)
  end
  local stock = 'seckill:stock' .. shard .. voucher
  if resolution == 'sold out' then
    -- The counter admitted more than there is: it is wrong, and is rebuilt from the database. Until then a Java node's
    -- script, which needs it, admits nobody by it.
    redis.call('SREM', KEYS[4], voucher)
    if tonumber(redis.call('GET', stock) or 0) > 0 then
      redis.call('SET', stock, 0)
    end
  elseif redis.call('EXISTS', stock) == 1 then
    redis.call('INCR', stock)
  end
end

local function is_after(one, other)
  local ms, sequence = string.match(one, '^(%d+)-(%d+)$')
  local other_ms, other_sequence = string.match(other, '^(%d+)-(%d+)$')
  ms, other_ms = tonumber(ms), tonumber(other_ms)
  return ms > other_ms or ms == other_ms and tonumber(sequence) > tonumber(other_sequence)
end

-- Deletes the entries. XDEL looks for each of them from the beginning of its node of the stream. Where nothing but them and
-- pending ones is in the stream, those before the first pending one are cut off together: nothing that is not delivered yet,
-- and nothing that another kind of consumer acknowledged (stream_foreign_find.lua).
local function delete()
  local first = 1
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1])
  local bound = pending[2] or entries[committed]
  if bound and done > 0 and redis.call('XLEN', KEYS[1]) == pending[1] + done then
    redis.call('XTRIM', KEYS[1], 'MINID', bound)
    first = committed + 1
    while first > 1 and not is_after(bound, entries[first - 1]) do first = first - 1 end
  end
  if first <= #entries then
    redis.call('XDEL', KEYS[1], unpack(entries, first))
  end
end

if committed > 0 then
  -- What follows from it may be done twice.
  done = redis.call('XACK', KEYS[1], ARGV[1], unpack(entries))
  sales[ARGV[5]] = entries[committed]
end
for at = 7 + committed, #ARGV, 6 do
  local entry, order, user, voucher, resolution, code = unpack(ARGV, at, at + 5)
  if #redis.call('XPENDING', KEYS[1], ARGV[1], entry, entry, 1, ARGV[2]) == 1 then
    done = done + redis.call('XACK', KEYS[1], ARGV[1], entry)
    undo(entry, order, user, voucher, resolution, code)
    entries[#entries + 1] = entry
  end
  sales[voucher] = true
end
if #entries > 0 then
  delete()
  if redis.call('EXISTS', KEYS[2]) == 1 then
    redis.call('HDEL', KEYS[2], unpack(entries))
  end
  -- A rebuild that is counting what is in flight has to count again, unless the orders are committed, and their entries were
  -- there when it began: it asks the database which of those are.
  for voucher, last in pairs(sales) do
    local begun_at = string.match(redis.call('GET', 'seckill:rebuild' .. shard .. voucher) or '', ' (.+)$') or '0-0'
    if last == true or is_after(last, begun_at) then
      redis.call('DEL', 'seckill:rebuild' .. shard .. voucher)
    end
  end
end
return done
