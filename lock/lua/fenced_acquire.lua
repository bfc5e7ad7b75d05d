-- Acquire the fenced lock, or re-enter it: as acquire.lua, with a counter of fencing tokens.
--
-- KEYS[1]  the lock's name
-- KEYS[2]  the counter
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  owner
-- ARGV[3]  hold count after this acquire
-- ARGV[4]  how long the counter is kept after its last use, in milliseconds; 0: for good
--
-- Returns {1, token} when the owner holds the lock, else {0, the key's PTTL} (-1: no expiry; -2: no
-- key).
--
-- A first acquire takes a new token, a re-entry (token 0 in the reply) keeps the one it has. A first
-- acquire that is sent twice takes two: tokens have to rise, not to be consecutive.
--
-- With a counter that expires, a token is never lower than the clock in microseconds, which no counter
-- that rises with each acquire catches up with: so a new counter begins above all earlier tokens.
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1
    or (ARGV[3] == '1' and redis.call('EXISTS', KEYS[1]) == 0) then
  -- The counter first: if it is of another type, this fails before anything is written.
  local token = 0
  if ARGV[3] == '1' then
    token = redis.call('INCR', KEYS[2])
    if ARGV[4] ~= '0' then
      local time = redis.call('TIME')
      local clock = time[1] * 1000000 + time[2]
      if token < clock then
        token = clock
        -- Not as a number, which would be written as 1.7e+15.
        redis.call('SET', KEYS[2], string.format('%.0f', token))
      end
      redis.call('PEXPIRE', KEYS[2], ARGV[4])
    end
  end
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return {1, token}
end
return {0, redis.call('PTTL', KEYS[1])}
