-- Stock was added to a sale: the gate that a Java node reads follows, and every node is told.
--
-- KEYS[1]  seckill:stock:{voucherId}
-- ARGV[1]  how many were added
-- ARGV[2]  the channel
-- ARGV[3]  the voucher's id
--
-- Where there is no gate, none is made: it would hold what was added and nothing of what was there.
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('INCRBY', KEYS[1], ARGV[1])
end
return redis.call('PUBLISH', ARGV[2], ARGV[3])
