-- Take the fenced lock, or take it once more. As acquire.lua, with a counter beside the lock.
--
-- KEYS[1]  the lock's name
-- KEYS[2]  the counter of its tokens
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  owner
-- ARGV[3]  depth the owner will have reached
--
-- Returns {1, token} when the owner holds the lock, else {0, the key's PTTL} (-1: no expiry; -2: the
-- key is gone).
--
-- A first acquire takes a new token, a re-entry (token 0 in the reply) goes on under the one it
-- has. A first acquire that is sent twice takes two: tokens have to rise, not to be dense.
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1
    or (ARGV[3] == '1' and redis.call('EXISTS', KEYS[1]) == 0) then
  -- The counter first: should it be of another type, nothing has been written yet.
  local token = 0
  if ARGV[3] == '1' then
    token = redis.call('INCR', KEYS[2])
  end
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return {1, token}
end
return {0, redis.call('PTTL', KEYS[1])}
