-- Counts a sign-in code that is sent to a phone, unless the phone's limit is reached, and stores it.
-- KEYS[1]  login:code:{phone}             the code
-- KEYS[2]  {login:code:{phone}}:sends     codes sent to it in the current window
-- KEYS[3]  {login:code:{phone}}:attempts  wrong guesses at the current code
-- ARGV[1]  the code; - to count only       ARGV[2]  its time to live, in seconds
-- ARGV[3]  sends a phone; - to store only  ARGV[4]  the window they are counted in, in seconds
-- Returns  0 when it was done, else the seconds until another may be sent.
if ARGV[3] ~= '-' then
  local count = redis.call('INCR', KEYS[2])
  if count == 1 then
    redis.call('EXPIRE', KEYS[2], ARGV[4])
  end
  if count > tonumber(ARGV[3]) then
    return math.max(1, redis.call('TTL', KEYS[2]))
  end
end
if ARGV[1] ~= '-' then
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
  redis.call('DEL', KEYS[3])
end
return 0
