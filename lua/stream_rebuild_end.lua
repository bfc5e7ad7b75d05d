-- Ends the rebuild of a stock counter, unless what it read has changed in the meantime: an order was refused, an entry that
-- it does not know was committed, or stock was added or returned; each of these removes its token. Puts
-- the new number in the place of the old, which another node may have admitted by until this moment.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.epoch
-- KEYS[3]  stream.orders.counters        sales whose counter is exact
-- KEYS[4]  stream.orders.claims          sales whose claims are complete
-- KEYS[5]  seckill:stock:{voucherId}
-- KEYS[6]  seckill:order:{voucherId}
-- KEYS[7]  seckill:returned:{voucherId}  cancelled orders whose stock was returned
-- KEYS[8]  seckill:rebuild:{voucherId}
-- KEYS[9]  seckill:rebuild:{voucherId}:claims
-- ARGV[1]  the token of the rebuild
-- ARGV[2]  the epoch in which it began
-- ARGV[3]  the voucher
-- ARGV[4]  the stock in the database, less what is in flight up to an entry
-- ARGV[5]  that entry
-- ARGV[6]  most entries after it that are read here
-- ARGV[7]  1 if entries of this sale after it are counted here, though they may be committed already
-- ARGV[8]  how long KEYS[7] is kept, s
-- ARGV[9…] cancelled orders that the stock above contains, and that Redis was not told: order, and the user whose claim
--          goes, or '' where it stays
--
-- Returns  `done`; `again`, to be begun anew; `moved`: further entries have come, and are to be read.
if string.sub(redis.call('GET', KEYS[8]) or '', 1, #ARGV[1]) ~= ARGV[1] or redis.call('GET', KEYS[2]) ~= ARGV[2] then
  return 'again'
end
local entries = redis.call('XRANGE', KEYS[1], '(' .. ARGV[5], '+', 'COUNT', ARGV[6])
local function moved()
  redis.call('SET', KEYS[8], ARGV[1] .. ' ' .. entries[#entries][1], 'KEEPTTL')
  return 'moved'
end
if #entries == tonumber(ARGV[6]) then
  return moved()
end
local users = {}
for _, entry in ipairs(entries) do
  local of = {}
  for at = 1, #entry[2], 2 do of[entry[2][at]] = entry[2][at + 1] end
  if of['voucherId'] == ARGV[3] and of['userId'] then
    users[#users + 1] = of['userId']
  end
end
if #users > 0 and ARGV[7] ~= '1' then
  return moved()
end
for at = 9, #ARGV, 2 do
  redis.call('SADD', KEYS[7], ARGV[at])
  redis.call('EXPIRE', KEYS[7], ARGV[8])
  if ARGV[at + 1] ~= '' then
    redis.call('SREM', KEYS[6], ARGV[at + 1])
  end
end
for _, user in ipairs(users) do
  redis.call('SADD', KEYS[6], user)
end
redis.call('SET', KEYS[5], string.format('%d', ARGV[4] - #users))
redis.call('SADD', KEYS[3], ARGV[3])
redis.call('SADD', KEYS[4], ARGV[3])
redis.call('DEL', KEYS[8])
if redis.call('GET', KEYS[9]) == ARGV[1] then
  redis.call('DEL', KEYS[9])
end
return 'done'
