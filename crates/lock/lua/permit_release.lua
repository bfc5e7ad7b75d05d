-- Release leased permits that were acquired together, and notify waiters.
--
-- KEYS[1]   the semaphore: a string, the number of permits that are free
-- KEYS[2]   the acquired permits: a sorted set of ids by the time at which each expires (Unix, ms)
-- ARGV[1]   number of the first permit
-- ARGV[2]   number of the last
-- ARGV[3]   the first 12 bytes of their ids, see permit_acquire.lua
-- ARGV[4]   the channel of its waiters
-- ARGV[5..] the commands that publish: PUBLISH, and SPUBLISH on a cluster
--
-- Returns 1 when all were released in time, 0 when the lease of one had ended or it was not acquired
-- (the others, and expired ones that are still in the set, are released all the same).
-- 2 more: the user may not publish, so that nobody was notified.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local released, in_time = 0, 1
for i = ARGV[1], ARGV[2] do
  local id = ARGV[3] .. struct.pack('>I4', i)
  local expires = redis.call('ZSCORE', KEYS[2], id)
  if not expires or tonumber(expires) <= now then
    in_time = 0
  end
  released = released + redis.call('ZREM', KEYS[2], id)
end
if released == 0 then
  return 0
end
local free = redis.call('INCRBY', KEYS[1], released)
local denied = false
if free > 0 then
  for i = 5, #ARGV do
    local reply = redis.pcall(ARGV[i], ARGV[4], tostring(free))
    if type(reply) == 'table' and reply.err then
      denied = denied or string.find(reply.err, 'NOPERM') ~= nil
        or string.find(reply.err, 'user executing') ~= nil
        or string.find(reply.err, 'ACL failure') ~= nil
    end
  end
end
return in_time + (denied and 2 or 0)
