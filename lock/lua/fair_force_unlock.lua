-- Release the fair lock whichever owner holds it, and notify the first waiter.
--
-- KEYS, ARGV[1..4]  see notify.lua and fair_queue.lua
--
-- Returns 1 when it was held, else 0.
prune(nil)
if redis.call('DEL', KEYS[1]) == 1 then
  notify_first()
  return 1
end
return 0
