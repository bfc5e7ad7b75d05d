-- `SET key token NX PX lease`, which can be sent twice, and late.
--
-- KEYS[1]  the lock's key, a string
-- KEYS[2]  the end of this acquire: once it is set, the acquire does nothing
-- ARGV[1]  the owner's token, of this acquire alone
-- ARGV[2]  lease in milliseconds
--
-- Returns 1 when the key has this token, now or from an earlier sending, else 0.
if redis.call('EXISTS', KEYS[2]) == 1 then
  return 0
end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return 1
end
return redis.call('GET', KEYS[1]) == ARGV[1] and 1 or 0
