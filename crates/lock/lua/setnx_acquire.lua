-- `SET key token NX PX lease`, safe to be sent twice and to arrive late.
--
-- KEYS[1]  the lock's key, a string
-- ARGV[1]  the token, which no other acquire has
-- ARGV[2]  lease in milliseconds
-- The last key and argument are those of generation.lua.
--
-- Returns 1 when the key has this token, now or from an earlier sending, else 0.
if outdated() then
  return 0
end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return 1
end
return redis.call('GET', KEYS[1]) == ARGV[1] and 1 or 0
