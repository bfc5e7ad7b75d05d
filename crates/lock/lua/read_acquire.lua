-- Acquire the read side of a read-write lock, or re-enter it.
--
-- KEYS[1]  the lock's name: a hash of `mode` ("read" or "write") and a hold count for each owner;
--          a writer's field has ":write" after the owner
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  owner
-- ARGV[3]  hold count after this acquire, absolute
-- ARGV[4]  prefix of the keys of holds. Hold N of an owner has a key
--          "<prefix>:<owner>:rwlock_timeout:N" that expires with its lease, because fields of a hash
--          cannot expire one by one
-- The last key and argument are those of generation.lua.
--
-- Returns nil when the owner holds the read side, else the key's PTTL (-1: no expiry; -2: there is
-- no hold to re-enter).
if outdated() then
  return redis.call('PTTL', KEYS[1])
end
local mode = redis.call('HGET', KEYS[1], 'mode')
local own = redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1
if mode == false then
  -- A key without a mode is a lock of another kind; without a key there is no hold to re-enter.
  if ARGV[3] ~= '1' or redis.call('EXISTS', KEYS[1]) == 1 then
    return redis.call('PTTL', KEYS[1])
  end
  redis.call('HSET', KEYS[1], 'mode', 'read')
elseif mode ~= 'read' and redis.call('HEXISTS', KEYS[1], ARGV[2] .. ':write') == 0 then
  -- Another owner writes. A writer may read as well.
  return redis.call('PTTL', KEYS[1])
elseif ARGV[3] ~= '1' and not own then
  return -2
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('SET', ARGV[4] .. ':' .. ARGV[2] .. ':rwlock_timeout:' .. ARGV[3], 1, 'PX', ARGV[1])
-- Other owners may have longer leases.
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[1])))
return nil
