-- Give one hold of the reading side back; with the last reader the key goes and a waiter is told.
--
-- KEYS[1]  the lock's name
-- KEYS[2]  the channel its waiters listen on
-- KEYS[3]  the owner's prefix of hold keys
-- KEYS[4]  the prefix of all owners' hold keys: "<prefix>:<owner>:rwlock_timeout:<N>"
-- ARGV[1]  the commands that announce
-- ARGV[2]  the message ("0": one waiter may look, since only a writer can be waiting)
-- ARGV[3]  lease in milliseconds, for the holds that remain
-- ARGV[4]  owner
-- ARGV[5]  depth that remains, absolute
--
-- Returns nil when this owner does not read (nothing is touched), 0 when holds of its own remain,
-- 1 when it reads no longer.
local count = tonumber(redis.call('HGET', KEYS[1], ARGV[4]))
if not count then
  return nil
end
local left = tonumber(ARGV[5])
for hold = left + 1, count do
  redis.call('DEL', KEYS[3] .. ':' .. hold)
end
if left > 0 then
  redis.call('HSET', KEYS[1], ARGV[4], left)
  for hold = 1, left do
    redis.call('SET', KEYS[3] .. ':' .. hold, 1, 'PX', ARGV[3])
  end
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[3])))
  return 0
end
redis.call('HDEL', KEYS[1], ARGV[4])
if redis.call('HGET', KEYS[1], 'mode') == 'write' then
  -- Its writer, which can only be this owner, goes on.
  return 1
end
-- The key lives as long as the longest hold that is left. Owners that died have none: their fields
-- alone keep nobody out.
local longest = 0
for _, owner in ipairs(redis.call('HKEYS', KEYS[1])) do
  local holds = tonumber(redis.call('HGET', KEYS[1], owner)) or 0
  for hold = holds, 1, -1 do
    local key = KEYS[4] .. ':' .. owner .. ':rwlock_timeout:' .. hold
    longest = math.max(longest, redis.call('PTTL', key))
  end
end
if longest > 0 then
  redis.call('PEXPIRE', KEYS[1], longest)
  return 1
end
redis.call('DEL', KEYS[1])
tell(KEYS[2])
return 1
