-- Ends the rebuild of a stock counter, unless an entry was acknowledged, or stock added or returned, in the meantime.
--
-- KEYS[1]  seckill:stock:{voucherId}
-- KEYS[2]  seckill:rebuild:{voucherId}
-- KEYS[3]  seckill:order:{voucherId}
-- KEYS[4]  the new set of claims; absent where there are none
-- ARGV[1]  the token of the rebuild
-- ARGV[2]  the stock
--
-- Returns  1 if the counter and the claims were replaced.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  redis.call('DEL', KEYS[4])
  return 0
end
redis.call('DEL', KEYS[2])
if redis.call('EXISTS', KEYS[4]) == 1 then
  redis.call('RENAME', KEYS[4], KEYS[3])
  redis.call('PERSIST', KEYS[3])
else
  redis.call('DEL', KEYS[3])
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
