-- Checks and uses up a sign-in code: it is valid once, and the wrong guesses at it and those from one address are limited.
-- KEYS[1]  login:code:{phone}               the code
-- KEYS[2]  login:code:attempts:{phone}      wrong guesses at it
-- KEYS[3]  login:code:guesses:from:{addr}   wrong guesses from this address in the current window
-- ARGV[1]  the guess              ARGV[2]  wrong guesses allowed at a code
-- ARGV[3]  wrong guesses allowed from an address; 0 for no limit
-- ARGV[4]  the window those are counted in, in seconds
-- Returns  1 when the guess was right (the code is gone), 0 when it was wrong, or minus the seconds
--          until this address may guess again.
local by_address = tonumber(ARGV[3])
if by_address > 0 and tonumber(redis.call('GET', KEYS[3]) or '0') >= by_address then
  return -math.max(1, redis.call('TTL', KEYS[3]))
end
local code = redis.call('GET', KEYS[1])
if code and code == ARGV[1] then
  redis.call('DEL', KEYS[1], KEYS[2])
  return 1
end
if by_address > 0 and redis.call('INCR', KEYS[3]) == 1 then
  redis.call('EXPIRE', KEYS[3], ARGV[4])
end
if code then
  if redis.call('INCR', KEYS[2]) >= tonumber(ARGV[2]) then
    redis.call('DEL', KEYS[1], KEYS[2])
  else
    redis.call('EXPIRE', KEYS[2], math.max(1, redis.call('TTL', KEYS[1])))
  end
end
return 0
