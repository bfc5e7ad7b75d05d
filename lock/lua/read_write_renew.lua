-- Give one side of a read-write lock its full lease again.
--
-- KEYS[1]  the lock's name
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  the owner's field
-- ARGV[3]  what the keys of holds begin with, see read_acquire.lua; absent for a writer
--
-- Returns 1 when renewed, 0 when the key is gone, -1 when it is there without this owner.
local count = tonumber(redis.call('HGET', KEYS[1], ARGV[2]))
if not count then
  return -redis.call('EXISTS', KEYS[1])
end
if ARGV[3] then
  -- While the field is there no writer can have come in between, so a key that expired because
  -- this renewal is late may be made again.
  for hold = 1, count do
    redis.call('SET', ARGV[3] .. ':' .. ARGV[2] .. ':rwlock_timeout:' .. hold, 1, 'PX', ARGV[1])
  end
end
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[1])))
return 1
