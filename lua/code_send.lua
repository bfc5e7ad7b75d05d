-- Stores a new sign-in code, unless the rate limit of the phone or of the address is reached.
-- KEYS[1]  login:code:{phone}             the code
-- KEYS[2]  login:code:sends:{phone}       codes sent to it in the current window
-- KEYS[3]  login:code:attempts:{phone}    wrong guesses at the current code
-- KEYS[4]  login:code:sends:from:{addr}   codes requested by this address in the current window
-- ARGV[1]  the code          ARGV[2]  its time to live, in seconds
-- ARGV[3]  sends a phone     ARGV[4]  the window they are counted in, in seconds
-- ARGV[5]  sends an address; 0 for no limit
-- Returns  0 when the code was stored, else the seconds until another may be sent.
local function wait(key, limit)
  local count = redis.call('INCR', key)
  if count == 1 then
    redis.call('EXPIRE', key, ARGV[4])
  end
  return count > limit and math.max(1, redis.call('TTL', key)) or 0
end

local by_address = tonumber(ARGV[5])
local seconds = by_address > 0 and wait(KEYS[4], by_address) or 0
if seconds == 0 then
  seconds = wait(KEYS[2], tonumber(ARGV[3]))
end
if seconds == 0 then
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
  redis.call('DEL', KEYS[3])
end
return seconds
