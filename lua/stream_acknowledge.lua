-- Acknowledges entries, and does once what follows from the resolution of each. An entry that is gone was acknowledged before.
--
-- That an order is committed is true whoever says it. Every other resolution counts only while the entry is the caller's,
-- which holds it or has it pending under its name: a consumer that stood still may have been overtaken by one that is
-- committing the order just now.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.failures
-- KEYS[3]  stream.orders.dead
-- KEYS[4]  stream.orders.counters
-- KEYS[5]  stream.orders.held
-- ARGV[1]  the group
-- ARGV[2]  the caller's consumer
-- ARGV[3]  what our consumers' names begin with
-- ARGV[4]  how long a refusal is kept, s
-- ARGV[5]  most dead letters that are kept
-- ARGV[6]  how many records of what the caller holds end with this call
-- ARGV[7]  the voucher of the orders that are committed
-- ARGV[8]  how many are
-- ARGV[9…] these records; these orders' entries, the latest last; then, for each entry that is not committed: entry, order id,
--          user, voucher, resolution, code or error
--
-- Resolutions: `sold out`, the database has nothing left; `already ordered`, the user keeps the claim because
-- there is an order; `refused`, the user may try again; `dead letter`, likewise, and the entry goes to the dead-letter
-- stream.
--
-- Returns  how many were deleted by this call.
--
-- The keys of a sale and of a user are built from their ids and the shard that ends the name of KEYS[1], such as `:{3}`: all
-- are in one slot of a cluster, where they follow KEYS above. In the default key style there is no shard.
local shard = (string.match(KEYS[1], ':{%d+}$') or '') .. ':'
local ended, committed, sales = tonumber(ARGV[6]), tonumber(ARGV[8]), {}
local entries = {unpack(ARGV, 9 + ended, 8 + ended + committed)}

local function undo(entry, order, user, voucher, resolution, code)
  if resolution == 'dead letter' then
    local content = redis.call('XRANGE', KEYS[1], entry, entry)[1]
    local fields = content and content[2] or {}
    redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*', 'entry', entry, 'reason', code,
      unpack(fields, 1, math.min(#fields, 100)))
    code = 'ORDER_FAILED'
  end
  if user == '' or voucher == '' then
    return
  end
  if order ~= '' then
    local statuses = 'seckill:place' .. shard .. user
    redis.call('HSET', statuses, order, 'r ' .. voucher .. ' ' .. code)
    redis.call('EXPIRE', statuses, ARGV[4])
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

local function is_own(entry)
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], entry, entry, 1)[1]
  if pending then
    return pending[2] == ARGV[2]
  end
  local record = redis.call('XRANGE', KEYS[5], entry, '+', 'COUNT', 1)[1]
  return record and record[2][2] == ARGV[2] and not is_after(record[2][4], entry)
    and #redis.call('XRANGE', KEYS[1], entry, entry) == 1
end

-- The entry up to which, exclusively, nothing but acknowledged entries is in the stream; nil where that is not known: another
-- kind of consumer leaves what it acknowledges (stream_foreign_find.lua), and records without the group that marks them may
-- have been lost.
local function bound()
  -- pcall: they may not be there at all; an error has no elements.
  if #redis.pcall('XINFO', 'GROUPS', KEYS[5]) == 0 then
    return nil
  end
  -- pcall: the stream may be lost.
  local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
  for _, consumer in ipairs(consumers) do
    if string.sub(consumer[2], 1, #ARGV[3]) ~= ARGV[3] then
      return nil
    end
  end
  if consumers.err then
    return nil
  end
  local first = entries[committed]
  local record = redis.call('XRANGE', KEYS[5], '-', '+', 'COUNT', 1)[1]
  for _, other in ipairs({redis.call('XPENDING', KEYS[1], ARGV[1])[2] or first, record and record[2][4] or first}) do
    first = is_after(first, other) and other or first
  end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local of = {}
    for at = 1, #group, 2 do of[group[at]] = group[at + 1] end
    if of['name'] == ARGV[1] then
      return not is_after(first, of['last-delivered-id']) and first or nil
    end
  end
end

-- XDEL looks for each entry from the beginning of its node of the stream; so most go by one XTRIM.
local function delete()
  local from, deleted = 1, 0
  local before = committed > 0 and bound()
  if before then
    deleted = redis.call('XTRIM', KEYS[1], 'MINID', before)
    from = committed + 1
    while from > 1 and not is_after(before, entries[from - 1]) do from = from - 1 end
  end
  if from <= #entries then
    deleted = deleted + redis.call('XDEL', KEYS[1], unpack(entries, from))
  end
  return deleted
end

if committed > 0 then
  -- What follows from it may be done twice.
  redis.call('XACK', KEYS[1], ARGV[1], unpack(entries))
  sales[ARGV[7]] = entries[committed]
end
for at = 9 + ended + committed, #ARGV, 6 do
  local entry, order, user, voucher, resolution, code = unpack(ARGV, at, at + 5)
  if is_own(entry) then
    redis.call('XACK', KEYS[1], ARGV[1], entry)
    undo(entry, order, user, voucher, resolution, code)
    entries[#entries + 1] = entry
  end
  sales[voucher] = true
end
if ended > 0 then
  redis.call('XDEL', KEYS[5], unpack(ARGV, 9, 8 + ended))
end
local deleted = 0
if #entries > 0 then
  deleted = delete()
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
return deleted
