-- Lets the keys of ended sales expire, and keeps those of the others.
--
-- KEYS[1]  stream.orders.counters
-- KEYS[2]  stream.orders.claims
-- KEYS[3…] for each sale two: seckill:stock:{voucherId}, seckill:order:{voucherId}
-- ARGV[1]  their time to live, s
-- ARGV[2…] for each sale two: voucher, and 1 if it has ended, else 0
for at = 2, #ARGV, 2 do
  local voucher, ended = ARGV[at], ARGV[at + 1] == '1'
  if ended then
    -- Should it be reopened, both are built anew.
    redis.call('SREM', KEYS[1], voucher)
    redis.call('SREM', KEYS[2], voucher)
  end
  for key = at + 1, at + 2 do
    local ttl = redis.call('TTL', KEYS[key])
    if ended and ttl == -1 then
      redis.call('EXPIRE', KEYS[key], ARGV[1])
    elseif not ended and ttl >= 0 then
      redis.call('PERSIST', KEYS[key])
    end
  end
end
