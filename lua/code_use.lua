-- Spend a sign-in code: it works once, and only a few guesses are allowed at it.
-- KEYS[1]  login:code:{phone}           the code
-- KEYS[2]  login:code:attempts:{phone}  wrong guesses at it
-- ARGV[1]  the guess       ARGV[2]  wrong guesses allowed
-- Returns  1 when the guess was right (the code is gone), else 0.
local code = redis.call('GET', KEYS[1])
if not code then
  return 0
end
if code == ARGV[1] then
  redis.call('DEL', KEYS[1], KEYS[2])
  return 1
end
local wrong = redis.call('INCR', KEYS[2])
if wrong >= tonumber(ARGV[2]) then
  redis.call('DEL', KEYS[1], KEYS[2])
else
  redis.call('EXPIRE', KEYS[2], math.max(1, redis.call('TTL', KEYS[1])))
end
return 0
