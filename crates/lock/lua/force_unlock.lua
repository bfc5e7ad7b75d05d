-- Release the lock whichever owner holds it, and notify a waiter.
--
-- KEYS[1]     the lock's name
-- ARGV[1..3]  see notify.lua; the message is "0"
--
-- Returns 1 when it was held, else 0.
-- 3 instead of 1 if the user may not publish (see notify.lua).
if redis.call('DEL', KEYS[1]) == 1 then
  notify()
  return released()
end
return 0
