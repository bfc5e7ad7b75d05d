-- Acquire the reentrant lock, or re-enter it.
--
-- KEYS[1]  the lock's name: a hash of one field
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  owner, "<client uuid>:<decimal id>"
-- ARGV[3]  hold count after this acquire: 1 for a first acquire, 2 for the first re-entry, ...
-- The last key and argument are those of generation.lua.
--
-- Returns nil when the owner holds the lock, else the key's PTTL in milliseconds
-- (-1: no expiry; -2: there is no key, so that there is no hold to re-enter).
--
-- The hold count is absolute, not an increment: a command that is sent twice because its reply was
-- lost must not count twice. A re-entry (count > 1) never creates the key: the hold it builds on has
-- ended, and its owner has to learn that.
if outdated() then
  return redis.call('PTTL', KEYS[1])
end
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1
    or (ARGV[3] == '1' and redis.call('EXISTS', KEYS[1]) == 0) then
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[1])))
  return nil
end
return redis.call('PTTL', KEYS[1])
