-- Writes the claims of buyers whose entries are in flight, while nothing was refused since the caller read them: a refusal
-- removes the token of the rebuild.
--
-- KEYS[1]  seckill:rebuild:{voucherId}
-- KEYS[2]  seckill:order:{voucherId}
-- ARGV[1]  the token of the rebuild
-- ARGV[2…] users
--
-- Returns  1 if they were written.
if string.sub(redis.call('GET', KEYS[1]) or '', 1, #ARGV[1]) ~= ARGV[1] then
  return 0
end
redis.call('SADD', KEYS[2], unpack(ARGV, 2))
return 1
