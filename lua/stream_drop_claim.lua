-- Drops a claim for which the caller found neither an order nor an entry, unless an entry has come since.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  seckill:order:{voucherId}
-- ARGV[1]  the user
-- ARGV[2]  the voucher
-- ARGV[3]  the last entry that the caller has seen
-- ARGV[4]  most entries after it that are read here
--
-- Returns  1 if the claim is gone.
local entries = redis.call('XRANGE', KEYS[1], '(' .. ARGV[3], '+', 'COUNT', ARGV[4])
if #entries == tonumber(ARGV[4]) then
  return 0
end
for _, entry in ipairs(entries) do
  local of = {}
  for at = 1, #entry[2], 2 do of[entry[2][at]] = entry[2][at + 1] end
  if of['userId'] == ARGV[1] and of['voucherId'] == ARGV[2] then
    return 0
  end
end
redis.call('SREM', KEYS[2], ARGV[1])
return 1
