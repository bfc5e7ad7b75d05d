-- Opens a sale, in steps. It is closed between the first and the last. For a sale that is open and only counted again, the
-- last step alone is called, and it stays open.
--
-- KEYS[3]  seckill:stock:{voucherId}
-- KEYS[4]  seckill:order:{voucherId}
-- KEYS[5]  seckill:open:{voucherId}: the mark; or the name of an opener at work, which expires 10 s after its last call
-- ARGV[1]  the step; ARGV[2] its deadline, µs of this server's clock: a late call must not write what was read long ago
--   close  ARGV[3] the opener. Returns `yes`; `no` if the sale is open, or if another opener has it.
--   claim  ARGV[3] the opener; then users who have an order. Returns `yes`; `no` if the sale is no longer this opener's.
--   release  ARGV[3] the opener, which could not open the sale: the next opener need not wait until the name expires.
--   open   The sale's row is locked meanwhile. ARGV[3] the mark under which the arguments were read; ARGV[4] what KEYS[5] was:
--          the opener, or the mark; ARGV[5] when the keys expire, Unix time in s; ARGV[6] the row's stock; ARGV[7] voucher;
--          ARGV[8] the last entry that was read. Then three lists. ARGV[9] how many entries have no order, and for each of
--          them user and `voucher:order:entry`; how many users have an order, and these users; the users whose claim is void
--          unless they have a newer entry.
--          Returns `yes`; `no` if the mark or KEYS[5] has changed: then all steps are repeated.
local m = mark(false)
if clock() > tonumber(ARGV[2]) then return 'no' end
local counter, claims, open = KEYS[3], KEYS[4], KEYS[5]

-- The text in a key; false if there is none.
local function text(key)
  local value = redis.pcall('GET', key)
  return type(value) == 'string' and value
end

local is = text(open)
local whole = is == m and number(text(counter)) and redis.pcall('SISMEMBER', claims, m) == 1

if ARGV[1] == 'close' then
  -- An opener's name has 10 s to live at most. If it has more, somebody else wrote it, or the clock was stepped back.
  local left = redis.call('PTTL', open)
  local by_another = is and not string.find(is, ' ', 1, true) and is ~= ARGV[3] and left >= 0 and left <= 10000
  if whole or by_another then return 'no' end
  redis.call('SET', open, ARGV[3], 'PX', 10000)
  redis.call('UNLINK', claims)
  redis.call('SADD', claims, ARGV[3])
  -- A Java node's script needs a counter; at 0 it refuses buyers.
  redis.call('SET', counter, 0)
  return 'yes'
end

if ARGV[1] == 'claim' then
  if is ~= ARGV[3] then return 'no' end
  redis.call('PEXPIRE', open, 10000)
  if #ARGV > 3 then redis.call('SADD', claims, unpack(ARGV, 4)) end
  return 'yes'
end

if ARGV[1] == 'release' then
  if is == ARGV[3] then redis.call('DEL', open) end
  return 'yes'
end

if m ~= ARGV[3] or is ~= ARGV[4] or (is == m and not whole) then return 'no' end
if redis.pcall('SREM', claims, is) ~= 1 then return 'no' end  -- the claims were deleted meanwhile
local voucher, undecided, waits = ARGV[7], 0, {}
local function wait(user)
  undecided = undecided + 1
  waits[user] = true
  redis.call('SADD', claims, user)
end
local at = 10
for _ = 1, tonumber(ARGV[9]) do
  -- An entry that was resolved meanwhile has given its unit back, and does not count.
  if names(redis.call('HGET', P, ARGV[at]), ARGV[at + 1]) then wait(ARGV[at]) end
  at = at + 2
end
local newer = redis.call('XRANGE', S, '(' .. ARGV[8], '+')
take_in(newer)
for _, entry in ipairs(newer) do
  local user, of = order_of(entry)
  if of == voucher then wait(user) end
end
local ordered = tonumber(ARGV[at])
for user = at + 1, at + ordered do redis.call('SADD', claims, ARGV[user]) end
for user = at + ordered + 1, #ARGV do
  if not waits[ARGV[user]] then redis.call('SREM', claims, ARGV[user]) end
end
redis.call('SADD', claims, m)
-- It may be below 0: then some of the undecided orders will be refused, and the units that they give back are not sold.
redis.call('SET', counter, ARGV[6] - undecided)
redis.call('SET', open, m)
for key = 3, 5 do redis.call('EXPIREAT', KEYS[key], ARGV[5]) end
return 'yes'
