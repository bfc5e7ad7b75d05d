-- Release the fair lock whichever owner holds it, and notify the first waiter.
--
-- KEYS, ARGV[1..4]  see notify.lua and fair_queue.lua
--
-- Returns 1 when it was held, else 0.
-- 3 instead of 1 if the user may not publish (see notify.lua).
prune(nil)
if redis.call('DEL', KEYS[1]) == 1 then
  notify_first()
  return released()
end
return 0
