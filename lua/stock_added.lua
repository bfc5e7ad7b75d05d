-- Stock was added to a sale: updates the stock counter, and publishes the event to every node.
--
-- KEYS[1]  seckill:stock:{voucherId}
-- KEYS[2]  seckill:rebuild:{voucherId}
-- KEYS[3]  stream.orders.counters: sales whose counter is exact
-- ARGV[1]  how many were added
-- ARGV[2]  the channel
-- ARGV[3]  the voucher's id
-- ARGV[4]  1 where the sale admits by the counter (strategy `stream`), so that it must be exact, else 0
--
if ARGV[4] == '1' then
  -- It is rebuilt from the database, which has what was added. Adding it here would count it twice if the
  -- counter was rebuilt just now. Until then a Java node's script goes on with what was there before.
  redis.call('SREM', KEYS[3], ARGV[3])
  redis.call('DEL', KEYS[2])
elseif redis.call('EXISTS', KEYS[1]) == 1 then
  -- A missing counter is not created: it would hold what was added without what was there before.
  redis.call('INCRBY', KEYS[1], ARGV[1])
end
return redis.call('PUBLISH', ARGV[2], ARGV[3])
