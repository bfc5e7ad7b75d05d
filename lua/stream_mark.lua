-- The common head of the stream's scripts and of id_lease.lua: finds the mark under which this server runs them.
--
-- KEYS[1]  stream.orders, with the group g1; and the group `seckill`, which nobody reads: its position is where we joined
-- KEYS[2]  stream.orders.pending, a hash: for each user, `voucher:order:entry` of each pending order, separated by spaces;
--          and the fields `mark` and `ids`: the counters of order ids that began under the mark
--
-- The mark is `<replication id> <since, µs> <join>`. It says that this hash, and what was counted under the mark, belong to
-- the data of this master: Redis draws a new replication id when it starts, and when a replica is promoted. `join` is the
-- last entry before we joined. Of the entries up to it only the pending ones count: a Java node acknowledged the others.
local S, P = KEYS[1], KEYS[2]

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The text as a number that Redis can count up and down; nil if it is none.
local function number(text)
  if text == '0' or text and #text < 16 and string.find(text, '^%-?[1-9]%d*$') then return tonumber(text) end
end

local function field(info, name)
  for at = 1, #info, 2 do
    if info[at] == name then return info[at + 1] end
  end
end

-- Whether a field of the hash names this order.
local function names(value, order)
  return value and string.find(' ' .. value .. ' ', ' ' .. order .. ' ', 1, true) ~= nil
end

-- The user, the voucher and `voucher:order:entry` of an entry; nil if it names no order.
local function order_of(entry)
  local fields = entry[2]
  local user, voucher, id = field(fields, 'userId'), field(fields, 'voucherId'), field(fields, 'id')
  for _, number in ipairs({user or '', voucher or '', id or ''}) do
    if not string.find(number, '^[1-9]%d*$') then return end
  end
  return user, voucher, voucher .. ':' .. id .. ':' .. entry[1]
end

-- Adds entries to the hash. They are in the stream, so they are not resolved.
local function take_in(entries)
  for _, entry in ipairs(entries) do
    local user, _, order = order_of(entry)
    local value = user and redis.call('HGET', P, user)
    if user and not names(value, order) then
      redis.call('HSET', P, user, value and value .. ' ' .. order or order)
    end
  end
end

-- The entries up to `join` that are pending.
local function pending_before(join)
  local found = {}
  for _, pending in ipairs(redis.call('XPENDING', S, 'g1', '-', join, 10000)) do
    found[#found + 1] = redis.call('XRANGE', S, pending[1], pending[1])[1]
  end
  return found
end

local function group(name)
  local groups = redis.pcall('XINFO', 'GROUPS', S)
  for _, info in ipairs(groups) do
    if field(info, 'name') == name then return info, true end
  end
  return nil, not groups.err
end

-- The mark and its `join`. A new mark begins if there is none, if another server is the master, if the clock was stepped back
-- or if the stream or its group is `lost`. Then the hash is rebuilt from the stream.
local function mark(lost)
  local info = redis.call('INFO', 'replication')
  if not string.find(info, 'role:master', 1, true) then
    redis.call('HDEL', P, '')  -- fails with READONLY, as every write to a replica
  end
  local server = string.match(info, 'master_replid:(%x+)')
  local text = redis.pcall('HGET', P, 'mark')
  if type(text) == 'table' then text = nil end  -- no hash: somebody else wrote the key
  local of, since, join
  if text then of, since, join = string.match(text, '^(%x+) (%d+) (%S+)$') end
  if of == server and tonumber(since) <= clock() and not lost then return text, join end
  local existing, exists = group('g1')
  local joined = group('seckill')
  if not exists then
    join = '0-0'
  elseif joined then
    join = field(joined, 'last-delivered-id')
  elseif not join then
    local last = field(redis.call('XINFO', 'STREAM', S), 'last-generated-id')
    join = existing and field(existing, 'last-delivered-id') or last
  end
  redis.call('DEL', P)
  if not existing then redis.call('XGROUP', 'CREATE', S, 'g1', join, 'MKSTREAM') end
  if not joined then redis.call('XGROUP', 'CREATE', S, 'seckill', join) end
  take_in(pending_before(join))
  local after = join
  repeat
    local page = redis.call('XRANGE', S, '(' .. after, '+', 'COUNT', 1000)
    take_in(page)
    if #page > 0 then after = page[#page][1] end
  until #page == 0
  text = string.format('%s %.0f %s', server, clock(), join)
  redis.call('HSET', P, 'mark', text)
  return text, join
end
