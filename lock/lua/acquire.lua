-- Take the reentrant lock, or take it once more.
--
-- KEYS[1]  the lock's name: a hash of one field
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  owner, "<client uuid>:<decimal id>"
-- ARGV[3]  depth the owner will have reached: 1 for a first acquire, 2 for the first re-entry, ...
--
-- Returns nil when the owner holds the lock, else the key's PTTL in milliseconds
-- (-1: no expiry; -2: the key is gone, so that a re-entry has nothing left to enter).
--
-- The depth is absolute, not an increment: a command that is sent twice because its reply was lost
-- must not count twice. A re-entry (depth > 1) never creates the key: the hold it builds on is over,
-- and its owner has to learn that instead of having it quietly replaced.
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1
    or (ARGV[3] == '1' and redis.call('EXISTS', KEYS[1]) == 0) then
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return nil
end
return redis.call('PTTL', KEYS[1])
