-- A cancelled order gives its place back, once.
--
-- KEYS[1]  seckill:stock:{voucherId}
-- KEYS[2]  seckill:order:{voucherId}
-- KEYS[3]  seckill:rebuild:{voucherId}
-- KEYS[4]  seckill:returned:{orderId}
-- ARGV[1]  user
-- ARGV[2]  how long it is remembered that this order gave its place back, s
--
-- Returns  1 the first time, else 0.
if not redis.call('SET', KEYS[4], '1', 'NX', 'EX', ARGV[2]) then
  return 0
end
redis.call('SREM', KEYS[2], ARGV[1])
redis.call('DEL', KEYS[3])
-- Where there is no gate, none is made: the one that is built counts what the database has.
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('INCR', KEYS[1])
end
return 1
