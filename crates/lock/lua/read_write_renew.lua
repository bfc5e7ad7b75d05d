-- Renew one side of a read-write lock to its full lease.
--
-- KEYS[1]  the lock's name
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  the owner's field
-- ARGV[3]  prefix of the keys of holds, see read_acquire.lua; absent for a writer
-- ARGV[4]  for how many ms a reader's longest hold should still exist at least
--
-- Returns 1 when renewed, 0 when there is no key, -1 when another owner holds it; of a reader whose
-- holds another client has shortened, 1 more than the ms that were left: Redisson up to 4.3.1 renews
-- the holds of all readers to its own lease.
local count = tonumber(redis.call('HGET', KEYS[1], ARGV[2]))
if not count then
  return -redis.call('EXISTS', KEYS[1])
end
local reply = 1
if ARGV[3] then
  local left = 0
  for hold = 1, count do
    left = math.max(left, redis.call('PTTL', ARGV[3] .. ':' .. ARGV[2] .. ':rwlock_timeout:' .. hold))
  end
  if left > 0 and left < tonumber(ARGV[4]) then
    reply = 1 + left
  end
  -- While the field exists no writer can have acquired the lock, so the key of a hold that expired
  -- because this renewal is late may be created again.
  for hold = 1, count do
    local key = ARGV[3] .. ':' .. ARGV[2] .. ':rwlock_timeout:' .. hold
    redis.call('SET', key, 1, 'PX', math.max(redis.call('PTTL', key), tonumber(ARGV[1])))
  end
end
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[1])))
return reply
