-- Removes a consumer that stops, unless it holds entries, or has some pending under its name: those would be deleted with it.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.consumers
-- KEYS[3]  stream.orders.held
-- ARGV[1]  the group
-- ARGV[2]  the consumer
--
-- Returns  1 if it was removed. Otherwise other nodes soon take its entries over.
redis.call('ZREM', KEYS[2], ARGV[2])
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then
  return 0
end
for _, record in ipairs(redis.call('XRANGE', KEYS[3], '-', '+')) do
  if record[2][2] == ARGV[2] then
    return 0
  end
end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
