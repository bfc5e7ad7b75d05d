-- Increments or decrements a counter of the current window: what a client address did, or the codes sent to a phone.
-- KEYS[1]  the counter
-- ARGV[1]  how many are allowed in a window
-- ARGV[2]  the window, in seconds
-- ARGV[3]  1 to count one more, -1 to take one back
-- Returns  0 while the limit is kept, else the seconds until the window ends.
if ARGV[3] == '-1' then
  -- A window that has ended gets no new counter, which would never expire.
  if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('DECR', KEYS[1])
  end
  return 0
end
local count = redis.call('INCR', KEYS[1])
if count == 1 then
  redis.call('EXPIRE', KEYS[1], ARGV[2])
end
return count > tonumber(ARGV[1]) and math.max(1, redis.call('TTL', KEYS[1])) or 0
