-- Checks and uses up a sign-in code: it is valid once, and the wrong guesses at it are limited.
-- KEYS[1]  login:code:{phone}             the code
-- KEYS[2]  {login:code:{phone}}:attempts  wrong guesses at it
-- ARGV[1]  the guess              ARGV[2]  wrong guesses allowed at a code
-- Returns  1 when the guess was right (the code is gone), else 0.
local code = redis.call('GET', KEYS[1])
if code and code == ARGV[1] then
  redis.call('DEL', KEYS[1], KEYS[2])
  return 1
end
if code then
  if redis.call('INCR', KEYS[2]) >= tonumber(ARGV[2]) then
    redis.call('DEL', KEYS[1], KEYS[2])
  else
    redis.call('EXPIRE', KEYS[2], math.max(1, redis.call('TTL', KEYS[1])))
  end
end
return 0
