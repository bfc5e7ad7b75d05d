-- Takes entries out of the stream whose orders are decided in the database. Of a refused order it gives back the claim and the
-- unit of stock. S, P, mark and names are those of stream_mark.lua, which is joined in front.
--
-- KEYS[3]   stream.orders.dead
-- KEYS[4…]  four keys for each entry that did not become an order: counter, claims, open mark, seckill:refused:{orderId}
-- ARGV[1]   the mark under which the entries were read
-- ARGV[2]   how many entries became orders. For each of them three arguments follow: entry, user, `voucher:order:entry`
-- After these, for each other entry, eight arguments follow: entry, user, voucher, order, outcome, code, whether the user has an
--   order, error.
--   Outcome: `refused`, `sold out`, or `dead`, an entry that names no order. With an error, the entry's fields are kept as a
--   dead letter.
--
-- Giving back fails without an error where a sale's keys are of another type (pcall): such a sale is counted anew anyway.
-- Sent twice, an entry counts once: for the call whose XDEL finds it. Returns how many entries this call has found. Under
-- another mark it does nothing and returns -1; the entries are then delivered again.
if mark(false) ~= ARGV[1] then return -1 end

local function forget(user, order)
  local value = redis.call('HGET', P, user)
  if not names(value, order) then return value end
  local left = {}
  for other in string.gmatch(value, '%S+') do
    if other ~= order then left[#left + 1] = other end
  end
  value = table.concat(left, ' ')
  if value == '' then redis.call('HDEL', P, user) else redis.call('HSET', P, user, value) end
  return value
end

local ordered = tonumber(ARGV[2])
local entries = {}
local users = {}
local orders = {}
for at = 3, 2 + 3 * ordered, 3 do
  entries[#entries + 1] = ARGV[at]
  users[#users + 1] = ARGV[at + 1]
  orders[#orders + 1] = ARGV[at + 2]
end
local done = 0
if ordered > 0 then
  redis.call('XACK', S, 'g1', unpack(entries))
  done = redis.call('XDEL', S, unpack(entries))
  local values = redis.call('HMGET', P, unpack(users))
  -- The users whose only pending order this is.
  local single = {}
  for at, value in ipairs(values) do
    if value == orders[at] then single[#single + 1] = users[at] else forget(users[at], orders[at]) end
  end
  if #single > 0 then redis.call('HDEL', P, unpack(single)) end
end

-- Writes a dead letter: the entry's fields (of very many only the first), its id and the error.
local function bury(fields, entry, detail)
  local letter = {unpack(fields, 1, math.min(#fields, 2000))}
  for _, value in ipairs({'entry', entry, 'error', detail}) do letter[#letter + 1] = value end
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*', unpack(letter))
end

local key = 4
for at = 3 + 3 * ordered, #ARGV, 8 do
  local entry, user, voucher, id, outcome, code, has_order, detail = unpack(ARGV, at, at + 7)
  local counter, claims, open, refused = unpack(KEYS, key, key + 3)
  key = key + 4
  redis.call('XACK', S, 'g1', entry)
  local found = detail ~= '' and redis.call('XRANGE', S, entry, entry)[1]
  -- Whether this call is the one that takes the entry out.
  local one = redis.call('XDEL', S, entry) == 1
  local left = forget(user, voucher .. ':' .. id .. ':' .. entry) or ''
  if one then
    done = done + 1
    if found then bury(found[2], entry, detail) end
    if outcome ~= 'dead' then
      redis.call('SET', refused, user .. ' ' .. code, 'EX', 86400)
      -- The claim stays if another pending order of this sale needs it.
      if has_order == '0' and not string.find(' ' .. left, ' ' .. voucher .. ':', 1, true) then
        redis.pcall('SREM', claims, user)
      end
      if outcome == 'sold out' then
        -- The counter was too high: the sale is closed until it is counted.
        redis.call('DEL', open)
        redis.call('SET', counter, 0, 'KEEPTTL')
      elseif redis.pcall('GET', open) == ARGV[1] then
        redis.pcall('INCR', counter)
      end
    end
  end
end
return done
