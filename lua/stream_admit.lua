-- A place in a sale: stock, claim, and the entry that a consumer will turn into an order, all or nothing.
-- Sent twice with the same order id (a reply was lost), it counts once.
--
-- KEYS[1]  seckill:stock:{voucherId}
-- KEYS[2]  seckill:order:{voucherId}
-- KEYS[3]  stream.orders
-- KEYS[4]  seckill:place:{userId}
-- KEYS[5]  stream.orders.epoch
-- ARGV[1]  user
-- ARGV[2]  voucher
-- ARGV[3]  order id
-- ARGV[4]  most entries that may wait in the stream
-- ARGV[5]  how long a place is remembered, s
-- ARGV[6]  the epoch in which the order id was leased
--
-- Returns  {'admitted', entry, epoch}, {'refused', code}, {'other epoch'}, {'closed'}, {'claimed'}, {'sold
-- out', entries that wait} or {'full'}.
local place = redis.call('HGET', KEYS[4], ARGV[3])
if place then
  local entry = string.match(place, '^p %d+ (.+)$')
  if entry then
    return {'admitted', entry, redis.call('GET', KEYS[5]) or ''}
  end
  return {'refused', string.match(place, '^r %d+ (.+)$')}
end
local stock = tonumber(redis.call('GET', KEYS[1]))
local epoch = redis.call('GET', KEYS[5])
-- The counter of ids may have started over since, and another node may have been given this number.
if epoch ~= ARGV[6] then
  return {'other epoch'}
end
if not stock then
  return {'closed'}
end
-- Who holds a place is told so even when nothing is left.
if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then
  return {'claimed'}
end
local waiting = redis.call('XLEN', KEYS[3])
if stock <= 0 then
  return {'sold out', tostring(waiting)}
end
if waiting >= tonumber(ARGV[4]) then
  return {'full'}
end
redis.call('DECR', KEYS[1])
redis.call('SADD', KEYS[2], ARGV[1])
local entry = redis.call('XADD', KEYS[3], '*', 'userId', ARGV[1], 'voucherId', ARGV[2], 'id', ARGV[3])
redis.call('HSET', KEYS[4], ARGV[3], 'p ' .. ARGV[2] .. ' ' .. entry)
redis.call('EXPIRE', KEYS[4], ARGV[5])
return {'admitted', entry, epoch}
