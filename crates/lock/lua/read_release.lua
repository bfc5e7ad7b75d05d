-- Release one hold of the read side; with the last reader the key is deleted and a waiter notified.
--
-- KEYS[1]     the lock's name, see read_acquire.lua
-- ARGV[1..3]  see notify.lua; the message is "0": it wakes one waiter, since only a writer can be
--             waiting
-- ARGV[4]     not used: the holds that remain keep the leases they have
-- ARGV[5]     owner
-- ARGV[6]     hold count that remains, absolute
-- ARGV[7]     prefix of the keys of holds
-- ARGV[8]     number of the hold that ends, if others remain
-- The last key and argument are those of generation.lua.
--
-- Returns nil when this owner does not read (nothing is touched), 0 when holds of its own remain,
-- 1 when it no longer reads.
-- 3 instead of 1 if the user may not publish (see notify.lua).
if outdated() then
  return nil
end

local function key(owner, hold)
  return ARGV[7] .. ':' .. owner .. ':rwlock_timeout:' .. hold
end

local owner = ARGV[5]
local count = tonumber(redis.call('HGET', KEYS[1], owner))
if not count then
  return nil
end
local left, number = tonumber(ARGV[6]), tonumber(ARGV[8])
if left < count and number <= left then
  -- The last hold takes the number of the one that ends, with the lease that it has.
  redis.call('DEL', key(owner, number))
  if redis.call('EXISTS', key(owner, count)) == 1 then
    redis.call('RENAME', key(owner, count), key(owner, number))
  end
end
for hold = left + 1, count do
  redis.call('DEL', key(owner, hold))
end
if left > 0 then
  redis.call('HSET', KEYS[1], owner, left)
else
  redis.call('HDEL', KEYS[1], owner)
end
local reply = left > 0 and 0 or 1
if redis.call('HGET', KEYS[1], 'mode') == 'write' then
  -- The writer, which can only be this owner, still holds it.
  return reply
end
-- The key lives as long as the longest hold that is left. Owners that died have no live hold: their
-- fields alone exclude no other owner.
local longest = 0
for _, other in ipairs(redis.call('HKEYS', KEYS[1])) do
  for hold = 1, tonumber(redis.call('HGET', KEYS[1], other)) or 0 do
    longest = math.max(longest, redis.call('PTTL', key(other, hold)))
  end
end
if longest > 0 then
  redis.call('PEXPIRE', KEYS[1], longest)
  return reply
end
redis.call('DEL', KEYS[1])
notify()
return left > 0 and 0 or released()
