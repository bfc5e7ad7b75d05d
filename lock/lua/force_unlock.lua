-- Release the lock whichever owner holds it, and notify a waiter.
--
-- KEYS[1]     the lock's name
-- ARGV[1..3]  see notify.lua; the message is "0"
--
-- Returns 1 when it was held, else 0.
if redis.call('DEL', KEYS[1]) == 1 then
  notify()
  return 1
end
return 0
