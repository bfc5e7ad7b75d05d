-- Orders were cancelled: returns the stock and the claims of those that were admitted by the stock counter, and publishes
-- the event to every node.
--
-- KEYS[1]  seckill:stock:{voucherId}     the stock counter
-- KEYS[2]  seckill:order:{voucherId}     users who hold a claim
-- KEYS[3]  seckill:returned:{voucherId}  orders whose stock was returned
-- KEYS[4]  seckill:rebuild:{voucherId}   the token under which the counter is being rebuilt
-- ARGV[1]  the channel
-- ARGV[2]  the voucher's id
-- ARGV[3]  how long KEYS[3] is kept, seconds
-- ARGV[4…] order id, user id, order id, user id, …
--
-- Run twice for one order, it does nothing the second time: by then the user may hold a new claim. An
-- order that was not admitted by the counter has no claim, and the counter was never lowered for it.
local back = 0
for at = 4, #ARGV, 2 do
  if redis.call('SADD', KEYS[3], ARGV[at]) == 1 then
    back = back + redis.call('SREM', KEYS[2], ARGV[at + 1])
  end
end
redis.call('EXPIRE', KEYS[3], ARGV[3])
-- A rebuild that is reading the stock has to read it again.
redis.call('DEL', KEYS[4])
-- A missing counter is not created: its rebuild reads the stock from the database.
if back > 0 and redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('INCRBY', KEYS[1], back)
end
redis.call('PUBLISH', ARGV[1], ARGV[2])
return back
