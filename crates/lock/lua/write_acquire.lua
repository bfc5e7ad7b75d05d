-- Acquire the write side of a read-write lock, or re-enter it.
--
-- KEYS[1]  the lock's name, see read_acquire.lua
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  the owner as a writer: "<owner>:write"
-- ARGV[3]  hold count after this acquire, absolute
-- The last key and argument are those of generation.lua.
--
-- Returns nil when the owner writes, else the key's PTTL (-1: no expiry; -2: no key).
-- A reader never becomes a writer: two that tried would wait for each other forever.
if outdated() then
  return redis.call('PTTL', KEYS[1])
end
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
  if ARGV[3] ~= '1' or redis.call('EXISTS', KEYS[1]) == 1 then
    return redis.call('PTTL', KEYS[1])
  end
  redis.call('HSET', KEYS[1], 'mode', 'write')
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[1])))
return nil
