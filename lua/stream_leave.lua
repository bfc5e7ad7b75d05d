-- Removes a consumer that stops, unless entries are pending under its name: those would be deleted with it.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.consumers
-- ARGV[1]  the group
-- ARGV[2]  the consumer
--
-- Returns  1 if it was removed. Otherwise other nodes soon take over its pending entries.
redis.call('ZREM', KEYS[2], ARGV[2])
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then
  return 0
end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
