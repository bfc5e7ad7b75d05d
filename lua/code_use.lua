-- Checks and uses up a sign-in code. It is valid once; wrong guesses are limited for each address and in all.
-- KEYS[1]  login:code:{phone}            the code
-- KEYS[2]  {login:code:{phone}}:guesses  wrong guesses at it, by address
-- ARGV[1]  the guess                           ARGV[2]  the address that it comes from
-- ARGV[3]  wrong guesses allowed to an address
-- ARGV[4]  wrong guesses allowed to all addresses together; then the code is deleted
-- Returns  1 when the guess was right (the code is deleted), 0 when it was wrong. An address that has guessed wrong too often
--          gets minus the seconds for which the code stays valid; its guess is not checked.
local code = redis.call('GET', KEYS[1])
if not code then
  return 0
end
local seconds = math.max(1, redis.call('TTL', KEYS[1]))
if tonumber(redis.call('HGET', KEYS[2], ARGV[2]) or 0) >= tonumber(ARGV[3]) then
  return -seconds
end
if code == ARGV[1] then
  redis.call('DEL', KEYS[1], KEYS[2])
  return 1
end
redis.call('HINCRBY', KEYS[2], ARGV[2], 1)
if redis.call('HINCRBY', KEYS[2], 'all', 1) >= tonumber(ARGV[4]) then
  redis.call('DEL', KEYS[1], KEYS[2])
else
  redis.call('EXPIRE', KEYS[2], seconds)
end
return 0
