-- Stock was added to a sale: the gate in Redis follows, and every node is told.
--
-- KEYS[1]  seckill:stock:{voucherId}
-- KEYS[2]  seckill:rebuild:{voucherId}
-- ARGV[1]  how many were added
-- ARGV[2]  the channel
-- ARGV[3]  the voucher's id
-- ARGV[4]  1 where the gate admits (the rung `stream`), so that it must be exact, else 0
--
if ARGV[4] == '1' then
  -- Built anew from the database, which has what was added. Counting it in would count it twice if the
  -- gate was built just now.
  redis.call('DEL', KEYS[1], KEYS[2])
elseif redis.call('EXISTS', KEYS[1]) == 1 then
  -- Where there is no gate, none is made: it would hold what was added and nothing of what was there.
  redis.call('INCRBY', KEYS[1], ARGV[1])
end
return redis.call('PUBLISH', ARGV[2], ARGV[3])
