-- Release one hold of the fair lock; with the last one the key is deleted and the first waiter
-- notified.
--
-- KEYS, ARGV[1..4]  see notify.lua and fair_queue.lua
-- ARGV[5]  lease in milliseconds, for the holds that remain
-- ARGV[6]  owner
-- ARGV[7]  hold count that remains, absolute
-- ARGV[8]  1: the owner leaves the queue too
-- The last key and argument are those of generation.lua.
--
-- Returns nil when this owner does not hold the lock, 0 when holds of its own remain, 1 when it
-- no longer holds the lock.
-- 3 instead of 1 if the user may not publish (see notify.lua).
if outdated() then
  return nil
end

local owner = ARGV[6]
local pruned = prune(nil)
local reply = nil
local changed = pruned

if redis.call('HEXISTS', KEYS[1], owner) == 1 then
  if tonumber(ARGV[7]) > 0 then
    redis.call('HSET', KEYS[1], owner, ARGV[7])
    redis.call('PEXPIRE', KEYS[1], ARGV[5])
    return 0
  end
  redis.call('DEL', KEYS[1])
  reply, changed = 1, true
end
if ARGV[8] == '1' then
  local queue = redis.call('LRANGE', KEYS[2], 0, -1)
  for i = 1, #queue do
    if queue[i] == owner then
      move_up(queue, i + 1)
      changed = true
    end
  end
  leave(owner)
end
if changed and redis.call('EXISTS', KEYS[1]) == 0 then
  notify_first()
end
return reply and released()
