-- Acquire the fenced lock, or re-enter it: as acquire.lua, with a counter of fencing tokens.
--
-- KEYS[1]  the lock's name
-- KEYS[2]  the counter
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  owner
-- ARGV[3]  hold count after this acquire
-- The last key and argument are those of generation.lua.
--
-- Returns {1, token} when the owner holds the lock, else {0, the key's PTTL} (-1: no expiry; -2: no
-- key).
--
-- A first acquire takes a new token, a re-entry (token 0 in the reply) keeps the one it has. A first
-- acquire that is sent twice takes two: tokens have to rise, not to be consecutive.
if outdated() then
  return {0, redis.call('PTTL', KEYS[1])}
end
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1
    or (ARGV[3] == '1' and redis.call('EXISTS', KEYS[1]) == 0) then
  -- The counter first: if it is of another type, this fails before anything is written.
  local token = 0
  if ARGV[3] == '1' then
    token = redis.call('INCR', KEYS[2])
  end
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[1])))
  return {1, token}
end
return {0, redis.call('PTTL', KEYS[1])}
