-- Orders were cancelled: whoever held a place in the gate gives it back, and every node is told.
--
-- KEYS[1]  seckill:stock:{voucherId}     what the gate has left
-- KEYS[2]  seckill:order:{voucherId}     users who hold a place
-- KEYS[3]  seckill:returned:{voucherId}  orders whose place was given back
-- KEYS[4]  seckill:rebuild:{voucherId}   the token under which a gate is being built
-- ARGV[1]  the channel
-- ARGV[2]  the voucher's id
-- ARGV[3]  how long KEYS[3] is kept, seconds
-- ARGV[4…] order id, user id, order id, user id, …
--
-- Run twice for one order, it does nothing the second time: by then the user may hold a new place. An
-- order that did not come through the gate has no place there, and the gate's stock never fell for it.
local back = 0
for at = 4, #ARGV, 2 do
  if redis.call('SADD', KEYS[3], ARGV[at]) == 1 then
    back = back + redis.call('SREM', KEYS[2], ARGV[at + 1])
  end
end
redis.call('EXPIRE', KEYS[3], ARGV[3])
-- Whoever is counting what the database has left counts again.
redis.call('DEL', KEYS[4])
-- Where there is no gate, none is made: whoever builds one reads the stock from the database.
if back > 0 and redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('INCRBY', KEYS[1], back)
end
redis.call('PUBLISH', ARGV[1], ARGV[2])
return back
