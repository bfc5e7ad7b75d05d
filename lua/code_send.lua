-- Store a new sign-in code, unless this phone asked too often.
-- KEYS[1]  login:code:{phone}           the code
-- KEYS[2]  login:code:sends:{phone}     codes sent in the current window
-- KEYS[3]  login:code:attempts:{phone}  wrong guesses at the current code
-- ARGV[1]  the code        ARGV[2]  its time to live, in seconds
-- ARGV[3]  sends allowed   ARGV[4]  the window they are counted in, in seconds
-- Returns  0 when the code was stored, else the seconds until another may be sent.
local sends = redis.call('INCR', KEYS[2])
if sends == 1 then
  redis.call('EXPIRE', KEYS[2], ARGV[4])
elseif sends > tonumber(ARGV[3]) then
  return math.max(1, redis.call('TTL', KEYS[2]))
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
redis.call('DEL', KEYS[3])
return 0
