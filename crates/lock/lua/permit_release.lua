-- Release leased permits that were acquired together, and notify waiters.
--
-- KEYS[1]     the semaphore: a string, the number of permits that are free
-- KEYS[2]     the acquired permits: a sorted set of ids by the time at which each expires (Unix, ms)
-- ARGV[1..3]  see notify.lua; the message is the number of free permits
-- ARGV[4]     number of the first permit
-- ARGV[5]     number of the last
-- ARGV[6]     the first 12 bytes of their ids, see permit_acquire.lua
--
-- Returns 1 when all were released in time, 0 when the lease of one had ended or it was not acquired
-- (the others, and expired ones that are still in the set, are released all the same).
-- 2 more: the user may not publish, so that nobody was notified.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local freed, in_time = 0, 1
for i = ARGV[4], ARGV[5] do
  local id = ARGV[6] .. struct.pack('>I4', i)
  local expires = redis.call('ZSCORE', KEYS[2], id)
  if not expires or tonumber(expires) <= now then
    in_time = 0
  end
  freed = freed + redis.call('ZREM', KEYS[2], id)
end
if freed == 0 then
  return 0
end
local free = redis.call('INCRBY', KEYS[1], freed)
if free > 0 then
  notify('', tostring(free))
end
return in_time + (denied and 2 or 0)
