-- Admits a buyer of a sale on `memory-queue`: takes one from the stock counter, and claims it for the buyer.
-- KEYS[1]  seckill:stock:{voucherId}, the stock counter      KEYS[2]  seckill:order:{voucherId}, the users with a claim
-- ARGV[1]  the user
-- Returns  'admitted'; 'claimed' if the user has a claim; 'sold out'; 'closed' without a counter: it is set again in a moment.
local stock = tonumber(redis.call('GET', KEYS[1]))
if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then
  return 'claimed'
end
if not stock then
  return 'closed'
end
if stock < 1 then
  return 'sold out'
end
redis.call('DECR', KEYS[1])
redis.call('SADD', KEYS[2], ARGV[1])
local kept = redis.call('PTTL', KEYS[1])
if kept > 0 then
  redis.call('PEXPIRE', KEYS[2], kept)
end
return 'admitted'
