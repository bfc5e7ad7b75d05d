-- Resolves entries that a consumer of another kind has acknowledged, with or without an order: does what follows from
-- that, and deletes them. XDEL answers 1 to one caller only, so it is done once.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.failures
-- KEYS[3]  stream.orders.counters
-- ARGV[1]  how long a refusal is kept, s
-- ARGV[2…] for each entry: entry, order, user, voucher, resolution, code
--
-- Resolutions: `ordered`; `already ordered`, the user keeps the claim because there is an order; `sold out`, the database
-- has nothing left; `refused`, the user may try again; `nothing`, it names no order.
--
-- Returns  how many were refused by this call.
--
-- The keys of a sale and of a user are built from their ids and the shard that ends the name of KEYS[1], such as `:{3}`: all
-- are in one slot of a cluster, where they follow KEYS above. In the default key style there is no shard.
local shard = (string.match(KEYS[1], ':{%d+}$') or '') .. ':'
local refused = 0

local function undo(order, user, voucher, resolution, code)
  local statuses = 'seckill:place' .. shard .. user
  redis.call('HSET', statuses, order, 'r ' .. voucher .. ' ' .. code)
  redis.call('EXPIRE', statuses, ARGV[1])
  if resolution ~= 'already ordered' then
    redis.call('SREM', 'seckill:order' .. shard .. voucher, user)
  end
  local stock = 'seckill:stock' .. shard .. voucher
  if resolution == 'sold out' then
    -- The counter admitted more than there is: it is wrong, and is rebuilt from the database.
    redis.call('SREM', KEYS[3], voucher)
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

for at = 2, #ARGV, 6 do
  local entry, order, user, voucher, resolution, code = unpack(ARGV, at, at + 5)
  if redis.call('XDEL', KEYS[1], entry) == 1 and resolution ~= 'nothing' then
    local status = redis.call('HGET', 'seckill:place' .. shard .. user, order)
    local stands = status and string.match(status, '^p %d+ (.+)$')
    local rebuild = 'seckill:rebuild' .. shard .. voucher
    if resolution == 'ordered' then
      redis.call('HDEL', 'seckill:place' .. shard .. user, order)
      -- A rebuild that began before this entry came has to count again, as in stream_acknowledge.lua.
      if is_after(entry, string.match(redis.call('GET', rebuild) or '', ' (.+)$') or '0-0') then
        redis.call('DEL', rebuild)
      end
    elseif not stands or stands == entry then
      -- Else another entry stands for the order, and decides.
      refused = refused + 1
      undo(order, user, voucher, resolution, code)
      redis.call('DEL', rebuild)
    end
  end
  redis.call('HDEL', KEYS[2], entry)
end
return refused
